"""Read records of a cache: one numpy gather a field and batch, whatever number of parts they come from."""

import contextlib
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from yogadl._format.fields import Blocks, FixedField, VaryingField
from yogadl._format.hints import Hints
from yogadl._format.rows import PAGE_BYTES, HeldRows, PartFiles, PartRemovedError, Parts, StoredRows
from yogadl._format.table import PartTable
from yogadl._format.window import Window
from yogadl._interfaces import Memory
from yogadl._spec import Spec
from yogadl.errors import CacheFormatError, StorageError

Int64s = NDArray[np.int64]


class AnyReader(Protocol):
    """Read records of one cache: a `Reader`, or one that checks what it reads."""

    @property
    def parts(self) -> Parts: ...

    @property
    def record_bytes(self) -> int: ...

    def columns(
        self, indices: Int64s, fields: Sequence[int] | None = None, memory: Memory | None = None
    ) -> list[NDArray[Any] | list[Any]]: ...

    def will_need(self, indices: Int64s, fields: Sequence[int] | None = None) -> int: ...

    def will_need_stretches(self, indices: Int64s, number: int, starts: Int64s, stops: Int64s) -> bool: ...

    def lengths(self, indices: Int64s, number: int) -> Int64s: ...

    def stretches(self, indices: Int64s, number: int, starts: Int64s, stops: Int64s) -> NDArray[Any]: ...


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
        self.parts = Parts(table, files, maps=maps)
        self.fields = [
            FixedField(field.leaf, self.parts, number)
            if field.leaf.is_fixed
            else VaryingField(field.leaf, self.parts, number)
            for number, field in enumerate(spec.fields)
        ]
        self._hints = Hints(self.fields)

    @cached_property
    def record_bytes(self) -> int:
        """How large a record is in memory, on average; exact where no field varies in length."""
        fixed = sum(field.leaf.row_bytes for field in self.spec.fields if field.leaf.is_fixed)
        table, varying = self.parts.table, 0
        counts = np.diff(table.first_record)
        for field, lies in zip(self.spec.fields, table.fields, strict=True):
            if not field.leaf.is_fixed:
                in_rows = (counts * lies.row_bytes)[~lies.varying]
                varying += int(lies.heap_length.sum()) + int(in_rows.sum())
        return fixed + -(-varying // max(1, table.records))

    def columns(
        self, indices: Int64s, fields: Sequence[int] | None = None, memory: Memory | None = None
    ) -> list[NDArray[Any] | list[Any]]:
        """Read records `indices`, which lie in range: one column a field, or for each of `fields`."""
        chosen = self.fields if fields is None else [self.fields[number] for number in fields]
        if not len(indices):
            return [field.empty() for field in chosen]
        if self.parts.renew_after:
            self.parts.touch(len(indices) * len(self.fields) * (PAGE_BYTES + self.record_bytes))
        try:
            rows = self.parts.rows(indices)
            return [field.gather(rows, memory) for field in chosen]
        except PartRemovedError:
            return self.columns(indices, fields, memory)

    def lengths(self, indices: Int64s, number: int) -> Int64s:
        """Return how long the values of a field are along the first axis, which alone varies."""
        try:
            return self._varying(number).lengths(self.parts.rows(indices))
        except PartRemovedError:
            return self.lengths(indices, number)

    def stretches(self, indices: Int64s, number: int, starts: Int64s, stops: Int64s) -> NDArray[Any]:
        """Return values of such a field from `starts` to `stops`, back to back."""
        field = self._varying(number)
        if self.parts.renew_after:
            self.parts.touch(2 * PAGE_BYTES * len(indices) + int((stops - starts).sum()) * field.unit_bytes)
        try:
            return field.stretches(self.parts.rows(indices), starts, stops)
        except PartRemovedError:
            return self.stretches(indices, number, starts, stops)

    def _varying(self, number: int) -> VaryingField:
        field = self.fields[number]
        assert isinstance(field, VaryingField)
        return field

    def mapped(self, records: int) -> Window | None:
        """Return the memory that the parts are mapped to, to read so many records, or None if not all are."""
        parts = self.parts
        if parts.renew_after:
            parts.touch(records * len(self.fields) * (PAGE_BYTES + self.record_bytes))
        window = parts.window
        is_mapped = parts.are_all_mappable and (window.all_mapped or window.map_few())
        return window if is_mapped else None

    def blocks(self, number: int) -> Blocks | None:
        """Return where the blocks of a field lie in that memory, unless their rows differ in size."""
        field = self.fields[number]
        return field.blocks() if isinstance(field, FixedField) else None

    def will_need(self, indices: Int64s, fields: Sequence[int] | None = None) -> int:
        """Say that these records will be read soon; costs next to nothing if they are in memory."""
        if not len(indices):
            return 0
        if self.parts.away is not None and self.parts.away.are_away.any():
            away = self.parts.are_away(self.parts.locate(indices)[0])
            if away is not None:
                with contextlib.suppress(CacheFormatError, StorageError):  # reading raises it
                    self._expect(self.parts.rows(indices[away], takes=False), fields)
                return 0  # each record is to be announced
        if not self.parts.are_all_mappable:
            return 0
        with contextlib.suppress(StorageError):  # reading raises it
            return self._hints.give(self.parts.rows(indices))
        return 0

    def hold(self, indices: Int64s, fields: Sequence[int] | None, held: HeldRows, *, entries: bool) -> None:
        """Begin to read what of these records is not on this machine, and let `held` keep it.

        First what says where values lie (`entries`), and then the values, which waits for that.
        """
        away = self.parts.are_away(self.parts.locate(indices)[0])
        if away is None:
            return
        rows = self.parts.rows(indices[away])
        rows.held = held
        with contextlib.suppress(CacheFormatError, StorageError):  # reading raises it
            self._expect(rows, fields, entries=entries)

    def will_need_stretches(self, indices: Int64s, number: int, starts: Int64s, stops: Int64s) -> bool:
        """Say that `stretches` will be asked for soon; return whether some are not on this machine."""
        if self.parts.away is None or not len(indices):
            return False
        away = self.parts.are_away(self.parts.locate(indices)[0])
        if away is None:
            return False
        rows = self.parts.rows(indices[away], takes=False)
        with contextlib.suppress(CacheFormatError, StorageError):  # reading raises it
            self._varying(number).expect_stretches(rows, starts[away], stops[away])
        return True

    def _expect(self, rows: StoredRows, fields: Sequence[int] | None, *, entries: bool = False) -> None:
        for field in self.fields if fields is None else [self.fields[number] for number in fields]:
            field.expect(rows, entries=entries)
