"""Find out which code is the user's and which a library's, and describe the members of classes."""

import enum
import functools
import inspect
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path, PurePath
from types import FunctionType, ModuleType
from typing import Any, Final

from yogadl._provenance.values import nested

_LIBRARY_FOLDER: Final = str(Path(__file__).parents[1]) + os.sep
_MOST_LEVELS_UP: Final = 2  # up to `Path(__file__).parents[2]`, but not as far as "/" or "/data"
_HEAP_TYPE: Final = 1 << 9  # CPython's flag of a class that is not built into the interpreter


@dataclass(frozen=True)
class Libraries:
    """Distinguishes the user's own code from that of libraries.

    Args:
        own_package: The top-level package of the builder, which is the user's own even if installed.
    """

    own_package: str

    def have(self, module: str | None, file: str | None) -> bool:
        """Return whether a module belongs to Python, to this library, or to an installed package."""
        top = (module or "").partition(".")[0]
        if file is None or file.startswith("<"):
            return top != "__main__" and top in sys.stdlib_module_names
        if is_ours(file):
            return True
        if any(file.startswith(folder) for folder in _standard_library()):
            return top != self.own_package or "site-packages" not in file
        return top != self.own_package and _is_installed(top, file)

    def have_module(self, module: ModuleType) -> bool:
        return self.have(module.__name__, file_of(module))

    def have_function(self, function: FunctionType) -> bool:
        names, file = function.__globals__, function.__code__.co_filename
        return self.have(names.get("__name__"), names.get("__file__") if file.startswith("<") else file)

    def have_class(self, cls: type) -> bool:
        module = sys.modules.get(cls.__module__)
        if cls.__module__ == "builtins":  # classes made by exec without a __name__ also have this module
            return not cls.__flags__ & _HEAP_TYPE
        # A class that is made by a call, such as abc.ABCMeta("Name", ...) or types.new_class (which
        # make_dataclass calls before Python 3.12), has the module of the called code, not of the caller.
        may_be_made_by_call = (
            cls.__module__ in ("types", type(cls).__module__) and "." not in cls.__qualname__
        )
        found = getattr(module, "__dict__", {}).get(cls.__qualname__)
        if may_be_made_by_call and found is not cls and cls.__flags__ & _HEAP_TYPE:
            return False
        return self.have(cls.__module__, file_of(module))

    def have_spec(self, spec: ModuleSpec) -> bool:
        folder = next(iter(spec.submodule_search_locations or ()), None)
        return self.have(spec.name, spec.origin if spec.has_location else folder)


@functools.cache  # constant while the process lives
def _standard_library() -> tuple[str, ...]:
    return tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})


def _is_installed(top: str, file: str) -> bool:
    if "site-packages" in file or "dist-packages" in file:
        return True
    # Installed by `pip install --target`, perhaps among the user's own files.
    folder = next((parent for parent in Path(file).parents if parent.name == top), Path(file)).parent
    return _has_packages(folder) and top in _modules_of_packages()


@functools.cache  # installed packages are assumed not to change while the process lives
def _has_packages(folder: Path) -> bool:
    return next(folder.glob("*.dist-info"), None) is not None


@functools.cache  # reads a file of each distribution, and is rarely needed
def _modules_of_packages() -> Mapping[str, list[str]]:
    from importlib.metadata import packages_distributions  # takes 10 ms, and is rarely needed

    return packages_distributions()


def is_ours(file: str) -> bool:
    """Return whether a file belongs to this library."""
    return file.startswith(_LIBRARY_FOLDER)


def file_of(module: ModuleType | None) -> str | None:
    """Return the file of a module, or the first folder of a package that has none."""
    file = getattr(module, "__file__", None)
    return file or next(iter(getattr(module, "__path__", None) or ()), None)


def module_name(module: str | None) -> str:
    """Return a module's name; for the script that was started, the name that an import would give it."""
    if module not in ("__main__", "__mp_main__"):
        return module or ""
    main = sys.modules.get(module)
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name not in ("__main__", "__mp_main__"):
        return str(spec.name)
    file = getattr(main, "__file__", None)
    return Path(file).stem if file else module


def package_of(function: Any) -> str:  # any callable
    """Return the top-level package of a builder."""
    function = inspect.unwrap(function)
    function = getattr(function, "__func__", function)
    module = getattr(function, "__module__", None) or type(function).__module__
    return module_name(module).partition(".")[0]


