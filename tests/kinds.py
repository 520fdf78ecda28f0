"""The kinds of storages that a build must hold in: a folder, one that machines share, a bucket."""

from pathlib import Path

import yogadl
from yogadl.storage import CacheStorage

KINDS = ("folder", "shared folder", "bucket")


def open_kind(kind: str, root: Path) -> CacheStorage:
    """Open a storage of a kind below a folder; the mirror of a bucket is there, too."""
    if kind == "bucket":
        return yogadl.open_storage(f"file://{root}/bucket", mirror=root / "mirror")
    return yogadl.open_storage(root / "caches", shared=kind == "shared folder")
