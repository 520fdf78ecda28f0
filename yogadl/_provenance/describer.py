"""Describe a dataset's builder, for one call after another."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from yogadl._provenance.builder import Builder, builder_of
from yogadl._provenance.code import CodeReader
from yogadl._provenance.ingredients import Walk


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
