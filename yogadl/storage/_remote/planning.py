"""Decide which requests the bytes of a bucket take: spans in, requests out; nothing is requested.

The readers of ranges and the plan of a stream call the same functions. The plan needs the part table alone.
"""

import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from yogadl._core.process import PerProcess, ProcessLock
from yogadl._core.protocols import Announced, Int64s, Prices, Stretches
from yogadl._format.files import FileId
from yogadl._format.part_file import HeldRows
from yogadl._format.rows import KEPT_ROW_BYTES, Kept, Parts
from yogadl._format.table import PartTable, running_sums
from yogadl.errors import CacheFormatError
from yogadl.storage._remote.download import ranges_of
from yogadl.storage._remote.requests import Extent, Extents

if TYPE_CHECKING:
    from yogadl._format.checks import Checksums

# Rows closer than this are requested together: the bytes between them cost less than a request.
GAP_BYTES: Final = 512
# The same of interleaved fields: between two members of a tar file there may be two headers, and zeros.
INTERLEAVED_GAP_BYTES: Final = 4 * 512
# Ranges of blocks with a gap up to this are requested together: between two blocks of the format there may be
# a header.
HELD_GAP_BYTES: Final = 2 * 4096
# The largest range that one request spans: several connections are faster than one.
MOST_RANGE_BYTES: Final = 8 * 2**20
# The size of the pages in which small fields are read and kept.
PAGE_BYTES: Final = 2**16
# The bytes of compared blocks that are kept for the next batches, beside those requested ahead; the least
# recently used are dropped first.
MOST_CHECKED_BYTES: Final = 64 * 2**20
# The bytes of blocks that are requested ahead of reading, of all fields together. A stream announces 32 MB of
# records, but if each lies in another block, those blocks may be a hundred times as large.
AHEAD_BYTES: Final = 32 * 2**20
# Blocks are requested ahead once there is room for this many bytes of them, in order to merge requests.
TOGETHER_BYTES: Final = 8 * 2**20

# The most bytes that handles keep; the oldest are dropped first. This is several times the size of one
# stream's announcement.
MOST_HELD_BYTES: Final = 128 * 2**20

# A file's number, the position of the first byte, and the position after the last.
ByteSpan = tuple[FileId, int, int]


