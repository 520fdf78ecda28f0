"""Define how the rows of a run become items: read, cut, passed through stages, and prefetched by threads."""

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import repeat
from time import perf_counter
from typing import Any, Protocol, TypeVar, runtime_checkable

from yogadl._core.arguments import int_argument
from yogadl._core.frozen import frozen
from yogadl._core.process import ForkedError
from yogadl._stream.cut import Cut, Point, Rows, Span, pieces_of
from yogadl._stream.items import Batches, ItemStage, Pending, Read, Records
from yogadl._stream.options import WorkerOptions
from yogadl._stream.run import Counters, Run, Totals
from yogadl.errors import ConfigurationError

T = TypeVar("T")


@frozen
class Stats:
    """Statistics of a loader's newest iterator so far.

    Attributes:
        batches: The number of batches delivered.
        records: The number of records in these batches.
        bytes: The approximate number of bytes in memory; exact if no field varies in length.
        seconds: The time from the request for the first batch until the iterator ended, or until now.
        waited_s: The part of this time that the consumer waited in `next`.
        stages: The seconds of each stage: ``read``, and each function by its number and name. Seconds are
            summed over threads and processes, so their total may be more than `seconds`.
        ranges: The number of requests, here and by workers, for bytes that are not on this machine; by all
            readers of the same `DataRef`.
        range_bytes: The number of bytes received by them.
        rejected: The number of records that others replaced (``on_error="substitute"``).
        ready: The average number of batches that were ready when one was requested, or ``None`` without
            reading ahead.
    """

    batches: int
    records: int
    bytes: int
    seconds: float
    waited_s: float
    stages: Mapping[str, float]
    ready: float | None
    ranges: int = 0
    range_bytes: int = 0
    rejected: int = 0

    @property
    def records_per_s(self) -> float:
        """The number of records delivered a second."""
        return self.records / self.seconds if self.seconds else 0.0

    @property
    def mb_per_s(self) -> float:
        """The number of bytes delivered a second, in millions."""
        return self.bytes / 1e6 / self.seconds if self.seconds else 0.0

    @property
    def waited_share(self) -> float:
        """The share of the time that the consumer waited. Near 0, reading keeps up; near 1, it does not."""
        return self.waited_s / self.seconds if self.seconds else 0.0

    def as_dict(self) -> dict[str, int | float]:
        """Return everything as plain numbers by name, for a logger of metrics.

        The names are those of the attributes and properties. Each stage has its seconds, as ``stage_s/read``,
        and its share of the seconds of all stages, as ``stage_share/read``. Without reading ahead, `ready` is
        missing.
        """
        names = ("batches", "records", "bytes", "seconds", "waited_s", "waited_share",
                 "records_per_s", "mb_per_s", "ranges", "range_bytes", "rejected")  # fmt: skip
        found: dict[str, int | float] = {name: getattr(self, name) for name in names}
        if self.ready is not None:
            found["ready"] = self.ready
        total_s = sum(self.stages.values()) or 1.0
        found |= {f"stage_s/{stage}": seconds for stage, seconds in self.stages.items()}
        return found | {f"stage_share/{stage}": seconds / total_s for stage, seconds in self.stages.items()}

    def __str__(self) -> str:
        found = [
            f"{self.records:,} records in {self.seconds:.3g} s: {self.records_per_s:,.0f} records/s, "
            f"{self.mb_per_s:,.0f} MB/s",
            f"waited {self.waited_share:.0%}",
        ]
        if self.ready is not None:
            found.append(f"{self.ready:.1f} batches ready")
        if self.ranges:
            found.append(f"{self.ranges:,} ranges, {self.range_bytes / 1e6:,.0f} MB by range")
        if self.rejected:
            found.append(f"{self.rejected:,} records replaced")
        if self.stages:
            found.append(", ".join(f"{stage} {seconds:.3g} s" for stage, seconds in self.stages.items()))
        return "; ".join(found)


