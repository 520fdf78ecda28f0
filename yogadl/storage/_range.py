"""Wait for bytes of a part that were requested, and read from them."""

import threading
from collections.abc import Callable


class Range:
    """Bytes of one part that were requested.

    Attributes:
        part: The number of the part.
        start: The position of the first byte.
        stop: The position after the last byte.
        keys: The keys of the announced ranges that lie in it.
    """

    __slots__ = ("_content", "_done", "_error", "keys", "part", "start", "stop")

    def __init__(self, part: int, start: int, stop: int) -> None:
        self.part, self.start, self.stop = part, start, stop
        self.keys: tuple[int, ...] = ()
        self._content: bytes | memoryview = b""
        self._error: BaseException | None = None
        self._done = threading.Lock()
        self._done.acquire()

    @property
    def size_bytes(self) -> int:
        """The number of bytes."""
        return self.stop - self.start

    @property
    def has_failed(self) -> bool:
        """Whether the request failed."""
        return self._error is not None

    @property
    def is_done(self) -> bool:
        """Whether the bytes have arrived, or the request failed."""
        return not self._done.locked()

    def end(self, content: bytes | memoryview = b"", error: BaseException | None = None) -> None:
        """Set the content that arrived, or the error of the request."""
        self._content, self._error = content, error
        self._done.release()

    def wait(self) -> None:
        """Wait until the bytes have arrived.

        Raises:
            BaseException: the error of the request, if it failed.
        """
        with self._done:
            pass
        if self._error is not None:
            raise self._error

    def content(self, fetch: Callable[[], bytes | memoryview]) -> bytes | memoryview:
        """Return the bytes to keep in memory, made from those that `fetch` returns."""
        return fetch()

    def slice(self, start: int, length: int) -> bytes | memoryview:
        """Return bytes from a position of the part on, waiting for them to arrive."""
        self.wait()
        first = start - self.start
        if not first and length == len(self._content):
            return self._content
        return memoryview(self._content)[first : first + length]
