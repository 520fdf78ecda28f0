"""Describe a dataset's builder and its arguments, from which a version is made."""

import functools
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
from yogadl._provenance.values import CACHED, shown_value

# Describe a builder with its arguments, from which its version is made.


@dataclass(frozen=True)
class Builder:
    """A function with its arguments, and everything that decides what it builds. Made by `builder_of`.

    Args:
        function: The name of the function.
        source: The function's code, without decorators; ``None`` if there is no source.
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
        found: dict[str, list[str]] = {}
        for ingredient in self.ingredients:
            # One entry for each label: several functions may read the same global.
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
        function: The builder's function.
        args: The positional arguments.
        kwargs: The keyword arguments.
        reader: Reads code; best kept from call to call.
        thorough: As in `ValueForms`.
        strict: As in `ValueForms`.

    Raises:
        ConfigurationError: if a value can't be described; the error names the value and a remedy.
    """
    partial: Any = _seen_through(function)
    while isinstance(partial, functools.partial):
        args, kwargs = partial.args + args, partial.keywords | kwargs
        partial = _seen_through(partial.func)
    function = partial
    walk = Walk(function, reader, thorough=thorough, strict=strict)
    bound = _bound(function, args, kwargs)
    for name, value in bound.items():
        walk.add_argument(name, value)
    walk.add_builder(function)
    named: Any = function if hasattr(function, "__qualname__") else type(function)
    inner = inspect.unwrap(function)
    source = reader.of_function(inner).text if isinstance(inner, FunctionType) else ""
    return Builder(
        dotted(module_name(named.__module__), named.__qualname__),
        source or None,
        {name: shown_value(name, value) for name, value in bound.items()},
        tuple(walk.found.values()),
        walk.libraries,
    )


def _seen_through(function: Any) -> Any:  # any callable
    """Return the callable below wrappers that return its result: functools.cache, and this library's own."""
    is_one = isinstance(function, CACHED) or (
        isinstance(function, FunctionType) and is_ours(function.__code__.co_filename)
    )
    if is_one and hasattr(function, "__wrapped__"):
        return _seen_through(function.__wrapped__)
    return function


def _bound(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments by the names of their parameters, so that f(1) equals f(x=1)."""
    try:
        signature = inspect.signature(function)
        bound = signature.bind(*args, **kwargs)
    except (TypeError, ValueError):  # no signature, or a wrong call, which will raise its own error
        return {str(name): value for name, value in [*enumerate(args), *kwargs.items()]}
    bound.apply_defaults()
    found = dict(bound.arguments)
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            found[name] = dict(sorted(found[name].items()))
    return found


# Describe a dataset's builder, for one call after another.


@dataclass(frozen=True)
class Call:
    """A call of a builder, as the origin of a build.

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
        thorough: Whether the version is computed, for which every value must have a description.
    """

    def __init__(self, function: Callable[..., Any], *, thorough: bool) -> None:
        self._function = function
        self._thorough = thorough
        self._reader = CodeReader()
        self._as_before: dict[tuple[str, str], str] = {}

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Return a call, with the builder in its current state.

        A value that the builder's own builds have changed, such as a list that it appends to, counts as it
        was before: otherwise each call would have another version.

        Raises:
            ConfigurationError: if the version is computed, and a value has no description.
        """
        found = self._builder(args, kwargs)
        before = [
            replace(one, sha256=self._as_before.get((one.key, one.sha256), one.sha256))
            for one in found.ingredients
        ]
        builder = replace(found, ingredients=tuple(before))
        sha256 = partial(_sha256, self._function, args, kwargs, self._reader)
        return Call(builder, partial(self._after, builder, args, kwargs), sha256)

    def _after(self, before: Builder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        after = {one.key: one.sha256 for one in self._builder(args, kwargs).ingredients}
        kept = []
        for one in before.ingredients:
            sha256 = after.get(one.key, one.sha256)
            if sha256 != one.sha256:
                if not self._thorough:
                    continue  # a changed value is left out of warnings
                self._as_before[one.key, sha256] = one.sha256
            kept.append(one)
        return replace(before, ingredients=tuple(kept)).to_json()

    def _builder(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Builder:
        return builder_of(self._function, args, kwargs, self._reader, thorough=self._thorough)


def sha256_of_data(data: Any, *, strict: bool = False) -> str:
    """Return a hash of an object's class, with all that the class uses, and of the object's state.

    Args:
        data: The object.
        strict: Whether a value that can't be described is refused; otherwise its type stands for it.

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
    walk.add_argument("function", function)  # with its defaults; for a builder, the call includes them
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
