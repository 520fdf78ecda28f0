"""Name what is thrown away: the manifests of versions that were deleted or replaced."""

import contextlib

from yogadl._key import DatasetKey
from yogadl.storage import _names
from yogadl.storage._root import Root


def trashed_names(root: Root, key: DatasetKey) -> list[str]:
    """Return the names of the trashed manifests of a version, oldest first."""
    below = f"{key.id}/trash"
    found = []
    for name in root.names(below, _names.MANIFEST_SUFFIX):
        with contextlib.suppress(ValueError):
            version, stamp = _names.split_trashed(name[len(below) + 1 :])
            if version == key.version:
                found.append((stamp, name))
    return [name for _, name in sorted(found)]


def new_trashed_name(root: Root, key: DatasetKey) -> str:
    """Return the name for a manifest that is thrown away now: it sorts after all that were before."""
    stamp = int(root.now() * 1e9)
    trashed = trashed_names(root, key)
    if trashed:
        stamp = max(stamp, _names.split_trashed(trashed[-1])[1] + 1)
    return _names.trashed(key, stamp)
