"""Read byte ranges of a bucket's objects: many at once, and ahead of the reader, compared or not.

`CheckedRanges` reads them out of whole blocks, each compared with its checksum when it arrives.
"""

import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from yogadl._core.process import PerProcess, ProcessLock
from yogadl._core.protocols import Int64s
from yogadl._format.files import FileId
from yogadl._format.part_file import HeldRows
from yogadl.errors import CacheFormatError
from yogadl.storage._remote.planning import (
    AHEAD_BYTES,
    GAP_BYTES,
    MOST_CHECKED_BYTES,
    PAGE_BYTES,
    AnnouncedRanges,
    BlockPlaces,
    RangePolicy,
    full_of,
    grouped,
    new_blocks,
    spans_of,
)
from yogadl.storage._remote.requests import DaemonThreads, Extent, Extents, NotHeldError, RequestCount

if TYPE_CHECKING:
    from yogadl._format.checks import Checksums

# A request mostly waits: for 5,000 a second from a store that takes 10 ms, this many threads are needed.
_THREADS: Final = 64
# The bytes of blocks that one read holds at a time, however many blocks the batch needs.
_AT_ONCE_BYTES: Final = 32 * 2**20
# The most announced blocks that are kept; the oldest are dropped first.
_MOST_ANNOUNCED: Final = 2**16
_MOST_ANNOUNCEMENTS: Final = 8  # the announcements that are kept of each block; the oldest are dropped first


# Returns bytes of a file, from a position on, after a check that they are that file's.
Fetch = Callable[[FileId, int, int], bytes | memoryview]


class Ranges(RangePolicy):
    """Read ranges of a cache's files, from windows if these have them.

    Safe to use from several threads, and after a fork; not picklable.

    Args:
        fetch: Fetches a range, in one of the threads that make requests.
        sizes: The size of each file.
        count: Counts requests and bytes, and enforces limits.
        gap_bytes: The largest gap between ranges that one request spans.
    """

    def __init__(self, fetch: Fetch, sizes: Int64s, count: RequestCount, gap_bytes: int = GAP_BYTES) -> None:
        super().__init__(sizes, gap_bytes)
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
            CacheFormatError: if the store lacks the object, or has another one.
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
        if keeps_pages:
            with self._lock:
                pages = self._find_pages(self._numbering.numbers(files, positions, lengths), is_urgent=True)
            bases = self._numbering.first[files].tolist()
            return [
                _joined(pages, base, position, length)
                for base, (position, length) in zip(bases, each, strict=True)
            ]
        keys, spans = self.keys(files, positions), spans_of(files, positions, lengths)
        with self._lock:
            handle = held if isinstance(held, AnnouncedRanges) else None
            extents = self._take(keys, spans, handle, self._known().living_windows(), is_urgent=True)
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

    def in_threads(self, work: Callable[[int], None], items: Sequence[int]) -> None:
        """Call a function with each of these items, in the threads that make requests."""
        if len(items) > 1:
            list(self._threads().map(work, items))
        else:
            list(map(work, items))

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


@dataclass(slots=True, eq=False)
class _Chunk:
    """Some announced blocks that are requested together.

    Attributes:
        blocks: The numbers of the blocks.
        size_bytes: The size of all of them.
        triggers_requests: Whether a read of one of these blocks triggers the requests for this chunk and the
            next ones: true for the first chunk of an announcement, and for chunks that were requested. Other
            chunks may be left over from a reader that stopped early, and requests for them would be wasted.
        is_requested: Whether the blocks were requested.
        next: The chunk that was announced after this one.
    """

    blocks: list[int]
    size_bytes: int
    triggers_requests: bool
    is_requested: bool = False
    next: "_Chunk | None" = None


class _KnownBlocks:
    """The blocks that a process has, or was told of.

    Attributes:
        blocks: Those that were compared, by number; those of small fields are kept.
        coming: What keeps the bytes that were requested ahead, until they are compared, by block.
        chunks: By block, the chunks that were announced with it and not read yet.
        recent: By field, its rows and its heap apart, the blocks announced shortly before.
        last: By field, the chunk announced last.
    """

    def __init__(self) -> None:
        self.blocks = Extents()
        self.coming: dict[int, AnnouncedRanges] = {}
        self.chunks: dict[int, deque[_Chunk]] = {}
        self.recent: defaultdict[int, Extents] = defaultdict(Extents)
        self.last: dict[int, _Chunk] = {}


