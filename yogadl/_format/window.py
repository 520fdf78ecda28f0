"""Map all parts of a cache, and its foreign files, into one range of memory; open them for reading."""

import ctypes
import errno
import mmap
import os
import stat
import sys
import weakref
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from yogadl._core.memory import load_libc, map_memory
from yogadl._core.process import ProcessLock
from yogadl._core.protocols import Int64s
from yogadl._format.foreign import ForeignFile
from yogadl.errors import CacheFormatError, StorageError

# Map all parts of a cache into one range of memory, so that one numpy gather reads from any of them.
#
# Each part has a slot in a reserved range of addresses and is mapped there at its first use. libc's mmap is
# called through ctypes, because Python's mmap can't place a mapping, and holds a descriptor for each. With
# 5,000 parts neither is acceptable.


_PROT_NONE: Final = 0
_MAP_FIXED: Final = 0x10
_MAP_NORESERVE: Final = 0x40 if sys.platform == "darwin" else 0x4000
# Typed views need aligned slots, and 64 KiB is the largest page of any supported system. The page cache keeps
# large files in pages of 2 MiB if it can, and maps them as such only at multiples of 2 MiB; this saves a
# tenth of the time of gathering 3 KB rows.
_SLOT_ALIGNMENT: Final = 1 << 16
_HUGE_PAGE_BYTES: Final = 1 << 21
# Up to this many parts are all mapped at the first read, which takes a millisecond or two.
_FEW_PARTS: Final = 256
# numpy holds the GIL while it gathers fewer than 500 items. Rows at least this large are gathered as rows of
# bytes, for which numpy releases the GIL: two threads gather twice as fast, and a thread does not wait while
# another one reads from the disk.
_GIL_FREE_ROW_BYTES: Final = 4096
_VIEWED_BYTES: Final = 2**62  # numpy refuses larger views; overlapping rows count separately
# The largest window. If a sum of sizes wrapped, parts would be mapped outside of the window, over other
# memory of the process.
_MOST_BYTES: Final = 2**47


