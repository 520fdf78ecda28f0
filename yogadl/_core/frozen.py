"""Make small immutable classes quickly, and parse JSON from untrusted files."""

import json
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from typing import Any, Final, NoReturn, TypeVar, dataclass_transform

# Make immutable dataclasses in a fraction of the time that `dataclass(frozen=True)` takes.
#
# `dataclass(frozen=True)` compiles six methods a class. A process that reads has some forty such classes, and
# compiling them took half of the time until its first batch (benchmarks/start.py). `frozen` compiles one
# method a class; all classes share the others.


T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(kind: type[T]) -> type[T]:
    """Make a class immutable, as `dataclass(frozen=True)` does; the class keeps methods of its own."""
    methods = {"__repr__": _repr, "__eq__": _eq, "__hash__": _hash}
    for name, method in methods.items():
        if name not in vars(kind) or vars(kind)[name] is None:  # a class with __eq__ has no __hash__
            setattr(kind, name, method)
    made: Any = dataclass(init=False, repr=False, eq=False)(kind)
    made.__init__ = _init_of(made)
    made.__setattr__ = made.__delattr__ = _refuse
    return kind


def _init_of(kind: Any) -> Any:
    names: dict[str, Any] = {"MISSING": MISSING}
    arguments, lines = ["self"], ["values = self.__dict__"]
    for one in fields(kind):
        if not one.init:
            continue
        value, default = one.name, ""
        if one.default is not MISSING:
            default, names[f"{one.name}_default"] = f"={one.name}_default", one.default
        elif one.default_factory is not MISSING:
            default, names[f"{one.name}_factory"] = "=MISSING", one.default_factory
            value = f"{one.name}_factory() if {one.name} is MISSING else {one.name}"
        arguments.append(one.name + default)
        lines.append(f"values[{one.name!r}] = {value}")
    if hasattr(kind, "__post_init__"):
        lines.append("self.__post_init__()")
    exec(f"def __init__({', '.join(arguments)}):\n " + "\n ".join(lines), names)
    made = names["__init__"]
    made.__qualname__, made.__module__ = f"{kind.__qualname__}.__init__", kind.__module__
    made.__annotations__ = {one.name: one.type for one in fields(kind) if one.init} | {"return": None}
    return made


def _compared(self: Any) -> tuple[Any, ...]:
    return tuple([getattr(self, one.name) for one in fields(self) if one.compare])


def _eq(self: Any, other: Any) -> bool:
    return _compared(self) == _compared(other) if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_compared(self))


def _repr(self: Any) -> str:
    shown = ", ".join(f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.repr)
    return f"{type(self).__qualname__}({shown})"


def _refuse(self: Any, name: str, *value: object) -> NoReturn:
    raise FrozenInstanceError(f"can't change {name!r}: a {type(self).__qualname__} is immutable")


# Parse JSON from untrusted files: within limits, and with one error type for any problem.


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
