"""Run in a worker: read the requested rows, call the functions, and send the results over a socket.

Large arrays are sent in shared memory, which is used again and again. New memory for every array would be
created, faulted in page by page on both sides and passed as a file descriptor, which costs several times as
much as gathering the batch (benchmarks/torch_loader.py, benchmarks/workers.py).
"""

import contextlib
import functools
import io
import math
import mmap
import os
import pickle
import socket
import struct
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from yogadl._core.memory import JOINED_BYTES, JoinedValues, map_descriptor, settle_allocator
from yogadl._core.process import one_operation
from yogadl._core.protocols import Announced, Column
from yogadl._core.spec import dtype_named
from yogadl._stream.cut import Cut, Flags, Pieces, Rows, joined
from yogadl._stream.items import Batches, ItemStage, Records
from yogadl._stream.run import RowBlocks, Totals, announce_rows
from yogadl._workers.messages import Failure, reduced
from yogadl._workers.server import KEEPS_DESCRIPTORS, received
from yogadl.errors import ConfigurationError

if TYPE_CHECKING:
    from yogadl._views.stages import Rejected, Replaced


_ALIGNED: Final = 64
_PAGES: Final = 16 * 4096
# A consumer that keeps one array of a batch should not keep the memory of the whole batch. Therefore arrays
# up to `_SMALL_BYTES` are pickled with the structure, from which they are copied in some 2 us, and each
# larger array gets a segment of its own. If there are more than `_MAX_OWN_SEGMENTS`, as in a list of arrays,
# all share one segment.
_SMALL_BYTES: Final = 16_384
_MAX_OWN_SEGMENTS: Final = 16
# Each segment is a mapping, of which a process may have some 65,000. If a consumer keeps so many batches,
# further arrays are copied.
MOST_SEGMENTS: Final = 4096
# A segment that was free for this many batches is dropped: while the consumer keeps batches, more
# segments are made than are needed later.
_IDLE_BATCHES: Final = 16
_NO_BUFFER: Final = "VMm"  # kinds of dtypes for which numpy exports no buffer, as of ml_dtypes and dates

Buffers = list[NDArray[np.uint8]]
# Returns how to pickle an object that may use shared memory, like `pickle.Pickler.reducer_override`.
Reduce = Callable[[Any], Any]


class FilledSegment(NamedTuple):
    """One segment of shared memory, and the spans of a batch's buffers in it."""

    number: int
    size: int
    is_new: bool  # then a descriptor to map it is sent along
    spans: list[tuple[int, int]]


class SharedBatch(NamedTuple):
    """A batch in shared memory, as a worker sends it; without segments, `structure` holds all of it."""

    segments: list[FilledSegment]
    structure: bytes | None  # pickled; None: it is the last buffer
    dropped: list[int]  # the numbers of segments that the worker will not use again


class UnmappedError(Exception):
    """A batch arrived without its memory, since this process may open, or map, no more."""


class _Segment(NamedTuple):
    number: int
    memory: NDArray[np.uint8]
    position: int  # in the batch: a field has about the same size in each batch


