"""Be a worker: read the rows that are asked for, call the functions, and send what comes of it."""

import contextlib
import functools
import mmap
import os
import pickle
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from yogadl._failure import Failure
from yogadl._fork_server import Work
from yogadl._interfaces import Column, received_by
from yogadl._memory import settle_allocator
from yogadl._stream.ahead import expect
from yogadl._stream.blocks import RowBlocks
from yogadl._stream.channel import Channel
from yogadl._stream.cut import Cut
from yogadl._stream.items import Batches, Records
from yogadl._stream.pieces import Pieces, count_of
from yogadl._stream.rows import Flags, Rows, joined
from yogadl._stream.transport import Packer, SharedBatch
from yogadl.errors import ConfigurationError

# By which libraries are told how many threads to have, before they are loaded.
THREADS: Final = (
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"),
    *("VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS", "OPENCV_FOR_THREADS_NUM"),
)

ItemStage = Callable[[Iterator[Any]], Iterator[Any]]


class Task(NamedTuple):
    """What all workers of a pool do.

    Args:
        make: What makes the items.
        stages: What the items are passed through.
        cut: How many records make an item.
        begin: Called first, with the worker's number.
        threads: How many threads numerical libraries may have.
        maker: What makes the items, for messages.
        most: How many requests a worker may have to answer.
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
        """Whether columns are sent, of which the items are made where they arrive: no function is called."""
        return self.make.is_plain and not self.stages


class Request(NamedTuple):
    """Ask for some rows, and return segments; name those that could not be mapped."""

    iteration: int
    number: int
    pieces: Pieces
    returned: tuple[int, ...]
    lost: tuple[int, ...]
    is_copy: bool  # sent in no segments


class Answer(NamedTuple):
    """What comes back: parts, and perhaps an error at what would have come after those.

    The number is that of the request; None: that the worker has begun, at first and with each iteration.
    Without the iteration, too: it calls what is to be called first.
    """

    iteration: int | None
    number: int | None
    parts: SharedBatch | None = None
    failure: Failure | None = None
    took: Mapping[str, float] = {}  # the seconds of each stage
    received: tuple[int, int] = (0, 0)  # requests for ranges, and bytes


def forked(task: Task) -> Work:
    """Return what a worker does that is forked from the process that has the task."""
    return functools.partial(_work, task)


def work(connection: socket.socket, _: int) -> None:
    """Be a worker that was started empty, and is sent its task."""
    _work(None, connection, 0)


def _work(task: Task | None, connection: socket.socket, _: int) -> None:
    channel = Channel(connection)
    # EOFError or OSError: who asks is gone.
    with contextlib.suppress(EOFError, OSError):
        number, descriptors = channel.receive()
        try:
            if task is None:
                task = _loaded(descriptors[0])
            _limit_threads(task.threads)
            if "numpy.random" in sys.modules:
                np.random.seed()  # or all workers would draw the same
            if task.begin is not None:
                channel.send(Answer(None, None))
                task.begin(number)
            settle_allocator()
        except BaseException as error:  # noqa: BLE001  (of the user's own: whatever it is, it is sent)
            channel.send(Answer(0, None, None, Failure.of(error)))
            return
        channel.send(Answer(0, None))
        _answer(channel, _Reader(task))


def _loaded(descriptor: int) -> Task:
    with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as memory:
        os.close(descriptor)
        task: Task = pickle.loads(memory)
    return task


def _limit_threads(threads: int) -> None:
    """Tell those libraries that are loaded already, as in a forked process."""
    cv2 = sys.modules.get("cv2")
    if cv2 is not None:
        cv2.setNumThreads(threads)
    if os.environ.get(THREADS[0]) != str(threads):
        with contextlib.suppress(ImportError):
            import threadpoolctl

            threadpoolctl.threadpool_limits(threads)


def _answer(channel: Channel, reader: "_Reader") -> None:
    """Answer requests, in order; those of an iteration that is over are left out."""
    waiting: deque[Request] = deque()
    iteration = 0
    while True:
        arrived = channel.arrived() if waiting else channel.receive()
        while arrived is not None:
            request: Request = arrived[0]
            reader.packer.take_back(request.returned)
            reader.packer.give_up(request.lost)
            if waiting and waiting[-1].iteration != request.iteration:
                waiting.clear()
            waiting.append(request)
            reader.announce(request.pieces)
            arrived = channel.arrived()
        request = waiting.popleft()
        if request.iteration != iteration:
            iteration = request.iteration
            channel.send(Answer(iteration, None))
        parts, descriptors, failure = reader.packed(request.pieces, request.is_copy)
        took, received = reader.took(), reader.received()
        answer = Answer(request.iteration, request.number, parts, failure, took, received)
        channel.send(answer, descriptors)
        reader.packer.sent()


class _Reader:
    """Read rows, and make of them what is sent."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._run = task.make.run
        self._size = task.cut.size
        self._blocks = RowBlocks(self._run, self._size, announces=False)
        self._gathers = self._run.chain is None  # functions return arrays of their own
        self._counted = self._run.counters.stages()
        self._received = 0, 0
        self.packer = Packer(getattr(task.make, "reduce", None), task.most + 1)

    def announce(self, pieces: Pieces) -> None:
        """Say that these rows will be read soon: other workers read what comes between."""
        with contextlib.suppress(Exception):  # reading them raises it
            for piece in pieces:
                expect(self._run, self._blocks.rows(*piece))

    def packed(self, pieces: Pieces, is_copy: bool) -> tuple[SharedBatch | None, list[int], Failure | None]:
        """Return the parts that some rows make, what maps them, and the error that came after them."""
        parts, error = self._parts(pieces)
        shared: SharedBatch | None = None
        descriptors: list[int] = []
        if parts:
            try:
                shared, descriptors = self.packer.pack(parts, is_copy)
            except Exception as failed:  # noqa: BLE001  (a user's object may do anything here)
                first = self._blocks.rows(*pieces[0]).indices[0]
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

    def took(self) -> dict[str, float]:
        """Return the seconds that each stage took since the last call."""
        before, self._counted = self._counted, self._run.counters.stages()
        return {stage: seconds - before.get(stage, 0.0) for stage, seconds in self._counted.items()}

    def received(self) -> tuple[int, int]:
        """Return how many requests were made for ranges since the last call, and how many bytes came."""
        (requests, size_bytes), self._received = self._received, received_by(self._run.source)
        return self._received[0] - requests, self._received[1] - size_bytes

    def _parts(self, pieces: Pieces) -> tuple[list[Any], BaseException | None]:
        try:
            rows = joined([self._blocks.rows(*piece) for piece in pieces])
            if not self._task.sends_columns:
                return [self._item(rows)], None
        except BaseException as error:  # noqa: BLE001  (the consumer raises it, whatever it is)
            return [], error
        try:
            return [self._columns(rows)], None
        except BaseException as error:  # noqa: BLE001  (see above)
            self.packer.forget()
            if count_of(pieces) <= self._size:
                return [], error
        # One item after another: those before the one that fails are delivered.
        parts: list[Any] = []
        try:
            for first in range(0, len(rows), self._size):
                parts.append(self._columns(rows[first : first + self._size]))
        except BaseException as error:  # noqa: BLE001  (see above)
            return parts, error
        return parts, None

    def _columns(self, rows: Rows) -> tuple[list[Column], Flags]:
        columns = self._run.read(rows, None, self.packer) if self._gathers else self._run.read(rows)
        return list(columns), rows.padding

    def _item(self, rows: Rows) -> Any:
        items = iter([self._task.make.item(rows)])
        for stage in self._task.stages:
            items = stage(items)
        return next(items)
