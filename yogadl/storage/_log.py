"""Read the history of a dataset: its versions, each compared with the one before, and its tags."""

from collections.abc import Iterator
from dataclasses import dataclass

from yogadl._core.key import DatasetKey
from yogadl._core.protocols import Earlier
from yogadl._format.manifest import Manifest
from yogadl.errors import CacheFormatError, DatasetNotFoundError
from yogadl.storage._catalogue import Catalogue
from yogadl.storage._explain import Explanation, explain
from yogadl.storage._parts import open_table, part_sizes
from yogadl.storage._tags import TagMove, current_tags, moves_of_tags


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
    damaged: dict[str, str] = {}
    for version in catalogue.versions(dataset_id):
        try:
            manifest = catalogue.published(DatasetKey(dataset_id, version)).manifest
            sizes[version] = dict(part_sizes(dataset_id, open_table(catalogue.root, manifest)))
            manifests.append(manifest)
        except DatasetNotFoundError:
            pass  # it was deleted meanwhile
        except CacheFormatError as error:
            damaged[version] = str(error)
    if not manifests and not damaged:
        raise catalogue.no_dataset(dataset_id)
    manifests.sort(key=lambda manifest: (manifest.created, manifest.key.version))
    versions = tuple(_logged(manifests, sizes, current_tags(catalogue.root, dataset_id)))
    return Log(dataset_id, versions, tuple(moves_of_tags(catalogue.root, dataset_id)), damaged)


def _logged(
    manifests: list[Manifest], sizes: dict[str, dict[str, int]], tags: dict[str, str]
) -> Iterator[LoggedVersion]:
    for number, manifest in enumerate(manifests):
        before = _before(manifest, manifests[:number], manifests)
        version = manifest.key.version
        theirs = {} if before is None else sizes[before.key.version]
        shared = sum(size for name, size in sizes[version].items() if name in theirs)
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
            explanation=None if before is None else explain(before, manifest),
        )


def _before(manifest: Manifest, older: list[Manifest], every: list[Manifest]) -> Manifest | None:
    """Return the version that `manifest` continues, if unchanged since, or else the one built before it."""
    by_version = {one.key.version: one for one in every}
    for earlier in reversed(manifest.earlier):
        found = by_version.get(earlier.version)
        if found is not None and found.fingerprint == earlier.fingerprint:
            return found
    return older[-1] if older else None
