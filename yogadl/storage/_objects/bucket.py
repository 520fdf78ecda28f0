"""Declare a bucket: seven verbs that every object store has.

The verbs are `get`, `fetch_range`, `put`, `put_if_absent`, `head`, `list` and `delete`; everything else is
written once, above them. A bucket is a flat space of names below a root (a prefix in S3 or GCS, a folder). An
object appears whole or not at all, and reads return the newest one. `put_if_absent` is the one operation that
decides between writers. `fetch_range` is a `get` in one piece, for stores that have a faster way for that.

At the end are the buckets without a service: one in memory, for tests, and one that refuses every request.
"""

import errno
import itertools
import re
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn, Protocol

from yogadl.errors import ConfigurationError, StorageError
from yogadl.storage._objects.retry import UnavailableError

# The limit of a whole name with its root, in S3 and GCS; and of one segment, on file systems.
_MAX_NAME_BYTES: Final = 1024
_MAX_SEGMENT_BYTES: Final = 255
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


class ReplacedError(StorageError):
    """The object was replaced: its tag is no longer the requested one."""


@dataclass(frozen=True)
class Object:
    """The facts that a store reports about one object.

    Attributes:
        name: Its name, below the root.
        size_bytes: Its size.
        tag: An opaque text that changes whenever the object's bytes do: an ETag, a generation.
        modified: The time of its last write, in seconds since 1970 by the store's own clock.
    """

    name: str
    size_bytes: int
    tag: str
    modified: float


@dataclass(frozen=True)
class Body:
    """The bytes of an object, or of a range of it, as they arrive.

    Attributes:
        object: The object; `size_bytes` is the size of the whole object.
        chunks: All the bytes, of this one object: after a broken connection the rest is requested again.
            Raises `StorageError` if that fails, `ReplacedError` if the object was replaced meanwhile. Each
            chunk is about a MiB at most. Read them before the body is closed.
    """

    object: Object
    chunks: Iterator[bytes | memoryview]


@dataclass(frozen=True)
class FetchedRange:
    """A range of an object, in memory.

    Attributes:
        content: Its bytes, fewer than requested if the object ends before.
        object: The object; `size_bytes` is the size of the whole object.
    """

    content: memoryview
    object: Object


class Bucket(Protocol):
    """Keep objects by name.

    Safe to use from several threads and after a fork; picklable, without credentials that were not passed as
    arguments. Every error is a `StorageError` that names the object and a remedy; transient failures are
    retried inside, for a bounded time. `repr` is the URL and holds no secret. A name is a path without ``.``
    and ``..``, and not the folder of another name; anything else is a `ConfigurationError`.
    """

    @property
    def url(self) -> str:
        """The root, such as ``s3://bucket/prefix``."""

    def __repr__(self) -> str:
        return self.url

    @property
    def origin(self) -> str:
        """The root and its store's endpoint, which together are unique. Makes no request."""
        return self.url

    def hurried(self) -> "Bucket":
        """Return the same bucket with a wait of only a few seconds, for callers that have a fallback."""
        return self

    def get(
        self, name: str, start: int = 0, stop: int | None = None, *, tag: str | None = None
    ) -> AbstractContextManager[Body | None]:
        """Open an object, or the range from `start` up to `stop`; give ``None`` if it does not exist.

        A range beyond the end is cut short, as a slice's is.

        Raises:
            ReplacedError: if `tag` is given and the object has another tag now.
        """

    def fetch_range(self, name: str, start: int, stop: int, *, tag: str | None = None) -> FetchedRange | None:
        """Return the range from `start` up to `stop` of an object at once, or ``None`` if it does not exist.

        The fastest way for many small ranges, in many threads. A range beyond the end is cut short.

        Raises:
            ReplacedError: if `tag` is given and the object has another tag now.
        """
        with self.get(name, start, stop, tag=tag) as body:
            return None if body is None else whole(body)

    def put(self, name: str, content: bytes | Path) -> Object:
        """Write an object, replacing any of that name; a path's file is sent unchanged.

        A put that raised may still take effect: the network can deliver it late.
        """

    def put_if_absent(self, name: str, content: bytes) -> bool:
        """Write an object unless it exists; return whether this call did.

        The result holds even if the store's answer was lost, as long as no two writers put the same bytes:
        each content contains a token of its writer.
        """

    def head(self, name: str) -> Object | None:
        """Return the facts about an object, or ``None`` if it does not exist."""

    def list(self, prefix: str = "") -> Iterator[Object]:
        """Yield all objects whose names begin with `prefix`, in order of their names."""

    def delete(self, name: str) -> None:
        """Remove an object, if it exists."""


