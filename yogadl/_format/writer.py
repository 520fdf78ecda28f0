"""Write the columns of any source into sealed parts, one after another."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

import numpy as np

from yogadl._core.memory import settle_allocator
from yogadl._core.protocols import Column
from yogadl._core.spec import BadValueError, Field, Leaf, Spec, refuse
from yogadl._format.codec import (
    AUTO_BYTES,
    AUTO_RATIO,
    LEAST_ROW_BYTES,
    Codec,
    Encoder,
    codecs_of,
    trained,
    zstd_of,
)
from yogadl._format.columns import (
    FixedRows,
    ForeignValues,
    RunHash,
    StoredColumn,
    as_heap,
    hash_run,
    joined,
    stored_column,
    widen_by,
)
from yogadl._format.layout import SealedPart
from yogadl._format.part import PartWriter
from yogadl._format.table import MOST_EMPTY_RECORDS
from yogadl._workers.serial import SerialExecutor
from yogadl.errors import ConfigurationError

# Part sizes of a growing build: the first parts are small, so that one is sealed while the next is written.
# Each part is an eighth of the bytes written so far, up to the full size, so that little is left to seal at
# the end.
PART_BYTES: Final = 2**30
_FIRST_PART_BYTES: Final = 16 * 2**20
_GROWTH: Final = 8
# A part has at least this many blocks of each field, so that it can end between two blocks.
_PART_BLOCKS: Final = 4
# Smaller parts are not cut at blocks: their blocks would be mostly padding.
_LEAST_ALIGNED_PART_BYTES: Final = 2**20
_UNALIGNED: Final = 2**62  # the rows of a block in such a part: more than it can have
# Where sizes vary, the records of the next block may be this much larger than the current ones.
_MARGIN: Final = 1.1
# The block size is chosen anew, with a new part, if records shrink to this fraction of the size for which it
# was chosen, and fill less than this many bytes of a block: a block takes whole pages, at least two.
_MUCH_SMALLER: Final = 1 / 8
_LEAST_BLOCK_BYTES: Final = 2**16
# Records that are hashed without a thread of their own: at most so many, with so many bytes in each column.
_FEW_RECORDS: Final = 1024
_FEW_BYTES: Final = 2**16

# A build that compresses holds its first records, up to so many or so many bytes of them, to decide how.
SAMPLE_BYTES: Final = 16 * 2**20
SAMPLE_RECORDS: Final = 2**16

OnSealed = Callable[[Path, SealedPart, Spec], None]
# Returns the dictionary that all writers of a build use for a field, given the field's number and a function
# that trains one.
Dictionaries = Callable[[int, Callable[[], bytes]], bytes]


class CacheWriter:
    """Writes the columns of any source into parts, and widens the spec as shapes turn out to vary.

    Not thread-safe. While the caller reads the next records, one thread encodes the last ones and gives them
    to LMDB, one hashes them while LMDB copies, and one seals the previous part.

    Args:
        folder: The folder of unfinished parts; on the file system of the finished ones.
        spec: The spec of the records as far as it is known; `write` widens it.
        part_bytes: The most bytes of a part; if ``None``, the limit grows with the build, up to 1 GiB.
        on_sealed: Called, from another thread but in order, with the path of each sealed part, whose ``.idx``
            lies beside it, with the sealed part, and with the spec of the records up to its end.
        first_record: The number of records of this source that are already sealed.
        codec: How values are compressed.
        dictionaries: Finds the dictionary of a field.

    Attributes:
        spec: The spec of the records written so far.
        records: The number of records written, including those already sealed.
        size_bytes: The size of the records written.
    """

    def __init__(
        self,
        folder: Path,
        spec: Spec,
        *,
        part_bytes: int | None,
        on_sealed: OnSealed,
        first_record: int = 0,
        codec: Codec = None,
        dictionaries: Dictionaries = lambda number, train: train(),
    ) -> None:
        if part_bytes is not None and part_bytes < 1:
            raise ConfigurationError(f"part_bytes must be positive, not {part_bytes}")
        self.spec = spec
        self.records = first_record
        self.size_bytes = 0
        settle_allocator()
        self._folder = folder
        self._codecs = codecs_of(codec, [field.name for field in spec.fields])
        self._dictionaries = dictionaries
        self._encoders: dict[int, Encoder] = {}
        # The first records are held until there are enough to decide on codecs and dictionaries.
        self._held: list[list[StoredColumn]] | None = [] if any(self._codecs) else None
        self._held_records = self._held_bytes = 0
        self._part_bytes = part_bytes
        self._on_sealed = on_sealed
        self._part: PartWriter | None = None
        self._part_limit = 0
        self._block_records = 0  # set with the first records, for the size of these
        self._record_bytes = 0
        self._opened = 0
        self._writer = SerialExecutor()
        self._writing: Future[None] | None = None
        self._hasher = SerialExecutor()
        self._sealer = SerialExecutor()
        self._sealing: Future[None] | None = None

    def write(self, columns: Sequence[Column | StoredColumn]) -> None:
        """Append records, one column a field as `column_of` makes them, after those of the last call.

        The columns are written while the caller continues, and must not be changed. The next call, or
        `finish`, raises any error in them.

        Raises:
            UnsupportedDataError: if a value can't be stored; the error names the field and the record.
            StorageError: if the disk fails or is full.
        """
        self.wait()
        self._writing = self._writer.submit(self._write, columns)

    def wait(self) -> None:
        """Wait until all columns passed to `write` are written.

        Raises:
            UnsupportedDataError, StorageError: as `write`.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _write(self, columns: Sequence[Column | StoredColumn]) -> None:
        pairs = [
            self._to_stored(field, column) for field, column in zip(self.spec.fields, columns, strict=True)
        ]
        stored, leaves = [column for column, _ in pairs], [leaf for _, leaf in pairs]
        if leaves != [field.leaf for field in self.spec.fields]:
            # The current part keeps its spec: each part decides how a field is stored.
            self._end_part()
            self.spec = self.spec.with_leaves(leaves)
        if any(isinstance(column, ForeignValues) for column in stored):  # not held, nor joined
            self._release()
        if self._held is None:
            self._write_stored(stored, len(stored[0]) if stored else 0)
            return
        self._held.append([column.copy() for column in stored])
        self._held_records += len(stored[0]) if stored else 0
        self._held_bytes += sum(column.size_bytes for column in stored)
        if self._held_bytes >= SAMPLE_BYTES or self._held_records >= SAMPLE_RECORDS:
            self._release()

    def _release(self) -> None:
        """Write the records that were held."""
        held, self._held = self._held, None
        if held:
            count, self._held_records = self._held_records, 0
            self._write_stored([joined(columns) for columns in zip(*held, strict=True)], count)

    def _to_stored(self, field: Field, column: Column | StoredColumn) -> tuple[StoredColumn, Leaf]:
        """Return the stored form of a column, and the leaf that admits its shapes, too."""
        try:
            stored = stored_column(field.leaf, column)
            return stored, widen_by(field.leaf, stored)
        except BadValueError as error:
            number = self.records + self._held_records + error.position
            raise refuse(field.name, number, error.problem) from error.__cause__

    def _write_stored(self, columns: list[StoredColumn], count: int) -> None:
        start = 0
        while start < count:
            rest = [column[start:] for column in columns]
            if self._part is not None and self._are_blocks_too_short(rest, count - start):
                self._end_part()
            part = self._part or self._begin_part(rest, count - start)
            fitting = self._count_fitting(part, rest, count - start)
            if fitting == 0 or not _fits(part, rest):
                self._end_part()
                continue
            piece = [column[:fitting] for column in rest]
            self.size_bytes += part.write(piece, fitting, self._hashed(piece, fitting))
            self.records += fitting
            start += fitting

    def _hashed(self, columns: list[StoredColumn], count: int) -> Future[RunHash]:
        """Hash records, in another thread unless they are so few that this takes longer."""
        if count > _FEW_RECORDS or any(_hashed_bytes(column) > _FEW_BYTES for column in columns):
            return self._hasher.submit(_hash_columns, columns, count)
        done: Future[RunHash] = Future()
        done.set_result(_hash_columns(columns, count))
        return done

    def _count_fitting(self, part: PartWriter, columns: list[StoredColumn], count: int) -> int:
        """Return how many of these records still fit into the part; at least one if the part is empty.

        The part ends with a block of every field if possible, which makes reading faster
        (benchmarks/parts.py).
        """
        sizes: Any = sum(column.sizes() for column in columns)
        room = max(0, self._part_limit - part.size_bytes)
        if isinstance(sizes, np.ndarray):
            fitting = int(np.searchsorted(np.cumsum(sizes), room, side="right"))
            expected_bytes = float(np.mean(sizes)) * _MARGIN
        else:
            fitting = room // sizes if sizes else MOST_EMPTY_RECORDS - part.records
            expected_bytes = float(sizes)
        block = self._block_records
        if block == _UNALIGNED:
            return max(min(count, fitting), 1 if part.records == 0 else 0)
        to_block_end = -part.records % block
        rest = room - to_block_end * expected_bytes
        blocks = int(rest // (block * expected_bytes)) if expected_bytes else count
        fitting = min(count, fitting, to_block_end + max(0, blocks) * block)
        return max(fitting, 1 if part.records == 0 else 0)

    def _are_blocks_too_short(self, columns: list[StoredColumn], count: int) -> bool:
        """Return whether these records would make blocks that are mostly padding, in this part or a new one.

        This happens if the first records of a source were by far the largest.
        """
        size_bytes = sum(column.size_bytes for column in columns)
        if self._part is not None:
            size_bytes += self._part.size_bytes
            count += self._part.records
        mean_bytes = size_bytes / count
        return (
            mean_bytes < _MUCH_SMALLER * self._record_bytes
            and mean_bytes * self._block_records < _LEAST_BLOCK_BYTES * len(columns)
        )

    def _begin_part(self, columns: list[StoredColumn], count: int) -> PartWriter:
        leaves = [field.leaf for field in self.spec.fields]
        grown_bytes = min(PART_BYTES, max(_FIRST_PART_BYTES, self.size_bytes // _GROWTH))
        self._part_limit = self._part_bytes or grown_bytes
        encoders = [self._encoder(number, column) for number, column in enumerate(columns)]
        shapes = [
            column.shape if leaf.is_fixed and isinstance(column, FixedRows) and encoder is None else None
            for leaf, column, encoder in zip(leaves, columns, encoders, strict=True)
        ]
        if not self._block_records or self._are_blocks_too_short(columns, count):
            self._record_bytes = max(1, sum(int(np.mean(column.sizes())) for column in columns))
            self._block_records = _block_records(self._part_limit, self._record_bytes)
        path = self._folder / f"part-{self._opened:06d}.mdb"
        self._opened += 1
        self._part = PartWriter(path, leaves, shapes, self._block_records, encoders)
        return self._part

    def _encoder(self, number: int, column: StoredColumn) -> Encoder | None:
        """Return what compresses a field's values in a new part, given the first of them."""
        codec = self._codecs[number]
        if isinstance(column, ForeignValues):
            return None
        if codec is None or (isinstance(column, FixedRows) and column.rows.shape[1] < LEAST_ROW_BYTES):
            return None
        values = as_heap(column)
        if number not in self._encoders:
            how = zstd_of(codec)
            dictionary = b""
            if how.dictionary:
                dictionary = self._dictionaries(number, lambda: trained(how, values.data, values.lengths))
            self._encoders[number] = Encoder(how, dictionary)
        found = self._encoders[number]
        if codec == "auto":
            size_bytes = min(AUTO_BYTES, self._part_limit)
            count = max(1, int(np.searchsorted(np.cumsum(values.lengths), size_bytes)))
            sample = values[:count]
            stored = int(found.encode(sample.data, sample.lengths)[1].sum())
            if stored >= AUTO_RATIO * int(sample.lengths.sum()):
                return None
        return found

    def _end_part(self) -> None:
        """Pass the current part to the sealing thread, after that thread has sealed the previous part."""
        if self._part is None:
            return
        part, self._part = self._part, None
        if part.records == 0:
            part.abandon()
            return
        try:
            part.close()
            self._wait_for_seal()
        except BaseException:
            part.abandon()
            raise
        self._sealing = self._sealer.submit(self._seal, part, self.spec)

    def _seal(self, part: PartWriter, spec: Spec) -> None:
        try:
            self._on_sealed(part.path, part.seal(), spec)
        except BaseException:
            part.abandon()  # otherwise the file would stay open, and this process could not write it anew
            raise

    def _wait_for_seal(self) -> None:
        """Wait until the previous part is sealed."""
        sealing, self._sealing = self._sealing, None
        if sealing is not None:
            sealing.result()

    def finish(self) -> None:
        """Write everything, and seal the last part.

        Raises:
            UnsupportedDataError, StorageError: as `write`.
        """
        self.wait()
        self._writing = self._writer.submit(self._release)
        self.wait()
        self._end_part()
        self._wait_for_seal()
        self._shut_down()

    def abandon(self) -> None:
        """Drop the current part; sealed parts stay."""
        self._writer.shutdown()  # waits for the current write
        if self._part is not None:
            self._part.abandon()
            self._part = None
        self._shut_down()

    def _shut_down(self) -> None:
        self._writer.shutdown()
        self._hasher.shutdown()
        self._sealer.shutdown()


def _block_records(part_bytes: int, record_bytes: int) -> int:
    """Return the most records of a block, a power of two; parts end at a multiple of it."""
    if part_bytes < _LEAST_ALIGNED_PART_BYTES:
        return _UNALIGNED
    return 1 << max(0, (part_bytes // _PART_BLOCKS // record_bytes).bit_length() - 1)


def _fits(part: PartWriter, columns: Sequence[StoredColumn]) -> bool:
    """Return whether the part's way to store its fields fits these columns."""
    return all(
        is_foreign in (None, isinstance(column, ForeignValues))
        and (shape is None or (isinstance(column, FixedRows) and column.shape == shape))
        for shape, is_foreign, column in zip(part.shapes, part.are_foreign, columns, strict=True)
    )


def _hashed_bytes(column: StoredColumn) -> int:
    """Return about how many bytes are hashed of a column."""
    data = column.data if isinstance(column, ForeignValues) else None
    return column.size_bytes if data is None else data.size


def _hash_columns(columns: Sequence[StoredColumn], count: int) -> RunHash:
    return hash_run([column.hashes() for column in columns], count)
