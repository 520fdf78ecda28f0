"""Describe how the builder of a cache differs from the current builder.

A builder is given as its description in a manifest, `Builder.to_json`: the source, the arguments and the
ingredients, which are the pieces of code and the values that the version is made of.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from yogadl._provenance.code import dumped, parsed
from yogadl._provenance.ingredients import Ingredient
from yogadl._provenance.values import shortened

_ABSENT: Final = "absent"
# A manifest is free-form and untrusted: at most this much of one value is shown.
_MOST_SHOWN_CHARACTERS: Final = 1000


def difference(then: dict[str, Any], now: dict[str, Any]) -> str:
    """Describe the differences of two builders; empty if they are equal or one is unknown."""
    changes, described = [], set()
    source, new_source = _text(then, "source"), _text(now, "source")
    if source and new_source and not _is_same_code(source, new_source):
        changes.append("its source code: " + _change_in_words(source, new_source))
        described.add(f"function {now.get('function')}")
    before, after = texts_in(then, "arguments"), texts_in(now, "arguments")
    if before is not None and after is not None:
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name):
                described.add(f"argument {name!r}")
                changes.append(
                    f"argument {name!r:.200}: {before.get(name, _ABSENT)} -> {after.get(name, _ABSENT)}"
                )
    changes += [
        str(change)
        for change in differences(ingredients_in(then) or [], ingredients_in(now) or [])
        # An ingredient that one builder lacks is left out, as the code that reads it differs, too. An
        # ingredient without a text is left out, since nothing can be shown for it.
        if change.before not in ("", _ABSENT) and change.after not in ("", _ABSENT)
        if change.what not in described
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
    text = builder.get(name)
    return text if isinstance(text, str) else ""


def texts_in(builder: dict[str, Any], name: str) -> dict[str, str] | None:
    """Return the texts in a dict of the builder, such as its arguments, or ``None`` if it has none."""
    texts = builder.get(name)
    return {key: shown(value) for key, value in texts.items()} if isinstance(texts, dict) else None


def shown(value: object) -> str:
    """Return a value as text, cut to the length that is shown."""
    return f"{value!s:.{_MOST_SHOWN_CHARACTERS}}"


def ingredients_in(builder: dict[str, Any]) -> list[Ingredient] | None:
    """Return the ingredients, or ``None`` if there are none. Ingredients of older manifests have no keys."""
    ingredients = []
    entries = builder.get("ingredients")
    for entry in entries if isinstance(entries, list) else [None]:
        if not isinstance(entry, list) or list(map(type, entry)) not in ([str] * 3, [str] * 4):
            return None
        label, sha256, text, key = [*entry, ""][:4]
        ingredients.append(Ingredient(label, key, sha256, text))
    return ingredients


def _pairs(
    then: list[Ingredient], now: list[Ingredient]
) -> Iterator[tuple[Ingredient, Ingredient | None] | tuple[None, Ingredient]]:
    """Yield pairs of the same ingredient: with the same key, or else with the same label."""
    label_by_key = {ingredient.key: ingredient.label for ingredient in now if ingredient.key}
    unpaired = {ingredient.label: ingredient for ingredient in now}
    for ingredient in then:
        yield ingredient, unpaired.pop(label_by_key.get(ingredient.key, ingredient.label), None)
    yield from ((None, ingredient) for ingredient in unpaired.values())


def differences(then: list[Ingredient], now: list[Ingredient]) -> list[Difference]:
    """Return the differences between two lists of ingredients."""
    changed = []
    for before, after in _pairs(then, now):
        if before is None or after is None:
            known = after or before
            assert known is not None  # each pair has at least one
            text = shortened(known.text.partition("\n")[0])
            changed.append(Difference(known.label, text if before else _ABSENT, text if after else _ABSENT))
        elif before.sha256 != after.sha256:
            texts = before.text, after.text
            is_code = after.label.startswith(("function ", "class ", "module ")) and all(texts)
            changed.append(
                Difference(after.label, *(changed_lines(*texts) if is_code else map(shown, texts)))
            )
    return changed


def changed_lines(then: str, now: str) -> tuple[str, str]:
    """Return the removed and the added lines, each side as one line of text.

    Only the common lines at the beginning and at the end are taken off, in one pass: an algorithm that finds
    the shortest difference may take hours for texts that are made to slow it down.
    """
    before, after = then.splitlines(), now.splitlines()
    start = _common_start(before, after)
    before, after = before[start:], after[start:]
    end = _common_start(before[::-1], after[::-1])
    before, after = before[: len(before) - end], after[: len(after) - end]
    removed, added = _without(before, after), _without(after, before)
    if not removed and not added:
        removed, added = before, after  # the same lines in another order
    return _quoted(removed), _quoted(added)


def _common_start(ours: Sequence[str], theirs: Sequence[str]) -> int:
    """Return the number of lines that both begin with."""
    pairs = enumerate(zip(ours, theirs, strict=False))
    return next((number for number, (one, other) in pairs if one != other), min(len(ours), len(theirs)))


def _without(lines: Sequence[str], others: Sequence[str]) -> list[str]:
    """Return the lines that are not among the others; each of the others takes out one equal line."""
    unmatched = Counter(others)
    kept = []
    for line in lines:
        unmatched[line] -= 1
        if unmatched[line] < 0:
            kept.append(line)
    return kept


def _quoted(lines: list[str]) -> str:
    return repr(shortened("; ".join(line.strip() for line in lines))) if lines else "nothing"


def _is_same_code(then: str, now: str) -> bool:
    """Return whether two texts have the same syntax tree: versions of Python write it with other quotes."""
    if then == now:
        return True
    if len(then) > 2 * len(now) + _MOST_SHOWN_CHARACTERS:
        return False  # parsing a crafted text could take all memory
    try:
        return dumped(parsed(then)) == dumped(parsed(now))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # MemoryError: the parser's stack is full
        return False


def _change_in_words(then: str, now: str) -> str:
    before, after = changed_lines(then, now)
    if before == "nothing":
        return f"added {after}"
    return f"removed {before}" if after == "nothing" else f"{before} -> {after}"
