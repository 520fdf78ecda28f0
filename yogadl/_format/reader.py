"""Read records of a cache, one numpy gather for each field of a batch, and announce those that come next."""

import contextlib
import itertools
import os
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from yogadl._core.protocols import Announced, Int64s, Memory, Stretches
from yogadl._core.spec import Leaf, Spec
from yogadl._format.fields import BlockPositions, Entries, FixedField, StackedField, ValueBytes, VaryingField
from yogadl._format.files import FileId, HeldRows, PartFiles, PartRemovedError
from yogadl._format.rows import PAGE_BYTES, AddressRange, Parts, StoredRows
from yogadl._format.table import PartTable
from yogadl.errors import CacheFormatError, StorageError

# Announce to the kernel the rows that will be read soon, unless they are in memory already.
#
# Without an announcement, the kernel reads a page only when it is touched, one at a time, together with
# neighbours that a shuffled epoch does not need. After an announcement, the kernel reads just the announced
# pages, many at once (benchmarks/prefetch.py).


# Smaller rows share their pages with many others that the epoch needs, too.
_LEAST_BYTES: Final = 1024
_SAMPLED_ROWS: Final = 32
# After a cache was found in memory, it is not sampled again for this many records, and a caller need not
# announce the next _SPARED_RECORDS records.
_TRUSTED_RECORDS: Final = 1 << 17
_SPARED_RECORDS: Final = 1 << 14


class Hints:
    """Announces rows of one cache. Safe to use from several threads: at worst rows are announced twice."""

    def __init__(self, fields: Sequence[FixedField | VaryingField]) -> None:
        self._fields = fields
        self._trusted_records = 0

    def announce(self, rows: StoredRows) -> int:
        """Have the kernel read these rows, if not in memory.

        Return how many of the following records need no announcement.
        """
        if self._trusted_records > 0:
            self._trusted_records -= len(rows.indices) + _SPARED_RECORDS
            return _SPARED_RECORDS
        spans = [span for field in self._fields if (span := field.span(rows, _LEAST_BYTES)) is not None]
        spans = [span for span in spans if len(span.starts)]
        if all(_are_resident(rows, span) for span in spans):
            self._trusted_records = _TRUSTED_RECORDS
            return 0
        mapped = [(span.starts, span.starts + span.lengths) for span in spans if span.files is None]
        if mapped:
            starts, ends = map(np.concatenate, zip(*mapped, strict=True))
            order = np.argsort(starts)
            rows.window.will_need(starts[order], ends[order])
        for span in spans:
            if span.files is not None:
                _will_read(rows, span.files, span)
        return 0


def _are_resident(rows: StoredRows, span: ValueBytes) -> bool:
    """Return whether a sample of some values is in memory.

    A read without waiting is used, since mincore reports files of other users as always resident.
    """
    flag: Any = vars(os).get("RWF_NOWAIT")
    if flag is None:
        return True  # not Linux: no hints
    count = len(span.starts)
    chosen = np.linspace(0, count - 1, min(_SAMPLED_ROWS, count)).astype(np.int64)
    sample = span.starts[chosen]
    if span.files is None:
        files = np.searchsorted(rows.window.offset, sample, side="right") - 1
        sample = sample - rows.window.offset[files]
    else:
        files = span.files[chosen]
    buffer = bytearray(1)
    for file, start in zip(files.tolist(), sample.tolist(), strict=True):
        opened = rows.parts.open(file)
        try:
            os.preadv(opened.descriptor, [buffer], start, flag)
        except BlockingIOError:
            return False
        except OSError:
            return True  # the file system does not support such a read
    return True


def _will_read(rows: StoredRows, files: Int64s, span: ValueBytes) -> None:
    """Have the kernel read these values, of files that are not mapped, in the background."""
    order = np.lexsort((span.starts, files))
    cuts = np.flatnonzero(np.diff(files[order], prepend=-1, append=-1))
    for first, end in itertools.pairwise(cuts.tolist()):
        own = order[first:end]
        opened = rows.parts.open(FileId(int(files[own[0]])))
        for start, length in zip(span.starts[own].tolist(), span.lengths[own].tolist(), strict=True):
            os.posix_fadvise(opened.descriptor, start, length, os.POSIX_FADV_WILLNEED)


