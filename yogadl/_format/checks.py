"""Compare each block with its checksum, the first time that this process needs the block."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from yogadl._core.protocols import Int64s, Memory
from yogadl._core.spec import Spec
from yogadl._format.fields import Entries, VaryingField
from yogadl._format.files import REFRESH, FileId, ForeignFile, PartFiles
from yogadl._format.layout import BlockKind, BlockRanges, PartIndex
from yogadl._format.reader import Reader
from yogadl._format.rows import StoredRows
from yogadl._format.table import PartTable, running_sums
from yogadl.errors import CacheFormatError

# The checksum of a block of a foreign file that was adopted without reading it.
UNREAD: Final = 0
_KINDS: tuple[BlockKind, BlockKind] = ("rows", "heap")


class Checksums:
    """The checksums of a cache's blocks, loaded for each part at its first use.

    A block has a number: the blocks of the first field's rows come first, in the order of the parts, then
    those of its heap, then the next field's. Safe to use from several threads, and after a fork: at worst the
    checksums of a part are loaded twice.

    Args:
        table: The part table.
        names: The names of the fields, for messages.
        index_of: Returns the index of the part with a number; the index has the checksums of its blocks.
        what: The name of the cache, for messages.
        remedy: The remedy for damage, for messages.

    Attributes:
        first: The number of the first block of each group, which is a field's rows or its heap: the first
            field's rows, its heap, the next field's rows, and so on; then the number of all blocks.
        part: The part of each block.
        file: The number of the file that it lies in.
        position: The position of each block in that file.
        length: The length of each block in bytes.
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
        # For each field's rows, then its heap: the first block of each part.
        self._first_blocks: list[Int64s] = []
        positions, lengths = [], []
        for field in table.fields:
            self._first_blocks += [field.rows_first_block, field.heap_first_block]
            positions += [field.rows_position, field.heap_position]
            lengths += [field.rows_length(records), field.heap_length]
        self.first = running_sums([len(blocks) for blocks in positions])
        no_blocks = [np.empty(0, np.int64)]  # a table without fields has nothing else to join
        self.position = np.concatenate(no_blocks + positions)
        self.length = np.concatenate(no_blocks + lengths)
        part_numbers = np.arange(len(table), dtype=np.int32)
        parts_of_blocks = [
            np.repeat(part_numbers, np.diff(first_blocks)) for first_blocks in self._first_blocks
        ]
        self.part = np.concatenate([part_numbers[:0], *parts_of_blocks])
        self.file = self.part.astype(np.int64)
        for number, field in enumerate(table.fields):
            heap = self.blocks_of(number, "heap")
            self.file[heap] = table.files.of_blocks(self.file[heap], field.heap_file)
        self._checksum = np.zeros(len(self.part), np.uint64)
        self._is_loaded = np.zeros(len(table), bool)

    def blocks_of(self, field: int, kind: BlockKind) -> slice:
        """Return the slice of the numbers of a field's blocks of a kind."""
        return slice(*self.first[2 * field + _KINDS.index(kind) :][:2].tolist())

    def group_of(self, block: int) -> int:
        """Return the number of a block's group: the blocks of one field and kind, in the order of `first`."""
        return int(np.searchsorted(self.first, block, side="right")) - 1

    def missing(self, blocks: Int64s) -> list[int]:
        """Return the parts of these blocks whose checksums are not loaded."""
        parts = self.part[blocks]
        missing: list[int] = np.unique(parts[~self._is_loaded[parts]]).tolist()
        return missing

    def load(self, part: int) -> None:
        """Load the checksums of a part.

        Raises:
            CacheFormatError: if the checksums are missing, or belong to other blocks.
        """
        index, fields = self._index_of(part), self.table.fields
        agrees = len(index.fields) == len(fields) and all(
            indexed.rows_per_block == field.rows_per_block[part]
            and np.array_equal(
                indexed.heap_first_record,
                field.heap_first_record[slice(*field.heap_first_block[part : part + 2].tolist())],
            )
            and self._load_if_equal(2 * number, part, indexed.rows)
            and self._load_if_equal(2 * number + 1, part, indexed.heap)
            for number, (indexed, field) in enumerate(zip(index.fields, fields, strict=True))
        )
        if not agrees:
            raise CacheFormatError(
                f"{self._what}: the index of part {self.table.sha256[part]} does not agree with the part "
                f"table; {self._remedy}"
            )
        self._is_loaded[part] = True

    def compare(self, block: int, content: bytes | memoryview) -> None:
        """Compare a block's bytes with its checksum, which must be loaded.

        Raises:
            CacheFormatError: if the two differ; the error names dataset, field, records and part.
        """
        if self._checksum[block] in (xxh3_64_intdigest(content), UNREAD):
            return
        group, part = self.group_of(block), int(self.part[block])
        number, kind = group // 2, _KINDS[group % 2]
        first, end = self.table.first_record[part : part + 2].tolist()
        block_in_part = block - int(self.first[group]) - int(self._first_blocks[group][part])
        records_in_part = self._index_of(part).fields[number].records_of(kind, block_in_part, end - first)
        records = range(first + records_in_part.start, first + records_in_part.stop)
        where, remedy = self.table.files[FileId(int(self.file[block]))].damage
        raise damage_error(self._what, self._names[number], records, where, remedy or self._remedy)

    def _load_if_equal(self, group: int, part: int, blocks: BlockRanges) -> bool:
        """Load the checksums of a group's blocks in a part, if the part table has the same blocks.

        Return whether it has them.
        """
        start, end = (self._first_blocks[group][part : part + 2] + self.first[group]).tolist()
        agree = (
            np.array_equal(blocks.position, self.position[start:end])
            and np.array_equal(blocks.length, self.length[start:end])
            and blocks.checksum.shape == blocks.length.shape
        )
        if agree:
            self._checksum[start:end] = blocks.checksum
        return agree


