"""Collect everything that decides what a builder builds: the user's own code, values, arguments.

Each piece of code and each value is an ingredient. The walk starts at the builder and its arguments, and
visits all functions, classes, modules and values of the user that their code uses. The code of libraries is
not visited: only its name counts. The form of a value is the text that is hashed; `values` makes it.
"""

import builtins
import functools
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final

from yogadl._provenance.code import Code, CodeReader
from yogadl._provenance.members import (
    Libraries,
    class_description,
    functions_of,
    functions_set_later,
    held_functions,
    is_internal,
    is_set_by_python,
    module_name,
    package_of,
    path_in_project,
)
from yogadl._provenance.values import ValueForms, is_plain, shown_object, shown_value
from yogadl.errors import ConfigurationError

_MAX_INGREDIENTS: Final = 20_000
_MISSING: Final = object()
# Attributes that Python sets in every module, such as its file; no build depends on them.
_MODULE_ATTRIBUTES: Final = frozenset(
    {"__name__", "__file__", "__doc__", "__package__", "__spec__", "__loader__", "__path__", "__cached__"}
)


@dataclass(frozen=True)
class Ingredient:
    """A piece of code or a value that a version is made of.

    Args:
        label: A readable, unique name.
        key: The name in the hash: the same from whichever module or folder the code was imported.
        sha256: The hash of the content.
        text: The source code, or the value in one line.
    """

    label: str
    key: str
    sha256: str
    text: str


class _Unloaded(ModuleType):
    """A library's module whose name is enough, so that it is not imported: it may be TensorFlow."""


