"""Check a filled part through a plain mmap, and name it by its content."""

import ctypes
import errno
import hashlib
import mmap
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import lmdb
import numpy as np
from xxhash import xxh3_64_intdigest

from yogadl._format.layout import PAGE_HEADER_BYTES
from yogadl._workers.lane import Lane
from yogadl.errors import StorageError

# An input/output error means a full disk if less than this is free.
_FULL_BYTES: Final = 64 * 2**20


@dataclass(frozen=True)
class InspectedFile:
    """A filled file: its size, its sha256, and the position and checksum of every block by key."""

    size_bytes: int
    sha256: str
    blocks: dict[bytes, tuple[int, int]]


def inspect_file(path: Path, lengths: dict[bytes, int]) -> InspectedFile:
    """Find and hash every block of a file through a plain mmap.

    Raises:
        StorageError: if the file is gone or does not hold these blocks.
    """
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as view,
            Lane() as pool,
        ):
            digest = pool.submit(lambda: hashlib.sha256(view).hexdigest())
            blocks = _found_blocks(path, view, lengths)
            return InspectedFile(len(view), digest.result(), blocks)
    except StorageError:
        raise
    except (OSError, lmdb.Error) as error:
        raise disk_error(error, path) from error


def _found_blocks(path: Path, view: memoryview, lengths: dict[bytes, int]) -> dict[bytes, tuple[int, int]]:
    found: dict[bytes, tuple[int, int]] = {}
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False, readahead=True) as database:
        page_bytes = database.stat()["psize"]
        with database.begin(buffers=True) as transaction:
            for key, length in lengths.items():
                value: Any = transaction.get(key)  # a buffer; a missing key fails just below
                address = np.frombuffer(value, np.uint8).ctypes.data
                # The header of the value's first page begins with that page's number.
                page = int.from_bytes(ctypes.string_at(address - PAGE_HEADER_BYTES, 8), "little")
                position = page * page_bytes + PAGE_HEADER_BYTES
                ends = slice(0, min(length, 64)), slice(max(0, length - 64), length)
                # The view is released here in any case: a view left in a traceback would keep the map from
                # closing.
                with view[position : position + length] as block:
                    # LMDB maps the same file, so the page number gives the same bytes; the ends are compared
                    # to be sure.
                    if any(bytes(value[end]) != bytes(block[end]) for end in ends):
                        raise StorageError(
                            f"{path}: a block is not where LMDB says it is; this is a bug, please report it"
                        )
                    found[key] = (position, xxh3_64_intdigest(block))
    return found


def disk_error(error: Exception, path: Path) -> StorageError:
    """Translate an error of LMDB or the file system; the result tells if the disk is full."""
    try:
        free_bytes = shutil.disk_usage(path.parent).free
    except OSError as gone:
        return StorageError(gone.errno or errno.EIO, f"writing failed: {error}; is it gone?", str(path))
    # LMDB may report a full disk as an input/output error, so the free space is checked.
    is_full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or free_bytes < _FULL_BYTES
    if is_full or isinstance(error, lmdb.DiskError):
        return StorageError(
            errno.ENOSPC,
            f"the disk is full ({free_bytes / 2**20:.0f} MiB free): make room and build again",
            str(path),
        )
    return StorageError(getattr(error, "errno", None) or errno.EIO, f"writing failed: {error}", str(path))


def write_synced(path: Path, content: bytes) -> None:
    """Write a small file; its content is on the disk when this returns."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
