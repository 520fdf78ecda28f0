"""Read byte ranges of a bucket's objects: many at once, and ahead of the reader, compared or not.

`RangePolicy` decides which requests that takes; `Ranges` makes them, and the plan of a stream counts them.
"""

import itertools
import weakref
from bisect import bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from yogadl._core.process import PerProcess, ProcessLock
from yogadl._core.protocols import Int64s
from yogadl._format.files import FileId, HeldRows
from yogadl._format.table import PartTable, running_sums, runs_of
from yogadl.errors import CacheFormatError
from yogadl.storage._remote.requests import DaemonThreads, Extent, Extents, NotHeldError, RequestCount

if TYPE_CHECKING:
    from yogadl._format.checks import Checksums

Held = TypeVar("Held")
Made = TypeVar("Made", bound=Extent)

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


def gap_of(table: PartTable, *, is_compared: bool) -> int:
    """Return the largest gap between ranges of a version, compared or not, that one request spans."""
    return INTERLEAVED_GAP_BYTES if table.files.are_interleaved and not is_compared else GAP_BYTES


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


def without_repetitions(blocks: Int64s) -> list[int]:
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
        new = without_repetitions(blocks)
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


class RangeHolder(Generic[Made]):
    """Ranges that are kept while a stream reads from them, by `HeldRanges` or by a plan.

    The caller of its methods has the lock of `Ranges`.
    """

    def __init__(self) -> None:
        # The ranges, and the start of each if all files were joined, in order.
        self._held: list[tuple[int, Made]] = []

    def find(self, joined_start: int, span: ByteSpan) -> Made | None:
        """Return the range that has these bytes, which begin there if all files were joined."""
        file, _, stop = span
        place = bisect_right(self._held, joined_start, key=itemgetter(0)) - 1
        if place < 0:
            return None
        _, extent = self._held[place]
        is_whole = extent.file == file and stop <= extent.stop and not extent.has_failed
        return extent if is_whole else None

    def make(self, span: ByteSpan, joined_start: int) -> Made:
        """Return a new range, which `find` returns from now on; it begins there if all files were joined."""
        extent = self._new(span)
        insort(self._held, (joined_start, extent), key=itemgetter(0))
        return extent

    def _new(self, span: ByteSpan) -> Made:
        raise NotImplementedError


class _KnownRanges:
    """The ranges that a process has or has requested.

    Attributes:
        rows: The ranges that handles keep, by their position if all files were joined.
        handles: The handles, the oldest first.
        windows: The windows.
        pages: The pages or compared blocks, by number; pages of small fields are kept.
        blocks: The handles of compared blocks, the oldest first.
        sound: The blocks of each range that have their checksums.
    """

    def __init__(self) -> None:
        self.rows: weakref.WeakValueDictionary[int, Extent] = weakref.WeakValueDictionary()
        self.handles: list[weakref.ref[AnnouncedRanges]] = []
        self.windows: list[weakref.ref[RangeHolder[Any]]] = []
        self.pages = Extents()
        self.blocks: list[weakref.ref[AnnouncedBlocks]] = []
        self.sound: weakref.WeakKeyDictionary[Extent, set[int]] = weakref.WeakKeyDictionary()


def living(references: Iterable[weakref.ref[Held]]) -> list[Held]:
    """Return those of these handles or windows that are still held, in the same order."""
    return [held for reference in references if (held := reference()) is not None]