def whole(body: Body) -> FetchedRange:
    """Return the whole body as one range."""
    return FetchedRange(memoryview(b"".join(body.chunks)), body.object)


def read(
    bucket: Bucket, name: str, start: int = 0, stop: int | None = None, *, tag: str | None = None
) -> bytes | None:
    """Return the bytes of an object, or of a range of it, ``None`` if it does not exist."""
    with bucket.get(name, start, stop, tag=tag) as body:
        return None if body is None else b"".join(body.chunks)


def is_own(bucket: Bucket, name: str, content: bytes) -> bool:
    """Return whether an object has exactly these bytes: then a put whose answer was lost has succeeded."""
    with bucket.get(name) as body:
        if body is None or body.object.size_bytes != len(content):
            return False
        return b"".join(body.chunks) == content


def checked_name(name: str) -> str:
    """Return the name of an object, if every store allows it.

    Raises:
        ConfigurationError: if it is empty, over-long, absolute, or has an empty, ``.`` or ``..`` segment, a
            backslash or a control character.
    """
    problem = _problem_with(name)
    if problem:
        raise ConfigurationError(f"no object can be called {name[:80]!r}: its name {problem}")
    return name


def is_name(name: str) -> bool:
    """Return whether every store allows this name of an object."""
    return _problem_with(name) is None


def checked_prefix(prefix: str) -> str:
    """Return the prefix of the names to list, if names can begin with it; empty for all.

    Raises:
        ConfigurationError: if no name can begin with it.
    """
    if prefix:
        checked_name(prefix.removesuffix("/") if prefix != "/" else prefix)
    return prefix


def check_range(name: str, start: int, stop: int | None) -> None:
    """Raise `ConfigurationError` if this can't be a range of an object."""
    if start < 0 or (stop is not None and stop < start):
        raise ConfigurationError(
            f"{name!r} can't be read from byte {start} up to {stop}: a range begins at 0 or later, and ends "
            "after its begin"
        )


def replaced(url: str, name: str) -> ReplacedError:
    """Return the error of an object that has another tag than was requested."""
    return ReplacedError(
        errno.ESTALE, f"{url}/{name} was replaced or deleted while it was read; open the dataset again"
    )


def _problem_with(name: str) -> str | None:
    if not name:
        return "is empty"
    if _CONTROL.search(name) or "\\" in name:
        return "has a backslash or a control character"
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "is not valid Unicode"
    if size > _MAX_NAME_BYTES:
        return f"is longer than {_MAX_NAME_BYTES} bytes"
    for segment in name.split("/"):
        if segment in ("", ".", ".."):
            return "is absolute or has an empty segment, '.' or '..'"
        if len(segment.encode()) > _MAX_SEGMENT_BYTES:
            return f"has a segment of more than {_MAX_SEGMENT_BYTES} bytes"
    return None


# Test whether a store honours conditional writes.


# One name for all tests, which leave one small object behind; no dataset's id begins with a dot.
PROBE: Final = ".yogadl/put-if-absent"


def check_conditions(bucket: Bucket) -> None:
    """Check that the bucket's `put_if_absent` writes only if there is no such object.

    Writes one small object, once.

    Raises:
        ConfigurationError: if it writes in any case: two builders would both win.
        StorageError: if the bucket can't be written.
    """
    if bucket.put_if_absent(PROBE, _token()) and bucket.put_if_absent(PROBE, _token()):
        raise ConfigurationError(
            f"the store of {bucket.url} ignores the condition of a write (If-None-Match in S3, "
            "ifGenerationMatch in GCS): it let two writers put the same object. So two machines could build "
            "the same version at once. Use another store; or, if only one machine builds at a time, pass "
            "lease=yogadl.Lease(exclusive=False)"
        )


