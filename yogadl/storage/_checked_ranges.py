"""Read ranges of a cache's parts out of whole blocks, each compared with its checksum when it arrives."""

import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from yogadl._format.checks import Checksums
from yogadl._format.table import before
from yogadl._lock import ProcessLock
from yogadl.errors import CacheFormatError
from yogadl.storage._ranges import Ranges

Int64s = NDArray[np.int64]

# Blocks are kept up to this, those that were used last: the next batches may need them, too.
MOST_CHECKED_BYTES: Final = 64 * 2**20
# However many a batch needs, so many bytes of them are in its hands at a time.
_AT_ONCE_BYTES: Final = 32 * 2**20
# So much is asked for ahead of what is read, of all fields together. A stream announces 32 MB of records, but
# if each lies in another block, those blocks may be a hundred times as large.
AHEAD_BYTES: Final = 32 * 2**20
# Blocks that are announced one after the other, up to this size, are asked for together.
TOGETHER_BYTES: Final = 8 * 2**20
# How many announced blocks are remembered; the oldest are forgotten first.
_MOST_ANNOUNCED: Final = 2**16
_MOST_TIMES: Final = 8  # that each of them is


class _Block:
    """A block on its way, or here and found sound.

    Attributes:
        content: Its bytes; ``None`` until they were compared, and for ever if that came to nothing.
        done: Set once it is decided.
    """

    __slots__ = ("content", "done")

    def __init__(self) -> None:
        self.content: bytes | None = None
        self.done = threading.Event()


class _Chunk:
    """Some blocks that are asked for together.

    Attributes:
        blocks: Which.
        size_bytes: How large they are together.
        is_wanted: Whether a read of one of them brings the next ones, too: once it was asked for, or where
            reading may begin. Others may have been left by who stopped early, and would be asked for in vain.
        is_asked: Whether they were asked for.
        next: What was announced after them.
    """

    __slots__ = ("blocks", "is_asked", "is_wanted", "next", "size_bytes")

    def __init__(self, blocks: list[int], size_bytes: int, *, is_wanted: bool) -> None:
        self.blocks = blocks
        self.size_bytes = size_bytes
        self.is_wanted = is_wanted
        self.is_asked = False
        self.next: _Chunk | None = None


class Announced:
    """Say which of the blocks that are announced, of one field, will not be here from a little before.

    Attributes:
        last: What was announced last.
    """

    def __init__(self) -> None:
        self.last: _Chunk | None = None
        self._recent: dict[int, int] = {}  # how large each is, the one that was announced last at the end
        self._recent_bytes = 0

    def together(self, blocks: Int64s, lengths: Int64s, fields: int) -> Iterator[tuple[list[int], int]]:
        """Yield them in the same order, those that are asked for together, and how large they are.

        `fields` says how many share the room for what is kept.
        """
        changes = np.flatnonzero(np.diff(blocks, prepend=-1))  # rows of one block mostly follow each other
        some, size_bytes = list[int](), 0
        for block, length in zip(blocks[changes].tolist(), lengths[changes].tolist(), strict=True):
            known = block in self._recent
            self._recent_bytes -= self._recent.pop(block, 0)
            self._recent[block] = length
            self._recent_bytes += length
            while self._recent_bytes > MOST_CHECKED_BYTES // 2 // fields and len(self._recent) > 1:
                self._recent_bytes -= self._recent.pop(next(iter(self._recent)))
            if known:
                continue
            if some and size_bytes + length > TOGETHER_BYTES:
                yield some, size_bytes
                some, size_bytes = [], 0
            some.append(block)
            size_bytes += length
        if some:
            yield some, size_bytes