class RangePolicy:
    """Decides which requests the reads of a cache take: `Ranges` makes them, a plan counts them.

    Announced bytes are requested once for as long as a handle has them. Small fields are read by pages, which
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
        self._known = PerProcess(_KnownRanges)  # a forked child has no threads that would read for it

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
        known.blocks = [weakref.ref(each) for each in living(known.blocks) if each is not held]
        known.blocks.append(weakref.ref(held))
        held.expect(blocks)

    def _request_ahead(self, blocks: list[int]) -> None:
        """Request the blocks that were announced after these, which are being read."""
        handles = living(self._known().blocks)
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

    def add_to_window(
        self, window: RangeHolder[Any], files: Int64s, positions: Int64s, lengths: Int64s
    ) -> None:
        """Request those of these ranges that a window does not have, merged into as few as possible."""
        files, positions, lengths = full_of(files, positions, lengths)
        if len(files) > 1:
            cells = positions // MOST_RANGE_BYTES
            _, (files, positions, lengths) = runs_of(files, positions, lengths, cells[1:] == cells[:-1])
        keys, spans = self.keys(files, positions), spans_of(files, positions, lengths)
        with self._lock:
            known = self._known()
            known.windows = [weakref.ref(each) for each in {*living(known.windows), window}]
            missing = [number for number, span in enumerate(spans) if window.find(keys[number], span) is None]
            for span, members in merged([spans[number] for number in missing], HELD_GAP_BYTES):
                self._put(window.make(span, keys[missing[members[0]]]), is_urgent=False)

    def _take(
        self,
        keys: list[int],
        spans: Sequence[ByteSpan],
        held: AnnouncedRanges | None,
        windows: Sequence[RangeHolder[Any]] = (),
        *,
        is_urgent: bool,
    ) -> list[Extent]:
        """Return the range of each of these spans, and request those that neither handles nor windows have.

        `held` keeps them all.
        """
        found, rows = dict[int, Extent](), self._known().rows
        for number, (key, span) in enumerate(zip(keys, spans, strict=True)):
            extent = _found(rows, windows, key, span)
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
        handles = living(known.handles)
        known.handles = list(map(weakref.ref, handles))
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
            ahead_bytes = sum(handle.ahead_bytes for handle in living(self._known().blocks))
            pages.shrink(MOST_CHECKED_BYTES + ahead_bytes)
        return found, set(missing)

    def _requested(self, spans: Sequence[ByteSpan], *, is_urgent: bool) -> list[tuple[Extent, list[int]]]:
        """Request these spans; return each range, and the numbers of the spans in it."""
        requested = [(Extent(*span), members) for span, members in merged(spans, self.gap_bytes)]
        for extent, _ in reversed(requested) if is_urgent else requested:
            self._put(extent, is_urgent=is_urgent)
        return requested


def _found(
    rows: Mapping[int, Extent], windows: Sequence[RangeHolder[Any]], key: int, span: ByteSpan
) -> Extent | None:
    """Return the range of handles or of windows that has a span."""
    extent = rows.get(key)
    if extent is not None and extent.stop >= span[2] and not extent.has_failed:
        return extent
    return next(filter(None, (window.find(key, span) for window in windows)), None)


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


# A request mostly waits: for 5,000 a second from a store that takes 10 ms, this many threads are needed.
_THREADS: Final = 64
# The bytes of blocks that one read holds at a time, however many blocks the batch needs.
_AT_ONCE_BYTES: Final = 32 * 2**20


# Returns bytes of a file, from a position on, after a check that they are that file's.
Fetch = Callable[[FileId, int, int], bytes | memoryview]


class Ranges(RangePolicy):
    """Read ranges of a cache's files, from windows if these have them.

    If blocks are compared, the bytes returned are the bytes that were compared. Safe to use from several
    threads, and after a fork; not picklable.

    Args:
        fetch: Fetches a range, in one of the threads that make requests.
        sizes: The size of each file.
        count: Counts requests and bytes, and enforces limits.
        gap_bytes: The largest gap between ranges that one request spans.
        sums: The checksums of the blocks, or ``None`` if ranges are not compared.
    """

    def __init__(
        self,
        fetch: Fetch,
        sizes: Int64s,
        count: RequestCount,
        gap_bytes: int = GAP_BYTES,
        sums: "Checksums | None" = None,
    ) -> None:
        super().__init__(sizes, gap_bytes, sums)
        self._fetch = fetch
        self._count = count
        self._damage: dict[FileId, CacheFormatError] = {}
        self._threads = PerProcess(partial(DaemonThreads, _THREADS, "yogadl-ranges"))

    @property
    def received(self) -> tuple[int, int]:
        """The number of requests that this process made, and the number of bytes received."""
        return self._count.totals

    def read(
        self,
        files: Int64s,
        positions: Int64s,
        lengths: Int64s,
        *,
        keeps_pages: bool,
        held: HeldRows | None = None,
    ) -> Sequence[bytes | memoryview]:
        """Return the bytes of these ranges, waiting for those that are not here; see `AwayParts`.

        Raises:
            CacheFormatError: if the store lacks the object, or has another one, or a compared block has other
                bytes than were written.
            StorageError: if the store does not answer.
            SpendingError: if a limit on spending is reached.
        """
        self.raise_if_damaged(files)
        if not lengths.all():
            some = np.flatnonzero(lengths)
            where = files[some], positions[some], lengths[some]
            found = iter(self.read(*where, keeps_pages=keeps_pages, held=held))
            return [next(found) if length else b"" for length in lengths.tolist()]
        each = zip(positions.tolist(), lengths.tolist(), strict=True)
        if self.sums is not None:
            return self._compared(self.sums, files, positions, lengths, is_kept=keeps_pages)
        if keeps_pages:
            pages = self._arrived(self._pages.numbers(files, positions, lengths), is_kept=True)
            bases = self._pages.first[files].tolist()
            return [
                _joined(pages, base, position, length)
                for base, (position, length) in zip(bases, each, strict=True)
            ]
        keys, spans = self.keys(files, positions), spans_of(files, positions, lengths)
        with self._lock:
            handle = held if isinstance(held, AnnouncedRanges) else None
            extents = self._take(keys, spans, handle, living(self._known().windows), is_urgent=True)
        content, gone = list[bytes | memoryview](), list[int]()
        for extent, (position, length) in zip(extents, each, strict=True):
            try:
                content.append(extent.slice(position, length))
            except NotHeldError:
                gone.append(len(content))
                content.append(b"")
        if gone:
            with self._lock:
                again = [keys[number] for number in gone], [spans[number] for number in gone]
                extents = self._take(*again, None, is_urgent=True)
            for number, extent in zip(gone, extents, strict=True):
                content[number] = extent.slice(int(positions[number]), int(lengths[number]))
        return content

    def read_joined(
        self,
        files: Int64s,
        positions: Int64s,
        lengths: Int64s,
        *,
        keeps_pages: bool,
        held: HeldRows | None = None,
    ) -> Iterator[bytes | memoryview]:
        """Yield the bytes that `read` returns, of all ranges end to end, in fewer pieces.

        Ranges of which each begins where one ends are one piece if they lie in one page, block or range that
        is here or requested; so nothing is requested that `read` would not request.
        """
        files, positions, lengths = full_of(files, positions, lengths)
        if not len(files):
            return
        are_joined: bool | NDArray[np.bool_] = True
        if self.sums is not None:
            blocks = self._blocks_of(files, positions, lengths)
            are_joined = blocks[1:] == blocks[:-1]
        elif keeps_pages:
            first, last = positions // PAGE_BYTES, (positions + lengths - 1) // PAGE_BYTES
            are_joined = (first[:-1] == last[:-1]) & (first[:-1] == last[1:])
        firsts, runs = runs_of(files, positions, lengths, are_joined)
        if keeps_pages or self.sums is not None or len(firsts) == len(files):
            yield from self.read(*runs, keeps_pages=keeps_pages, held=held)
            return
        keys, spans = self.keys(*runs[:2]), spans_of(*runs)
        with self._lock:
            rows, windows = self._known().rows, living(self._known().windows)
            extents = [_found(rows, windows, key, span) for key, span in zip(keys, spans, strict=True)]
        counts = np.diff(firsts, append=len(files))
        rest = np.repeat([extent is None for extent in extents], counts)
        where = files[rest], positions[rest], lengths[rest]
        pieces = iter(self.read(*where, keeps_pages=False, held=held) if rest.any() else ())
        for run, (extent, (_, start, stop), count) in enumerate(
            zip(extents, spans, counts.tolist(), strict=True)
        ):
            if extent is None:
                yield from itertools.islice(pieces, count)
                continue
            try:
                yield extent.slice(start, stop - start)
            except NotHeldError:
                its = slice(firsts[run], firsts[run] + count)
                yield from self.read(files[its], positions[its], lengths[its], keeps_pages=False, held=held)

    def _compared(
        self, sums: "Checksums", files: Int64s, positions: Int64s, lengths: Int64s, *, is_kept: bool
    ) -> Sequence[bytes | memoryview]:
        """Return the bytes of these ranges out of whole blocks that have their checksums."""
        contents: list[bytes | memoryview] = [b""] * len(files)
        members: dict[int, list[int]] = {}
        for number, block in enumerate(self._blocks_of(files, positions, lengths).tolist()):
            members.setdefault(block, []).append(number)
        for group in grouped(members, sums.length, _AT_ONCE_BYTES):
            missing = sums.missing(np.array(group))
            list(self._threads().map(sums.load, missing) if missing[1:] else map(sums.load, missing))
            for block, extent in self._arrived(group, is_kept=is_kept).items():
                self._compare(sums, block, extent)
                for number in members[block]:
                    # A copy, because a view of one row would keep the whole block in memory.
                    contents[number] = bytes(extent.slice(int(positions[number]), int(lengths[number])))
        return contents

    def _arrived(self, numbers: list[int], *, is_kept: bool) -> dict[int, Extent]:
        """Return these pages or blocks, after those that other readers have requested have arrived."""
        with self._lock:
            found, own = self._find(numbers, is_kept=is_kept, is_urgent=True)
            if self.sums is not None:
                self._request_ahead(numbers)
        failed = [number for number, each in found.items() if number not in own and not each.arrives()]
        if failed:  # the cause of another reader's error may have passed
            found |= self._arrived(failed, is_kept=is_kept)
        return found

    def _compare(self, sums: "Checksums", block: int, extent: Extent) -> None:
        """Compare a block with its checksum, the first time that this range is read from."""
        sound = self._known().sound
        with self._lock:
            if block in sound.get(extent, ()):
                return
        content = extent.slice(int(sums.position[block]), int(sums.length[block]))
        try:
            sums.compare(block, content)
        except CacheFormatError:
            with self._lock:  # it is requested again, as what a failed request was to read
                self._known().pages.remove(block, extent)
            raise
        with self._lock:
            sound.setdefault(extent, set()).add(block)

    def mark_damaged(self, file: FileId, error: CacheFormatError) -> None:
        """Refuse all further reads of a file, because its object has other bytes than its name says."""
        self._damage[file] = error

    def raise_if_damaged(self, files: Int64s) -> None:
        """Raise the error of one of these files, if a file was marked as damaged."""
        for file in self._damage.keys() & set(files.tolist()) if self._damage else ():
            raise self._damage[file]

    def _put(self, extent: Extent, *, is_urgent: bool) -> None:
        given_up = RuntimeError("the interpreter is shutting down: nothing is read any more")
        self._threads().put(
            partial(self._get, extent),
            partial(extent.end, error=given_up),
            is_urgent=is_urgent,
        )

    def _get(self, wanted: Extent) -> None:
        try:
            content = wanted.content(partial(self._content, wanted))
        except BaseException as error:  # noqa: BLE001  (every reader of the range raises it)
            wanted.end(error=error)
        else:
            wanted.end(content)

    def _content(self, wanted: Extent) -> bytes | memoryview:
        """Request a range."""
        self._count.take_request()
        content = self._fetch(wanted.file, wanted.start, wanted.size_bytes)
        self._count.add_answer(len(content))
        return content


def _joined(pages: dict[int, Extent], base: int, position: int, length: int) -> bytes | memoryview:
    """Return bytes that lie in one page, or in several that follow each other."""
    first, last = position // PAGE_BYTES, (position + length - 1) // PAGE_BYTES
    if first == last:
        return pages[base + first].slice(position, length)
    ends = [position, *(number * PAGE_BYTES for number in range(first + 1, last + 1)), position + length]
    return b"".join(
        pages[base + first + number].slice(start, stop - start)
        for number, (start, stop) in enumerate(itertools.pairwise(ends))
    )
