"""Declare what a bucket is: seven verbs that every object store has.

They are `get`, `fetch_range`, `put`, `put_if_absent`, `head`, `list` and `delete`; all else is written once,
above them. A bucket is a flat space of names below a root (a prefix in S3 or GCS, a folder). An object
appears whole or not at all, and reads see the newest one. `put_if_absent` is the one operation that decides
between writers. `fetch_range` is a `get` in one piece, for stores that have a faster way to that.
"""

import errno
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from yogadl.errors import ConfigurationError, StorageError

# Of a whole name, root and all, in S3 and GCS; of one segment, on file systems.
_MAX_NAME_BYTES: Final = 1024
_MAX_SEGMENT_BYTES: Final = 255
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


class ReplacedError(StorageError):
    """The object is no longer the one whose tag was given."""


@dataclass(frozen=True)
class Object:
    """What a store says of one object.

    Attributes:
        name: Its name, below the root.
        size_bytes: Its size.
        tag: Changes whenever the object's bytes do: an ETag, a generation. Opaque.
        modified: When it was written, in seconds since 1970 by the store's own clock.
    """

    name: str
    size_bytes: int
    tag: str
    modified: float


@dataclass(frozen=True)
class Body:
    """The bytes of an object, or of a range of it, as they arrive.

    Attributes:
        object: The object; `size_bytes` is that of all of it.
        chunks: All the bytes, of this one object: after a broken connection the rest is requested again.
            Raises `StorageError` where that fails, `ReplacedError` if the object was replaced meanwhile. Each
            is about a MiB at most. Only to be read before the body is closed.
    """

    object: Object
    chunks: Iterator[bytes | memoryview]


@dataclass(frozen=True)
class FetchedRange:
    """A range of an object, in memory.

    Attributes:
        content: Its bytes, fewer than asked for where the object ends before.
        object: The object; `size_bytes` is that of all of it.
    """

    content: memoryview
    object: Object


class Bucket(Protocol):
    """Keep objects by name.

    Safe to use from several threads and after a fork; picklable, without credentials that were not passed as
    arguments. Every error is a `StorageError` that names the object and says what to do; transient failures
    are retried inside, bounded in time. `repr` is the URL and holds no secret. A name is a path without ``.``
    and ``..``, and no other's folder; anything else is a `ConfigurationError`.
    """

    @property
    def url(self) -> str:
        """The root, such as ``s3://bucket/prefix``."""

    def __repr__(self) -> str:
        return self.url

    @property
    def origin(self) -> str:
        """The root and its store's endpoint, which together are unique. Takes no request."""
        return self.url

    def hurried(self) -> "Bucket":
        """Return the same bucket, but waiting a few seconds only: for questions that have another answer."""
        return self

    def get(
        self, name: str, start: int = 0, stop: int | None = None, *, tag: str | None = None
    ) -> AbstractContextManager[Body | None]:
        """Open an object, or the range from `start` up to `stop`; ``None`` if there is none.

        A range beyond the end is cut short, as a slice's is.

        Raises:
            ReplacedError: if `tag` is given and the object has another by now.
        """

    def fetch_range(self, name: str, start: int, stop: int, *, tag: str | None = None) -> FetchedRange | None:
        """Return the range from `start` up to `stop` of an object, all at once; ``None`` if there is none.

        The fastest way for many small ranges, in many threads. A range beyond the end is cut short.

        Raises:
            ReplacedError: if `tag` is given and the object has another by now.
        """
        with self.get(name, start, stop, tag=tag) as body:
            return None if body is None else whole(body)

    def put(self, name: str, content: bytes | Path) -> Object:
        """Write an object, replacing any other of that name; a path's file is sent as it is.

        A put that raised may still take effect: the network can deliver it late.
        """

    def put_if_absent(self, name: str, content: bytes) -> bool:
        """Write an object unless there is one; return whether this call did.

        This holds even if the store's answer was lost, as long as no two writers put the same bytes: so each
        content has a token of its writer's.
        """

    def head(self, name: str) -> Object | None:
        """Return what is known of an object, or ``None`` if there is none."""

    def list(self, prefix: str = "") -> Iterator[Object]:
        """Yield all objects whose names begin with `prefix`, in order of their names."""

    def delete(self, name: str) -> None:
        """Remove an object, if it is there."""


def whole(body: Body) -> FetchedRange:
    """Return all that arrives."""
    return FetchedRange(memoryview(b"".join(body.chunks)), body.object)


def read(
    bucket: Bucket, name: str, start: int = 0, stop: int | None = None, *, tag: str | None = None
) -> bytes | None:
    """Return the bytes of an object, or of a range of it, ``None`` if there is none."""
    with bucket.get(name, start, stop, tag=tag) as body:
        return None if body is None else b"".join(body.chunks)


def is_own(bucket: Bucket, name: str, content: bytes) -> bool:
    """Return whether an object has exactly these bytes: whether a put whose answer was lost succeeded."""
    with bucket.get(name) as body:
        if body is None or body.object.size_bytes != len(content):
            return False
        return b"".join(body.chunks) == content


def checked_name(name: str) -> str:
    """Return the name of an object, if it can be one in every store.

    Raises:
        ConfigurationError: if it is empty, over-long, absolute, or has an empty, ``.`` or ``..`` segment, a
            backslash or a control character.
    """
    problem = _problem_with(name)
    if problem:
        raise ConfigurationError(f"no object can be called {name[:80]!r}: its name {problem}")
    return name


def is_name(name: str) -> bool:
    """Return whether an object can be called so in every store."""
    return _problem_with(name) is None


def checked_prefix(prefix: str) -> str:
    """Return the prefix of the names to list, if it can be one; empty for all.

    Raises:
        ConfigurationError: if no name can.
    """
    if prefix:
        checked_name(prefix.removesuffix("/") if prefix != "/" else prefix)
    return prefix


def check_range(name: str, start: int, stop: int | None) -> None:
    """Raise `ConfigurationError` if this can't be a range of an object."""
    if start < 0 or (stop is not None and stop < start):
        raise ConfigurationError(f"no range of {name!r}: from {start} up to {stop}")


def replaced(url: str, name: str) -> ReplacedError:
    """Make the error of an object that has another tag than was asked for."""
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
