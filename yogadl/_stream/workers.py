"""Make items in worker processes: the same items in the same order as in this process.

Requests for rows are sent to the workers of a pool, several ahead, and the answers are delivered in order.
"""

import contextlib
import mmap
import os
import select
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from dataclasses import field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from yogadl._core.frozen import frozen
from yogadl._core.process import ForkedError
from yogadl._stream.cut import Cut, Pieces, Point, count_of, pieces_of
from yogadl._stream.items import MOST_RECORDS, RECORDS_BYTES, Batches, Read, Records, passed
from yogadl._stream.options import WorkerOptions
from yogadl._stream.run import Run
from yogadl._stream.worker import (
    MOST_SEGMENTS,
    THREADS,
    Channel,
    Request,
    UnmappedError,
    Unpacker,
    WorkerAnswer,
    WorkerTask,
    shared_memory,
    work,
)
from yogadl._workers.messages import Failure
from yogadl._workers.server import KEEPS_DESCRIPTORS, Workers
from yogadl.errors import ConfigurationError, StageError, WorkerDiedError

if TYPE_CHECKING:
    from yogadl._stream.items import ItemStage
    from yogadl._views.stages import Stage


# The most unanswered requests of a worker; this many fit into a socket.
_MOST_REQUESTED: Final = 64


class AnswerParts(NamedTuple):
    """The answer to a request: parts, and the error that comes after them."""

    parts: list[Any]
    error: BaseException | None


class _PooledWorker:
    """One worker process, as the pool sees it."""

    def __init__(self, number: int, serial: int, channel: Channel) -> None:
        self.number, self.serial, self.channel = number, serial, channel
        self.unpacker = Unpacker()
        self.requested: list[int] = []  # unanswered requests of this iteration
        self.called_s: float | None = None  # the time at which its first function was called
        self.begun_s: float | None = None
        self.iteration = 0  # the last one that it began with
        self.last_request = 0  # the number of its latest request, counted over all workers


