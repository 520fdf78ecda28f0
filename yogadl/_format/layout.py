"""Say where blocks lie: in one part (its index), and in all the parts of a cache (the part table)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, overload

import numpy as np
from numpy.typing import NDArray

from yogadl._format.arrays import ArrayFile
from yogadl._format.fingerprint import PRIME, RunHash
from yogadl._leaf import MAX_DIMENSIONS
from yogadl.errors import CacheFormatError

CONTAINER: Final = "lmdb-1"
CODEC: Final = "raw"
# LMDB puts a 16-byte header before a value on pages of its own; with it a full heap block fills whole pages.
PAGE_HEADER_BYTES: Final = 16
HEAP_BLOCK_BYTES: Final = 2**20 - PAGE_HEADER_BYTES
_ROW_BLOCK_BYTES: Final = 2**20

# What a part table or an index says is believed once it has passed its check, so these bound it. No machine
# has more addresses for all parts together; rows of fewer bytes, in blocks of fewer rows, don't overflow when
# they are multiplied; and each block lies on pages of its own.
MAX_CACHE_BYTES: Final = 2**46
MAX_RECORDS: Final = 2**62
_MAX_ROW: Final = 2**31
LEAST_PAGE_BYTES: Final = 4096

BlockKind = Literal["rows", "heap"]
Int64s = NDArray[np.int64]


def rows_per_block(row_bytes: int, most: int) -> int:
    """Return how many rows a block has: a power of two, so that parts can end with blocks of all fields.

    Args:
        row_bytes: The bytes of one row.
        most: A power of two that is not exceeded.
    """
    return min(most, 1 << max(0, (_ROW_BLOCK_BYTES // max(1, row_bytes)).bit_length() - 1))


def most_table_bytes(fields: int, parts: int, size_bytes: int) -> int:
    """Return how large the table of so many parts, of so many bytes together, may be."""
    header_bytes = 4096 * (1 + fields)
    return header_bytes + (parts + 1) * (128 + 512 * fields) + 40 * (size_bytes // LEAST_PAGE_BYTES)


@dataclass(frozen=True)
class Blocks:
    """The blocks of one field and kind in one part: where each begins, how long it is, what it hashes to."""

    position: Int64s
    length: Int64s
    checksum: NDArray[np.uint64]

    def is_sound(self, size_bytes: int) -> bool:
        """Return whether all is of its kind, and every block lies in a file of that size."""
        count = len(self.position) if self.position.ndim else 0
        return (
            _is_row(self.position, np.int64, count)
            and _is_row(self.length, np.int64, count)
            and _is_row(self.checksum, np.uint64, count)
            and _lie_in(self.position, 0, size_bytes + 1)
            and _lie_in(self.length, 0, size_bytes + 1)
            and bool((self.position <= size_bytes - self.length).all())
        )


@dataclass(frozen=True)
class FieldIndex:
    """How one field lies in one part.

    Args:
        stored: ``"fixed"`` rows of the values themselves, or ``"varying"``: rows of entries, and a heap.
        shape: The shape of each value where fixed.
        row_bytes: The bytes of one row.
        rows_per_block: How many rows each block but the last has.
        elements: How many elements the values have along their first axis, together.
        rows: The blocks of rows.
        heap: The blocks of the heap; none where fixed.
        heap_first_record: The first record of each heap block.
        heap_first_element: How many elements of this part come before each heap block.
    """

    stored: Literal["fixed", "varying"]
    shape: tuple[int, ...]
    row_bytes: int
    rows_per_block: int
    elements: int
    rows: Blocks
    heap: Blocks
    heap_first_record: Int64s
    heap_first_element: Int64s

    def records_of(self, kind: BlockKind, block: int, records: int) -> range:
        """Return which records of a part, of so many, have something in a block."""
        if kind == "rows":
            start = block * self.rows_per_block
            return range(start, min(start + self.rows_per_block, records))
        starts = [*self.heap_first_record.tolist(), records]
        return range(starts[block], max(starts[block] + 1, starts[block + 1]))

    def is_sound(self, size_bytes: int, records: int) -> bool:
        """Return whether all is of its kind, and lies in a part of that size and number of records."""
        numbers = (
            (self.row_bytes, _MAX_ROW),
            (self.rows_per_block, _MAX_ROW),
            (self.elements, 2**63),
            *((size, 2**63) for size in self.shape),
        )
        if not all(_is_number(number, end) for number, end in numbers) or self.rows_per_block < 1:
            return False
        if self.stored not in ("fixed", "varying") or len(self.shape) > MAX_DIMENSIONS:
            return False
        of_heap = (self.heap_first_record, self.heap_first_element)
        if not all(_is_row(array, np.int64, len(self.heap.position)) for array in of_heap):
            return False
        blocks = -(-records // self.rows_per_block) if self.row_bytes else 0
        return (
            self.rows.is_sound(size_bytes)
            and self.heap.is_sound(size_bytes)
            and len(self.rows.position) == blocks
        )


@dataclass(frozen=True)
class PartIndex:
    """How a part lies in its file, and the hash of its records."""

    size_bytes: int
    run: RunHash
    fields: tuple[FieldIndex, ...]

    @property
    def records(self) -> int:
        """How many records the part has."""
        return self.run.records

    def to_file(self) -> ArrayFile:
        """Return the index as the content of an ``.idx`` file."""
        arrays: dict[str, NDArray[Any]] = {}
        fields = []
        for number, field in enumerate(self.fields):
            for kind, blocks in (("rows", field.rows), ("heap", field.heap)):
                arrays[f"{number}.{kind}.position"] = blocks.position
                arrays[f"{number}.{kind}.length"] = blocks.length
                arrays[f"{number}.{kind}.checksum"] = blocks.checksum
            arrays[f"{number}.heap.first_record"] = field.heap_first_record
            arrays[f"{number}.heap.first_element"] = field.heap_first_element
            fields.append(
                {
                    "stored": field.stored,
                    "shape": list(field.shape),
                    "row_bytes": field.row_bytes,
                    "rows_per_block": field.rows_per_block,
                    "elements": field.elements,
                }
            )
        document = {
            "index": 1,
            "container": CONTAINER,
            "bytes": self.size_bytes,
            "records": self.run.records,
            "hash": self.run.value,
            "fields": fields,
        }
        return ArrayFile(arrays, document)

    @staticmethod
    def from_file(file: ArrayFile, what: str) -> "PartIndex":
        """Return the index that `to_file` described.

        Raises:
            CacheFormatError: if it is none, naming `what`.
        """
        try:
            document = file.document
            if document["index"] != 1:
                raise CacheFormatError(
                    f"{what} has version {document['index']!r:.40}, unknown to this library: upgrade yogadl"
                )
            fields = tuple(
                FieldIndex(
                    stored=entry["stored"],
                    shape=tuple(entry["shape"]),
                    row_bytes=entry["row_bytes"],
                    rows_per_block=entry["rows_per_block"],
                    elements=entry["elements"],
                    rows=_blocks(file, f"{number}.rows"),
                    heap=_blocks(file, f"{number}.heap"),
                    heap_first_record=file.arrays[f"{number}.heap.first_record"],
                    heap_first_element=file.arrays[f"{number}.heap.first_element"],
                )
                for number, entry in enumerate(document["fields"])
            )
            index = PartIndex(document["bytes"], RunHash(document["records"], document["hash"]), fields)
        except (KeyError, TypeError) as error:
            raise CacheFormatError(
                f"{what} is damaged: {error!r:.200}; build the dataset again, or restore the file"
            ) from error
        if not index._is_sound():
            raise CacheFormatError(
                f"{what} is damaged: its numbers contradict each other; "
                "build the dataset again, or restore the file"
            )
        return index

    def _is_sound(self) -> bool:
        """Return whether all is of its kind, and every block in the part and no byte in two."""
        numbers = (
            (self.size_bytes, MAX_CACHE_BYTES),
            (self.run.records, MAX_RECORDS),
            (self.run.value, PRIME),
        )
        if not all(_is_number(number, end) for number, end in numbers):
            return False
        if not all(field.is_sound(self.size_bytes, self.run.records) for field in self.fields):
            return False
        lengths = [blocks.length for field in self.fields for blocks in (field.rows, field.heap)]
        return _have_room(lengths, self.size_bytes, sum(map(len, lengths)))


def _blocks(file: ArrayFile, prefix: str) -> Blocks:
    return Blocks(*(file.arrays[f"{prefix}.{name}"] for name in ("position", "length", "checksum")))


@dataclass(frozen=True)
class SealedPart:
    """One immutable LMDB file: the names of its content, and how it lies."""

    sha256: str
    index_sha256: str
    index: PartIndex


@dataclass(frozen=True)
class FieldTable:
    """How one field lies in every part; arrays have one entry a part unless said otherwise."""

    varying: NDArray[np.bool_]
    shape: Int64s  # (parts, 1 + the largest rank): the rank, then the sizes
    row_bytes: Int64s
    rows_per_block: Int64s
    elements_before: Int64s  # parts + 1
    rows_first_block: Int64s  # parts + 1: where the part's blocks begin in rows_position
    rows_position: Int64s  # one a block
    heap_first_block: Int64s  # parts + 1
    heap_position: Int64s  # one a heap block
    heap_length: Int64s
    heap_first_record: Int64s
    heap_first_element: Int64s

    def rows_length(self, records: Int64s) -> Int64s:
        """Return how many bytes each block of rows has, given how many records each part has."""
        blocks = np.diff(self.rows_first_block)
        found = np.repeat(self.rows_per_block * self.row_bytes, blocks)
        last = np.cumsum(blocks)[blocks > 0] - 1
        rest = records - (blocks - 1) * self.rows_per_block
        found[last] = (rest * self.row_bytes)[blocks > 0]
        return found

    def has_types(self) -> bool:
        """Return whether every array has the dtype and the dimensions that it should."""
        return all(
            array.dtype == (np.bool_ if name == "varying" else np.int64)
            and array.ndim == (2 if name == "shape" else 1)
            for name, array in vars(self).items()
        )


@dataclass(frozen=True)
class PartTable:
    """How every part lies: the one file that a reader needs besides the parts themselves."""

    sha256: Sequence[str]
    index_sha256: Sequence[str]
    size_bytes: Int64s
    first_record: Int64s  # parts + 1
    fields: tuple[FieldTable, ...]

    def __len__(self) -> int:
        return len(self.sha256)

    @property
    def records(self) -> int:
        """How many records all parts have."""
        return int(self.first_record[-1])

    @property
    def total_bytes(self) -> int:
        """The size of all parts together; added up so that it can't wrap, whatever the sizes."""
        return sum(self.size_bytes.tolist())

    def to_file(self) -> ArrayFile:
        """Return the table as the content of a ``.parts`` file."""
        arrays: dict[str, NDArray[Any]] = {
            "part.sha256": _names_to_array(self.sha256),
            "index.sha256": _names_to_array(self.index_sha256),
            "part.bytes": self.size_bytes,
            "part.first_record": self.first_record,
        }
        for number, field in enumerate(self.fields):
            for name, array in vars(field).items():
                arrays[f"{number}.{name}"] = array.view(np.uint8) if array.dtype == bool else array
        return ArrayFile(arrays, {"parts": 1, "container": CONTAINER, "fields": len(self.fields)})

    @staticmethod
    def from_file(file: ArrayFile, what: str) -> "PartTable":
        """Return the table that `to_file` described, its arrays views of the file.

        Raises:
            CacheFormatError: if it is none, naming `what`.
        """
        try:
            document, arrays = file.document, file.arrays
            if document["parts"] != 1 or document["container"] != CONTAINER:
                raise CacheFormatError(f"{what} needs {document['container']!r:.40}: upgrade yogadl")
            names = list(FieldTable.__dataclass_fields__)
            fields = []
            for number in range(document["fields"]):
                columns = {name: arrays[f"{number}.{name}"] for name in names}
                if columns["varying"].max(initial=0) > 1:
                    raise ValueError("neither true nor false")
                columns["varying"] = columns["varying"].view(bool)
                fields.append(FieldTable(**columns))
            table = PartTable(
                sha256=_Sums(arrays["part.sha256"]),
                index_sha256=_Sums(arrays["index.sha256"]),
                size_bytes=arrays["part.bytes"],
                first_record=arrays["part.first_record"],
                fields=tuple(fields),
            )
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, CacheFormatError):
                raise
            raise CacheFormatError(f"{what} is damaged: {error!r:.200}; build the dataset again") from error
        table._check(what)
        return table

    def _check(self, what: str) -> None:
        """Refuse positions that lie outside the files: a reader trusts them blindly afterwards."""
        parts = len(self)
        sound = (
            len(self.index_sha256) == parts
            and self.size_bytes.dtype == self.first_record.dtype == np.int64
            and self.size_bytes.shape == (parts,)
            and self.first_record.shape == (parts + 1,)
            and bool((self.first_record[1:] > self.first_record[:-1]).all())
            and self.first_record[0] == 0
            and bool((self.size_bytes > 0).all())
            and self.total_bytes < MAX_CACHE_BYTES
            and self._has_one_size_each()
            and all(self._is_sound(field) for field in self.fields)
            and self._has_room()
        )
        if not sound:
            raise CacheFormatError(
                f"{what} is damaged: its numbers contradict each other; build the dataset again"
            )

    def _has_one_size_each(self) -> bool:
        """Return whether parts of the same name have the same size."""
        sizes = dict(zip(self.sha256, self.size_bytes.tolist(), strict=True))
        return len(sizes) == len(self) or [sizes[name] for name in self.sha256] == self.size_bytes.tolist()

    def _has_room(self) -> bool:
        """Return whether the parts have room for all blocks, none of which shares its bytes with another."""
        records = np.diff(self.first_record).astype(np.float64)
        lengths: list[NDArray[Any]] = [records * field.row_bytes for field in self.fields]
        lengths += [field.heap_length for field in self.fields]
        blocks = sum(len(field.rows_position) + len(field.heap_position) for field in self.fields)
        return _have_room(lengths, self.total_bytes, blocks)

    def _is_sound(self, field: FieldTable) -> bool:
        parts, records = len(self), np.diff(self.first_record)
        if not field.has_types():
            return False
        heap = len(field.heap_position)
        lengths = (field.varying, field.row_bytes, field.rows_per_block, field.shape)
        bounds = (field.rows_first_block, field.heap_first_block, field.elements_before)
        of_heap = (field.heap_length, field.heap_first_record, field.heap_first_element)
        if any(len(array) != parts for array in lengths) or any(len(array) != parts + 1 for array in bounds):
            return False
        if any(len(array) != heap for array in of_heap):
            return False
        if not 1 <= field.shape.shape[1] <= 1 + MAX_DIMENSIONS:
            return False
        if parts == 0:
            return True
        # With both below 2**31 no product of theirs overflows.
        if not (_lie_in(field.row_bytes, 0, _MAX_ROW) and _lie_in(field.rows_per_block, 1, _MAX_ROW)):
            return False
        if not _count_to(field.rows_first_block, len(field.rows_position)):
            return False
        if not _count_to(field.heap_first_block, heap):
            return False
        if not _count_to(field.elements_before, field.elements_before[-1]):
            return False
        blocks = np.where(field.row_bytes > 0, -(-records // field.rows_per_block), 0)
        if not np.array_equal(np.diff(field.rows_first_block), blocks):
            return False
        ends = np.repeat(self.size_bytes, blocks)
        heap_ends = np.repeat(self.size_bytes, np.diff(field.heap_first_block))
        return bool(
            (field.rows_position >= 0).all()
            and (field.rows_position <= ends - field.rows_length(records)).all()
            # Numbers are gathered as such: from elsewhere, others than these bytes would be read.
            and not (field.rows_position & 7).any()
            and (field.heap_position >= 0).all()
            and (field.heap_length >= 0).all()
            and (field.heap_position <= heap_ends - field.heap_length).all()
        )


def _is_number(number: object, end: int) -> bool:
    return type(number) is int and 0 <= number < end


def _is_row(array: NDArray[Any], dtype: Any, length: int) -> bool:  # dtype: whatever numpy takes for one
    return array.dtype == dtype and array.shape == (length,)


def _lie_in(numbers: Int64s, least: int, end: int) -> bool:
    return bool(((least <= numbers) & (numbers < end)).all())


def _have_room(lengths: Sequence[NDArray[Any]], size_bytes: int, blocks: int) -> bool:
    """Return whether blocks of these lengths together, each on pages of its own, fit into so many bytes.

    Else the same bytes could be those of any number of records, and a small file fill all memory.
    """
    # As floats: they can't wrap, and are exact as far as sizes go.
    used_bytes = sum(float(length.sum(dtype=np.float64)) for length in lengths)
    return blocks * LEAST_PAGE_BYTES <= size_bytes and used_bytes <= size_bytes


def _count_to(bounds: Int64s, end: int) -> bool:
    """Return whether these are the bounds of runs, some perhaps empty, that make up ``range(end)``."""
    return bounds[0] == 0 and bounds[-1] == end and bool((bounds[:-1] <= bounds[1:]).all())


def join_parts(parts: Sequence[SealedPart]) -> PartTable:
    """Return the table of these parts, in this order."""
    indexes = [part.index for part in parts]
    field_count = len(indexes[0].fields) if indexes else 0
    return PartTable(
        sha256=tuple(part.sha256 for part in parts),
        index_sha256=tuple(part.index_sha256 for part in parts),
        size_bytes=np.array([index.size_bytes for index in indexes], np.int64),
        first_record=_before([index.records for index in indexes]),
        fields=tuple(
            _join_field([index.fields[number] for index in indexes]) for number in range(field_count)
        ),
    )


def _join_field(fields: Sequence[FieldIndex]) -> FieldTable:
    rank = max(len(field.shape) for field in fields)
    shapes = [[len(field.shape), *field.shape] + [0] * (rank - len(field.shape)) for field in fields]
    return FieldTable(
        varying=np.array([field.stored == "varying" for field in fields], bool),
        shape=np.array(shapes, np.int64),
        row_bytes=np.array([field.row_bytes for field in fields], np.int64),
        rows_per_block=np.array([field.rows_per_block for field in fields], np.int64),
        elements_before=_before([field.elements for field in fields]),
        rows_first_block=_before([len(field.rows.position) for field in fields]),
        rows_position=np.concatenate([field.rows.position for field in fields]),
        heap_first_block=_before([len(field.heap.position) for field in fields]),
        heap_position=np.concatenate([field.heap.position for field in fields]),
        heap_length=np.concatenate([field.heap.length for field in fields]),
        heap_first_record=np.concatenate([field.heap_first_record for field in fields]),
        heap_first_element=np.concatenate([field.heap_first_element for field in fields]),
    )


def _before(counts: Sequence[int]) -> Int64s:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.array(counts, np.int64))])


def _names_to_array(names: Sequence[str]) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(map(bytes.fromhex, names)), np.uint8).reshape(len(names), 32)


class _Sums(Sequence[str]):
    """Give sha256 sums as text, each made when it is asked for: together they need more than the rest."""

    def __init__(self, array: NDArray[Any]) -> None:
        if array.dtype != np.uint8 or array.ndim != 2 or array.shape[1] != 32:
            raise ValueError("not sha256 sums")
        self._array = array

    def __len__(self) -> int:
        return len(self._array)

    @overload
    def __getitem__(self, number: int) -> str: ...

    @overload
    def __getitem__(self, number: slice) -> Sequence[str]: ...

    def __getitem__(self, number: int | slice) -> str | Sequence[str]:
        found = self._array[number]
        return found.tobytes().hex() if found.ndim == 1 else _Sums(found)
