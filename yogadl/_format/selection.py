"""Write a selection of records to a file, and read it back with checks."""

import hashlib
from typing import Any, Final

import numpy as np

from yogadl._core.frozen import frozen
from yogadl._core.protocols import Indices
from yogadl._format.arrays import ArrayFile
from yogadl.errors import CacheFormatError

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
    said: Any = file.document  # any JSON value
    array: Any = file.arrays.get("selection")
    if isinstance(said, dict) and array is not None:
        name: Any = said.get("name")
        records: Any = said.get("records")
        selected: Any = said.get("selected")
        if (
            isinstance(name, str)
            and (type(records), type(selected)) == (int, int)
            and records >= 0
            and hashlib.sha256(array).hexdigest() == said.get("sha256")
        ):
            indices = _indices_in(array, records)
            if indices is not None and len(indices) == selected:
                return Selection(name, records, indices)
    raise CacheFormatError(f"{what} is damaged: it is not what it says of itself; remove it")


def _indices_in(array: Any, records: int) -> Indices | None:  # an array of one of the three dtypes
    """Return the indices in an array of indices or bits; ``None`` if it does not fit this many records."""
    if array.ndim != 1:
        return None
    if array.dtype == np.uint8:
        if len(array) != -(-records // 8):
            return None
        return np.flatnonzero(np.unpackbits(array, count=records, bitorder="little"))
    if array.dtype != np.int64 or (len(array) and not (array[0] >= 0 and array[-1] < records)):
        return None
    return array.astype(np.int64) if bool((array[1:] > array[:-1]).all()) else None
