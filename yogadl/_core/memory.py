"""Allocate memory for batches, which is reused, and which other code may keep or share."""

import contextlib
import ctypes
import mmap
import os
import weakref
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from yogadl._core.protocols import Memory
from yogadl.errors import ConfigurationError

# glibc maps arrays of 32 MiB and more anew each time; this is just below.
_SETTLING_BYTES: Final = 31 * 2**20
# TensorFlow and JAX use an array's memory without a copy if it is aligned to this.
_ALIGNMENT: Final = 64
# Smaller arrays are cheaper to copy than to align.
_LEAST_BYTES: Final = 2**16
_IDLE_BLOCKS: Final = 8
_MAP_FAILED: Final = ctypes.c_void_p(-1).value


def require_memory(what: str, records: int, record_bytes: int) -> None:
    """Refuse work that needs more memory for its records than half of this machine's.

    A crafted cache may claim any number of records.

    Args:
        what: The name of the work in the error.
        records: The number of records.
        record_bytes: The most bytes that the work takes for a record.

    Raises:
        ConfigurationError: if the work needs more.
    """
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if records * record_bytes > memory_bytes // 2:
        raise ConfigurationError(
            f"{what} of {records} records needs {records * record_bytes / 1e9:.1f} GB of memory, "
            f"{record_bytes} bytes a record, and may use half of this machine's {memory_bytes / 1e9:.1f} GB: "
            f"take fewer of the records first, as by ref[:{memory_bytes // 2 // record_bytes}]"
        )


def settle_allocator() -> None:
    """Free one large array without touching it.

    Until an array of some size has been freed, glibc maps each such array anew and faults it in page by page;
    after that glibc keeps the memory. Without this, arrays that one thread gathers and another frees lose
    half of their throughput (benchmarks/prefetch.py), strings that come from workers as much
    (benchmarks/workers.py), and LMDB some for every block that it writes (benchmarks/build.py). Costs a few
    microseconds; harmless with other C libraries.
    """
    np.empty(_SETTLING_BYTES, np.uint8)


def trim_allocator() -> None:
    """Return the memory of freed arrays to the system, after work that needed much of it once; glibc only."""
    with contextlib.suppress(AttributeError):
        load_libc().malloc_trim(0)


class BatchMemory:
    """Makes arrays whose memory is used again once nothing refers to it. Thread-safe, and safe across a fork.

    Meant for frameworks that use an aligned array's memory without a copy, and release it later: without
    reuse, new memory would be faulted in page by page for every batch (benchmarks/tf_data.py). The memory of
    an array is not used again while there is a reference to the array, to a view of it or to a buffer of
    either.

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

    joins = False

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
            # Private, so that a forked process writes to a copy of its own.
            block = mmap.mmap(-1, pages_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANON)
        # numpy keeps a reference from every view to this array, so it is freed after all of them.
        base = np.frombuffer(block, np.uint8, size)
        weakref.finalize(base, _keep_idle, idle, block).atexit = False
        return base.view(dtype).reshape(shape)

    def aligned(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the array itself if it is aligned, small or of objects, else an aligned copy."""
        if array.nbytes < _LEAST_BYTES or array.dtype.hasobject or array.ctypes.data % _ALIGNMENT == 0:
            return array
        found = self.array(array.shape, array.dtype)
        found[...] = array
        return found


def _keep_idle(idle: list[mmap.mmap], block: mmap.mmap) -> None:
    if len(idle) < _IDLE_BLOCKS:
        idle.append(block)


_libc: Any = None  # the C library of this process, loaded at the first use


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
    """Map memory, or a file from its beginning, and return the address; the caller must unmap it.

    Raises:
        OSError: if there is not enough memory, or no mapping is left.
    """
    mapped_address = load_libc().mmap(address, length, protection, flags, descriptor, 0)
    if mapped_address == _MAP_FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(mapped_address)


def map_descriptor(descriptor: int, size: int) -> NDArray[np.uint8]:
    """Map the memory of a descriptor, which may then be closed; Python's own mmap would keep it open.

    The memory is unmapped once there is no reference to the array, to a view of it or to a buffer of either.

    Raises:
        OSError: see `map_memory`.
    """
    return np.asarray(_Mapping(descriptor, size))


class _Mapping:
    """Memory that stays mapped as long as this object, the base of an array, lives."""

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


# Strings of this mean length or more are joined in memory, where that is possible; shorter ones are copied as
# fast one by one (benchmarks/workers.py).
JOINED_BYTES: Final = 4096


class JoinedValues(Sequence[Any]):
    """A column of bytes or str, back to back in one array. Values are made when they are asked for.

    Args:
        data: The bytes of all values; str as UTF-8.
        ends: The end of each value in `data`.
        is_text: Whether the values are str.
    """

    def __init__(self, data: NDArray[np.uint8], ends: NDArray[np.int64], is_text: bool = False) -> None:
        self.data, self.ends, self.is_text = data, ends, is_text

    @staticmethod
    def of(values: Sequence[Any], memory: Memory) -> "JoinedValues":
        """Return values, all bytes or all str, in an array of `memory`."""
        is_text = isinstance(values[0], str)
        encoded = [value.encode("utf-8", "surrogatepass") for value in values] if is_text else values
        ends = np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)))
        data = memory.array((int(ends[-1]),), np.dtype(np.uint8))
        np.concatenate([np.frombuffer(value, np.uint8) for value in encoded], out=data)
        return JoinedValues(data, ends, is_text)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, chosen: Any) -> Any:
        """Return a value, or a list of values for a slice."""
        numbers = range(len(self))[chosen]
        if not isinstance(numbers, range):
            return self[numbers : numbers + 1][0]
        memory, ends = self.data.data, [0, *self.ends.tolist()]
        pieces = [memory[ends[number] : ends[number + 1]] for number in numbers]
        if self.is_text:
            return [str(piece, "utf-8", "surrogatepass") for piece in pieces]
        return [piece.tobytes() for piece in pieces]

    def __iter__(self) -> Iterator[Any]:
        return iter(self[:])
