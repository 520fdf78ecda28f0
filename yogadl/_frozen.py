"""Make immutable dataclasses in a fraction of the time that `dataclass(frozen=True)` takes.

`dataclass(frozen=True)` compiles six methods a class. A process that reads has some forty such classes, and
compiling them took half of the time until its first batch (benchmarks/start.py). `frozen` compiles one method
a class; all classes share the others.
"""

from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from typing import Any, NoReturn, TypeVar, dataclass_transform

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
