"""Gather one field from several caches in one go. Flat on purpose: benchmarks/stages.py measures it."""

import ctypes
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from yogadl._format.fields import Blocks
from yogadl._format.table import before
from yogadl._format.window import Window, view_rows
from yogadl._leaf import Leaf

Int64s = NDArray[np.int64]

_MOST_BLOCKS: Final = 2**22  # of a field: 32 MiB


class JoinedFields:
    """Fields of several caches, whose rows count on from one to the next. Safe to use from several threads.

    Args:
        leaves: Of all fields.
        windows: Of each cache, the memory that its parts are mapped to.
        records: Of each cache, how many it has.
        blocks: Of each cache, where the blocks of these fields lie in its window, of those that have such.
    """

    def __init__(
        self,
        leaves: Sequence[Leaf],
        windows: Sequence[Window],
        records: Sequence[int],
        blocks: Sequence[Sequence[Blocks | None]],
    ) -> None:
        self.windows = windows  # so long they stay mapped
        # Each cache begins with a block of every field.
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
    """One of these fields.

    Args:
        leaf: The field's leaf.
        caches: The windows, and where the field's blocks lie in them.
        bounds: Where the rows of each cache begin, and where they end.
        least: How many rows the smallest block has.
    """

    def __init__(
        self, leaf: Leaf, caches: Sequence[tuple[Window, Blocks]], bounds: Int64s, least: int
    ) -> None:
        assert leaf.shape is not None
        self._shape = tuple(size or 0 for size in leaf.shape)
        self._dtype = leaf.numpy_dtype
        start = min(window.address for window, _ in caches)
        end = max(window.address + len(window.bytes) for window, _ in caches)
        # All that lies between, most of which is no memory.
        self._view, step = view_rows((ctypes.c_ubyte * (end - start)).from_address(start), leaf.row_bytes)
        self._shift = least.bit_length() - 1
        self._mask = least - 1
        self._stride = leaf.row_bytes // step
        self._blocks = np.zeros(int(bounds[-1]) >> self._shift, np.int64)
        for (window, lies), begin in zip(caches, bounds.tolist(), strict=False):
            within = np.arange(0, lies.rows, least) * leaf.row_bytes  # as if all blocks had as few rows
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
