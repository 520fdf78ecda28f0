"""Define how the rows of a run become items: read, cut, and passed through stages."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from yogadl._core.arguments import int_argument
from yogadl._core.frozen import frozen
from yogadl._stream.cut import Cut, Point, Rows, Span, pieces_of
from yogadl._stream.items import Batches, ItemStage, Pending, Read, Records
from yogadl._stream.options import WorkerOptions
from yogadl._stream.prefetch import Prefetch, Stats, WaitTimes
from yogadl._stream.run import Run
from yogadl.errors import ConfigurationError


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
        ConfigurationError: if an endless iterator would never yield an item.
    """

    make: Make
    cut: Cut
    stages: tuple[ItemStage, ...] = ()
    is_shown: bool = False
    on_stats: Callable[[Stats], object] | None = None  # called by iterators, from time to time
    stats_every_s: float = 10.0

    def __post_init__(self) -> None:
        self.cut.require_items(self.run.shard)

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