class WaitTimes:
    """The waiting time of one consumer, counted in its own thread; a pickled copy begins anew.

    Attributes:
        waited_s: The total time.
    """

    __slots__ = ("_before", "_began", "_ended", "waited_s")

    def __init__(self) -> None:
        self._began: float | None = None  # when the first item was requested
        self._ended: float | None = None  # when the items ended
        self.waited_s = 0.0
        self._before = Totals({})  # at that time

    def __reduce__(self) -> Any:
        return WaitTimes, ()

    def begin(self, run: Run) -> None:
        """Note the time of the first request for an item."""
        self._ended = None
        if self._began is None:
            self._began = perf_counter()
            self._before = run.totals()

    def end(self) -> None:
        """Note that the items have ended."""
        self._ended = self._ended or perf_counter()

    def each(self, items: Iterator[T]) -> Iterator[T]:
        """Yield items, and count the time of each as waited."""
        while True:
            requested_s = perf_counter()
            try:
                item = next(items)
            except StopIteration:
                return
            finally:
                self.waited_s += perf_counter() - requested_s
            yield item
            del item

    def stats(self, run: Run, items: int, records: int, size_bytes: int) -> Stats:
        """Return the statistics since the beginning."""
        # Loaders that were made of one another count together; the work of others from before is left out.
        counted = Totals({}) if self._began is None else run.totals().since(self._before)
        return Stats(
            batches=items,
            records=records,
            bytes=size_bytes,
            seconds=0.0 if self._began is None else (self._ended or perf_counter()) - self._began,
            waited_s=self.waited_s,
            stages={stage: seconds for stage, seconds in counted.stages.items() if seconds},
            ready=counted.ready / counted.asked if counted.asked else None,
            ranges=counted.requests,
            range_bytes=counted.received_bytes,
            rejected=counted.rejected,
        )


_EXIT_TIMEOUT_S = 5.0

# The result of a read: its items, and the error that came after them.
_ReadResult = tuple[Iterator[Any], BaseException | None]
# A read for a thread to make: the number of its items, and the function to call.
_Job = tuple[int, Callable[[], _ReadResult]]


class _EndError(Exception):
    """Marks the end of the items in the queue."""


@frozen
class Prefetch:
    """A stage that keeps `depth` items ready, or the items of one read. Ordered, exact, picklable.

    With `threads`, that many threads read at once: each keeps one more item, or the items of one more read.

    The threads start at the first `next`, and end with the items, when the consumer closes or drops its
    iterator, or at the interpreter's exit.
    """

    depth: int
    threads: int = 1

    def __call__(self, items: Iterator[Any]) -> Iterator[Any]:
        """Yield `items`, read ahead one by one in one thread; an error comes after the items before it."""
        return self.of_reads(((1, iter((item,))) for item in items), Counters(), WaitTimes())

    def of_reads(self, reads: Iterator[Read], counters: Counters, waits: WaitTimes) -> Iterator[Any]:
        """Yield the items of `reads`, made in one thread, which hands over whole reads.

        Small batches are read many at a time, and handing over each would cost more than reading it.
        """
        jobs = ((count, partial(_without_error, items)) for count, items in reads)
        return _delivered(self.depth, 1, jobs, counters, waits)

    def of_pending(self, pending: Iterator[Pending], counters: Counters, waits: WaitTimes) -> Iterator[Any]:
        """Yield the items of reads that are still to be made; each thread makes the next one."""
        jobs = ((count, partial(_make_all, read)) for count, read in pending)
        return _delivered(self.depth, self.threads, jobs, counters, waits)


def _without_error(items: Iterator[Any]) -> _ReadResult:
    return items, None


def _make_all(read: Callable[[], Iterator[Any]]) -> _ReadResult:
    """Make all items of a read, up to an error."""
    items: deque[Any] = deque()
    try:
        items.extend(read())
    except BaseException as error:  # noqa: BLE001  (the consumer raises it)
        return _drain(items), error
    return _drain(items), None


def _drain(items: deque[Any]) -> Iterator[Any]:
    """Yield items, each removed from the queue, so that only the consumer holds it."""
    return map(deque.popleft, repeat(items, len(items)))


