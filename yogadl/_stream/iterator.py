"""Iterate over the items of a stream, each iterator in its own epochs; the cursor is always known."""

import contextlib
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple

import numpy as np

from yogadl._core.arguments import int_argument
from yogadl._core.memory import settle_allocator
from yogadl._core.process import ForkedError, ProcessLock, end_daemon_at_exit
from yogadl._core.protocols import Document, Indices, Int64s, Item_co, RandomAccess
from yogadl._stream.cursor import read_cursor, write_cursor
from yogadl._stream.cut import Point, Span
from yogadl._stream.recipe import Recipe, SpanProgress
from yogadl.errors import ConfigurationError

if TYPE_CHECKING:
    from yogadl._views.stages import Rejected


class Claims:
    """Assigns epochs to the iterators of one stream or loader. Thread-safe; pickles without its lock."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self._next = recipe.span(recipe.run.start)
        self._endless: SpanProgress | None = None  # the newest claim's iterator, if it is endless
        self._newest = self._claiming = SpanProgress()  # of any iterator, for statistics; of one that claims
        self._lock = ProcessLock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = ProcessLock()

    def track(self, progress: SpanProgress) -> None:
        """Note the progress of the newest iterator, which claims nothing."""
        self._newest = progress

    def newest(self) -> SpanProgress:
        """Return the progress of the newest iterator; an empty one if there was no iterator."""
        return self._newest

    def begin(self, progress: SpanProgress) -> None:
        """Note a new iterator; with `skip_finished_epoch`, it continues where the last such one stopped."""
        previous = self._claiming
        if previous.span is not None and self.recipe.cut.skip_finished_epoch:
            with self._lock:
                self._next = self.recipe.resume(previous.span, self.recipe.reach(previous))
                self._endless = None
        self._newest = self._claiming = progress

    def next_span(self) -> Span:
        """Return the span of the next claim; after an endless iterator, it begins with the next epoch."""
        if self._endless is None:
            return self._next
        return self.recipe.cut.span(Point(self.recipe.reach(self._endless).epoch + 1, 0))

    def claim(self, progress: SpanProgress) -> Span:
        """Assign the next span to `progress`, and return it."""
        with self._lock:
            span = self.next_span()
            self._set_next(span, progress)
            progress.span = span
        return span

    def move(self, span: Span, progress: SpanProgress) -> None:
        """Note that an iterator was moved to `span`, after which the next claim begins."""
        with self._lock:
            self._set_next(span, progress)

    def restart(self, point: Point) -> None:
        """Let the next claim begin at `point`, as if there were no newest iterator."""
        with self._lock:
            self._next, self._endless = self.recipe.resume(self.next_span(), point), None
            self._newest = self._claiming = SpanProgress()

    def _set_next(self, span: Span, progress: SpanProgress) -> None:
        if span.end is None:
            self._endless = progress
        else:
            self._next = self.recipe.cut.span(Point(span.end, 0))

    def reach(self) -> Point:
        """Return the place of the newest iterator that claims epochs, or where the next one would begin."""
        newest = self._claiming
        return self.next_span().start if newest.span is None else self.recipe.reach(newest)


_SHOW_EVERY_S: Final = 0.1


class _RecordPlaces(NamedTuple):
    epoch: int
    positions: Int64s
    indices: Int64s


class Delivered(_RecordPlaces):
    """The records that an item is made of.

    Attributes:
        epoch: The epoch in which the item begins.
        positions: The position of each record in its epoch. A position less than the one before it begins the
            next epoch; a position at or beyond the number of records is padding.
        indices: The index of each record in the data: of those that were delivered, if others came in the
            place of broken ones.
        rejected: The records that these replaced; see ``on_error`` of `RecordStream.map`.
    """

    rejected: "tuple[Rejected, ...]" = ()
    _records: RandomAccess | None = None  # these two to find the documents, unless this was pickled
    _drawn: Indices | None = None  # the indices, with their draws

    def __reduce__(self) -> Any:
        return Delivered, tuple(self), {"rejected": self.rejected}

    @property
    def documents(self) -> list[list[Document]]:
        """For rows or batches of `DataRef.packed`, `bucketed` or `grouped`: the records that each is made of.

        In a mix, they are numbered as in the row's parent. Empty for other streams.
        """
        return [] if self._drawn is None or self._records is None else self._records.documents_of(self._drawn)


class StreamIterator(Iterator[Item_co]):
    """Delivers records or batches one by one.

    The iterator claims its epochs at the first `next` (an iterator from `at` claims nothing). Not
    thread-safe: an iterator belongs to one thread, but several iterators may run at the same time. After an
    error, after `close`, and in a forked process, `next` continues with the first item not yet delivered.
    """

    __slots__ = ("__weakref__", "_claims", "_items", "_progress", "_recipe")

    def __init__(self, recipe: Recipe, progress: SpanProgress, claims: Claims | None) -> None:
        self._recipe = recipe.begun()
        self._progress = progress
        self._claims = claims
        self._items: Iterator[Item_co] | None = None

    def __iter__(self) -> "StreamIterator[Item_co]":
        return self

    def __next__(self) -> Item_co:  # benchmarks/: this runs once for each batch of 23 us
        try:
            item = next(self._open() if self._items is None else self._items)
            self._progress.items += 1
            return item
        except StopIteration:
            self._progress.is_finished = True
            self._progress.waits.end()
            raise
        except ForkedError:
            self._items = None
            return next(self)
        except BaseException:
            self._items = None  # a generator that raised has ended: the next one starts at this place
            end_daemon_at_exit()
            raise

    def _open(self) -> Iterator[Item_co]:
        self._recipe.run.counters.check()
        progress = self._progress
        settle_allocator()
        progress.waits.begin(self._recipe.run)
        span = progress.span
        if span is None:
            assert self._claims is not None
            span = self._claims.claim(progress)
        if self._claims is not None and not progress.items:
            self._recipe.cut.warn_if_finished(self._recipe.run.shard, span)
        self._items = self._recipe.open(self._recipe.reach(progress), span.end, progress.waits)
        return self._items

    @property
    def last(self) -> Delivered | None:
        """The records of the last item, or ``None`` if no item was delivered since the iterator began."""
        progress = self._progress
        if progress.span is None or not progress.items:
            return None
        rows = self._recipe.rows(progress.span, progress.items - 1)
        positions = np.concatenate([np.asarray(found, np.int64) for _, found in rows.pieces])
        run = self._recipe.run
        drawn = rows.indices.copy()
        rejected: list[Rejected] = []
        for number, epoch, position, replaced in run.counters.replaced_at(rows.pieces):
            drawn[number] = run.index(epoch, position, len(replaced) - 1)
            rejected += replaced
        found = Delivered(rows.pieces[0][0], positions, run.source.user_numbers(drawn))
        found.rejected, found._records, found._drawn = tuple(rejected), run.source, drawn
        return found

    def close(self) -> None:
        """Free the items read ahead, and end the threads that read them; a later `next` continues."""
        items, self._items = self._items, None
        close = getattr(items, "close", None)
        if close is not None:
            close()

    def state_dict(self) -> dict[str, Any]:
        """Return the cursor after the items delivered so far; it is the same on all shards in step."""
        progress = self._progress
        if progress.span is not None:
            point = self._recipe.reach(progress)
        else:
            assert self._claims is not None
            point = self._claims.next_span().start
        return write_cursor(self._recipe.run.identity(), point)

    def load_state_dict(self, state: Mapping[str, Any], rebind: bool = False) -> None:
        """Continue from a cursor, before or after the first `next`.

        If the iterator claimed the cursor's epoch (or would claim it), the iterator still ends with the last
        epoch that it claimed; otherwise the cursor's epoch counts as the first one claimed. The next iterator
        of the same stream or loader reads the epochs after these.

        Args:
            state: The result of `state_dict`, from this job or another, on any number of shards.
            rebind: Whether to accept a cursor of other data of equal length; for rows that are made of
                several records, of data of which each record is as long as before.

        Raises:
            CursorError: if `state` is no cursor, or belongs to other data or another order.
            ConfigurationError: if shards of unequal length would drift into different epochs.
        """
        recipe = self._recipe
        point = read_cursor(recipe.run.identity(), state, rebind)
        span = self._progress.span
        if span is None:
            assert self._claims is not None
            span = self._claims.next_span()
        span = recipe.resume(span, point)
        self.close()
        self._progress.move(span)
        if self._claims is not None:
            self._claims.move(span, self._progress)

    get_state = state_dict
    set_state = load_state_dict


class WatchedIterator(StreamIterator[Item_co]):
    """An iterator that shows its progress or calls `on_stats`, by its recipe.

    Progress is a bar on a terminal, and a line now and then elsewhere.
    """

    __slots__ = ("_end", "_has_ended", "_reported_s", "_show", "_shown_s")

    def __init__(self, recipe: Recipe, progress: SpanProgress, claims: Claims | None) -> None:
        super().__init__(recipe, progress, claims)
        self._show: Any = None
        self._shown_s = 0.0
        self._reported_s: float | None = None  # when `on_stats` was called; at first, when `next` was
        self._has_ended = False

    def __next__(self) -> Item_co:
        if not self._has_ended:
            self._report()  # before the next item is taken: if the function raises, no item is lost
        try:
            item = super().__next__()
        except StopIteration:
            self._finish()
            if not self._has_ended:
                self._has_ended = True  # first: if the function raises, the next `next` ends the loop
                self._report(is_last=True)
            raise
        self._has_ended = False  # it may have been, before `load_state_dict`
        if self._recipe.is_shown and perf_counter() - self._shown_s >= _SHOW_EVERY_S:
            self._update()
        return item

    def _report(self, is_last: bool = False) -> None:
        """Call `on_stats` if it is time."""
        recipe, now = self._recipe, perf_counter()
        if recipe.on_stats is None:
            return
        if self._reported_s is None:
            self._reported_s = now
        elif is_last or now - self._reported_s >= recipe.stats_every_s:
            self._reported_s = now
            recipe.on_stats(recipe.stats(self._progress))

    def _update(self) -> None:
        progress = self._progress
        assert progress.span is not None
        if self._show is None:
            from yogadl._core.progress import showing_progress  # slow to import

            stack = contextlib.ExitStack()
            self._show = stack.enter_context(showing_progress(True, "reading"))
            self._end = weakref.finalize(self, stack.close)
        self._shown_s = perf_counter()
        stats = self._recipe.stats(progress)
        waited = f"waited {stats.waited_share:.0%}"
        self._show(stats.records, self._recipe.total(progress.span), stats.bytes, waited)

    def _finish(self) -> None:
        if self._show is not None:
            self._update()
            self._show = None
            self._end()

    def close(self) -> None:
        """Free the items read ahead, and the bar; a later `next` continues."""
        super().close()
        self._finish()


def begin(recipe: Recipe, claims: Claims, kind: type[StreamIterator] = StreamIterator) -> StreamIterator:
    """Return an iterator that will claim its epochs from `claims`."""
    progress = SpanProgress()
    claims.begin(progress)
    is_watched = recipe.is_shown or recipe.on_stats is not None
    return (WatchedIterator if is_watched else kind)(recipe, progress, claims)


class Restartable(Generic[Item_co]):
    """Returns iterators that claim one epoch after another, and keeps the place of the newest one.

    The common base of streams and loaders. Thread-safe; pickles with its count of claimed epochs.
    """

    _recipe: Recipe
    _claims: Claims

    def _read_by(self, recipe: Recipe) -> None:
        """Use a recipe, beginning at its run's start, with times and counts of its own."""
        self._recipe = recipe = replace(recipe, make=recipe.make.counted_anew())
        self._claims = Claims(recipe)

    def __iter__(self) -> StreamIterator[Item_co]:
        return begin(self._recipe, self._claims)

    def at(self, epoch: int, position: int = 0) -> StreamIterator[Item_co]:
        """Return an iterator that starts at any place and claims nothing.

        It changes neither this object's `state_dict` nor where the next iterator begins; its own `state_dict`
        tells its place.

        Args:
            epoch: The epoch to start in; the iterator reads as many epochs as other iterators of this object.
            position: The position in the epoch, counted over all shards; the number of records means its end.

        Raises:
            ConfigurationError: if the place does not exist, or shards of unequal length would drift into
                different epochs from there.
        """
        skipped = self._recipe.run.identity().skipped
        if int_argument("position", position) > skipped.records:
            raise ConfigurationError(
                f"position {position} is past the epoch's end: it has {skipped.records} records"
            )
        point = Point(int_argument("epoch", epoch), skipped.before(position))
        progress = SpanProgress(self._recipe.span(point))
        self._claims.track(progress)
        return StreamIterator(self._recipe, progress, None)

    def state_dict(self) -> dict[str, Any]:
        """Return the cursor of the newest iterator; without one, the cursor at which it would start.

        Iterators of `at` don't count.
        """
        return write_cursor(self._recipe.run.identity(), self._claims.reach())

    def load_state_dict(self, state: Mapping[str, Any], rebind: bool = False) -> None:
        """Have the next iterator start at a cursor; see `StreamIterator.load_state_dict`.

        Iterators that have begun are not changed.

        Raises:
            CursorError: if `state` is no cursor, or belongs to other data or another order.
            ConfigurationError: if shards of unequal length would drift into different epochs.
        """
        self._claims.restart(read_cursor(self._recipe.run.identity(), state, rebind))

    def rejected(self) -> "list[Rejected]":
        """Return the records for which a function raised, and that others replaced, by their positions.

        The list has the records that this object's iterators have read in this process and its workers, up
        to 100,000. See ``on_error`` of `RecordStream.map`.
        """
        return self._recipe.run.counters.rejected()

    get_state = state_dict
    set_state = load_state_dict
