"""Describe one value of a record in a few words, and in JSON."""

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from yogadl._core.leaf import OBJECT, Leaf
from yogadl._core.spec import Spec
from yogadl.cli._output import counted

# The limits of what is shown of a string or of bytes: in text, in brief text, and in JSON.
_SHOWN: Final = 40
_SHOWN_BRIEFLY: Final = 12
_SHOWN_JSON: Final = 200


def names_of(spec: Spec) -> list[str]:
    """Return the fields' names to show: a record of a single value has no name, and a key may be empty."""
    if isinstance(spec.tree, Leaf):
        return ["(the record)"]
    return [field.name or '""' for field in spec.fields]


def row_of_field(name: str, leaf: Leaf) -> list[str]:
    """Return a field's name, dtype and shape as a row of a table."""
    if leaf.shape is None:
        shape = "varies"
    else:
        shape = " x ".join("varies" if count is None else str(count) for count in leaf.shape)
    return [name, "pickled" if leaf.dtype == OBJECT else leaf.dtype, shape]


def text_of(leaf: Leaf, value: Any, is_brief: bool = False) -> str:  # any value of a batch
    """Return a value in a few words: a scalar as it is, an array as dtype, shape, least and greatest."""
    if leaf.dtype == OBJECT:
        return "pickled"
    if isinstance(value, np.ndarray) and value.ndim:
        shape = "x".join(map(str, value.shape))
        bounds = _bounds(value)
        between = "" if bounds is None else f" {_number(bounds[0])} to {_number(bounds[1])}"
        return f"{leaf.dtype}[{shape}]{between}"
    if isinstance(value, str | bytes):
        return _cut(value, is_brief)
    return _number(_plain(value))


def _cut(value: str | bytes, is_brief: bool) -> str:
    most = _SHOWN_BRIEFLY if is_brief else _SHOWN
    kept = value[:most]
    if len(repr(kept)) > most + len("b''"):
        kept = value[: most // 4]  # most characters are escaped, each by four characters or more
    if len(kept) == len(value):
        return repr(value)
    count = counted(len(value), "byte" if isinstance(value, bytes) else "character")
    return f"{kept!r}..." if is_brief else f"{count}: {kept!r}..."


def json_of(leaf: Leaf, value: Any) -> dict[str, Any]:  # any value of a batch
    """Return a value as JSON; the keys are the same for every value.

    `value` is set for scalars, strings and bytes (in hexadecimal), `min` and `max` for arrays of numbers,
    `length` for strings and bytes, of which `value` may be just the beginning.
    """
    found: dict[str, Any] = {
        "dtype": leaf.dtype, "shape": [], "value": None, "min": None, "max": None, "length": None
    }  # fmt: skip
    if leaf.dtype == OBJECT:
        return found | {"shape": None}
    if isinstance(value, np.ndarray) and value.ndim:
        low, high = _bounds(value) or (None, None)
        return found | {"shape": list(value.shape), "min": _json(low), "max": _json(high)}
    if isinstance(value, bytes):
        return found | {"value": value[:_SHOWN_JSON].hex(), "length": len(value)}
    if isinstance(value, str):
        return found | {"value": value[:_SHOWN_JSON], "length": len(value)}
    return found | {"value": _json(_plain(value))}


def _bounds(array: NDArray[Any]) -> tuple[Any, Any] | None:
    """Return the least and the greatest value, without NaN and NaT, or None without values or an order."""
    if array.dtype.kind in "Oc" or not array.size:
        return None
    if array.dtype.kind not in "biufmM":
        array = array.astype(np.float64)  # bfloat16 and other dtypes of ml_dtypes
    if array.dtype.kind in "fmM":
        array = array[~np.isnan(array)]
        if not array.size:
            return None
    return _plain(array.min()), _plain(array.max())


def _plain(value: Any) -> Any:  # a numpy scalar, or an array without dimensions
    """Return a number as a Python number, and a date as text."""
    kinds = {"m": str, "M": str, "b": bool, "i": int, "u": int, "c": complex}
    return kinds.get(np.asarray(value).dtype.kind, float)(value)


def _number(value: Any) -> str:  # what `_plain` returns
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:.4g}" if isinstance(value, complex) else str(value)


def _json(value: Any) -> Any:  # what `_plain` returns
    if isinstance(value, complex):
        return [_json(value.real), _json(value.imag)]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # "nan", "inf", "-inf": JSON has no numbers for them
    return value
