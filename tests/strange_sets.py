"""Datasets whose content means harm, or is just unusual: for those who show them."""

import numpy as np
from inside import dtype_named

MARKUP = "<script>alert(1)</script><img src=x onerror=alert(2)>'\"&amp;--></style></title>"
CONTROLS = "nul\0 bell\a escape\x1b[31m delete\x7f line\u2028 next\x85"
TURNED = "right\u202eto left\u2066 and\u200f mark\ufeff"
HALVES = "half \ud800 and \udfff of a pair"
TEXTS = [
    MARKUP,
    CONTROLS,
    TURNED,
    HALVES,
    "",
    "שלום עולם",
    "日本語\u3000テスト",
    "two\nlines\tand a tab",
    "javascript:alert(3)",
]


def hostile(count=9):
    """Yield records whose names and values are to pass for markup."""
    for number in range(count):
        value = TEXTS[number % len(TEXTS)]
        yield {
            MARKUP: value,
            CONTROLS: number,
            TURNED: value.encode("utf-8", "surrogatepass"),
            HALVES: np.array([value, MARKUP], object),
            "": {"": 1.0, "</dl>": [value]},
        }


def unusual():
    """Return records of one form each, by a name."""
    floats = [np.nan, np.inf, -np.inf, 1.7e308, -1.7e308, 5e-324, 0.0]
    return {
        "one record": [{"x": 1.5, "text": "a", "many": np.arange(3), "flag": True}],
        "the record itself": [np.arange(number) for number in range(7)],
        "constant": {"x": np.full(100, 7), "y": np.full(100, -0.5), "z": np.full(100, np.nan)},
        "truth": {"x": np.arange(11) % 3 == 0, "many": np.ones((11, 5), bool)},
        "floats": {"x": np.array(floats), "nan": np.full(7, np.nan), "inf": np.full(7, -np.inf)},
        "integers": {
            "far": np.array([-(2**63), 2**63 - 1, 0]),
            "large": np.array([2**64 - 1, 0, 2**63], np.uint64),
            "byte": np.array([-128, 127, 0], np.int8),
        },
        "complex": {"x": np.array([1 + 1j, complex(np.nan, 0), complex(1.7e308, 1.7e308)])},
        "times": {
            "day": np.array(["2024-01-01", "NaT", "2026-11-23", "0001-01-01"], "datetime64[D]"),
            "step": np.array([1, 10**6, -5, 2**62], "timedelta64[ns]"),
            "none": np.full(4, "NaT", "datetime64[s]"),
        },
        "empty arrays": {"x": np.zeros((5, 0, 3)), "image": np.zeros((5, 0, 4, 3), np.uint8)},
        "no length": [
            {"x": np.zeros(0), "y": np.zeros((0, 2), np.int32), "b": b"", "t": ""} for _ in range(5)
        ],
        "many dimensions": {"x": np.ones((3, *[1] * 30)), "wide": np.ones((3, 1000))},
        "varying": [
            {"x": np.ones(n), "image": np.zeros((1 + n, 2 + n, 3), np.uint8), "any": np.ones([2] * (n % 3))}
            for n in range(20)
        ],
        "nested": [{"a": {"b": [{"c": (1, {"d": n})}, "x"]}, "e": [[[n]]]} for n in range(4)],
        "images": [
            {
                "dot": np.full((1, 1, 3), 9, np.uint8),
                "five": np.zeros((4, 4, 5), np.uint8),
                "grey": np.arange(16, dtype=np.uint8).reshape(4, 4),
                "line": np.zeros((1, 3000, 1), np.uint8),
                "clear": np.full((3, 3, 4), 100, np.uint8),
                "cut png": b"\x89PNG\r\n\x1a\n",
                "cut jpeg": b"\xff\xd8\xff\xe0",
            }
        ],
    }


def small_floats():
    """Return numbers of dtypes that numpy alone has not, but for one; they need ml_dtypes."""
    names = ("bfloat16", "float16", "float8_e4m3fn", "int4", "uint2")
    return {name: (np.arange(40) % 4).astype(dtype_named(name)).reshape(20, 2) for name in names}
