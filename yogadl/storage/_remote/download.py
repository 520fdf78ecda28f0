"""Download objects of a bucket to files, and upload files: in parallel, resumed, and checked."""

import contextlib
import errno
import functools
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from yogadl.errors import CacheFormatError, StorageError
from yogadl.storage._files.folder import storage_error, sync_folder
from yogadl.storage._files.locks import Claim
from yogadl.storage._files.root import MAX_READ_BYTES, too_large
from yogadl.storage._objects.bucket import Bucket, Object, ReplacedError, replaced
from yogadl.storage._remote.partial_file import PartialFile, open_partial

if TYPE_CHECKING:
    from yogadl.storage._files.permitted import Place

# Download one object into an open file, by ranges in parallel, and hash it meanwhile.
#
# Chunks are written at once, and hashed from the page cache while the next ranges arrive, so that the memory
# needed does not depend on the size of the object.


# A get costs about a millisecond of processor time; ranges that are too large leave few in parallel, and the
# last one is hashed after all others (benchmarks/transfer.py).
_LEAST_RANGE_BYTES: Final = 8 * 2**20
_MOST_RANGE_BYTES: Final = 16 * 2**20
# The size of ranges for a download in few requests, such as that of a part table by each machine.
_FEW_RANGE_BYTES: Final = 32 * 2**20
_WANTED_RANGES: Final = 16
_HASH_BYTES: Final = 2**20
# Writes of this size at multiples of it get large pages in the page cache, from which small records are read
# a sixth faster, epoch after epoch (benchmarks/transfer.py). Smaller writes would be faster, but only once.
_WRITE_BYTES: Final = 2 * 2**20
_MOST_CHUNKS: Final = 512  # the most that one call can write

# Called with the number of bytes that have arrived.
Report = Callable[[int], None]


class StoppedError(Exception):
    """This download stops, since the download of another object has failed."""


@dataclass(frozen=True)
class Receiver:
    """Receive objects of one bucket, with requests run by the executor `ranges`."""

    bucket: Bucket
    ranges: Executor
    is_stopped: Callable[[], bool]

    def receive(
        self,
        name: str,
        size_bytes: int | None,
        partial: PartialFile,
        report: Report,
        *,
        in_few: bool = False,
        tags: set[str],
    ) -> str:
        """Fill a file with the missing ranges of an object, and return the sha256 of the whole file.

        The tag of the object is added to `tags`.

        Raises:
            CacheFormatError: if the object does not exist, or has another size.
            ReplacedError: if the object was replaced between two ranges, of which one may be from an earlier
                download.
        """
        if not size_bytes or has_ranges(size_bytes, in_few):
            # A size in a manifest is untrusted: it is compared before the object is cut into ranges.
            size_bytes = self._size_of(name, size_bytes)
        if partial.found:
            os.ftruncate(partial.descriptor, size_bytes)  # its size may have been changed
        spans = ranges_of(size_bytes, in_few)
        received: list[Future[str]] = []
        try:
            for span in spans:
                if span in partial.found:
                    received.append(Future())
                    received[-1].set_result(partial.found[span])
                    report(span[1] - span[0])
                else:
                    # Requesting the whole object leaves less memory in use (benchmarks/many_parts.py).
                    stop = None if in_few and len(spans) == 1 else span[1]
                    fill = functools.partial(self._fill, name, size_bytes, span, partial, report)
                    received.append(self.ranges.submit(fill, stop))
            sha256 = hashlib.sha256()
            buffer = memoryview(bytearray(_HASH_BYTES))
            for (start, stop), future in zip(spans, received, strict=True):
                tags.add(future.result())
                if len(tags) > 1:
                    raise replaced(self.bucket.url, name)
                partial.hash(sha256, start, stop, buffer)
            return sha256.hexdigest()
        finally:
            # No thread may write to this descriptor after the caller has closed it.
            for future in received:
                future.cancel()
            wait(received)

    def _size_of(self, name: str, size_bytes: int | None) -> int:
        found = self.bucket.head(name)
        if found is None:
            raise self._missing(name)
        if size_bytes is not None and found.size_bytes != size_bytes:
            raise self._wrong_size(name, found.size_bytes, size_bytes)
        if size_bytes is None and found.size_bytes > MAX_READ_BYTES:
            raise too_large(f"{name} in {self.bucket!r}", MAX_READ_BYTES)
        return found.size_bytes

    def _fill(
        self,
        name: str,
        size_bytes: int,
        span: tuple[int, int],
        partial: PartialFile,
        report: Report,
        stop: int | None,
    ) -> str:
        """Write one range, requested up to `stop`, to the file, and return the tag of its object."""
        if self.is_stopped():
            raise StoppedError
        position = span[0]
        with self.bucket.get(name, position, stop) as body:
            if body is None:
                raise self._missing(name)
            if body.object.size_bytes != size_bytes:
                raise self._wrong_size(name, body.object.size_bytes, size_bytes)
            for chunks in _gathered(body.chunks, report):
                if self.is_stopped():
                    raise StoppedError
                position += partial.write(chunks, position)
        partial.note(span, body.object.tag)
        partial.sync_meanwhile()
        return body.object.tag

    def _missing(self, name: str) -> CacheFormatError:
        return CacheFormatError(
            f"{name} is missing in {self.bucket!r}, though a manifest names it: "
            "build the dataset again, or restore the object"
        )

    def _wrong_size(self, name: str, found_bytes: int, size_bytes: int) -> CacheFormatError:
        return CacheFormatError(
            f"{name} in {self.bucket!r} has {found_bytes} bytes, not {size_bytes}: it was truncated or "
            "altered there; build the dataset again, or restore the object"
        )


