"""Describe what a cache was built from, and say how that differs from what would build it now."""

import hashlib
import json
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from yogadl._format.manifest import Manifest
from yogadl.storage._provenance.code import CodeReader, dumped, parsed
from yogadl.storage._provenance.ingredients import Builder, builder_of
from yogadl.storage._provenance.values import shortened

_ABSENT: Final = "absent"
# A manifest says what it likes, and may be a stranger's: of one value no more is shown.
_SHOWN: Final = 1000


def describe_machine(library_version: str) -> dict[str, Any]:
    """Return which software built a cache."""
    return {
        "yogadl": library_version,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
        "started": time.time(),
    }


def describe_builder(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return the builder's name, source code, arguments and what they use, as JSON."""
    return builder_of(function, args, kwargs, CodeReader(), thorough=False).to_json()


class Describer:
    """Describe what builds a dataset, call after call. Safe to use from several threads.

    Args:
        function: What builds.
        thorough: Whether the version is to be worked out, for which every value must have a description.
    """

    def __init__(self, function: Callable[..., Any], *, thorough: bool) -> None:
        self._function = function
        self._thorough = thorough
        self._reader = CodeReader()
        self._as_before: dict[tuple[str, str], str] = {}

    def describe(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Builder:
        """Return the builder as it is now.

        What its own builds have changed since, a list that it appends to, counts as it was before: else it
        would be another version at every call.

        Raises:
            ConfigurationError: if the version is to be worked out, and a value has no description.
        """
        return self._described(args, kwargs).with_contents(self._as_before)

    def after_build(self, before: Builder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return what a manifest keeps of a builder, once it has built."""
        after = {
            ingredient.key: ingredient.sha256 for ingredient in self._described(args, kwargs).ingredients
        }
        kept = []
        for ingredient in before.ingredients:
            sha256 = after.get(ingredient.key, ingredient.sha256)
            if sha256 != ingredient.sha256 and not self._thorough:
                continue  # a warning has nothing to say of it
            if sha256 != ingredient.sha256:
                self._as_before[ingredient.key, sha256] = ingredient.sha256
            kept.append(ingredient)
        return replace(before, ingredients=tuple(kept)).to_json()

    def sha256(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return a hash of the builder as it is now, as exact as its values allow."""
        return _sha256_of(builder_of(self._function, args, kwargs, self._reader, thorough=True, strict=False))

    def _described(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Builder:
        return builder_of(self._function, args, kwargs, self._reader, thorough=self._thorough)


@dataclass(frozen=True)
class Call:
    """A call of a builder: what a build is made from.

    Args:
        describer: Describes the function that is called.
        before: What it was before it was called.
        args: Its arguments.
        kwargs: Those given by name.
    """

    describer: Describer
    before: Builder
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def manifest(self) -> dict[str, Any]:
        """Return what a manifest keeps of the builder."""
        return self.describer.after_build(self.before, self.args, self.kwargs)

    def sha256(self) -> str:
        """Return a hash of the function, all that it uses, and its arguments."""
        return self.describer.sha256(self.args, self.kwargs)


def sha256_of_data(data: Any) -> str:
    """Return a hash of an object's class, with all that it uses, and of its state, as far as can be seen."""
    return _sha256_of(builder_of(_given, (data,), {}, CodeReader(), thorough=True, strict=False))


def _given(data: Any) -> Any:
    return data


def _sha256_of(builder: Builder) -> str:
    content = [builder.function, sorted((one.key, one.sha256) for one in builder.ingredients)]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def difference(then: dict[str, Any], now: dict[str, Any]) -> str:
    """Say what differs between two builders; nothing if they are the same or one is unknown."""
    changes, said = [], set()
    source, new_source = _text(then, "source"), _text(now, "source")
    if source and new_source and not _is_same_code(source, new_source):
        changes.append("its source code: " + _changed_line(source, new_source))
        said.add(f"function {now.get('function')}")
    before, after = _texts(then, "arguments"), _texts(now, "arguments")
    if before is not None and after is not None:
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name):
                said.add(f"argument {name!r}")
                changes.append(
                    f"argument {name!r:.200}: {before.get(name, _ABSENT)} -> {after.get(name, _ABSENT)}"
                )
    changes += [
        str(change)
        for change in _differences(_ingredients(then) or [], _ingredients(now) or [])
        # What one of them lacks, the code that reads it tells; of code without source nothing can be told.
        if change.before not in ("", _ABSENT) and change.after not in ("", _ABSENT)
        if change.what not in said
    ]
    return "; ".join(changes)


@dataclass(frozen=True)
class Difference:
    """One thing that two versions were not both built from.

    Args:
        what: A function, class, global, closure variable, default or argument.
        before: What it was for the first: the lines of code that differ, or a value. Empty if not known.
        after: What it was for the second.
    """

    what: str
    before: str
    after: str

    def __str__(self) -> str:
        if not self.before and not self.after:
            return f"{self.what}: differs"
        return f"{self.what}: {self.before or 'something else'} -> {self.after or 'something else'}"


@dataclass(frozen=True)
class Explanation:
    """Why two versions of a dataset are not the same. As a string, a line for each reason.

    Args:
        id: The dataset.
        version: The first version.
        other: The second.
        differences: What decides what is built, and differs.
        notes: What else there is to say: the versions of libraries, say, which decide no version.
    """

    id: str
    version: str
    other: str
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{self.id!r}: version {self.version!r} -> {self.other!r}"]
        lines += [f"  {difference}" for difference in self.differences]
        lines += [f"  ({note})" for note in self.notes]
        return "\n".join(lines)


def explain(first: Manifest, second: Manifest) -> Explanation:
    """Say what differs between what two versions of a dataset were built from."""
    then, now = _ingredients(first.builder), _ingredients(second.builder)
    notes = [
        f"version {manifest.key.version!r} was not built by a function that cacheable knows: "
        "of what built it nothing is recorded"
        for manifest, ingredients in ((first, then), (second, now))
        if ingredients is None
    ]
    found = [] if then is None or now is None else _differences(then, now)
    if not notes and not found:
        notes.append("both were built by the same code with the same arguments")
    is_same = first.fingerprint == second.fingerprint
    notes.append("their records are the same" if is_same else "their records differ")
    # Decide no version, and may yet be the reason.
    for name in ("python", "numpy", "yogadl", "system"):
        before, after = first.builder.get(name), second.builder.get(name)
        if before != after:
            notes.append(f"{name}: {_shown(before)} -> {_shown(after)}")
    libraries, others = (_texts(one.builder, "libraries") or {} for one in (first, second))
    for name in sorted((libraries.keys() | others.keys()) - {"numpy"}):
        if libraries.get(name) != others.get(name):
            notes.append(f"{name:.200}: {libraries.get(name, 'not used')} -> {others.get(name, 'not used')}")
    return Explanation(first.key.id, first.key.version, second.key.version, tuple(found), tuple(notes))


# Of a manifest's provenance, which is free-form: another library may write its own, and a stranger anything.


def _text(builder: dict[str, Any], name: str) -> str:
    """Return a text that it has; nothing if it has none."""
    found = builder.get(name)
    return found if isinstance(found, str) else ""


def _texts(builder: dict[str, Any], name: str) -> dict[str, str] | None:
    """Return what it says of several things by name; ``None`` if it says nothing."""
    found = builder.get(name)
    return {key: _shown(value) for key, value in found.items()} if isinstance(found, dict) else None


def _shown(value: object) -> str:
    return f"{value!s:.{_SHOWN}}"


@dataclass(frozen=True)
class _Known:
    """What a manifest says of an ingredient; see `Ingredient`. Older ones say no key."""

    label: str
    sha256: str
    text: str
    key: str = ""


def _ingredients(builder: dict[str, Any]) -> list[_Known] | None:
    """Return what it says of each ingredient; ``None`` if it does not say."""
    found = []
    listed = builder.get("ingredients")
    for one in listed if isinstance(listed, list) else [None]:
        if not isinstance(one, list) or list(map(type, one)) not in ([str] * 3, [str] * 4):
            return None
        found.append(_Known(*one))
    return found


def _pairs(then: list[_Known], now: list[_Known]) -> Iterator[tuple[_Known | None, _Known | None]]:
    """Yield what belongs together: what is the same to the builder, wherever it lies, or has one name."""
    by_key = {one.key: one for one in now if one.key}
    by_label = {one.label: one for one in now}
    taken: set[str] = set()
    for one in then:
        other = by_key.get(one.key) or by_label.get(one.label)
        if other is not None and other.label in taken:
            other = None
        if other is not None:
            taken.add(other.label)
        yield one, other
    yield from ((None, one) for one in now if one.label not in taken)


def _differences(then: list[_Known], now: list[_Known]) -> list[Difference]:
    found = []
    for before, after in _pairs(then, now):
        known = after or before
        assert known is not None  # of each pair one is there
        if before is None or after is None:
            text = _first_line(known.text)
            found.append(Difference(known.label, text if before else _ABSENT, text if after else _ABSENT))
        elif before.sha256 != after.sha256:
            texts = before.text, after.text
            is_code = known.label.startswith(("function ", "class ", "module ")) and all(texts)
            found.append(Difference(known.label, *(changed_lines(*texts) if is_code else map(_shown, texts))))
    return found


def _first_line(text: str) -> str:
    return shortened(text.partition("\n")[0])


def changed_lines(then: str, now: str) -> tuple[str, str]:
    """Return the lines that were changed, removed and added, each side in one line.

    In one pass, whatever the texts: what finds the shortest difference may take hours over a crafted one.
    """
    before, after = then.splitlines(), now.splitlines()
    start = _alike(before, after)
    before, after = before[start:], after[start:]
    end = _alike(before[::-1], after[::-1])
    before, after = before[: len(before) - end], after[: len(after) - end]
    removed, added = _without(before, after), _without(after, before)
    if not removed and not added:
        removed, added = before, after  # the same lines in another order
    return _quoted(removed), _quoted(added)


def _alike(ours: Sequence[str], theirs: Sequence[str]) -> int:
    """Return how many lines both begin with."""
    pairs = enumerate(zip(ours, theirs, strict=False))
    return next((number for number, (one, other) in pairs if one != other), min(len(ours), len(theirs)))


def _without(lines: Sequence[str], others: Sequence[str]) -> list[str]:
    left = Counter(others)
    kept = []
    for line in lines:
        left[line] -= 1
        if left[line] < 0:
            kept.append(line)
    return kept


def _quoted(lines: list[str]) -> str:
    return repr(shortened("; ".join(line.strip() for line in lines))) if lines else "nothing"


def _is_same_code(then: str, now: str) -> bool:
    """Compare what the text means: another version of Python writes the same tree in other quotes."""
    if then == now:
        return True
    if len(then) > 2 * len(now) + _SHOWN:
        return False  # a stranger's could take all memory to parse
    try:
        return dumped(parsed(then)) == dumped(parsed(now))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last: of the parser's own stack
        return False


def _changed_line(then: str, now: str) -> str:
    before, after = changed_lines(then, now)
    if before == "nothing":
        return f"added {after}"
    return f"removed {before}" if after == "nothing" else f"{before} -> {after}"
