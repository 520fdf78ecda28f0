"""Read ranges of a cache's parts out of whole blocks, each compared with its checksum when it arrives."""

import os
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from yogadl._core.process import ProcessLock
from yogadl._core.protocols import Int64s
from yogadl._format.checks import Checksums
from yogadl.storage._remote.planning import (
    AHEAD_BYTES,
    MOST_CHECKED_BYTES,
    BlockPlaces,
    full_of,
    grouped,
    new_blocks,
    spans_of,
)
from yogadl.storage._remote.ranges import Ranges
from yogadl.storage._remote.requests import Extent, Extents

# The bytes of blocks that one read holds at a time, however many blocks the batch needs.
_AT_ONCE_BYTES: Final = 32 * 2**20
# The most announced blocks that are kept; the oldest are dropped first.
_MOST_ANNOUNCED: Final = 2**16
_MOST_ANNOUNCEMENTS: Final = 8  # the announcements that are kept of each block; the oldest are dropped first


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


class CheckedRanges:
    """Read ranges as `Ranges` does, but from whole blocks, each compared with its checksum.

    The bytes returned are the bytes that were compared. A block that several rows of a batch lie in, or that
    several threads need, is requested once; it is kept for the next batches as long as there is room. Safe
    to use from several threads, and after a fork; not picklable.

    Args:
        ranges: Reads the blocks.
        sums: The checksums of the blocks.
    """

    def __init__(self, ranges: Ranges, sums: Checksums) -> None:
        self._ranges = ranges
        self._sums = sums
        self._places = BlockPlaces(sums)
        self._lock = ProcessLock()
        self._reset()

    def _reset(self) -> None:
        """Reset the state: at the start, and after a fork, since the child has no threads of requests."""
        self._pid = os.getpid()
        self._blocks = Extents()  # by number; those of small fields are kept
        self._chunks: dict[int, deque[_Chunk]] = {}  # by block: the chunks announced with it and not read yet
        # By field, its rows and its heap apart: the blocks announced shortly before, and the last chunk.
        self._recent: defaultdict[int, Extents] = defaultdict(Extents)
        self._last: dict[int, _Chunk] = {}

    def announce(self, parts: Int64s, positions: Int64s, lengths: Int64s, *, keeps_pages: bool) -> None:
        """Announce ranges that will be read soon, in this order; reading triggers requests for them.

        See `AwayParts`.
        """
        blocks = self._places.find(*full_of(parts, positions, lengths))
        if not len(blocks):
            return
        with self._lock:
            self._reset_after_fork()
            if keeps_pages:
                self._request(np.unique(blocks).tolist())
                return
            field = self._sums.group_of(int(blocks[0]))
            recent = self._recent[field]
            most_bytes = MOST_CHECKED_BYTES // 2 // len(self._recent)
            new = new_blocks(recent, blocks, self._places, most_bytes, least=1)
            is_first = True
            for group, size_bytes in grouped(new, self._sums.length):
                chunk = _Chunk(group, size_bytes, triggers_requests=is_first)
                is_first = False
                if field in self._last:
                    self._last[field].next = chunk
                self._last[field] = chunk
                for block in group:
                    self._chunks.setdefault(block, deque(maxlen=_MOST_ANNOUNCEMENTS)).append(chunk)
            while len(self._chunks) > _MOST_ANNOUNCED:
                del self._chunks[next(iter(self._chunks))]

    def read(
        self,
        parts: Int64s,
        positions: Int64s,
        lengths: Int64s,
        *,
        keeps_pages: bool,
        is_announced: bool = True,
    ) -> Sequence[bytes | memoryview]:
        """Return the bytes of these ranges, waiting for those that are not here; see `AwayParts`.

        `is_announced` has no effect: blocks stay held in any case.

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
        extents, new = dict[int, Extent](), dict[int, Extent]()
        try:
            with self._lock:
                self._reset_after_fork()
                self._request_ahead(blocks)
                for block, span in zip(blocks, spans_of(*self._places.where(blocks)), strict=True):
                    extent = self._blocks.get(block)
                    if extent is None:
                        extent = new[block] = Extent(*span)
                        self._blocks.put({block}, extent, is_kept=keeps_pages)
                    extents[block] = extent
                self._renew(blocks)
            if new:
                self._fill(new)
        finally:
            failed = {block: extent for block, extent in new.items() if not extent.is_done}
            if failed:
                with self._lock:
                    for block, extent in failed.items():
                        self._blocks.remove(block, extent)
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
        received = self._ranges.read(*self._places.where(numbers), keeps_pages=False)
        for (block, extent), content in zip(new.items(), received, strict=True):
            whole = bytes(content)  # a copy: the buffer received may be larger than this block
            sums.compare(block, whole)
            extent.end(whole)

    def _renew(self, blocks: list[int]) -> None:
        """Mark these blocks as most recently used; drop the least recently used ones that exceed the room."""
        self._blocks.renew(blocks)
        self._blocks.shrink(MOST_CHECKED_BYTES)

    def _request_ahead(self, blocks: list[int]) -> None:
        """Request the blocks that were announced together with these blocks and after them."""
        most_bytes = AHEAD_BYTES // max(1, len(self._recent))
        for block in blocks:
            chunks = self._chunks.get(block, ())
            place = next((place for place, chunk in enumerate(chunks) if chunk.triggers_requests), None)
            if place is None:
                continue
            passed = [self._chunks[block].popleft() for _ in range(place + 1)]
            if not chunks:
                del self._chunks[block]
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
        new = [block for block in blocks if block not in self._blocks]
        if new:
            self._ranges.announce(*self._places.where(new), keeps_pages=False)

    def _reset_after_fork(self) -> None:
        if os.getpid() != self._pid:
            self._reset()
