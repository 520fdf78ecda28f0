"""Find the reasons why two versions of a dataset differ."""

from dataclasses import dataclass

from yogadl._format.manifest import Manifest
from yogadl._provenance.difference import Difference, differences, ingredients_in, shown, texts_in


@dataclass(frozen=True)
class Explanation:
    """The reasons why two versions of a dataset differ. As a string, a line for each reason.

    Args:
        id: The dataset.
        version: The first version.
        other: The second.
        differences: The differences that decide the records.
        notes: Other differences that may be of interest, such as versions of libraries.
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


def _of_records(first: Manifest, second: Manifest) -> str:
    if first.fingerprint == second.fingerprint:
        return "their records are the same"
    for one, other in ((first, second), (second, first)):
        if any(earlier.fingerprint == one.fingerprint for earlier in other.earlier):
            more = other.records - one.records
            return f"version {other.key.version!r} has the records of {one.key.version!r}, and {more} more"
    return "their records differ"


def explain(first: Manifest, second: Manifest) -> Explanation:
    """Return the differences between the code, values and arguments that two versions were built from."""
    then, now = ingredients_in(first.builder), ingredients_in(second.builder)
    notes = [
        f"version {manifest.key.version!r} was not built by storage.cacheable or the command, "
        "so it is not recorded what built it"
        for manifest, ingredients in ((first, then), (second, now))
        if ingredients is None
    ]
    found = [] if then is None or now is None else differences(then, now)
    if not notes and not found:
        notes.append("both were built by the same code with the same arguments")
    notes.append(_of_records(first, second))
    # These decide no version, but may change the records.
    for name in ("python", "numpy", "yogadl", "system"):
        before, after = first.builder.get(name), second.builder.get(name)
        if before != after:
            notes.append(f"{name}: {shown(before)} -> {shown(after)}")
    libraries, others = (texts_in(one.builder, "libraries") or {} for one in (first, second))
    for name in sorted((libraries.keys() | others.keys()) - {"numpy", "yogadl"}):
        if libraries.get(name) != others.get(name):
            notes.append(f"{name:.200}: {libraries.get(name, 'not used')} -> {others.get(name, 'not used')}")
    return Explanation(first.key.id, first.key.version, second.key.version, tuple(found), tuple(notes))
