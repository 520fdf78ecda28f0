"""Make a bucket of a store. Retries, resumed reads, names and pickling are the same for all stores."""

import copy
import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from yogadl.errors import StorageError
from yogadl.storage._objects.bucket import (
    Body,
    Bucket,
    FetchedRange,
    Object,
    check_range,
    checked_name,
    checked_prefix,
    is_own,
    replaced,
    whole,
)
from yogadl.storage._objects.obstore_ranges import ObstoreRanges, OverdueError
from yogadl.storage._objects.retry import (
    DEFAULT_RETRY,
    HURRIED_RETRY,
    PROGRESS_BYTES,
    Attempts,
    Result,
    Retrier,
    RetryPolicy,
    TransientError,
    UnavailableError,
)
from yogadl.storage._objects.store import Page, PastEndError, Store

# Each chunk that arrives counts as progress; a connection that is reset loses at most one.
_CHUNK_BYTES: Final = PROGRESS_BYTES
# The bytes that a thread reads before it returns them.
_AT_ONCE_BYTES: Final = 2**20
# A range up to this size that is read whole usually arrives within `short_limit_s`.
_QUICK_BYTES: Final = 2**21


class StoreBucket(Bucket):
    """A bucket in a store, below a prefix; the subclass of each store adds its options.

    Args:
        store: The store.
        name: The bucket's name.
        prefix: The root; empty for the whole bucket.
        patience: How long to wait for the store.
        options: All other options of the subclass; empty ones are not pickled.
    """

    def __init__(
        self, store: Store, name: str, prefix: str, *, patience: RetryPolicy, **options: Any
    ) -> None:
        self._store = store
        self._ranges = ObstoreRanges(store, patience.total_s)
        self._root = f"{checked_name(prefix.strip('/'))}/" if prefix.strip("/") else ""
        self._retrier = Retrier(patience)
        self._exists = False
        self._location = name, prefix
        self._options = {option: value for option, value in options.items() if value}
        if patience != DEFAULT_RETRY:
            self._options["patience"] = patience

    def __reduce__(self) -> Any:
        return _reopened, (
            type(self),
            self._location,
            self._options,
            self._retrier.presence.answered.is_set(),
        )

    @property
    def url(self) -> str:
        return f"{self._store.url}/{self._root}".rstrip("/")

    @property
    def origin(self) -> str:
        return f"{self._store.endpoint} {self.url}"

    def at_root(self) -> "StoreBucket":
        """Return the whole bucket that this one lies in."""
        found = copy.copy(self)  # shares the connections
        found._root, found._location = "", (self._location[0], "")
        return found

    def hurried(self) -> "StoreBucket":
        policy = self._retrier.policy
        hurried = RetryPolicy(
            min(HURRIED_RETRY.silence_s, policy.silence_s), min(HURRIED_RETRY.total_s, policy.total_s)
        )
        kind: Callable[..., StoreBucket] = type(self)
        bucket = kind(*self._location, **{**self._options, "patience": hurried})
        bucket._retrier.presence = self._retrier.presence
        return bucket

    @contextmanager
    def get(
        self, name: str, start: int = 0, stop: int | None = None, *, tag: str | None = None
    ) -> Iterator[Body | None]:
        check_range(name, start, stop)
        # Whole objects are small, and builders coordinate by them, so they are read through the SDK, which
        # more users have tried than obstore.
        source = self._store if stop is None else self._ranges
        attempts = Attempts(self._retrier, f"read {self.url}/{name}")
        with self._read(ResumedRead(source, self._key(name), tag, attempts), name, start, stop, tag) as body:
            yield body

    @contextmanager
    def _read(
        self,
        reading: "ResumedRead",
        name: str,
        start: int,
        stop: int | None,
        tag: str | None,
        is_whole: bool = False,
    ) -> Iterator[Body | None]:
        try:
            if start == stop:
                opened = None
            elif stop is not None and stop - start <= _QUICK_BYTES and is_whole:
                opened = reading.open_quick(start, stop)
            else:
                opened = reading.open(start, stop)
        except PastEndError:
            opened, stop = None, start
        try:
            if start == stop:  # an empty range can't be requested
                known = self.head(name)
                if known is not None and tag not in (None, known.tag):
                    raise replaced(self.url, name)
                yield None if known is None else Body(known, iter(()))
            elif opened is None:
                self._check_bucket(self._key(name))
                yield None
            else:
                yield Body(self._below_root(opened), reading.chunks())
        finally:
            reading.close()

    def fetch_range(self, name: str, start: int, stop: int, *, tag: str | None = None) -> FetchedRange | None:
        check_range(name, start, stop)
        key = self._key(name)
        attempts = Attempts(self._retrier, f"read {self.url}/{name}")
        # A larger range may take longer than the patience, so it is read chunk by chunk.
        has_failed = attempts.is_hurried
        if 0 < stop - start <= PROGRESS_BYTES and not has_failed:
            try:
                fetched = self._ranges.fetch(key, start, stop, tag)
            except TransientError as error:
                attempts.failed(error)  # sleeps
                has_failed = True
            else:
                if fetched is not None:
                    self._retrier.note_success()
                    return FetchedRange(fetched.content, self._below_root(fetched.object))
        reading = ResumedRead(self._ranges, key, tag, attempts)
        with self._read(reading, name, start, stop, tag, is_whole=not has_failed) as body:
            return None if body is None else whole(body)

    def put(self, name: str, content: bytes | Path) -> Object:
        key = self._key(name)
        attempts = Attempts(self._retrier, f"write {self.url}/{name}")
        return self._below_root(attempts.call(lambda: self._store.put(key, content, attempts.sends_anew())))

    def put_if_absent(self, name: str, content: bytes) -> bool:
        key = self._key(name)
        # The object may exist because an earlier attempt, or one repeated by a proxy, succeeded although its
        # answer was lost.
        is_new = self._retrier.call(lambda: self._store.create(key, content), f"write {self.url}/{name}")
        return is_new or is_own(self, name, content)

    def head(self, name: str) -> Object | None:
        key = self._key(name)
        found = self._retrier.call(lambda: self._store.head(key), f"read {self.url}/{name}")
        if found is None:
            self._check_bucket(key)
            return None
        return self._below_root(found)

    def list(self, prefix: str = "") -> Iterator[Object]:
        start = self._root + checked_prefix(prefix)
        mark: str | None = None
        while True:
            page = self._page(start, mark)
            # A store's console makes empty objects for folders, whose names end in a slash; yogadl makes
            # none.
            yield from (self._below_root(found) for found in page.objects if not found.name.endswith("/"))
            mark = page.mark
            if mark is None:
                return

    def delete(self, name: str) -> None:
        key = self._key(name)
        self._retrier.call(lambda: self._store.delete(key), f"delete {self.url}/{name}")

    def _page(self, prefix: str, mark: str | None) -> Page:
        what = f"list {self._store.url}/{prefix}"
        return self._retrier.call(lambda: self._store.page(prefix, mark), what)

    def _check_bucket(self, missing: str) -> None:
        """Check that an object is missing, not its whole bucket: stores answer 404 in both cases."""
        if self._exists:
            return
        try:
            self._page(missing, None)  # few objects or none have this prefix
        except StorageError as error:
            if error.errno != errno.EACCES:  # without the permission to list this can't be checked
                raise
        self._exists = True

    def _key(self, name: str) -> str:
        return checked_name(self._root + checked_name(name))

    def _below_root(self, stored: Object) -> Object:
        return Object(stored.name[len(self._root) :], stored.size_bytes, stored.tag, stored.modified)


