"""Describe where the blocks of all parts of a cache lie: the part table, a small file of named arrays."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, overload

import numpy as np
from numpy.typing import NDArray

from yogadl._core.frozen import frozen, parse_json
from yogadl._core.protocols import Int64s
from yogadl._core.spec import MAX_DIMENSIONS
from yogadl._format.codec import CODECS, MOST_RATIO
from yogadl._format.files import FOREIGN, NO_FOREIGN, Files, ForeignFiles
from yogadl.errors import CacheFormatError

# Store named arrays in one small file: part indexes and part tables.
#
# The layout is that of safetensors (a JSON header, then the arrays back to back), so that any reader of
# safetensors can open the file.


_CODES = {"I64": "<i8", "U64": "<u8", "U8": "|u1"}
_ALIGNMENT = 64
_MAX_HEADER_BYTES = 2**24


@frozen
class ArrayFile:
    """Arrays by name, and a JSON document with them."""

    arrays: Mapping[str, NDArray[Any]]
    document: dict[str, Any]

    def to_bytes(self) -> bytes:
        """Return the file's bytes; the same content gives the same bytes."""
        header: dict[str, Any] = {"__metadata__": {"yogadl": json.dumps(self.document, sort_keys=True)}}
        pieces = []
        position = 0
        for name, array in sorted(self.arrays.items()):
            code = next(code for code, dtype in _CODES.items() if array.dtype == np.dtype(dtype))
            end = position + array.nbytes
            header[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": [position, end]}
            pieces.append(array.tobytes())
            position = end
        text = json.dumps(header, separators=(",", ":")).encode()
        # Padding the header with spaces puts the arrays on an aligned position.
        text += b" " * (-(8 + len(text)) % _ALIGNMENT)
        return b"".join([len(text).to_bytes(8, "little"), text, *pieces])

    @staticmethod
    def from_buffer(buffer: Any, what: str) -> "ArrayFile":  # any object with the buffer protocol
        """Return the arrays as read-only views of `buffer`, checked against its size.

        Raises:
            CacheFormatError: if the buffer holds no such file; the error names `what`.
        """
        view = memoryview(buffer)
        try:
            length = int.from_bytes(view[:8], "little")
            if len(view) < 8 or not 2 <= length <= len(view) - 8:
                raise ValueError("it is cut short")
            if length > _MAX_HEADER_BYTES:
                raise ValueError(f"its header has {length} bytes, more than {_MAX_HEADER_BYTES}")
            text = bytes(view[8 : 8 + length])
            header = parse_json(text)
            document = parse_json(header.pop("__metadata__")["yogadl"])
            body = view[8 + length :]
            arrays = {name: _array(entry, body) for name, entry in header.items()}
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
            raise CacheFormatError(
                f"{what} is damaged: {error!s:.200}; build the dataset again, or copy it anew"
            ) from error
        return ArrayFile(arrays, document)


def _array(entry: dict[str, Any], body: memoryview) -> NDArray[Any]:
    start, end = entry["data_offsets"]
    if not 0 <= start <= end <= len(body):
        raise ValueError("it is cut short")
    shape = entry["shape"]
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError("an array has no shape")
    array = np.frombuffer(body[start:end], _CODES[entry["dtype"]]).reshape(shape)
    array.flags.writeable = False
    return array


CONTAINER: Final = "lmdb-1"
CONTAINERS: Final = (CONTAINER, FOREIGN)
# The form of a part table, and of one in which a field of a part has a codec, or foreign values.
_PLAIN: Final = 1
_CODED: Final = 2
# Limits on a part table or an index, whose numbers are trusted once checked. No machine has more addresses
# for all parts together than MAX_CACHE_BYTES. The product of a row size and the rows of a block, both below
# MAX_ROW, does not overflow. Each block lies on pages of its own.
MAX_CACHE_BYTES: Final = 2**46
MAX_RECORDS: Final = 2**62
MAX_ROW: Final = 2**31
MOST_EMPTY_RECORDS: Final = 2**20  # of a part whose records have no bytes
LEAST_PAGE_BYTES: Final = 4096
MAX_FOREIGN_BLOCK_BYTES: Final = 2**32  # an entry has 32 bits for the place in a block
_SUMS_AT_ONCE: Final = 1024


# A table of foreign files may be larger than the parts permit: it has a line for each file, and its blocks.
MOST_FOREIGN_TABLE_BYTES: Final = 2**32


def most_table_bytes(fields: int, parts: int, size_bytes: int, *, is_foreign: bool = False) -> int:
    """Return the largest size of the table of this many parts, which have this many bytes together."""
    if is_foreign:
        return MOST_FOREIGN_TABLE_BYTES
    header_bytes = 4096 * (1 + fields)
    return header_bytes + (parts + 1) * (128 + 512 * fields) + 40 * (size_bytes // LEAST_PAGE_BYTES)


@frozen
class FieldTable:
    """The layout of one field in every part; arrays have one entry a part unless commented otherwise."""

    varying: NDArray[np.bool_]
    shape: Int64s  # (parts, 1 + the largest rank): the rank, then the sizes
    row_bytes: Int64s
    rows_per_block: Int64s
    elements_before: Int64s  # parts + 1
    rows_first_block: Int64s  # parts + 1: the part's first block in rows_position
    rows_position: Int64s  # one for each block
    heap_first_block: Int64s  # parts + 1
    heap_position: Int64s  # one for each heap block
    heap_length: Int64s
    heap_first_record: Int64s
    heap_first_element: Int64s
    codec: Int64s  # the number of the codec, as in `CODECS`
    dictionary: Int64s  # the number of the dictionary, or -1 without one
    raw_bytes: Int64s  # the bytes of all values, if they have a codec or are foreign
    heap_file: Int64s  # one for each heap block: the number of the foreign file that it lies in; -1: the part

    def heap_bytes(self) -> Int64s:
        """Return the size of each part's heap."""
        found: Int64s = np.diff(running_sums(self.heap_length)[self.heap_first_block])
        return found

    @property
    def are_foreign(self) -> NDArray[np.bool_]:
        """Whether the heap of each part lies in foreign files."""
        if not len(self.heap_file) or self.heap_file.max() < 0:
            return np.broadcast_to(np.zeros(1, bool), self.varying.shape)
        return self.foreign_blocks() > 0

    def foreign_blocks(self) -> Int64s:
        """Return the number of each part's heap blocks that lie in foreign files."""
        found: Int64s = np.diff(running_sums((self.heap_file >= 0).astype(np.int64))[self.heap_first_block])
        return found

    def value_bytes(self) -> Int64s:
        """Return the size of the values of each part's heap, as they are read."""
        return np.where((self.codec > 0) | self.are_foreign, self.raw_bytes, self.heap_bytes())

    def sizes(self, records: Int64s) -> tuple[int, int]:
        """Return the bytes that the field takes, and those of its values, given each part's records."""
        stored = int(self.rows_length(records).sum()) + int(self.heap_length[self.heap_file < 0].sum())
        raw = np.where(self.varying, self.value_bytes(), records * self.row_bytes)
        return stored, int(raw.sum())

    def rows_length(self, records: Int64s) -> Int64s:
        """Return the bytes of each block of rows, given the number of records of each part."""
        blocks = np.diff(self.rows_first_block)
        found = np.repeat(self.rows_per_block * self.row_bytes, blocks)
        last = np.cumsum(blocks)[blocks > 0] - 1
        rest = records - (blocks - 1) * self.rows_per_block
        found[last] = (rest * self.row_bytes)[blocks > 0]
        return found

    def has_types(self) -> bool:
        """Return whether every array has the right dtype and number of dimensions."""
        return all(
            array.dtype == (np.bool_ if name == "varying" else np.int64)
            and array.ndim == (2 if name == "shape" else 1)
            for name, array in vars(self).items()
        )


@frozen
class PartTable:
    """The layout of every part: the one file that a reader needs besides the parts themselves."""

    sha256: Sequence[str]
    index_sha256: Sequence[str]
    size_bytes: Int64s
    first_record: Int64s  # parts + 1
    fields: tuple[FieldTable, ...]
    dictionaries: tuple[str, ...] = ()  # the names of the dictionaries that the fields refer to
    foreign: ForeignFiles = NO_FOREIGN

    def __len__(self) -> int:
        return len(self.sha256)

    @property
    def records(self) -> int:
        """The number of records of all parts."""
        return int(self.first_record[-1])

    @property
    def total_bytes(self) -> int:
        """The size of all parts together, added up without wrapping for any sizes."""
        if float(self.size_bytes.sum(dtype=np.float64)) < MAX_CACHE_BYTES:
            return int(self.size_bytes.sum())
        return sum(self.size_bytes.tolist())

    @cached_property
    def files(self) -> Files:
        """All files in which the values lie."""
        return Files(self.sha256, self.size_bytes, self.foreign)

    @property
    def container(self) -> str:
        """The name of the form in which the values lie."""
        return FOREIGN if len(self.foreign) else CONTAINER

    def index_names(self) -> Sequence[str]:
        """Return `index_sha256` with memory of its own."""
        return _copy_names(self.index_sha256)

    def compacted(self, index_sha256: Sequence[str]) -> "PartTable":
        """Return the same table in less memory, for a reader that holds it: without the file's bytes.

        Values that are the same for every part are kept once, and equal arrays become one.

        Args:
            index_sha256: The names of the indexes; few readers need them, so they may be read late.
        """
        kept: dict[tuple[Any, ...], NDArray[Any]] = {}

        def compact(array: NDArray[Any]) -> NDArray[Any]:
            if len(array) > 1 and bool((array[1:] == array[:1]).all()):
                return np.broadcast_to(array[:1].copy(), array.shape)
            looks = (array.dtype.char, array.shape, int(array.sum()))  # equal for equal arrays
            if looks not in kept or not np.array_equal(kept[looks], array):
                kept[looks] = array.copy()
                kept[looks].flags.writeable = False
            return kept[looks]

        return PartTable(
            sha256=_copy_names(self.sha256),
            index_sha256=index_sha256,
            size_bytes=compact(self.size_bytes),
            first_record=compact(self.first_record),
            fields=tuple(
                FieldTable(**{name: compact(array) for name, array in vars(field).items()})
                for field in self.fields
            ),
            dictionaries=self.dictionaries,
            foreign=self.foreign.copy(),
        )

    @cached_property
    def between_bytes(self) -> int:
        """The bytes between two values of a record in a foreign file, on average, such as headers of tar."""
        fields = [field for field in self.fields if field.are_foreign.any()]
        # Fields may share their blocks.
        blocks_bytes = max((int(field.heap_bytes().sum()) for field in fields), default=0)
        rest_bytes = blocks_bytes - sum(int(field.value_bytes().sum()) for field in fields)
        return max(0, rest_bytes // max(1, self.records * len(fields)))

    @property
    def codecs(self) -> list[str]:
        """The codec of each field; of a field that has one in some parts, that one."""
        return [CODECS[int(field.codec.max())] for field in self.fields]

    def to_file(self) -> ArrayFile:
        """Return the table as the content of a ``.parts`` file."""
        arrays: dict[str, NDArray[Any]] = {
            "part.sha256": _names_to_array(self.sha256),
            "index.sha256": _names_to_array(self.index_sha256),
            "part.bytes": self.size_bytes,
            "part.first_record": self.first_record,
        }
        is_foreign = len(self.foreign) > 0
        is_coded = is_foreign or any(field.codec.any() for field in self.fields)
        if is_coded:
            arrays["dictionary.sha256"] = _names_to_array(self.dictionaries)
        if is_foreign:
            arrays |= {f"foreign.{name}": getattr(self.foreign, name) for name in ("text", "ends")}
            arrays["foreign.bytes"] = self.foreign.size_bytes
        for number, field in enumerate(self.fields):
            for name, array in vars(field).items():
                if (is_coded or name not in OF_CODECS) and (is_foreign or name != _HEAP_FILE):
                    arrays[f"{number}.{name}"] = array.view(np.uint8) if array.dtype == bool else array
        form = _CODED if is_coded else _PLAIN
        return ArrayFile(arrays, {"parts": form, "container": self.container, "fields": len(self.fields)})

    @staticmethod
    def from_file(file: ArrayFile, what: str) -> "PartTable":
        """Return the table that a file of `to_file` describes; its arrays are views of the file.

        Raises:
            CacheFormatError: if the file describes no table; the error names `what`.
        """
        try:
            document, arrays = file.document, file.arrays
            form = document["parts"]
            container = document["container"]
            if container not in CONTAINERS:
                raise CacheFormatError(f"{what} needs {container!r:.40}: upgrade yogadl")
            if form not in (_PLAIN, _CODED) or (container == FOREIGN and form == _PLAIN):
                raise CacheFormatError(f"{what} has the form {form!r:.40}: upgrade yogadl")
            fields, foreign = [], NO_FOREIGN
            if container == FOREIGN:
                foreign = ForeignFiles(*(arrays[f"foreign.{name}"] for name in ("bytes", "text", "ends")))
            without = _without_codec(len(arrays["part.bytes"])) if form == _PLAIN else {}
            stored = [name for name in FieldTable.__dataclass_fields__ if name not in (*without, _HEAP_FILE)]
            for number in range(document["fields"]):
                columns = without | {name: arrays[f"{number}.{name}"] for name in stored}
                own = np.broadcast_to(np.full(1, -1, np.int64), columns["heap_position"].shape)
                columns[_HEAP_FILE] = arrays[f"{number}.{_HEAP_FILE}"] if container == FOREIGN else own
                if columns["varying"].max(initial=0) > 1:
                    raise ValueError(f"{number}.varying has a value that is neither 0 nor 1")
                columns["varying"] = columns["varying"].view(bool)
                fields.append(FieldTable(**columns))
            table = PartTable(
                sha256=_Sha256Names(arrays["part.sha256"]),
                index_sha256=_Sha256Names(arrays["index.sha256"]),
                size_bytes=arrays["part.bytes"],
                first_record=arrays["part.first_record"],
                fields=tuple(fields),
                dictionaries=tuple(_Sha256Names(arrays["dictionary.sha256"])) if form == _CODED else (),
                foreign=foreign,
            )
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, CacheFormatError):
                raise
            raise CacheFormatError(f"{what} is damaged: {error!r:.200}; build the dataset again") from error
        table._check(what)
        return table

    def _check(self, what: str) -> None:
        """Refuse positions that lie outside the files: readers don't check them afterwards."""
        parts = len(self)
        is_sound = (
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
        if not is_sound:
            raise CacheFormatError(
                f"{what} is damaged: its numbers contradict each other; build the dataset again"
            )

    def _has_one_size_each(self) -> bool:
        """Return whether parts with the same name have the same size."""
        assert isinstance(self.sha256, _Sha256Names)
        words = self.sha256.words()
        firsts = np.sort(words[0])  # np.unique would import modules of numpy that are not needed otherwise
        if (firsts[1:] != firsts[:-1]).all():
            return True
        order = np.lexsort(words)
        words, sizes = words[:, order], self.size_bytes[order]
        is_same = (words[:, 1:] == words[:, :-1]).all(axis=0)
        return bool((sizes[1:] == sizes[:-1])[is_same].all())

    def _has_room(self) -> bool:
        """Return whether the parts have room for all blocks, if no two blocks share bytes."""
        records = np.diff(self.first_record).astype(np.float64)
        lengths: list[NDArray[Any]] = [records * field.row_bytes for field in self.fields]
        own = [field.heap_length[field.heap_file < 0] for field in self.fields]
        lengths += own
        blocks = sum(len(field.rows_position) for field in self.fields) + sum(map(len, own))
        empty = ~np.any([field.row_bytes > 0 for field in self.fields], axis=0)
        if records[empty].max(initial=0) > MOST_EMPTY_RECORDS:
            return False
        return have_room(lengths, self.total_bytes, blocks)

    def _is_sound(self, field: FieldTable) -> bool:
        parts, records = len(self), np.diff(self.first_record)
        if not field.has_types():
            return False
        heap = len(field.heap_position)
        of_parts: tuple[NDArray[Any], ...] = (field.varying, field.row_bytes, field.rows_per_block)
        of_parts += (field.shape, field.codec, field.dictionary, field.raw_bytes)
        bounds = (field.rows_first_block, field.heap_first_block, field.elements_before)
        of_heap = (field.heap_length, field.heap_first_record, field.heap_first_element, field.heap_file)
        if any(len(array) != parts for array in of_parts) or any(len(array) != parts + 1 for array in bounds):
            return False
        if any(len(array) != heap for array in of_heap):
            return False
        if not 1 <= field.shape.shape[1] <= 1 + MAX_DIMENSIONS:
            return False
        if parts == 0:
            return True
        # The product of two numbers below 2**31 does not overflow.
        if not (are_in_range(field.row_bytes, 0, MAX_ROW) and are_in_range(field.rows_per_block, 1, MAX_ROW)):
            return False
        ends = (len(field.rows_position), heap, field.elements_before[-1])
        if not all(map(_are_bounds_of, bounds, ends)):
            return False
        blocks = np.where(field.row_bytes > 0, -(-records // field.rows_per_block), 0)
        if not np.array_equal(np.diff(field.rows_first_block), blocks):
            return False
        if not self._is_foreign_soundly(field) or not self._is_coded_soundly(field):
            return False
        row_ends = np.repeat(self.size_bytes, blocks)
        heap_ends = np.repeat(self.size_bytes, np.diff(field.heap_first_block))
        is_foreign = field.heap_file >= 0
        heap_ends[is_foreign] = self.foreign.size_bytes[field.heap_file[is_foreign]]
        return bool(
            (field.rows_position >= 0).all()
            and (field.rows_position <= row_ends - field.rows_length(records)).all()
            # Rows are gathered through typed views: an unaligned position would be rounded to other bytes.
            and not (field.rows_position & 7).any()
            and (field.heap_position >= 0).all()
            and (field.heap_length >= 0).all()
            and (field.heap_position <= heap_ends - field.heap_length).all()
        )

    def _is_foreign_soundly(self, field: FieldTable) -> bool:
        """Return whether each part's heap lies in the part, or in foreign files without sharing bytes."""
        if not are_in_range(field.heap_file, -1, len(self.foreign)):
            return False
        is_foreign = field.heap_file >= 0
        if not is_foreign.any():
            return True
        counts = field.foreign_blocks()
        are_foreign = counts > 0
        files, lengths = field.heap_file[is_foreign], field.heap_length[is_foreign]
        used_bytes = np.bincount(files, lengths, len(self.foreign))
        return bool(
            (counts[are_foreign] == np.diff(field.heap_first_block)[are_foreign]).all()
            and field.varying[are_foreign].all()
            and (field.codec[are_foreign] == 0).all()
            and (lengths < MAX_FOREIGN_BLOCK_BYTES).all()
            # A version may name a file in several parts: a version may have a part twice.
            and (used_bytes <= self.foreign.size_bytes.astype(float) * max(1, len(self))).all()
        )

    def _is_coded_soundly(self, field: FieldTable) -> bool:
        """Return whether each part's codec is known, and its values no larger than its heap can hold."""
        ratio = np.where(field.codec > 0, MOST_RATIO, field.are_foreign.astype(np.int64))
        return bool(
            are_in_range(field.codec, 0, len(CODECS))
            and are_in_range(field.dictionary, -1, len(self.dictionaries))
            and are_in_range(field.raw_bytes, 0, MAX_CACHE_BYTES)
            and field.varying[field.codec > 0].all()
            and (field.dictionary[field.codec == 0] == -1).all()
            and (field.raw_bytes <= field.heap_bytes() * ratio).all()
        )


# Only a field with a codec has these: arrays of a table that has any, facts of an index.
OF_CODECS: Final = ("codec", "dictionary", "raw_bytes")
_HEAP_FILE: Final = "heap_file"  # only a table with foreign files has it


def _without_codec(parts: int) -> dict[str, Int64s]:
    """Return the arrays of a field without a codec."""
    none = np.broadcast_to(np.zeros(1, np.int64), (parts,))
    return {"codec": none, "dictionary": none - 1, "raw_bytes": none}


def _are_bounds_of(bounds: Int64s, end: int) -> bool:
    """Return whether these are the bounds of runs, some perhaps empty, that make up ``range(end)``."""
    return bounds[0] == 0 and bounds[-1] == end and bool((bounds[:-1] <= bounds[1:]).all())


def running_sums(counts: Sequence[int] | Int64s) -> Int64s:
    """Return the sum of the counts before each one, and the sum of all."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.array(counts, np.int64))])


def runs_of(
    files: Int64s, positions: Int64s, lengths: Int64s, are_joined: bool | NDArray[np.bool_]
) -> tuple[Int64s, tuple[Int64s, Int64s, Int64s]]:
    """Return the runs of these ranges, in which each begins where the one before ends, and what begins each.

    `are_joined` tells of each range but the first whether it may be in a run with that before it.
    """
    follows = (files[1:] == files[:-1]) & (positions[1:] == positions[:-1] + lengths[:-1]) & are_joined
    firsts = np.flatnonzero(np.concatenate([[True], ~follows]))
    return firsts, (files[firsts], positions[firsts], np.add.reduceat(lengths, firsts))


def _names_to_array(names: Sequence[str]) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(map(bytes.fromhex, names)), np.uint8).reshape(len(names), 32)


def is_hash(name: str, digits: int) -> bool:
    """Return whether a name is a hash of `digits` hexadecimal digits."""
    return len(name) == digits and not name.strip("0123456789abcdef")


class _Sha256Names(Sequence[str]):
    """sha256 sums; the text of each is made when it is used, since all texts would take too much memory."""

    def __init__(self, array: NDArray[Any]) -> None:
        if array.dtype != np.uint8 or array.ndim != 2 or array.shape[1] != 32:
            raise ValueError("not sha256 sums")
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    def __iter__(self) -> Iterator[str]:
        for first in range(0, len(self.array), _SUMS_AT_ONCE):  # ten times as fast as one by one
            text = self.array[first : first + _SUMS_AT_ONCE].tobytes().hex()
            for start in range(0, len(text), 64):
                yield text[start : start + 64]

    def words(self) -> NDArray[np.uint64]:
        """Return each sum as four numbers, one a row."""
        return np.ascontiguousarray(self.array).view(np.uint64).T

    @overload
    def __getitem__(self, number: int) -> str: ...

    @overload
    def __getitem__(self, number: slice) -> Sequence[str]: ...

    def __getitem__(self, number: int | slice) -> str | Sequence[str]:
        found = self.array[number]
        return found.tobytes().hex() if found.ndim == 1 else _Sha256Names(found)


def _copy_names(names: Sequence[str]) -> Sequence[str]:
    return _Sha256Names(names.array.copy()) if isinstance(names, _Sha256Names) else names


class LateSha256Names(Sequence[str]):
    """sha256 sums like `_Sha256Names`, which are read when the first one is used.

    Args:
        count: The number of sums.
        read: Returns the sums.
    """

    def __init__(self, count: int, read: Callable[[], Sequence[str]]) -> None:
        self._count = count
        self._read = read
        self._found: Sequence[str] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, number: int) -> str: ...

    @overload
    def __getitem__(self, number: slice) -> Sequence[str]: ...

    def __getitem__(self, number: int | slice) -> str | Sequence[str]:
        if self._found is None:
            self._found = self._read()
        return self._found[number]


def are_in_range(numbers: Int64s, least: int, end: int) -> bool:
    """Return whether all numbers are at least `least` and below `end`."""
    return bool(((least <= numbers) & (numbers < end)).all())


def have_room(lengths: Sequence[NDArray[Any]], size_bytes: int, blocks: int) -> bool:
    """Return whether blocks of these lengths, each on pages of its own, fit into this many bytes together.

    If they shared bytes, a small file could hold any number of records, and fill all memory.
    """
    # The sums are floats, which can't wrap, and are exact for all possible sizes.
    used_bytes = sum(float(length.sum(dtype=np.float64)) for length in lengths)
    return blocks * LEAST_PAGE_BYTES <= size_bytes and used_bytes <= size_bytes