class WorkerPool:
    """Worker processes, used by one iterator at a time, in the process that started them.

    The processes end when the last reference to this object goes away.

    Attributes:
        task: The work of the processes.
        was_interrupted: Whether an exception from elsewhere, such as a signal's handler, interrupted a wait.

    Args:
        task: The work of the processes.
        pickled_task: The pickled task; empty for "fork".
        options: The way to start the processes.
        preload: Modules that they share.
    """

    def __init__(
        self, task: WorkerTask, pickled_task: bytes, options: WorkerOptions, preload: tuple[str, ...]
    ) -> None:
        self.task = task
        self._pickled_task, self._count, self._errors = pickled_task, options.workers, options.errors
        self._timeout_s = options.timeout_s
        environment = dict.fromkeys(THREADS, str(task.threads))
        try:
            if options.method == "fork":
                self._processes = Workers(partial(work, task=task), "fork")
            else:
                self._processes = Workers(work, options.method or "forkserver", preload, environment)
        except OSError as error:
            raise self._errors.start_error(error) from error
        self._workers: dict[int, _PooledWorker] = {}  # by serial
        self._task_descriptors: list[int] = []
        weakref.finalize(self, _close, self._workers)
        weakref.finalize(self, _close_all, self._task_descriptors)
        self._serial = 0
        self._is_over = False
        self._iteration = 0
        self._poll = select.poll()
        self._poll.register(self._processes.control, select.POLLIN)
        self._pieces: dict[int, Pieces] = {}  # of requests that are not delivered
        self._ready: dict[int, AnswerParts] = {}
        self._lost: dict[int, str] = {}  # how the worker died, by request
        self._to_resend: list[int] = []  # requests to send again, sorted
        self._is_copy = False  # whether answers must use no shared memory, since this process can map no more
        self._waits_for, self._since_s = -1, 0.0
        self.was_interrupted = False
        self._requests: Iterator[Pieces] = iter(())
        self._most = self._requested = self._delivered = self._last_request = 0
        self._is_all = True

    @property
    def has_ended(self) -> bool:
        """Whether the processes were ended, by `end` or at the interpreter's exit."""
        return self._processes.has_ended

    @property
    def is_ours(self) -> bool:
        """Whether this process started the pool."""
        return self._processes.pid == os.getpid()

    def can_begin(self) -> bool:
        """Return whether the pool can serve one more iterator, after noting the deaths since the last one."""
        control = self._processes.control.fileno()
        while self.is_ours and not self._is_over and control in dict(self._poll.poll(0)):
            self._process_death()
        return self.is_ours and not self._is_over

    def end(self) -> None:
        """End the processes now."""
        self._is_over = True
        _close(self._workers)
        self._workers.clear()
        self._processes.end()

    def answers(
        self, requests: Iterator[Pieces], most: int, place: tuple[Point, int | None]
    ) -> Iterator[AnswerParts]:
        """Yield the answers to requests, in order; at most `most` requests are undelivered at a time.

        `place` is where the requests begin, and the epoch before which they end. If an earlier call with this
        place was interrupted, this call continues it.

        Raises:
            WorkerDiedError: if a worker died at the next item.
            WorkerTimeoutError: if the next item takes too long.
        """
        if not (self.was_interrupted and self._place() == place):
            self._end = place[1]
            self._begin(requests, min(most, _MOST_REQUESTED * self._count))
        self.was_interrupted = False
        answer: AnswerParts | None = None
        while True:
            self._request()
            if answer is not None:
                yield answer
            if not self.is_ours:
                raise ForkedError  # the iterator then continues with workers of its own
            self._count_ready()
            if not self._wait():
                return
            answer = self._ready.pop(self._delivered)
            del self._pieces[self._delivered]
            self._delivered += 1

    def _place(self) -> tuple[Point, int | None] | None:
        """Return where the next undelivered request begins, if it was sent, and the epoch where all end."""
        if self._delivered not in self._pieces:
            return None
        (epoch, position), first, _ = self._pieces[self._delivered][0]
        return Point(epoch, position + first * self.task.make.run.shard.ranks), self._end

    def _begin(self, requests: Iterator[Pieces], most: int) -> None:
        """Begin an iteration, without waiting for answers that belong to the previous one."""
        self._iteration += 1
        self._requests, self._most = requests, most
        self._requested = self._delivered = 0
        self._is_all = self._is_copy = False
        self._waits_for = -1
        self._pieces.clear()
        self._ready.clear()
        self._lost.clear()
        self._to_resend.clear()
        for worker in self._workers.values():
            worker.requested.clear()
        self._start()

    def _start(self) -> None:
        """Start the missing processes."""
        missing = set(range(self._count)) - {worker.number for worker in self._workers.values()}
        if not missing:
            return
        descriptors = self._task_descriptors
        try:
            if self._pickled_task and not descriptors:
                descriptors = [_shared_copy(self._pickled_task)]
            for number in sorted(missing):
                self._serial += 1
                channel = Channel(self._processes.start(self._serial))
                self._workers[self._serial] = worker = _PooledWorker(number, self._serial, channel)
                with contextlib.suppress(OSError):  # dead already: `control` reports it
                    channel.send(number, descriptors)
                self._poll.register(worker.channel, select.POLLIN)
        except OSError as error:
            raise self._errors.start_error(error) from error
        finally:
            if KEEPS_DESCRIPTORS:
                self._task_descriptors[:] = descriptors
            else:
                _close_all(descriptors)

    def _request(self) -> None:
        """Send as many requests as allowed, in turn to the started workers with the fewest requests."""
        share = -(-self._most // self._count)
        while self._resends or not (
            self._lost or self._is_all or self._requested - self._delivered >= self._most
        ):
            begun = [worker for worker in self._workers.values() if worker.begun_s is not None]
            worker = min(begun, key=lambda worker: (len(worker.requested), worker.last_request), default=None)
            if worker is None or len(worker.requested) >= share:
                return
            if self._resends:
                number = self._to_resend.pop(0)
            else:
                pieces = next(self._requests, None)
                if pieces is None:
                    self._is_all = True
                    return
                number = self._requested
                self._requested += 1
                self._pieces[number] = pieces
            worker.requested.append(number)
            worker.last_request = self._last_request = self._last_request + 1
            pieces, memory = self._pieces[number], worker.unpacker
            segments = memory.returned(), memory.lost()
            request = Request(self._iteration, number, pieces, *segments, self._is_copy, time.monotonic())
            with contextlib.suppress(OSError):  # see `_start`
                worker.channel.send(request)

    @property
    def _resends(self) -> bool:
        """Whether a request must be sent again: the iteration ends at the first one that is lost."""
        return bool(self._to_resend) and self._to_resend[0] < min(self._lost, default=self._requested)

    def _resend(self, numbers: list[int]) -> None:
        """Send these requests again, as soon as a worker can take them."""
        self._to_resend = sorted([*self._to_resend, *numbers])

    def _wait(self) -> bool:
        """Wait until the next request is answered; return False if there is no further request."""
        number = self._delivered
        if number != self._waits_for:  # a wait that was interrupted keeps its start
            self._waits_for, self._since_s = number, time.monotonic()
        while number not in self._ready:
            self._request()
            if self._is_all and number == self._requested:
                return False
            if number in self._lost:
                # The worker may have died before it was sent the request, or after the last one.
                pieces = self._pieces.get(number) or next(self._requests, None)
                if pieces is None:
                    self._is_all = True
                    return False
                raise self._errors.died_error(self._lost[number], self._where(pieces))
            self._process_messages(self._left_ms(number))
        return True

    def _left_ms(self, number: int) -> float | None:
        """Return the time left to wait for a request, or None without a limit.

        Raises:
            WorkerTimeoutError: if the request, or a worker's first function, has taken too long.
        """
        timeout_s = self._timeout_s
        if timeout_s is None:
            return None
        left_ms: list[float] = []
        for worker in list(self._workers.values()):
            if worker.begun_s is None:
                since_s = worker.called_s
            else:
                since_s = max(self._since_s, worker.begun_s) if number in worker.requested else None
            if since_s is None:
                continue
            left_ms.append(1000 * (since_s + timeout_s - time.monotonic()))
            if left_ms[-1] <= 0 and worker.begun_s is None:
                for other in list(self._workers.values()):
                    if other.begun_s is None and other.called_s:
                        self._kill(other)
                raise self._errors.init_timeout_error(timeout_s, worker.number)
            if left_ms[-1] <= 0:
                self._kill(worker)
                raise self._errors.timeout_error(timeout_s, self._where(self._pieces[number]))
        return min(left_ms, default=None)

    def _process_messages(self, left_ms: float | None) -> None:
        """Process the messages that have arrived, or that arrive within the time."""
        self.was_interrupted = True  # stays true after an exception from elsewhere
        ready = self._poll.poll(left_ms)
        self.was_interrupted = False
        for descriptor, _ in ready:
            if descriptor == self._processes.control.fileno():
                self._process_death()
            else:
                for worker in list(self._workers.values()):
                    if worker.channel.fileno() == descriptor:
                        self._take(worker)

    def _count_ready(self) -> None:
        """Count the items that are ready before they are requested by the consumer."""
        self._process_messages(0)
        counters, size, number = self.task.make.run.counters, self.task.cut.size, self._delivered
        counters.asked += 1
        while number in self._ready:
            counters.ready += -(-count_of(self._pieces[number]) // size)
            number += 1

    def _take(self, worker: _PooledWorker) -> None:
        """Process the messages of a worker."""
        try:
            while (arrived := worker.channel.arrived()) is not None:
                self._store_answer(worker, *arrived)
        except EOFError:  # the control socket reports the death, and how it came about
            with contextlib.suppress(KeyError):
                self._poll.unregister(worker.channel)

    def _store_answer(self, worker: _PooledWorker, answer: WorkerAnswer, descriptors: list[int]) -> None:
        error = None if answer.failure is None else self._error_of(worker, answer.failure)
        if answer.number is None:
            if error is not None:
                raise error
            if answer.iteration is None:
                worker.called_s = time.monotonic()
                return
            worker.begun_s = worker.begun_s or time.monotonic()
            worker.iteration = answer.iteration
            return
        parts: list[Any] = []
        if answer.parts is not None:
            mapped = sum(len(worker.unpacker) for worker in self._workers.values())
            try:
                parts = worker.unpacker.unpack(answer.parts, descriptors, mapped > MOST_SEGMENTS)
            except UnmappedError:
                self._is_copy = True
                if answer.iteration == self._iteration:
                    worker.requested.remove(answer.number)
                    self._resend([answer.number])
                return
            except Exception as failed:  # noqa: BLE001  (a user's object may do anything here)
                error = failed
        run = self.task.make.run
        for stage, seconds in answer.counted.stages.items():
            run.counters.add(stage, seconds)
        run.counters.requests += answer.counted.requests
        run.counters.received_bytes += answer.counted.received_bytes
        for rejected, attempt, number in answer.rejected:
            assert run.chain is not None
            try:
                run.reject(rejected, attempt, run.chain.stages[number])
            except StageError as too_many:
                error = error or too_many
        run.counters.take_changes(answer.replaced or {})
        if answer.iteration == self._iteration:
            worker.requested.remove(answer.number)
            self._ready[answer.number] = AnswerParts(parts, error)

    def _error_of(self, worker: _PooledWorker, failure: Failure) -> BaseException:
        error, cause = failure.load()
        if cause is not None:
            error.__cause__ = cause
        error.add_note(f"in worker process {worker.number} of {self._errors.called}:\n{failure.where}")
        return error

    def _process_death(self) -> None:
        """Process the report of a death."""
        serial, how = self._processes.death()
        died = [worker for worker in self._workers.values() if serial in (None, worker.serial)]
        for worker in died:
            self._take(worker)
            self._remove(worker)
            if worker.requested and worker.iteration == self._iteration:
                # It died at the first of them in the order in which they were sent. Numbers of requests that
                # were sent again may be less than that.
                self._lost[worker.requested.pop(0)] = how
            self._resend(worker.requested)  # it was still working for the previous iteration, if all
            if worker.begun_s is not None and self._resends and serial is not None:
                self._start()
            # If it had no request, the other workers go on, unless it died before it began, or none is left.
            if worker.begun_s is None or not self._workers:
                self._lost.setdefault(self._requested, how)
            if not self._workers:
                self._lost |= dict.fromkeys(self._to_resend, how)
        if serial is None:
            self._lost |= dict.fromkeys([*self._to_resend, self._requested], how)
            self.end()

    def _kill(self, worker: _PooledWorker) -> None:
        self._processes.kill(worker.serial)
        self._remove(worker)

    def _remove(self, worker: _PooledWorker) -> None:
        with contextlib.suppress(KeyError):
            self._poll.unregister(worker.channel)
        worker.channel.close()
        del self._workers[worker.serial]

    def _where(self, pieces: Pieces) -> str:
        """Describe the first record of a request, for messages."""
        run, (origin, first, _) = self.task.make.run, pieces[0]
        rows = run.rows(origin, first, first + 1)
        [(epoch, [position])] = rows.pieces
        return f"at epoch {epoch}, position {position} (record {run.numbers(rows)[0]})"


def _close(workers: dict[int, _PooledWorker]) -> None:
    for worker in list(workers.values()):  # at exit, a daemon thread may still start some
        worker.channel.close()


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _shared_copy(data: bytes) -> int:
    """Return the descriptor of memory that other processes can map, filled with these bytes."""
    descriptor = shared_memory(len(data))
    with mmap.mmap(descriptor, len(data)) as memory:
        memory[:] = data
    return descriptor


# Small batches are sent in chunks of about this size, since sending costs some 0.1 ms for any size
# (benchmarks/torch_loader.py).
_CHUNK_BYTES: Final = 1_000_000
_CHUNKS: Final = 4  # the least number of an epoch's chunks for each worker, if there are enough batches
_CALLED_RECORDS: Final = 16  # records in a request, if a function is called with each
_MOST_DEATHS: Final = 2  # at the same item; the first death may have had a cause outside of the item


class _WorkerDeaths:
    """Counts the deaths of workers at one item, which is tried only a limited number of times."""

    def __init__(self) -> None:
        self.deaths = 0  # since an item was delivered
        self._final: tuple[Point, WorkerDiedError] | None = None
        self.interrupted: list[WorkerPool] = []  # the pool to continue with, unless shared

    def check(self, start: Point) -> None:
        """Raise the error of an item that is not tried again."""
        if self._final is not None and self._final[0] == start:
            raise self._final[1].with_traceback(None)
        self._final = None

    def failed(self, start: Point, error: WorkerDiedError) -> None:
        """Note a death at the next item."""
        if isinstance(error, TimeoutError):
            return
        self.deaths += 1
        if self.deaths >= _MOST_DEATHS:
            self._final = start, error
            error.add_note(f"{self.deaths} worker processes died at this item, so it is not tried again")


@frozen
class InWorkers:
    """Makes items in worker processes. Pickles without them; costs nothing before the first iteration.

    Args:
        make: Makes the items.
        item_stages: The stages that they pass through in the workers.
        options: The options of the workers.
        after: Functions that each item passes through in this process.
    """

    make: Batches | Records
    item_stages: "tuple[ItemStage, ...]"
    options: WorkerOptions
    after: "tuple[Stage, ...]" = ()
    _idle: "list[WorkerPool]" = field(default_factory=list, compare=False, repr=False)
    _attempts: _WorkerDeaths = field(default_factory=_WorkerDeaths, compare=False, repr=False)

    def __reduce__(self) -> Any:
        return type(self), (self.make, self.item_stages, self.options, self.after)

    @property
    def run(self) -> Run:
        """The run of the items."""
        return self.make.run

    @property
    def stages(self) -> "tuple[Stage, ...]":
        """The functions that each item passes through, in the workers and here."""
        return (*self.make.stages, *self.after)

    def then(self, function: Callable[..., Any], seed: int | None) -> "InWorkers":
        """Return the same with one more function, which is called in this process."""
        more = self.run.then(self.stages, function, seed)[-1]
        return InWorkers(self.make, self.item_stages, self.options, (*self.after, more))

    def counted_anew(self) -> "InWorkers":
        """Return the same for another loader, with workers of its own; see `Run.counted_anew`."""
        return InWorkers(self.make.counted_anew(), self.item_stages, self.options, self.after)

    def begun(self) -> "InWorkers":
        """Return a copy for another iterator."""
        return replace(self, _attempts=_WorkerDeaths())

    def here(self, cut: Cut, start: Point, end: int | None) -> Iterator[Any]:
        """Yield the items, made in this process."""
        items = (item for _, items in self.make.reads(cut, start, end) for item in items)
        for stage in self.item_stages:
            items = stage(items)  # type: ignore[assignment]
        return self._passed(items, cut, start, end)

    def _passed(self, items: Iterator[Any], cut: Cut, start: Point, end: int | None) -> Iterator[Any]:
        """Pass items through the functions that are called in this process."""
        if not self.after:
            return items
        what = "the batch that begins with record" if isinstance(self.make, Batches) else "record"

        def called(item: Any, pieces: Pieces) -> Any:
            origin, first, _ = pieces[0]
            return passed(self.after, item, self.run.rows(origin, first, first + 1), what, self.run)

        return map(called, items, pieces_of(self.run.shard, cut, start, end))

    def reads(self, cut: Cut, start: Point, end: int | None) -> Iterator[Read]:
        """Yield the items from `start` to the epoch `end`, as the workers return them."""
        reads = self._reads(cut, start, end)
        if not self.after:
            yield from reads
            return
        try:
            for item in self._passed((item for _, items in reads for item in items), cut, start, end):
                yield 1, iter((item,))
        finally:
            reads.close()  # now, not when an error's traceback is freed

    def _reads(self, cut: Cut, start: Point, end: int | None) -> Generator[Read, None, None]:
        attempts, options, make = self._attempts, self.options, self.make
        attempts.check(start)
        pool = self._pool(cut)
        each, sends_columns = self._each(cut), pool.task.sends_columns
        requests = pieces_of(self.run.shard, cut, start, end, each)
        is_reusable = False
        try:
            for parts, error in pool.answers(requests, options.most(each), (start, end)):
                while parts:
                    if sends_columns:
                        columns, flags = parts.pop(0)
                        yield -(-len(flags) // cut.size), make.cut(columns, flags, cut.size)
                        del columns, flags
                    else:
                        yield 1, iter([parts.pop(0)])
                    attempts.deaths = 0
                if error is not None:
                    is_reusable = True
                    raise error
            is_reusable = True
        except GeneratorExit:
            is_reusable = True  # the iterator was closed without an error
            raise
        except WorkerDiedError as error:
            is_reusable = True
            attempts.failed(start, error)
            raise
        finally:
            is_reusable = (is_reusable and options.is_persistent) or pool.was_interrupted
            if pool.has_ended:
                pass  # at the interpreter's exit modules may be gone
            elif is_reusable and pool.can_begin():
                self._idle_pools[:] = [pool]
            else:
                pool.end()

    @property
    def _idle_pools(self) -> "list[WorkerPool]":
        return self._idle if self.options.is_persistent else self._attempts.interrupted

    def _each(self, cut: Cut) -> int:
        """Return the number of items in a request."""
        run, size = self.run, cut.size
        if isinstance(self.make, Records):
            most = max(1, min(MOST_RECORDS, RECORDS_BYTES // run.record_bytes))
            return min(most, _CALLED_RECORDS) if run.calls_functions or self.item_stages else most
        if run.calls_functions or self.item_stages or not self.make.is_plain:
            return 1
        spread = -(-cut.items(run.shard.own(0)) // (_CHUNKS * self.options.workers))
        return max(1, min(_CHUNK_BYTES // (run.record_bytes * size), spread))

    def _pool(self, cut: Cut) -> "WorkerPool":
        """Return an idle pool, or a new one."""
        from yogadl._stream.workers import WorkerPool  # imported only if there are workers

        while self._idle_pools:  # `pop`, so that two iterators never share a pool
            pool = self._idle_pools.pop()
            if pool.can_begin():
                return pool
        options = self.options
        begin = options.begin
        if begin is not None and options.is_begun_by_pool:
            begin = begin()
        each = -(-options.most(self._each(cut)) // options.workers)
        task = WorkerTask(self.make, self.item_stages, cut, begin, options.threads, self._maker_name(), each)
        pickled_task = b"" if options.method == "fork" else self._pickle_task(task)
        return WorkerPool(task, pickled_task, options, options.preload + _modules_to_preload())

    def _pickle_task(self, task: "WorkerTask") -> bytes:
        """Return the pickled task.

        Raises:
            ConfigurationError: if a part of it can't be pickled; the error names the part.
        """
        from yogadl._workers.messages import pickled

        try:
            hint = _PICKLE_HINT.format(self.options.errors.method)
            return pickled(task, "the stream's source", stays_here=True, hint=hint)
        except ConfigurationError:
            for name, function in self._functions():
                pickled(function, f"{name}={function!r}", stays_here=True, hint=hint)
            raise

    def _maker_name(self) -> str:
        """Return the name of the function that makes the items, for messages."""
        chain = self.run.chain
        collate = self.make.collate
        if self.item_stages:
            return "transform"
        if self.make.stages:
            return str(self.make.stages[-1])
        if collate is not None:
            return f"collate={collate!r}"
        return str(chain.stages[-1]) if chain else "the source"

    def _functions(self) -> Iterator[tuple[str, Any]]:
        yield from self.options.named
        yield "collate", self.make.collate
        for called in (*(self.run.chain.stages if self.run.chain else ()), *self.make.stages):
            yield str(called).partition("(")[0], called.function


_PICKLE_HINT: Final = (
    "Let the function make what does not pickle when it is first called; or read from a cache "
    '(storage.submit); or pass {}="fork": then each process begins with a copy of this one'
)


def _modules_to_preload() -> tuple[str, ...]:
    """Return the modules for reading that this process has loaded, which each worker needs, too."""
    import sys

    ours = [name for name in sys.modules if name.startswith("yogadl.") and ".adapters" not in name]
    return ("yogadl._stream.worker", *ours, *({"lmdb", "cloudpickle"} & set(sys.modules)))
