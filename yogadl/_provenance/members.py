"""Find the functions of a class, and describe a class whose source can't be found."""

import enum
import inspect
import sys
from collections.abc import Iterator
from dataclasses import MISSING
from types import FunctionType
from typing import Any, Final

from yogadl._provenance.modules import Libraries
from yogadl._provenance.values import nested

# The traits of a dataclass that exist in every supported version of Python.
_DATACLASS_TRAITS: Final = ("init", "repr", "eq", "order", "unsafe_hash", "frozen")
_FIELD_TRAITS: Final = (
    "type", "default", "default_factory", "init", "repr", "hash", "compare", "kw_only", "metadata",
)  # fmt: skip


def functions_of(cls: type) -> Iterator[FunctionType]:
    """Yield the functions in the body of a class."""
    for name, member in sorted(vars(cls).items()):
        if not name.startswith("__annotate"):  # added by Python 3.14, not written in the class
            yield from functions_in(member)


def functions_in(member: Any) -> Iterator[FunctionType]:  # any member of a class
    """Yield a function, or the functions of a property, a class method and the like."""
    inner = [getattr(member, part, None) for part in ("__func__", "fget", "fset", "fdel", "func")]
    for function in (member, *inner):
        if isinstance(function, FunctionType):
            yield function


def held_functions(value: Any) -> list[FunctionType]:  # any attribute of a class or a function
    """Return the functions in a value, also in a dict, list, tuple or set, such as a registry."""
    return [function for one in nested(value) for function in functions_in(one)]


def is_internal(name: str) -> bool:
    """Return whether Python or a library may use this name for itself."""
    return name.startswith("_") and name.endswith("_") and len(name) > 1


def is_of_python(cls: type, member: Any, libraries: Libraries) -> bool:
    """Return whether Python itself put a member into a class."""
    # Internal data of abc, and the members of an enum; the used members count as references.
    if type(member).__module__ == "_abc" or (isinstance(member, enum.Enum) and type(member) is cls):
        return True
    return hasattr(type(member), "__get__") and libraries.have_class(type(member))


def set_later(cls: type, name: str, member: Any, libraries: Libraries) -> list[FunctionType]:
    """Return a member's functions that are not in the class's source: set from outside, or decorated."""
    if name.startswith("__annotate"):
        return []  # Python 3.14 makes these from annotations
    module = vars(sys.modules.get(cls.__module__, cls))
    # Functions generated from a class's fields, such as the comparison of a dataclass or named tuple, don't
    # count.
    is_made = is_internal(name) or "_fields" in vars(cls)
    return [
        function
        for function in held_functions(member)
        if function.__globals__ is not module
        or function.__code__.co_qualname.rpartition(".")[0] != cls.__qualname__
        if not (is_made and function.__code__.co_filename.startswith("<"))
        if not (is_made and libraries.have_function(function))
    ]


def described(cls: type, libraries: Libraries) -> dict[str, Any]:
    """Describe a class whose source can't be found.

    The class was made by `exec`, namedtuple, Enum(...), make_dataclass or type(...), or is one of several
    classes with its name, for example in two branches of an `if`.
    """
    made: dict[str, Any] = {"class": type(cls), "body": {}}
    for name, member in vars(cls).items():  # in order, since it may be the order of fields
        functions = [function for function in functions_in(member) if not is_generated(function)]
        if functions and not name.startswith("__annotate"):
            made["body"][name] = functions
        elif not is_internal(name) and not is_of_python(cls, member, libraries):
            made["body"][name] = member
    if issubclass(cls, enum.Enum):
        made["members"] = {name: member.value for name, member in cls.__members__.items()}
    elif "__dataclass_fields__" in vars(cls):
        made |= _dataclass_of(cls)
    else:
        made["annotations"] = _annotations(cls)
    return made


def is_made_by_call(cls: type) -> bool:
    """Return whether a class was probably made by type(...) or make_dataclass."""
    own = vars(cls)
    # A class statement sets `__module__` first. Metaclasses, and typing.NamedTuple, may set attributes again.
    keeps_order = "__dataclass_fields__" in own or (type(cls) is type and "_fields" not in own)
    return keeps_order and next(iter(own)) != "__module__"


def is_generated(function: FunctionType) -> bool:
    """Return whether Python generated a function from a class's fields or members; it varies by version."""
    made = inspect.unwrap(function)
    module = str(made.__globals__.get("__name__"))
    return (
        made.__code__.co_qualname.startswith("__create_fn__.")
        or module in ("dataclasses", "collections", "enum")
        or module.startswith("namedtuple_")
    )


def _dataclass_of(cls: type) -> dict[str, Any]:
    made: Any = cls  # mypy does not know that it is a dataclass
    return {
        "fields": {
            name: {
                trait: getattr(field, trait)
                for trait in _FIELD_TRAITS
                if getattr(field, trait) is not MISSING
            }
            for name, field in made.__dataclass_fields__.items()
        },
        "traits": {trait: getattr(made.__dataclass_params__, trait) for trait in _DATACLASS_TRAITS},
    }


def _annotations(cls: type) -> dict[str, Any]:
    try:
        return inspect.get_annotations(cls)
    except NameError:  # Python 3.14 evaluates annotations at their first use
        return {}