class Window:
    """Reserves one range of addresses and maps parts into it.

    Threads may gather from mapped parts while others are mapped. Nothing is unmapped before the window itself
    is freed, so code that gathers must hold a reference to the window. Survives fork; never pickled.

    Args:
        sizes: The size of each part.
        open_file: Opens the file of a part, after a check of its size, and returns the descriptor.
        are_away: For each part, whether it has no file here yet; such a part must not be mapped. None if all
            have files.

    Raises:
        CacheFormatError: if the sizes are negative, or larger together than any address space.
        StorageError: if the addresses can't be reserved (``ulimit -v``).
    """

    def __init__(
        self,
        sizes: NDArray[np.int64],
        open_file: Callable[[int], int],
        are_away: NDArray[np.bool_] | None = None,
    ) -> None:
        self._sizes = sizes
        self._open_file = open_file
        self._are_away = are_away
        self._lock = ProcessLock()
        # Small parts are packed: a slot of 2 MiB would cost each of them a page of page table.
        is_large = len(sizes) > 0 and int(sizes.mean()) >= _HUGE_PAGE_BYTES
        alignment = _HUGE_PAGE_BYTES if is_large else _SLOT_ALIGNMENT
        slots = -(-sizes // alignment) * alignment
        # The sum is a float, which can't wrap, and is exact for all possible sizes.
        is_possible = sizes.min(initial=0) >= 0 and float(slots.sum(dtype=np.float64)) < _MOST_BYTES
        if not is_possible or slots.min(initial=0) < 0:
            raise CacheFormatError("the parts of a cache can't have these sizes; build the dataset again")
        self.offset: NDArray[np.int64] = np.concatenate([np.zeros(1, np.int64), np.cumsum(slots)])
        self.is_mapped: NDArray[np.bool_] = np.zeros(len(sizes), bool)
        self.all_mapped = len(sizes) == 0
        self._length = max(int(self.offset[-1]), _SLOT_ALIGNMENT)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANON | _MAP_NORESERVE
        reserved = _mmap(None, self._length + alignment, _PROT_NONE, flags, -1)
        self._base = -(-reserved // alignment) * alignment
        # Not at exit: a daemon thread may still be gathering then, and the process is about to end anyway.
        weakref.finalize(self, load_libc().munmap, reserved, self._length + alignment).atexit = False
        # Any: numpy accepts every buffer, but its types don't.
        memory: Any = (ctypes.c_ubyte * self._length).from_address(self._base)
        self._memory = memory
        self.address = self._base  # the address of position 0
        self.bytes: NDArray[np.uint8] = np.frombuffer(memory, np.uint8)
        self.bytes.flags.writeable = False
        self._views: dict[int, tuple[Any, int]] = {}

    def rows(self, row_bytes: int) -> tuple[Any, int]:
        """Return a view of rows and its step: an index times the step is a position in the window."""
        found = self._views.get(row_bytes)
        if found is None:
            found = self._views[row_bytes] = view_rows(self._memory, row_bytes)
        return found

    def pieces(self, step: int, phase: int) -> NDArray[Any]:
        """Return the window as a contiguous array of items of `step` bytes, the first at `phase`."""
        count = (self._length - phase) // step
        view: NDArray[Any] = np.ndarray((count,), f"V{step}", self._memory, phase)
        view.flags.writeable = False
        return view

    def map_few(self) -> bool:
        """Map all parts if they are few and all on this machine; return whether all are mapped now."""
        is_all_here = self._are_away is None or not self._are_away.any()
        if len(self.is_mapped) <= _FEW_PARTS and is_all_here:
            self.map(np.arange(len(self.is_mapped)))
        return self.all_mapped

    def will_need(self, starts: Int64s, ends: Int64s) -> None:
        """Have the kernel read these stretches of the window, given in order, in the background."""
        starts = starts // mmap.PAGESIZE * mmap.PAGESIZE
        advise, base = load_libc().madvise, self._base
        start, end = int(starts[0]), int(ends[0])
        for next_start, next_end in zip(starts[1:].tolist(), ends[1:].tolist(), strict=True):
            if next_start > end:
                advise(base + start, end - start, mmap.MADV_WILLNEED)
                start = next_start
            end = next_end
        advise(base + start, end - start, mmap.MADV_WILLNEED)

    def map(self, parts: NDArray[np.int64]) -> None:
        """Map the parts that are not mapped yet.

        Raises:
            CacheFormatError: if a file is missing or has another size.
        """
        for part in sorted(set(parts[~self.is_mapped[parts]].tolist())):
            with self._lock:
                if not self.is_mapped[part]:
                    self._map(part)
                    self.is_mapped[part] = True
        with self._lock:
            self.all_mapped = bool(self.is_mapped.all())

    def _map(self, part: int) -> None:
        start, size_bytes = int(self.offset[part]), int(self._sizes[part])
        if not 0 <= start < start + size_bytes <= int(self.offset[part + 1]) <= self._length:
            raise CacheFormatError(f"part {part} lies outside of its slot; build the dataset again")
        descriptor = self._open_file(part)
        try:
            flags = mmap.MAP_SHARED | _MAP_FIXED
            _mmap(self._base + start, size_bytes, mmap.PROT_READ, flags, descriptor)
        finally:
            os.close(descriptor)


def view_rows(memory: Any, row_bytes: int) -> tuple[Any, int]:
    """Return a view of ctypes' bytes and its step: an index times the step is the start of a row."""
    step, size_bytes = row_step(row_bytes), len(memory)
    if step > 1 or row_bytes == 1:
        view: Any = np.ndarray((size_bytes // step,), f"<u{step}", memory)
    elif row_bytes * size_bytes > _VIEWED_BYTES:
        return _RowCopier(np.frombuffer(memory, np.uint8), row_bytes), 1
    else:
        count = max(size_bytes - row_bytes + 1, 0)
        if row_bytes < _GIL_FREE_ROW_BYTES:
            view = np.ndarray((count,), f"V{row_bytes}", memory, strides=(1,))
        else:
            view = np.ndarray((count, row_bytes), np.uint8, memory, strides=(1, 1))
    view.flags.writeable = False
    return view, step


def row_step(row_bytes: int) -> int:
    """Return the number of bytes that one step of the index stands for, in the view of such rows.

    Rows of 1, 2, 4 and 8 bytes are aligned, and a typed view gathers them twice as fast as bytes. Views of
    other rows have a stride of one byte, so that the index is the position (benchmarks/gather.py).
    """
    return row_bytes if row_bytes in (1, 2, 4, 8) else 1


class _RowCopier:
    """Gathers rows of many megabytes from terabytes, for which numpy can't make a view."""

    def __init__(self, memory: NDArray[np.uint8], row_bytes: int) -> None:
        self._memory = memory
        self._row_bytes = row_bytes

    def __getitem__(self, where: Int64s) -> NDArray[np.uint8]:
        rows = np.empty((len(where), self._row_bytes), np.uint8)
        for row, start in zip(rows, where.tolist(), strict=True):
            row[:] = self._memory[start : start + self._row_bytes]
        return rows


def open_part(path: str, size_bytes: int) -> int:
    """Open a part's file for reading, after a check that it is a file of the right size.

    A page touched past the end of a mapped file kills the process, so the size must be checked here. A link
    is refused, since it may lead to any user's file, and opening a pipe does not wait.

    Raises:
        CacheFormatError: if the file is missing, not a regular file, or of another size.
        StorageError: if the file can't be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    except FileNotFoundError as error:
        raise CacheFormatError(
            f"part {path} is missing; build the dataset again, or restore the file"
        ) from error
    except OSError as error:
        if error.errno in NOT_A_FILE:
            raise CacheFormatError(
                f"part {path} is a link, or no file at all; put the file itself in its place (cp -L)"
            ) from error
        raise StorageError(error.errno, f"can't open a part: {error.strerror}", path) from error
    status = os.fstat(descriptor)
    if status.st_size != size_bytes or not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise CacheFormatError(
            f"part {path} has {status.st_size} bytes, not {size_bytes}: it was truncated or overwritten; "
            "build the dataset again, or restore the file"
        )
    return descriptor


def open_foreign(path: str, file: ForeignFile) -> int:
    """Open a foreign file, or the mirror's copy of it, if it is as it was when it was adopted.

    Raises:
        CacheFormatError: if it is missing, or was changed.
        StorageError: if it can't be opened.
    """
    try:
        descriptor = open_part(path, file.size_bytes)
    except CacheFormatError as error:
        raise changed_foreign(file, str(error).partition(";")[0]) from error
    try:
        require_unchanged(descriptor, path, file)
    except CacheFormatError:
        os.close(descriptor)
        raise
    return descriptor


def require_unchanged(descriptor: int, path: str, file: ForeignFile) -> None:
    """Make sure that an open foreign file is as it was; of the mirror's copy, that it has its size.

    Raises:
        CacheFormatError: if it was changed.
    """
    status = os.fstat(descriptor)
    tag = str(status.st_mtime_ns) if path == file.address else file.tag
    if (status.st_size, tag) != (file.size_bytes, file.tag):
        raise changed_foreign(file, "it was written since")


def changed_foreign(file: ForeignFile, problem: str) -> CacheFormatError:
    """Return the error of a foreign file that is not as it was when it was adopted."""
    return CacheFormatError(
        f"{file.address} is not the file that this version was adopted from: {problem}; restore it, or make "
        "a version of the files as they are: storage.refresh"
    )


def read_at(descriptor: int, position: int, length: int) -> bytes:
    """Return this many bytes of a file from a position on; fewer only if the file ends before."""
    content = os.pread(descriptor, length, position)
    while len(content) < length:  # one call reads at most 2 GiB
        more = os.pread(descriptor, length - len(content), position + len(content))
        if not more:
            break
        content += more
    return content


def unreadable(error: OSError, path: str) -> StorageError:
    """Return the error for a part that the disk can't read."""
    return StorageError(error.errno, f"can't read a part: {error.strerror}", path)


# The error codes of opening something that is not a regular file: a link that is not followed, a socket, a
# device that does not exist.
NOT_A_FILE: Final = (errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.ENODEV)
_MAPPING_REMEDY: Final = (
    "; raise the limit on virtual memory (ulimit -v unlimited), or, if the open caches have very many parts, "
    "the limit on mappings (sysctl vm.max_map_count); or read without mapping: open_storage(..., "
    "mapped=False)"
)


def _mmap(address: int | None, length: int, protection: int, flags: int, descriptor: int) -> int:
    try:
        return map_memory(address, length, protection, flags, descriptor)
    except OSError as error:
        hint = _MAPPING_REMEDY if error.errno == errno.ENOMEM else ""
        raise StorageError(
            error.errno, f"can't map {length} bytes of cache: {error.strerror}{hint}"
        ) from error
