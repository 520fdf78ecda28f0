"""Say which epochs each iterator of one stream or loader reads, and where each stands."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from yogadl._lock import ProcessLock
from yogadl._stream.items import Read
from yogadl._stream.prefetch import Prefetch
from yogadl._stream.rows import Cut, Point, Span
from yogadl._stream.run import Run

Stage = Callable[[Iterator[Any]], Iterator[Any]]


class Make(Protocol):
    """What makes items of a run: records or batches."""

    def reads(self, run: Run, cut: Cut, start: Point, end: int | None) -> Iterator[Read]:
        """Yield the items from `start` to the epoch `end`, read by read."""


@dataclass(slots=True)
class Progress:
    """What was delivered of a span; without a span, nothing was claimed yet.

    The consumer's own thread counts here, never a thread that reads ahead.
    """

    span: Span | None = None
    items: int = 0
    is_finished: bool = False


@dataclass(frozen=True)
class Recipe:
    """Say how the rows of a run become items: read, cut, and passed through stages.

    Reading ahead, if it comes first, does so by whole reads. Each stage turns an iterator of items into
    another with as many items, in the same order. (Stages that drop or add items will need a cursor of
    their own shard; see `cursor`.)
    """

    run: Run
    cut: Cut
    make: Make
    stages: tuple[Stage, ...] = ()

    def open(self, start: Point, end: int | None) -> Iterator[Any]:
        """Return the items from `start` to the epoch `end`."""
        reads = self.make.reads(self.run, self.cut, start, end)
        stages = self.stages
        if stages and isinstance(stages[0], Prefetch):
            items, stages = stages[0].of_reads(reads), stages[1:]
        else:
            items = _items(reads)
        del reads  # whoever iterates over it now lets go of it
        for stage in stages:
            items = stage(items)
        return items

    def reach(self, progress: Progress) -> Point:
        """Return where a cursor of this progress stands."""
        span = progress.span
        assert span is not None
        if progress.is_finished and span.end is not None:
            return Point(span.end, 0)
        return self.cut.reach(self.run.shard, span, progress.items)

    def span(self, point: Point) -> Span:
        """Return what an iterator reads that begins at `point`.

        Raises:
            ConfigurationError: if the shards would drift into different epochs from there.
        """
        return self._ready(self.cut.span(point))

    def resume(self, span: Span, point: Point) -> Span:
        """Return `span` as it goes on from `point`.

        Raises:
            ConfigurationError: if the shards would drift into different epochs from there.
        """
        return self._ready(self.cut.resume(span, point))

    def _ready(self, span: Span) -> Span:
        span = self.cut.past_finished(self.run.shard, span)
        self.run.shard.require_step(span.start, span.end)
        return span


def _items(reads: Iterator[Read]) -> Iterator[Any]:
    for _, items in reads:
        yield from items


class Claims:
    """Give each iterator of one stream or loader its epochs. Thread-safe; pickles without its lock."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self._next = recipe.span(recipe.run.start)
        self._endless: Progress | None = None  # the iterator that decides what is next, if it has no end
        self._newest = Progress()
        self._lock = ProcessLock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = ProcessLock()

    def track(self, progress: Progress) -> None:
        """Note the progress of the newest iterator."""
        self._newest = progress

    def begin(self, progress: Progress) -> None:
        """Note the newest iterator; if finished epochs are skipped, it goes on where the last one stands."""
        before = self._newest
        if before.span is not None and self.recipe.cut.skip_finished_epoch:
            with self._lock:
                self._next = self.recipe.resume(before.span, self.recipe.reach(before))
                self._endless = None
        self._newest = progress

    def next_span(self) -> Span:
        """Return what the next claim would get. An endless iterator leaves what it has not entered."""
        if self._endless is None:
            return self._next
        return self.recipe.cut.span(Point(self.recipe.reach(self._endless).epoch + 1, 0))

    def claim(self, progress: Progress) -> Span:
        """Give `progress` the next span."""
        with self._lock:
            span = self.next_span()
            self._hand_over(span, progress)
            progress.span = span
        return span

    def move(self, span: Span, progress: Progress) -> None:
        """Note that an iterator was moved to `span`: the next claim comes after it."""
        with self._lock:
            self._hand_over(span, progress)

    def restart(self, point: Point) -> None:
        """Let the next claim begin at `point`, and forget the newest iterator."""
        with self._lock:
            self._next, self._endless = self.recipe.resume(self.next_span(), point), None
            self._newest = Progress()

    def _hand_over(self, span: Span, progress: Progress) -> None:
        if span.end is None:
            self._endless = progress
        else:
            self._next = self.recipe.cut.span(Point(span.end, 0))

    def reach(self) -> Point:
        """Return where the newest iterator stands, or the next would begin."""
        newest = self._newest
        return self.next_span().start if newest.span is None else self.recipe.reach(newest)