def _kind(leaf: Leaf, table: PartTable, number: int) -> type[FixedField | VaryingField]:
    """Return which class reads a field."""
    if not leaf.is_fixed:
        return VaryingField
    stored = table.fields[number] if len(table) else None
    is_heap = stored is not None and (stored.codec.any() or stored.are_foreign.any())
    return StackedField if is_heap else FixedField


class Reader:
    """Reads records of one cache, in any order. Safe to use from several threads, and after a fork.

    Args:
        spec: The structure of a record.
        table: The part table.
        files: The places of the parts' files.
        maps: Whether files may be mapped; otherwise they are read by pread, as on a network file system.
    """

    def __init__(self, spec: Spec, table: PartTable, files: PartFiles, *, maps: bool = True) -> None:
        self.spec = spec
        self.parts = Parts(table, files, maps=maps)
        self.fields = [
            _kind(field.leaf, table, number)(field.leaf, self.parts, number)
            for number, field in enumerate(spec.fields)
        ]
        self._hints = Hints(self.fields)

    @cached_property
    def record_bytes(self) -> int:
        """The average size of a record in memory; exact if no field varies in length."""
        fixed_bytes = sum(field.leaf.row_bytes for field in self.spec.fields if field.leaf.is_fixed)
        table, varying_bytes = self.parts.table, 0
        counts = np.diff(table.first_record)
        for field, field_table in zip(self.spec.fields, table.fields, strict=True):
            if not field.leaf.is_fixed:
                in_rows = (counts * field_table.row_bytes)[~field_table.varying]
                varying_bytes += int(field_table.value_bytes().sum()) + int(in_rows.sum())
        return fixed_bytes + -(-varying_bytes // max(1, table.records))

    def columns(
        self, indices: Int64s, fields: Sequence[int] | None = None, memory: Memory | None = None
    ) -> list[NDArray[Any] | list[Any]]:
        """Read records `indices`, which lie in range: one column a field, or one for each of `fields`."""
        chosen_fields = self.fields if fields is None else [self.fields[number] for number in fields]
        if not len(indices):
            return [field.empty() for field in chosen_fields]
        if self.parts.remap_after_pages:
            self.parts.count_read_bytes(len(indices) * len(self.fields) * (PAGE_BYTES + self.record_bytes))
        try:
            rows = self.parts.rows(indices)
            return [field.gather(rows, memory) for field in chosen_fields]
        except PartRemovedError:
            return self.columns(indices, fields, memory)

    def lengths(self, indices: Int64s, number: int) -> Int64s:
        """Return the lengths of a field's values along their first axis, the only one that varies."""
        try:
            return self._varying_field(number).lengths(self.parts.rows(indices))
        except PartRemovedError:
            return self.lengths(indices, number)

    def stretches(self, indices: Int64s, number: int, starts: Int64s, stops: Int64s) -> NDArray[Any]:
        """Return the items from `starts` to `stops` of each value of a field, back to back."""
        field = self._varying_field(number)
        if self.parts.remap_after_pages:
            self.parts.count_read_bytes(
                2 * PAGE_BYTES * len(indices) + int((stops - starts).sum()) * field.item_bytes
            )
        try:
            rows = self.parts.rows(indices)
            return field.stretches(rows, starts, stops)
        except PartRemovedError:
            return self.stretches(indices, number, starts, stops)

    def foreign_entries(self, indices: Int64s) -> dict[int, Entries]:
        """Return, of records of one part, the entries of the fields whose values lie in foreign files."""
        try:
            rows, found = self.parts.rows(indices), {}
            for number, field in enumerate(self.fields):
                entries = field.foreign_entries(rows) if isinstance(field, VaryingField) else None
                if entries is not None:
                    found[number] = entries
            return found
        except PartRemovedError:
            return self.foreign_entries(indices)

    def bytes_of(self, file: int, position: int, length: int) -> bytes | memoryview:
        """Return bytes of a part or of a foreign file."""
        try:
            return self.parts.read(np.array([file]), np.array([position]), np.array([length]))[0]
        except PartRemovedError:
            return self.bytes_of(file, position, length)

    def item_bytes(self, number: int) -> int:
        """Return the bytes of an element of a field's values, of which only the first axis varies."""
        return self._varying_field(number).item_bytes

    @property
    def stored(self) -> "Reader":
        """The reader of what the parts hold."""
        return self

    def planner(self, planner: Any) -> Any:
        """Return the planner that counts this reader's requests, given one that counts those of ranges."""
        return planner

    @property
    def group_ends(self) -> Int64s | None:
        """The record after the last one of each group that is read as a whole, if records lie in such."""
        return None

    def _varying_field(self, number: int) -> VaryingField:
        field = self.fields[number]
        assert isinstance(field, VaryingField)
        return field

    def mapped(self, records: int) -> AddressRange | None:
        """Return the window if all parts are mapped into it, else None; count this many records as read."""
        parts = self.parts
        if parts.remap_after_pages:
            parts.count_read_bytes(records * len(self.fields) * (PAGE_BYTES + self.record_bytes))
        window = parts.window
        is_mapped = parts.are_all_mappable and (window.all_mapped or window.map_few())
        return window if is_mapped else None

    def blocks(self, number: int) -> BlockPositions | None:
        """Return the blocks of a field in the window, or None if the field's rows differ in size."""
        field = self.fields[number]
        return field.blocks() if isinstance(field, FixedField) else None

    def will_need(self, indices: Int64s, fields: Sequence[int] | None = None) -> Announced:
        """Announce that these records will be read soon; costs next to nothing if they are in memory."""
        if not len(indices):
            return Announced()
        if self.parts.away is not None and self.parts.away.are_away.any():
            away = self.parts.are_records_away(self.parts.locate(indices)[0])
            if away is not None:
                held = self.parts.away.new_held()
                self._announce(indices[away], fields, held)
                return Announced(0, (held,))  # each record needs an announcement
        if not self.parts.are_all_mappable:
            return Announced()
        with contextlib.suppress(CacheFormatError, StorageError):  # reading the records raises it
            return Announced(self._hints.announce(self.parts.rows(indices)))
        return Announced()

    def hold(
        self,
        indices: Int64s,
        fields: Sequence[int] | None,
        stretches: Stretches | None,
        held: HeldRows,
        *,
        entries: bool,
    ) -> None:
        """Begin to read the records that are not on this machine, and have `held` keep their bytes.

        Two calls are needed: the first, with `entries`, reads the entries, which have the positions of the
        values that the second reads. With `stretches`, only these bytes of the one field's values are read.
        """
        away = self.parts.are_records_away(self.parts.locate(indices)[0])
        if away is None:
            return
        if stretches is None or entries:
            self._announce(indices[away], fields, held, entries=entries)
        else:
            assert fields is not None
            starts, stops = (bounds[away] // stretches.item_bytes for bounds in stretches[:2])
            self._announce_stretches(indices[away], fields[0], starts, stops, held)

    def _announce(
        self, indices: Int64s, fields: Sequence[int] | None, held: HeldRows, *, entries: bool = False
    ) -> None:
        rows = self.parts.rows(indices, held)
        with contextlib.suppress(CacheFormatError, StorageError):  # reading the records raises it
            for field in self.fields if fields is None else [self.fields[number] for number in fields]:
                field.announce(rows, entries=entries)
            rows.announce_waiting()

    def will_need_stretches(
        self, indices: Int64s, number: int, starts: Int64s, stops: Int64s
    ) -> Announced | None:
        """Announce a call of `stretches`; return None if all the stretches are on this machine."""
        if self.parts.away is None or not len(indices):
            return None
        away = self.parts.are_records_away(self.parts.locate(indices)[0])
        if away is None:
            return None
        held = self.parts.away.new_held()
        self._announce_stretches(indices[away], number, starts[away], stops[away], held)
        return Announced(0, (held,))

    def _announce_stretches(
        self, indices: Int64s, number: int, starts: Int64s, stops: Int64s, held: HeldRows
    ) -> None:
        rows = self.parts.rows(indices, held)
        with contextlib.suppress(CacheFormatError, StorageError):  # reading the stretches raises it
            self._varying_field(number).announce_stretches(rows, starts, stops)
            rows.announce_waiting()