def has_ranges(size_bytes: int | None, in_few: bool = False) -> bool:
    """Return whether an object of this size is downloaded in several ranges."""
    return size_bytes is not None and size_bytes > (_FEW_RANGE_BYTES if in_few else _LEAST_RANGE_BYTES)


def ranges_of(size_bytes: int, in_few: bool = False) -> list[tuple[int, int]]:
    """Return the ranges in which an object of this size is downloaded, as (start, stop)."""
    length = max(_LEAST_RANGE_BYTES, min(_MOST_RANGE_BYTES, size_bytes // _WANTED_RANGES))
    length = _FEW_RANGE_BYTES if in_few else -(-length // _WRITE_BYTES) * _WRITE_BYTES
    return [(start, min(start + length, size_bytes)) for start in range(0, size_bytes, length)]


def _gathered(chunks: Iterator[bytes | memoryview], report: Report) -> Iterator[list[bytes | memoryview]]:
    """Group chunks of any sizes into writes of `_WRITE_BYTES`; report each chunk."""
    gathered: list[bytes | memoryview] = []
    size_bytes = 0
    for chunk in chunks:
        report(len(chunk))
        rest = memoryview(chunk)
        while size_bytes + len(rest) >= _WRITE_BYTES:
            cut = _WRITE_BYTES - size_bytes
            yield [*gathered, rest[:cut]]
            gathered, size_bytes, rest = [], 0, rest[cut:]
        if len(rest):
            gathered.append(rest)
            size_bytes += len(rest)
        if len(gathered) == _MOST_CHUNKS:
            yield gathered
            gathered, size_bytes = [], 0
    if gathered:
        yield gathered


# Download objects of a bucket to files, and upload files.
#
# A file has a temporary name in the same folder until all bytes are on the disk and their sha256 is right. A
# download that a killed process began is resumed.


# How long to wait for another process that downloads a file, if that process receives nothing.
_STALL_S: Final = 60.0
# Called with bytes done and bytes in all.
Received = Callable[[int, int], None]
# Called from time to time while bytes arrive.
Touch = Callable[[], None]

# The number of ranges, and of objects, requested at once. One connection to a distant store is slow, and
# more than two for each processor compete for it (benchmarks/transfer.py).
_LEAST_CONNECTIONS: Final = 4
_MOST_CONNECTIONS: Final = 32
# The number of attempts at an object that was replaced meanwhile, or whose bytes have a wrong sha256.
_MOST_REPLACED: Final = 5
_MOST_WRONG: Final = 2
_PROGRESS_EVERY_S: Final = 0.2

T = TypeVar("T")


@dataclass(frozen=True)
class Download:
    """One object to download, its hash, and the file that it becomes.

    Args:
        name: Its name in the bucket.
        sha256: The hash of its bytes.
        size_bytes: Its size, or ``None`` if unknown.
        path: The file that it becomes; any other of that name is replaced.
        in_few: Whether it is requested in few ranges, with fewer requests and in more time.
        place: Where the object lies, if it is not that of its name in the cache's bucket.
    """

    name: str
    sha256: str
    size_bytes: int | None
    path: Path
    in_few: bool = False
    place: "Place | None" = None


# Returns whether a file is complete already, so that no download is needed.
IsMade = Callable[[Download], bool]
# Held during a file's download; gives None if the download is not needed any more.
Guard = Callable[[Download], contextlib.AbstractContextManager[Touch | None]]


def download_all(
    bucket: Bucket,
    wanted: Sequence[Download],
    *,
    connections: int | None = None,
    progress: Received | None = None,
    guard: Guard | None = None,
) -> None:
    """Download objects to files, in this order; each file appears whole, durable and checked, or not at all.

    Safe to use from several threads and after a fork. The first error ends all downloads; finished files
    stay.

    Args:
        bucket: The bucket of the objects.
        wanted: The downloads.
        connections: The number of ranges requested at once; chosen by the number of processors if not given.
        progress: Called with bytes downloaded and bytes in all, from the thread that called this.
        guard: Held during a file's download.

    Raises:
        CacheFormatError: if an object is missing, or its bytes do not have the right sha256.
        StorageError: if the network or the disk fails, or the disk is full.
    """
    total = Total(sum(download.size_bytes or 0 for download in wanted), progress)
    connections = connections or connection_count()
    with ThreadPoolExecutor(connections, "yogadl-ranges") as ranges:
        receiver = Receiver(bucket, ranges, total.stopped.is_set)
        in_parallel(_Downloader(receiver, total, guard or _unguarded).download, wanted, connections, total)


def is_made(wanted: Download) -> bool:
    """Return whether a file exists, and has the size of its object, if that is known."""
    try:
        size_bytes = wanted.path.stat().st_size
    except FileNotFoundError:
        return False
    return wanted.size_bytes in (None, size_bytes)


def fetch(
    bucket: Bucket, wanted: Sequence[Download], progress: Received | None = None, is_made: IsMade = is_made
) -> None:
    """Download files, except those that another process of this machine downloads; wait for these.

    Args:
        bucket: The bucket of the objects.
        wanted: The downloads.
        progress: Called with bytes downloaded and bytes in all.
        is_made: Returns whether a file is complete already, so that no download is needed.

    Raises:
        CacheFormatError: if an object is missing, or its bytes do not have the right sha256.
        StorageError: if the network or the disk fails, or the disk is full.
    """
    download_all(bucket, wanted, progress=progress, guard=partial(_claimed, is_made=is_made))


def fetch_one(bucket: Bucket, wanted: Download, ranges: Executor, total: "Total") -> None:
    """Download a file as `fetch` does, in the caller's threads; if `total` is stopped, it may be missing.

    Raises:
        CacheFormatError: if the object is missing, or its bytes do not have the right sha256.
        StorageError: if the network or the disk fails, or the disk is full.
    """
    receiver = Receiver(bucket, ranges, total.stopped.is_set)
    _Downloader(receiver, total, partial(_claimed, is_made=is_made)).download(wanted)


def upload(bucket: Bucket, name: str, path: Path) -> Object:
    """Upload a file, and check that the bucket has all of it.

    Raises:
        StorageError: if the bucket has another size, or no object.
    """
    size_bytes = path.stat().st_size
    bucket.put(name, path)
    found = bucket.head(name)
    if found is None or found.size_bytes != size_bytes:
        has = "nothing" if found is None else f"{found.size_bytes} bytes"
        raise StorageError(
            errno.EIO,
            f"{bucket!r} has {has} under {name} right after {size_bytes} bytes were put there: "
            "try again; if it happens again, the store loses writes",
        )
    return found


def connection_count() -> int:
    """Return the number of ranges that this machine requests at once."""
    return min(_MOST_CONNECTIONS, max(_LEAST_CONNECTIONS, 2 * (os.cpu_count() or 0)))


@dataclass
class Total:
    """Count the bytes of all objects, report them, and stop all downloads when one has failed."""

    size_bytes: int
    progress: Received | None
    done_bytes: int = 0
    stopped: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, size_bytes: int) -> None:
        """Count bytes, from any thread."""
        with self._lock:
            self.done_bytes += size_bytes

    def report(self) -> None:
        """Report the progress."""
        if self.progress is not None:
            self.progress(min(self.done_bytes, self.size_bytes), self.size_bytes)


def in_parallel(work: Callable[[T], None], items: Sequence[T], count: int, total: Total) -> None:
    """Do the work for every item, a limited number at a time.

    The first error stops the others, and is raised once they have ended.
    """
    with ThreadPoolExecutor(max(1, min(count, len(items))), "yogadl-transfer") as workers:
        pending = {workers.submit(work, item) for item in items}
        try:
            while pending:
                total.report()
                done, pending = wait(pending, _PROGRESS_EVERY_S, FIRST_EXCEPTION)
                for future in done:
                    future.result()
            total.report()
        except BaseException:
            total.stopped.set()
            workers.shutdown(wait=False, cancel_futures=True)
            raise


@dataclass(frozen=True)
class _Downloader:
    """Downloads one object at a time; several threads may do so at once."""

    receiver: Receiver
    total: Total
    guard: Guard

    def download(self, wanted: Download) -> None:
        """Download one object, unless the guard gives None, because the download is no longer needed."""
        if self.total.stopped.is_set():
            return
        try:
            with self.guard(wanted) as touch:
                if touch is None:
                    self.total.add(wanted.size_bytes or 0)
                else:
                    self._download(wanted, touch)
        except StoppedError:
            pass  # the error of the other object is raised
        except StorageError:
            raise
        except OSError as error:
            raise storage_error(error, f"can't write {error.filename or wanted.path}") from error

    def _download(self, wanted: Download, touch: Touch) -> None:
        replaced_count = wrong_count = 0
        received: list[int] = []  # by the current attempt, which may fail

        def count(size_bytes: int) -> None:
            received.append(size_bytes)
            self.total.add(size_bytes)
            touch()

        while True:
            try:
                if self._try(wanted, count):
                    return
                wrong_count += 1
            except ReplacedError:
                # Most likely a second builder of the part has put the same bytes there.
                replaced_count += 1
                if replaced_count == _MOST_REPLACED:
                    raise
            self.total.add(-sum(received))
            received.clear()
            if wrong_count == _MOST_WRONG:
                raise CacheFormatError(
                    f"{wanted.name} in {self.receiver.bucket!r} has other bytes than its name says: it was "
                    "altered or damaged there; build the dataset again, or restore the object"
                )

    def _try(self, wanted: Download, report: Callable[[int], None]) -> bool:
        """Download an object; return whether it has the right tag, or its bytes the right sha256."""
        receiver, name, place = self.receiver, wanted.name, wanted.place
        if place is not None:
            receiver, name = replace(receiver, bucket=place.bucket), place.name
        with open_partial(wanted.path, is_noted=has_ranges(wanted.size_bytes, wanted.in_few)) as file:
            tags: set[str] = set()
            try:
                found = receiver.receive(
                    name, wanted.size_bytes, file, report, in_few=wanted.in_few, tags=tags
                )
            except CacheFormatError as error:
                if place is None:
                    raise
                raise place.file.changed(str(error).partition(";")[0]) from error
            if place is not None and place.file.tag is not None:
                if tags - {place.file.tag}:
                    raise place.file.changed("it was replaced")
            elif found != wanted.sha256:
                if file.found:  # a resumed file may be damaged: begin again
                    raise replaced(self.receiver.bucket.url, wanted.name)
                return False
            os.fsync(file.descriptor)
            file.finish(wanted.path)
        sync_folder(wanted.path.parent)
        return True


@contextlib.contextmanager
def _unguarded(_: Download) -> Iterator[Touch]:
    yield lambda: None


@contextlib.contextmanager
def _claimed(wanted: Download, is_made: IsMade) -> Iterator[Touch | None]:
    """Hold the claim on a file of this machine; give ``None`` if another process has downloaded it."""
    claim = Claim(wanted.path)
    try:
        yield claim.touch if claim.take(lambda: is_made(wanted), _STALL_S) else None
    finally:
        claim.release()