class CheckedRanges:
    """Read ranges as `Ranges` does, but from whole blocks, each compared with its checksum.

    The bytes returned are the bytes that were compared. A block that several rows of a batch lie in, or that
    several threads need, is requested once; it is kept for the next batches as long as there is room. Safe
    to use from several threads, and after a fork; not picklable.

    Args:
        ranges: Reads the blocks.
        sums: The checksums of the blocks.
    """

    def __init__(self, ranges: Ranges, sums: "Checksums") -> None:
        self._ranges = ranges
        self._sums = sums
        self._places = BlockPlaces(sums)
        self._lock = ProcessLock()
        self._known = PerProcess(_KnownBlocks)

    def announce(
        self, parts: Int64s, positions: Int64s, lengths: Int64s, held: HeldRows, *, keeps_pages: bool
    ) -> None:
        """Announce ranges that will be read soon, in this order; reading triggers requests for them.

        See `AwayParts`. `held` is not needed: blocks are kept by their use.
        """
        blocks = self._places.find(*full_of(parts, positions, lengths))
        if not len(blocks):
            return
        with self._lock:
            if keeps_pages:
                self._request(np.unique(blocks).tolist())
                return
            field = self._sums.group_of(int(blocks[0]))
            known = self._known()
            recent = known.recent[field]
            most_bytes = MOST_CHECKED_BYTES // 2 // len(known.recent)
            new = new_blocks(recent, blocks, self._places, most_bytes, least=1)
            is_first = True
            for group, size_bytes in grouped(new, self._sums.length):
                chunk = _Chunk(group, size_bytes, triggers_requests=is_first)
                is_first = False
                if field in known.last:
                    known.last[field].next = chunk
                known.last[field] = chunk
                for block in group:
                    known.chunks.setdefault(block, deque(maxlen=_MOST_ANNOUNCEMENTS)).append(chunk)
            while len(known.chunks) > _MOST_ANNOUNCED:
                del known.chunks[next(iter(known.chunks))]

    def read(
        self,
        parts: Int64s,
        positions: Int64s,
        lengths: Int64s,
        *,
        keeps_pages: bool,
        held: HeldRows | None = None,
    ) -> Sequence[bytes | memoryview]:
        """Return the bytes of these ranges, waiting for those that are not here; see `AwayParts`.

        `held` has no effect: blocks are kept in any case.

        Raises:
            CacheFormatError: if a block has other bytes than were written, or the store has no such object.
            StorageError: if the store does not answer.
            SpendingError: if a limit on spending is reached.
        """
        contents: list[bytes | memoryview] = [b""] * len(parts)
        full = np.flatnonzero(lengths)
        blocks = self._places.find(parts[full], positions[full], lengths[full])
        members: dict[int, list[int]] = {}
        for number, block in zip(full.tolist(), blocks.tolist(), strict=True):
            members.setdefault(block, []).append(number)
        for group, _ in grouped(members, self._sums.length, _AT_ONCE_BYTES):
            for block, extent in self._checked(group, keeps_pages=keeps_pages):
                for number in members[block]:
                    # A copy, because a view of one row would keep the whole block in memory.
                    contents[number] = bytes(extent.slice(int(positions[number]), int(lengths[number])))
        return contents

    def _checked(self, blocks: list[int], *, keeps_pages: bool) -> list[tuple[int, Extent]]:
        """Return these blocks, which have arrived and were compared."""
        extents, new, known = dict[int, Extent](), dict[int, Extent](), self._known().blocks
        try:
            with self._lock:
                self._request_ahead(blocks)
                for block, span in zip(blocks, spans_of(*self._places.where(blocks)), strict=True):
                    extent = known.get(block)
                    if extent is None:
                        extent = new[block] = Extent(*span)
                        known.put({block}, extent, is_kept=keeps_pages)
                    extents[block] = extent
                self._renew(blocks)
            if new:
                self._fill(new)
        finally:
            failed = {block: extent for block, extent in new.items() if not extent.is_done}
            if failed:
                with self._lock:
                    for block, extent in failed.items():
                        known.remove(block, extent)
                for extent in failed.values():
                    extent.end(error=RuntimeError("the block was not read"))
        found = []
        for block, extent in extents.items():
            # If another reader's request failed, this one tries it.
            found += (
                [(block, extent)] if extent.arrives() else self._checked([block], keeps_pages=keeps_pages)
            )
        return found

    def _fill(self, new: dict[int, Extent]) -> None:
        """Read and compare these blocks."""
        sums, numbers = self._sums, np.fromiter(new, np.int64)
        self._ranges.in_threads(sums.load, sums.missing(numbers))
        with self._lock:
            held = [self._known().coming.pop(block, None) for block in new]
        received = self._ranges.read(*self._places.where(numbers), keeps_pages=False)
        del held
        for (block, extent), content in zip(new.items(), received, strict=True):
            whole = bytes(content)  # a copy: the buffer received may be larger than this block
            sums.compare(block, whole)
            extent.end(whole)

    def _renew(self, blocks: list[int]) -> None:
        """Mark these blocks as most recently used; drop the least recently used ones that exceed the room."""
        known = self._known().blocks
        known.renew(blocks)
        known.shrink(MOST_CHECKED_BYTES)

    def _request_ahead(self, blocks: list[int]) -> None:
        """Request the blocks that were announced together with these blocks and after them."""
        known = self._known()
        most_bytes = AHEAD_BYTES // max(1, len(known.recent))
        for block in blocks:
            chunks = known.chunks.get(block, ())
            place = next((place for place, chunk in enumerate(chunks) if chunk.triggers_requests), None)
            if place is None:
                continue
            passed = [known.chunks[block].popleft() for _ in range(place + 1)]
            if not chunks:
                del known.chunks[block]
            chunk: _Chunk | None = passed[-1]
            ahead_bytes = -passed[-1].size_bytes
            while chunk is not None and ahead_bytes < most_bytes:
                if not chunk.is_requested:
                    chunk.is_requested = chunk.triggers_requests = True
                    self._request(chunk.blocks)
                ahead_bytes += chunk.size_bytes
                chunk = chunk.next

    def _request(self, blocks: list[int]) -> None:
        self._renew(blocks)
        known = self._known()
        new = [block for block in blocks if block not in known.blocks]
        if new:
            held = AnnouncedRanges(self._ranges)
            held.add(*self._places.where(new))
            known.coming.update(dict.fromkeys(new, held))
            while len(known.coming) > _MOST_ANNOUNCED:
                del known.coming[next(iter(known.coming))]
