"""Make the memory of batches: without mapping it anew each time, and where others may keep it."""

import mmap
import weakref
from collections import defaultdict
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

# Just below the 32 MiB from which on glibc always maps anew.
_SETTLING_BYTES: Final = 31 * 2**20
# TensorFlow and JAX keep an array's memory as it is where it is so aligned, and copy it elsewhere.
_ALIGNMENT: Final = 64
# Below this a copy costs less than what avoids it.
_LEAST_BYTES: Final = 2**16
_IDLE_BLOCKS: Final = 8


def settle_allocator() -> None:
    """Free one large array without touching it.

    Until an array of some size has been freed, glibc maps each such array anew and faults it in page by
    page; after that it keeps the memory. What is gathered in one thread and freed in another loses half of
    its throughput to that (benchmarks/prefetch.py), and LMDB some for every block that it is given
    (benchmarks/build.py). Costs a few microseconds; harmless with other C libraries.
    """
    np.empty(_SETTLING_BYTES, np.uint8)


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
