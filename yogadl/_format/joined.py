"""Gather one field from several caches at once. Flat on purpose: benchmarks/stages.py measures it."""

import ctypes
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from yogadl._core.leaf import Leaf
from yogadl._format.fields import Blocks
from yogadl._format.table import before
from yogadl._format.window import Window, view_rows

Int64s = NDArray[np.int64]

_MOST_BLOCKS: Final = 2**22  # of a field: 32 MiB of positions


class JoinedFields:
    """Fields of several caches, whose rows are numbered from one cache to the next. Safe for several threads.

    Args:
        leaves: The leaves of all fields.
        windows: The window of each cache, to which its parts are mapped.
        records: The number of records of each cache.
        blocks: For each cache, the blocks of each field in its window; None for a field without such blocks.
    """

    def __init__(
        self,
        leaves: Sequence[Leaf],
        windows: Sequence[Window],
        records: Sequence[int],
        blocks: Sequence[Sequence[Blocks | None]],
    ) -> None:
        self.windows = windows  # keeps them mapped
        # The rows of each cache begin at a multiple of every field's block size.
        whole = max((lies.rows for of_cache in blocks for lies in of_cache if lies is not None), default=1)
        bounds = before([-(-count // whole) * whole for count in records])
        self.begins = bounds[:-1]
        self.fields: dict[int, JoinedField] = {}
        for number, leaf in enumerate(leaves):
            lies = [of_cache[number] for of_cache in blocks]
            least = min((one.rows for one in lies if one is not None), default=1)
            if None not in lies and bounds[-1] // least <= _MOST_BLOCKS:
                caches: Any = list(zip(windows, lies, strict=True))
                self.fields[number] = JoinedField(leaf, caches, bounds, least)


class JoinedField:
    """One field of several caches.

    Args:
        leaf: The field's leaf.
        caches: The windows, and the field's blocks in each.
        bounds: The first row of each cache, and the end of all.
        least: The number of rows of the smallest block.
    """

    def __init__(
        self, leaf: Leaf, caches: Sequence[tuple[Window, Blocks]], bounds: Int64s, least: int
    ) -> None:
        assert leaf.shape is not None
        self._shape = tuple(size or 0 for size in leaf.shape)
        self._dtype = leaf.numpy_dtype
        start = min(window.address for window, _ in caches)
        end = max(window.address + len(window.bytes) for window, _ in caches)
        # The view covers all addresses between the windows, although most of them are not mapped.
        self._view, step = view_rows((ctypes.c_ubyte * (end - start)).from_address(start), leaf.row_bytes)
        self._shift = least.bit_length() - 1
        self._mask = least - 1
        self._stride = leaf.row_bytes // step
        self._blocks = np.zeros(int(bounds[-1]) >> self._shift, np.int64)
        for (window, lies), begin in zip(caches, bounds.tolist(), strict=False):
            within = np.arange(0, lies.rows, least) * leaf.row_bytes  # as blocks of `least` rows
            found = (lies.positions[:, None] + (within + window.address - start)).reshape(-1)
            first = begin >> self._shift
            self._blocks[first : first + len(found)] = found // step

    def gather(self, rows: Int64s) -> NDArray[Any]:
        """Return the column of these rows, as a new array."""
        where: Int64s = rows & self._mask
        if self._stride != 1:
            where *= self._stride
        where += self._blocks.take(rows >> self._shift)
        column: NDArray[Any] = self._view[where].view(self._dtype)
        return column.reshape(len(rows), *self._shape) if self._shape else column