class BlockPlaces:
    """Say in which block what is read lies.

    Args:
        sums: Of the cache.
    """

    def __init__(self, sums: Checksums) -> None:
        self._sums = sums
        self._first = before(sums.table.size_bytes)  # where each part begins, were all one after the other
        keys = self._first[sums.part] + sums.position
        full = np.flatnonzero(sums.length)
        self._blocks = full[np.argsort(keys[full])]
        self._keys = keys[self._blocks]

    def find(self, parts: Int64s, positions: Int64s, lengths: Int64s) -> Int64s:
        """Return the block of each of these ranges, which are not empty.

        Raises:
            CacheFormatError: if one lies in no block, or in several.
        """
        sums, blocks = self._sums, self.before(parts, positions)
        ends = sums.position[blocks] + sums.length[blocks]
        lies = (sums.part[blocks] == parts) & (sums.position[blocks] <= positions)
        if not (lies & (positions + lengths <= ends)).all():
            raise CacheFormatError("what is to be read lies in no one block; build the dataset again")
        return blocks

    def before(self, parts: Int64s, positions: Int64s) -> Int64s:
        """Return the last block that begins at or before each of these positions, if there is one."""
        places = np.searchsorted(self._keys, self._first[parts] + positions, side="right") - 1
        return self._blocks[places]


