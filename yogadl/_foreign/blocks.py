"""Cut the records of a foreign file into blocks: stretches of it, which are read, hashed and checked once."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from yogadl._core.columns import MAX_LEAF_BYTES
from yogadl._core.leaf import Leaf
from yogadl._core.protocols import Column, Int64s
from yogadl._core.spec import Spec
from yogadl._foreign.file_reader import Batch, FileReader, Places
from yogadl._format.columns import ForeignValues

# The most bytes of a block that is not read, unless a single value is longer.
_UNREAD_BLOCK_BYTES: Final = 2**30
# The most records whose columns are given at once.
_MOST_RECORDS: Final = 2**20

Columns = list[Column | ForeignValues]


def columns_of(batch: Batch, spec: Spec, reader: FileReader, *, is_read: bool) -> Iterator[Columns]:
    """Yield the columns of consecutive records, of each run of records whose values lie in one block.

    Args:
        batch: The records.
        spec: The structure of a record.
        reader: The file.
        is_read: Whether the values are read, to hash them. The blocks then lie in the windows of the file, so
            that each byte is fetched once.

    Raises:
        UnsupportedDataError: if values lie outside of the file, in another order than the records, or share
            bytes.
    """
    leaves = [field.leaf for field in spec.fields]
    places = {number: each for number, each in enumerate(batch) if isinstance(each, Places)}
    any_column: Any = next(iter(places.values())).lengths if places else batch[0]
    count = len(any_column)
    located = [_Located(reader, each) for each in places.values()]
    first = 0
    while first < count:
        end = min([count, first + _MOST_RECORDS, *(each.end_of_block(first, is_read) for each in located)])
        blocks = _blocks(reader, located, first, end, is_read=is_read)
        foreign = dict(zip(places, zip(located, blocks, strict=True), strict=True))
        own: Any = batch
        yield [
            _column(leaf, *foreign[number], first, end) if number in foreign else own[number][first:end]
            for number, leaf in enumerate(leaves)
        ]
        first = end


class _Located:
    """The values of one field in a batch, with the place of each checked.

    Attributes:
        ends: Where the values up to each one end.
        starts: Where the first value that has bytes begins, of those from each one on.
    """

    def __init__(self, reader: FileReader, places: Places) -> None:
        self.reader = reader
        self.positions = np.asarray(places.positions, np.int64)
        self.lengths = np.asarray(places.lengths, np.int64)
        self.shapes = np.zeros((len(self.lengths), 1), np.int64) if places.shapes is None else places.shapes
        full = np.flatnonzero(self.lengths)
        begin, size = self.positions[full], self.lengths[full]
        wrong = (begin < 0) | (size < 0) | (size > MAX_LEAF_BYTES) | (begin > reader.size_bytes - size)
        if wrong.any():
            number = int(np.argmax(wrong))
            reader.refuse(int(begin[number]), f"there can't be a value of {size[number]} bytes")
        wrong = begin[1:] < (begin + size)[:-1]
        if wrong.any():
            reader.refuse(
                int(begin[1:][wrong][0]),
                "a record lies before the one that it follows, or shares bytes with it: such files are not "
                "adopted; submit their records",
            )
        self.ends = np.zeros(len(self.lengths), np.int64)
        self.ends[full] = begin + size
        self.ends = np.maximum.accumulate(self.ends)
        following = np.searchsorted(full, np.arange(len(self.lengths)))
        self.starts = np.append(begin, reader.size_bytes)[following]

    def end_of_block(self, first: int, is_read: bool) -> int:
        """Return the number after the last record that a block from record `first` on can have."""
        start = int(self.starts[first])
        if is_read:  # the values in one window, or one value that reaches into the next window
            window_bytes = self.reader.window_bytes
            limit = (start // window_bytes + 1) * window_bytes
        else:
            limit = start + _UNREAD_BLOCK_BYTES
        return max(first + 1, int(np.searchsorted(self.ends, limit, side="right")))

    def stretch(self, first: int, end: int) -> tuple[int, int]:
        """Return where the values of these records begin and end; equal if they have no bytes."""
        start = int(self.starts[first])
        return start, max(start, int(self.ends[end - 1]))


def _blocks(
    reader: FileReader, located: Sequence[_Located], first: int, end: int, *, is_read: bool
) -> list[tuple[int, int, int, NDArray[np.uint8] | None]]:
    """Return the block of each field: position, length, checksum, bytes. Fields that interleave share one."""
    stretches = [each.stretch(first, end) for each in located]
    order = sorted(range(len(stretches)), key=stretches.__getitem__)
    found: list[Any] = [None] * len(stretches)
    members: list[int] = []
    start = stop = 0
    for number in [*order, -1]:
        if number >= 0 and members and stretches[number][0] < stop:
            stop = max(stop, stretches[number][1])
            members.append(number)
            continue
        if members:
            data = np.frombuffer(reader.read(start, stop - start), np.uint8) if is_read else None
            block = start, stop - start, 0 if data is None else xxh3_64_intdigest(data.data), data
            for member in members:
                found[member] = block
        if number >= 0:
            (start, stop), members = stretches[number], [number]
    return found


def _column(
    leaf: Leaf, located: _Located, block: tuple[int, int, int, Any], first: int, end: int
) -> ForeignValues:
    position, length, checksum, data = block
    lengths = located.lengths[first:end]
    starts: Int64s = np.where(lengths > 0, located.positions[first:end] - position, 0)
    shapes = located.shapes[first:end]
    return ForeignValues(
        located.reader.file, position, length, checksum, data, starts, lengths, shapes, not leaf.is_numeric
    )
