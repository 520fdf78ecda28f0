"""Describe where the blocks of one part lie: the part's index."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from yogadl._core.frozen import frozen
from yogadl._core.protocols import Int64s
from yogadl._core.spec import MAX_DIMENSIONS
from yogadl._format.codec import CODECS, RAW
from yogadl._format.columns import PRIME, RunHash
from yogadl._format.files import FOREIGN, ForeignFile, ForeignFiles
from yogadl._format.table import (
    CONTAINER,
    MAX_CACHE_BYTES,
    MAX_FOREIGN_BLOCK_BYTES,
    MAX_RECORDS,
    MAX_ROW,
    MOST_EMPTY_RECORDS,
    OF_CODECS,
    ArrayFile,
    FieldTable,
    PartTable,
    are_in_range,
    have_room,
    is_hash,
    running_sums,
)
from yogadl.errors import CacheFormatError

# LMDB puts a 16-byte header before a value on pages of its own; with the header, a full heap block fills its
# pages.
PAGE_HEADER_BYTES: Final = 16
HEAP_BLOCK_BYTES: Final = 2**20 - PAGE_HEADER_BYTES
_ROW_BLOCK_BYTES: Final = 2**20
_NUMBERS: Final = ("row_bytes", "rows_per_block", "elements")  # the numbers of a `FieldIndex`


BlockKind = Literal["rows", "heap"]


def rows_per_block(row_bytes: int, most: int) -> int:
    """Return the number of rows in a block: a power of two, so that parts can end with blocks of all fields.

    Args:
        row_bytes: The bytes of one row.
        most: The largest number of rows, a power of two.
    """
    return min(most, 1 << max(0, (_ROW_BLOCK_BYTES // max(1, row_bytes)).bit_length() - 1))


@frozen
class BlockRanges:
    """The blocks of one field and kind in one part: their positions, lengths and checksums."""

    position: Int64s
    length: Int64s
    checksum: NDArray[np.uint64]

    def is_sound(self, size_bytes: int | Int64s) -> bool:
        """Return whether all arrays have the right type, and every block lies in a file of its size."""
        count = len(self.position) if self.position.ndim else 0
        return (
            _is_flat(self.position, np.int64, count)
            and _is_flat(self.length, np.int64, count)
            and _is_flat(self.checksum, np.uint64, count)
            and bool(((self.position >= 0) & (self.length >= 0)).all())
            and bool((self.length <= size_bytes).all())
            and bool((self.position <= size_bytes - self.length).all())
        )


@frozen
class FieldIndex:
    """The layout of one field in one part.

    Args:
        stored: ``"fixed"`` rows of the values themselves, or ``"varying"``: rows of entries, and a heap.
        shape: The shape of each value of fixed rows.
        row_bytes: The bytes of one row.
        rows_per_block: The number of rows in each block but the last.
        elements: The total number of elements that the values have along their first axis.
        rows: The blocks of rows.
        heap: The blocks of the heap, or no blocks for fixed rows.
        heap_first_record: The first record of each heap block.
        heap_first_element: The number of elements of this part before each heap block.
        codec: How the values in the heap are stored.
        dictionary: The name of the dictionary that they need, if any.
        raw_bytes: The bytes of all of these values, if they have a codec or are foreign.
        heap_file: The number of the foreign file of each heap block; no numbers if all lie in the part.
    """

    stored: Literal["fixed", "varying"]
    shape: tuple[int, ...]
    row_bytes: int
    rows_per_block: int
    elements: int
    rows: BlockRanges
    heap: BlockRanges
    heap_first_record: Int64s
    heap_first_element: Int64s
    codec: str = RAW
    dictionary: str = ""
    raw_bytes: int = 0
    heap_file: Int64s | None = None

    @property
    def is_foreign(self) -> bool:
        """Whether the heap lies in foreign files."""
        return self.heap_file is not None and len(self.heap_file) > 0

    @property
    def own_blocks(self) -> "Sequence[tuple[BlockKind, BlockRanges]]":
        """The blocks that lie in the part."""
        return (("rows", self.rows),) if self.is_foreign else (("rows", self.rows), ("heap", self.heap))

    def records_of(self, kind: BlockKind, block: int, records: int) -> range:
        """Return the records that have data in a block, given the number of records of the part."""
        if kind == "rows":
            start = block * self.rows_per_block
            return range(start, min(start + self.rows_per_block, records))
        starts = [*self.heap_first_record.tolist(), records]
        return range(starts[block], max(starts[block] + 1, starts[block + 1]))

    def is_sound(self, size_bytes: int, records: int, foreign: Sequence[ForeignFile]) -> bool:
        """Return whether all types are right, and all values fit a part of this size and record count."""
        numbers = (
            (self.row_bytes, MAX_ROW),
            (self.rows_per_block, MAX_ROW),
            (self.elements, 2**63),
            (self.raw_bytes, MAX_CACHE_BYTES),
            *((size, 2**63) for size in self.shape),
        )
        if not all(_is_number(number, end) for number, end in numbers) or self.rows_per_block < 1:
            return False
        if self.stored not in ("fixed", "varying") or len(self.shape) > MAX_DIMENSIONS:
            return False
        dictionary: object = self.dictionary
        is_name = isinstance(dictionary, str) and (not dictionary or is_hash(dictionary, 64))
        if self.codec not in CODECS or not is_name:
            return False
        of_heap = (self.heap_first_record, self.heap_first_element)
        if not all(_is_flat(array, np.int64, len(self.heap.position)) for array in of_heap):
            return False
        heap_bytes: int | Int64s = size_bytes
        if self.heap_file is not None:
            is_numbered = _is_flat(self.heap_file, np.int64, len(self.heap.position))
            if not is_numbered or not are_in_range(self.heap_file, 0, len(foreign)):
                return False
            heap_bytes = np.array([file.size_bytes for file in foreign], np.int64)[self.heap_file]
            lengths = self.heap.length  # the file may be larger than a block
            if not (
                _is_flat(lengths, np.int64, len(self.heap_file))
                and are_in_range(lengths, 0, MAX_FOREIGN_BLOCK_BYTES)
            ):
                return False
        blocks = -(-records // self.rows_per_block) if self.row_bytes else 0
        return (
            self.rows.is_sound(size_bytes)
            and self.heap.is_sound(heap_bytes)
            and len(self.rows.position) == blocks
        )


@frozen
class PartIndex:
    """The layout of a part in its file, and the hash of its records."""

    size_bytes: int
    run: RunHash
    fields: tuple[FieldIndex, ...]
    files: tuple[ForeignFile, ...] = ()  # the foreign files that its fields number
    is_weak: bool = False  # whether the hash is of places, as the bytes of foreign files were not read

    @property
    def records(self) -> int:
        """The number of records of the part."""
        return self.run.records

    def to_file(self) -> ArrayFile:
        """Return the index as the content of an ``.idx`` file."""
        arrays: dict[str, NDArray[Any]] = {}
        fields = []
        for number, field in enumerate(self.fields):
            for kind, blocks in (("rows", field.rows), ("heap", field.heap)):
                for name, array in vars(blocks).items():
                    arrays[f"{number}.{kind}.{name}"] = array
            arrays[f"{number}.heap.first_record"] = field.heap_first_record
            arrays[f"{number}.heap.first_element"] = field.heap_first_element
            if field.heap_file is not None:
                arrays[f"{number}.heap.file"] = field.heap_file
            facts = {name: getattr(field, name) for name in _NUMBERS}
            if field.codec != RAW or field.heap_file is not None:
                facts |= {name: getattr(field, name) for name in OF_CODECS}
            fields.append({"stored": field.stored, "shape": list(field.shape), **facts})
        document: dict[str, Any] = {
            "index": 1,
            "container": FOREIGN if self.files else CONTAINER,
            "bytes": self.size_bytes,
            "records": self.run.records,
            "hash": self.run.value,
            "fields": fields,
        }
        if self.files:
            document["foreign"] = [[file.address, file.size_bytes, file.tag] for file in self.files]
            document["weak"] = self.is_weak
        return ArrayFile(arrays, document)

    @staticmethod
    def from_file(file: ArrayFile, what: str) -> "PartIndex":
        """Return the index that a file of `to_file` describes.

        Raises:
            CacheFormatError: if the file describes no index; the error names `what`.
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
                    **{name: entry[name] for name in _NUMBERS},
                    rows=_read_block_ranges(file, f"{number}.rows"),
                    heap=_read_block_ranges(file, f"{number}.heap"),
                    heap_first_record=file.arrays[f"{number}.heap.first_record"],
                    heap_first_element=file.arrays[f"{number}.heap.first_element"],
                    **{name: entry[name] for name in OF_CODECS if name in entry},
                    heap_file=file.arrays.get(f"{number}.heap.file"),
                )
                for number, entry in enumerate(document["fields"])
            )
            run = RunHash(document["records"], document["hash"])
            files = tuple(ForeignFile.from_json(entry, what) for entry in document.get("foreign", ()))
            index = PartIndex(document["bytes"], run, fields, files, document.get("weak", False))
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
        """Return whether all values have the right type, and the blocks lie in the part without overlap."""
        numbers = (
            (self.size_bytes, MAX_CACHE_BYTES),
            (self.run.records, MAX_RECORDS),
            (self.run.value, PRIME),
        )
        if not all(_is_number(number, end) for number, end in numbers):
            return False
        if not all(field.is_sound(self.size_bytes, self.run.records, self.files) for field in self.fields):
            return False
        is_weak: object = self.is_weak
        if type(is_weak) is not bool:
            return False
        if self.run.records > MOST_EMPTY_RECORDS and not any(field.row_bytes for field in self.fields):
            return False
        lengths = [blocks.length for field in self.fields for _, blocks in field.own_blocks]
        return have_room(lengths, self.size_bytes, sum(map(len, lengths)))