def _delivered(
    depth: int, threads: int, jobs: Iterator[_Job], counters: Counters, waits: WaitTimes
) -> Iterator[Any]:
    """Yield the items of jobs that threads make ahead; an error is raised after the items before it."""
    feed = _Feed(depth, threads, jobs)
    del jobs  # only the threads hold it, so that it ends with them
    try:
        while True:
            counters.asked += 1
            counters.ready += feed.ready
            requested_s = time.perf_counter()
            items, error = feed.take()
            waits.waited_s += time.perf_counter() - requested_s
            yield from items
            if isinstance(error, _EndError):
                return  # a check, not an `except`: the class may be gone when the interpreter exits
            if error is not None:
                try:
                    raise error
                finally:
                    del error  # a reference from the traceback to itself would keep it alive
    finally:
        feed.stop()


class _Slot:
    """The place for the result of one read, for which the consumer waits; a slot refers to the next one.

    (Each slot has a lock, instead of one condition for all: when three threads share two cores, each
    additional moment in Python's lock costs a switch between them; benchmarks/prefetch.py.)
    """

    __slots__ = ("_done", "_found", "count", "next")

    def __init__(self) -> None:
        self._done = threading.Lock()
        self._done.acquire()
        self._found: _ReadResult | None = None
        self.count = 0
        self.next: _Slot | None = None

    def put(self, items: Iterator[Any], error: BaseException | None) -> None:
        """Store the result of the read."""
        self._found = items, error
        self._done.release()

    @property
    def is_ready(self) -> bool:
        """Whether the result is stored."""
        return not self._done.locked()

    def take(self) -> _ReadResult:
        """Wait for the result, and return it."""
        self._done.acquire()
        found, self._found = self._found, None
        assert found is not None
        return found


