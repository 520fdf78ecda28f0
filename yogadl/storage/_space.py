"""Refuse to build what certainly does not fit on the disk."""

import errno
import shutil

from yogadl._key import DatasetKey
from yogadl._size import in_words
from yogadl._sources import Source
from yogadl.errors import StorageError
from yogadl.storage._root import Root


def check_space(root: Root, key: DatasetKey, source: Source, where: str) -> None:
    """Refuse to build what certainly needs more than the disk has room for.

    Certain is only what a source says of its records before they are read. What some of them took says
    nothing: the first ones may be the largest by far.

    Args:
        root: Where the parts go.
        key: What is to be built.
        source: Its records.
        where: The build's own folder, by name.

    Raises:
        StorageError: if it does.
    """
    if source.length is None or not getattr(source, "has_final_spec", False):
        return
    if root.bucket is not None:
        return
    record_bytes = sum(field.leaf.row_bytes for field in source.spec.fields if field.leaf.is_fixed)
    least_bytes = source.length * record_bytes
    with root.workplace(where) as work:
        free_bytes = shutil.disk_usage(work).free
    if least_bytes <= free_bytes:
        return
    # Parts of an earlier build are gone on with, and those of another version may be the same.
    parts_bytes = sum(entry.size_bytes for entry in root.entries(f"{key.id}/parts"))
    if least_bytes > free_bytes + parts_bytes:
        raise StorageError(
            errno.ENOSPC,
            f"{key} can't fit: it takes {in_words(least_bytes)} at least, and {root.location} has "
            f"{in_words(free_bytes)} free; make room, or build where there is. If it fits nevertheless (the "
            "file system compresses, say): check_space=False, or yogadl build --no-space-check",
        )