def _read_block_ranges(file: ArrayFile, prefix: str) -> BlockRanges:
    return BlockRanges(*(file.arrays[f"{prefix}.{name}"] for name in ("position", "length", "checksum")))


@frozen
class SealedPart:
    """One immutable LMDB file: its sha256, that of its index, and the index."""

    sha256: str
    index_sha256: str
    index: PartIndex


def _is_number(number: object, end: int) -> bool:
    return type(number) is int and 0 <= number < end


def _is_flat(array: NDArray[Any], dtype: Any, length: int) -> bool:  # dtype: anything numpy accepts as one
    return array.dtype == dtype and array.shape == (length,)


def join_parts(parts: Sequence[SealedPart]) -> PartTable:
    """Return the part table of these parts, in this order."""
    indexes = [part.index for part in parts]
    field_count = len(indexes[0].fields) if indexes else 0
    names = dict.fromkeys(field.dictionary for index in indexes for field in index.fields)
    dictionaries = [name for name in names if name]
    numbers = {name: number for number, name in enumerate(dictionaries)} | {"": -1}
    files = {file: 0 for index in indexes for file in index.files}
    for number, file in enumerate(files):
        files[file] = number
    numbered = [np.array([files[file] for file in index.files], np.int64) for index in indexes]
    return PartTable(
        sha256=tuple(part.sha256 for part in parts),
        index_sha256=tuple(part.index_sha256 for part in parts),
        size_bytes=np.array([index.size_bytes for index in indexes], np.int64),
        first_record=running_sums([index.records for index in indexes]),
        fields=tuple(
            _join_field([index.fields[number] for index in indexes], numbers, numbered)
            for number in range(field_count)
        ),
        dictionaries=tuple(dictionaries),
        foreign=ForeignFiles.of(files),
    )


