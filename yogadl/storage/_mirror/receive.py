"""Download one object into an open file, by ranges in parallel, and hash it meanwhile.

Chunks are written at once, and hashed from the page cache while the next ranges arrive. So the memory needed
is that of the chunks, however large the object is.
"""

import functools
import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass
from typing import Final

from yogadl.errors import CacheFormatError
from yogadl.storage._buckets.bucket import Bucket, replaced
from yogadl.storage._mirror.partial_file import PartialFile
from yogadl.storage._root import MAX_READ_BYTES, too_large

# A get costs about a millisecond of processor time; ranges that are too large leave few in parallel, and the
# last one is hashed after all others (benchmarks/transfer.py).
_LEAST_RANGE_BYTES: Final = 8 * 2**20
_MOST_RANGE_BYTES: Final = 16 * 2**20
# The size of ranges for a download in few requests, such as that of a part table by each machine.
_FEW_RANGE_BYTES: Final = 32 * 2**20
_RANGES: Final = 16
_HASH_BYTES: Final = 2**20
# Writes of this size at multiples of it get large pages in the page cache, from which small records are read
# a sixth faster, epoch after epoch (benchmarks/transfer.py). Smaller writes would be faster, but only once.
_WRITE_BYTES: Final = 2 * 2**20
_MOST_CHUNKS: Final = 512  # the most that one call can write

# Called with the number of bytes that have arrived.
Report = Callable[[int], None]


class StoppedError(Exception):
    """The download of another object has failed, so this one stops."""


@dataclass(frozen=True)
class Receiver:
    """Receive objects of one bucket, with requests run by the executor `ranges`."""

    bucket: Bucket
    ranges: Executor
    is_stopped: Callable[[], bool]

    def receive(
        self, name: str, size_bytes: int | None, partial: PartialFile, report: Report, *, in_few: bool = False
    ) -> str:
        """Fill a file with the missing ranges of an object, and return the sha256 of the whole file.

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
            sha256, tags = hashlib.sha256(), set()
            buffer = memoryview(bytearray(_HASH_BYTES))
            for (start, stop), one in zip(spans, received, strict=True):
                tags.add(one.result())
                if len(tags) > 1:
                    raise replaced(self.bucket.url, name)
                partial.hash(sha256, start, stop, buffer)
            return sha256.hexdigest()
        finally:
            # No thread may write to this descriptor after the caller has closed it.
            for one in received:
                one.cancel()
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
    length = max(_LEAST_RANGE_BYTES, min(_MOST_RANGE_BYTES, size_bytes // _RANGES))
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