class _Feed:
    """A bounded queue that threads of its own fill, in the order of the jobs. One consumer.

    The lock is re-entrant: the garbage collector may drop a consumer, and thereby call `stop`, in a thread
    that holds the lock.
    """

    def __init__(self, depth: int, threads: int, jobs: Iterator[_Job]) -> None:
        self._count = threads
        self._depth = depth + threads - 1
        self._most = self._depth  # items in slots at which reading stops
        self._taken = 0  # items that threads began to read: counted by the thread whose turn it is
        self._delivered = 0  # items that the consumer took: counted by the consumer
        self._first: _Slot | None = _Slot()  # the next slot for the consumer
        self._free: _Slot = self._first  # the slot for the next job
        self._turn = threading.Lock()  # held by the thread that takes the next job: one at a time, in order
        self._room = threading.Condition(threading.RLock())
        self._is_full = False  # whether a thread waits for room
        self._is_drained = False  # no more jobs are taken: the last one was taken, or an error comes
        self._is_stopped = self._is_over = False
        self._pid = os.getpid()
        # Daemon threads in the middle of a copy can crash the interpreter while it exits. Therefore the exit
        # waits for them, even if the items that they read are not needed any more.
        atexit.register(self._exit)
        self._running = threads
        self._threads: list[threading.Thread] = []
        try:
            for _ in range(threads):
                thread = threading.Thread(
                    target=self._fill, args=(jobs,), name="yogadl-prefetch", daemon=True
                )
                thread.start()
                self._threads.append(thread)
        except BaseException:  # no more threads can be started: the others must not wait for ever
            self.stop()
            raise

    @property
    def ready(self) -> int:
        """The number of items that the consumer can take without waiting."""
        slot, count = self._first, 0
        while slot is not None and slot.is_ready:
            count += slot.count
            slot = slot.next
        return count

    def take(self) -> _ReadResult:
        """Wait for the next read; return its items and the error after them.

        Raises:
            ForkedError: if this is not the process that started the threads.
        """
        if os.getpid() != self._pid:
            raise ForkedError
        slot = self._first
        if slot is None:
            raise _exit_error()
        found = slot.take()
        self._first = slot.next
        self._delivered += slot.count
        if self._is_full:
            with self._room:
                self._room.notify()
        return found

    def stop(self) -> None:
        """End the threads after their current reads, and drop the results."""
        if self._is_over or not self._running:
            return  # stopped before, or no thread runs; at the interpreter's exit, modules may be gone
        self._is_over = True
        if os.getpid() != self._pid:
            atexit.unregister(self._exit)
            return  # forked: there are no threads here, and the lock may be held for ever
        with self._room:
            self._is_stopped = True
            self._first = None
            self._room.notify()

    def _exit(self) -> None:
        self.stop()
        if os.getpid() == self._pid:
            limit = time.monotonic() + _EXIT_TIMEOUT_S
            for thread in self._threads:
                thread.join(max(0.0, limit - time.monotonic()))

    def _fill(self, jobs: Iterator[_Job]) -> None:
        try:
            while True:
                with self._turn:
                    taken = self._next(jobs)
                if taken is None:
                    return
                slot, read = taken
                del taken
                items, error = read()
                self._is_drained |= error is not None
                slot.put(items, error)
                del slot, read, items, error
        finally:
            with self._turn:
                self._running -= 1
                if not self._running:
                    # A consumer in another thread may still wait.
                    self._free.put(iter(()), _exit_error())
                    atexit.unregister(self._exit)

    def _next(self, jobs: Iterator[_Job]) -> tuple[_Slot, Callable[[], _ReadResult]] | None:
        """Wait for room in the queue, and take the next job; None: there are no more jobs.

        A job is taken only when there is room, since `depth` is a promise.
        """
        if self._taken - self._delivered >= self._most:
            with self._room:
                self._is_full = True  # the consumer checks this after it has counted the items it took
                while self._taken - self._delivered >= self._most and not self._is_stopped:
                    self._room.wait()
                self._is_full = False
        if self._is_stopped or self._is_drained:
            return None
        slot = self._free
        slot.next = self._free = _Slot()
        try:
            slot.count, read = next(jobs)
        except BaseException as error:  # noqa: BLE001  (the consumer raises it)
            self._is_drained = True
            slot.put(iter(()), _EndError() if isinstance(error, StopIteration) else error)
            return None
        self._taken += slot.count
        # If reads have several items, the queue has room for one read more than there are threads. Otherwise
        # a thread waits for the consumer to wake up, and then the consumer for the thread
        # (benchmarks/prefetch.py).
        self._most = max(self._depth, slot.count * self._count + 1 if slot.count > 1 else 0)
        return slot, read


def _exit_error() -> Exception:
    return RuntimeError("the interpreter is shutting down: nothing is read ahead any more")


class Make(Protocol):
    """Makes items, records or batches, of a run."""

    @property
    def run(self) -> Run:
        """The run of the items."""

    def counted_anew(self) -> "Make":
        """Return the same for another loader, with times and counts of its own; see `Run.counted_anew`."""

    def reads(self, cut: Cut, start: Point, end: int | None) -> Iterator[Read]:
        """Yield the items from `start` to the epoch `end`, read by read."""


@runtime_checkable
class MakeInThreads(Make, Protocol):
    """Makes items in several threads at once."""

    def pending(self, cut: Cut, start: Point, end: int | None) -> Iterator[Pending]:
        """Yield the reads of the items from `start` to the epoch `end`; any thread may make them."""


@runtime_checkable
class MakeInWorkers(Make, Protocol):
    """Makes items in worker processes."""

    @property
    def stages(self) -> tuple[Any, ...]:
        """The functions of the user's that each item passes through."""

    @property
    def options(self) -> WorkerOptions:
        """The way in which the workers are started."""

    def begun(self) -> "MakeInWorkers":
        """Return a maker for one more iterator."""

    def then(self, function: Callable[..., Any], seed: int | None) -> "MakeInWorkers":
        """Return a maker that also passes each item through a function."""

    def here(self, cut: Cut, start: Point, end: int | None) -> Iterator[Any]:
        """Yield the items from `start` to the epoch `end`, made in this process."""