def path_in_project(value: Any, names: Mapping[str, Any]) -> str:
    """Return a path relative to a module's folder, if it is in the module's project or just above it.

    Code often has a constant such as `Path(__file__).parent`, which differs by machine and means the same.
    The result is empty for other values.
    """
    file = names.get("__file__")
    if not isinstance(value, str | PurePath) or not os.path.isabs(value) or not file:
        return ""
    project = Path(file).parent
    for _ in filter(None, (names.get("__package__") or "").split(".")):
        project = project.parent
    path = PurePath(value)
    is_above = path in project.parents[:_MOST_LEVELS_UP] and len(path.parts) > _MOST_LEVELS_UP
    if is_above or path.is_relative_to(project):
        return f"{type(value).__name__} {os.path.relpath(path, Path(file).parent)!a} from its module"
    return ""


# Find the functions of a class, and describe a class whose source can't be found.


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


def is_set_by_python(cls: type, member: Any, libraries: Libraries) -> bool:
    """Return whether Python itself put a member into a class."""
    # Internal data of abc, and the members of an enum: code that uses such a member refers to it by name.
    if type(member).__module__ == "_abc" or (isinstance(member, enum.Enum) and type(member) is cls):
        return True
    return hasattr(type(member), "__get__") and libraries.have_class(type(member))


def functions_set_later(cls: type, name: str, member: Any, libraries: Libraries) -> list[FunctionType]:
    """Return a member's functions that are not in the class's source: set from outside, or decorated."""
    if name.startswith("__annotate"):
        return []  # Python 3.14 makes these from annotations
    module = vars(sys.modules.get(cls.__module__, cls))
    # Functions that Python generates from a class's fields, such as the comparison of a dataclass or named
    # tuple, are left out.
    may_be_generated = is_internal(name) or "_fields" in vars(cls)
    return [
        function
        for function in held_functions(member)
        if function.__globals__ is not module
        or function.__code__.co_qualname.rpartition(".")[0] != cls.__qualname__
        if not (may_be_generated and function.__code__.co_filename.startswith("<"))
        if not (may_be_generated and libraries.have_function(function))
    ]


def class_description(cls: type, libraries: Libraries) -> dict[str, Any]:
    """Describe a class whose source can't be found.

    The class was made by `exec`, namedtuple, Enum(...), make_dataclass or type(...), or is one of several
    classes with its name, for example in two branches of an `if`.
    """
    description: dict[str, Any] = {"class": type(cls), "body": {}}
    for name, member in vars(cls).items():  # in order, since it may be the order of fields
        functions = [function for function in functions_in(member) if not is_generated(function)]
        if functions and not name.startswith("__annotate"):
            description["body"][name] = functions
        elif not is_internal(name) and not is_set_by_python(cls, member, libraries):
            description["body"][name] = member
    if issubclass(cls, enum.Enum):
        description["members"] = {name: member.value for name, member in cls.__members__.items()}
    elif "__dataclass_fields__" in vars(cls):
        description |= _dataclass_description(cls)
    else:
        description["annotations"] = _annotations(cls)
    return description


def is_made_by_call(cls: type) -> bool:
    """Return whether a class was probably made by type(...) or make_dataclass."""
    own = vars(cls)
    # A class statement sets `__module__` first. Metaclasses, and typing.NamedTuple, may set attributes again.
    keeps_order = "__dataclass_fields__" in own or (type(cls) is type and "_fields" not in own)
    return keeps_order and next(iter(own)) != "__module__"


def is_generated(function: FunctionType) -> bool:
    """Return whether Python generated a function from a class's fields; its code varies by version."""
    inner = inspect.unwrap(function)
    module = str(inner.__globals__.get("__name__"))
    return (
        inner.__code__.co_qualname.startswith("__create_fn__.")
        or module in ("dataclasses", "collections", "enum")
        or module.startswith("namedtuple_")
    )


def _dataclass_description(cls: type) -> dict[str, Any]:
    dataclass: Any = cls  # `Any`, since mypy does not know that the class is a dataclass
    return {
        "fields": {
            name: {
                trait: getattr(field, trait)
                for trait in _FIELD_TRAITS
                if getattr(field, trait) is not MISSING
            }
            for name, field in dataclass.__dataclass_fields__.items()
        },
        "traits": {trait: getattr(dataclass.__dataclass_params__, trait) for trait in _DATACLASS_TRAITS},
    }


def _annotations(cls: type) -> dict[str, Any]:
    try:
        return inspect.get_annotations(cls)
    except NameError:  # Python 3.14 evaluates annotations at their first use
        return {}
