"""Encode and decode json values: trees of plain Python values, each stored as one canonical text."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from yogadl._core.spec import BadValueError


def _orjson_if_any() -> Any:
    """Return the module orjson, which takes a third of json's time, or ``None`` if it is not installed."""
    try:
        import orjson
    except ImportError:
        return None
    return orjson


_orjson: Final = _orjson_if_any()

# The text of a value is what Python's `json.dumps` gives without spaces and with `ensure_ascii=False`: it is
# hashed, so that equal values have equal texts on every machine. orjson gives the same, except for the floats
# and depths that `_walk` finds.

MAX_JSON_DEPTH: Final = 512
PLAIN_TYPES: Final = frozenset({dict, list, str, int, float, bool, type(None)})
_ORJSON_DEPTH: Final = 254
_LEAST_INT: Final = -(2**63)
_MOST_INT: Final = 2**64 - 1
# Python shows floats outside of this range with an exponent.
_LEAST_PLAIN_FLOAT: Final = 1e-4
_LEAST_LARGE_FLOAT: Final = 1e16
# A value that is in several places of one level is looked at once, if the level has many values or is deep: a
# list may contain itself.
_ONCE_FROM_DEPTH: Final = 16
_ONCE_FROM_VALUES: Final = 2**16
_LONG_INTEGER: Final = re.compile(rb"[0-9]{19}")

_dumps: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False).encode


_dumps_sorted: Final = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), check_circular=False, sort_keys=True
).encode


class JsonText:
    """A json value that was encoded when it was read, so that later changes don't reach it."""

    __slots__ = ("data",)

    def __init__(self, value: Any) -> None:
        self.data = encode(value)

    def __len__(self) -> int:
        return len(self.data)


def is_json(value: Any) -> bool:
    """Return whether a value is one that `encode` takes."""
    try:
        encode(value)
    except BadValueError:
        return False
    return True


def encode(value: Any) -> bytes:
    """Return the canonical text of a json value, as UTF-8.

    Raises:
        BadValueError: if a value in the tree is not plain; the error has its path.
    """
    is_alike = _walk(value)
    try:
        return _orjson.dumps(value) if is_alike and _orjson is not None else _dumps(value).encode()
    except (TypeError, ValueError):  # a lone surrogate
        raise _refusal(value) from None
    except RecursionError:
        raise BadValueError(0, "is a json value nested too deep for what is left of the stack") from None


def comparable(value: Any) -> str:
    """Return a text that json values have in common if they differ in the order of keys alone."""
    return _dumps_sorted(value)


def each_its_own(values: Sequence[Any], places: Sequence[int]) -> list[Any]:
    """Return the values at these places; one that is there several times is copied."""
    found, seen = [], set()
    for place in places:
        value = values[place]
        found.append(decode(encode(value)) if place in seen else value)
        seen.add(place)
    return found


def is_plain(value: Any) -> bool:
    """Return whether a tree has only types of json values; their values may still be refused."""
    level = [value]
    for _ in range(MAX_JSON_DEPTH + 1):
        below: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is dict:
                if not all(type(key) is str for key in item):
                    return False
                below += item.values()
            elif kind is list:
                below += item
            elif kind not in PLAIN_TYPES:
                return False
        if not below:
            return True
        level = list({id(item): item for item in below}.values())
    return True


def decode(data: Any) -> Any:  # data: a buffer
    """Return the value of a text that `encode` made.

    Raises:
        ValueError: if it is no such text.
    """
    return decode_all([data])[0]


def decode_all(data: Iterable[Any]) -> list[Any]:
    """Return the values of many such texts."""
    if _orjson is not None:
        return list(map(_orjson.loads, data))
    return [_loads(str(each, "utf-8")) for each in data]


def decode_foreign(data: Any) -> Any:  # data: a buffer
    """Return the value of any text; a number in it that has no exact form here is an error.

    Raises:
        ValueError: if it is no JSON.
    """
    if _orjson is not None and _LONG_INTEGER.search(data) is None:
        return _orjson.loads(data)
    return _loads(str(data, "utf-8"))


def _exact_int(digits: str) -> int:
    number = int(digits) if len(digits) <= len(str(_LEAST_INT)) else None
    if number is None or not _LEAST_INT <= number <= _MOST_INT:
        raise ValueError(f"an integer of {len(digits)} digits has no 64 bits")
    return number


