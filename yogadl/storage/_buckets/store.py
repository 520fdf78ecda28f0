"""Declare what a bucket needs of a store's SDK: one attempt at each verb."""

import re
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from yogadl.errors import StorageError
from yogadl.storage._buckets.bucket import Body, Object

_CONTENT_RANGE: Final = re.compile(r"bytes (\d+)-\d+/(\d+)")


class PastEndError(StorageError):
    """Say that a range begins behind the end of its object."""


class BadResponseError(Exception):
    """Say what in an answer is not as it must be."""


@dataclass(frozen=True)
class Page:
    """Some of the objects of a list, and the mark from which to list on; ``None`` at its end."""

    objects: list[Object]
    mark: str | None


class Store(Protocol):
    """One attempt at each verb, by a store's SDK. Names are whole: checked, with the root in front.

    Every error of the SDK becomes a `StorageError` here: `TransientError` where another attempt may succeed,
    `ReplacedError`, `PastEndError`, or one that says what to do. Safe to use from several threads, fork-safe
    and picklable.
    """

    @property
    def url(self) -> str:
        """The whole store, such as ``s3://bucket``."""

    @property
    def endpoint(self) -> str:
        """Where it answers, as far as that can be known without asking; buckets of two may have one name."""

    def open(
        self, name: str, start: int, stop: int | None, *, tag: str | None, chunk_bytes: int
    ) -> AbstractContextManager[Body | None]:
        """Open an object, or a range that begins inside it; its chunks may break off or end too early."""

    def put(self, name: str, content: bytes | Path) -> Object:
        """Write an object."""

    def create(self, name: str, content: bytes) -> bool:
        """Write an object unless there is one; return whether there was none."""

    def head(self, name: str) -> Object | None:
        """Return what is known of an object."""

    def page(self, prefix: str, mark: str | None) -> Page:
        """Return the next objects with that prefix, in order of their names."""

    def delete(self, name: str) -> None:
        """Remove an object, if it is there."""


def size_of_whole(content_range: str | None, content_length: int, start: int, stop: int | None) -> int:
    """Return the size of an object of which a range was sent.

    Args:
        content_range: What the answer says of it, such as ``bytes 10-19/1000``; ``None`` if it has all.
        content_length: How many bytes follow.
        start: The first byte that was asked for.
        stop: The one behind the last; ``None`` for all.

    Raises:
        StrangeAnswerError: if it is not the range that was asked for.
    """
    if content_range is None and start == 0 and (stop is None or content_length <= stop):
        return content_length
    found = _CONTENT_RANGE.fullmatch(content_range or "")
    if found is None or int(found[1]) != start:
        raise BadResponseError(f"the range, {content_range}, where it was asked from {start} up to {stop}")
    return int(found[2])
