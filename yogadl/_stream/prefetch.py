"""Read ahead in threads, with a bounded queue to the consumer, and report the time of each stage."""

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import repeat
from time import perf_counter
from typing import Any, TypeVar

from yogadl._core.frozen import frozen
from yogadl._stream.items import Pending, Read
from yogadl._stream.run import Counters, Run, Totals

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
        stages: The seconds of each stage: ``read``, and each function by its number and name. They are summed
            over threads and processes, so together they may be more than `seconds`.
        ranges: The number of requests, here and by workers, for bytes that are not on this machine; by all
            readers of the same `DataRef`.
        range_bytes: The number of bytes received by them.
        rejected: The number of records that others replaced (``on_error="substitute"``).
        ready: The average number of batches that were ready when one was requested; ``None`` without reading
            ahead.
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
        # Loaders that were made of one another count together: what another one did before is left out.
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


class ForkedError(Exception):
    """Raised in a forked process, which has none of the reader's threads."""


class _EndError(Exception):
    """Marks the end of the items in the queue."""


@frozen
class Prefetch:
    """A stage that keeps `depth` items ready, or the items of one read. Ordered, exact, picklable.

    With `threads`, that many threads read at once: each keeps one more item, or the items of one more read.

    The threads start at the first `next`. They end with the items, when the consumer closes or drops its
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
