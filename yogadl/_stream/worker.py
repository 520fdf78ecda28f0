"""Run in a worker: read the requested rows, call the functions, and send the results over a socket."""

import contextlib
import mmap
import os
import pickle
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from yogadl._core.columns import JOINED_BYTES, JoinedValues
from yogadl._core.memory import settle_allocator
from yogadl._core.operation import one_operation
from yogadl._core.protocols import Announced, Column
from yogadl._stream.cut import Cut, Flags, Pieces, Rows, joined
from yogadl._stream.items import Batches, ItemStage, Records
from yogadl._stream.run import RowBlocks, Totals, announce_rows
from yogadl._stream.transport import Packer, SharedBatch
from yogadl._workers.messages import Failure
from yogadl._workers.server import received
from yogadl.errors import ConfigurationError

if TYPE_CHECKING:
    from yogadl._views.stages import Rejected, Replaced

# Send messages with memory descriptors between two processes, over a socket without a name.


_HEADER: Final = struct.Struct("=QI")  # bytes that follow, and descriptors sent along
_READ_AT_ONCE: Final = 2**16
_NOT_WAITING: Final = int(socket.MSG_DONTWAIT)  # a number: see `_CLOSED_AT_EXEC` of `server`


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


# Environment variables that set the number of threads of libraries, before these are loaded.
THREADS: Final = (
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"),
    *("VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS", "OPENCV_FOR_THREADS_NUM"),
)


class WorkerTask(NamedTuple):
    """The work of all workers of a pool.

    Args:
        make: Makes the items.
        stages: The stages that the items pass through.
        cut: The number of records in an item.
        begin: A function that is called first, with the worker's number.
        threads: The number of threads of numerical libraries.
        maker: The name of the function that makes the items, for messages.
        most: The most unanswered requests of a worker.
    """

    make: Batches | Records
    stages: tuple[ItemStage, ...]
    cut: Cut
    begin: Callable[[int], object] | None
    threads: int
    maker: str
    most: int

    @property
    def sends_columns(self) -> bool:
        """Whether workers send columns: no function is called, and the pool's process makes the items."""
        return self.make.is_plain and not self.stages


class Request(NamedTuple):
    """A request for rows, which also returns segments, and names those that could not be mapped."""

    iteration: int
    number: int
    pieces: Pieces
    returned: tuple[int, ...]
    lost: tuple[int, ...]
    is_copy: bool  # the answer must use no segments
    sent_s: float  # of the monotonic clock, which all processes share


class WorkerAnswer(NamedTuple):
    """An answer to a request: parts, and perhaps an error in place of the next part.

    The number is that of the request. None means that the worker has begun: at the start, and with each
    iteration. If the iteration is None, too, the worker calls its first function.
    """

    iteration: int | None
    number: int | None
    parts: SharedBatch | None = None
    failure: Failure | None = None
    counted: Totals = Totals({})  # since the last answer
    rejected: "Sequence[tuple[Rejected, int, int]]" = ()  # see `Counters.rejected_since`
    replaced: "Replaced | None" = None  # see `Counters.changes`


def work(connection: socket.socket, _: int, task: WorkerTask | None = None) -> None:
    """Run a worker, which receives its task if it was started empty."""
    channel = Channel(connection)
    # EOFError or OSError: the process that sends requests is gone.
    with contextlib.suppress(EOFError, OSError):
        number, descriptors = channel.receive()
        try:
            if task is None:
                task = _load_task(descriptors[0])
            _limit_threads(task.threads)
            if "numpy.random" in sys.modules:
                np.random.seed()  # otherwise all workers would draw the same numbers
            if task.begin is not None:
                channel.send(WorkerAnswer(None, None))
                task.begin(number)
            settle_allocator()
        except BaseException as error:  # noqa: BLE001  (any error of a user's function is sent)
            channel.send(WorkerAnswer(0, None, None, Failure.of(error)))
            return
        channel.send(WorkerAnswer(0, None))
        _answer(channel, _ItemReader(task))


def _load_task(descriptor: int) -> WorkerTask:
    """Return the task that is pickled in shared memory, and close the memory's descriptor."""
    with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as memory:
        os.close(descriptor)
        task: WorkerTask = pickle.loads(memory)
    return task


def _limit_threads(threads: int) -> None:
    """Set the number of threads of libraries that are already loaded, as in a forked process."""
    cv2 = sys.modules.get("cv2")
    if cv2 is not None:
        cv2.setNumThreads(threads)
    if os.environ.get(THREADS[0]) != str(threads):
        with contextlib.suppress(ImportError):
            import threadpoolctl

            threadpoolctl.threadpool_limits(threads)


