"""Wait for some bytes of a part, and take what is needed of them."""

import threading
from collections.abc import Callable


class Range:
    """Bytes of one part, on their way or here.

    Attributes:
        part: Which part.
        start: From where.
        stop: Up to where.
        keys: What was announced that lies in it.
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
        """How many bytes it has."""
        return self.stop - self.start

    @property
    def has_failed(self) -> bool:
        """Whether it came to nothing."""
        return self._error is not None

    @property
    def is_done(self) -> bool:
        """Whether it is here, or will never be."""
        return not self._done.locked()

    def end(self, content: bytes | memoryview = b"", error: BaseException | None = None) -> None:
        """Leave what arrived, or why nothing did."""
        self._content, self._error = content, error
        self._done.release()

    def wait(self) -> None:
        """Wait until it is here.

        Raises:
            BaseException: why it will never be.
        """
        with self._done:
            pass
        if self._error is not None:
            raise self._error

    def content(self, fetch: Callable[[], bytes | memoryview]) -> bytes | memoryview:
        """Return what is to be kept in memory of what `fetch` returns."""
        return fetch()

    def slice(self, start: int, length: int) -> bytes | memoryview:
        """Return bytes from a position of the part on, waiting for them."""
        self.wait()
        first = start - self.start
        if not first and length == len(self._content):
            return self._content
        return memoryview(self._content)[first : first + length]
