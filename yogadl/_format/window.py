"""See all parts of a cache as one stretch of memory, so that one numpy gather reads from any of them.

Each part gets a slot in a reserved range of addresses and is mapped there when it is first needed. libc's
mmap is called through ctypes because Python's own can't place a mapping, and holds a descriptor for each:
5,000 parts need neither here.
"""

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

from yogadl._lock import ProcessLock
from yogadl._memory import load_libc, map_memory
from yogadl.errors import CacheFormatError, StorageError

Int64s = NDArray[np.int64]

_PROT_NONE: Final = 0
_MAP_FIXED: Final = 0x10
_MAP_NORESERVE: Final = 0x40 if sys.platform == "darwin" else 0x4000
# Typed views need aligned slots, and 64 KiB is the largest page of any system we run on. The page cache
# keeps large files in pages of 2 MiB where it can, and maps them as such only at addresses that are
# multiples of that; a tenth of the time of gathering 3 KB rows goes into the difference.
_SLOT_ALIGNMENT: Final = 1 << 16
_HUGE_PAGE_BYTES: Final = 1 << 21
# So many are all mapped at the first read, which takes a millisecond or two.
_FEW_PARTS: Final = 256
# numpy keeps Python's lock while it gathers less than 500 items. Large rows are gathered as rows of bytes,
# which it does without: two threads gather twice as fast, and no thread waits for another's disk.
_UNLOCKED_BYTES: Final = 4096
_VIEWED_BYTES: Final = 2**62  # numpy refuses larger views, overlapping rows counted each
# A sum of sizes that wrapped would place parts outside of the window, over other memory of the process.
_MOST_BYTES: Final = 2**47