def _join_field(
    fields: Sequence[FieldIndex], dictionaries: Mapping[str, int], files: Sequence[Int64s]
) -> FieldTable:
    rank = max(len(field.shape) for field in fields)
    shapes = [[len(field.shape), *field.shape] + [0] * (rank - len(field.shape)) for field in fields]
    heap_files = [
        np.full(len(field.heap.position), -1, np.int64)
        if field.heap_file is None
        else of_part[field.heap_file]
        for field, of_part in zip(fields, files, strict=True)
    ]
    return FieldTable(
        varying=np.array([field.stored == "varying" for field in fields], bool),
        shape=np.array(shapes, np.int64),
        row_bytes=np.array([field.row_bytes for field in fields], np.int64),
        rows_per_block=np.array([field.rows_per_block for field in fields], np.int64),
        elements_before=running_sums([field.elements for field in fields]),
        rows_first_block=running_sums([len(field.rows.position) for field in fields]),
        rows_position=np.concatenate([field.rows.position for field in fields]),
        heap_first_block=running_sums([len(field.heap.position) for field in fields]),
        heap_position=np.concatenate([field.heap.position for field in fields]),
        heap_length=np.concatenate([field.heap.length for field in fields]),
        heap_first_record=np.concatenate([field.heap_first_record for field in fields]),
        heap_first_element=np.concatenate([field.heap_first_element for field in fields]),
        codec=np.array([CODECS.index(field.codec) for field in fields], np.int64),
        dictionary=np.array([dictionaries[field.dictionary] for field in fields], np.int64),
        raw_bytes=np.array([field.raw_bytes for field in fields], np.int64),
        heap_file=np.concatenate(heap_files),
    )
