"""Count the requests that reading a cache takes, from its part table alone, without reading records."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from yogadl._core.protocols import Int64s, Prices
from yogadl._format.rows import KEPT_ROW_BYTES, Parts
from yogadl._format.table import PartTable
from yogadl.storage._remote.checked_ranges import AHEAD_BYTES, MOST_CHECKED_BYTES, TOGETHER_BYTES, BlockPlaces
from yogadl.storage._remote.download import ranges_of
from yogadl.storage._remote.held_ranges import HELD_GAP_BYTES
from yogadl.storage._remote.ranges import PAGE_BYTES, ByteSpan, Ranges, merged
from yogadl.storage._remote.requests import RequestedRange, Spending

if TYPE_CHECKING:
    from yogadl._format.checks import Checksums


class _RangeCounter(Ranges):
    """Merge announced ranges as `Ranges` does, and count the requests; request nothing.

    Attributes:
        rows: The number of requests for ranges that are used once, and their bytes.
        pages: The same for pages that are kept.
        gap_bytes: The largest gap between ranges that one request spans; see `merged`.
    """

    def __init__(self, table: PartTable) -> None:
        no_bucket: Any = None  # no bucket: `_requested` below makes no request
        super().__init__(no_bucket, str, table.size_bytes, Spending())
        self.rows = self.pages = np.zeros(2, np.int64)
        self._table = table
        self._is_of_pages = False
        self.gap_bytes: int | None = None

    def announce(self, parts: Int64s, positions: Int64s, lengths: Int64s, *, keeps_pages: bool) -> None:
        self._is_of_pages = keeps_pages
        super().announce(parts, positions, lengths, keeps_pages=keeps_pages)
        self._rows.clear()  # a stream uses each range once, so a repeated range is requested again
        self._untaken.clear()
        self._untaken_bytes = 0

    def _requested(
        self, spans: Sequence[ByteSpan], *, is_urgent: bool
    ) -> list[tuple[RequestedRange, list[int]]]:
        requested = [(RequestedRange(*span), members) for span, members in merged(spans, self.gap_bytes)]
        cost = np.array([len(requested), sum(requested_range.size_bytes for requested_range, _ in requested)])
        if self._is_of_pages:
            self.pages = self.pages + cost
        else:
            self.rows = self.rows + cost
        return requested

    @property
    def page_count(self) -> int:
        """The number of pages that were requested."""
        return len(self._pages)

    def all_pages(self, fields: set[int], kept: frozenset[int]) -> int:
        """Return the number of pages with rows of fields that are kept, among these fields."""
        pages: set[tuple[int, int]] = set()
        records = np.diff(self._table.first_record)
        for number in fields & kept:
            field = self._table.fields[number]
            of_part = np.repeat(np.arange(len(self._table)), np.diff(field.rows_first_block))
            lasts = (field.rows_position + field.rows_length(records) - 1) // PAGE_BYTES
            firsts = field.rows_position // PAGE_BYTES
            for part, first, last in zip(of_part.tolist(), firsts.tolist(), lasts.tolist(), strict=True):
                if field.row_bytes[part] <= KEPT_ROW_BYTES:
                    pages.update((part, page) for page in range(first, last + 1))
        return len(pages)


class _BlockCounter:
    """Count requests for whole blocks; each block is requested once as long as there is room to hold it.

    Args:
        sums: The checksums of the blocks.
    """

    def __init__(self, sums: "Checksums") -> None:
        self._sums = sums
        self._places = BlockPlaces(sums)
        self._held_cost = self._kept_cost = np.zeros(2, np.int64)
        self._kept: set[int] = set()
        self._held: dict[int, int] = {}
        self._held_bytes = 0
        self.gap_bytes: int | None = None  # has no effect here
        # Whether all blocks so far fit into memory; then held blocks are never dropped, as kept ones.
        self._has_room = True

    @property
    def rows(self) -> Int64s:
        """The number of requests for blocks that may be dropped and requested again, and their bytes."""
        return np.zeros(2, np.int64) if self._has_room else self._held_cost

    @property
    def pages(self) -> Int64s:
        """The same for blocks that are requested once, and kept."""
        return self._kept_cost + self._held_cost if self._has_room else self._kept_cost

    @property
    def page_count(self) -> int:
        """The number of blocks that are kept."""
        return len(self._kept) + len(self._held) * self._has_room

    def all_pages(self, fields: set[int], kept: frozenset[int]) -> int:
        """Return the number of blocks of these fields that would be kept."""
        blocks = np.diff(self._sums.first).reshape(-1, 2)
        return int(sum(blocks[number].sum() for number in (fields if self._has_room else fields & kept)))

    def announce(self, parts: Int64s, positions: Int64s, lengths: Int64s, *, keeps_pages: bool) -> None:
        full = lengths > 0
        # `find` would need exact positions; the positions of values are estimates.
        blocks = self._places.blocks_at(parts[full], positions[full])
        if keeps_pages:
            new = [block for block in np.unique(blocks).tolist() if block not in self._kept]
            self._kept.update(new)
            self._kept_cost = self._kept_cost + self._cost(new)
            return
        group, group_bytes = list[int](), 0
        blocks = blocks[np.flatnonzero(np.diff(blocks, prepend=-1))]
        for block, size_bytes in zip(blocks.tolist(), self._sums.length[blocks].tolist(), strict=True):
            if block not in self._held and block not in self._kept:
                if group_bytes + size_bytes > TOGETHER_BYTES:
                    self._held_cost = self._held_cost + self._cost(group)
                    group, group_bytes = [], 0
                group.append(block)
                group_bytes += size_bytes
                self._held_bytes += size_bytes
            self._held[block] = self._held.pop(block, size_bytes)
            self._has_room = self._has_room and self._held_bytes <= MOST_CHECKED_BYTES
            # Blocks that were requested ahead also take room: on average half of the largest size.
            while self._held_bytes > MOST_CHECKED_BYTES + AHEAD_BYTES // 2:
                self._held_bytes -= self._held.pop(next(iter(self._held)))
        self._held_cost = self._held_cost + self._cost(group)

    def _cost(self, blocks: Sequence[int]) -> Int64s:
        numbers = np.array(blocks, np.int64)
        starts = self._sums.position[numbers]
        ends = starts + self._sums.length[numbers]
        spans = list(zip(self._sums.part[numbers].tolist(), starts.tolist(), ends.tolist(), strict=True))
        found = [span for span, _ in merged(spans)]
        return np.array([len(found), sum(stop - start for _, start, stop in found)])


class Planner:
    """Count the requests that reading one cache takes. Call it with the announced records; see `OnPlanned`.

    The part table has the size of each block of values of varying length, but not of each value. The planner
    counts as if all values of a block were equally long.

    Args:
        parts: The parts of the cache.
        opener: The object of the storage that opens caches.
    """

    def __init__(self, parts: Parts, opener: Any) -> None:
        self._parts = parts
        self._table = parts.table
        self._opener = opener
        sums = getattr(parts.away, "sums", None)  # set if whole blocks are compared
        self._counter = _RangeCounter(parts.table) if sums is None else _BlockCounter(sums)
        self._heaps: dict[int, tuple[Int64s, Int64s]] = {}
        self._records = 0
        self._fields: set[int] = set()

    def add(self, indices: Int64s, fields: Sequence[int] | None, *, is_block: bool = False) -> None:
        """Count the requests for these records, which are announced together, or held as a block."""
        self._counter.gap_bytes = HELD_GAP_BYTES if is_block else None
        self._records += len(indices)
        numbers = range(len(self._table.fields)) if fields is None else fields
        self._fields.update(numbers)
        parts, rows = self._parts.locate(indices)
        away = self._parts.are_away(parts)
        if away is None:
            return
        indices, parts, rows = indices[away], parts[away], rows[away]
        for number in numbers:
            field = self._table.fields[number]
            row_bytes = field.row_bytes[parts]
            blocks = rows // field.rows_per_block[parts]
            within = rows - blocks * field.rows_per_block[parts]
            blocks += field.rows_first_block[parts]
            for size in np.unique(row_bytes[row_bytes > 0]).tolist():  # parts may store a field in two ways
                chosen = np.flatnonzero(row_bytes == size)
                keeps_pages = number in self._parts.fields_with_kept_pages and size <= KEPT_ROW_BYTES
                positions = field.rows_position[blocks[chosen]] + within[chosen] * size
                lengths = np.full(len(chosen), size)
                self._counter.announce(parts[chosen], positions, lengths, keeps_pages=keeps_pages)
            varying = np.flatnonzero(field.varying[parts])
            if len(varying):
                positions, lengths = self._values(number, indices[varying])
                self._counter.announce(parts[varying], positions, lengths, keeps_pages=False)

    def _values(self, number: int, indices: Int64s) -> tuple[Int64s, Int64s]:
        """Return estimates of the positions of these values in their parts, and of their lengths."""
        field, (firsts, counts) = self._table.fields[number], self._heap(number)
        if not len(firsts):
            return np.zeros_like(indices), np.zeros_like(indices)
        block = np.maximum(np.searchsorted(firsts, indices, side="right") - 1, 0)
        each = field.heap_length[block] / counts[block]
        before = np.clip(indices - firsts[block], 0, counts[block])
        starts = (before * each).astype(np.int64)
        return field.heap_position[block] + starts, ((before + 1) * each).astype(np.int64) - starts

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
        count = self._counter.page_count
        if count:  # kept pages are requested once, and there are no more than `all_pages`
            pages *= (
                min(
                    count / share,
                    max(count, self._counter.all_pages(self._fields, self._parts.fields_with_kept_pages)),
                )
                / count
            )
        return round(float(rows[0] + pages[0])), round(float(rows[1] + pages[1]))

    def by_blocks(self, share: float, epochs: int) -> tuple[int, int]:
        """Return requests and bytes of this many epochs, if one reader reads each block once an epoch."""
        records = np.diff(self._table.first_record)
        count = size_bytes = 0
        for number in self._fields:
            field = self._table.fields[number]
            for lengths in (field.rows_length(records), field.heap_length):
                count, size_bytes = count + len(lengths), size_bytes + int(lengths.sum())
        read = 0.0 if self._parts.away is None else self._records / share / max(1, self._table.records)
        read = min(1.0, read) * epochs
        return round(count * read), round(size_bytes * read)

    def by_mirror(self) -> tuple[int, int, int]:
        """Return requests and bytes to download the parts that are not here, and the size of all parts."""
        sizes = self._table.size_bytes
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
