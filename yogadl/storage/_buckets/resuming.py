"""Read an object of a store to its end, over as many connections as that takes."""

import errno
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

from yogadl.errors import StorageError
from yogadl.storage._buckets.bucket import Body, Object, replaced
from yogadl.storage._buckets.retry import Attempts, Retrier, TransientError
from yogadl.storage._buckets.store import PastEndError, Store

_CHUNK_BYTES: Final = 2**20
# What came of a chunk is lost with a connection that is reset: where connections don't last, less is.
_SMALL_CHUNK_BYTES: Final = 2**16


class Resuming:
    """One read of an object, or of a range of it: whole, in order. Not for several threads.

    Args:
        store: Where it is.
        name: Its whole name.
        tag: The tag it must have; ``None`` for that which is there now.
        contact: How long to wait, each time that nothing comes.
    """

    def __init__(self, store: Store, name: str, tag: str | None, contact: Retrier) -> None:
        self._store = store
        self._name = name
        self._tag = tag
        self._contact = contact
        self._trials = Attempts(contact)
        self._connection = ExitStack()
        self._at = self._stop = 0

    def open(self, start: int, stop: int | None) -> Object | None:
        """Begin to read; return whose bytes come, ``None`` if there is no such object."""
        self._at = start
        body = self._open_again(stop, _CHUNK_BYTES)
        if body is None:
            return None
        self._body = body
        self._tag = body.object.tag
        self._stop = min(body.object.size_bytes, stop if stop is not None else body.object.size_bytes)
        return body.object

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes."""
        safe = self._at  # how far it was when something last came forward
        while self._at < self._stop:
            try:
                for chunk in self._body.chunks:
                    self._at += len(chunk)
                    if self._at - safe >= _SMALL_CHUNK_BYTES:
                        safe = self._at
                        self._trials.restart()
                    yield chunk
                self._check_end()
            except TransientError as error:
                self._trials.failed(error)
                self._body = self._taken_up()

    def close(self) -> None:
        """Give the connection back, or end it if there is more to come on it."""
        self._connection.close()

    def _taken_up(self) -> Body:
        try:
            body = self._open_again(self._stop, _SMALL_CHUNK_BYTES)
        except PastEndError:
            body = None
        if body is None:
            raise replaced(self._store.url, self._name)
        return body

    def _open_again(self, stop: int | None, chunk_bytes: int) -> Body | None:
        self._connection.close()
        while True:
            try:
                body = self._connection.enter_context(
                    self._store.open(self._name, self._at, stop, tag=self._tag, chunk_bytes=chunk_bytes)
                )
            except TransientError as error:
                self._trials.failed(error)
                continue
            self._contact.answered.set()
            # Some stores ignore what a read is conditional on.
            if body is not None and self._tag not in (None, body.object.tag):
                raise replaced(self._store.url, self._name)
            return body

    def _check_end(self) -> None:
        where = f"{self._store.url}/{self._name}"
        if self._at < self._stop:
            raise TransientError(errno.EIO, f"{where} broke off at byte {self._at} of {self._stop}")
        if self._at > self._stop:
            raise StorageError(
                errno.EIO,
                f"the store sent {self._at - self._stop} bytes more of {where} than it was asked for",
            )