class SpanProgress:
    """How many items of a span were delivered; without a span, no epoch was claimed yet.

    Only the consumer's own thread counts here, never a thread that reads ahead.
    """

    __slots__ = ("is_finished", "items", "span", "waits")

    def __init__(self, span: Span | None = None) -> None:
        self.move(span)

    def move(self, span: Span | None) -> None:
        """Begin a span."""
        self.span = span
        self.items = 0
        self.is_finished = False
        self.waits = WaitTimes()


@frozen
class Recipe:
    """The way in which the rows of a run become items: read, cut, and passed through stages.

    Reading ahead, if it is the first stage, handles whole reads. Each stage turns an iterator of items into
    another with as many items, in the same order. (Stages that drop or add items will need a cursor for each
    shard; see `cursor`.)

    Raises:
        ConfigurationError: if an endless iterator would never yield an item, or the order needs batches of
            another size.
    """

    make: Make
    cut: Cut
    stages: tuple[ItemStage, ...] = ()
    is_shown: bool = False
    on_stats: Callable[[Stats], object] | None = None  # called by iterators, from time to time
    stats_every_s: float = 10.0

    def __post_init__(self) -> None:
        self.cut.require_items(self.run.shard)
        if isinstance(self.make, Batches) and not self.make.is_single:
            self.run.require_batch(self.cut.size)

    @property
    def run(self) -> Run:
        """The run of the records that are read."""
        return self.make.run

    def ahead(self, depth: int, threads: int = 1) -> "Recipe":
        """Return the recipe with an additional stage that reads ahead.

        Raises:
            ConfigurationError: if an argument makes no sense.
        """
        threads = int_argument("prefetch's threads", threads, 1)
        stages: tuple[ItemStage, ...] = (*self.stages, Prefetch(depth))
        if threads > 1:
            if not isinstance(self.make, MakeInThreads):
                raise ConfigurationError(
                    f"threads={threads} would read in this process, but this loader's batches are made in "
                    "worker processes: pass one or the other"
                )
            # Stages that exist already take items one by one, in one thread.
            stages = (Prefetch(depth, threads), *(stages if self.stages else ()))
        return replace(self, stages=stages)

    def in_workers(self, options: WorkerOptions) -> "Recipe":
        """Return the recipe that does everything so far in worker processes.

        Raises:
            ConfigurationError: if the recipe has workers already.
        """
        from yogadl._stream.workers import InWorkers  # most streams have none

        if isinstance(self.make, MakeInWorkers):
            raise ConfigurationError(
                f"{self.make.options.errors.called} has workers already: ask for workers only once, after "
                "all functions"
            )
        assert isinstance(self.make, Batches | Records)
        return replace(self, make=InWorkers(self.make, self.changing, options), stages=())

    def prefetch(self, n: int, workers: int, threads: int, settings: tuple[Any, Any, Any, Any]) -> "Recipe":
        """Return the recipe that reads ahead, by the arguments of `Loader.prefetch`.

        Args:
            n: The number of items to keep ready.
            workers: The number of processes.
            threads: The number of threads of this process.
            settings: The fields `begin`, `timeout_s`, `method` and `threads` of `WorkerOptions`.

        Raises:
            ConfigurationError: if an argument makes no sense.
        """
        ahead, count = int_argument("prefetch's n", n, 1), int_argument("prefetch's workers", workers)
        options = WorkerOptions(count, ahead, *settings, named=(("worker_init", settings[0]),))
        if not count and options != WorkerOptions(0, ahead, named=(("worker_init", None),)):
            raise ConfigurationError(
                "worker_init, timeout_s, start_method and worker_threads are about worker processes: pass "
                "workers=1 or more with them"
            )
        if count and threads != 1:
            raise ConfigurationError(
                f"workers={workers} and threads={threads}: pass one or the other. Threads read in this "
                "process; workers are processes that read and call functions"
            )
        return self.in_workers(options) if count else self.ahead(ahead, threads)

    def begun(self) -> "Recipe":
        """Return the recipe for one more iterator."""
        return replace(self, make=self.make.begun()) if isinstance(self.make, MakeInWorkers) else self

    @property
    def changing(self) -> tuple[ItemStage, ...]:
        """The stages that change items, as opposed to reading ahead."""
        return tuple(stage for stage in self.stages if not isinstance(stage, Prefetch))

    def open(self, start: Point, end: int | None, waits: WaitTimes) -> Iterator[Any]:
        """Return the items from `start` to the epoch `end`; `waits` counts their consumer's waiting time."""
        make, stages = self.make, self.stages
        first = stages[0] if stages else None
        if isinstance(first, Prefetch):
            stages = stages[1:]
        inner = WaitTimes() if stages else waits
        if not isinstance(first, Prefetch):
            items = _items(make.reads(self.cut, start, end), inner)
        elif first.threads > 1 and isinstance(make, MakeInThreads):
            items = first.of_pending(make.pending(self.cut, start, end), self.run.counters, inner)
        else:
            items = first.of_reads(make.reads(self.cut, start, end), self.run.counters, inner)
        for stage in stages:
            items = stage(items)
        return waits.each(items) if stages else items

    def rows(self, span: Span, number: int) -> Rows:
        """Return the rows of one item of a span."""
        cut, shard = self.cut, self.run.shard
        return self.run.rows_of(next(pieces_of(shard, cut, cut.reach(shard, span, number), span.end)))

    def item_at(self, number: int) -> Any:
        """Read an item by number, counted from the run's start as iterators deliver items, one after another.

        Raises:
            IndexError: if the item does not exist.
        """
        cut, shard, start = self.cut, self.run.shard, self.run.start
        span, full = self.span(start), cut.count(shard)
        first = cut.count(shard, span.start.position)
        if first is not None and number >= first:
            if not full:
                raise IndexError(f"there is no batch {number}: an epoch of this shard has none")
            spans, number = divmod(number - first, full)
            assert span.end is not None and cut.epochs is not None
            span = self.span(Point(span.end + spans * cut.epochs, 0))
        start, make = cut.reach(shard, span, number), self.make
        if isinstance(make, MakeInWorkers):
            items = make.here(cut, start, span.end)
            for stage in self.changing:
                items = stage(items)
            return next(items)
        return next(replace(self, stages=self.changing).open(start, span.end, WaitTimes()))

    def reach(self, progress: SpanProgress) -> Point:
        """Return the place of a cursor for this progress."""
        span = progress.span
        assert span is not None
        if progress.is_finished and span.end is not None:
            return Point(span.end, 0)
        return self.cut.reach(self.run.shard, span, progress.items)

    def stats(self, progress: SpanProgress) -> Stats:
        """Return the statistics of an iterator with this progress."""
        span = progress.span
        records = 0 if span is None else self.cut.records(self.run.shard, span, progress.items)
        size_bytes = records * self.run.record_bytes
        return progress.waits.stats(self.run, progress.items, records, size_bytes)

    def total(self, span: Span) -> int | None:
        """Return the number of records of a span; None: without end."""
        if span.end is None:
            return None
        cut, shard = replace(self.cut, epochs=span.end - span.start.epoch), self.run.shard
        return cut.records(shard, span, cut.count(shard, span.start.position) or 0)

    def span(self, point: Point) -> Span:
        """Return the span of an iterator that begins at `point`.

        Raises:
            ConfigurationError: if the shards would drift into different epochs from there.
        """
        return self._skip_finished(self.cut.span(point))

    def resume(self, span: Span, point: Point) -> Span:
        """Return `span` continued from `point`.

        Raises:
            ConfigurationError: if the shards would drift into different epochs from there.
        """
        return self._skip_finished(self.cut.resume(span, point))

    def _skip_finished(self, span: Span) -> Span:
        """Return `span`, or the next one if it is finished and to be skipped, after a check of the shards."""
        span = self.cut.past_finished(self.run.shard, span)
        self.run.shard.require_step(span.start, span.end)
        return span


def _items(reads: Iterator[Read], waits: WaitTimes) -> Iterator[Any]:
    """Yield the items of reads, one after another."""
    for _, items in waits.each(reads):
        yield from items
        del items
