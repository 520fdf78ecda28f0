"""Say how a dataset came to be what it is: its versions, what each adds to the one before, and its tags."""

from collections.abc import Iterator
from dataclasses import dataclass

from yogadl._format.manifest import Manifest
from yogadl._interfaces import Earlier
from yogadl._key import DatasetKey
from yogadl.errors import CacheFormatError, DatasetNotFoundError
from yogadl.storage._catalogue import Catalogue
from yogadl.storage._explain import Explanation, explain
from yogadl.storage._parts import open_table, part_sizes
from yogadl.storage._tags import TagMove, current_tags, moves_of_tags


@dataclass(frozen=True)
class LoggedVersion:
    """One version of a dataset, beside the one before.

    Attributes:
        version: What it is called.
        created: When it was built, in seconds since 1970.
        records: How many it has.
        parts: How many files they are in.
        fingerprint: The hash of its content.
        tags: The tags that name it now.
        before: The version that it is compared with: which it continues, or else the one built before it.
        earlier: The versions that it begins with, the oldest first; some of them may be gone.
        shared_bytes: How much of it is in files that the one before has, too.
        added_bytes: How much of it is in files of its own.
        explanation: What differs between what built the two; ``None`` for the first.
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
    """How a dataset came to be what it is.

    Attributes:
        id: What the dataset is called.
        versions: Those that it has, the oldest first.
        moves: What its tags were made to name, the oldest first.
        damaged: The versions that can't be read, and why.
    """

    id: str
    versions: tuple[LoggedVersion, ...]
    moves: tuple[TagMove, ...]
    damaged: dict[str, str]


def log_of(catalogue: Catalogue, dataset_id: str) -> Log:
    """Return how a dataset came to be what it is: see `CacheStorage.log`."""
    manifests: list[Manifest] = []
    sizes: dict[str, dict[str, int]] = {}
    damaged: dict[str, str] = {}
    for version in catalogue.versions(dataset_id):
        try:
            manifest = catalogue.published(DatasetKey(dataset_id, version)).manifest
            sizes[version] = dict(part_sizes(dataset_id, open_table(catalogue.root, manifest)))
            manifests.append(manifest)
        except DatasetNotFoundError:
            pass  # deleted just now
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
    """Return the version that one continues, if it is there as it was then, or else the one built before."""
    by_version = {one.key.version: one for one in every}
    for earlier in reversed(manifest.earlier):
        found = by_version.get(earlier.version)
        if found is not None and found.fingerprint == earlier.fingerprint:
            return found
    return older[-1] if older else None