class Walk:
    """Visits every ingredient once, in an order that is the same in every process."""

    def __init__(self, function: Any, reader: CodeReader, *, thorough: bool, strict: bool) -> None:
        self.found: dict[str, Ingredient] = {}
        self.libraries: dict[str, str] = {}
        self._libraries = Libraries(package_of(function))
        self._reader = reader
        self._values = ValueForms(
            self._code_form, self._libraries.have_class, thorough=thorough, strict=strict
        )
        self._thorough = thorough
        self._refuses = thorough and strict
        self._key_counts: dict[str, int] = {}
        self._queue: deque[Callable[[], None]] = deque()

    def _add(self, label: str, key: str, content: str, text: str) -> None:
        sha256 = hashlib.sha256(content.encode(errors="surrogatepass")).hexdigest()
        self.found.setdefault(f"{label} {key}", Ingredient(label, key, sha256, text))
        if len(self.found) > _MAX_INGREDIENTS:
            if self._refuses:
                raise ConfigurationError(
                    f"the code of this builder uses more than {_MAX_INGREDIENTS} functions and values; "
                    "name the version yourself instead of 'auto'"
                )
            self._queue.clear()

    def add_argument(self, name: str, value: Any) -> None:
        """Add an argument of the builder."""
        label, shown = f"argument {name!r}", shown_value(name, value)
        form = self._values.form(value, label)
        # Unless thorough, the form of an object is only its type, so the shown text is hashed with it.
        is_exact = self._thorough or is_plain(value)
        self._add(label, f"argument {name}", form if is_exact else f"{form} {shown}", shown)

    def add_builder(self, function: Any) -> None:  # any callable
        """Add the builder itself, and all ingredients that it leads to."""
        if isinstance(function, FunctionType) and not self._libraries.have_function(function):
            name = dotted(module_name(function.__globals__.get("__name__")), function.__code__.co_qualname)
            self._add_function(function, f"function {name}", "builder", with_defaults=False)
        else:
            self._add("what is called", "builder", self._values.form(function, "what is called"), "")
        self.finish()

    def finish(self) -> None:
        """Add all ingredients that the added ones lead to."""
        while self._queue:
            self._queue.popleft()()

    def _add_value(self, label: str, key: str, name: str, value: Any) -> None:
        form = self._values.form(value, label)
        shown = shown_value(name, value) if is_plain(value) else shown_object(value, form)
        self._add(label, key, form, shown)

    def _code_form(self, value: Any, where: str) -> str:  # a function, a class or a module
        if isinstance(value, ModuleType):
            if self._is_library_module(value):
                return self._library_form(value.__name__, "")
            return self._queue_visit(value, "module", value.__name__, "", self._add_module)
        if isinstance(value, type):
            if self._libraries.have_class(value):
                return self._library_form(value.__module__, value.__qualname__)
            return self._queue_visit(value, "class", value.__module__, value.__qualname__, self._add_class)
        # The name in the source: functools.wraps gives a decorator's function the name of the decorated one.
        module, name = value.__globals__.get("__name__"), value.__code__.co_qualname
        if self._libraries.have_function(value):
            return self._library_form(module, name) + self._closed_over(value, where)
        return self._queue_visit(value, "function", module, name, self._add_function)

    def _queue_visit(
        self, value: Any, kind: str, module: str | None, name: str, add: Callable[[Any, str, str], None]
    ) -> str:
        """Return the form of a piece of code, which is its key, and queue the code for a visit."""
        # The key has no module: the same file may be __main__ here and imported elsewhere.
        key = f"{kind} {name}"
        number = self._key_counts[key] = self._key_counts.get(key, 0) + 1
        suffix = f" #{number}" if number > 1 else ""
        label = f"{kind} {dotted(module_name(module), name)}{suffix}"
        self._queue.append(lambda: add(value, label, key + suffix))
        return key + suffix

    def _library_form(self, module: str | None, name: str) -> str:
        """Return the form of a library's code: only its name, so that an upgrade rebuilds nothing."""
        top = (module or "builtins").partition(".")[0]
        version = getattr(sys.modules.get(top), "__version__", None)
        if isinstance(version, str):
            self.libraries[top] = version
        # The form of a function has no module, since a function may move to another module of its library.
        return f"library {top}.{name}" if name else f"library {module}"

    def _closed_over(self, function: FunctionType, where: str) -> str:
        """Return the form of a library function's closure variables: usually of the decorated function."""
        if isinstance(getattr(function, "registry", None), Mapping):  # functools.singledispatch
            registry = dict(function.registry)  # type: ignore[attr-defined]  # checked above
            return f" of {self._values.form(registry, f'the registry of {where}')}"
        closure = _closure(function)
        return f" of {self._values.form(closure, f'the closure of {where}')}" if closure else ""

    def _add_function(
        self, function: FunctionType, label: str, key: str, *, with_defaults: bool = True
    ) -> None:
        code = self._reader.of_function(function)
        self._add(label, key, code.content, code.text)
        name = label.partition(" ")[2]
        if with_defaults:
            for parameter, value in _defaults(function):
                self._add_value(
                    f"default of {parameter!r} in {name}", f"{key} ={parameter}", parameter, value
                )
        for attribute, value in sorted(vars(function).items()):
            functions = held_functions(value)
            if functions and not is_internal(attribute):
                where = f"attribute {name}.{attribute}"
                self._add(where, f"{key} .{attribute}", self._values.form(functions, where), "")
        self._add_references(code, name, key, _closure(function), function.__globals__)

    def _add_class(self, cls: type, label: str, key: str) -> None:
        codes = self._reader.of_class(cls)
        if len(codes) != 1:
            members = class_description(cls, self._libraries)
            self._add(f"members of {label}", f"{key} members", self._values.form(members, label), "")
        code = _combined(codes)
        self._add(label, key, code.content, code.text)
        self._add(f"bases of {label}", f"{key} bases", self._values.form(cls.__bases__, label), "")
        for name, value in sorted(vars(cls).items()):
            where, attribute_key = f"attribute {label.partition(' ')[2]}.{name}", f"{key} .{name}"
            # Values count, too: `Config.SIZE = 64` in a script changes no code of Config.
            if not is_internal(name) and (is_plain(value) or (self._thorough and self._is_value(cls, value))):
                self._add_value(where, attribute_key, name, value)
            elif functions := functions_set_later(cls, name, value, self._libraries):
                self._add(where, attribute_key, self._values.form(functions, where), "")
        closure: dict[str, Any] = {}
        for function in functions_of(cls):
            closure |= _closure(function)
        module = sys.modules.get(cls.__module__)
        names = vars(module) if module else next((f.__globals__ for f in functions_of(cls)), {})
        self._add_references(code, label.partition(" ")[2], key, closure, names)

    def _is_value(self, cls: type, member: Any) -> bool:
        """Return whether a class's member is hashed as a value; otherwise the class's source covers it."""
        if not self._refuses or isinstance(member, MethodType | functools.partial):
            return True
        # Functions and other descriptors are no values.
        return not hasattr(type(member), "__get__") and not is_set_by_python(cls, member, self._libraries)

    def _add_module(self, module: ModuleType, label: str, key: str) -> None:
        code = self._reader.of_module(module)
        if code is not None:
            self._add(label, key, code.content, code.text)
        elif self._refuses:
            raise ConfigurationError(
                f"version='auto' can't see what {label} is, which is used as a whole: it has no source; "
                "take the functions from it that you use, or name the version yourself instead of 'auto'"
            )

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
                value = closure[name]
            elif name in _MODULE_ATTRIBUTES or (name not in module and hasattr(builtins, name)):
                continue
            else:
                value = module.get(name, _MISSING)
            value, followed = self._follow(value, reference.attributes)
            dotted_name = ".".join((name, *followed))
            label = f"global {dotted(where, dotted_name)}"
            if reference.module:
                label = f"import {'.'.join((reference.module, *followed))}"
            elif name in closure:
                label = f"closure variable {dotted_name!r} of {owner}"
            reference_key = f"{key} {reference.module} {'.'.join((name, *reference.attributes))}"
            path = path_in_project(value, module)
            if value is _MISSING or path:
                self._add(label, reference_key, path or "not bound", path or "not bound")
            else:
                self._add_value(label, reference_key, dotted_name, value)

    def _follow(self, value: Any, attributes: tuple[str, ...]) -> tuple[Any, tuple[str, ...]]:
        """Follow attributes such as `value.a.b`, and stop at the first one that runs code when it is read.

        A builder that reads `config.size` thus depends on this value alone, not on all of `config`.

        Returns:
            The value reached, and the attributes that were followed.
        """
        if not attributes:
            return value, ()
        name, rest = attributes[0], attributes[1:]
        is_module = isinstance(value, ModuleType)
        if is_module and self._is_library_module(value):
            return value, ()
        attribute = self._module_attribute(value, name) if is_module else _stored_attribute(value, name)
        if attribute is _MISSING:
            return (_MISSING, (name,)) if is_module else (value, ())
        result, followed = self._follow(attribute, rest)
        # Only a plain value of an object is followed: any other attribute may read the rest of the object.
        return (result, (name, *followed)) if is_module or is_plain(result) else (value, ())

    def _imported(self, name: str, module: Mapping[str, Any]) -> Any:
        """Return a module that the code imports when it runs; a library's module is not imported."""
        if name.startswith("."):
            spec = module.get("__spec__")
            package = module.get("__package__") or (spec.parent if spec else "")
            if not package:
                return _MISSING
            name = importlib.util.resolve_name(name, package)
        top = name.partition(".")[0]
        if not self._thorough:
            return sys.modules.get(name, _MISSING)  # for a warning; imports take too long
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

    def _module_attribute(self, module: ModuleType, name: str) -> Any:
        if name in vars(module):
            return vars(module)[name]
        submodule = f"{module.__name__}.{name}"
        try:
            return importlib.import_module(submodule) if self._thorough else sys.modules[submodule]
        except (ImportError, KeyError):
            return getattr(module, name, _MISSING)


