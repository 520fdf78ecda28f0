"""Describe a dataset's builder and its arguments, from which a version is made.

A builder is the function that makes a dataset. Its ingredients are the builder's code, its arguments, and all
code and values of the user that this code uses; `ingredients` collects them. The version is a hash of them.
"""

import hashlib
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import FunctionType
from typing import Any

from yogadl._provenance.code import CodeReader
from yogadl._provenance.ingredients import Ingredient, Walk, dotted
from yogadl._provenance.members import is_ours, module_name
from yogadl._provenance.values import CACHE_WRAPPER, shown_value


@dataclass(frozen=True)
class Builder:
    """A function with its arguments, and everything that decides what it builds. Made by `builder_of`.

    Args:
        function: The name of the function.
        source: The function's code, without decorators, or ``None`` if there is no source.
        arguments: The values of its parameters, as text.
        ingredients: The ingredients of the version.
        libraries: The versions of the packages in use; these are no ingredients of the version.
    """

    function: str
    source: str | None
    arguments: dict[str, str]
    ingredients: tuple[Ingredient, ...]
    libraries: dict[str, str]

    @property
    def sha256(self) -> str:
        """The hash of all ingredients."""
        pairs = sorted((ingredient.key, ingredient.sha256) for ingredient in self.ingredients)
        return hashlib.sha256(json.dumps(pairs).encode()).hexdigest()

    @property
    def version(self) -> str:
        """The version of the builder under ``version="auto"``."""
        return f"auto-{self.sha256[:16]}"

    def to_json(self) -> dict[str, Any]:
        """Return the builder's description for a manifest."""
        by_label: dict[str, list[str]] = {}
        for ingredient in self.ingredients:
            # One entry for each label: several functions may read the same global.
            by_label.setdefault(ingredient.label, [ingredient.sha256, ingredient.text, ingredient.key])
        return {
            "function": self.function,
            "source": self.source,
            "arguments": self.arguments,
            "ingredients": [[label, *content] for label, content in by_label.items()],
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
        function: The builder's function.
        args: The positional arguments.
        kwargs: The keyword arguments.
        reader: Reads code; it keeps parsed files, so use the same reader for one call after another.
        thorough: Whether every value must be described exactly, as for a version; otherwise only cheap ones.
        strict: Whether a value that can't be described is refused; otherwise only its type counts.

    Raises:
        ConfigurationError: if a value can't be described; the error names the value and a remedy.
    """
    unwrapped: Any = _unwrapped(function)
    while isinstance(unwrapped, partial):
        args, kwargs = unwrapped.args + args, unwrapped.keywords | kwargs
        unwrapped = _unwrapped(unwrapped.func)
    function = unwrapped
    walk = Walk(function, reader, thorough=thorough, strict=strict)
    arguments = _arguments_by_name(function, args, kwargs)
    for name, value in arguments.items():
        walk.add_argument(name, value)
    walk.add_builder(function)
    named: Any = function if hasattr(function, "__qualname__") else type(function)
    inner = inspect.unwrap(function)
    source = reader.of_function(inner).text if isinstance(inner, FunctionType) else ""
    return Builder(
        dotted(module_name(named.__module__), named.__qualname__),
        source or None,
        {name: shown_value(name, value) for name, value in arguments.items()},
        tuple(walk.found.values()),
        walk.libraries,
    )


def _unwrapped(function: Any) -> Any:  # any callable
    """Return the callable inside wrappers that return its result: functools.cache, and this library's own."""
    is_wrapper = isinstance(function, CACHE_WRAPPER) or (
        isinstance(function, FunctionType) and is_ours(function.__code__.co_filename)
    )
    if is_wrapper and hasattr(function, "__wrapped__"):
        return _unwrapped(function.__wrapped__)
    return function


def _arguments_by_name(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments by the names of their parameters, so that f(1) equals f(x=1)."""
    try:
        signature = inspect.signature(function)
        bound = signature.bind(*args, **kwargs)
    except (TypeError, ValueError):  # no signature, or a wrong call, which will raise its own error
        return {str(name): value for name, value in [*enumerate(args), *kwargs.items()]}
    bound.apply_defaults()
    arguments = dict(bound.arguments)
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            arguments[name] = dict(sorted(arguments[name].items()))
    return arguments


@dataclass(frozen=True)
class Call:
    """One call of a builder, which may start a build.

    Args:
        builder: The builder, as it was before the call.
        manifest: Returns the builder's description for a manifest, after the build.
        sha256: Returns a hash of the builder in its current state, as exact as its values allow.
    """

    builder: Builder
    manifest: Callable[[], dict[str, Any]]
    sha256: Callable[[], str]


class Describer:
    """Describes a dataset's builder, for one call after another. Safe to use from several threads.

    Args:
        function: The builder's function.
        thorough: Whether a version is computed from the description; every value must then have one.
    """

    def __init__(self, function: Callable[..., Any], *, thorough: bool) -> None:
        self._function = function
        self._thorough = thorough
        self._reader = CodeReader()
        # The hash that an ingredient had before a build changed it, by its key and its hash after the build.
        self._sha256_before_build: dict[tuple[str, str], str] = {}

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Return a call, with the builder in its current state.

        A value that this builder's own builds have changed, such as a list to which it appends, keeps the
        hash from before the build: otherwise each call would have another version.

        Raises:
            ConfigurationError: if the version is computed, and a value has no description.
        """
        current = self._builder(args, kwargs)
        ingredients = [
            replace(each, sha256=self._sha256_before_build.get((each.key, each.sha256), each.sha256))
            for each in current.ingredients
        ]
        builder = replace(current, ingredients=tuple(ingredients))
        sha256 = partial(_sha256, self._function, args, kwargs, self._reader)
        return Call(builder, partial(self._manifest_after_build, builder, args, kwargs), sha256)

    def _manifest_after_build(
        self, before: Builder, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the description from before the build, and note which ingredients the build changed."""
        after = {each.key: each.sha256 for each in self._builder(args, kwargs).ingredients}
        kept = []
        for ingredient in before.ingredients:
            sha256 = after.get(ingredient.key, ingredient.sha256)
            if sha256 != ingredient.sha256:
                if not self._thorough:
                    continue  # no later call should warn about a value that the build itself changes
                self._sha256_before_build[ingredient.key, sha256] = ingredient.sha256
            kept.append(ingredient)
        return replace(before, ingredients=tuple(kept)).to_json()

    def _builder(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Builder:
        return builder_of(self._function, args, kwargs, self._reader, thorough=self._thorough)


def sha256_of_data(data: Any, *, strict: bool = False) -> str:
    """Return a hash of an object's class, with all that the class uses, and of the object's state.

    Args:
        data: The object.
        strict: Whether a value that can't be described is refused; otherwise only its type is hashed.

    Raises:
        ConfigurationError: if a value is refused.
    """
    return _sha256(lambda data: data, (data,), {}, CodeReader(), strict=strict)


def sha256_of_function(function: Callable[..., Any]) -> str:
    """Return a hash of a function and of all that it uses.

    Raises:
        ConfigurationError: if a value has no description, so that the hash would not be reliable.
    """
    walk = Walk(function, CodeReader(), thorough=True, strict=True)
    walk.add_argument("function", function)  # its defaults too
    walk.finish()
    return Builder("", None, {}, tuple(walk.found.values()), {}).sha256


def _sha256(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    reader: CodeReader,
    strict: bool = False,
) -> str:
    return builder_of(function, args, kwargs, reader, thorough=True, strict=strict).sha256
