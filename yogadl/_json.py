"""Parse JSON that anybody may have written: within bounds, and with one error for all that can be wrong."""

import json
from typing import Any, Final

# A spec is nested 64 deep at most, which is twice as many levels of JSON.
MAX_DEPTH: Final = 200
MAX_VALUES: Final = 2**20  # each takes up to 130 bytes once parsed
_DIGITS: Final = 20  # of 64 bits
# Python's own limit, which an environment variable may lift; beyond it, parsing takes quadratic time.
MANY_DIGITS: Final = 4300


def parse_json(content: bytes | str, *, most_digits: int = _DIGITS) -> Any:  # what JSON can say
    """Return what JSON says.

    Args:
        content: The JSON; whoever has read it from a file has bounded its length.
        most_digits: How many an integer may have.

    Raises:
        ValueError: if it is no JSON, is nested too deep, has too many values, or too long an integer.
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
    """Return whether JSON has more values than are parsed."""
    return sum(map(content.count, (b",", b"[", b"{"))) > MAX_VALUES


def _is_deeper(document: Any, levels: int) -> bool:
    """Return whether JSON is nested deeper than that; without recursion, which has an end of its own."""
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
