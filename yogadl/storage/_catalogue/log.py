"""Read the history of a dataset: its versions, its tags, and why two versions differ."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from yogadl._core.key import DatasetKey
from yogadl._core.protocols import Earlier
from yogadl._format.codec import RAW, ZSTD, codec_in_words
from yogadl._format.manifest import ADOPTED, CODEC, Manifest
from yogadl._provenance.difference import Difference, differences, ingredients_in, shown, texts_in
from yogadl.errors import CacheFormatError, DatasetNotFoundError
from yogadl.storage._catalogue.cached import file_sizes, open_table
from yogadl.storage._catalogue.catalogue import Catalogue
from yogadl.storage._catalogue.tags import TagMove, current_tags, moves_of_tags


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


def _records_note(first: Manifest, second: Manifest) -> str:
    if {first.fingerprint, *first.aliases} & {second.fingerprint, *second.aliases}:
        return "their records are the same"
    for shorter, longer in ((first, second), (second, first)):
        if any(earlier.fingerprint == shorter.fingerprint for earlier in longer.earlier):
            more = longer.records - shorter.records
            return (
                f"version {longer.key.version!r} has the records of {shorter.key.version!r}, and {more} more"
            )
    if first.is_weak or second.is_weak:
        return "whether their records differ is not known: foreign files were adopted without reading them"
    return "their records differ"


def adopted_files(catalogue: Catalogue, manifest: Manifest) -> int:
    """Return the number of files that a version was adopted from."""
    return len(open_table(catalogue.root, manifest).files.addressed) if manifest.is_adopted else 0


def explain(first: Manifest, second: Manifest, adopted: Mapping[DatasetKey, int]) -> Explanation:
    """Return the differences between the code, values and arguments that two versions were built from.

    Args:
        first: One version.
        second: The other.
        adopted: The number of files that each was adopted from.
    """
    old, new = ingredients_in(first.builder), ingredients_in(second.builder)
    notes = [
        f"version {manifest.key.version!r} was {_origin_of(adopted[manifest.key])}"
        for manifest, ingredients in ((first, old), (second, new))
        if ingredients is None
    ]
    reasons = [] if old is None or new is None else differences(old, new)
    if adopted[first.key] and adopted[second.key]:
        reasons += _differences_of_adopted(first.builder.get(ADOPTED), second.builder.get(ADOPTED))
    if not notes and not reasons:
        notes.append("both were built by the same code with the same arguments")
    notes.append(_records_note(first, second))
    codecs = [shown(_codec_in_words(manifest)) for manifest in (first, second)]
    if codecs[0] != codecs[1]:
        notes.append(f"codec: {codecs[0]} -> {codecs[1]}")
    # Automatic names of versions do not depend on these, but the records may.
    for name in ("python", "numpy", "yogadl", "system"):
        before, after = first.builder.get(name), second.builder.get(name)
        if before != after:
            notes.append(f"{name}: {shown(before)} -> {shown(after)}")
    libraries, others = (texts_in(one.builder, "libraries") or {} for one in (first, second))
    for name in sorted((libraries.keys() | others.keys()) - {"numpy", "yogadl"}):
        if libraries.get(name) != others.get(name):
            notes.append(f"{name:.200}: {libraries.get(name, 'not used')} -> {others.get(name, 'not used')}")
    return Explanation(first.key.id, first.key.version, second.key.version, tuple(reasons), tuple(notes))


def _origin_of(adopted: int) -> str:
    if adopted:
        return f"adopted from {adopted} {'file' if adopted == 1 else 'files'}"
    return (
        "not built by storage.cacheable or the command, so the code and arguments that built it are not "
        "recorded"
    )


def _differences_of_adopted(old: Any, new: Any) -> Iterator[Difference]:  # any values of a manifest
    """Yield what differs in how files were adopted."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in ("paths", "format", "read", "options"):
            if old.get(name) != new.get(name):
                yield Difference(f"adopted {name}", shown(old.get(name)), shown(new.get(name)))


def _codec_in_words(manifest: Manifest) -> str:
    """Return how a version was compressed, as far as it is known."""
    is_coded = any(codec != RAW for codec in manifest.codecs)
    return codec_in_words(manifest.builder.get(CODEC, ZSTD if is_coded else None))


