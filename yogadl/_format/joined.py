"""Gather one field from several caches at once; write and read the file of a selection of records."""

import ctypes
import hashlib
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from yogadl._core.frozen import frozen
from yogadl._core.protocols import Indices, Int64s
from yogadl._core.spec import Leaf
from yogadl._format.fields import BlockPositions
from yogadl._format.rows import AddressRange, view_rows
from yogadl._format.table import ArrayFile, running_sums
from yogadl.errors import CacheFormatError

# The code that gathers is flat on purpose: benchmarks/stages.py measures it.
_MOST_BLOCKS: Final = 2**22  # of a field: 32 MiB of positions


class JoinedFields:
    """Fields of several caches, whose rows are numbered from one cache to the next. Safe for several threads.

    Args:
        leaves: The leaves of all fields.
        windows: The window of each cache, to which its parts are mapped.
        records: The number of records of each cache.
        blocks: For each cache, the blocks of each field in its window, or None for a field without.
    """

    def __init__(
        self,
        leaves: Sequence[Leaf],
        windows: Sequence[AddressRange],
        records: Sequence[int],
        blocks: Sequence[Sequence[BlockPositions | None]],
    ) -> None:
        self.windows = windows  # keeps them mapped
        # The rows of each cache begin at a multiple of every field's block size.
        known = [field_blocks for of_cache in blocks for field_blocks in of_cache if field_blocks is not None]
        most = max((field_blocks.rows for field_blocks in known), default=1)
        bounds = running_sums([-(-count // most) * most for count in records])
        self.begins = bounds[:-1]
        self.fields: dict[int, JoinedField] = {}
        for number, leaf in enumerate(leaves):
            of_caches = [of_cache[number] for of_cache in blocks]
            least = min((found.rows for found in of_caches if found is not None), default=1)
            if None not in of_caches and bounds[-1] // least <= _MOST_BLOCKS:
                caches: Any = list(zip(windows, of_caches, strict=True))
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
        self, leaf: Leaf, caches: Sequence[tuple[AddressRange, BlockPositions]], bounds: Int64s, least: int
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
        for (window, blocks), begin in zip(caches, bounds.tolist(), strict=False):
            within = np.arange(0, blocks.rows, least) * leaf.row_bytes  # as blocks of `least` rows
            positions = (blocks.positions[:, None] + (within + window.address - start)).reshape(-1)
            first = begin >> self._shift
            self._blocks[first : first + len(positions)] = positions // step

    def gather(self, rows: Int64s) -> NDArray[Any]:
        """Return the column of these rows, as a new array."""
        where: Int64s = rows & self._mask
        if self._stride != 1:
            where *= self._stride
        where += self._blocks.take(rows >> self._shift)
        column: NDArray[Any] = self._view[where].view(self._dtype)
        return column.reshape(len(rows), *self._shape) if self._shape else column


_HEADER_BYTES: Final = 2**12
# The bits of an index; a mask takes one bit a record.
_INDEX_BITS: Final = 64


@frozen
class Selection:
    """A selection of records, in their order.

    Args:
        name: A hash, of 64 digits, of the source and of the function that selects.
        records: The number of records to select from.
        indices: The indices of the selected records, each once.
    """

    name: str
    records: int
    indices: Indices

    def to_bytes(self) -> bytes:
        """Return the file's bytes: one bit a record, or one index a selected record, whichever is smaller."""
        if len(self.indices) * _INDEX_BITS < self.records:
            array: Any = self.indices.astype("<i8", copy=False)
        else:
            mask = np.zeros(self.records, bool)
            mask[self.indices] = True
            array = np.packbits(mask, bitorder="little")
        document = {
            "name": self.name,
            "records": self.records,
            "selected": len(self.indices),
            "sha256": hashlib.sha256(array).hexdigest(),
        }
        return ArrayFile({"selection": array}, document).to_bytes()


def most_selection_bytes(records: int) -> int:
    """Return the largest size of the file of a selection from this many records."""
    return _HEADER_BYTES + -(-records // 8)


def read_selection(content: bytes, what: str) -> Selection:
    """Return the selection in a file's bytes; the caller compares its name with the one that it needs.

    Raises:
        CacheFormatError: if the file is damaged, or is no selection.
    """
    file = ArrayFile.from_buffer(content, what)
    document: Any = file.document  # any JSON value
    array: Any = file.arrays.get("selection")
    if isinstance(document, dict) and array is not None:
        name: Any = document.get("name")
        records: Any = document.get("records")
        selected: Any = document.get("selected")
        if (
            isinstance(name, str)
            and (type(records), type(selected)) == (int, int)
            and records >= 0
            and hashlib.sha256(array).hexdigest() == document.get("sha256")
        ):
            indices = _parse_indices(array, records)
            if indices is not None and len(indices) == selected:
                return Selection(name, records, indices)
    raise CacheFormatError(f"{what} is damaged: its content does not match its header; remove it")


def _parse_indices(array: Any, records: int) -> Indices | None:  # an array of one of the three dtypes
    """Return the indices in an array of indices or bits, or ``None`` if it does not fit this many records."""
    if array.ndim != 1:
        return None
    if array.dtype == np.uint8:
        if len(array) != -(-records // 8):
            return None
        return np.flatnonzero(np.unpackbits(array, count=records, bitorder="little"))
    if array.dtype != np.int64 or (len(array) and not (array[0] >= 0 and array[-1] < records)):
        return None
    return array.astype(np.int64) if bool((array[1:] > array[:-1]).all()) else None
