"""Gather rows of a cache: one numpy gather a field and batch, whatever number of parts they come from.

Flat and arithmetic on purpose: benchmarks/gather.py measures it against arrays in RAM.
"""

import os
from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from yogadl._format.columns import ENTRY_DTYPE, ENTRY_WORDS, decoded
from yogadl._format.layout import FieldTable, PartTable
from yogadl._format.window import Window, open_part
from yogadl._leaf import BYTES, OBJECT, Leaf
from yogadl._spec import Spec
from yogadl.errors import CacheFormatError

Int64s = NDArray[np.int64]

# Every mapping counts against a limit of the kernel's, 65,530 by default; parts beyond are read by pread.
MAX_MAPPED_PARTS: Final = 32_768
# Each page touched costs 8 bytes of page table in every process: 32 GiB touched are 64 MiB. A large cache
# gets a new window after this many pages, and the old one takes its page tables along.
_RENEW_PAGES: Final = 4 * 2**20
_RENEW_CACHE_BYTES: Final = 16 * 2**30


class PartFiles(Protocol):
    """Know where the files of parts lie."""

    def path(self, sha256: str) -> str:
        """Return the path of a part's file."""


class Reader:
    """Read records of one cache, in any order. Safe to use from several threads, and after a fork.

    Args:
        spec: The structure of a record.
        table: How every part lies.
        files: Where the parts' files lie.
        maps: Whether files may be mapped; reads by pread where not, as on a network file system.
    """

    def __init__(self, spec: Spec, table: PartTable, files: PartFiles, *, maps: bool = True) -> None:
        self.spec = spec
        self.records = table.records
        self._table = table
        self._files = files
        self._mapped_parts = min(len(table), MAX_MAPPED_PARTS) if maps else 0
        self._window = self._new_window()
        self._fields = [
            _FixedField(f.leaf, t) if f.leaf.is_fixed else _VaryingField(f.leaf, t)
            for f, t in zip(spec.fields, table.fields, strict=True)
        ] if len(table) else []  # fmt: skip
        per_part = np.diff(table.first_record)
        # Parts of one size, but for the last: then finding the part of a record is a division.
        self._part_records = (
            int(per_part[0]) if len(per_part) > 1 and (per_part[:-1] == per_part[0]).all() else 0
        )
        self._renew_after = _RENEW_PAGES if int(table.size_bytes.sum()) > _RENEW_CACHE_BYTES else 0
        self._touched_pages = 0

    @property
    def record_bytes(self) -> int:
        """About how large a record is in the files."""
        return int(self._table.size_bytes.sum()) // max(1, self.records)

    def columns(self, indices: Int64s, fields: Sequence[int] | None = None) -> list[NDArray[Any] | list[Any]]:
        """Read records `indices`, which lie in range: one column a field, or for each of `fields`."""
        chosen = self._fields if fields is None else [self._fields[number] for number in fields]
        if not len(indices):
            leaves = [f.leaf for f in self.spec.fields]
            leaves = leaves if fields is None else [leaves[number] for number in fields]
            return [_empty(leaf) for leaf in leaves]
        rows = self._locate(indices)
        if self._renew_after:
            self._renew(len(indices))
        return [field.gather(rows) for field in chosen]

    def _locate(self, indices: Int64s) -> "Rows":
        table, window = self._table, self._window
        if len(table) == 1:
            parts, rows = None, indices
        else:
            if self._part_records:
                parts = indices // self._part_records
            else:
                parts = np.searchsorted(table.first_record, indices, side="right") - 1
            rows = indices - table.first_record[parts]
        if not window.all_mapped:
            touched = np.zeros(1, np.int64) if parts is None else parts
            window.map(touched[touched < self._mapped_parts])
        return Rows(window, parts, rows, self._read, self._mapped_parts)

    def _read(self, part: int, position: int, length: int) -> bytes:
        """Read from a part that is not mapped."""
        descriptor = open_part(self._files.path(self._table.sha256[part]), int(self._table.size_bytes[part]))
        try:
            return os.pread(descriptor, length, position)
        finally:
            os.close(descriptor)

    def _new_window(self) -> Window:
        names = self._table.sha256
        return Window(
            self._table.size_bytes[: self._mapped_parts], lambda part: self._files.path(names[part])
        )

    def _renew(self, records: int) -> None:
        self._touched_pages += records * len(self._fields) * (1 + self.record_bytes // 4096)
        if self._touched_pages > self._renew_after:
            self._touched_pages = 0
            self._window = self._new_window()  # whoever gathers from the old one still holds it


class Rows:
    """Where the rows of one batch lie: the part of each and its row there.

    Args:
        window: The mapped parts.
        parts: The part of each row; ``None`` where there is only one part.
        rows: The row of each within its part.
        read: Reads from a part that is not mapped.
        mapped_parts: Parts from this one on are never mapped.
    """

    def __init__(
        self, window: Window, parts: Int64s | None, rows: Int64s, read: Any, mapped_parts: int
    ) -> None:
        self.window = window
        self.parts = parts
        self.rows = rows
        self.read = read
        # The common case, decided once a batch: everything is in the window.
        self.unmapped: NDArray[np.bool_] | None = None
        if parts is None:
            if mapped_parts == 0:
                self.unmapped = np.ones(len(rows), bool)
        elif mapped_parts < len(window.is_mapped) or mapped_parts <= int(parts.max()):
            self.unmapped = parts >= mapped_parts

    def gather(self, positions: Int64s, row_bytes: int) -> NDArray[Any]:
        """Return the rows at these positions of their parts, as one new array of `row_bytes` items."""
        if self.unmapped is None:
            view, step = self.window.rows(row_bytes)
            if self.parts is not None:
                positions = positions + self.window.offset[self.parts]
            return view[positions if step == 1 else positions // step]
        out = np.empty(len(positions), f"V{row_bytes}")
        here = np.flatnonzero(~self.unmapped)
        if len(here):
            # A single part that is mapped never comes here.
            assert self.parts is not None
            view, step = self.window.rows(row_bytes)
            out[here] = view[(positions[here] + self.window.offset[self.parts[here]]) // step].view(
                f"V{row_bytes}"
            )
        for number in np.flatnonzero(self.unmapped).tolist():
            part = 0 if self.parts is None else int(self.parts[number])
            out[number] = np.frombuffer(self.read(part, int(positions[number]), row_bytes), out.dtype)[0]
        return out

    def values(self, positions: Int64s, lengths: Int64s) -> list[bytes]:
        """Return the bytes at these positions of their parts."""
        if self.unmapped is not None:
            parts = np.zeros_like(positions) if self.parts is None else self.parts
            read = self.read
            return [
                read(*where)
                for where in zip(parts.tolist(), positions.tolist(), lengths.tolist(), strict=True)
            ]
        if self.parts is not None:
            positions = positions + self.window.offset[self.parts]
        memory = self.window.bytes
        ends = (positions + lengths).tolist()
        return [memory[start:end].tobytes() for start, end in zip(positions.tolist(), ends, strict=True)]


class _FieldRows:
    """Find the rows of one field: entries or values, whichever lie in its blocks of rows."""

    def __init__(self, table: FieldTable) -> None:
        self.table = table
        sizes, counts = set(table.row_bytes.tolist()), set(table.rows_per_block.tolist())
        self.row_bytes = int(table.row_bytes[0])
        self.is_uniform = len(sizes) == 1
        self._rows_per_block = int(table.rows_per_block[0]) if len(counts) == 1 else 0

    def positions(self, parts: Int64s | None, rows: Int64s, row_bytes: Any) -> Int64s:
        """Return the position of each row in its part's file."""
        table = self.table
        per_block: Any = self._rows_per_block
        if parts is None:
            blocks = rows // per_block
            offset = rows - blocks * per_block
        else:
            every: Any = per_block or table.rows_per_block[parts]
            blocks = rows // every
            offset = rows - blocks * every
            blocks += table.rows_first_block[parts]
        offset *= row_bytes
        offset += table.rows_position[blocks]
        found: Int64s = offset
        return found


class _FixedField:
    """A field whose every value takes the same bytes: a batch of it is one gather."""

    def __init__(self, leaf: Leaf, table: FieldTable) -> None:
        self._rows = _FieldRows(table)
        self._dtype = leaf.numpy_dtype
        assert leaf.shape is not None
        self._shape = tuple(size or 0 for size in leaf.shape)
        self._row_bytes = leaf.row_bytes
        if table.varying.any() or not (table.row_bytes == self._row_bytes).all():
            # A part may store as varying what turned out to be fixed; no writer of ours does.
            raise CacheFormatError(
                "a field of fixed shape is not stored as rows of that size; build the dataset again"
            )

    def gather(self, rows: Rows) -> NDArray[Any]:
        if self._row_bytes == 0:
            return np.empty((len(rows.rows), *self._shape), self._dtype)
        positions = self._rows.positions(rows.parts, rows.rows, self._row_bytes)
        found = rows.gather(positions, self._row_bytes)
        return (
            found.view(self._dtype).reshape(len(found), *self._shape)
            if self._shape
            else found.view(self._dtype)
        )


class _VaryingField:
    """A field whose values differ in size: entries say where in the heap each lies."""

    def __init__(self, leaf: Leaf, table: FieldTable) -> None:
        self._leaf = leaf
        self._dtype = leaf.numpy_dtype
        self._table = table
        self._rows = _FieldRows(table)
        self._all_varying = bool(table.varying.all())

    def gather(self, rows: Rows) -> list[Any]:
        if rows.parts is None or (self._all_varying and self._rows.is_uniform):
            if self._all_varying:
                return self._from_heap(rows)
            return self._from_rows(rows, 0)
        # Parts store this field in different ways: take one part after the other.
        out: list[Any] = [None] * len(rows.rows)
        for part in np.unique(rows.parts).tolist():
            chosen = np.flatnonzero(rows.parts == part)
            some = Rows(
                rows.window, rows.parts[chosen], rows.rows[chosen], rows.read, len(rows.window.is_mapped)
            )
            values = self._from_heap(some) if self._table.varying[part] else self._from_rows(some, part)
            for number, value in zip(chosen.tolist(), values, strict=True):
                out[number] = value
        return out

    def _from_rows(self, rows: Rows, part: int) -> list[Any]:
        rank = int(self._table.shape[part, 0])
        shape = self._table.shape[part, 1 : 1 + rank].tolist()
        row_bytes = int(self._table.row_bytes[part])
        if row_bytes == 0:
            return [np.empty(shape, self._dtype) for _ in rows.rows]
        found = rows.gather(self._rows.positions(rows.parts, rows.rows, row_bytes), row_bytes)
        return [row.copy() for row in found.view(self._dtype).reshape(len(found), *shape)]

    def _from_heap(self, rows: Rows) -> list[Any]:
        row_bytes = int(self._table.row_bytes[0 if rows.parts is None else rows.parts[0]])
        found = rows.gather(self._rows.positions(rows.parts, rows.rows, row_bytes), row_bytes)
        entries = found.view(ENTRY_DTYPE).reshape(len(found), row_bytes // 4)
        blocks, starts, lengths = (entries[:, i].astype(np.int64) for i in range(ENTRY_WORDS))
        table = self._table
        if rows.parts is None:
            within = blocks < table.heap_first_block[1]
        else:
            first = table.heap_first_block[rows.parts]
            within = blocks < table.heap_first_block[rows.parts + 1] - first
            blocks += first
        # Entries are data: a damaged one must not lead the reader out of its mapping.
        if not within.all() or not (starts + lengths <= table.heap_length[blocks]).all():
            raise CacheFormatError(
                "an entry points outside its heap block: run storage.verify, then build again"
            )
        data = rows.values(starts + table.heap_position[blocks], lengths)
        return self._decode(data, entries)

    def _decode(self, data: list[bytes], entries: NDArray[np.uint32]) -> list[Any]:
        leaf = self._leaf
        if leaf.dtype == OBJECT:
            import pickle

            return [pickle.loads(value) for value in data]
        if entries.shape[1] == ENTRY_WORDS:
            return data if leaf.dtype == BYTES else [decoded(leaf, value, ()) for value in data]
        shapes = [row[1 : 1 + row[0]] for row in entries[:, ENTRY_WORDS:].tolist()]
        if not leaf.is_numeric:
            return [decoded(leaf, value, tuple(shape)) for value, shape in zip(data, shapes, strict=True)]
        dtype = self._dtype
        try:
            # bytearray: the caller may write to what it gets.
            return [
                np.frombuffer(bytearray(value), dtype).reshape(shape) if value else np.empty(shape, dtype)
                for value, shape in zip(data, shapes, strict=True)
            ]
        except ValueError as error:
            raise CacheFormatError(
                "a value does not have the size of its shape: run storage.verify"
            ) from error


def _empty(leaf: Leaf) -> NDArray[Any] | list[Any]:
    if not leaf.is_fixed:
        return []
    assert leaf.shape is not None
    return np.empty((0, *(size or 0 for size in leaf.shape)), leaf.numpy_dtype)