def _finite_float(digits: str) -> float:
    number = float(digits)
    if number - number != 0:
        raise ValueError("a number is too large for a float")
    return number


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_decode: Final = json.JSONDecoder(
    parse_int=_exact_int, parse_float=_finite_float, parse_constant=_refuse_constant
).decode


def _loads(text: str) -> Any:
    try:
        value = _decode(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if "\\" in text and ("\\ud" in text or "\\uD" in text):  # one character is found far faster
        _walk(value)
        _dumps(value).encode()  # a lone surrogate is an error
    return value


def _walk(value: Any) -> bool:  # noqa: C901, PLR0912  (flat: most of the time of `encode`)
    """Return whether orjson encodes a value as Python does; refuse what is not plain.

    Raises:
        BadValueError: if a value in the tree is not plain.
    """
    is_alike = True
    level, depth = [value], 0
    while level:
        below: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is dict:
                for key, inner in item.items():
                    if type(key) is not str:
                        raise _refusal(value)
                    if type(inner) is not str:
                        below.append(inner)
            elif kind is list:
                below += [inner for inner in item if type(inner) is not str]
            elif kind is int:
                if not _LEAST_INT <= item <= _MOST_INT:
                    raise _refusal(value)
            elif kind is float:
                if not _LEAST_PLAIN_FLOAT <= abs(item) < _LEAST_LARGE_FLOAT and item != 0:
                    if item - item != 0:
                        raise _refusal(value)
                    is_alike = False
            elif kind is not str and kind is not bool and item is not None:
                raise _refusal(value)
        depth += 1
        if depth > _ONCE_FROM_DEPTH or len(below) > _ONCE_FROM_VALUES:
            if depth > MAX_JSON_DEPTH and any(type(item) in (dict, list) for item in level):
                raise _refusal(value)
            below = list({id(item): item for item in below}.values())
        level = below
    return is_alike and depth <= _ORJSON_DEPTH


def _refusal(value: Any) -> BadValueError:
    """Return the error for a value that is no json value: the path to what is wrong, and what to write."""
    level: list[tuple[str, Any]] = [("", value)]
    for depth in range(MAX_JSON_DEPTH + 1):
        below: list[tuple[str, Any]] = []
        for path, item in level:
            problem = _problem_of(item)
            if problem is not None:
                where = f", whose {path.lstrip('.')} {problem}" if path else f" that {problem}"
                return BadValueError(0, f"is a json value{where}")
            below += _items_of(path, item)
        if depth > _ONCE_FROM_DEPTH or len(below) > _ONCE_FROM_VALUES:
            below = list({id(item): (path, item) for path, item in below}.values())
        level = below
    return BadValueError(0, f"is a json value that is nested more than {MAX_JSON_DEPTH} deep")


def _items_of(path: str, item: Any) -> Iterable[tuple[str, Any]]:
    if type(item) is dict:
        return [(f"{path}.{key}", inner) for key, inner in item.items()]
    if type(item) is list:
        return [(f"{path}[{number}]", inner) for number, inner in enumerate(item)]
    return ()


def _problem_of(item: Any) -> str | None:
    """Return what is wrong with a value, not looking into it."""
    kind = type(item)
    if kind is dict:
        return next(filter(None, map(_problem_of_key, item)), None)
    if kind is str:
        return _problem_of_text(item)
    if kind is int:
        is_wide = not _LEAST_INT <= item <= _MOST_INT
        return "is an integer that 64 bits can't hold: write it as a str" if is_wide else None
    if kind is float:
        return f"is {item}, which JSON has not: write None" if item - item != 0 else None
    if kind is list or kind is bool or item is None:
        return None
    advice: dict[Callable[[Any], bool], str] = {
        lambda value: isinstance(value, tuple): "write a list",
        lambda value: isinstance(value, dict): "write dict(...)",
        lambda value: isinstance(value, list): "write list(...)",
        lambda value: hasattr(value, "tolist"): "write its tolist()",
        lambda value: isinstance(value, bytes | bytearray | memoryview): "write str, or a field of its own",
    }
    what = next((text for fits, text in advice.items() if fits(item)), "write str, numbers, lists or dicts")
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"is a {module}{kind.__qualname__}: {what}"


def _problem_of_key(key: Any) -> str | None:
    if type(key) is not str:
        return f"has the key {key!r:.60}, and keys of JSON are str"
    return None if _problem_of_text(key) is None else f"has the key {key!r:.60} with a lone surrogate"


def _problem_of_text(text: str) -> str | None:
    try:
        text.encode()
    except UnicodeEncodeError:
        return "has a lone surrogate, which UTF-8 has not"
    return None
