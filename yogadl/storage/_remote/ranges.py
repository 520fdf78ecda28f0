"""Read byte ranges of a bucket's objects: many at once, and ahead of the reader, compared or not."""

import errno
import itertools
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from yogadl._core.process import PerProcess, ProcessLock
from yogadl._core.protocols import Int64s
from yogadl._format.foreign import ForeignFile, PartFile
from yogadl._format.part_file import HeldRows
from yogadl.errors import CacheFormatError, StorageError
from yogadl.storage._files.foreign_stores import read_far
from yogadl.storage._objects.bucket import Bucket, ReplacedError, replaced
from yogadl.storage._remote.planning import (
    GAP_BYTES,
    PAGE_BYTES,
    AnnouncedRanges,
    RangePolicy,
    grouped,
    spans_of,
)
from yogadl.storage._remote.requests import DaemonThreads, Extent, NotHeldError, Pins, Spending

if TYPE_CHECKING:
    from yogadl._format.checks import Checksums

# A request mostly waits: for 5,000 a second from a store that takes 10 ms, this many threads are needed.
_THREADS: Final = 64
# The bytes of blocks that one read holds at a time, however many blocks the batch needs.
_AT_ONCE_BYTES: Final = 32 * 2**20


class _Requests:
    """What a process has requested.

    Attributes:
        requests: The number of requests that were answered.
        received_bytes: The number of bytes received.
        tags: The tags of the parts' objects.
        threads: The threads that make requests.
        sound: The blocks of each range that have their checksums.
    """

    def __init__(self) -> None:
        self.requests = self.received_bytes = 0
        self.tags: dict[int, str] = {}
        self.threads = DaemonThreads(_THREADS, "yogadl-ranges")
        self.sound: weakref.WeakKeyDictionary[Extent, set[int]] = weakref.WeakKeyDictionary()


