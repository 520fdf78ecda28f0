"""Fill one LMDB file with blocks, and find where they lie in it. The only module that imports lmdb."""

import contextlib
import ctypes
import errno
import shutil
from pathlib import Path
from typing import Any, Final

import lmdb
import numpy as np
from xxhash import xxh3_64_intdigest

from yogadl._format.layout import PAGE_HEADER_BYTES
from yogadl.errors import StorageError

# What is put between two commits stays in memory, and is written out in one go. The page cache keeps what was
# written in one go in pages of 2 MiB where it can, which makes gathering 3 KB rows a tenth faster
# (benchmarks/gather.py); small commits are written while they are in the processor's cache, which makes
# building small rows a third faster (benchmarks/build.py).
LARGE_COMMIT_BYTES: Final = 32 * 2**20
SMALL_COMMIT_BYTES: Final = 4 * 2**20
# Room in the map for what is put between two commits, and so much again for the B-tree's own pages.
_MAP_ROOM_BYTES: Final = 64 * 2**20
# With less than this free, an input/output error means a full disk.
_FULL_BYTES: Final = 64 * 2**20


class Database:
    """An LMDB file being filled, in transactions of bounded size."""

    def __init__(self, path: Path, commit_bytes: int) -> None:
        self._path = path
        self._commit_bytes = commit_bytes
        self._uncommitted_bytes = 0
        self._used_bytes = 0
        self._room_bytes = _MAP_ROOM_BYTES
        try:
            # No writemap: on a full disk it ends in SIGBUS instead of an error. No sync: seal does it once.
            self._environment = lmdb.open(
                str(path),
                subdir=False,
                map_size=2 * _MAP_ROOM_BYTES,
                lock=False,
                sync=False,
                metasync=False,
                max_dbs=0,
            )
        except lmdb.Error as error:
            path.unlink(missing_ok=True)
            raise disk_error(error, path) from error
        self.page_bytes: int = self._environment.stat()["psize"]
        self._transaction = self._environment.begin(write=True)

    def put(self, key: bytes, value: Any) -> None:  # value: any contiguous buffer
        """Store a value; it gets pages of its own."""
        size = len(value)
        # Whole pages, with a header before the value: twice a small value's size.
        used = -(-(PAGE_HEADER_BYTES + size) // self.page_bytes) * self.page_bytes
        try:
            if self._uncommitted_bytes + size > self._commit_bytes or used > self._room_bytes:
                self._commit(used)
            if not self._transaction.put(key, value, overwrite=False):
                raise StorageError(
                    f"{self._path}: block {key!r} was put twice; this is a bug, please report it"
                )
        except lmdb.Error as error:
            raise disk_error(error, self._path) from error
        self._uncommitted_bytes += size
        self._used_bytes += used
        self._room_bytes -= used

    def _commit(self, next_bytes: int) -> None:
        self._transaction.commit()
        self._uncommitted_bytes = 0
        # The map may only grow between transactions; ask for a transaction's worth and one large value.
        self._room_bytes = _MAP_ROOM_BYTES + next_bytes
        self._environment.set_mapsize(self._used_bytes + self._room_bytes + _MAP_ROOM_BYTES)
        self._transaction = self._environment.begin(write=True)

    def close(self) -> None:
        try:
            self._transaction.commit()
            self._environment.close()
        except lmdb.Error as error:
            raise disk_error(error, self._path) from error

    def abandon(self) -> None:
        with contextlib.suppress(lmdb.Error):  # a transaction whose commit failed is gone already
            self._transaction.abort()
        self._environment.close()
        self._path.unlink(missing_ok=True)


def find_blocks(path: Path, view: memoryview, lengths: dict[bytes, int]) -> dict[bytes, tuple[int, int]]:
    """Return position and checksum of every block in the file, as a plain mmap sees it.

    Raises:
        StorageError: if the file is gone or does not hold them.
    """
    try:
        return _found_blocks(path, view, lengths)
    except lmdb.Error as error:
        raise disk_error(error, path) from error


def _found_blocks(path: Path, view: memoryview, lengths: dict[bytes, int]) -> dict[bytes, tuple[int, int]]:
    found: dict[bytes, tuple[int, int]] = {}
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False, readahead=True) as database:
        page_bytes = database.stat()["psize"]
        with database.begin(buffers=True) as transaction:
            for key, length in lengths.items():
                value: Any = transaction.get(key)  # a buffer; a key that is missing fails just below
                address = np.frombuffer(value, np.uint8).ctypes.data
                # The header of the value's first page begins with that page's number.
                page = int.from_bytes(ctypes.string_at(address - PAGE_HEADER_BYTES, 8), "little")
                position = page * page_bytes + PAGE_HEADER_BYTES
                ends = slice(0, min(length, 64)), slice(max(0, length - 64), length)
                # Released here, whatever happens: a view left in a traceback would keep the map from closing.
                with view[position : position + length] as block:
                    # LMDB maps the same file: the same page number is the same bytes; the ends make sure.
                    if any(bytes(value[end]) != bytes(block[end]) for end in ends):
                        raise StorageError(
                            f"{path}: a block is not where LMDB says it is; this is a bug, please report it"
                        )
                    found[key] = (position, xxh3_64_intdigest(block))
    return found


def disk_error(error: Exception, path: Path) -> StorageError:
    """Translate an error of LMDB or the file system, saying so when the disk is full."""
    try:
        free_bytes = shutil.disk_usage(path.parent).free
    except OSError as gone:
        return StorageError(gone.errno or errno.EIO, f"writing failed: {error}; is it gone?", str(path))
    # LMDB may report a full disk as an input/output error, so look.
    is_full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or free_bytes < _FULL_BYTES
    if is_full or isinstance(error, lmdb.DiskError):
        return StorageError(
            errno.ENOSPC,
            f"the disk is full ({free_bytes / 2**20:.0f} MiB free): make room and build again",
            str(path),
        )
    return StorageError(getattr(error, "errno", None) or errno.EIO, f"writing failed: {error}", str(path))
