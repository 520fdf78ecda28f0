"""Count the requests that a stream would take, by the policy of the readers; nothing is requested.

The part table is all that is needed.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from yogadl._core.protocols import Announced, Int64s, Prices, Stretches
from yogadl._format.files import HeldRows
from yogadl._format.rows import KEPT_ROW_BYTES, KeptFields, Parts
from yogadl._format.table import PartTable, running_sums
from yogadl.storage._remote.download import ranges_of
from yogadl.storage._remote.ranges import (
    PAGE_BYTES,
    AnnouncedBlocks,
    ByteSpan,
    RangeHolder,
    RangePolicy,
    gap_of,
    without_repetitions,
)
from yogadl.storage._remote.requests import Extent

if TYPE_CHECKING:
    from yogadl._format.checks import Checksums


class _RangeCounter(RangePolicy):
    """Counts the requests that `Ranges` makes. Compared blocks count as read once they were announced."""

    def __init__(self, table: PartTable, sums: "Checksums | None") -> None:
        super().__init__(table.files.sizes, gap_of(table, is_compared=sums is not None), sums)
        self._table = table
        self._cost = self._rows = np.zeros(2, np.int64)
        self._kept = np.zeros(2, np.int64)

    @property
    def _has_room(self) -> bool:
        """Whether no block was dropped for room: then all of them are kept."""
        return self.sums is not None and not self._known().pages.has_dropped

    @property
    def rows(self) -> Int64s:
        """The number of requests for ranges that may be requested again, and their bytes."""
        return np.zeros(2, np.int64) if self._has_room else self._rows

    @property
    def pages(self) -> Int64s:
        """The same for pages and blocks that are requested once, and kept."""
        return self._kept + self._rows if self._has_room else self._kept

    @property
    def page_count(self) -> int:
        """The number of pages or blocks that are kept."""
        pages = self._known().pages
        return len(pages) if self._has_room else pages.kept_count

    def announce(
        self, files: Int64s, positions: Int64s, lengths: Int64s, held: HeldRows, *, keeps_pages: bool
    ) -> None:
        self._cost = self._kept if keeps_pages else self._rows
        super().announce(files, positions, lengths, held, keeps_pages=keeps_pages)

    def _blocks_of(self, files: Int64s, positions: Int64s, lengths: Int64s) -> Int64s:
        return self._blocks.blocks_at(files, positions)  # positions of values are estimates

    def _expect(self, held: AnnouncedBlocks, blocks: Int64s) -> None:
        super()._expect(held, blocks)
        for block in without_repetitions(blocks):
            self._find([block], is_kept=False, is_urgent=True)
            self._request_ahead([block])

    def _put(self, extent: Extent, *, is_urgent: bool) -> None:
        self._cost += 1, extent.size_bytes

    def all_pages(self, fields: set[int], kept: KeptFields) -> int:
        """Return the number of pages or blocks of these fields that are kept: of rows and of heaps."""
        if self.sums is not None:
            blocks = np.diff(self.sums.first).reshape(-1, 2)
            return sum(
                int(blocks[number, of_heap])
                for number in fields
                for of_heap in (0, 1)
                if self._has_room or number in kept[of_heap]
            )
        pages: set[tuple[int, int]] = set()
        records = np.diff(self._table.first_record)
        for number in fields & (kept.rows | kept.heaps):
            field = self._table.fields[number]
            rows = field.rows_first_block, field.rows_position, field.rows_length(records)
            heaps = field.heap_first_block, field.heap_position, field.heap_length
            for of_heap, (first_block, position, length) in enumerate((rows, heaps)):
                if number not in kept[of_heap]:
                    continue
                of_part = np.repeat(np.arange(len(self._table)), np.diff(first_block))
                firsts, lasts = position // PAGE_BYTES, (position + length - 1) // PAGE_BYTES
                for part, first, last in zip(of_part.tolist(), firsts.tolist(), lasts.tolist(), strict=True):
                    if of_heap or field.row_bytes[part] <= KEPT_ROW_BYTES:
                        pages.update((part, page) for page in range(first, last + 1))
        return len(pages)


class _PlannedRanges(RangeHolder[Extent]):
    """The ranges that a window would hold."""

    def __init__(self, counter: _RangeCounter) -> None:
        super().__init__()
        self._counter = counter

    def add(self, files: Int64s, positions: Int64s, lengths: Int64s) -> None:
        self._counter.add_to_window(self, files, positions, lengths)

    def _new(self, span: ByteSpan) -> Extent:
        return Extent(*span)


class Planner:
    """Count the requests that reading one cache takes. Call it with the announced records; see `OnPlanned`.

    The part table has the size of each block of values of varying length, but not of each value. The planner
    counts as if all values of a block were equally long, unless their lengths are known, as those of packed
    rows: then as if all were compressed alike.

    Args:
        parts: The parts of the cache.
        opener: The object of the storage that opens caches.
    """

    def __init__(self, parts: Parts, opener: Any) -> None:
        self._parts = parts
        self._table = parts.table
        self._opener = opener
        sums = getattr(parts.away, "sums", None)  # set if whole blocks are compared
        self._counter = _RangeCounter(parts.table, sums)
        self._held: HeldRows = self._counter.new_held()
        # The window of the last block of each parent of a mix.
        self._windows: dict[int, tuple[str, _PlannedRanges]] = {}
        self._heaps: dict[int, tuple[Int64s, Int64s]] = {}
        # Of fields whose lengths a view knows: these, -1 if unknown; where values begin if all were joined.
        self._lengths: dict[int, Int64s] = {}
        self._ends: dict[int, Int64s] = {}
        self._asked: set[tuple[int, int]] = set()
        self._records: dict[int, int] = {}

    def add(
        self,
        indices: Int64s,
        fields: Sequence[int] | None,
        stretches: Stretches | None = None,
        *,
        window: tuple[int, str] | None = None,
    ) -> Announced:
        """Count the requests for these records, which are announced together, or held as a block.

        Args:
            indices: The indices of the records.
            fields: Their fields; all if not given.
            stretches: The bytes of the one field's values that are announced.
            window: The window that holds the records as a block, by the number of the parent of a mix and a
                name there; None: no window does.
        """
        numbers = range(len(self._table.fields)) if fields is None else fields
        for number in numbers:
            self._records[number] = self._records.get(number, 0) + len(indices)
        parts, rows = self._parts.locate(indices)
        away = self._parts.are_records_away(parts)
        if away is None:
            return Announced()
        if window is None or self._counter.sums is not None:  # compared blocks are kept by their use
            self._held = self._counter.new_held()
        else:
            parent, name = window
            if self._windows.get(parent, ("", None))[0] != name:
                self._windows[parent] = name, _PlannedRanges(self._counter)
            self._held = self._windows[parent][1]
        found = Announced(0, (self._held,))
        indices, parts, rows = indices[away], parts[away], rows[away]
        if stretches is not None:
            starts, stops = stretches.starts[away], stretches.stops[away]
            stretches = stretches._replace(starts=starts, stops=stops)
            self._add_stretches(indices, parts, rows, numbers[0], stretches)
            return found
        together = []  # the values of all fields, which lie one after the other
        before = np.zeros(len(indices), np.int64)
        for number in numbers:
            self._add_rows(number, parts, rows)
            varying = np.flatnonzero(self._table.fields[number].varying[parts])
            if len(varying):
                values = self._values(number, parts[varying], indices[varying])
                if self._table.files.are_interleaved and number not in self._parts.kept.heaps:
                    files, positions, lengths = values
                    together.append((files, positions + before[varying], lengths))
                    before[varying] += lengths + self._table.between_bytes
                else:
                    self._announce(*values, keeps_pages=number in self._parts.kept.heaps)
        if together:
            files, positions, lengths = map(np.concatenate, zip(*together, strict=True))
            self._announce(files, positions, lengths, keeps_pages=False)
        return found

    def add_lengths(self, indices: Int64s, fields: Sequence[int]) -> Announced:
        """Count the requests for the lengths of values of these records, which are read together."""
        parts, rows = self._parts.locate(indices)
        away = self._parts.are_records_away(parts)
        if away is not None:
            self._held = self._counter.new_held()
            for number in fields:
                self._add_rows(number, parts[away], rows[away], only_entries=True)
        return Announced()

    def add_ranges(self, files: Int64s, positions: Int64s, lengths: Int64s, fields: Sequence[int]) -> None:
        """Count the requests for these bytes, which are announced together: values of records of fields."""
        for number in fields:
            self._records[number] = self._records.get(number, 0) + len(files) // max(1, len(fields))
        self._held = self._counter.new_held()
        self._announce(files, positions, lengths, keeps_pages=False)

    def _add_rows(self, number: int, parts: Int64s, rows: Int64s, *, only_entries: bool = False) -> Int64s:
        """Count the rows of a field, which hold values or their entries; return their positions."""
        field = self._table.fields[number]
        row_bytes = field.row_bytes[parts]
        blocks = rows // field.rows_per_block[parts]
        within = rows - blocks * field.rows_per_block[parts]
        blocks += field.rows_first_block[parts]
        where = field.rows_position[blocks] + within * row_bytes if len(field.rows_position) else rows
        is_counted = (row_bytes > 0) & (field.varying[parts] | (not only_entries))
        for size in np.unique(row_bytes[is_counted]).tolist():  # parts may store a field in two ways
            chosen = np.flatnonzero(is_counted & (row_bytes == size))
            keeps_pages = number in self._parts.kept.rows and size <= KEPT_ROW_BYTES
            lengths = np.full(len(chosen), size)
            self._announce(parts[chosen], where[chosen], lengths, keeps_pages=keeps_pages)
        return where

    def _add_stretches(
        self, indices: Int64s, parts: Int64s, rows: Int64s, number: int, stretches: Stretches
    ) -> None:
        """Count the requests for parts of values, or for whole ones if the field has a codec."""
        self._know_lengths(number, stretches)
        field = self._table.fields[number]
        has_codec = bool(field.codec.any())
        positions = self._add_rows(number, parts, rows, only_entries=not has_codec)
        files, lengths = parts.copy(), stretches.stops - stretches.starts
        varying = np.flatnonzero(field.varying[parts])
        found = self._values(number, parts[varying], indices[varying])
        if has_codec:
            self._announce(*found, keeps_pages=number in self._parts.kept.heaps)
            return
        files[varying], positions[varying], _ = found
        self._announce(files, positions + stretches.starts, lengths, keeps_pages=False)

    def _know_lengths(self, number: int, stretches: Stretches) -> None:
        """Note the lengths of the values of a field, if a view knows them."""
        if (number, id(stretches.by)) in self._asked:
            return
        self._asked.add((number, id(stretches.by)))
        lengths = stretches.by.stored_lengths(stretches.number)
        if lengths is None:
            return
        known = self._lengths.get(number)
        size_bytes = lengths * stretches.item_bytes
        self._lengths[number] = known = size_bytes if known is None else np.maximum(known, size_bytes)
        are_known, field = known >= 0, self._table.fields[number]
        rest_bytes = int(field.value_bytes().sum()) - int(known[are_known].sum())
        mean_bytes = max(0, rest_bytes) // max(1, int((~are_known).sum()))
        self._ends[number] = running_sums(np.where(are_known, known, mean_bytes))

    def _announce(self, files: Int64s, positions: Int64s, lengths: Int64s, *, keeps_pages: bool) -> None:
        away = self._parts.are_away(files)
        if away is not None:
            where = files[away], positions[away], lengths[away]
            self._counter.announce(*where, self._held, keeps_pages=keeps_pages)

    def _values(self, number: int, parts: Int64s, indices: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Return the files of these values, and estimates of their positions there and of their lengths."""
        field, (firsts, counts) = self._table.fields[number], self._heap(number)
        if not len(firsts):
            return parts, np.zeros_like(indices), np.zeros_like(indices)
        block = np.maximum(np.searchsorted(firsts, indices, side="right") - 1, 0)
        ends = self._ends.get(number)
        if ends is None:  # as if all values of a block were equally long
            total = counts[block]
            before = np.clip(indices - firsts[block], 0, total)
            after = before + 1
        else:
            before, after = ends[indices] - ends[firsts[block]], ends[indices + 1] - ends[firsts[block]]
            total = np.maximum(1, ends[firsts[block] + counts[block]] - ends[firsts[block]])
        # Other values lie between those of an interleaved field.
        share = (field.value_bytes() / np.maximum(1, field.heap_bytes()))[parts]
        share[field.codec[parts] > 0] = 1.0
        each = field.heap_length[block] / total
        starts = (before * each).astype(np.int64)
        files = self._table.files.of_blocks(parts, field.heap_file[block])
        lengths = ((after * each).astype(np.int64) - starts) * share
        return files, field.heap_position[block] + starts, lengths.astype(np.int64)

    def _heap(self, number: int) -> tuple[Int64s, Int64s]:
        """Return the first record of each heap block of a field, and its number of records with values."""
        found = self._heaps.get(number)
        if found is None:
            field, first = self._table.fields[number], self._table.first_record
            of_part = np.repeat(np.arange(len(self._table)), np.diff(field.heap_first_block))
            firsts = first[of_part] + field.heap_first_record
            ends = np.minimum(np.append(firsts[1:], self._table.records), first[of_part + 1])
            found = self._heaps[number] = firsts, np.maximum(1, ends - firsts)
        return found

    def by_range(self, share: float, epochs: int) -> tuple[int, int]:
        """Return requests and bytes of this many epochs, if a share of each epoch was counted."""
        rows, pages = self._counter.rows / share * epochs, self._counter.pages.astype(float)
        count, kept = self._counter.page_count, self._parts.kept
        if count:  # kept pages are requested once, and there are no more than `all_pages`
            pages *= (
                min(
                    count / share,
                    max(count, self._counter.all_pages(set(self._records), kept)),
                )
                / count
            )
        return round(float(rows[0] + pages[0])), round(float(rows[1] + pages[1]))

    def by_blocks(self, share: float, epochs: int) -> tuple[int, int]:
        """Return requests and bytes of this many epochs, if one reader reads each block once an epoch."""
        records = np.diff(self._table.first_record)
        count = size_bytes = 0
        for number in self._records:
            field = self._table.fields[number]
            for lengths in (field.rows_length(records), field.heap_length):
                count, size_bytes = count + len(lengths), size_bytes + int(lengths.sum())
        counted = 0 if self._parts.away is None else max(self._records.values(), default=0)
        read = counted / share / max(1, self._table.records)
        read = min(1.0, read) * epochs
        return round(count * read), round(size_bytes * read)

    def by_mirror(self) -> tuple[int, int, int]:
        """Return requests and bytes to download the parts that are not here, and the size of all parts."""
        sizes = self._parts.sizes
        if self._parts.away is None:
            return 0, 0, 0
        away = sizes[self._parts.away.are_away]
        return sum(len(ranges_of(size)) for size in away.tolist()), int(away.sum()), int(sizes.sum())

    def choice(self, records: int, held_bytes: int | None) -> tuple[str, str]:
        """Return the way in which a process reads this many records, and the reason; see `AwayParts`."""
        away = self._parts.away
        if away is None:
            return "here", "all parts are on this machine"
        return away.choice(min(1.0, records / max(1, self._table.records)), held_bytes=held_bytes)

    @property
    def prices(self) -> Prices:
        """The prices of the store that the storage was opened with."""
        spending = getattr(self._opener, "_spending", None)
        return Prices() if spending is None else spending.prices
