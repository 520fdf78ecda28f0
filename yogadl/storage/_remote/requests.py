"""Request ranges of parts: the threads of requests, their cost and its limits, and checks of the answers."""

import atexit
import errno
import hashlib
import logging
import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from yogadl._core.arguments import above_zero, in_words
from yogadl._core.frozen import frozen
from yogadl._core.process import PerProcess, ProcessLock, one_operation, operation_start_s
from yogadl._core.protocols import Prices, usual_prices
from yogadl._format.files import FileId, Files
from yogadl._format.table import ArrayFile, PartTable
from yogadl._workers.serial import call_into
from yogadl.errors import CacheFormatError, ConfigurationError, CredentialsError, SpendingError, StorageError
from yogadl.storage import _names
from yogadl.storage._objects.bucket import Bucket, ReplacedError, replaced


class NotHeldError(Exception):
    """The bytes are no longer in a file or in memory, and must be requested again."""


class Extent:
    """Bytes of one file that are requested, or only counted in a plan.

    Attributes:
        file: The number of the file.
        start: The position of the first byte.
        stop: The position after the last byte.
        size_bytes: The number of bytes.
        is_done: Whether the bytes have arrived, or the request failed.
    """

    __slots__ = (
        "__weakref__",
        "_content",
        "_done",
        "_error",
        "file",
        "is_done",
        "size_bytes",
        "start",
        "stop",
    )

    def __init__(self, file: FileId, start: int, stop: int) -> None:
        self.file, self.start, self.stop = file, start, stop
        self.size_bytes = stop - start
        self.is_done = False
        self._content: bytes | memoryview = b""
        self._error: BaseException | None = None
        self._done = threading.Lock()
        self._done.acquire()

    @property
    def has_failed(self) -> bool:
        """Whether the request failed."""
        return self._error is not None

    def end(self, content: bytes | memoryview = b"", error: BaseException | None = None) -> None:
        """Set the content that arrived, or the error of the request."""
        self._content, self._error, self.is_done = content, error, True
        self._done.release()

    def arrives(self) -> bool:
        """Wait for the end of the request; return whether the bytes have arrived."""
        with self._done:
            pass
        return self._error is None

    def wait(self) -> None:
        """Wait until the bytes have arrived.

        Raises:
            BaseException: the error of the request, if it failed.
        """
        if not self.arrives() and self._error is not None:
            raise self._error

    def content(self, fetch: Callable[[], bytes | memoryview]) -> bytes | memoryview:
        """Return the bytes to keep in memory, made from those that `fetch` returns."""
        return fetch()

    def slice(self, start: int, length: int) -> bytes | memoryview:
        """Return bytes from a position of the file on, waiting for them to arrive."""
        self.wait()
        first = start - self.start
        if not first and length == len(self._content):
            return self._content
        return memoryview(self._content)[first : first + length]


class Extents:
    """Extents by key: pages or blocks. Several keys may have one extent. The caller has a lock.

    An extent is kept, or until its last key is removed, or until there is no room for it: then the extent
    that was put or renewed first is dropped first.

    Attributes:
        size_bytes: The size of all extents that may be dropped.
        has_dropped: Whether an extent was dropped for room.
    """

    def __init__(self) -> None:
        self._extents: dict[int, Extent] = {}
        self._keys: dict[Extent, set[int]] = {}  # of each that may be dropped, in the order of dropping
        self.size_bytes = 0
        self.has_dropped = False

    def __len__(self) -> int:
        return len(self._extents)

    @property
    def kept_count(self) -> int:
        """The number of keys whose extents are kept."""
        return len(self._extents) - sum(map(len, self._keys.values()))

    def get(self, key: int) -> Extent | None:
        """Return the extent of a key, if there is one and its request has not failed.

        An extent whose request failed is requested again: an error is raised for the readers that wait for
        the extent, and not for later readers, when its cause may have passed.
        """
        extent = self._extents.get(key)
        if extent is None or not extent.has_failed:
            return extent
        self.remove(key, extent)
        return None

    def put(self, keys: set[int], extent: Extent, *, is_kept: bool = False) -> None:
        """Add an extent, and drop it for room later unless it is kept."""
        self._extents.update(dict.fromkeys(keys, extent))
        if not is_kept:
            self._keys[extent] = keys
            self.size_bytes += extent.size_bytes

    def remove(self, key: int, extent: Extent) -> None:
        """Remove a key, if this extent is still the key's."""
        if self._extents.get(key) is not extent:
            return
        del self._extents[key]
        keys = self._keys.get(extent)
        if keys is not None:
            keys.remove(key)
            if not keys:
                self._drop(extent)

    def renew(self, keys: Iterable[int]) -> None:
        """Drop the extents of these keys after all others."""
        for key in keys:
            extent = self._extents.get(key)
            if extent in self._keys:
                self._keys[extent] = self._keys.pop(extent)

    def shrink(self, most_bytes: int) -> None:
        """Drop extents that exceed this room."""
        while self.size_bytes > most_bytes:
            self.has_dropped = True
            self._drop(next(iter(self._keys)))

    def _drop(self, extent: Extent) -> None:
        for key in self._keys.pop(extent):
            if self._extents.get(key) is extent:  # a longer one may have taken its place
                del self._extents[key]
        self.size_bytes -= extent.size_bytes


