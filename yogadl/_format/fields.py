"""Gather one field of a batch, from rows of one size or from values with an entry each.

Flat and arithmetic on purpose: benchmarks/gather.py measures it.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from yogadl._core.memory import JOINED_BYTES, JoinedValues
from yogadl._core.protocols import Int64s, Memory
from yogadl._core.spec import BYTES, JSON, MAX_DIMENSIONS, OBJECT, STR, Leaf, is_too_large
from yogadl._format.codec import MOST_RATIO
from yogadl._format.rows import KEPT_ROW_BYTES, AddressRange, Parts, StoredRows, row_step
from yogadl._format.table import FieldTable, runs_of
from yogadl.errors import CacheFormatError

# An entry consists of 32-bit words: the heap block, the start in it, the length there; if the field has a
# codec, the length of the value; then, unless every value is a scalar, the rank of the value and the sizes of
# its shape. An unknown rank gets room for this many sizes.
ENTRY_WORDS: Final = 3
MAX_UNKNOWN_RANK: Final = 8
ENTRY_DTYPE: Final = np.dtype("<u4")


def entry_words(leaf: Leaf) -> int:
    """Return the number of 32-bit words in the entry of a value of this leaf."""
    if leaf.shape is None:
        return ENTRY_WORDS + 1 + MAX_UNKNOWN_RANK
    return ENTRY_WORDS + 1 + len(leaf.shape) if leaf.shape else ENTRY_WORDS


def decode_value(leaf: Leaf, data: Any, shape: tuple[int, ...]) -> Any:  # data: a buffer
    """Return the value of a bytes or str leaf from its bytes."""
    if shape == ():
        return bytes(data) if leaf.dtype == BYTES else str(data, "utf-8", "surrogatepass")
    count = int(np.prod(shape, dtype=np.int64))
    lengths = np.frombuffer(data, ENTRY_DTYPE, count).tolist()
    items, start = np.empty(count, object), 4 * count
    for i, length in enumerate(lengths):
        items[i] = decode_value(leaf, data[start : start + length], ())
        start += length
    return items.reshape(shape)


def _are_readable(leaf: Leaf, layouts: NDArray[np.int64]) -> bool:
    """Return whether parts may store values of this leaf in all of these layouts.

    A layout is a row of an array: the codec, whether the values are foreign, whether they vary in size, the
    bytes of a row, the rank, the sizes.
    """
    for codec, is_foreign, is_varying, row_bytes, rank, *sizes in layouts.tolist():
        if is_varying:
            # An entry without a rank belongs to a scalar, and numeric scalars are stored as fixed rows.
            words = range(ENTRY_WORDS + leaf.is_numeric, ENTRY_WORDS + 2 + MAX_DIMENSIONS)
            is_readable = row_bytes % 4 == 0 and row_bytes // 4 - (codec > 0) in words
            is_readable = is_readable and (codec > 0 or is_foreign or not leaf.is_fixed)
        else:
            is_shape = 0 <= rank <= len(sizes) and min(sizes[:rank], default=0) >= 0
            is_shape = is_shape and not is_too_large(tuple(sizes[:rank]))
            value_bytes = math.prod(sizes[:rank]) * leaf.numpy_dtype.itemsize
            is_readable = leaf.is_numeric and is_shape and value_bytes == row_bytes
        if not is_readable:
            return False
    return True


# The positions of a field's blocks are kept in memory up to 8 MiB, enough for about a terabyte of cache.
_MAX_FLAT_BLOCKS: Final = 2**20
# numpy gathers in place only from a contiguous array of items. A row is gathered as several such items,
# called pieces, if these are at least this large: with smaller ones it takes longer than a copy
# (benchmarks/tf_data.py).
_LEAST_PIECE_BYTES: Final = 512
# Rows at least this large are copied one by one, which is faster than any pieces (benchmarks/tf_data.py).
_WHOLE_ROW_BYTES: Final = 32_768
# At most so many bytes of decoded values wait for the call that reads on in them.
_KEPT_VALUES_BYTES: Final = 2**25


def _row_positions(table: FieldTable, rows: StoredRows, row_bytes: int) -> Int64s:
    """Return the position of each row in its part's file."""
    parts, numbers = rows.located()
    per_block = table.rows_per_block[parts]
    blocks = numbers // per_block
    within = numbers - blocks * per_block
    found: Int64s = table.rows_position[blocks + table.rows_first_block[parts]] + within * row_bytes
    return found


