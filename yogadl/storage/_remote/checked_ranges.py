"""Read ranges of a cache's parts out of whole blocks, each compared with its checksum when it arrives."""

import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
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
    runs_of,
)
from yogadl.storage._remote.ranges import Ranges

# The bytes of blocks that one read holds at a time, however many blocks the batch needs.
_AT_ONCE_BYTES: Final = 32 * 2**20
# The most announced blocks that are kept; the oldest are dropped first.
_MOST_ANNOUNCED: Final = 2**16
_MOST_ANNOUNCEMENTS: Final = 8  # the announcements that are kept of each block; the oldest are dropped first


class _Block:
    """A block that is being read, or was read and compared.

    Attributes:
        content: The bytes of the block; ``None`` until they were compared, and if reading failed.
        done: Set once the block was read and compared, or reading failed.
    """

    __slots__ = ("content", "done")

    def __init__(self) -> None:
        self.content: bytes | None = None
        self.done = threading.Event()


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

    __slots__ = ("blocks", "is_requested", "next", "size_bytes", "triggers_requests")

    def __init__(self, blocks: list[int], size_bytes: int, *, triggers_requests: bool) -> None:
        self.blocks = blocks
        self.size_bytes = size_bytes
        self.triggers_requests = triggers_requests
        self.is_requested = False
        self.next: _Chunk | None = None


class Announced:
    """The blocks of one field that were announced shortly before.

    Attributes:
        last: The chunk that was announced last.
    """

    def __init__(self) -> None:
        self.last: _Chunk | None = None
        self._recent: dict[int, int] = {}  # sizes by block, in order of the last announcement
        self._recent_bytes = 0

    def new(self, blocks: Int64s, lengths: Int64s, fields: int) -> Iterator[int]:
        """Yield those of these blocks that were not announced shortly before.

        `lengths` has the size of each block of the cache, and `fields` is the number of fields that share the
        room for kept blocks.
        """
        for block in runs_of(blocks):
            known, length = block in self._recent, int(lengths[block])
            self._recent_bytes -= self._recent.pop(block, 0)
            self._recent[block] = length
            self._recent_bytes += length
            while self._recent_bytes > MOST_CHECKED_BYTES // 2 // fields and len(self._recent) > 1:
                self._recent_bytes -= self._recent.pop(next(iter(self._recent)))
            if not known:
                yield block


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
        self._kept: dict[int, _Block] = {}  # blocks of small fields
        self._held: dict[int, _Block] = {}  # other blocks, the most recently used at the end
        self._held_bytes = 0
        self._chunks: dict[int, deque[_Chunk]] = {}  # by block: the chunks announced with it and not read yet
        self._announced: dict[int, Announced] = {}  # by field, its rows and its heap apart

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
            announced = self._announced.setdefault(self._sums.group_of(int(blocks[0])), Announced())
            is_first = True
            new = announced.new(blocks, self._sums.length, len(self._announced))
            for group, size_bytes in grouped(new, self._sums.length):
                chunk = _Chunk(group, size_bytes, triggers_requests=is_first)
                is_first = False
                if announced.last is not None:
                    announced.last.next = chunk
                announced.last = chunk
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
            for block, content in self._checked(group, keeps_pages=keeps_pages):
                base = int(self._sums.position[block])
                for number in members[block]:
                    start = int(positions[number]) - base
                    # A copy, because a view of one row would keep the whole block in memory.
                    contents[number] = content[start : start + int(lengths[number])]
        return contents

    def _checked(self, blocks: list[int], *, keeps_pages: bool) -> list[tuple[int, bytes]]:
        """Return these blocks and their bytes, which were compared."""
        new_blocks: dict[int, _Block] = {}
        try:
            with self._lock:
                self._reset_after_fork()
                self._request_ahead(blocks)
                entries = {block: self._kept.get(block) or self._held.get(block) for block in blocks}
                for block in blocks:
                    if entries[block] is None:
                        entries[block] = new_blocks[block] = _Block()
                        self._keep(block, new_blocks[block], keeps_pages=keeps_pages)
                self._renew(blocks)
            if new_blocks:
                self._fill(new_blocks)
        finally:
            failed = [block for block, entry in new_blocks.items() if entry.content is None]
            if failed:
                with self._lock:
                    for block in failed:
                        self._drop(block, new_blocks[block])
            for entry in new_blocks.values():
                entry.done.set()
        return [
            (block, self._content_of(block, entry, keeps_pages=keeps_pages))
            for block, entry in entries.items()
        ]

    def _content_of(self, block: int, entry: _Block | None, *, keeps_pages: bool) -> bytes:
        """Wait for the content of a block, and return it."""
        assert entry is not None
        entry.done.wait()
        if entry.content is not None:
            return entry.content
        [(_, content)] = self._checked(
            [block], keeps_pages=keeps_pages
        )  # another reader's request failed; try it here
        return content

    def _fill(self, blocks: dict[int, _Block]) -> None:
        """Read and compare these blocks."""
        sums, numbers = self._sums, np.fromiter(blocks, np.int64)
        self._ranges.in_threads(sums.load, sums.missing(numbers))
        received = self._ranges.read(*self._places.where(numbers), keeps_pages=False)
        for (block, entry), content in zip(blocks.items(), received, strict=True):
            whole = bytes(content)  # a copy: the buffer received may be larger than this block
            sums.compare(block, whole)
            entry.content = whole

    def _keep(self, block: int, entry: _Block, *, keeps_pages: bool) -> None:
        if keeps_pages:
            self._kept[block] = entry
        else:
            self._held[block] = entry
            self._held_bytes += int(self._sums.length[block])

    def _drop(self, block: int, entry: _Block) -> None:
        if self._kept.get(block) is entry:
            del self._kept[block]
        if self._held.get(block) is entry:
            del self._held[block]
            self._held_bytes -= int(self._sums.length[block])

    def _renew(self, blocks: list[int]) -> None:
        """Mark these blocks as most recently used; drop the least recently used ones that exceed the room."""
        for block in blocks:
            if block in self._held:
                self._held[block] = self._held.pop(block)
        while self._held_bytes > MOST_CHECKED_BYTES:
            self._drop(*next(iter(self._held.items())))

    def _request_ahead(self, blocks: list[int]) -> None:
        """Request the blocks that were announced together with these blocks and after them."""
        most_bytes = AHEAD_BYTES // max(1, len(self._announced))
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
        new = [block for block in blocks if block not in self._kept and block not in self._held]
        if new:
            self._ranges.announce(*self._places.where(new), keeps_pages=False)

    def _reset_after_fork(self) -> None:
        if os.getpid() != self._pid:
            self._reset()