class Ranges(RangePolicy):
    """Read ranges of a cache's parts, from windows if these have them.

    If blocks are compared, the bytes returned are the bytes that were compared. Safe to use from several
    threads, and after a fork; not picklable.

    Args:
        place_of: Returns the bucket and the name of a file's object, and the file.
        sizes: The size of each of them.
        spending: Counts requests and bytes, and enforces limits.
        pins: The pins of the published objects, or ``None`` to skip the check.
        gap_bytes: The largest gap between ranges that one request spans.
        sums: The checksums of the blocks, or ``None`` if ranges are not compared.
    """

    def __init__(
        self,
        place_of: Callable[[int], tuple[Bucket, str, PartFile | ForeignFile]],
        sizes: Int64s,
        spending: Spending,
        pins: Pins | None = None,
        gap_bytes: int = GAP_BYTES,
        sums: "Checksums | None" = None,
    ) -> None:
        super().__init__(sizes, gap_bytes, sums)
        self._place_of = place_of
        self._spending = spending
        self._pins = pins
        self._comparing_lock = ProcessLock()
        self._count_lock = ProcessLock()
        self._damage: dict[int, CacheFormatError] = {}
        self._own = PerProcess(_Requests)

    @property
    def received(self) -> tuple[int, int]:
        """The number of requests that this process made, and the number of bytes received."""
        own = self._own()
        return own.requests, own.received_bytes

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

        Raises:
            CacheFormatError: if the store lacks the object, or has another one, or a compared block has other
                bytes than were written.
            StorageError: if the store does not answer.
            SpendingError: if a limit on spending is reached.
        """
        self.raise_if_damaged(parts)
        if not lengths.all():
            some = np.flatnonzero(lengths)
            where = parts[some], positions[some], lengths[some]
            found = iter(self.read(*where, keeps_pages=keeps_pages, held=held))
            return [next(found) if length else b"" for length in lengths.tolist()]
        each = zip(positions.tolist(), lengths.tolist(), strict=True)
        if self.sums is not None:
            return self._compared(self.sums, parts, positions, lengths, is_kept=keeps_pages)
        if keeps_pages:
            pages = self._arrived(self._pages.numbers(parts, positions, lengths), is_kept=True)
            bases = self._pages.first[parts].tolist()
            return [
                _joined(pages, base, position, length)
                for base, (position, length) in zip(bases, each, strict=True)
            ]
        keys, spans = self.keys(parts, positions), spans_of(parts, positions, lengths)
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
        self, sums: "Checksums", parts: Int64s, positions: Int64s, lengths: Int64s, *, is_kept: bool
    ) -> Sequence[bytes | memoryview]:
        """Return the bytes of these ranges out of whole blocks that have their checksums."""
        contents: list[bytes | memoryview] = [b""] * len(parts)
        members: dict[int, list[int]] = {}
        for number, block in enumerate(self._blocks_of(parts, positions, lengths).tolist()):
            members.setdefault(block, []).append(number)
        for group in grouped(members, sums.length, _AT_ONCE_BYTES):
            missing = sums.missing(np.array(group))
            list(self._own().threads.map(sums.load, missing) if missing[1:] else map(sums.load, missing))
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
        sound = self._own().sound
        with self._count_lock:
            if block in sound.get(extent, ()):
                return
        content = extent.slice(int(sums.position[block]), int(sums.length[block]))
        try:
            sums.compare(block, content)
        except CacheFormatError:
            with self._lock:  # it is requested again, as what a failed request was to read
                self._known().pages.remove(block, extent)
            raise
        with self._count_lock:
            sound.setdefault(extent, set()).add(block)

    def mark_damaged(self, part: int, error: CacheFormatError) -> None:
        """Refuse all further reads of a part, because its object has other bytes than its name says."""
        self._damage[part] = error

    def raise_if_damaged(self, parts: Int64s) -> None:
        """Raise the error of one of these parts, if a part was marked as damaged."""
        for part in self._damage.keys() & set(parts.tolist()) if self._damage else ():
            raise self._damage[part]

    def _put(self, extent: Extent, *, is_urgent: bool) -> None:
        given_up = RuntimeError("the interpreter is shutting down: nothing is read any more")
        self._own().threads.put(
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
        part, size_bytes = wanted.part, int(self.sizes[wanted.part])
        bucket, name, file = self._place_of(part)
        self._spending.take_request()
        if isinstance(file, ForeignFile):
            content = read_far(file, bucket, name, wanted.start, wanted.size_bytes)
            self._count(len(content))
            return content
        tags = self._own().tags
        tag = tags.get(part)
        piece = bucket.fetch_range(name, wanted.start, wanted.stop, tag=tag)
        if piece is None:
            raise CacheFormatError(
                f"{name} is missing in {bucket!r}, though a manifest names it: the version was removed "
                "and pruned, or the object was; fetch it again, or build the dataset again"
            )
        if piece.object.size_bytes != size_bytes:
            raise CacheFormatError(
                f"{name} in {bucket!r} has {piece.object.size_bytes} bytes, not {size_bytes}: it was "
                "truncated or altered there; build the dataset again, or restore the object"
            )
        if len(piece.content) != wanted.size_bytes:
            raise StorageError(
                errno.EIO,
                f"{bucket!r} gave {len(piece.content)} bytes of the {wanted.size_bytes} of {name} from "
                f"{wanted.start} on: try again; if it happens again, the store loses bytes",
            )
        if tag is None:
            self._check_published(part, bucket, name, piece.object.tag)
        # Requests that were made before the first answer have no tag, so their answers are compared here.
        if tags.setdefault(part, piece.object.tag) != piece.object.tag:
            raise replaced(bucket.url, name)
        self._count(len(piece.content))
        return piece.content

    def _check_published(self, part: int, bucket: Bucket, name: str, tag: str) -> None:
        """Raise `ReplacedError` unless the part's object with this tag has the bytes of the part."""
        if self._pins is None or self._pins.is_published(part, tag):
            return
        with self._comparing_lock:
            is_right = self._pins.is_published(part, tag)  # another thread may have compared it
            if is_right is None:
                self._spending.take_request()
                is_right = self._pins.compare_object(part, tag)
                self._count(int(self.sizes[part]))
        if not is_right:
            raise ReplacedError(
                errno.ESTALE,
                f"{name} in {bucket!r} is not the object that was published, and has other bytes than "
                "its name says: it was replaced there; restore the object, or build the dataset again",
            )

    def _count(self, size_bytes: int) -> None:
        """Count a request that was answered."""
        self._spending.add_bytes(size_bytes)
        own = self._own()
        with self._count_lock:
            own.requests += 1
            own.received_bytes += size_bytes


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
