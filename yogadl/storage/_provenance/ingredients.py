"""Follow a builder to everything that decides what it builds: code of the user's own, values, arguments."""

import builtins
import enum
import functools
import hashlib
import importlib
import importlib.util
import inspect
import itertools
import json
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, replace
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final

from yogadl.errors import ConfigurationError
from yogadl.storage._provenance.code import Code, CodeReader, functions_in, functions_of
from yogadl.storage._provenance.modules import Libraries, is_ours, module_name, package_of, place_in_project
from yogadl.storage._provenance.values import (
    CACHED,
    LOOKED_AT,
    ValueForms,
    is_plain,
    shown_object,
    shown_value,
)

_MAX_INGREDIENTS: Final = 20_000
_MISSING: Final = object()
# What every version of Python knows of a dataclass.
_DATACLASS_TRAITS: Final = ("init", "repr", "eq", "order", "unsafe_hash", "frozen")
_FIELD_TRAITS: Final = (
    "type", "default", "default_factory", "init", "repr", "hash", "compare", "kw_only", "metadata",
)  # fmt: skip
# What a module knows of itself: where it lies and how it was started, which builds nothing.
_OF_A_MODULE: Final = frozenset(
    {"__name__", "__file__", "__doc__", "__package__", "__spec__", "__loader__", "__path__", "__cached__"}
)


@dataclass(frozen=True)
class Ingredient:
    """One thing that a version is made of.

    Args:
        label: What people call it; unique.
        key: What the hash calls it: the same from whichever module or folder the code was imported.
        sha256: The hash of its content.
        text: Its source code, or its value in one line.
    """

    label: str
    key: str
    sha256: str
    text: str


@dataclass(frozen=True)
class Builder:
    """A function with its arguments, and all that decides what it builds. Made by `builder_of`.

    Args:
        function: Its name.
        source: Its code, without decorators; ``None`` if that is not to be had.
        arguments: The values of its parameters, as text.
        ingredients: What its version is made of.
        libraries: The versions of the packages that it uses, which its own version is not made of.
    """

    function: str
    source: str | None
    arguments: dict[str, str]
    ingredients: tuple[Ingredient, ...]
    libraries: dict[str, str]

    @property
    def version(self) -> str:
        """The version that ``version="auto"`` gives it."""
        pairs = sorted((ingredient.key, ingredient.sha256) for ingredient in self.ingredients)
        return f"auto-{hashlib.sha256(json.dumps(pairs).encode()).hexdigest()[:16]}"

    def with_contents(self, sha256s: Mapping[tuple[str, str], str]) -> "Builder":
        """Return the same, where an ingredient of some key and hash has another hash."""
        made = [
            replace(ingredient, sha256=sha256s.get((ingredient.key, ingredient.sha256), ingredient.sha256))
            for ingredient in self.ingredients
        ]
        return replace(self, ingredients=tuple(made))

    def to_json(self) -> dict[str, Any]:
        """Return what a manifest keeps of it."""
        found: dict[str, list[str]] = {}
        for ingredient in self.ingredients:
            # One for each global, whoever reads it.
            found.setdefault(ingredient.label, [ingredient.sha256, ingredient.text, ingredient.key])
        return {
            "function": self.function,
            "source": self.source,
            "arguments": self.arguments,
            "ingredients": [[label, *content] for label, content in found.items()],
            "libraries": self.libraries,
        }


def builder_of(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    reader: CodeReader,
    *,
    thorough: bool,
    strict: bool = True,
) -> Builder:
    """Describe a function and its arguments.

    Args:
        function: What builds.
        args: Its arguments.
        kwargs: Those given by name.
        reader: Reads code; best kept from call to call.
        thorough: Whether every value must be described, as a version needs it, or just what is cheap.
        strict: Whether what can't be is refused; else it counts by its type.

    Raises:
        ConfigurationError: if a value can't be; names it and what to do.
    """
    partial: Any = _seen_through(function)
    while isinstance(partial, functools.partial):
        args, kwargs = partial.args + args, partial.keywords | kwargs
        partial = _seen_through(partial.func)
    function = partial
    walk = _Walk(function, reader, thorough=thorough, strict=strict)
    bound = _bound(function, args, kwargs)
    for name, value in bound.items():
        walk.add_argument(name, value)
    walk.add_builder(function)
    named: Any = function if hasattr(function, "__qualname__") else type(function)
    inner = inspect.unwrap(function)
    source = reader.of_function(inner).text if isinstance(inner, FunctionType) else ""
    return Builder(
        _dotted(module_name(named.__module__), named.__qualname__),
        source or None,
        {name: shown_value(name, value) for name, value in bound.items()},
        tuple(walk.found.values()),
        walk.libraries,
    )


