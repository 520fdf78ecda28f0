"""Write columns of any source into sealed parts, one after another."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

import numpy as np

from yogadl._format.columns import FixedRows, StoredColumn, stored_column, widen_by
from yogadl._format.fingerprint import RunHash, hash_run
from yogadl._format.layout import SealedPart
from yogadl._format.part import PartWriter
from yogadl._format.table import MOST_EMPTY_RECORDS
from yogadl._interfaces import Column
from yogadl._lane import Lane
from yogadl._leaf import BadValueError, Leaf, refuse
from yogadl._memory import settle_allocator
from yogadl._spec import Field, Spec
from yogadl.errors import ConfigurationError

# Parts of a growing build: the first are small, so that one is sealed while the next is written; each is an
# eighth of what is there already, up to the full size. What is left to seal at the end is never much.
PART_BYTES: Final = 2**30
_FIRST_PART_BYTES: Final = 16 * 2**20
_GROWTH: Final = 8
# A part has at least so many blocks of each field, so that it can be cut between them where it should end.
_PART_BLOCKS: Final = 4
# Smaller parts are not worth it: their blocks would be mostly padding.
_LEAST_ALIGNED_PART_BYTES: Final = 2**20
_UNALIGNED: Final = 2**62
# Where sizes vary, the records of the next block may be so much larger than those at hand.
_MARGIN: Final = 1.1
# Blocks are chosen anew, with a new part, once records take this fraction of what those took that they were
# chosen for, and fill them by less than this: a block is whole pages, two at least.
_FAR_SMALLER: Final = 1 / 8
_LEAST_BLOCK_BYTES: Final = 2**16

OnSealed = Callable[[Path, SealedPart, Spec], None]


class CacheWriter:
    """Write columns of any source into parts, widening the spec as shapes turn out to vary.

    Not thread-safe. While the caller reads the next records, one thread encodes the last ones and gives them
    to LMDB, one hashes them while that copies, and one seals the part before.

    Args:
        folder: Where unfinished parts are made; on the file system of the finished ones.
        spec: What is known of the records; widened by `write`.
        part_bytes: A part is sealed before it would hold more; ``None`` lets parts grow up to 1 GiB.
        on_sealed: Called, from another thread but in order, with the path of each sealed part, whose
            ``.idx`` lies beside it, and the spec as far as it was known by then.
        first_record: How many records of this source are sealed already.

    Attributes:
        spec: What is known of the records by now.
        records: How many are written, those sealed already included.
        size_bytes: What those written take.
    """

    def __init__(
        self, folder: Path, spec: Spec, *, part_bytes: int | None, on_sealed: OnSealed, first_record: int = 0
    ) -> None:
        if part_bytes is not None and part_bytes < 1:
            raise ConfigurationError(f"part_bytes must be positive, not {part_bytes}")
        self.spec = spec
        self.records = first_record
        self.size_bytes = 0
        settle_allocator()
        self._folder = folder
        self._part_bytes = part_bytes
        self._on_sealed = on_sealed
        self._part: PartWriter | None = None
        self._part_limit = 0
        self._block_records = 0  # known once there are records, and for which size it was chosen
        self._record_bytes = 0
        self._opened = 0
        self._writer = Lane()
        self._writing: Future[None] | None = None
        self._hasher = Lane()
        self._sealer = Lane()
        self._sealing: Future[None] | None = None

    def write(self, columns: Sequence[Column | StoredColumn]) -> None:
        """Append records, one column a field as `column_of` makes them, after those of the last call.

        They are written while the caller goes on: what is wrong with them is raised by the next call, or by
        `finish`. Nobody may change them.

        Raises:
            UnsupportedDataError: if a value can't be stored; names field and record.
            StorageError: if the disk fails or is full.
        """
        self.wait()
        self._writing = self._writer.submit(self._write, columns)

    def wait(self) -> None:
        """Wait until all that was given is written.

        Raises:
            UnsupportedDataError, StorageError: as `write`.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _write(self, columns: Sequence[Column | StoredColumn]) -> None:
        found = [self._stored(field, column) for field, column in zip(self.spec.fields, columns, strict=True)]
        stored, leaves = [column for column, _ in found], [leaf for _, leaf in found]
        if leaves != [field.leaf for field in self.spec.fields]:
            # A part in progress keeps its spec: how a field is stored is decided part by part.
            self._end_part()
            self.spec = self.spec.with_leaves(leaves)
        self._write_stored(stored, len(stored[0]) if stored else 0)

    def _stored(self, field: Field, column: Column | StoredColumn) -> tuple[StoredColumn, Leaf]:
        """Return what is stored of a column, and the leaf that admits its shapes, too."""
        try:
            stored = stored_column(field.leaf, column)
            return stored, widen_by(field.leaf, stored)
        except BadValueError as error:
            raise refuse(field.name, self.records + error.position, error.problem) from error.__cause__

    def _write_stored(self, columns: list[StoredColumn], count: int) -> None:
        start = 0
        while start < count:
            rest = [column[start:] for column in columns]
            if self._part is not None and self._are_blocks_too_short(rest, count - start):
                self._end_part()
            part = self._part or self._begin_part(rest, count - start)
            fitting = self._fitting(part, rest, count - start)
            if fitting == 0 or not _fit(part, rest):
                self._end_part()
                continue
            piece = [column[:fitting] for column in rest]
            hashed = self._hasher.submit(_hash_columns, piece, fitting)
            self.size_bytes += part.write(piece, fitting, hashed)
            self.records += fitting
            start += fitting

    def _fitting(self, part: PartWriter, columns: list[StoredColumn], count: int) -> int:
        """Return how many of these records the part still takes; at least one if it is empty.

        It ends where a block of every field does, if it can: reading is faster then (benchmarks/parts.py).
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

        So they are where the first records of a source were by far the largest.
        """
        size_bytes = sum(
            column.sizes() * count if isinstance(column, FixedRows) else int(column.sizes().sum())
            for column in columns
        )
        if self._part is not None:
            size_bytes += self._part.size_bytes
            count += self._part.records
        mean_bytes = size_bytes / count
        return (
            mean_bytes < _FAR_SMALLER * self._record_bytes
            and mean_bytes * self._block_records < _LEAST_BLOCK_BYTES * len(columns)
        )

    def _begin_part(self, columns: list[StoredColumn], count: int) -> PartWriter:
        leaves = [field.leaf for field in self.spec.fields]
        shapes = [
            column.shape if leaf.is_fixed and isinstance(column, FixedRows) else None
            for leaf, column in zip(leaves, columns, strict=True)
        ]
        grown = min(PART_BYTES, max(_FIRST_PART_BYTES, self.size_bytes // _GROWTH))
        self._part_limit = self._part_bytes or grown
        if not self._block_records or self._are_blocks_too_short(columns, count):
            self._record_bytes = max(1, sum(int(np.mean(column.sizes())) for column in columns))
            self._block_records = _block_records(self._part_limit, self._record_bytes)
        path = self._folder / f"part-{self._opened:06d}.mdb"
        self._opened += 1
        self._part = PartWriter(path, leaves, shapes, self._block_records)
        return self._part

    def _end_part(self) -> None:
        """Hand the part in progress to the sealing thread, once that has done the one before."""
        if self._part is None:
            return
        part, self._part = self._part, None
        if part.records == 0:
            part.abandon()
            return
        try:
            part.close()
            self._sealed()
        except BaseException:
            part.abandon()
            raise
        self._sealing = self._sealer.submit(self._seal, part, self.spec)

    def _seal(self, part: PartWriter, spec: Spec) -> None:
        try:
            self._on_sealed(part.path, part.seal(), spec)
        except BaseException:
            part.abandon()  # else its file stays open, and could not be written anew by this process
            raise

    def _sealed(self) -> None:
        """Wait until the part before is sealed."""
        sealing, self._sealing = self._sealing, None
        if sealing is not None:
            sealing.result()

    def finish(self) -> None:
        """Write everything, and seal the last part.

        Raises:
            UnsupportedDataError, StorageError: as `write`.
        """
        self.wait()
        self._end_part()
        self._sealed()
        self._shut_down()

    def abandon(self) -> None:
        """Drop the part in progress; sealed parts stay."""
        self._writer.shutdown()  # what it is at comes to its end first
        if self._part is not None:
            self._part.abandon()
            self._part = None
        self._shut_down()

    def _shut_down(self) -> None:
        self._writer.shutdown()
        self._hasher.shutdown()
        self._sealer.shutdown()


def _block_records(part_bytes: int, record_bytes: int) -> int:
    """Return the power of two of records that no block exceeds and that parts end at a multiple of."""
    if part_bytes < _LEAST_ALIGNED_PART_BYTES:
        return _UNALIGNED
    return 1 << max(0, (part_bytes // _PART_BLOCKS // record_bytes).bit_length() - 1)


def _fit(part: PartWriter, columns: Sequence[StoredColumn]) -> bool:
    """Return whether columns can be stored the way this part stores its fields."""
    return all(
        shape is None or (isinstance(column, FixedRows) and column.shape == shape)
        for shape, column in zip(part.shapes, columns, strict=True)
    )


def _hash_columns(columns: Sequence[StoredColumn], count: int) -> RunHash:
    return hash_run([column.hashes() for column in columns], count)
