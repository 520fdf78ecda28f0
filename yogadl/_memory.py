"""Make the memory of batches: without mapping it anew each time, and where others may keep or share it."""

import ctypes
import mmap
import os
import weakref
from collections import defaultdict
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from yogadl.errors import ConfigurationError

# Just below the 32 MiB from which on glibc always maps anew.
_SETTLING_BYTES: Final = 31 * 2**20
# TensorFlow and JAX keep an array's memory as it is where it is so aligned, and copy it elsewhere.
_ALIGNMENT: Final = 64
# Below this a copy costs less than what avoids it.
_LEAST_BYTES: Final = 2**16
_IDLE_BLOCKS: Final = 8
_MAP_FAILED: Final = ctypes.c_void_p(-1).value


def require_memory(what: str, records: int, record_bytes: int) -> None:
    """Refuse work that needs more memory for its records than half of this machine has.

    A crafted cache may say that it has any number of records.

    Args:
        what: The work, as an error names it.
        records: How many records it is for.
        record_bytes: How many bytes it takes for each, at its most.

    Raises:
        ConfigurationError: if it needs more.
    """
    has_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if records * record_bytes > has_bytes // 2:
        raise ConfigurationError(
            f"{what} of {records} records needs {records * record_bytes / 1e9:.1f} GB of memory, "
            f"{record_bytes} bytes a record, and may use half of this machine's {has_bytes / 1e9:.1f} GB: "
            f"take fewer of the records first, as by ref[:{has_bytes // 2 // record_bytes}]"
        )


def settle_allocator() -> None:
    """Free one large array without touching it.

    Until an array of some size has been freed, glibc maps each such array anew and faults it in page by
    page; after that it keeps the memory. What is gathered in one thread and freed in another loses half of
    its throughput to that (benchmarks/prefetch.py), and LMDB some for every block that it is given
    (benchmarks/build.py). Costs a few microseconds; harmless with other C libraries.
    """
    np.empty(_SETTLING_BYTES, np.uint8)


def trim_allocator() -> None:
    """Give the memory of freed arrays back, after work that needed much of it once; with glibc."""
    trim = getattr(load_libc(), "malloc_trim", None)
    if trim is not None:
        trim(0)


class BatchMemory:
    """Make arrays whose memory is used again once nothing refers to it. Thread-safe, and safe across a fork.

    For frameworks that keep an aligned array's memory and let go of it at a time of their own: new memory
    would be faulted in page by page for every batch (benchmarks/tf_data.py). An array stays its holder's
    for as long as there is a reference to it, to a view of it or to a buffer of either.

    Example:
        >>> import numpy as np
        >>> memory = BatchMemory()
        >>> first = memory.array((256, 1024), np.dtype("float32"))
        >>> address = first.ctypes.data
        >>> memory.array((256, 1024), first.dtype).ctypes.data == address
        False
        >>> del first
        >>> memory.array((256, 1024), np.dtype("float32")).ctypes.data == address
        True
    """

    def __init__(self) -> None:
        self._idle: defaultdict[int, list[mmap.mmap]] = defaultdict(list)

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an aligned array of undefined content."""
        size = dtype.itemsize
        for length in shape:
            size *= length
        if size < _LEAST_BYTES:
            return np.empty(shape, dtype)
        pages_bytes = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        idle = self._idle[pages_bytes]
        try:
            block = idle.pop()
        except IndexError:
            # Private: what a forked process writes here is its own.
            block = mmap.mmap(-1, pages_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANON)
        # Every view has this array for its base, and not the block, which is no array: it goes last.
        whole = np.frombuffer(block, np.uint8, size)
        weakref.finalize(whole, _put_back, idle, block).atexit = False
        return whole.view(dtype).reshape(shape)

    def aligned(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return an array itself if it is aligned, small or of objects, else a copy that is aligned."""
        if array.nbytes < _LEAST_BYTES or array.dtype.hasobject or array.ctypes.data % _ALIGNMENT == 0:
            return array
        found = self.array(array.shape, array.dtype)
        found[...] = array
        return found


def _put_back(idle: list[mmap.mmap], block: mmap.mmap) -> None:
    if len(idle) < _IDLE_BLOCKS:
        idle.append(block)


_libc: Any = None  # the C library of this process, loaded when something is first mapped


def load_libc() -> Any:
    """Return the C library's functions that map memory."""
    global _libc  # noqa: PLW0603  (a constant that is loaded late)
    if _libc is None:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = (
            ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64,
        )  # fmt: skip
        libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        _libc = libc
    return _libc


def map_memory(address: int | None, length: int, protection: int, flags: int, descriptor: int) -> int:
    """Map memory, or a file from its beginning; return the address. It is not unmapped by itself.

    Raises:
        OSError: if there is not so much, or no mapping more.
    """
    found = load_libc().mmap(address, length, protection, flags, descriptor, 0)
    if found == _MAP_FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(found)


def mapped(descriptor: int, size: int) -> NDArray[np.uint8]:
    """Return the memory of a descriptor, which may be closed then: Python's own mmap keeps one for each.

    It is unmapped once there is no reference to the array, to a view of it or to a buffer of either.

    Raises:
        OSError: see `map_memory`.
    """
    return np.asarray(_Mapping(descriptor, size))


class _Mapping:
    """Memory that is mapped for as long as this lives, as an array's base."""

    __slots__ = ("__array_interface__", "__weakref__")

    def __init__(self, descriptor: int, size: int) -> None:
        address = map_memory(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor)
        weakref.finalize(self, load_libc().munmap, address, size).atexit = False
        self.__array_interface__ = {
            "data": (address, False),
            "shape": (size,),
            "typestr": "|u1",
            "version": 3,
        }