def _combined(codes: list[Code]) -> Code:
    """Return the only code, or a combination of several."""
    if len(codes) == 1:
        return codes[0]
    references = sorted({reference for code in codes for reference in code.references})
    content = " or ".join(code.content for code in codes) or "no source"
    return Code(content, "\n".join(code.text for code in codes), tuple(references))


def dotted(*names: str) -> str:
    """Return the names that are not empty, joined by dots."""
    return ".".join(filter(None, names))


def _stored_attribute(value: Any, name: str) -> Any:
    """Return an attribute of an object or a class whose reading runs no code; `_MISSING` if there is none."""
    if isinstance(value, type):
        attribute = inspect.getattr_static(value, name, _MISSING)
        return _MISSING if hasattr(attribute, "__get__") else attribute
    if isinstance(inspect.getattr_static(type(value), "__getattribute__"), FunctionType):
        return _MISSING
    if hasattr(inspect.getattr_static(type(value), name, None), "__set__"):
        return _MISSING  # a property computes its value
    return getattr(value, "__dict__", {}).get(name, _MISSING)


def _defaults(function: FunctionType) -> Iterator[tuple[str, Any]]:
    code = function.__code__
    values = function.__defaults__ or ()
    yield from zip(code.co_varnames[code.co_argcount - len(values) : code.co_argcount], values, strict=True)
    yield from sorted((function.__kwdefaults__ or {}).items())


def _closure(function: FunctionType) -> dict[str, Any]:
    closure = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            closure[name] = cell.cell_contents
        except ValueError:  # not bound yet
            closure[name] = _MISSING
    return closure
