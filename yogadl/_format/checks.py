"""Compare blocks with their checksums, each the first time that this process needs it."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from yogadl._format.fields import VaryingField
from yogadl._format.layout import BlockKind, BlockRanges, PartIndex
from yogadl._format.reader import Reader
from yogadl._format.rows import Parts, StoredRows
from yogadl._format.table import PartTable, before
from yogadl._interfaces import Memory
from yogadl.errors import CacheFormatError

Int64s = NDArray[np.int64]
_KINDS: tuple[BlockKind, BlockKind] = ("rows", "heap")


class Checksums:
    """What the blocks of a cache must hash to, of each part since it was first asked for.

    A block has a number: those of the first field's rows come first, in the order of the parts, then those of
    its heap, then the next field's. Safe to use from several threads, and after a fork: at worst a part's are
    taken over twice.

    Args:
        table: How every part lies.
        names: What the fields are called, for messages.
        index_of: Returns the index of the part of that number, which has the checksums of its blocks.
        what: Which cache it is, for messages.
        remedy: What to do about damage, for messages.

    Attributes:
        first: Where the numbers of each field's rows and of its heap begin, in turn, and where all end.
        part: In which part each block lies.
        position: Where it begins there.
        length: How many bytes it has.
    """

    def __init__(
        self,
        table: PartTable,
        names: Sequence[str],
        index_of: Callable[[int], PartIndex],
        what: str,
        remedy: str,
    ) -> None:
        self.table = table
        self._names = names
        self._index_of = index_of
        self._what = what
        self._remedy = remedy
        records = np.diff(table.first_record)
        self._of_parts: list[Int64s] = []  # of each kind of each field: where the blocks of each part begin
        positions, lengths = [], []
        for field in table.fields:
            self._of_parts += [field.rows_first_block, field.heap_first_block]
            positions += [field.rows_position, field.heap_position]
            lengths += [field.rows_length(records), field.heap_length]
        self.first = before([len(each) for each in positions])
        nothing = [np.empty(0, np.int64)]
        self.position = np.concatenate(nothing + positions)
        self.length = np.concatenate(nothing + lengths)
        every = np.arange(len(table), dtype=np.int32)
        counted = [np.repeat(every, np.diff(of_parts)) for of_parts in self._of_parts]
        self.part = np.concatenate([every[:0], *counted])
        self._checksum = np.zeros(len(self.part), np.uint64)
        self._is_loaded = np.zeros(len(table), bool)

    def of(self, field: int, kind: BlockKind) -> slice:
        """Return the numbers of a field's blocks of that kind."""
        return slice(*self.first[2 * field + _KINDS.index(kind) :][:2].tolist())

    def kind_of(self, block: int) -> int:
        """Return a number that all blocks of the same field and kind have, and no others."""
        return int(np.searchsorted(self.first, block, side="right")) - 1

    def missing(self, blocks: Int64s) -> list[int]:
        """Return the parts of these blocks whose checksums are not here yet."""
        parts = self.part[blocks]
        missing: list[int] = np.unique(parts[~self._is_loaded[parts]]).tolist()
        return missing

    def load(self, part: int) -> None:
        """Take over the checksums of a part.

        Raises:
            CacheFormatError: if they are missing, or those of other blocks.
        """
        index, fields = self._index_of(part), self.table.fields
        agrees = len(index.fields) == len(fields) and all(
            lies.rows_per_block == field.rows_per_block[part]
            and np.array_equal(lies.heap_first_record, field.heap_first_record[slice(*ends)])
            and self._take(2 * number, part, lies.rows)
            and self._take(2 * number + 1, part, lies.heap)
            for number, (lies, field) in enumerate(zip(index.fields, fields, strict=True))
            for ends in [field.heap_first_block[part : part + 2].tolist()]
        )
        if not agrees:
            raise CacheFormatError(
                f"{self._what}: the index of part {self.table.sha256[part]} does not agree with the part "
                f"table; {self._remedy}"
            )
        self._is_loaded[part] = True

    def compare(self, block: int, content: bytes | memoryview) -> None:
        """Compare a block's bytes with its checksum, which is here.

        Raises:
            CacheFormatError: if they are others; names dataset, field, records and part.
        """
        if xxh3_64_intdigest(content) == self._checksum[block]:
            return
        which, part = self.kind_of(block), int(self.part[block])
        number, kind = which // 2, _KINDS[which % 2]
        first, end = self.table.first_record[part : part + 2].tolist()
        in_part = block - int(self.first[which]) - int(self._of_parts[which][part])
        found = self._index_of(part).fields[number].records_of(kind, in_part, end - first)
        records = range(first + found.start, first + found.stop)
        raise damage(self._what, self._names[number], records, self.table.sha256[part], self._remedy)

    def _take(self, which: int, part: int, blocks: BlockRanges) -> bool:
        """Take over the checksums of some of a part's blocks; return whether those are the part table's."""
        start, end = (self._of_parts[which][part : part + 2] + self.first[which]).tolist()
        agree = (
            np.array_equal(blocks.position, self.position[start:end])
            and np.array_equal(blocks.length, self.length[start:end])
            and blocks.checksum.shape == blocks.length.shape
        )
        if agree:
            self._checksum[start:end] = blocks.checksum
        return agree


