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
        # Python sets the __hash__ of a class with an __eq__ to None.
        if name not in vars(kind) or vars(kind)[name] is None:
            setattr(kind, name, method)
    untyped: Any = dataclass(init=False, repr=False, eq=False)(kind)
    untyped.__init__ = _make_init(untyped)
    untyped.__setattr__ = untyped.__delattr__ = _refuse_change
    return kind


def _make_init(kind: Any) -> Any:
    """Compile the `__init__` of a class, which sets all its fields at once."""
    names: dict[str, Any] = {"MISSING": MISSING}
    arguments, lines = ["self"], ["__dict = self.__dict__"]  # a name that no field has
    for member in fields(kind):
        if not member.init:
            continue
        value, default = member.name, ""
        if member.default is not MISSING:
            default, names[f"{member.name}_default"] = f"={member.name}_default", member.default
        elif member.default_factory is not MISSING:
            default, names[f"{member.name}_factory"] = "=MISSING", member.default_factory
            value = f"{member.name}_factory() if {member.name} is MISSING else {member.name}"
        arguments.append(member.name + default)
        lines.append(f"__dict[{member.name!r}] = {value}")
    if any("__post_init__" in vars(base) for base in kind.__mro__):
        lines.append("self.__post_init__()")
    exec(f"def __init__({', '.join(arguments)}):\n " + "\n ".join(lines), names)
    init = names["__init__"]
    init.__qualname__, init.__module__ = f"{kind.__qualname__}.__init__", kind.__module__
    init.__annotations__ = {member.name: member.type for member in fields(kind) if member.init} | {
        "return": None
    }
    return init


def _compared_values(self: Any) -> tuple[Any, ...]:
    return tuple([getattr(self, member.name) for member in fields(self) if member.compare])


def _eq(self: Any, other: Any) -> bool:
    return _compared_values(self) == _compared_values(other) if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_compared_values(self))


def _repr(self: Any) -> str:
    shown = ", ".join(
        f"{member.name}={getattr(self, member.name)!r}" for member in fields(self) if member.repr
    )
    return f"{type(self).__qualname__}({shown})"


def _refuse_change(self: Any, name: str, *value: object) -> NoReturn:
    raise FrozenInstanceError(f"can't change {name!r}: a {type(self).__qualname__} is immutable")


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
    if is_deeper(document, MAX_DEPTH):
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
    return document


def has_many_values(content: bytes) -> bool:
    """Return whether JSON has more values than `parse_json` accepts."""
    return sum(map(content.count, (b",", b"[", b"{"))) > MAX_VALUES


def is_deeper(document: Any, levels: int) -> bool:
    """Return whether JSON is nested deeper than `levels`; without recursion, whose depth is limited.

    Tuples count as lists. A value that is in several places is looked at once a level.
    """
    inner = [document] if isinstance(document, _NESTING) else []
    while inner and levels:
        levels -= 1
        found = {
            id(item): item
            for outer in inner
            for item in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(item, _NESTING)
        }
        inner = list(found.values())
    return bool(inner)


_NESTING: Final = (dict, list, tuple)
