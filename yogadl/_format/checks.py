"""Compare blocks with their checksums, each the first time that this process needs it."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from yogadl._format.fields import VaryingField
from yogadl._format.layout import BlockKind, BlockRanges, PartIndex
from yogadl._format.reader import Reader
from yogadl._format.rows import Parts, StoredRows
from yogadl._format.table import PartTable
from yogadl._interfaces import Memory
from yogadl.errors import CacheFormatError

Int64s = NDArray[np.int64]


class CheckedReader:
    """Read records of one cache as a `Reader` does, but from no block that was not found sound before.

    A block is hashed before the first batch that has a record of it is gathered; where parts are mapped, in
    the memory that is gathered from. Once all are, nothing is left to do (benchmarks/check.py). Safe to use
    from several threads, and after a fork: at worst a block is hashed twice.

    Args:
        reader: Reads the records.
        index_of: Returns the index of the part of that number, which has the checksums of its blocks.
        what: Which cache it is, for messages.
        remedy: What to do about damage, for messages.
    """

    def __init__(self, reader: Reader, index_of: Callable[[int], PartIndex], what: str, remedy: str) -> None:
        self._reader = reader
        self._index_of = index_of
        self._what = what
        self._remedy = remedy
        records = np.diff(reader.parts.table.first_record)
        self._checks: list[dict[BlockKind, _Checks]] = [
            {
                "rows": _Checks(field.rows_first_block, field.rows_position, field.rows_length(records)),
                "heap": _Checks(field.heap_first_block, field.heap_position, field.heap_length),
            }
            for field in reader.parts.table.fields
        ]
        self._is_loaded = np.zeros(len(reader.parts.table), bool)
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
        return tuple(
            number
            for number, kinds in enumerate(self._checks)
            if not all(checks.is_sound.all() for checks in kinds.values())
        )

    def _check(self, fields: Sequence[int], indices: Int64s, *, has_values: bool = True) -> None:
        rows, checked_bytes = self._reader.parts.rows(indices), 0
        for number in fields:
            table, field = self._reader.parts.table.fields[number], self._reader.fields[number]
            parts, places = rows.located()
            blocks = places // table.rows_per_block[parts] + table.rows_first_block[parts]
            blocks = blocks[table.row_bytes[parts] > 0]  # rows of no bytes have no blocks
            checked_bytes += self._check_blocks(rows, number, "rows", blocks)
            if isinstance(field, VaryingField) and has_values:
                # The rows say which blocks of the heap are needed, so they had to be checked first.
                checked_bytes += self._check_blocks(rows, number, "heap", field.heap_blocks(rows))
        self._left = self._unfinished()
        self._reader.parts.touch(checked_bytes)

    def _check_blocks(self, rows: StoredRows, number: int, kind: BlockKind, blocks: Int64s) -> int:
        """Hash those of these blocks that were not checked yet; return how many bytes they have.

        Raises:
            CacheFormatError: if one is damaged.
        """
        checks = self._checks[number][kind]
        new = np.unique(blocks[~checks.is_sound[blocks]])
        parts = np.searchsorted(checks.first_block, new, side="right") - 1
        for part in np.unique(parts[~self._is_loaded[parts]]).tolist():
            self._load(part)
        positions, lengths, checksums = checks.position[new], checks.length[new], checks.checksum[new]
        rows.parts.expect(parts, positions, lengths)
        each = zip(*(a.tolist() for a in (new, parts, positions, lengths, checksums)), strict=True)
        for block, part, position, length, checksum in each:
            if xxh3_64_intdigest(rows.block(part, position, length)) != checksum:
                raise self._damage(number, kind, part, block - int(checks.first_block[part]))
            checks.is_sound[block] = True
        return int(lengths.sum())

    def _load(self, part: int) -> None:
        """Take over the checksums of a part."""
        index, fields = self._index_of(part), self.table.fields
        agrees = len(index.fields) == len(fields) and all(
            lies.rows_per_block == field.rows_per_block[part]
            and np.array_equal(lies.heap_first_record, field.heap_first_record[kinds["heap"].of(part)])
            and kinds["rows"].load(part, lies.rows)
            and kinds["heap"].load(part, lies.heap)
            for kinds, lies, field in zip(self._checks, index.fields, fields, strict=True)
        )
        if not agrees:
            raise CacheFormatError(
                f"{self._what}: the index of part {self.table.sha256[part]} says other things of it than the "
                f"part table; {self._remedy}"
            )
        self._is_loaded[part] = True

    def _damage(self, number: int, kind: BlockKind, part: int, block: int) -> CacheFormatError:
        first = int(self.table.first_record[part])
        records = int(self.table.first_record[part + 1]) - first
        found = self._index_of(part).fields[number].records_of(kind, block, records)
        return damage(
            self._what,
            self._reader.spec.fields[number].name,
            range(first + found.start, first + found.stop),
            self.table.sha256[part],
            self._remedy,
        )


class _Checks:
    """What the blocks of one field and kind must hash to, and which were found to do.

    Args:
        first_block: Where the blocks of each part begin, and where the last one's end.
        position: Where each block begins in its part's file.
        length: How long each is.
    """

    def __init__(self, first_block: Int64s, position: Int64s, length: Int64s) -> None:
        self.first_block = first_block
        self.position = position
        self.length = length
        self.checksum = np.zeros(len(position), np.uint64)
        # A byte each, not a bit: threads may set two that are neighbours.
        self.is_sound = np.zeros(len(position), bool)

    def of(self, part: int) -> slice:
        """Return which blocks are a part's."""
        return slice(*self.first_block[part : part + 2].tolist())

    def load(self, part: int, blocks: BlockRanges) -> bool:
        """Take over the checksums of a part's blocks; return whether they are those of the part table."""
        mine = self.of(part)
        agree = (
            np.array_equal(blocks.position, self.position[mine])
            and np.array_equal(blocks.length, self.length[mine])
            and blocks.checksum.shape == blocks.length.shape
        )
        if agree:
            self.checksum[mine] = blocks.checksum
        return agree


def damage(what: str, field: str, records: range, sha256: str, remedy: str) -> CacheFormatError:
    """Make the error that tells which records are damaged."""
    return CacheFormatError(
        f"{what}: field {field!r}, records {records.start} to {records.stop - 1}: the bytes in part "
        f"{sha256}.mdb were changed since they were written; {remedy}"
    )