class Packer:
    """Packs batches in a worker. A segment is used again after the consumer has returned it.

    A packer is also a `Memory`: data gathered into its arrays and then packed is not copied.

    Args:
        reduce: Returns how to pickle objects other than numpy arrays that have memory.
        spare: The number of free segments that are kept for each array of a batch, even if unused.
    """

    joins = True

    def __init__(self, reduce: Reduce | None = None, spare: int = 0) -> None:
        self._reduce = reduce
        self._spare = spare
        self._made = 0
        self._free: dict[int, list[_Segment]] = {}
        self._sent: dict[int, _Segment] = {}
        self._gathered: dict[int, _Segment] = {}  # by address; not sent yet
        self._new: dict[int, int] = {}  # descriptors by number; never sent
        self._descriptors_to_send: dict[int, int] = {}  # descriptors sent with the batch
        self._kept: dict[int, int] = {}  # descriptors by number; see `KEEPS_DESCRIPTORS`
        self._dropped: list[int] = []
        self._packed = 0
        self._idle: dict[int, int] = {}  # the fewest free at each of the latest batches

    def remove_unmapped(self, numbers: Sequence[int]) -> None:
        """Remove these segments, which the consumer could not map."""
        for number in numbers:
            del self._sent[number]
            if number in self._kept:
                os.close(self._kept.pop(number))

    def take_back(self, numbers: Sequence[int]) -> None:
        """Use these segments again, which the consumer does not read any more."""
        for number in numbers:
            segment = self._sent.pop(number)
            self._free[segment.position].append(segment)
            if number in self._kept:
                os.close(self._kept.pop(number))

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an array for the next batch to be packed."""
        size = math.prod(shape) * dtype.itemsize
        position = len(self._gathered)
        if (
            size <= _SMALL_BYTES
            or position >= _MAX_OWN_SEGMENTS
            or dtype.kind in _NO_BUFFER
            or dtype.hasobject
        ):
            return np.empty(shape, dtype)
        try:
            segment = self._segment(position, size)
        except OSError:  # no more segments are possible: the array will be copied
            return np.empty(shape, dtype)
        self._gathered[_address(segment.memory)] = segment
        return segment.memory[:size].view(dtype).reshape(shape)

    def forget(self) -> None:
        """Take back the arrays that were returned for a batch that is not packed."""
        for segment in self._gathered.values():
            self._free[segment.position].append(segment)
        self._gathered.clear()

    def pack(self, batch: Any, is_copy: bool = False) -> tuple[SharedBatch, list[int]]:
        """Write a batch into segments; return the message, and the descriptors to send with it.

        Args:
            batch: Any tree of arrays and picklable objects.
            is_copy: Whether to use no segments, and send everything in the message.
        """
        segments: list[FilledSegment] = []
        structure: bytes | None = None
        if not is_copy:
            buffers: Buffers = []
            pickled = _pickled(batch, buffers, self._reduce)
            groups = [[buffer] for buffer in buffers] if len(buffers) <= _MAX_OWN_SEGMENTS else [buffers]
            structure = pickled if len(pickled) <= _SMALL_BYTES else None
            if structure is None:
                groups.append([np.frombuffer(pickled, np.uint8)])
            try:
                for position, group in enumerate(groups):
                    segments.append(self._write(position, group))
            except OSError:  # this process can open, or map, no more
                self._new |= self._descriptors_to_send
                self._descriptors_to_send.clear()
                self.take_back([segment.number for segment in segments])
                is_copy = True
        if is_copy:
            segments, structure = [], _pickled(batch, None, self._reduce)
        self.forget()
        self._trim()
        dropped, self._dropped = self._dropped, []
        return SharedBatch(segments, structure, dropped), list(self._descriptors_to_send.values())

    def _trim(self) -> None:
        """Give up segments that no recent batch has needed."""
        for position, free in self._free.items():
            self._idle[position] = min(len(free), self._idle.get(position, len(free)))
        self._packed += 1
        if self._packed % _IDLE_BATCHES == 0:
            for position, idle in self._idle.items():
                self._drop(self._free[position], max(0, idle - self._spare))
            self._idle.clear()

    def _drop(self, free: list[_Segment], count: int) -> None:
        for segment in free[:count]:
            if segment.number in self._new:  # never sent
                os.close(self._new.pop(segment.number))
            else:
                self._dropped.append(segment.number)
        del free[:count]

    def sent(self) -> None:
        """Close the descriptors that were sent."""
        if KEEPS_DESCRIPTORS:
            self._kept |= self._descriptors_to_send
        else:
            for descriptor in self._descriptors_to_send.values():
                os.close(descriptor)
        self._descriptors_to_send.clear()

    def _write(self, position: int, buffers: Buffers) -> FilledSegment:
        segment = self._gathered.pop(_address(buffers[0]), None) if len(buffers) == 1 else None
        if segment is not None:
            spans = [(0, buffers[0].size)]
        else:
            spans, end = [], 0
            for buffer in buffers:
                start = -(-end // _ALIGNED) * _ALIGNED
                end = start + buffer.size
                spans.append((start, end))
            segment = self._segment(position, end)
            for (start, end), buffer in zip(spans, buffers, strict=True):
                segment.memory[start:end] = buffer
        self._sent[segment.number] = segment
        is_new = segment.number in self._new
        if is_new:
            self._descriptors_to_send[segment.number] = self._new.pop(segment.number)
        return FilledSegment(segment.number, segment.memory.size, is_new, spans)

    def _segment(self, position: int, size: int) -> _Segment:
        """Return a segment that is large enough; drop free ones that are too small."""
        free = self._free.setdefault(position, [])
        for number, segment in enumerate(free):
            if segment.memory.size >= size:
                del free[number]
                return segment
        self._drop(free, len(free))
        size = -(-(size + size // 8) // _PAGES) * _PAGES
        descriptor = shared_memory(size)
        try:
            memory = map_descriptor(descriptor, size)
        except OSError:
            os.close(descriptor)
            raise
        self._made += 1
        self._new[self._made] = descriptor
        return _Segment(self._made, memory, position)


def shared_memory(size: int) -> int:
    """Return the descriptor of new memory, without a name, that other processes can map."""
    if "memfd_create" in vars(os):  # not in /dev/shm, which containers keep small
        descriptor = os.memfd_create("yogadl-batches")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        os.ftruncate(descriptor, size)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


class Unpacker:
    """Unpacks the batches of a worker, in one thread. Any thread may release a batch."""

    def __init__(self) -> None:
        self._segments: dict[int, NDArray[np.uint8]] = {}
        self._returned: deque[int] = deque()
        self._lost: list[int] = []

    def __len__(self) -> int:
        """Return the number of mapped segments."""
        return len(self._segments)

    def returned(self) -> tuple[int, ...]:
        """Return the segments that were released since the last call."""
        numbers = []
        with contextlib.suppress(IndexError):
            while True:
                numbers.append(self._returned.popleft())
        return tuple(numbers)

    def lost(self) -> tuple[int, ...]:
        """Return the segments that could not be mapped since the last call."""
        lost, self._lost = self._lost, []
        return tuple(lost)

    def unpack(self, batch: SharedBatch, descriptors: Sequence[int], is_copy: bool = False) -> Any:
        """Return a batch without a copy. A segment is free after every array in it is released.

        Args:
            batch: The message of the worker.
            descriptors: The descriptors sent with it; they are closed.
            is_copy: Whether to copy the arrays, and release the segments at once.

        Raises:
            UnmappedError: if not all of the batch's memory can be mapped.
        """
        for number in batch.dropped:
            self._segments.pop(number, None)
        self._map(batch.segments, descriptors)
        buffers: Buffers = []
        for segment in batch.segments:
            buffers += self._read(segment)
        structure = buffers.pop().data if batch.structure is None else batch.structure
        if is_copy:
            buffers = [buffer.copy() for buffer in buffers]
        return pickle.loads(structure, buffers=buffers)

    def _map(self, segments: Sequence[FilledSegment], descriptors: Sequence[int]) -> None:
        new = [segment for segment in segments if segment.is_new]
        mapped = {}
        try:
            for segment, descriptor in zip(new, descriptors, strict=True):
                mapped[segment.number] = map_descriptor(descriptor, segment.size)
        except (ValueError, OSError) as error:  # descriptors are missing, or no mapping is left
            self._lost += [segment.number for segment in new]
            self._returned += [segment.number for segment in segments if not segment.is_new]
            raise UnmappedError from error
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self._segments |= mapped

    def _read(self, segment: FilledSegment) -> Buffers:
        memory = np.asarray(_Borrowed(self._segments[segment.number], segment.number, self._returned.append))
        return [memory[start:end] for start, end in segment.spans]


class _Borrowed:
    """The memory of a segment as an array's base; it is returned when the last view of the array is gone."""

    __slots__ = ("__array_interface__", "_give_back", "_memory", "_number")

    def __init__(self, memory: NDArray[np.uint8], number: int, give_back: Callable[[int], None]) -> None:
        self._memory = memory
        self._number = number
        self._give_back = give_back
        self.__array_interface__ = {
            "data": (_address(memory), False),
            "shape": memory.shape,
            "typestr": "|u1",
            "version": 3,
        }

    def __del__(self) -> None:
        self._give_back(self._number)


