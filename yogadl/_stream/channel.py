"""Send messages with memory descriptors between two processes, over a socket without a name."""

import pickle
import socket
import struct
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from yogadl._workers.server import received

_HEADER: Final = struct.Struct("=QI")  # bytes that follow, and descriptors sent along
_READ_AT_ONCE: Final = 2**16
_NOT_WAITING: Final = int(socket.MSG_DONTWAIT)  # a number: see `received`


class Channel:
    """One end of a socket. Half a message is kept, so that no call waits for the rest from a dead process.

    Args:
        connection: The socket; it is closed with the channel.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._arrived = bytearray()
        self._descriptors: deque[list[int]] = deque()  # of each message with descriptors

    def fileno(self) -> int:
        """Return the socket's descriptor, for polling."""
        return self._connection.fileno()

    def close(self) -> None:
        """Close this end."""
        self._connection.close()

    def send(self, message: Any, descriptors: Sequence[int] = ()) -> None:
        """Send a message, which must pickle.

        Raises:
            OSError: if the other end is gone.
        """
        pickled = pickle.dumps(message, 5)
        data = memoryview(_HEADER.pack(len(pickled), len(descriptors)) + pickled)
        if descriptors:
            data = data[socket.send_fds(self._connection, [data], descriptors) :]
        self._connection.sendall(data)

    def receive(self) -> tuple[Any, list[int]]:
        """Wait for a message; return it with its descriptors.

        Fewer descriptors arrive than were sent if this process may open no more.

        Raises:
            EOFError: if the other end is gone.
        """
        while (found := self._next()) is None:
            self._read(0)
        return found

    def arrived(self) -> tuple[Any, list[int]] | None:
        """Return the next message if it has arrived already, else None.

        Raises:
            EOFError: if no message is left and the other end is gone.
        """
        while (found := self._next()) is None:
            try:
                self._read(_NOT_WAITING)
            except BlockingIOError:
                return None
        return found

    def _next(self) -> tuple[Any, list[int]] | None:
        if len(self._arrived) < _HEADER.size:
            return None
        size, count = _HEADER.unpack_from(self._arrived)
        end = _HEADER.size + size
        if len(self._arrived) < end:
            return None
        message = pickle.loads(memoryview(self._arrived)[_HEADER.size : end])
        self._arrived = self._arrived[end:]
        return message, self._descriptors.popleft() if count else []

    def _read(self, flags: int) -> None:
        try:
            data, descriptors = received(self._connection, _READ_AT_ONCE, flags)
        except ConnectionError:
            data, descriptors = b"", None
        if not data:
            raise EOFError("the other end is gone")
        self._arrived += data
        if descriptors is not None:
            self._descriptors.append(descriptors)