def _reopened(
    kind: Callable[..., StoreBucket], location: tuple[str, str], options: dict[str, Any], has_answered: bool
) -> StoreBucket:
    """Unpickle a bucket; a store that has answered the process that pickled it exists."""
    bucket = kind(*location, **options)
    if has_answered:
        bucket._retrier.presence.answered.set()
    return bucket


class ResumedRead:
    """One read of an object or a range, continued on another connection if one breaks. Not thread-safe.

    Args:
        store: The store that opens it.
        name: Its whole name.
        tag: The tag that the object must have, or ``None`` for the current one.
        attempts: The attempts at this read.
    """

    def __init__(self, store: Store | ObstoreRanges, name: str, tag: str | None, attempts: Attempts) -> None:
        self._store = store
        self._name = name
        self._tag = tag
        self._attempts = attempts
        self._connection = ExitStack()
        self._position = self._stop = 0
        self._is_quick = False

    def open(self, start: int, stop: int | None) -> Object | None:
        """Begin to read; return the object, ``None`` if it does not exist."""
        self._position = start
        body = self._open_again(stop)
        return None if body is None else self._started(body, stop)

    def open_quick(self, start: int, stop: int) -> Object | None:
        """Begin to read a range that usually arrives within `short_limit_s`, at first in this thread.

        A thread for each piece takes several times the processor time of the read itself
        (benchmarks/transfer.py). The rest of a slower range is read in threads, with the whole patience.
        """
        self._position = start
        body = None
        if isinstance(self._store, ObstoreRanges):
            try:
                body = self._store.open_quick(
                    self._name, start, stop, tag=self._tag, chunk_bytes=_CHUNK_BYTES
                )
            except TransientError as error:
                self._failed(error)
        if body is None:
            return self.open(start, stop)
        self._is_quick = True
        self._attempts.answered()
        return self._started(body, stop)

    def _started(self, body: Body, stop: int | None) -> Object:
        self._check_tag(body)
        self._body = body
        self._tag = body.object.tag
        self._stop = min(body.object.size_bytes, stop if stop is not None else body.object.size_bytes)
        return body.object

    def _failed(self, error: TransientError) -> None:
        if isinstance(error, OverdueError):
            self._attempts.restart()
        else:
            self._attempts.failed(error)

    def chunks(self) -> Iterator[bytes | memoryview]:
        """Yield the bytes."""
        while self._position < self._stop:
            arrived: list[bytes | memoryview] = []
            error = self._run(partial(self._read_some, self._body.chunks, arrived))
            for chunk in arrived:
                self._position += len(chunk)
                yield chunk
            try:
                if error is not None:
                    raise error
                if not arrived:
                    where = f"{self._store.url}/{self._name}"
                    raise TransientError(
                        errno.EIO, f"{where} broke off at byte {self._position} of {self._stop}"
                    )
                if self._position > self._stop:
                    raise self._sent_more()
            except TransientError as failed:
                self._failed(failed)
                self._body = self._reopened()

    def _read_some(
        self, chunks: Iterator[bytes | memoryview], arrived: list[bytes | memoryview]
    ) -> TransientError | None:
        """Append the next chunks to `arrived`; return the error that followed them, if there was one."""
        size_bytes = 0
        try:
            while size_bytes < _AT_ONCE_BYTES and (chunk := next(chunks, None)) is not None:
                arrived.append(chunk)
                size_bytes += len(chunk)
                self._attempts.moved(len(chunk))
        except TransientError as error:
            return error
        return None

    def _run(self, work: Callable[[], Result]) -> Result:
        if self._is_quick:
            return work()
        try:
            return self._attempts.run(work)
        except UnavailableError:
            # A thread may still read from the connection, and closing it would wait for that thread.
            abandoned, self._connection = self._connection, ExitStack()
            with suppress(
                RuntimeError
            ):  # no more threads can be started: it stays open until the process ends
                threading.Thread(target=abandoned.close, name="yogadl-request", daemon=True).start()
            raise

    def close(self) -> None:
        """Return the connection to the pool, or close it if it has unread bytes."""
        self._connection.close()

    def _reopened(self) -> Body:
        try:
            body = self._open_again(self._stop)
        except PastEndError:
            body = None
        if body is None:
            raise replaced(self._store.url, self._name)
        return body

    def _open_again(self, stop: int | None) -> Body | None:
        self._connection.close()
        while True:
            opened = self._store.open(
                self._name, self._position, stop, tag=self._tag, chunk_bytes=_CHUNK_BYTES
            )
            try:
                body = self._attempts.run(opened.__enter__)
            except TransientError as error:
                self._attempts.failed(error)
                continue
            self._connection.push(opened)
            self._attempts.answered()
            self._is_quick = False
            if body is not None:
                self._check_tag(body)
            return body

    def _check_tag(self, body: Body) -> None:
        if self._tag not in (None, body.object.tag):  # some stores ignore If-Match
            raise replaced(self._store.url, self._name)

    def _sent_more(self) -> StorageError:
        more_bytes, where = self._position - self._stop, f"{self._store.url}/{self._name}"
        return StorageError(
            errno.EIO, f"the store sent {more_bytes} bytes more of {where} than were requested"
        )