class Window:
    """Reserve one range of addresses and map parts into it.

    Threads may gather from mapped parts while others are mapped. Nothing is ever unmapped before the
    window itself goes, so what gathers must hold a reference to it. Survives fork; never pickled.

    Args:
        sizes: How large each part is.
        path_of: Returns where the file of a part lies.
        are_away: Which of them have no file yet, if any: the caller maps no such part.

    Raises:
        CacheFormatError: if no machine has so many addresses.
        StorageError: if they can't be reserved (``ulimit -v``).
    """

    def __init__(
        self,
        sizes: NDArray[np.int64],
        path_of: Callable[[int], str],
        are_away: NDArray[np.bool_] | None = None,
    ) -> None:
        self._sizes = sizes
        self._path_of = path_of
        self._are_away = are_away
        self._lock = ProcessLock()
        # Small parts are packed: a slot of 2 MiB each would cost each a page of page table.
        is_large = len(sizes) > 0 and int(sizes.mean()) >= _HUGE_PAGE_BYTES
        alignment = _HUGE_PAGE_BYTES if is_large else _SLOT_ALIGNMENT
        slots = -(-sizes // alignment) * alignment
        # As floats they can't wrap, and are exact as far as that.
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
        # Not at exit: a daemon thread may still be gathering then, and the process is about to go anyway.
        weakref.finalize(self, load_libc().munmap, reserved, self._length + alignment).atexit = False
        # Any: numpy takes every buffer, but does not say so.
        memory: Any = (ctypes.c_ubyte * self._length).from_address(self._base)
        self._memory = memory
        self.address = self._base  # of position 0
        self.bytes: NDArray[np.uint8] = np.frombuffer(memory, np.uint8)
        self.bytes.flags.writeable = False
        self._views: dict[int, tuple[Any, int]] = {}

    def rows(self, row_bytes: int) -> tuple[Any, int]:
        """Return a view whose index times the step returned with it is a position in the window."""
        found = self._views.get(row_bytes)
        if found is None:
            found = self._views[row_bytes] = view_rows(self._memory, row_bytes)
        return found

    def pieces(self, step: int, phase: int) -> NDArray[Any]:
        """Return the window as an unbroken row of items of `step` bytes, the first at `phase`."""
        count = (self._length - phase) // step
        view: NDArray[Any] = np.ndarray((count,), f"V{step}", self._memory, phase)
        view.flags.writeable = False
        return view

    def map_few(self) -> bool:
        """Map all parts if there are few of them and all are here; return whether all are mapped now."""
        is_all_here = self._are_away is None or not self._are_away.any()
        if len(self.is_mapped) <= _FEW_PARTS and is_all_here:
            self.map(np.arange(len(self.is_mapped)))
        return self.all_mapped

    def will_need(self, starts: Int64s, ends: Int64s) -> None:
        """Ask the kernel to read these stretches of the window, given in order, in the background."""
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
        """Map these parts if they are not yet.

        Raises:
            CacheFormatError: if a file is missing or not of its size.
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
        descriptor = open_part(self._path_of(part), size_bytes)
        try:
            flags = mmap.MAP_SHARED | _MAP_FIXED
            _mmap(self._base + start, size_bytes, mmap.PROT_READ, flags, descriptor)
        finally:
            os.close(descriptor)


def view_rows(memory: Any, row_bytes: int) -> tuple[Any, int]:
    """Return a view of ctypes' bytes whose index times the step returned with it is where a row begins."""
    step, size_bytes = row_step(row_bytes), len(memory)
    if step > 1 or row_bytes == 1:
        view: Any = np.ndarray((size_bytes // step,), f"<u{step}", memory)
    elif row_bytes * size_bytes > _VIEWED_BYTES:
        return _OneByOne(np.frombuffer(memory, np.uint8), row_bytes), 1
    else:
        count = max(size_bytes - row_bytes + 1, 0)
        if row_bytes < _UNLOCKED_BYTES:
            view = np.ndarray((count,), f"V{row_bytes}", memory, strides=(1,))
        else:
            view = np.ndarray((count, row_bytes), np.uint8, memory, strides=(1, 1))
    view.flags.writeable = False
    return view, step


def row_step(row_bytes: int) -> int:
    """Return how many bytes the index of the view of such rows counts in.

    Rows of 1, 2, 4 and 8 bytes are aligned, and a typed view gathers them twice as fast as bytes; for
    others the view has a stride of one byte, so that its index is the position (benchmarks/gather.py).
    """
    return row_bytes if row_bytes in (1, 2, 4, 8) else 1


class _OneByOne:
    """Gather rows of many megabytes from terabytes, of which numpy makes no view."""

    def __init__(self, memory: NDArray[np.uint8], row_bytes: int) -> None:
        self._memory = memory
        self._row_bytes = row_bytes

    def __getitem__(self, where: Int64s) -> NDArray[np.uint8]:
        found = np.empty((len(where), self._row_bytes), np.uint8)
        for row, start in zip(found, where.tolist(), strict=True):
            row[:] = self._memory[start : start + self._row_bytes]
        return found


def open_part(path: str, size_bytes: int) -> int:
    """Open a part's file for reading, making sure that it is one, and as long as it should be.

    Touching a mapped page past the end of a file kills the process, so this can't be left to the reader. A
    link is refused, since what it leads to may be anybody's, and a pipe is not waited for.

    Raises:
        CacheFormatError: if the file is missing, no file, or of another size.
        StorageError: if it can't be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    except FileNotFoundError as error:
        raise CacheFormatError(
            f"part {path} is missing; build the dataset again, or restore the file"
        ) from error
    except OSError as error:
        if error.errno in NO_FILE:
            raise CacheFormatError(
                f"part {path} is a link, or no file at all; put the file itself in its place (cp -L)"
            ) from error
        raise StorageError(error.errno, f"can't open a part: {error.strerror}", path) from error
    found = os.fstat(descriptor)
    found_bytes = found.st_size
    if found_bytes != size_bytes or not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise CacheFormatError(
            f"part {path} has {found_bytes} bytes, not {size_bytes}: it was truncated or overwritten; "
            "build the dataset again, or restore the file"
        )
    return descriptor


def read_at(descriptor: int, position: int, length: int) -> bytes:
    """Return so many bytes of a file from a position on; fewer only if it ends before."""
    content = os.pread(descriptor, length, position)
    while len(content) < length:  # one call reads 2 GiB at most
        more = os.pread(descriptor, length - len(content), position + len(content))
        if not more:
            break
        content += more
    return content


def unreadable(error: OSError, path: str) -> StorageError:
    """Return the error of a part that the disk can't read."""
    return StorageError(error.errno, f"can't read a part: {error.strerror}", path)


# What opening says of what can't be opened as a file: a link that is not followed, a socket, a device that is
# not there.
NO_FILE: Final = (errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.ENODEV)
_MORE_ROOM: Final = (
    "; raise the limit on virtual memory (ulimit -v unlimited), or, if the open caches have very many parts, "
    "the limit on mappings (sysctl vm.max_map_count); or read without mapping: open_storage(..., "
    "mapped=False)"
)


def _mmap(address: int | None, length: int, protection: int, flags: int, descriptor: int) -> int:
    try:
        return map_memory(address, length, protection, flags, descriptor)
    except OSError as error:
        hint = _MORE_ROOM if error.errno == errno.ENOMEM else ""
        raise StorageError(
            error.errno, f"can't map {length} bytes of cache: {error.strerror}{hint}"
        ) from error
