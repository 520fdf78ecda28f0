"""Parse JSON from untrusted files: within limits, and with one error type for any problem."""

import json
from typing import Any, Final

# A spec is nested at most 64 deep, which takes twice as many levels of JSON.
MAX_DEPTH: Final = 200
MAX_VALUES: Final = 2**20  # each takes up to 130 bytes once parsed
_DIGITS: Final = 20  # of a 64-bit integer
# Python's own limit, which an environment variable may lift; parsing longer integers takes quadratic time.
MANY_DIGITS: Final = 4300


def parse_json(content: bytes | str, *, most_digits: int = _DIGITS) -> Any:  # any JSON value
    """Return the value of a JSON document.

    Args:
        content: The JSON; its reader has limited its length.
        most_digits: The most digits that an integer may have.

    Raises:
        ValueError: if it is no JSON, is nested too deep, or has too many values or too long an integer.
    """
    if has_many_values(content.encode(errors="surrogatepass") if isinstance(content, str) else content):
        raise ValueError(f"it has more than {MAX_VALUES} values")

    def integer(digits: str) -> int:
        if len(digits.removeprefix("-")) > most_digits:
            raise ValueError(f"an integer has {len(digits)} digits")
        return int(digits)

    try:
        document = json.loads(content, parse_int=integer)
    except RecursionError as error:
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep") from error
    if _is_deeper(document, MAX_DEPTH):
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
    return document


def has_many_values(content: bytes) -> bool:
    """Return whether JSON has more values than `parse_json` accepts."""
    return sum(map(content.count, (b",", b"[", b"{"))) > MAX_VALUES


def _is_deeper(document: Any, levels: int) -> bool:
    """Return whether JSON is nested deeper than `levels`; without recursion, whose depth is limited."""
    inner = [document] if isinstance(document, dict | list) else []
    while inner and levels:
        levels -= 1
        inner = [
            item
            for outer in inner
            for item in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(item, dict | list)
        ]
    return bool(inner)