@dataclass(frozen=True)
class LoggedVersion:
    """One version of a dataset, compared with the one before.

    Attributes:
        version: The version's name.
        created: The time of its build, in seconds since 1970.
        records: The number of its records.
        parts: The number of its parts.
        fingerprint: The hash of its records.
        tags: The tags that name it now.
        before: The version that it is compared with: the one that it continues, or else the one built before
            it.
        earlier: The versions that it begins with, the oldest first; some of them may be deleted.
        shared_bytes: The size of its files that the one before has, too.
        added_bytes: The size of its other files.
        explanation: The differences between the code, values and arguments that built the two, or ``None``
            for the first.
        metadata: The user's values that are kept with the version; {} if there are none.
        foreign_files: The number of foreign files that it was adopted from.
    """

    version: str
    created: float
    records: int
    parts: int
    fingerprint: str
    tags: tuple[str, ...]
    before: str | None
    earlier: tuple[Earlier, ...]
    shared_bytes: int
    added_bytes: int
    explanation: Explanation | None
    metadata: dict[str, Any] | None = None
    foreign_files: int = 0


@dataclass(frozen=True)
class Log:
    """The history of a dataset.

    Attributes:
        id: The dataset's id.
        versions: Its versions, the oldest first.
        moves: The versions that its tags named, the oldest first.
        damaged: The versions that can't be read, each with the reason.
    """

    id: str
    versions: tuple[LoggedVersion, ...]
    moves: tuple[TagMove, ...]
    damaged: dict[str, str]


def log_of(catalogue: Catalogue, dataset_id: str) -> Log:
    """Return the history of a dataset: see `CacheStorage.log`."""
    manifests: list[Manifest] = []
    sizes: dict[str, dict[str, int]] = {}
    adopted: dict[DatasetKey, int] = {}
    damaged: dict[str, str] = {}
    for version in catalogue.versions(dataset_id):
        try:
            manifest = catalogue.published(DatasetKey(dataset_id, version)).manifest
            table = open_table(catalogue.root, manifest)
            sizes[version] = dict(file_sizes(dataset_id, table.files.own))
            adopted[manifest.key] = len(table.files.addressed)
            manifests.append(manifest)
        except DatasetNotFoundError:
            pass  # it was deleted meanwhile
        except CacheFormatError as error:
            damaged[version] = str(error)
    if not manifests and not damaged:
        raise catalogue.no_dataset(dataset_id)
    manifests.sort(key=lambda manifest: (manifest.created, manifest.key.version))
    versions = tuple(_logged(manifests, sizes, adopted, current_tags(catalogue.root, dataset_id)))
    return Log(dataset_id, versions, tuple(moves_of_tags(catalogue.root, dataset_id)), damaged)


def _logged(
    manifests: list[Manifest],
    sizes: dict[str, dict[str, int]],
    adopted: dict[DatasetKey, int],
    tags: dict[str, str],
) -> Iterator[LoggedVersion]:
    for number, manifest in enumerate(manifests):
        before = _compared_with(manifest, manifests[:number], manifests)
        version = manifest.key.version
        sizes_before = {} if before is None else sizes[before.key.version]
        shared = sum(size for name, size in sizes[version].items() if name in sizes_before)
        yield LoggedVersion(
            version=version,
            created=manifest.created,
            records=manifest.records,
            parts=manifest.parts,
            fingerprint=manifest.fingerprint,
            tags=tuple(sorted(tag for tag, named in tags.items() if named == version)),
            before=None if before is None else before.key.version,
            earlier=manifest.earlier,
            shared_bytes=shared,
            added_bytes=sum(sizes[version].values()) - shared,
            explanation=None if before is None else explain(before, manifest, adopted),
            metadata=manifest.metadata,
            foreign_files=adopted[manifest.key],
        )


def _compared_with(manifest: Manifest, older: list[Manifest], manifests: list[Manifest]) -> Manifest | None:
    """Return the version that `manifest` continues, if unchanged since, or else the one built before it."""
    by_version = {one.key.version: one for one in manifests}
    for earlier in reversed(manifest.earlier):
        continued = by_version.get(earlier.version)
        if continued is not None and continued.fingerprint == earlier.fingerprint:
            return continued
    return older[-1] if older else None