class CheckedReader:
    """Read records of one cache as a `Reader` does, but from no block that was not found sound before.

    A block is hashed before the first batch that has a record of it is gathered; where parts are mapped, in
    the memory that is gathered from. Once all are, nothing is left to do (benchmarks/check.py). Safe to use
    from several threads, and after a fork: at worst a block is hashed twice.

    What is read by range is not its business: that comes out of blocks that were compared when they arrived.

    Args:
        reader: Reads the records.
        sums: What the blocks must hash to.
    """

    def __init__(self, reader: Reader, sums: Checksums) -> None:
        self._reader = reader
        self._sums = sums
        # A byte each, not a bit: threads may set two that are neighbours.
        self._is_sound = np.zeros(len(sums.part), bool)
        self._left = self._unfinished()

    @property
    def parts(self) -> Parts:
        """The parts that it reads."""
        return self._reader.parts

    @property
    def table(self) -> PartTable:
        """How every part lies."""
        return self._reader.parts.table

    @property
    def record_bytes(self) -> int:
        """About how large a record is in the files."""
        return self._reader.record_bytes

    def columns(
        self, indices: Int64s, fields: Sequence[int] | None = None, memory: Memory | None = None
    ) -> list[NDArray[Any] | list[Any]]:
        """Read records `indices`, which lie in range: one column a field, or for each of `fields`.

        Raises:
            CacheFormatError: if a block that they lie in is damaged; names dataset, field and records.
        """
        if self._left and len(indices):
            self._check([n for n in self._left if fields is None or n in fields], indices)
        return self._reader.columns(indices, fields, memory)

    def lengths(self, indices: Int64s, number: int) -> Int64s:
        """Return how long the values of a field are; see `Reader.lengths`.

        Raises:
            CacheFormatError: if a block of the rows that say so is damaged.
        """
        if number in self._left and len(indices):
            self._check([number], indices, has_values=False)
        return self._reader.lengths(indices, number)

    def stretches(self, indices: Int64s, number: int, starts: Int64s, stops: Int64s) -> NDArray[Any]:
        """Return some of the values of a field; see `Reader.stretches`.

        Raises:
            CacheFormatError: if a block that they lie in is damaged.
        """
        if number in self._left and len(indices):
            self._check([number], indices)
        return self._reader.stretches(indices, number, starts, stops)

    def will_need(self, indices: Int64s, fields: Sequence[int] | None = None) -> int:
        """Say that these records will be read soon; see `announce`."""
        return self._reader.will_need(indices, fields)

    def will_need_stretches(self, indices: Int64s, number: int, starts: Int64s, stops: Int64s) -> bool:
        """Say that these stretches will be read soon; see `Reader.will_need_stretches`."""
        return self._reader.will_need_stretches(indices, number, starts, stops)

    def _unfinished(self) -> tuple[int, ...]:
        """Return which fields have blocks that were not checked yet."""
        each = enumerate(itertools.pairwise(self._sums.first[::2].tolist()))
        return tuple(number for number, (start, end) in each if not self._is_sound[start:end].all())

    def _check(self, fields: Sequence[int], indices: Int64s, *, has_values: bool = True) -> None:
        parts = self.parts
        away = None if parts.away is None else parts.are_away(parts.locate(indices)[0])
        # Of these a part may arrive before they are read: it was compared with its name just then.
        rows, checked_bytes = parts.rows(indices if away is None else indices[~away]), 0
        for number in fields if len(rows.indices) else ():
            table, field = self.table.fields[number], self._reader.fields[number]
            of_rows, places = rows.located()
            blocks = places // table.rows_per_block[of_rows] + table.rows_first_block[of_rows]
            blocks = blocks[table.row_bytes[of_rows] > 0]  # rows of no bytes have no blocks
            checked_bytes += self._check_blocks(rows, self._sums.of(number, "rows").start + blocks)
            if isinstance(field, VaryingField) and has_values:
                # The rows say which blocks of the heap are needed, so they had to be checked first.
                heap = self._sums.of(number, "heap").start + field.heap_blocks(rows)
                checked_bytes += self._check_blocks(rows, heap)
        self._left = self._unfinished()
        parts.touch(checked_bytes)

    def _check_blocks(self, rows: StoredRows, blocks: Int64s) -> int:
        """Hash those of these blocks that were not checked yet; return how many bytes they have.

        Raises:
            CacheFormatError: if one is damaged.
        """
        sums, new = self._sums, np.unique(blocks[~self._is_sound[blocks]])
        for part in sums.missing(new):
            sums.load(part)
        for block in new.tolist():
            part, position, length = (int(of[block]) for of in (sums.part, sums.position, sums.length))
            sums.compare(block, rows.block(part, position, length))
            self._is_sound[block] = True
        return int(sums.length[new].sum())


def damage(what: str, field: str, records: range, sha256: str, remedy: str) -> CacheFormatError:
    """Make the error that tells which records are damaged."""
    return CacheFormatError(
        f"{what}: field {field!r}, records {records.start} to {records.stop - 1}: the bytes in part "
        f"{sha256}.mdb were changed since they were written; {remedy}"
    )
