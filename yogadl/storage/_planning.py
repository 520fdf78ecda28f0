"""Count the requests that reading a cache takes, before anything is read: by its part table alone."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from yogadl._format.rows import KEPT_ROW_BYTES, Parts
from yogadl._prices import Prices
from yogadl.storage._mirror.receive import ranges_of
from yogadl.storage._ranges import PAGE_BYTES, Range, Ranges, Span, merged
from yogadl.storage._spending import Spending

if TYPE_CHECKING:
    from yogadl.storage._catalogue import Catalogue

Int64s = NDArray[np.int64]


class _Counted(Ranges):
    """Count what would be asked for, merged as it would be; ask for nothing.

    Attributes:
        rows: How many requests for what is used once, and how many bytes.
        pages: The same of what is kept.
    """

    def __init__(self, sizes: Int64s) -> None:
        nobody: Any = None  # is asked
        super().__init__(nobody, str, sizes, Spending())
        self.rows = self.pages = np.zeros(2, np.int64)
        self._is_of_pages = False

    def expect(self, parts: Int64s, positions: Int64s, lengths: Int64s, *, keeps: bool) -> None:
        self._is_of_pages = keeps
        super().expect(parts, positions, lengths, keeps=keeps)
        self._rows.clear()  # all of it will have been used when it is asked for again
        self._left.clear()
        self._left_bytes = 0

    def _asked(self, spans: Sequence[Span], *, is_urgent: bool) -> list[tuple[Range, list[int]]]:
        found = [(Range(*span), members) for span, members in merged(spans)]
        cost = np.array([len(found), sum(one.size_bytes for one, _ in found)])
        if self._is_of_pages:
            self.pages = self.pages + cost
        else:
            self.rows = self.rows + cost
        return found

    @property
    def page_count(self) -> int:
        """How many pages were asked for."""
        return len(self._pages)


class Planner:
    """Count the requests that reading one cache takes. Call it with what would be announced; see `Planned`.

    Of values of varying length it knows how long those of a block are together, not each: it takes them for
    equally long.

    Args:
        parts: The cache's.
        catalogue: The storage's.
    """

    def __init__(self, parts: Parts, catalogue: "Catalogue") -> None:
        self._parts = parts
        self._table = parts.table
        self._opener = catalogue.opener
        self._counted = _Counted(self._table.size_bytes)
        self._heaps: dict[int, tuple[Int64s, Int64s]] = {}
        self._records = 0
        self._fields: set[int] = set()

    def add(self, indices: Int64s, fields: Sequence[int] | None) -> None:
        """Count what these records take, which are announced together."""
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
            for size in np.unique(row_bytes[row_bytes > 0]).tolist():  # a field may be stored in two ways
                chosen = np.flatnonzero(row_bytes == size)
                keeps = number in self._parts.kept and size <= KEPT_ROW_BYTES
                positions = field.rows_position[blocks[chosen]] + within[chosen] * size
                lengths = np.full(len(chosen), size)
                self._counted.expect(parts[chosen], positions, lengths, keeps=keeps)
                again = np.flatnonzero(field.varying[parts[chosen]])
                if not keeps and len(again):  # entries are read to announce values, and to read them
                    self._counted.expect(parts[chosen][again], positions[again], lengths[again], keeps=False)
            varying = np.flatnonzero(field.varying[parts])
            if len(varying):
                positions, lengths = self._values(number, indices[varying])
                self._counted.expect(parts[varying], positions, lengths, keeps=False)

    def _values(self, number: int, indices: Int64s) -> tuple[Int64s, Int64s]:
        """Return about where in their parts these values lie, and how long they are."""
        field, (firsts, counts) = self._table.fields[number], self._heap(number)
        if not len(firsts):
            return np.zeros_like(indices), np.zeros_like(indices)
        block = np.maximum(np.searchsorted(firsts, indices, side="right") - 1, 0)
        each = field.heap_length[block] / counts[block]
        before = np.clip(indices - firsts[block], 0, counts[block])
        starts = (before * each).astype(np.int64)
        return field.heap_position[block] + starts, ((before + 1) * each).astype(np.int64) - starts

    def _heap(self, number: int) -> tuple[Int64s, Int64s]:
        """Return the first record of each heap block of a field, and how many records have values there."""
        found = self._heaps.get(number)
        if found is None:
            field, first = self._table.fields[number], self._table.first_record
            of_part = np.repeat(np.arange(len(self._table)), np.diff(field.heap_first_block))
            firsts = first[of_part] + field.heap_first_record
            ends = np.minimum(np.append(firsts[1:], self._table.records), first[of_part + 1])
            found = self._heaps[number] = firsts, np.maximum(1, ends - firsts)
        return found

    def by_range(self, share: float, epochs: int) -> tuple[int, int]:
        """Return requests and bytes of so many epochs, of each of which this share was counted."""
        rows, pages = self._counted.rows / share * epochs, self._counted.pages.astype(float)
        count = self._counted.page_count
        if count:  # what is kept is asked for once, and in all is no more than there is
            pages *= min(count / share, max(count, self._all_pages())) / count
        return round(float(rows[0] + pages[0])), round(float(rows[1] + pages[1]))

    def _all_pages(self) -> int:
        """Return how many pages have something of the fields that are kept."""
        pages: set[tuple[int, int]] = set()
        records = np.diff(self._table.first_record)
        for number in self._fields & self._parts.kept:
            field = self._table.fields[number]
            of_part = np.repeat(np.arange(len(self._table)), np.diff(field.rows_first_block))
            lasts = (field.rows_position + field.rows_length(records) - 1) // PAGE_BYTES
            firsts = field.rows_position // PAGE_BYTES
            for part, first, last in zip(of_part.tolist(), firsts.tolist(), lasts.tolist(), strict=True):
                if field.row_bytes[part] <= KEPT_ROW_BYTES:
                    pages.update((part, page) for page in range(first, last + 1))
        return len(pages)

    def by_blocks(self, share: float, epochs: int) -> tuple[int, int]:
        """Return the same if each block were read once an epoch, by one reader."""
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
        """Return requests and bytes to bring what is not here, and the size of all parts."""
        sizes = self._table.size_bytes
        if self._parts.away is None:
            return 0, 0, 0
        away = sizes[self._parts.away.are_away]
        return sum(len(ranges_of(size)) for size in away.tolist()), int(away.sum()), int(sizes.sum())

    def choice(self, records: int, of_blocks: bool) -> tuple[str, str]:
        """Return which way a process reads that reads so many records, or blocks of them, and why."""
        away = self._parts.away
        if away is None:
            return "here", "all of it is on this machine"
        return away.choice(min(1.0, records / max(1, self._table.records)), blocks=of_blocks)

    @property
    def prices(self) -> Prices:
        """What its store takes, as its storage was told."""
        spending = getattr(self._opener, "_spending", None)
        return Prices() if spending is None else spending.prices