# Daemon threads, which end with their executor and delay the exit by seconds at most.


_EXIT_TIMEOUT_S: Final = 5.0

# A job for a thread, the call that replaces it if the threads have ended, and when its operation began.
_Job = tuple[Callable[[], None], Callable[[], object], float]


class DaemonThreads(Executor):
    """Run jobs in the order of their submission, urgent ones first, in a bounded number of threads.

    The threads end with this object. The threads are daemons, since they may wait for a store for minutes. At
    exit the process waits for them a little, since ending the interpreter under a request that has just been
    answered may crash it. A forked process does not wait, since it has none of the threads.

    Args:
        most: The largest number of threads.
        name: The name of the threads.

    Attributes:
        ended: Set once no further job is begun.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._jobs: deque[_Job] = deque()
        self._tokens: queue.SimpleQueue[bool] = queue.SimpleQueue()  # one for each job; False ends a thread
        self._threads: list[threading.Thread] = []
        self._pid = os.getpid()
        # Held while a job is taken and while the threads get their end: no thread starts after that. It is
        # re-entrant, since a signal's handler may read, too.
        self._lock = threading.RLock()
        self.ended = threading.Event()
        self._end = partial(_end, self._jobs, self._tokens, self._threads, self.ended)
        weakref.finalize(self, self._end).atexit = False
        _living.add(self)

    def put(
        self, work: Callable[[], None], instead: Callable[[], object], *, is_urgent: bool = False
    ) -> None:
        """Let a thread call `work`, which must not raise; call `instead` now if the threads have ended.

        In a forked process, which has none of the threads, they have ended.
        """
        if os.getpid() != self._pid:
            instead()
            return
        with self._lock:
            if not self.ended.is_set():
                job = work, instead, operation_start_s()
                (self._jobs.appendleft if is_urgent else self._jobs.append)(job)
                self._tokens.put(True)
                if len(self._threads) < self._most:
                    self._start_thread()
                return
        instead()

    def _start_thread(self) -> None:
        run_jobs = partial(_run_jobs, self._jobs, self._tokens)
        thread = threading.Thread(target=run_jobs, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no more threads
            if not self._threads:
                raise
        else:
            self._threads.append(thread)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Let a thread call a function; see `Executor.submit`."""
        future: Future[Any] = Future()
        self.put(partial(call_into, future, partial(fn, *args, **kwargs)), partial(_cancel, future))
        return future

    def end(self, end_s: float) -> None:
        """Begin no further job, and wait for running ones until `end_s` of the monotonic clock."""
        if os.getpid() == self._pid:
            with self._lock:
                self._end()
            for thread in self._threads:
                thread.join(max(0.0, end_s - time.monotonic()))


_living: "weakref.WeakSet[DaemonThreads]" = weakref.WeakSet()


def _cancel(future: "Future[Any]") -> None:
    if future.cancel():
        future.set_running_or_notify_cancel()  # wakes threads that wait for several futures


def _run_jobs(jobs: deque[_Job], tokens: "queue.SimpleQueue[bool]") -> None:
    while tokens.get():
        try:
            work, instead, began_s = jobs.popleft()
        except IndexError:  # `_end` has removed the job meanwhile
            continue
        with one_operation(began_s):
            work()
        del work, instead  # both would keep what was read until the next job


def _end(
    jobs: deque[_Job],
    tokens: "queue.SimpleQueue[bool]",
    threads: list[threading.Thread],
    ended: threading.Event,
) -> None:
    ended.set()
    while True:
        try:
            jobs.popleft()[1]()
        except IndexError:
            break
    for _ in threads:
        tokens.put(False)