def _seen_through(function: Any) -> Any:  # anything that can be called
    """Return what is called without wrappers that return what it returns: functools.cache, and our own."""
    is_one = isinstance(function, CACHED) or (
        isinstance(function, FunctionType) and is_ours(function.__code__.co_filename)
    )
    if is_one and hasattr(function, "__wrapped__"):
        return _seen_through(function.__wrapped__)
    return function


def _bound(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments by the names of their parameters, so that f(1) is f(x=1)."""
    try:
        signature = inspect.signature(function)
        bound = signature.bind(*args, **kwargs)
    except (TypeError, ValueError):  # it has no signature, or the call itself will say what is wrong
        return {str(name): value for name, value in [*enumerate(args), *kwargs.items()]}
    bound.apply_defaults()
    found = dict(bound.arguments)
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            found[name] = dict(sorted(found[name].items()))
    return found


class _Unloaded(ModuleType):
    """A library's module that is not loaded just to be named: it may be TensorFlow."""


class _Walk:
    """Visit everything once, in an order that is the same in every process."""

    def __init__(self, function: Any, reader: CodeReader, *, thorough: bool, strict: bool) -> None:
        self.found: dict[str, Ingredient] = {}
        self.libraries: dict[str, str] = {}
        self._libraries = Libraries(package_of(function))
        self._reader = reader
        have_class = self._libraries.have_class
        self._values = ValueForms(self._of_code, have_class, thorough=thorough, strict=strict)
        self._thorough = thorough
        self._refuses = thorough and strict
        self._numbers: dict[str, int] = {}
        self._queue: deque[Callable[[], None]] = deque()

    # What is found.

    def _add(self, label: str, key: str, content: str, text: str) -> None:
        sha256 = hashlib.sha256(content.encode(errors="surrogatepass")).hexdigest()
        self.found.setdefault(f"{label} {key}", Ingredient(label, key, sha256, text))
        if len(self.found) > _MAX_INGREDIENTS:
            if not self._refuses:
                self._queue.clear()
                return
            raise ConfigurationError(
                f"the code of this builder uses more than {_MAX_INGREDIENTS} functions and values; "
                "name the version yourself instead of 'auto'"
            )

    def add_argument(self, name: str, value: Any) -> None:
        """Add an argument of the builder."""
        label, shown = f"argument {name!r}", shown_value(name, value)
        form = self._values.form(value, label)
        # Where objects of a type are all the same, what they say of themselves is better than nothing.
        self._add(label, f"argument {name}", form if self._thorough else f"{form} {shown}", shown)

    def add_builder(self, function: Any) -> None:  # anything that can be called
        """Add the builder itself, and all that it leads to."""
        if isinstance(function, FunctionType) and not self._libraries.have_function(function):
            self._add_function(function, f"function {_name_of(function)}", "builder", with_defaults=False)
        else:
            self._add("what is called", "builder", self._values.form(function, "what is called"), "")
        while self._queue:
            self._queue.popleft()()

    def _add_value(self, label: str, key: str, name: str, value: Any) -> None:
        form = self._values.form(value, label)
        shown = shown_value(name, value) if is_plain(value) else shown_object(value, form)
        self._add(label, key, form, shown)

    # Code.

    def _of_code(self, value: Any, where: str) -> str:  # a function, a class or a module
        if isinstance(value, ModuleType):
            if self._is_library_module(value):
                return self._library(value.__name__, "")
            return self._queued(value, "module", value.__name__, "", self._add_module)
        if isinstance(value, type):
            if self._libraries.have_class(value):
                return self._library(value.__module__, value.__qualname__)
            return self._queued(value, "class", value.__module__, value.__qualname__, self._add_class)
        # As it was written: functools.wraps gives a decorator's function the name of what it decorates.
        module, name = value.__globals__.get("__name__"), value.__code__.co_qualname
        if self._libraries.have_function(value):
            return self._library(module, name) + self._closed_over(value, where)
        return self._queued(value, "function", module, name, self._add_called)

    def _queued(
        self, value: Any, kind: str, module: str | None, name: str, add: Callable[[Any, str, str], None]
    ) -> str:
        """Return the token for a piece of code, and have it visited later."""
        # Without the module: the same file may be __main__ here and imported there.
        key = f"{kind} {name}"
        number = self._numbers[key] = self._numbers.get(key, 0) + 1
        suffix = f" #{number}" if number > 1 else ""
        label = f"{kind} {_dotted(module_name(module), name)}{suffix}"
        self._queue.append(lambda: add(value, label, key + suffix))
        return key + suffix

    def _library(self, module: str | None, name: str) -> str:
        """Return the token for what others wrote: its name, so that upgrading it builds nothing anew."""
        top = (module or "builtins").partition(".")[0]
        version = getattr(sys.modules.get(top), "__version__", None)
        if isinstance(version, str):
            self.libraries[top] = version
        # Where in a library a function lies differs between versions of it; where a module does not.
        return f"library {top}.{name}" if name else f"library {module}"

    def _closed_over(self, function: FunctionType, where: str) -> str:
        """Return what a library's function was made with: what it decorates, as a rule."""
        if isinstance(getattr(function, "registry", None), Mapping):  # functools.singledispatch
            held: Any = dict(function.registry)  # type: ignore[attr-defined]  # just looked
            return f" of {self._values.form(held, f'the registry of {where}')}"
        if not function.__closure__:
            return ""
        held = dict(zip(function.__code__.co_freevars, map(_content, function.__closure__), strict=True))
        return f" of {self._values.form(held, f'what {where} closes over')}"

    def _add_called(self, function: FunctionType, label: str, key: str) -> None:
        self._add_function(function, label, key, with_defaults=True)

    def _add_function(self, function: FunctionType, label: str, key: str, *, with_defaults: bool) -> None:
        code = self._reader.of_function(function)
        self._add(label, key, code.content, code.text)
        name = label.partition(" ")[2]
        if with_defaults:
            for parameter, value in _defaults(function):
                self._add_value(
                    f"default of {parameter!r} in {name}", f"{key} ={parameter}", parameter, value
                )
        for attribute, value in sorted(vars(function).items()):
            held = list(_held_functions(value))
            if held and not _is_internal(attribute):
                where = f"attribute {name}.{attribute}"
                self._add(where, f"{key} .{attribute}", self._values.form(held, where), "")
        closure = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        self._add_references(code, name, key, closure, function.__globals__)

    def _add_class(self, cls: type, label: str, key: str) -> None:
        codes = self._reader.of_class(cls)
        if len(codes) != 1:
            self._add_members(cls, label, key)
        code = _one_of(codes)
        self._add(label, key, code.content, code.text)
        self._add(f"bases of {label}", f"{key} bases", self._values.form(cls.__bases__, label), "")
        for name, value in sorted(vars(cls).items()):
            where, place = f"attribute {label.partition(' ')[2]}.{name}", f"{key} .{name}"
            # By value, too: `Config.SIZE = 64` in a script changes no code of Config.
            if not _is_internal(name) and (is_plain(value) or (self._thorough and self._counts(cls, value))):
                self._add_value(where, place, name, value)
            elif functions := self._set_later(cls, name, value):
                self._add(where, place, self._values.form(functions, where), "")
        closure: dict[str, Any] = {}
        for function in functions_of(cls):
            closure |= dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        module = sys.modules.get(cls.__module__)
        names = vars(module) if module else next((f.__globals__ for f in functions_of(cls)), {})
        self._add_references(code, label.partition(" ")[2], key, closure, names)

    def _counts(self, cls: type, member: Any) -> bool:
        """Return whether a class's member counts as a value, and not as the text of the class does."""
        if not self._refuses or isinstance(member, MethodType | functools.partial):
            return True
        # Not functions and all that makes attributes of them.
        return not hasattr(type(member), "__get__") and not self._is_of_python(cls, member)

    def _is_of_python(self, cls: type, member: Any) -> bool:
        """Return whether Python put a member into a class."""
        # What abc keeps to itself, and the members of an enum, of which those count that are used.
        if type(member).__module__ == "_abc" or (isinstance(member, enum.Enum) and type(member) is cls):
            return True
        return hasattr(type(member), "__get__") and self._libraries.have_class(type(member))

    def _set_later(self, cls: type, name: str, member: Any) -> list[FunctionType]:
        """Return a member's functions that are not in the class's text: set from outside, or decorated."""
        if name.startswith("__annotate"):
            return []  # what Python 3.14 makes of annotations
        module = vars(sys.modules.get(cls.__module__, cls))
        found = [
            function
            for function in _held_functions(member)
            if function.__globals__ is not module
            or function.__code__.co_qualname.rpartition(".")[0] != cls.__qualname__
        ]
        # Not what was made for a class from its fields: a dataclass's comparison, a named tuple's.
        if _is_internal(name) or "_fields" in vars(cls):
            found = [
                function
                for function in found
                if not function.__code__.co_filename.startswith("<")
                and not self._libraries.have_function(function)
            ]
        return found

    def _add_members(self, cls: type, label: str, key: str) -> None:
        """Add what a class is whose text can't be told.

        It was made by `exec`, namedtuple, Enum(...), make_dataclass, type(...), or is one of several that
        have its name, in two branches of an `if`, say.
        """
        made: dict[str, Any] = {"class": type(cls), "body": {}}
        for name, member in vars(cls).items():  # in order, which may be that of fields
            functions = [function for function in functions_in(member) if not _is_generated(function)]
            if functions and not name.startswith("__annotate"):
                made["body"][name] = functions
            elif not _is_internal(name) and not self._is_of_python(cls, member):
                made["body"][name] = member
        if issubclass(cls, enum.Enum):
            made["members"] = {name: member.value for name, member in cls.__members__.items()}
        elif "__dataclass_fields__" in vars(cls):
            made |= _dataclass_of(cls)
        else:
            made["annotations"] = _annotations(cls)
        self._add(f"members of {label}", f"{key} members", self._values.form(made, label), "")

    def _add_module(self, module: ModuleType, label: str, key: str) -> None:
        code = self._reader.of_module(module)
        if code is None and not self._refuses:
            return
        if code is None:
            raise ConfigurationError(
                f"version='auto' can't see what {label} is, which is used as a whole: it has no source; "
                "take the functions from it that you use, or name the version yourself instead of 'auto'"
            )
        self._add(label, key, code.content, code.text)

    # Names.

    def _add_references(
        self, code: Code, owner: str, key: str, closure: Mapping[str, Any], module: Mapping[str, Any]
    ) -> None:
        where = module_name(str(module.get("__name__", "")))
        for reference in code.references:
            name, value = reference.name, _MISSING
            if reference.module:
                value = self._imported(reference.module, module)
                if value is _MISSING and not self._thorough:
                    continue
            elif name in closure:
                value = _content(closure[name])
            elif name in _OF_A_MODULE or (name not in module and hasattr(builtins, name)):
                continue
            else:
                value = module.get(name, _MISSING)
            value, taken = self._followed(value, reference.attributes)
            spelt = ".".join((name, *taken))
            label = f"global {_dotted(where, spelt)}"
            if reference.module:
                label = f"import {'.'.join((reference.module, *taken))}"
            elif name in closure:
                label = f"closure variable {spelt!r} of {owner}"
            whole = f"{key} {reference.module} {'.'.join((name, *reference.attributes))}"
            place = place_in_project(value, module)
            if value is _MISSING or place:
                self._add(label, whole, place or "not bound", place or "not bound")
            else:
                self._add_value(label, whole, spelt, value)

    def _followed(self, value: Any, attributes: tuple[str, ...]) -> tuple[Any, tuple[str, ...]]:
        """Return what `value.a.b` is as far as that can be told without running code, and which were taken.

        So a builder that reads `config.size` depends on that alone, not on all of `config`.
        """
        if not attributes:
            return value, ()
        name, rest = attributes[0], attributes[1:]
        is_module = isinstance(value, ModuleType)
        if is_module and self._is_library_module(value):
            return value, ()
        found = self._of_module(value, name) if is_module else _stored(value, name)
        if found is _MISSING:
            return (_MISSING, (name,)) if is_module else (value, ())
        result, taken = self._followed(found, rest)
        # Of an object only plain values stand for themselves: anything else may look at the rest of it.
        return (result, (name, *taken)) if is_module or is_plain(result) else (value, ())

    def _imported(self, name: str, module: Mapping[str, Any]) -> Any:
        """Return a module that the code imports when it runs; of a library's no more than the name."""
        if name.startswith("."):
            spec = module.get("__spec__")
            package = module.get("__package__") or (spec.parent if spec else "")
            if not package:
                return _MISSING
            name = importlib.util.resolve_name(name, package)
        top = name.partition(".")[0]
        if not self._thorough:
            return sys.modules.get(name, _MISSING)  # loading it takes time, which a warning is not worth
        try:
            loaded = sys.modules.get(top)
            spec = None if loaded else importlib.util.find_spec(top)
            if (loaded and self._libraries.have_module(loaded)) or (spec and self._libraries.have_spec(spec)):
                return _Unloaded(name)
            return importlib.import_module(name)
        except (ImportError, ValueError):
            return _MISSING

    def _is_library_module(self, module: ModuleType) -> bool:
        return isinstance(module, _Unloaded) or self._libraries.have_module(module)

    def _of_module(self, module: ModuleType, name: str) -> Any:
        if name in vars(module):
            return vars(module)[name]
        submodule = f"{module.__name__}.{name}"
        try:
            return importlib.import_module(submodule) if self._thorough else sys.modules[submodule]
        except (ImportError, KeyError):
            return getattr(module, name, _MISSING)


def _one_of(codes: list[Code]) -> Code:
    """Return the only code there is, or what stands for any of several."""
    if len(codes) == 1:
        return codes[0]
    references = sorted({reference for code in codes for reference in code.references})
    content = " or ".join(code.content for code in codes) or "no source"
    return Code(content, "\n".join(code.text for code in codes), tuple(references))


def _name_of(function: FunctionType) -> str:
    return _dotted(module_name(function.__globals__.get("__name__")), function.__code__.co_qualname)


def _dotted(*names: str) -> str:
    return ".".join(filter(None, names))


def _stored(value: Any, name: str) -> Any:
    """Return an attribute that is kept as it is, on an object or a class, or else the mark for none."""
    if isinstance(value, type):
        found = inspect.getattr_static(value, name, _MISSING)
        return _MISSING if hasattr(found, "__get__") else found
    if isinstance(inspect.getattr_static(type(value), "__getattribute__"), FunctionType):
        return _MISSING
    if hasattr(inspect.getattr_static(type(value), name, None), "__set__"):
        return _MISSING  # a property: what it returns is worked out
    return getattr(value, "__dict__", {}).get(name, _MISSING)


def _defaults(function: FunctionType) -> Iterator[tuple[str, Any]]:
    code = function.__code__
    values = function.__defaults__ or ()
    yield from zip(code.co_varnames[code.co_argcount - len(values) : code.co_argcount], values, strict=True)
    yield from sorted((function.__kwdefaults__ or {}).items())


def _held_functions(value: Any) -> Iterator[FunctionType]:  # whatever a class or a function has
    """Yield the functions in a value, also in a dict, list, tuple or set, such as a registry."""
    if type(value) is dict:
        value = (*value.values(),)
    if type(value) in (tuple, list, set, frozenset):
        held = itertools.chain.from_iterable(map(_held_functions, itertools.islice(value, LOOKED_AT)))
        yield from sorted(held, key=lambda function: function.__code__.co_qualname)
    else:
        yield from functions_in(value)


def _is_generated(function: FunctionType) -> bool:
    """Return whether Python made a function from the fields or members of a class, each version another."""
    made = inspect.unwrap(function)
    module = str(made.__globals__.get("__name__"))
    return (
        made.__code__.co_qualname.startswith("__create_fn__.")
        or module in ("dataclasses", "collections", "enum")
        or module.startswith("namedtuple_")
    )


def _dataclass_of(cls: type) -> dict[str, Any]:
    """Return what a dataclass was made of."""
    made: Any = cls  # mypy does not see that it is one
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
    except NameError:  # Python 3.14 works them out when asked
        return {}


def _is_internal(name: str) -> bool:
    """Return whether Python or a library keeps a note under that name."""
    return name.startswith("_") and name.endswith("_") and len(name) > 1


def _content(cell: Any) -> Any:  # types.CellType
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING
