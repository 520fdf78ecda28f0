"""Declare what a bucket is: seven verbs that every object store has. All else is written once, above it.

A bucket is a flat space of names below a root (a prefix in S3 or GCS, a folder). An object appears whole or
not at all, and reads see the newest one. `put_if_absent` is the one operation that decides between writers.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Object:
    """What a store says of one object.

    Attributes:
        name: Its name, below the root.
        size_bytes: Its size.
        tag: Changes whenever the object is replaced: an ETag, a generation. Opaque.
        modified: When it was written, in seconds since 1970 by the store's own clock.
    """

    name: str
    size_bytes: int
    tag: str
    modified: float


@dataclass(frozen=True)
class Body:
    """The bytes of an object, or of a range of it, as they come in.

    Attributes:
        object: Whose they are; `size_bytes` is that of the whole object.
        chunks: Its bytes, of which none is left out; raises `StorageError` where they break off.
    """

    object: Object
    chunks: Iterator[bytes]


class Bucket(Protocol):
    """Keep objects by name.

    Safe to use from several threads and after a fork; picklable, without credentials that were not passed as
    arguments. Every error is a `StorageError` that names the object and says what to do; what may
    be tried again is tried again inside, bounded in time. `repr` is the URL and holds no secret.
    """

    @property
    def url(self) -> str:
        """The root, such as ``s3://bucket/prefix``."""

    def get(
        self, name: str, start: int = 0, stop: int | None = None, *, tag: str | None = None
    ) -> AbstractContextManager[Body | None]:
        """Open an object, or the range from `start` up to `stop`; ``None`` if there is none.

        Raises:
            ReplacedError: if `tag` is given and the object has another by now.
        """

    def put(self, name: str, content: bytes | Path) -> Object:
        """Write an object, replacing any other of that name; a path's file is sent as it is."""

    def put_if_absent(self, name: str, content: bytes) -> bool:
        """Write an object unless there is one; return whether this call did.

        The answer is true to what happened even if the store's own answer was lost, as long as no two
        writers put the same bytes: each content carries a token of its writer's.
        """

    def head(self, name: str) -> Object | None:
        """Return what is known of an object, or ``None`` if there is none."""

    def list(self, prefix: str = "") -> Iterator[Object]:
        """Yield all objects whose names begin with `prefix`, in order of their names."""

    def delete(self, name: str) -> None:
        """Remove an object, if it is there."""