def _answer(channel: Channel, reader: "_ItemReader") -> None:
    """Answer requests in order; skip those of an iteration that is over."""
    # Requests that wait for their answer, each with what keeps the bytes that were announced of its rows.
    waiting: deque[tuple[Request, list[Announced]]] = deque()
    iteration = 0
    while True:
        arrived = channel.arrived() if waiting else channel.receive()
        while arrived is not None:
            request: Request = arrived[0]
            reader.packer.take_back(request.returned)
            reader.packer.remove_unmapped(request.lost)
            if waiting and waiting[-1][0].iteration != request.iteration:
                waiting.clear()
            waiting.append((request, reader.announce(request.pieces)))
            arrived = channel.arrived()
        request, announced = waiting.popleft()
        if request.iteration != iteration:
            iteration = request.iteration
            channel.send(WorkerAnswer(iteration, None))
        # What was sent before the store was given up does not wait for it as long once more.
        with one_operation(request.sent_s):
            parts, descriptors, failure = reader.answer_parts(request.pieces, request.is_copy)
        answer = WorkerAnswer(request.iteration, request.number, parts, failure, *reader.counts())
        channel.send(answer, descriptors)
        reader.packer.sent()
        del announced


class _ItemReader:
    """Reads rows, and makes the messages with them."""

    def __init__(self, task: WorkerTask) -> None:
        self._task = task
        self._run = task.make.run
        self._size = task.cut.size
        self._blocks = RowBlocks(self._run, self._size, announces=False)
        # Functions return arrays of their own, unless they fill those that they are given.
        self._gathers = self._run.chain is None or self._run.chain.stages[-1].out is not None
        self._totals = self._run.totals()
        self.packer = Packer(task.make.reduce, task.most + 1)

    def announce(self, pieces: Pieces) -> list[Announced]:
        """Announce these rows; other workers read the rows between them."""
        found: list[Announced] = []
        with contextlib.suppress(Exception):  # reading the rows raises it
            found.extend(announce_rows(self._run, self._blocks.rows(*piece)) for piece in pieces)
        return found

    def answer_parts(
        self, pieces: Pieces, is_copy: bool
    ) -> tuple[SharedBatch | None, list[int], Failure | None]:
        """Return the parts made of some rows, the descriptors that map them, and the error after them."""
        parts, error = self._parts(pieces)
        shared: SharedBatch | None = None
        descriptors: list[int] = []
        if parts:
            try:
                shared, descriptors = self.packer.pack(parts, is_copy)
            except Exception as failed:  # noqa: BLE001  (a user's object may do anything here)
                first = self._run.numbers(self._blocks.rows(*pieces[0]))[0]
                is_record = isinstance(self._task.make, Records)
                what = f"{'record' if is_record else 'the batch that begins with record'} {first}"
                error = ConfigurationError(
                    f"what {self._task.maker} returned for {what} can't be sent from a worker process: "
                    f"{failed}. Return arrays, or what pickles; or call the function after prefetch, which "
                    "is in this process"
                )
                error.__cause__ = failed
        self.packer.forget()
        return shared, descriptors, None if error is None else Failure.of(error)

    def counts(self) -> "tuple[Totals, Sequence[tuple[Rejected, int, int]], Replaced]":
        """Return what was counted since the last call: the last three fields of a `WorkerAnswer`."""
        before, self._totals = self._totals, self._run.totals()
        counters = self._run.counters
        return self._totals.since(before), counters.rejected_since(before.rejected), counters.changes()

    def _parts(self, pieces: Pieces) -> tuple[list[Any], BaseException | None]:
        parts: list[Any] = []
        try:
            rows = joined([self._blocks.rows(*piece) for piece in pieces])
            if not self._task.sends_columns:
                return [self._item(rows)], None
            try:
                return [self._columns(rows)], None
            except BaseException:
                self.packer.forget()
                if len(rows) <= self._size:
                    raise
            # One item after another, so that the items before the failing one are delivered.
            for first in range(0, len(rows), self._size):
                parts.append(self._columns(rows[first : first + self._size]))
        except BaseException as error:  # noqa: BLE001  (the consumer raises it)
            return parts, error
        return parts, None

    def _columns(self, rows: Rows) -> tuple[list[Column], Flags]:
        columns = self._run.read(rows, None, self.packer) if self._gathers else self._run.read(rows)
        return [self._joined(column) for column in columns], rows.padding

    def _joined(self, column: Any) -> Any:
        """Return strings joined, if they are long: pickled one by one, they would be copied twice more."""
        kinds = set(map(type, column)) if isinstance(column, list) else set()
        if kinds not in ({bytes}, {str}) or sum(map(len, column)) < JOINED_BYTES * len(column):
            return column
        return JoinedValues.of(column, self.packer)

    def _item(self, rows: Rows) -> Any:
        items = iter([self._task.make.item(rows)])
        for stage in self._task.stages:
            items = stage(items)
        return next(items)
