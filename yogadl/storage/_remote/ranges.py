"""Read byte ranges of a bucket's objects: many at once, and ahead of the reader, compared or not."""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from yogadl._core.process import PerProcess
from yogadl._core.protocols import Int64s
from yogadl._format.files import FileId
from yogadl._format.part_file import HeldRows
from yogadl.errors import CacheFormatError
from yogadl.storage._remote.planning import (
    GAP_BYTES,
    PAGE_BYTES,
    AnnouncedRanges,
    RangePolicy,
    grouped,
    spans_of,
)
from yogadl.storage._remote.requests import DaemonThreads, Extent, NotHeldError, RequestCount

if TYPE_CHECKING:
    from yogadl._format.checks import Checksums

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