class CheckedReader(Reader):
    """A `Reader` that reads only from blocks whose checksums agree.

    Before a batch is gathered, each block that has one of its records is hashed, unless it was hashed before.
    In mapped parts, a block is hashed in the memory that is gathered from. Once all blocks are checked, the
    checks cost nothing (benchmarks/check.py). Safe to use from several threads, and after a fork: at worst a
    block is hashed twice.

    Ranges read from a store are not checked here: their blocks were compared when they arrived.

    Args:
        sums: The checksums of the blocks.
        spec: The structure of a record.
        files: The places of the parts' files.
        maps: Whether files may be mapped.
    """

    def __init__(self, sums: Checksums, spec: Spec, files: PartFiles, *, maps: bool = True) -> None:
        super().__init__(spec, sums.table, files, maps=maps)
        self._sums = sums
        # A byte each, not a bit: threads may set neighbouring entries at the same time.
        self._is_sound = np.zeros(len(sums.part), bool)
        self._unchecked_fields = self._find_unchecked_fields()

    def columns(
        self, indices: Int64s, fields: Sequence[int] | None = None, memory: Memory | None = None
    ) -> list[NDArray[Any] | list[Any]]:
        """Read records `indices`, which lie in range: one column a field, or one for each of `fields`.

        Raises:
            CacheFormatError: if a needed block is damaged; the error names dataset, field and records.
        """
        if self._unchecked_fields and len(indices):
            self._check([n for n in self._unchecked_fields if fields is None or n in fields], indices)
        return super().columns(indices, fields, memory)

    def lengths(self, indices: Int64s, number: int) -> Int64s:
        """Return the lengths of a field's values; see `Reader.lengths`.

        Raises:
            CacheFormatError: if a block of the rows that hold the lengths is damaged.
        """
        if number in self._unchecked_fields and len(indices):
            self._check([number], indices, has_values=False)
        return super().lengths(indices, number)

    def stretches(self, indices: Int64s, number: int, starts: Int64s, stops: Int64s) -> NDArray[Any]:
        """Return some of the values of a field; see `Reader.stretches`.

        Raises:
            CacheFormatError: if a needed block is damaged.
        """
        if number in self._unchecked_fields and len(indices):
            self._check([number], indices)
        return super().stretches(indices, number, starts, stops)

    def foreign_entries(self, indices: Int64s) -> dict[int, Entries]:
        """Return entries of values in foreign files; see `Reader.foreign_entries`. The values are not read.

        Raises:
            CacheFormatError: if a block of the rows that hold the entries is damaged.
        """
        if self._unchecked_fields and len(indices):
            self._check(self._unchecked_fields, indices, has_values=False)
        return super().foreign_entries(indices)

    def mapped(self, records: int) -> None:
        """Return no memory, whose blocks would not be checked."""

    def blocks(self, number: int) -> None:
        """Return no blocks, since no memory is read directly."""

    def _find_unchecked_fields(self) -> tuple[int, ...]:
        """Return the fields that have blocks not checked yet."""
        blocks_of_fields = itertools.pairwise(self._sums.first[::2].tolist())
        return tuple(
            number
            for number, (start, end) in enumerate(blocks_of_fields)
            if not self._is_sound[start:end].all()
        )

    def _check(self, fields: Sequence[int], indices: Int64s, *, has_values: bool = True) -> None:
        """Check the blocks that these records need: of the rows and, with `has_values`, of the heap."""
        parts = self.parts
        are_away = None if parts.away is None else parts.are_away(parts.locate(indices)[0])
        # Parts that are not on this machine are left out: their content is compared with their hash when they
        # are downloaded, which may happen before they are read here.
        rows, checked_bytes = parts.rows(indices if are_away is None else indices[~are_away]), 0
        for number in fields if len(rows.indices) else ():
            table, field = self._sums.table.fields[number], self.fields[number]
            parts_of_rows, row_numbers = rows.located()
            blocks = (
                row_numbers // table.rows_per_block[parts_of_rows] + table.rows_first_block[parts_of_rows]
            )
            blocks = blocks[table.row_bytes[parts_of_rows] > 0]  # rows of no bytes have no blocks
            checked_bytes += self._check_blocks(rows, self._sums.blocks_of(number, "rows").start + blocks)
            if isinstance(field, VaryingField) and has_values:
                # The rows name the blocks of the heap that are needed, so the rows are checked first.
                heap = self._sums.blocks_of(number, "heap").start + field.heap_blocks(rows)
                checked_bytes += self._check_blocks(rows, heap)
        self._unchecked_fields = self._find_unchecked_fields()
        parts.count_read_bytes(checked_bytes)

    def _check_blocks(self, rows: StoredRows, blocks: Int64s) -> int:
        """Hash the blocks that were not checked yet; return their total size in bytes.

        Raises:
            CacheFormatError: if a block is damaged.
        """
        sums, new = self._sums, np.unique(blocks[~self._is_sound[blocks]])
        for part in sums.missing(new):
            sums.load(part)
        for block in new.tolist():
            file, position, length = (int(each[block]) for each in (sums.file, sums.position, sums.length))
            sums.compare(block, rows.block(file, position, length))
            self._is_sound[block] = True
        return int(sums.length[new].sum())


