"""Name the manifests in the trash: manifests of versions that were deleted or replaced."""

from collections.abc import Iterator

from yogadl._core.key import DatasetKey
from yogadl.storage import _names
from yogadl.storage._root import Root


def trashed(root: Root, dataset_id: str) -> Iterator[tuple[DatasetKey, int, str]]:
    """Yield for each manifest in the trash its key, the time of its deletion in ns, and its name."""
    below = f"{dataset_id}/trash"
    for name in root.names(below, _names.MANIFEST_SUFFIX):
        try:
            version, stamp = _names.split_trashed(name[len(below) + 1 :])
            key = DatasetKey(dataset_id, version)
        except ValueError:
            continue  # not written by yogadl
        yield key, stamp, name


def trashed_names(root: Root, key: DatasetKey) -> list[str]:
    """Return the names of a version's manifests in the trash, oldest first."""
    found = sorted((stamp, name) for other, stamp, name in trashed(root, key.id) if other == key)
    return [name for _, name in found]


def new_trashed_name(root: Root, key: DatasetKey) -> str:
    """Return the name for a manifest that goes to the trash now; it sorts after all older ones."""
    stamp = int(root.now() * 1e9)
    before = [stamp for other, stamp, _ in trashed(root, key.id) if other == key]
    stamp = max([stamp, *(one + 1 for one in before)])
    return _names.trashed(key, stamp)