@atexit.register
def _end_all() -> None:
    end_s = time.monotonic() + _EXIT_TIMEOUT_S
    known: set[DaemonThreads] = set()
    # Daemon threads of the user may still make some, for which nobody else would wait.
    while (found := _living_now() - known) and (not known or time.monotonic() < end_s):
        for threads in found:
            threads.end(end_s)
        known |= found


def _living_now() -> set[DaemonThreads]:
    while True:
        try:
            return set(_living)
        except RuntimeError:  # another thread has made one meanwhile
            continue


@frozen
class Limits:
    """How much the ranges may cost that each process reads from a bucket.

    Args:
        requests: How many requests for ranges may be made; more are a `SpendingError`.
        requests_per_s: How many such requests may be made a second.
        price: How much these requests and the bytes received may cost; more is a `SpendingError`.
        prices: The prices of the store. If not given, those of S3 and Google Cloud Storage for the standard
            class in the same region; the prices of other stores are not known.

    Raises:
        ConfigurationError: if a limit is no number above 0.

    Example:
        >>> import yogadl
        >>> careful = yogadl.Limits(price=2.5, prices=yogadl.Prices(per_gb=0.02))
        >>> storage = yogadl.open_storage("s3://bucket/caches", limits=careful)
    """

    requests: int | None = None
    requests_per_s: float | None = None
    price: float | None = None
    prices: Prices | None = None

    def __post_init__(self) -> None:
        for name in ("requests", "requests_per_s", "price"):
            above_zero(f"Limits: {name}", getattr(self, name))
        if not isinstance(self.prices, Prices | None):
            raise ConfigurationError(f"Limits: prices must be yogadl.Prices(...), not {self.prices!r}")


class Spending:
    """The ranges that one process reads from one storage. Thread-safe; a pickled or forked copy begins at 0.

    Args:
        limits: How much may be read.
        url: The URL of the bucket, whose usual prices hold if none are given.

    Raises:
        ConfigurationError: if the price is limited, and all prices are 0.

    Attributes:
        prices: The prices of the store.
    """

    def __init__(self, limits: Limits | None = None, url: str = "") -> None:
        limits = limits or Limits()
        self.prices = limits.prices or usual_prices(url)
        if limits.price is not None and not self.prices.of(1, 1):
            raise ConfigurationError(
                "Limits: price: no price is known of this store; pass prices=yogadl.Prices(...)"
            )
        self._limits = limits
        self._lock = ProcessLock()
        self._requests = self._bytes = 0
        self._next_s = 0.0

    def __reduce__(self) -> Any:
        # Pickled as plain numbers, because each reference to a cache pickles this, too.
        limits = self._limits
        numbers = limits.requests, limits.requests_per_s, limits.price
        return _limited, (*numbers, *vars(self.prices).values())

    def take_request(self) -> None:
        """Count the next request, after a wait if there are too many each second.

        Raises:
            SpendingError: if the request would exceed a limit.
        """
        with self._lock:
            limit = self._exceeded_limit()
            if limit is not None:
                which = "which is the limit, " if limit == "requests" else ""
                received = f"{in_words(self._bytes)} received{'' if which else ', which is the limit'}"
                raise SpendingError(
                    errno.EDQUOT,
                    f"{self._requests} requests were made, {which}and {received}: raise Limits("
                    f"{limit}=...), or fill a mirror first (Mirror(fill='always'), `yogadl pull`)",
                )
            self._requests += 1
            now = time.monotonic()
            per_s = self._limits.requests_per_s
            begins = now if per_s is None else max(now, self._next_s)
            self._next_s = begins + (0.0 if per_s is None else 1 / per_s)
        if begins > now:
            time.sleep(begins - now)

    def _exceeded_limit(self) -> str | None:
        """Return the name of the limit that one more request would exceed."""
        limits = self._limits
        if limits.requests is not None and self._requests >= limits.requests:
            return "requests"
        if limits.price is None or self.prices.of(self._requests + 1, self._bytes) <= limits.price:
            return None
        return "price"

    def add_bytes(self, size_bytes: int) -> None:
        """Count bytes that were received."""
        with self._lock:
            self._bytes += size_bytes


def _limited(
    requests: int | None,
    requests_per_s: float | None,
    price: float | None,
    per_1000_requests: float,
    per_gb: float,
) -> Spending:
    return Spending(Limits(requests, requests_per_s, price, Prices(per_1000_requests, per_gb)))