def damage_error(
    what: str, field: str, records: range, where: str, remedy: str = REFRESH
) -> CacheFormatError:
    """Return an error that names the damaged records, and where their bytes lie."""
    return CacheFormatError(
        f"{what}: field {field!r}, records {records.start} to {records.stop - 1}: the bytes in {where} were "
        f"changed since they were written; {remedy}"
    )


class AddressedBlock(NamedTuple):
    """A block of a file with an address: its bytes, their checksum, a field with the block's number there."""

    file: ForeignFile
    position: int
    length: int
    checksum: int
    field: int
    block: int

    def has(self, content: bytes | memoryview) -> bool:
        """Return whether these are the block's bytes."""
        return xxh3_64_intdigest(content) == self.checksum


def addressed_blocks(index: PartIndex) -> Iterator[AddressedBlock]:
    """Yield the blocks of a part in files with an address that were read, by file and position, each once."""
    blocks: dict[tuple[int, int, int], tuple[int, int]] = {}
    for number, field in enumerate(index.fields):
        if field.heap_file is not None:
            places = zip(field.heap_file.tolist(), field.heap.position.tolist(), strict=True)
            for block, (file_number, position) in enumerate(places):
                blocks.setdefault((file_number, position, int(field.heap.length[block])), (number, block))
    for (file_number, position, length), (number, block) in sorted(blocks.items()):
        checksum = int(index.fields[number].heap.checksum[block])
        if checksum != UNREAD:
            yield AddressedBlock(index.files[file_number], position, length, checksum, number, block)