class CheckedRanges:
    """Read ranges as `Ranges` does, but out of whole blocks, each of which is as it was written.

    The bytes that are given are those that were compared. A block that several rows of a batch lie in, or
    several threads ask for, is requested once; it is kept for the next batches as long as there is room. Safe
    to use from several threads, and after a fork; not picklable.

    Args:
        ranges: Reads the blocks.
        sums: What they must hash to.
    """

    def __init__(self, ranges: Ranges, sums: Checksums) -> None:
        self._ranges = ranges
        self._sums = sums
        self._places = BlockPlaces(sums)
        self._lock = ProcessLock()
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Forget all: at first, and in a forked process, where nobody brings what was on its way."""
        self._pid = os.getpid()
        self._kept: dict[int, _Block] = {}  # those of small fields
        self._held: dict[int, _Block] = {}  # others, the one that was used last at the end
        self._held_bytes = 0
        self._chunks: dict[int, deque[_Chunk]] = {}  # by block: where it was announced, and not read yet
        self._announced: dict[int, Announced] = {}  # by field, its rows and its heap apart

    def expect(self, parts: Int64s, positions: Int64s, lengths: Int64s, *, keeps: bool) -> None:
        """Say what will soon be read, in this order; see `AwayParts`. It is asked for as reading goes on."""
        full = lengths > 0
        blocks = self._places.find(parts[full], positions[full], lengths[full])
        if not len(blocks):
            return
        with self._lock:
            self._see_fork()
            if keeps:
                self._ask(np.unique(blocks).tolist())
                return
            announced = self._announced.setdefault(self._sums.kind_of(int(blocks[0])), Announced())
            is_first = True
            for some, size_bytes in announced.together(
                blocks, self._sums.length[blocks], len(self._announced)
            ):
                chunk = _Chunk(some, size_bytes, is_wanted=is_first)
                is_first = False
                if announced.last is not None:
                    announced.last.next = chunk
                announced.last = chunk
                for block in some:
                    self._chunks.setdefault(block, deque(maxlen=_MOST_TIMES)).append(chunk)
            while len(self._chunks) > _MOST_ANNOUNCED:
                del self._chunks[next(iter(self._chunks))]

    def read(
        self, parts: Int64s, positions: Int64s, lengths: Int64s, *, keeps: bool, takes: bool = True
    ) -> Sequence[bytes | memoryview]:
        """Return the bytes of these ranges, waiting for those that are not here; see `AwayParts`.

        Blocks are held whichever read `takes`.

        Raises:
            CacheFormatError: if a block has other bytes than were written, or the store has none.
            StorageError: if it does not answer.
            SpendingError: if enough was spent.
        """
        found: list[bytes | memoryview] = [b""] * len(parts)
        full = np.flatnonzero(lengths)
        blocks = self._places.find(parts[full], positions[full], lengths[full])
        members: dict[int, list[int]] = {}
        for number, block in zip(full.tolist(), blocks.tolist(), strict=True):
            members.setdefault(block, []).append(number)
        for some in self._at_once(members):
            for block, content in self._checked(some, keeps=keeps):
                base = int(self._sums.position[block])
                for number in members[block]:
                    start = int(positions[number]) - base
                    # A copy, lest one row keeps all of its block in memory.
                    found[number] = content[start : start + int(lengths[number])]
        return found

    def _at_once(self, blocks: Iterable[int]) -> Iterator[list[int]]:
        """Yield some of these blocks at a time."""
        some, size_bytes = list[int](), 0
        for block in blocks:
            size_bytes += int(self._sums.length[block])
            if some and size_bytes > _AT_ONCE_BYTES:
                yield some
                some, size_bytes = [], int(self._sums.length[block])
            some.append(block)
        if some:
            yield some

    def _checked(self, blocks: list[int], *, keeps: bool) -> list[tuple[int, bytes]]:
        """Return these blocks and their bytes, which were compared."""
        mine: dict[int, _Block] = {}
        try:
            with self._lock:
                self._see_fork()
                self._ask_ahead(blocks)
                found = {block: self._kept.get(block) or self._held.get(block) for block in blocks}
                for block in blocks:
                    if found[block] is None:
                        found[block] = mine[block] = _Block()
                        self._keep(block, mine[block], keeps=keeps)
                self._renew(blocks)
            if mine:
                self._fill(mine)
        finally:
            failed = [block for block, one in mine.items() if one.content is None]
            if failed:
                with self._lock:
                    for block in failed:
                        self._drop(block, mine[block])
            for one in mine.values():
                one.done.set()
        return [(block, self._waited(block, one, keeps=keeps)) for block, one in found.items()]

    def _waited(self, block: int, one: _Block | None, *, keeps: bool) -> bytes:
        assert one is not None
        one.done.wait()
        if one.content is not None:
            return one.content
        [(_, content)] = self._checked([block], keeps=keeps)  # whose it was has failed: so may this one
        return content

    def _fill(self, blocks: dict[int, _Block]) -> None:
        """Read and compare these blocks."""
        sums, numbers = self._sums, np.fromiter(blocks, np.int64)
        self._ranges.side_by_side(sums.load, sums.missing(numbers))
        where = sums.part[numbers], sums.position[numbers], sums.length[numbers]
        received = self._ranges.read(*where, keeps=False)
        for (block, one), content in zip(blocks.items(), received, strict=True):
            whole = bytes(content)  # what was received may be more than this
            sums.compare(block, whole)
            one.content = whole

    def _keep(self, block: int, one: _Block, *, keeps: bool) -> None:
        if keeps:
            self._kept[block] = one
        else:
            self._held[block] = one
            self._held_bytes += int(self._sums.length[block])

    def _drop(self, block: int, one: _Block) -> None:
        if self._kept.get(block) is one:
            del self._kept[block]
        if self._held.get(block) is one:
            del self._held[block]
            self._held_bytes -= int(self._sums.length[block])

    def _renew(self, blocks: list[int]) -> None:
        """Hold these blocks longer than the others, and no more than there is room for."""
        for block in blocks:
            if block in self._held:
                self._held[block] = self._held.pop(block)
        while self._held_bytes > MOST_CHECKED_BYTES:
            self._drop(*next(iter(self._held.items())))

    def _ask_ahead(self, blocks: list[int]) -> None:
        """Ask for what was announced together with these blocks, and after them."""
        most_bytes = AHEAD_BYTES // max(1, len(self._announced))
        for block in blocks:
            chunks = self._chunks.get(block, ())
            place = next((place for place, chunk in enumerate(chunks) if chunk.is_wanted), None)
            if place is None:
                continue
            passed = [self._chunks[block].popleft() for _ in range(place + 1)]
            if not chunks:
                del self._chunks[block]
            chunk: _Chunk | None = passed[-1]
            ahead_bytes = -passed[-1].size_bytes
            while chunk is not None and ahead_bytes < most_bytes:
                if not chunk.is_asked:
                    chunk.is_asked = chunk.is_wanted = True
                    self._ask(chunk.blocks)
                ahead_bytes += chunk.size_bytes
                chunk = chunk.next

    def _ask(self, blocks: list[int]) -> None:
        self._renew(blocks)
        new = [block for block in blocks if block not in self._kept and block not in self._held]
        if new:
            numbers, sums = np.array(new), self._sums
            self._ranges.expect(sums.part[numbers], sums.position[numbers], sums.length[numbers], keeps=False)

    def _see_fork(self) -> None:
        if os.getpid() != self._pid:
            self._begin_anew()
