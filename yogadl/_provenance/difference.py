"""Describe how the builder of a cache differs from the current builder."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from yogadl._provenance.code import dumped, parsed
from yogadl._provenance.ingredients import Ingredient
from yogadl._provenance.values import shortened

_ABSENT: Final = "absent"
# A manifest is free-form and untrusted: at most this much of one value is shown.
_SHOWN: Final = 1000


def difference(then: dict[str, Any], now: dict[str, Any]) -> str:
    """Describe the differences of two builders; empty if they are equal or one is unknown."""
    changes, said = [], set()
    source, new_source = _text(then, "source"), _text(now, "source")
    if source and new_source and not _is_same_code(source, new_source):
        changes.append("its source code: " + _changed_line(source, new_source))
        said.add(f"function {now.get('function')}")
    before, after = texts_in(then, "arguments"), texts_in(now, "arguments")
    if before is not None and after is not None:
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name):
                said.add(f"argument {name!r}")
                changes.append(
                    f"argument {name!r:.200}: {before.get(name, _ABSENT)} -> {after.get(name, _ABSENT)}"
                )
    changes += [
        str(change)
        for change in differences(ingredients_in(then) or [], ingredients_in(now) or [])
        # An ingredient that one builder lacks is left out, as the code that reads it differs, too. An
        # ingredient without a text is left out, since nothing can be shown for it.
        if change.before not in ("", _ABSENT) and change.after not in ("", _ABSENT)
        if change.what not in said
    ]
    return "; ".join(changes)


@dataclass(frozen=True)
class Difference:
    """An ingredient that differs between two versions.

    Args:
        what: The function, class, global, closure variable, default or argument.
        before: The first version's content: the lines of code that differ, or a value. Empty if not known.
        after: The second version's content.
    """

    what: str
    before: str
    after: str

    def __str__(self) -> str:
        if self.before == self.after:  # both unknown, or equal as far as they are shown
            return f"{self.what}: differs"
        return f"{self.what}: {self.before or 'something else'} -> {self.after or 'something else'}"


# The functions below read a manifest's provenance, which is free-form.


def _text(builder: dict[str, Any], name: str) -> str:
    found = builder.get(name)
    return found if isinstance(found, str) else ""


def texts_in(builder: dict[str, Any], name: str) -> dict[str, str] | None:
    """Return the texts of a group by name; ``None`` if the builder has no such group."""
    found = builder.get(name)
    return {key: shown(value) for key, value in found.items()} if isinstance(found, dict) else None


def shown(value: object) -> str:
    """Return a value as text, cut to the length that is shown."""
    return f"{value!s:.{_SHOWN}}"


def ingredients_in(builder: dict[str, Any]) -> list[Ingredient] | None:
    """Return the ingredients; ``None`` if there are none. Ingredients of older manifests have no keys."""
    found = []
    listed = builder.get("ingredients")
    for one in listed if isinstance(listed, list) else [None]:
        if not isinstance(one, list) or list(map(type, one)) not in ([str] * 3, [str] * 4):
            return None
        label, sha256, text, key = [*one, ""][:4]
        found.append(Ingredient(label, key, sha256, text))
    return found


def _pairs(
    then: list[Ingredient], now: list[Ingredient]
) -> Iterator[tuple[Ingredient, Ingredient | None] | tuple[None, Ingredient]]:
    """Yield pairs of the same ingredient: with the same key, or else with the same label."""
    labels = {one.key: one.label for one in now if one.key}
    left = {one.label: one for one in now}
    for one in then:
        yield one, left.pop(labels.get(one.key, one.label), None)
    yield from ((None, one) for one in left.values())


def differences(then: list[Ingredient], now: list[Ingredient]) -> list[Difference]:
    """Return the differences between two lists of ingredients."""
    found = []
    for before, after in _pairs(then, now):
        if before is None or after is None:
            known = after or before
            assert known is not None  # each pair has at least one
            text = shortened(known.text.partition("\n")[0])
            found.append(Difference(known.label, text if before else _ABSENT, text if after else _ABSENT))
        elif before.sha256 != after.sha256:
            texts = before.text, after.text
            is_code = after.label.startswith(("function ", "class ", "module ")) and all(texts)
            found.append(Difference(after.label, *(changed_lines(*texts) if is_code else map(shown, texts))))
    return found


def changed_lines(then: str, now: str) -> tuple[str, str]:
    """Return the removed and the added lines, each side as one line of text.

    This takes one pass for any texts: an algorithm for the shortest difference may take hours on crafted
    ones.
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
    """Return the number of lines that both begin with."""
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
    """Compare the meaning of two texts: another version of Python writes the same tree with other quotes."""
    if then == now:
        return True
    if len(then) > 2 * len(now) + _SHOWN:
        return False  # parsing a crafted text could take all memory
    try:
        return dumped(parsed(then)) == dumped(parsed(now))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # MemoryError: of the parser's stack
        return False


def _changed_line(then: str, now: str) -> str:
    before, after = changed_lines(then, now)
    if before == "nothing":
        return f"added {after}"
    return f"removed {before}" if after == "nothing" else f"{before} -> {after}"