def _pickled(batch: Any, buffers: Buffers | None, reduce: Reduce | None) -> bytes:
    """Pickle a batch; collect the memory of its arrays in `buffers`, unless that is ``None``."""
    file = io.BytesIO()
    try:
        _Pickler(file, buffers, reduce).dump(batch)
    except (TypeError, AttributeError, pickle.PicklingError):
        file = io.BytesIO()
        if buffers is not None:
            buffers.clear()
        _by_value()(file, buffers, reduce).dump(batch)
    return file.getvalue()


class _Pickler(pickle.Pickler):
    """Pickles objects by their own reduction, and collects the memory of large arrays in `buffers`."""

    def __init__(self, file: io.BytesIO, buffers: Buffers | None, reduce: Reduce | None) -> None:
        def is_in_pickle(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            if buffers is None or raw.nbytes <= _SMALL_BYTES:
                return True
            buffers.append(np.frombuffer(raw, np.uint8))
            return False

        super().__init__(file, 5, buffer_callback=is_in_pickle)
        self._reduce = reduce

    def reducer_override(self, value: Any) -> Any:
        """Return how to pickle an object whose memory would otherwise be copied into the pickle."""
        if type(value) is np.ndarray:
            if value.dtype.kind in _NO_BUFFER and value.dtype.names is None:
                raw = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
                return _array, (pickle.PickleBuffer(raw), value.dtype.name, value.shape)
            if not (value.flags.forc or value.dtype.hasobject):
                return np.ascontiguousarray(value).__reduce_ex__(5)
            return NotImplemented
        reduction = NotImplemented if self._reduce is None else self._reduce(value)
        return reduced(value) if reduction is NotImplemented else reduction


@functools.cache
def _by_value() -> Any:
    """Return a pickler that also handles objects of classes in the user's script."""
    import cloudpickle

    class ByValueWithBuffers(_Pickler, cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            reduction = super().reducer_override(value)
            if reduction is NotImplemented:
                return cloudpickle.Pickler.reducer_override(self, value)
            return reduction

    return ByValueWithBuffers


def _array(raw: Any, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
    return np.frombuffer(raw, dtype_named(name), math.prod(shape)).reshape(shape)


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

    The number is that of the request, or None if the worker has begun: at the start, and with each
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
        # A request from before the store was given up does not wait for it as long once more.
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