def full_of(files: Int64s, positions: Int64s, lengths: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Return those of these ranges that have bytes."""
    if lengths.all():
        return files, positions, lengths
    full = lengths > 0
    return files[full], positions[full], lengths[full]


def spans_of(files: Int64s, positions: Int64s, lengths: Int64s) -> list[ByteSpan]:
    """Return these ranges as spans."""
    return list(zip(files.tolist(), positions.tolist(), (positions + lengths).tolist(), strict=True))


def gap_of(table: PartTable) -> int:
    """Return the largest gap between ranges of a version that one request spans."""
    return INTERLEAVED_GAP_BYTES if table.files.are_interleaved else GAP_BYTES


def merged(spans: Sequence[ByteSpan], gap_bytes: int | None = None) -> list[tuple[ByteSpan, list[int]]]:
    """Merge spans into ranges to request; return each with the numbers of its spans, in the spans' order."""
    gap_bytes = GAP_BYTES if gap_bytes is None else gap_bytes
    ranges: list[tuple[ByteSpan, list[int]]] = []
    file, start, stop, members = FileId(-1), 0, 0, list[int]()
    for number in sorted(range(len(spans)), key=spans.__getitem__):
        its_file, its_start, its_stop = spans[number]
        is_near = its_file == file and its_start <= stop + gap_bytes
        if is_near and (its_stop <= stop or its_stop - start <= MOST_RANGE_BYTES):
            stop = max(stop, its_stop)
            members.append(number)
            continue
        if members:
            ranges.append(((file, start, stop), members))
        file, start, stop, members = its_file, its_start, its_stop, [number]
    if members:
        ranges.append(((file, start, stop), members))
    return sorted(ranges, key=lambda one: min(one[1]))


def grouped(blocks: Iterable[int], lengths: Int64s, most_bytes: int) -> Iterator[list[int]]:
    """Yield groups of blocks, in the same order; a group of several has no more than `most_bytes`."""
    group, size_bytes = list[int](), 0
    for block in blocks:
        length = int(lengths[block])
        if group and size_bytes + length > most_bytes:
            yield group
            group, size_bytes = [], 0
        group.append(block)
        size_bytes += length
    if group:
        yield group


class AnnouncedRanges:
    """The handle of ranges that were announced: their bytes are kept as long as it lives.

    Args:
        policy: Requests the ranges.

    Attributes:
        extents: The ranges, in the order of their announcement.
        size_bytes: Their size.
    """

    def __init__(self, policy: "RangePolicy") -> None:
        self._policy = policy
        self.extents: dict[Extent, None] = {}
        self.size_bytes = 0

    def add(self, files: Int64s, positions: Int64s, lengths: Int64s) -> None:
        """Begin to read these ranges, in this order."""
        self._policy.announce_rows(self, files, positions, lengths)

    def keep(self, extent: Extent) -> None:
        """Keep a range; the caller has the policy's lock."""
        if extent not in self.extents:
            self.extents[extent] = None
            self.size_bytes += extent.size_bytes

    def drop_oldest(self) -> int:
        """Keep the oldest range no longer, and return its size; the caller has the policy's lock."""
        extent = next(iter(self.extents))
        del self.extents[extent]
        self.size_bytes -= extent.size_bytes
        return extent.size_bytes


def _without_repetitions(blocks: Int64s) -> list[int]:
    """Return these blocks, each once where it follows itself, as it does for rows that lie in it."""
    found: list[int] = blocks[np.flatnonzero(np.diff(blocks, prepend=-1))].tolist()
    return found


class AnnouncedBlocks:
    """The handle of compared blocks that were announced, which are requested as the reader gets near them.

    Blocks *ahead* are those that were requested for this handle, or were here, and were not read since. The
    caller has the policy's lock.

    Args:
        sums: The checksums of the blocks.

    Attributes:
        ahead_bytes: The size of the blocks ahead.
    """

    def __init__(self, sums: "Checksums") -> None:
        self._sums = sums
        # The blocks of each group that are still to be requested, the next one last, and the number of all.
        self._waiting: dict[int, tuple[list[int], int]] = {}
        self._all: set[int] = set()
        self._ahead: set[int] = set()
        self.ahead_bytes = 0

    def add(self, files: Int64s, positions: Int64s, lengths: Int64s) -> None:
        """Keep nothing: blocks are kept by their use."""

    def expect(self, blocks: Int64s) -> None:
        """Add blocks of one group, in the order in which they will be read."""
        new = blocks[
            np.flatnonzero(np.diff(blocks, prepend=-1))
        ].tolist()  # rows of a block follow each other
        group = self._sums.group_of(new[0])
        waiting = [*reversed(new), *self._waiting.get(group, ((), 0))[0]]
        self._waiting[group] = waiting, len(waiting)
        self._all.update(new)

    def has_any(self, blocks: Iterable[int]) -> bool:
        """Return whether one of these blocks was announced."""
        return not self._all.isdisjoint(blocks)

    def note_read(self, blocks: Iterable[int]) -> None:
        """Note that these blocks were read."""
        for block in self._ahead.intersection(blocks):
            self._ahead.remove(block)
            self.ahead_bytes -= int(self._sums.length[block])

    def next_blocks(self, most_bytes: int, read: Collection[int]) -> list[int]:
        """Return the next blocks to request, up to this size and one more, without those that are being read.

        All groups get equally far.
        """
        found = list[int]()
        while self._waiting and most_bytes > 0:
            group = max(self._waiting, key=lambda each: len(self._waiting[each][0]) / self._waiting[each][1])
            waiting, _ = self._waiting[group]
            block = waiting.pop()
            if not waiting:
                del self._waiting[group]
            if block not in self._ahead and block not in read:
                self._ahead.add(block)
                found.append(block)
                self.ahead_bytes += int(self._sums.length[block])
                most_bytes -= int(self._sums.length[block])
        return found


class Window(Protocol):
    """Ranges that are kept while a stream reads from them: those of `HeldRanges`, or those of a plan."""

    def find(self, joined_start: int, span: ByteSpan, /) -> Extent | None:
        """Return the range that has these bytes, which begin there if all files were joined."""

    def make(self, span: ByteSpan, joined_start: int, /) -> Extent:
        """Return a new range, which this window keeps."""


class _Known:
    """The ranges that a process has or has requested.

    Attributes:
        rows: Those that handles keep, by position, if all files were joined.
        handles: The handles, the oldest first.
        windows: The windows.
        pages: The pages or compared blocks, by number; those of small fields are kept.
        blocks: The handles of compared blocks, the oldest first.
        sound: The blocks of each range that have their checksums.
    """

    def __init__(self) -> None:
        self.rows: weakref.WeakValueDictionary[int, Extent] = weakref.WeakValueDictionary()
        self.handles: list[weakref.ref[AnnouncedRanges]] = []
        self.windows: list[weakref.ref[Window]] = []
        self.pages = Extents()
        self.blocks: list[weakref.ref[AnnouncedBlocks]] = []
        self.sound: weakref.WeakKeyDictionary[Extent, set[int]] = weakref.WeakKeyDictionary()

    def living_blocks(self) -> list[AnnouncedBlocks]:
        """Return the handles of compared blocks that are still held."""
        return [handle for reference in self.blocks if (handle := reference()) is not None]

    def living_windows(self) -> list[Window]:
        """Return the windows that are still read from."""
        return [window for reference in self.windows if (window := reference()) is not None]


class RangePolicy:
    """Decides which requests the reads of a cache take: `Ranges` makes them, a plan counts them.

    What is announced is requested once for as long as a handle has it. Small fields are read by pages, which
    are kept. If ranges are compared with their checksums, whole blocks are requested instead, and kept as
    long as there is room. Safe to use from several threads.

    Args:
        sizes: The size of each file.
        gap_bytes: The largest gap between ranges that one request spans.
        sums: The checksums of the blocks, or ``None`` if ranges are not compared.
    """

    def __init__(self, sizes: Int64s, gap_bytes: int, sums: "Checksums | None" = None) -> None:
        self.gap_bytes = gap_bytes
        self.sizes = sizes
        self.sums = sums
        self._lock = ProcessLock()
        self._known = PerProcess(_Known)  # a forked child has no threads that would read for it

    def _put(self, extent: Extent, *, is_urgent: bool) -> None:
        """Make a request."""
        raise NotImplementedError

    @cached_property
    def _first(self) -> Int64s:
        """The start of each file, if all files were joined."""
        return running_sums(self.sizes)

    @cached_property
    def _pages(self) -> "Pages":
        """The numbers of all pages."""
        return Pages(self.sizes)

    @cached_property
    def _blocks(self) -> "BlockPlaces":
        """The numbers of all blocks, which are compared."""
        assert self.sums is not None
        return BlockPlaces(self.sums)

    def new_held(self) -> "AnnouncedRanges | AnnouncedBlocks":
        """Return the handle of an announcement."""
        return AnnouncedRanges(self) if self.sums is None else AnnouncedBlocks(self.sums)

    def keys(self, files: Int64s, positions: Int64s) -> list[int]:
        """Return the positions that these bytes would have if all files were joined."""
        keys: list[int] = (self._first[files] + positions).tolist()
        return keys

    def announce(
        self, files: Int64s, positions: Int64s, lengths: Int64s, held: HeldRows, *, keeps_pages: bool
    ) -> None:
        """Begin to read these ranges, in this order; see `AwayParts`."""
        files, positions, lengths = full_of(files, positions, lengths)
        if isinstance(held, AnnouncedBlocks):
            blocks = self._blocks_of(files, positions, lengths)
            with self._lock:
                if keeps_pages:
                    self._find(np.unique(blocks).tolist(), is_kept=True, is_urgent=False)
                elif len(blocks):
                    self._expect(held, blocks)
        elif keeps_pages:
            with self._lock:
                numbers = self._pages.numbers(files, positions, lengths)
                self._find(numbers, is_kept=True, is_urgent=False)
        else:
            held.add(files, positions, lengths)

    def _blocks_of(self, files: Int64s, positions: Int64s, lengths: Int64s) -> Int64s:
        """Return the block that each of these ranges lies in."""
        return self._blocks.find(files, positions, lengths)

    def _expect(self, held: AnnouncedBlocks, blocks: Int64s) -> None:
        """Let a handle announce these blocks; reading one of them triggers requests for the next ones."""
        known = self._known()
        known.blocks = [weakref.ref(each) for each in known.living_blocks() if each is not held]
        known.blocks.append(weakref.ref(held))
        held.expect(blocks)

    def _request_ahead(self, blocks: list[int]) -> None:
        """Request the blocks that were announced after these, which are being read."""
        handles = self._known().living_blocks()
        first = next((number for number, each in enumerate(handles) if each.has_any(blocks)), len(handles))
        for handle in handles:
            handle.note_read(blocks)
        room_bytes = AHEAD_BYTES - sum(handle.ahead_bytes for handle in handles[first:])
        if room_bytes < min(TOGETHER_BYTES, AHEAD_BYTES):
            return
        for handle in handles[first:]:
            before_bytes = handle.ahead_bytes
            self._find(handle.next_blocks(room_bytes, blocks), is_kept=False, is_urgent=False)
            room_bytes -= handle.ahead_bytes - before_bytes

    def announce_rows(self, held: AnnouncedRanges, files: Int64s, positions: Int64s, lengths: Int64s) -> None:
        """Request those of these ranges that no handle has; this one has all of them then."""
        files, positions, lengths = full_of(files, positions, lengths)
        keys, spans = self.keys(files, positions), spans_of(files, positions, lengths)
        with self._lock:
            self._take(keys, spans, held, is_urgent=False)

    def add_to_window(self, window: Window, files: Int64s, positions: Int64s, lengths: Int64s) -> None:
        """Request those of these ranges that a window does not have, merged into as few as possible."""
        files, positions, lengths = full_of(files, positions, lengths)
        keys, spans = self.keys(files, positions), spans_of(files, positions, lengths)
        with self._lock:
            known = self._known()
            known.windows = [weakref.ref(each) for each in {*known.living_windows(), window}]
            missing = [number for number, span in enumerate(spans) if window.find(keys[number], span) is None]
            for span, members in merged([spans[number] for number in missing], HELD_GAP_BYTES):
                self._put(window.make(span, keys[missing[members[0]]]), is_urgent=False)

    def _take(
        self,
        keys: list[int],
        spans: Sequence[ByteSpan],
        held: AnnouncedRanges | None,
        windows: Sequence[Window] = (),
        *,
        is_urgent: bool,
    ) -> list[Extent]:
        """Return the range of each of these spans, and request those that neither handles nor windows have.

        `held` keeps them all.
        """
        found, rows = dict[int, Extent](), self._known().rows
        for number, (key, span) in enumerate(zip(keys, spans, strict=True)):
            extent = rows.get(key)
            if extent is None or extent.stop < span[2] or extent.has_failed:
                extent = next(filter(None, (window.find(key, span) for window in windows)), None)
            if extent is not None:
                found[number] = extent
        missing = [number for number in range(len(spans)) if number not in found]
        for extent, members in self._requested([spans[number] for number in missing], is_urgent=is_urgent):
            found.update(dict.fromkeys((missing[member] for member in members), extent))
        extents = [found[number] for number in range(len(spans))]
        if held is not None:
            rows.update((keys[number], found[number]) for number in missing)
            self._keep(extents, held)
        return extents

    def _keep(self, extents: list[Extent], held: AnnouncedRanges) -> None:
        """Let a handle keep these ranges; drop the oldest ones that exceed the room, but not its last one."""
        known = self._known()
        if not held.extents:
            known.handles.append(weakref.ref(held))
        for extent in extents:
            held.keep(extent)
        known.handles = [handle for handle in known.handles if handle() is not None]
        handles = [handle for reference in known.handles if (handle := reference()) is not None]
        size_bytes = sum(handle.size_bytes for handle in handles)
        for handle in handles:
            while size_bytes > MOST_HELD_BYTES and len(handle.extents) > (handle is held):
                size_bytes -= handle.drop_oldest()

    def _find(
        self, numbers: list[int], *, is_kept: bool, is_urgent: bool
    ) -> tuple[dict[int, Extent], set[int]]:
        """Return the range of each of these pages or blocks, and request those that are not here.

        Return which ones were requested, too. Blocks that are not kept are dropped for room.
        """
        pages, numbering = self._known().pages, self._pages if self.sums is None else self._blocks
        found = {number: page for number in numbers if (page := pages.get(number)) is not None}
        missing = [number for number in numbers if number not in found]
        for extent, members in self._requested(numbering.spans(missing), is_urgent=is_urgent):
            new = {missing[member] for member in members}
            pages.put(new, extent, is_kept=is_kept)
            found.update(dict.fromkeys(new, extent))
        if not is_kept:
            pages.renew(numbers)
            ahead_bytes = sum(handle.ahead_bytes for handle in self._known().living_blocks())
            pages.shrink(MOST_CHECKED_BYTES + ahead_bytes)
        return found, set(missing)

    def _requested(self, spans: Sequence[ByteSpan], *, is_urgent: bool) -> list[tuple[Extent, list[int]]]:
        """Request these spans; return each range, and the numbers of the spans in it."""
        requested = [(Extent(*span), members) for span, members in merged(spans, self.gap_bytes)]
        for extent, _ in reversed(requested) if is_urgent else requested:
            self._put(extent, is_urgent=is_urgent)
        return requested


class Pages:
    """The pages of a cache, numbered in one sequence through all files.

    Args:
        sizes: The size of each file.

    Attributes:
        first: The number of each file's first page.
    """

    def __init__(self, sizes: Int64s) -> None:
        self._sizes = sizes
        self.first = running_sums(-(-sizes // PAGE_BYTES))

    def numbers(self, files: Int64s, positions: Int64s, lengths: Int64s) -> list[int]:
        """Return the numbers of the pages that these ranges lie in, each once."""
        first = self.first[files] + positions // PAGE_BYTES
        last = self.first[files] + (positions + lengths - 1) // PAGE_BYTES
        numbers: list[int] = np.unique(np.concatenate([first, last])).tolist()
        return numbers

    def spans(self, numbers: list[int]) -> list[ByteSpan]:
        """Return the bytes of these pages."""
        new = np.array(numbers, np.int64)
        files = np.searchsorted(self.first, new, side="right") - 1
        starts = (new - self.first[files]) * PAGE_BYTES
        lengths = np.minimum(PAGE_BYTES, self._sizes[files] - starts)
        return spans_of(files, starts, lengths)


class BlockPlaces:
    """The blocks of a cache by position, to find the block that a range lies in.

    Args:
        sums: The checksums of the cache.
    """

    def __init__(self, sums: "Checksums") -> None:
        self._sums = sums
        self._first = running_sums(sums.table.files.sizes)  # the start of each file if all were joined
        keys = self._first[sums.file] + sums.position
        full = np.flatnonzero(sums.length)
        self._blocks = full[np.argsort(keys[full])]
        self._keys = keys[self._blocks]

    def find(self, parts: Int64s, positions: Int64s, lengths: Int64s) -> Int64s:
        """Return the block of each of these ranges, which are not empty.

        Raises:
            CacheFormatError: if a range lies in no block, or in several.
        """
        sums, blocks = self._sums, self.blocks_at(parts, positions)
        ends = sums.position[blocks] + sums.length[blocks]
        is_inside = (sums.file[blocks] == parts) & (sums.position[blocks] <= positions)
        if not (is_inside & (positions + lengths <= ends)).all():
            raise CacheFormatError("a range is not within one block; build the dataset again")
        return blocks

    def blocks_at(self, parts: Int64s, positions: Int64s) -> Int64s:
        """Return the last block that begins at or before each of these positions, if there is one."""
        places = np.searchsorted(self._keys, self._first[parts] + positions, side="right") - 1
        return self._blocks[places]

    def spans(self, blocks: list[int]) -> list[ByteSpan]:
        """Return the bytes of these blocks."""
        numbers, sums = np.array(blocks, np.int64), self._sums
        return spans_of(sums.file[numbers], sums.position[numbers], sums.length[numbers])


# The plan of a stream.


class _RangeCounter(RangePolicy):
    """Counts the requests that `Ranges` makes. Compared blocks count as read once they were announced."""

    def __init__(self, table: PartTable, sums: "Checksums | None") -> None:
        super().__init__(table.files.sizes, gap_of(table) if sums is None else GAP_BYTES, sums)
        self._table = table
        self._cost = self._rows = np.zeros(2, np.int64)
        self._kept = np.zeros(2, np.int64)

    @property
    def _has_room(self) -> bool:
        """Whether no block was dropped for room: then all of them are kept."""
        return self.sums is not None and int(self._rows[1]) <= MOST_CHECKED_BYTES

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
        for block in _without_repetitions(blocks):
            self._find([block], is_kept=False, is_urgent=True)
            self._request_ahead([block])

    def _put(self, extent: Extent, *, is_urgent: bool) -> None:
        self._cost += 1, extent.size_bytes

    def all_pages(self, fields: set[int], kept: Kept) -> int:
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


class _PlannedWindow:
    """The blocks that a window would hold; each is held once."""

    def __init__(self, counter: _RangeCounter) -> None:
        self._counter = counter

    def add(self, files: Int64s, positions: Int64s, lengths: Int64s) -> None:
        self._counter.add_to_window(self, files, positions, lengths)

    def find(self, joined_start: int, span: ByteSpan, /) -> Extent | None:
        return None

    def make(self, span: ByteSpan, joined_start: int, /) -> Extent:
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
        is_block: bool = False,
    ) -> Announced:
        """Count the requests for these records, which are announced together, or held as a block.

        Args:
            indices: The indices of the records.
            fields: Their fields; all if not given.
            stretches: Which bytes of the values of the one field are announced.
            is_block: Whether the records are held as a block.
        """
        numbers = range(len(self._table.fields)) if fields is None else fields
        for number in numbers:
            self._records[number] = self._records.get(number, 0) + len(indices)
        parts, rows = self._parts.locate(indices)
        away = self._parts.are_records_away(parts)
        if away is None:
            return Announced()
        is_window = is_block and self._counter.sums is None  # compared blocks are kept by their use
        self._held = _PlannedWindow(self._counter) if is_window else self._counter.new_held()
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