class RequestCount:
    """The requests of one cache: counts what this process makes, on top of the limits on spending.

    Safe to use from several threads, and after a fork.

    Args:
        spending: Counts requests and bytes, and enforces limits.
    """

    def __init__(self, spending: Spending) -> None:
        self._spending = spending
        self._lock = ProcessLock()
        self._totals = PerProcess(lambda: [0, 0])

    @property
    def totals(self) -> tuple[int, int]:
        """The number of requests of this process that were answered, and the number of bytes received."""
        requests, received_bytes = self._totals()
        return requests, received_bytes

    def take_request(self) -> None:
        """Wait until a request may be made; see `Spending.take_request`."""
        self._spending.take_request()

    def add_answer(self, size_bytes: int) -> None:
        """Count a request that was answered."""
        self._spending.add_bytes(size_bytes)
        totals = self._totals()
        with self._lock:
            totals[0] += 1
            totals[1] += size_bytes


# Detect parts whose objects in a bucket were replaced after publication, for readers of ranges.
#
# Ranges are not compared with the part's sha256. Therefore the publication records a hash of each object's
# tag (its ETag, its generation), its pin, and the first answer to a reader must have that tag. An object that
# was uploaded again has another tag: then each process reads the whole object, once, and compares it with its
# name.


_log = logging.getLogger("yogadl")

Uint64s = NDArray[np.uint64]

# The pin of an object whose tag is unknown.
UNKNOWN: Final = 0
_KNOWN_OBJECTS: Final = 1024  # their names are kept between requests
# The bytes that a file of pins may have beside its hashes.
_MOST_HEADER_BYTES: Final = 4096


class Pins:
    """The pins of a cache's parts, which show whether an object is the one that was published.

    Safe to use from threads and after a fork; not picklable.

    Args:
        bucket: The bucket of the cache.
        dataset_id: The dataset's id.
        table: The part table.
        table_sha256: The hash of the part table.
    """

    def __init__(self, bucket: Bucket, dataset_id: str, table: PartTable, table_sha256: str) -> None:
        self._bucket = bucket
        self._id = dataset_id
        self._table = table
        self._table_sha256 = table_sha256
        self._lock = ProcessLock()
        self._pins: Uint64s | None = None
        self._results: dict[tuple[int, str], bool] = {}

    def is_published(self, part: int, tag: str) -> bool | None:
        """Return whether a part's object with this tag has the right bytes, or ``None`` if unknown.

        The first call makes a request.

        Raises:
            CacheFormatError: if the pins are damaged.
            StorageError: if the pins can't be read.
        """
        if self._pins is None:
            with self._lock:
                if self._pins is None:
                    self._pins = read_pins(self._bucket, self._id, self._table, self._table_sha256)
        if int(self._pins[part]) in (UNKNOWN, hash_of(tag)):
            return True
        return self._results.get((part, tag))

    def compare_object(self, part: int, tag: str) -> bool:
        """Read the whole object of a part; return whether its bytes are right.

        Raises:
            ReplacedError: if the object has another tag now.
            StorageError: if the object can't be read.
        """
        name = _names.part(self._id, self._table.sha256[part])
        is_right = has_bytes(self._bucket, name, self._table.sha256[part], tag)
        if is_right and True not in self._results.values():
            _log.warning(
                "yogadl: %s in %r is not the object that was published, but has the same bytes: it was put "
                "there again. Each process reads such parts as a whole first, until the dataset is published "
                "anew or %s is removed", name, self._bucket, _names.pins(self._id, self._table_sha256),
            )  # fmt: skip
        self._results[part, tag] = is_right
        return is_right


def _object_of(dataset_id: str, files: Files, file: FileId) -> tuple[str, int]:
    """Return the name of a file's object, and its size."""
    return _names.file_of(dataset_id, files[file]), files[file].size_bytes