def _token() -> bytes:
    return secrets.token_hex(16).encode()


class MemoryBucket(Bucket):
    """A bucket of this process alone, for tests. Implements `Bucket`, except that it is not picklable.

    Args:
        chunk_bytes: The size of the chunks of a body.
    """

    def __init__(self, *, chunk_bytes: int = 2**20) -> None:
        self._chunk_bytes = chunk_bytes
        self._objects: dict[str, tuple[Object, bytes]] = {}
        self._tags = itertools.count(1)
        self._writing = threading.Lock()

    @property
    def url(self) -> str:
        return f"memory://{id(self):x}"

    @contextmanager
    def get(
        self, name: str, start: int = 0, stop: int | None = None, *, tag: str | None = None
    ) -> Iterator[Body | None]:
        check_range(name, start, stop)
        stored = self._objects.get(checked_name(name))
        if stored is None:
            yield None
            return
        info, content = stored
        if tag not in (None, info.tag):
            raise replaced(self.url, name)
        wanted = memoryview(content)[start:stop]
        size = self._chunk_bytes
        yield Body(info, (bytes(wanted[at : at + size]) for at in range(0, len(wanted), size)))

    def put(self, name: str, content: bytes | Path) -> Object:
        copied = content.read_bytes() if isinstance(content, Path) else bytes(content)
        with self._writing:
            return self._put(checked_name(name), copied)

    def put_if_absent(self, name: str, content: bytes) -> bool:
        with self._writing:
            stored = self._objects.get(checked_name(name))
            if stored is None:
                self._put(name, bytes(content))
            return stored is None or stored[1] == content

    def head(self, name: str) -> Object | None:
        stored = self._objects.get(checked_name(name))
        return None if stored is None else stored[0]

    def list(self, prefix: str = "") -> Iterator[Object]:
        checked_prefix(prefix)
        objects = list(self._objects.values())  # a snapshot: other threads may write meanwhile
        listed = (info for info, _ in objects if info.name.startswith(prefix))
        yield from sorted(listed, key=lambda info: info.name)

    def delete(self, name: str) -> None:
        with self._writing:
            self._objects.pop(checked_name(name), None)

    def _put(self, name: str, content: bytes) -> Object:
        info = Object(name, len(content), str(next(self._tags)), time.time())
        self._objects[name] = (info, content)
        return info


class OfflineError(UnavailableError):
    """No request was made, because of ``offline=True``."""


class OfflineBucket(Bucket):
    """A bucket that raises `OfflineError` on every request; with ``offline=True`` only the mirror is read."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    @property
    def url(self) -> str:
        return self._bucket.url

    @property
    def origin(self) -> str:
        return self._bucket.origin

    def get(
        self, name: str, start: int = 0, stop: int | None = None, *, tag: str | None = None
    ) -> AbstractContextManager[Body | None]:
        self._refuse("read", name)

    def put(self, name: str, content: bytes | Path) -> Object:
        self._refuse("write", name)

    def put_if_absent(self, name: str, content: bytes) -> bool:
        self._refuse("write", name)

    def head(self, name: str) -> Object | None:
        self._refuse("read", name)

    def list(self, prefix: str = "") -> Iterator[Object]:
        self._refuse("list", prefix)

    def delete(self, name: str) -> None:
        self._refuse("delete", name)

    def at_root(self) -> "OfflineBucket | None":
        """Return the whole bucket that this one lies in, or ``None`` if it is a folder."""
        at_root = getattr(self._bucket, "at_root", None)
        return None if at_root is None else OfflineBucket(at_root())

    def _refuse(self, verb: str, name: str) -> NoReturn:
        raise OfflineError(
            errno.ENETUNREACH,
            f"can't {verb} {self.url}/{name}: with offline=True only versions that are complete in this "
            "machine's mirror can be read. Without offline=True, where the store can be reached, `yogadl "
            "pull` fills the mirror",
        )