class BlockPositions(NamedTuple):
    """The positions of a field's blocks in a window, and the rows of each but the last, a power of 2."""

    positions: Int64s
    rows: int


class ValueBytes(NamedTuple):
    """Where the values of some rows lie.

    Args:
        files: The number of each value's file if they are read, or ``None`` if they are mapped.
        starts: The position of each in its file; or in the window.
        lengths: The bytes of each.
    """

    files: Int64s | None
    starts: Int64s
    lengths: Int64s


class FixedField:
    """A field whose values all have the same size: its column is one gather.

    If every part but the last ends with a full block, the blocks of all parts are numbered as if they were
    those of one part, and a position takes a shift, a look-up and a multiplication.

    Args:
        leaf: The field's leaf.
        parts: The parts of the cache; every window maps them at the same offsets.
        number: The number of the field.
    """

    def __init__(self, leaf: Leaf, parts: Parts, number: int) -> None:
        assert leaf.shape is not None
        self._shape = tuple(size or 0 for size in leaf.shape)
        self._dtype = leaf.numpy_dtype
        self._row_bytes = leaf.row_bytes
        self._keeps_pages = number in parts.kept.rows
        self._positions: Int64s | None = None
        self._piece: tuple[int, int] | None = None
        table, window = parts.table, parts.window
        if not len(table) or not self._row_bytes:
            return
        self._table = field = table.fields[number]
        if field.varying.any() or not (field.row_bytes == self._row_bytes).all():
            raise CacheFormatError(
                "a field of fixed shape is not stored as rows of that size; build the dataset again"
            )
        per_block = int(field.rows_per_block[0])
        self._shift = per_block.bit_length() - 1
        self._mask = per_block - 1
        self._stride = self._row_bytes // row_step(self._row_bytes)
        if (
            per_block == 1 << self._shift
            and (field.rows_per_block == per_block).all()
            and not (table.first_record[:-1] & self._mask).any()
            and parts.are_all_mappable
            and len(field.rows_position) <= _MAX_FLAT_BLOCKS
        ):
            offsets = np.repeat(window.offset[: len(table)], np.diff(field.rows_first_block))
            self._positions = (field.rows_position + offsets) // row_step(self._row_bytes)

    def empty(self) -> NDArray[Any]:
        """Return the column of no rows."""
        return np.empty((0, *self._shape), self._dtype)

    def gather(self, rows: StoredRows, memory: Memory | None = None) -> NDArray[Any]:
        """Return the column of these rows, as a new array."""
        if not self._row_bytes:
            return np.empty((len(rows.indices), *self._shape), self._dtype)
        where = self._view_indices(rows)
        if memory is not None and where is not None:
            if self._row_bytes >= _WHOLE_ROW_BYTES:
                return self._gather_rows(rows.window, where, memory)
            if self._row_bytes >= _LEAST_PIECE_BYTES:
                step, phase = self._pieces()
                if step >= _LEAST_PIECE_BYTES:
                    return self._gather_pieces(rows.window, where, memory, step, phase)
        if where is None:
            positions = _row_positions(self._table, rows, self._row_bytes)
            found = rows.gather(positions, self._row_bytes, keeps_pages=self._keeps_pages)
        else:
            found = rows.window.rows(self._row_bytes)[0][where]
        column: NDArray[Any] = found.view(self._dtype)
        return column.reshape(len(rows.indices), *self._shape) if self._shape else column

    def announce(self, rows: StoredRows, *, entries: bool = False) -> None:
        """Begin to read the rows that are not on this machine; fixed fields have no entries."""
        if self._row_bytes and not entries:
            positions = _row_positions(self._table, rows, self._row_bytes)
            rows.announce(positions, np.full(len(positions), self._row_bytes), keeps_pages=self._keeps_pages)

    def blocks(self) -> BlockPositions | None:
        """Return the blocks in the window, or None if not all parts have the same layout."""
        if self._positions is None:
            return None
        return BlockPositions(self._positions * (self._row_bytes // self._stride), self._mask + 1)

    def _pieces(self) -> tuple[int, int]:
        """Return the size of a piece, the largest that all rows consist of, and the first piece's start."""
        if self._piece is None:
            assert self._positions is not None
            first = int(self._positions[0])
            step = int(np.gcd.reduce(self._positions - first, initial=self._row_bytes))
            self._piece = step, first % step
        return self._piece

    def _gather_rows(self, window: AddressRange, where: Int64s, memory: Memory) -> NDArray[Any]:
        """Gather rows in place, one by one; numpy copies each without holding Python's lock."""
        column = memory.array((len(where), *self._shape), self._dtype)
        found = [window.bytes[start : start + self._row_bytes] for start in where.tolist()]
        np.concatenate(found, out=column.reshape(-1).view(np.uint8))
        return column

    def _gather_pieces(
        self, window: AddressRange, where: Int64s, memory: Memory, step: int, phase: int
    ) -> NDArray[Any]:
        """Gather rows in place, as pieces of `step` bytes; numpy always releases Python's lock for this."""
        column = memory.array((len(where), *self._shape), self._dtype)
        pieces = (where - phase) // step
        if step < self._row_bytes:
            pieces = (pieces[:, None] + np.arange(self._row_bytes // step)).reshape(-1)
        # "clip" changes no index here. numpy's default mode, "raise", would gather into a temporary array.
        out = column.reshape(-1).view(f"V{step}")
        np.take(window.pieces(step, phase), pieces, out=out, mode="clip")
        return column

    def _view_indices(self, rows: StoredRows) -> Int64s | None:
        """Return the rows' indices in the window's view of rows of this size.

        Return None if not all parts are mapped, or the blocks of all parts can't be numbered as one part's.
        """
        window = rows.window
        if self._positions is None or not (window.all_mapped or window.map_few()):
            return None
        where: Int64s = rows.indices & self._mask
        if self._stride != 1:
            where *= self._stride
        where += self._positions.take(rows.indices >> self._shift)
        return where

    def span(self, rows: StoredRows, least_bytes: int) -> ValueBytes | None:
        """Return where these rows lie, or None for rows below `least_bytes`."""
        if self._row_bytes < least_bytes:
            return None
        where = self._view_indices(rows)
        if where is None:
            where = _row_positions(self._table, rows, self._row_bytes) + rows.window.offset[rows.located()[0]]
        return ValueBytes(None, where, np.full(len(where), self._row_bytes))


class Entries(NamedTuple):
    """The entries of some values.

    Args:
        blocks: The heap block of each value, counted in its part.
        files: The number of the file that it lies in: its part, or a foreign file.
        positions: Its position in that file.
        stored: The bytes that it takes there.
        lengths: Its own bytes: as many, unless it is compressed.
        shapes: Its rank and sizes; no columns if all values are scalars.
    """

    blocks: Int64s
    files: Int64s
    positions: Int64s
    stored: Int64s
    lengths: Int64s
    shapes: NDArray[np.uint32]


class VaryingField:
    """A field whose values differ in size: an entry for each value gives its place in the heap."""

    def __init__(self, leaf: Leaf, parts: Parts, number: int) -> None:
        table = parts.table
        self._leaf = leaf
        self._dtype = leaf.numpy_dtype
        self._keeps_pages = number in parts.kept.rows
        self._keeps_heap = number in parts.kept.heaps
        if len(table):
            self._table = field = table.fields[number]
            # Parts differ in layout if the build had written some of them before it found that the field's
            # shape or rank varies, or if they differ in their codec.
            of_parts = np.column_stack(
                [field.codec, field.are_foreign, field.varying, field.row_bytes, field.shape]
            )
            if (of_parts == of_parts[:1]).all():
                layouts, first = of_parts[:1], np.zeros(1, np.int64)
                numbers = np.broadcast_to(0, len(of_parts))
            else:
                layouts, first, numbers = np.unique(of_parts, axis=0, return_index=True, return_inverse=True)
            if not _are_readable(leaf, layouts):
                raise CacheFormatError(
                    "a field is stored in a layout that its spec does not permit; build the dataset again"
                )
            self._part_of_layout, self._layout_of_part = first, numbers.reshape(-1)
            self._is_uniform = len(layouts) == 1 and bool(field.varying[0])
            self._has_codec = bool(field.codec.any())
            self._has_foreign = bool(field.are_foreign.any())
            self._heap_bytes = int(field.heap_length.sum())
            self._value_bytes = int(field.value_bytes().sum())
            # DecodedRows values of which the last call of `stretches` returned no end, by record.
            self._kept: dict[int, bytes] = {}

    def empty(self) -> list[Any]:
        """Return the column of no rows."""
        return []

    def gather(self, rows: StoredRows, memory: Memory | None = None) -> Any:
        """Return the column of these rows: a list, of which each value has memory of its own.

        With a `memory` that joins, long bytes are `JoinedValues`.
        """
        if self._is_uniform:
            return self._from_heap(rows, 0, memory)
        out: list[Any] = [None] * len(rows.indices)
        for part, chosen, subset in self._split_by_layout(rows):
            values = (
                self._from_heap(subset, part) if self._table.varying[part] else self._from_rows(subset, part)
            )
            for number, value in zip(chosen.tolist(), values, strict=True):
                out[number] = value
        return out

    def announce(self, rows: StoredRows, *, entries: bool = False) -> None:
        """Begin to read the values that are not on this machine, or only their entries.

        The values can be read only after their entries.
        """
        for part, _, subset in self._split_by_layout(rows):
            row_bytes, is_varying = int(self._table.row_bytes[part]), bool(self._table.varying[part])
            if is_varying and not entries:
                found = self._entries(subset, part)
                where = found.positions, found.stored
                subset.announce(*where, files=found.files, keeps_pages=self._keeps_heap)
            elif row_bytes and is_varying == entries:
                positions = _row_positions(self._table, subset, row_bytes)
                keeps_pages = self._keeps_pages and row_bytes <= KEPT_ROW_BYTES
                subset.announce(positions, np.full(len(positions), row_bytes), keeps_pages=keeps_pages)

    def _from_rows(self, rows: StoredRows, part: int) -> list[Any]:
        rank = int(self._table.shape[part, 0])
        shape = self._table.shape[part, 1 : 1 + rank].tolist()
        found = self._stored_rows(rows, part).view(self._dtype)
        return [row.copy() for row in found.reshape(len(found), *shape)]

    def _stored_rows(self, rows: StoredRows, part: int) -> NDArray[np.uint8]:
        """Return the rows of parts where values do not vary, as bytes."""
        row_bytes = int(self._table.row_bytes[part])
        if not row_bytes:
            return np.empty((len(rows.indices), 0), np.uint8)
        positions = _row_positions(self._table, rows, row_bytes)
        found = rows.gather(positions, row_bytes, keeps_pages=self._keeps_pages)
        return found.view(np.uint8).reshape(len(found), row_bytes)

    def _from_heap(self, rows: StoredRows, part: int, memory: Memory | None = None) -> Any:
        entries = self._entries(rows, part)
        if memory is not None and memory.joins and self._leaf.dtype == BYTES and not entries.shapes.shape[1]:
            ends = np.cumsum(entries.lengths)
            if ends[-1] >= JOINED_BYTES * len(ends):
                data = memory.array((int(ends[-1]),), np.dtype(np.uint8))
                _join(self._content(rows, part, entries), data)
                return JoinedValues(data, ends)
        return self._decode(self._content(rows, part, entries), entries.shapes)

    def _content(self, rows: StoredRows, part: int, entries: Entries) -> Iterable[Any]:
        """Return the bytes of values, a buffer each; of mapped parts only as long as the window."""
        where = entries.files, entries.positions, entries.stored
        stored = rows.content(*where, keeps_pages=self._keeps_heap)
        if not self._table.codec[part]:
            return stored
        found, is_frame = list(stored), entries.stored != entries.lengths
        dictionaries = self._table.dictionary[rows.located()[0]]
        for number in np.unique(dictionaries[is_frame]).tolist():
            chosen = np.flatnonzero(is_frame & (dictionaries == number))
            frames = [found[place] for place in chosen.tolist()]
            values = rows.parts.decoders[number].decode(frames, entries.lengths[chosen])
            for place, value in zip(chosen.tolist(), values, strict=True):
                found[place] = value
        return found

    def _entries(self, rows: StoredRows, part: int) -> Entries:
        table = self._table
        row_bytes = int(table.row_bytes[part])
        found = rows.gather(_row_positions(table, rows, row_bytes), row_bytes, keeps_pages=self._keeps_pages)
        entries = found.view(ENTRY_DTYPE).reshape(len(found), row_bytes // 4)
        is_coded = bool(table.codec[part])
        blocks, starts, stored, *rest = (
            entries[:, i].astype(np.int64) for i in range(ENTRY_WORDS + is_coded)
        )
        lengths = rest[0] if is_coded else stored
        parts, _ = rows.located()
        first = table.heap_first_block[parts]
        # Entries are data: a damaged entry must not lead the reader outside of its mapping.
        is_sound = blocks < table.heap_first_block[parts + 1] - first
        if is_sound.all():
            numbers = blocks + first
            is_sound = starts + stored <= table.heap_length[numbers]
        if not is_sound.all():
            raise CacheFormatError(
                "an entry points outside its heap block: run storage.verify, then build again"
            )
        if is_coded and not ((stored <= lengths) & (lengths <= stored * MOST_RATIO)).all():
            raise CacheFormatError(
                "a compressed value can't have the length that its entry says: run storage.verify, then "
                "build again"
            )
        if int(stored.sum()) > self._heap_bytes or int(lengths.sum()) > self._value_bytes:
            self._check_sharing(rows, stored, lengths)
        files = parts
        if self._has_foreign:
            files = rows.parts.table.files.of_blocks(parts, table.heap_file[numbers])
        positions = starts + table.heap_position[numbers]
        return Entries(blocks, files, positions, stored, lengths, entries[:, ENTRY_WORDS + is_coded :])

    def lengths(self, rows: StoredRows) -> Int64s:
        """Return the length of each value along its first axis, the only one that varies; reads no value."""
        return self._locate_values(rows)[2] // self.item_bytes

    def stretches(self, rows: StoredRows, starts: Int64s, stops: Int64s) -> NDArray[Any]:
        """Return the items from `starts` to `stops` of each value's first axis, back to back.

        No other axis varies. Values that lie back to back, as those of consecutive records mostly do, are
        copied in one piece. Of a field with a codec, whole values are read, each once; of a value on this
        machine whose end is left, the next call has the bytes at hand.
        """
        parts, positions, lengths = self._locate_stretches(rows, starts, stops)
        is_here = rows.parts.are_away(parts) is None
        if self._has_codec:
            begins = starts * self.item_bytes
            values = self._decoded(rows, begins + lengths, self._kept if is_here else {})
            found = zip(rows.indices.tolist(), begins.tolist(), lengths.tolist(), strict=True)
            pieces = [memoryview(values[record])[begin : begin + size] for record, begin, size in found]
            data = bytearray().join(pieces)
        else:
            # Who reads by range knows which ones were requested together.
            _, runs = runs_of(parts, positions, lengths, is_here)
            data = rows.joined(*runs)
        return np.frombuffer(data, self._dtype).reshape(-1, *self._item_shape)

    def _decoded(self, rows: StoredRows, ends: Int64s, kept: Mapping[int, bytes]) -> dict[int, Any]:
        """Return the bytes of values by record, those that are not in `kept` read; keep what `ends` leave."""
        records, firsts, numbers = np.unique(rows.indices, return_index=True, return_inverse=True)
        values: dict[int, Any] = {record: kept.get(record) for record in records.tolist()}
        missing = np.array([value is None for value in values.values()])
        if missing.any():
            values |= zip(records[missing].tolist(), self._whole(rows.subset(firsts[missing])), strict=True)
        last_ends = np.zeros(len(records), np.int64)
        np.maximum.at(last_ends, numbers, ends)
        left, left_bytes = dict[int, bytes](), 0
        for (record, value), end in zip(values.items(), last_ends.tolist(), strict=True):
            is_cut = end < len(value) and isinstance(value, bytes)
            if is_cut and left_bytes + len(value) <= _KEPT_VALUES_BYTES:
                left[record] = value
                left_bytes += len(value)
        self._kept = left  # in one step: other threads read, too
        return values

    def announce_stretches(self, rows: StoredRows, starts: Int64s, stops: Int64s) -> None:
        """Begin to read the stretches that are not on this machine."""
        if self._has_codec:
            self.announce(rows)
        else:
            files, positions, lengths = self._locate_stretches(rows, starts, stops)
            rows.announce(positions, lengths, files=files)

    def _whole(self, rows: StoredRows) -> list[Any]:
        """Return the bytes of values, a buffer each."""
        found: list[Any] = [None] * len(rows.indices)
        for part, chosen, subset in self._split_by_layout(rows):
            if self._table.varying[part]:
                values: Any = self._content(subset, part, self._entries(subset, part))
            else:
                values = self._stored_rows(subset, part)
            for number, value in zip(chosen.tolist(), values, strict=True):
                found[number] = value
        return found

    def _locate_stretches(
        self, rows: StoredRows, starts: Int64s, stops: Int64s
    ) -> tuple[Int64s, Int64s, Int64s]:
        files, positions, value_bytes = self._locate_values(rows)
        lengths = (stops - starts) * self.item_bytes
        has_room = (stops * self.item_bytes <= value_bytes).all()
        if not len(starts) or starts.min() < 0 or lengths.min() < 0 or not has_room:
            raise CacheFormatError(
                "the lengths of values changed since they were read: run storage.verify, then build again"
            )
        return files, positions + starts * self.item_bytes, lengths

    @property
    def _item_shape(self) -> tuple[int, ...]:
        """The shape of one item along the first axis of a value."""
        assert self._leaf.shape
        return tuple(size or 0 for size in self._leaf.shape[1:])

    @property
    def item_bytes(self) -> int:
        """The bytes of one item along the first axis of a value."""
        return self._dtype.itemsize * math.prod(self._item_shape)

    def _locate_values(self, rows: StoredRows) -> tuple[Int64s, Int64s, Int64s]:
        """Return the number of each value's file, its position there, and its length.

        Only its first size varies.

        The position is that of its frame, if it is compressed.
        """
        if self._is_uniform:
            return self._locate_in_heap(rows, 0)
        files, positions, lengths = np.zeros((3, len(rows.indices)), np.int64)
        files[:] = rows.located()[0]
        for part, chosen, subset in self._split_by_layout(rows):
            if self._table.varying[part]:
                files[chosen], positions[chosen], lengths[chosen] = self._locate_in_heap(subset, part)
                continue
            row_bytes = int(self._table.row_bytes[part])
            shape = self._table.shape[part, 1 : 1 + int(self._table.shape[part, 0])]
            self._require_shape(
                len(shape) == 1 + len(self._item_shape) and tuple(shape[1:]) == self._item_shape
            )
            if row_bytes:
                positions[chosen] = _row_positions(self._table, subset, row_bytes)
                lengths[chosen] = row_bytes
        return files, positions, lengths

    def _locate_in_heap(self, rows: StoredRows, part: int) -> tuple[Int64s, Int64s, Int64s]:
        entries = self._entries(rows, part)
        rank = 1 + len(self._item_shape)
        sizes = entries.shapes[:, 1 : 1 + rank].astype(np.int64)
        self._require_shape(
            sizes.shape[1] == rank
            and bool((entries.shapes[:, 0] == rank).all())
            and bool((sizes[:, 1:] == self._item_shape).all())
            and bool((sizes[:, 0] * self.item_bytes == entries.lengths).all())
        )
        return entries.files, entries.positions, entries.lengths

    @staticmethod
    def _require_shape(is_sound: bool) -> None:
        if not is_sound:
            raise CacheFormatError("a value does not fit its shape: run storage.verify, then build again")

    def foreign_entries(self, rows: StoredRows) -> Entries | None:
        """Return the entries of rows of one part if their values lie in foreign files, else None."""
        part = int(rows.located()[0][0])
        return self._entries(rows, part) if self._table.are_foreign[part] else None

    def heap_blocks(self, rows: StoredRows) -> Int64s:
        """Return the blocks of the heap that hold these values, counted over all parts."""
        found = [np.empty(0, np.int64)]
        for part, _, subset in self._split_by_layout(rows):
            if self._table.varying[part]:
                parts = subset.located()[0]
                found.append(self._entries(subset, part).blocks + self._table.heap_first_block[parts])
        return np.concatenate(found)

    def _split_by_layout(self, rows: StoredRows) -> Iterator[tuple[int, NDArray[np.intp], StoredRows]]:
        """Yield, for each layout: a part that has it, which of the rows lie in such parts, and these rows."""
        layouts = self._layout_of_part[rows.located()[0]]
        for layout in np.unique(layouts).tolist():
            chosen, part = np.flatnonzero(layouts == layout), int(self._part_of_layout[layout])
            yield part, chosen, rows if len(chosen) == len(layouts) else rows.subset(chosen)

    def _check_sharing(self, rows: StoredRows, stored: Int64s, lengths: Int64s) -> None:
        """Refuse values that share bytes with those of other records: a small file could fill all memory."""
        _, firsts = np.unique(rows.indices, return_index=True)
        if int(stored[firsts].sum()) > self._heap_bytes or int(lengths[firsts].sum()) > self._value_bytes:
            raise CacheFormatError(
                "the values of several records are the same bytes: run storage.verify, then build again"
            )

    def span(self, rows: StoredRows, least_bytes: int) -> ValueBytes | None:
        """Return where the values of at least `least_bytes` lie."""
        if not self._is_uniform:
            return None  # rare: the parts differ in layout
        entries = self._entries(rows, 0)
        large = np.flatnonzero(entries.stored >= least_bytes)
        files, starts, lengths = entries.files[large], entries.positions[large], entries.stored[large]
        if (files >= rows.parts.mapped).any():
            return ValueBytes(files, starts, lengths)
        return ValueBytes(None, starts + rows.window.offset[files], lengths)

    def _decode(self, data: Iterable[Any], shapes: NDArray[np.uint32]) -> list[Any]:
        """Return values from their bytes, a buffer each."""
        leaf = self._leaf
        if leaf.dtype == OBJECT:
            import pickle

            return [pickle.loads(value) for value in data]
        try:
            if leaf.dtype == JSON:
                from yogadl._core.json_value import decode_all, decode_foreign

                return decode_all(data) if not self._has_foreign else list(map(decode_foreign, data))
            if not shapes.shape[1] and leaf.dtype == BYTES:
                return list(map(bytes, data))
            if not shapes.shape[1]:
                return [str(value, "utf-8", "surrogatepass") for value in data]
            each = [tuple(row[1 : 1 + row[0]]) for row in shapes.tolist()]
            if not leaf.is_numeric:
                return [decode_value(leaf, value, shape) for value, shape in zip(data, each, strict=True)]
            return [_writable(value, self._dtype, shape) for value, shape in zip(data, each, strict=True)]
        except ValueError as error:
            if self._has_foreign and leaf.dtype == JSON:
                raise CacheFormatError(
                    f"a value in a foreign file is no JSON, or has no exact form here ({error}): adopt the "
                    "files with FileOptions(read=True), which says where"
                ) from error
            if self._has_foreign and leaf.dtype == STR:  # adopted without reading it
                raise CacheFormatError(
                    "a text in a foreign file is not UTF-8: adopt the files with FileOptions(read=True), "
                    "which says where"
                ) from error
            raise CacheFormatError(
                "a value does not fit its shape or is no text: run storage.verify, then build again"
            ) from error


class StackedField(VaryingField):
    """A field whose values all have one size, and have a codec or are foreign: its column is an array."""

    def empty(self) -> Any:
        """Return the column of no rows."""
        return np.empty((0, *self._shape), self._dtype)

    def gather(self, rows: StoredRows, memory: Memory | None = None) -> NDArray[Any]:
        """Return the column of these rows, as a new array."""
        shape = (len(rows.indices), *self._shape)
        column = np.empty(shape, self._dtype) if memory is None else memory.array(shape, self._dtype)
        values = self._whole(rows)
        if any(len(value) != self._leaf.row_bytes for value in values):
            raise CacheFormatError("a value does not have its size: run storage.verify, then build again")
        _join(values, column.reshape(-1).view(np.uint8))
        return column

    @property
    def _shape(self) -> tuple[int, ...]:
        assert self._leaf.shape is not None
        return tuple(size or 0 for size in self._leaf.shape)


def _join(values: Iterable[Any], out: NDArray[np.uint8]) -> None:
    """Write values, a buffer each, to `out`, back to back."""
    np.concatenate([np.frombuffer(value, np.uint8) for value in values], out=out)


def _writable(value: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:  # value: a buffer
    """Return an array, or a scalar for the empty shape, which a field of unknown rank may have."""
    if not len(value) and 0 not in shape:
        raise ValueError("there are no bytes")  # otherwise an array of the damaged shape would be allocated
    # An array over bytes can't be written to; one over a bytearray can.
    array = np.frombuffer(bytearray(value), dtype).reshape(shape) if len(value) else np.empty(shape, dtype)
    return array if shape else array[()]