class PartObjects:
    """Fetches ranges of a cache's own files, each checked to be of the object that was published.

    Safe to use from several threads, and after a fork; not picklable.

    Args:
        bucket: The bucket of the cache.
        dataset_id: The dataset's id.
        files: The files of the cache.
        count: Counts the requests that compare a whole object.
        pins: The pins of the published objects, or ``None`` to skip the check.
    """

    def __init__(
        self, bucket: Bucket, dataset_id: str, files: Files, count: RequestCount, pins: Pins | None = None
    ) -> None:
        self._bucket = bucket
        self._count = count
        self._pins = pins
        self._comparing_lock = ProcessLock()
        self._object = lru_cache(_KNOWN_OBJECTS)(partial(_object_of, dataset_id, files))
        self._tags = PerProcess[dict[FileId, str]](dict)

    def fetch(self, file: FileId, position: int, length: int) -> bytes | memoryview:
        """Return bytes of a file.

        Raises:
            CacheFormatError: if the store lacks the object, or has another one.
            StorageError: if the store does not answer, or loses bytes.
        """
        bucket, tags, (name, size_bytes) = self._bucket, self._tags(), self._object(file)
        tag = tags.get(file)
        piece = bucket.fetch_range(name, position, position + length, tag=tag)
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
        if len(piece.content) != length:
            raise StorageError(
                errno.EIO,
                f"{bucket!r} gave {len(piece.content)} bytes of the {length} of {name} from "
                f"{position} on: try again; if it happens again, the store loses bytes",
            )
        if tag is None:
            self._check_published(file, name, piece.object.tag)
        # Requests that were made before the first answer have no tag, so their answers are compared here.
        if tags.setdefault(file, piece.object.tag) != piece.object.tag:
            raise replaced(bucket.url, name)
        return piece.content

    def _check_published(self, file: FileId, name: str, tag: str) -> None:
        """Raise `ReplacedError` unless the file's object with this tag has the bytes of the file."""
        if self._pins is None or self._pins.is_published(file, tag):
            return
        with self._comparing_lock:
            is_right = self._pins.is_published(file, tag)  # another thread may have compared it
            if is_right is None:
                self._count.take_request()
                is_right = self._pins.compare_object(file, tag)
                self._count.add_answer(self._object(file)[1])
        if not is_right:
            raise ReplacedError(
                errno.ESTALE,
                f"{name} in {self._bucket!r} is not the object that was published, and has other bytes than "
                "its name says: it was replaced there; restore the object, or build the dataset again",
            )


def hash_of(tag: str) -> int:
    """Return the pin of an object's tag; `UNKNOWN` for an empty tag."""
    if not tag:
        return UNKNOWN
    return int.from_bytes(hashlib.sha256(tag.encode()).digest()[:8], "little") or 1


def has_bytes(bucket: Bucket, name: str, sha256: str, tag: str) -> bool:
    """Return whether an object with this tag has bytes of this hash."""
    with bucket.get(name, tag=tag) as body:
        if body is None:
            return False
        digest = hashlib.sha256()
        for chunk in body.chunks:
            digest.update(chunk)
        return digest.hexdigest() == sha256


def read_pins(bucket: Bucket, dataset_id: str, table: PartTable, table_sha256: str) -> Uint64s:
    """Return the pin of each part; `UNKNOWN` for all, if there are no pins or they are of another bucket.

    A bucket's objects may have been copied one by one to another bucket, where they have other tags.

    Raises:
        CacheFormatError: if the file of pins is damaged.
    """
    name = _names.pins(dataset_id, table_sha256)
    what = f"{name} in {bucket!r}, which may be removed,"
    nothing = np.zeros(len(table), np.uint64)
    try:
        content = _content(bucket, name, what, _MOST_HEADER_BYTES + nothing.nbytes)
    except CredentialsError:
        raise
    except StorageError as error:
        if error.errno != errno.EACCES:
            raise
        # Without the permission to list, stores answer "forbidden" for every missing object.
        _log.info("yogadl: it is not known which objects were published: %s", error)
        return nothing
    if content is None:
        return nothing
    file = ArrayFile.from_buffer(content, what)
    pins = file.arrays.get("pins")
    if pins is None or pins.dtype != nothing.dtype or pins.shape != nothing.shape:
        raise CacheFormatError(f"{what} does not have a pin for each of the {len(table)} parts")
    return pins if file.document.get("location") == _hash_of_location(bucket) else nothing


def _content(bucket: Bucket, name: str, what: str, most_bytes: int) -> bytes | None:
    with bucket.get(name) as body:
        if body is None:
            return None
        if body.object.size_bytes > most_bytes:
            raise CacheFormatError(f"{what} is larger than a file of pins can be")
        return b"".join(body.chunks)


def pins_file(bucket: Bucket, hashes: Iterable[int]) -> bytes:
    """Return the content of a file of pins: one hash for each part, of an object of this bucket."""
    document = {"location": _hash_of_location(bucket)}
    return ArrayFile({"pins": np.array([*hashes], np.uint64)}, document).to_bytes()


def _hash_of_location(bucket: Bucket) -> str:
    return hashlib.sha256(bucket.url.encode()).hexdigest()
