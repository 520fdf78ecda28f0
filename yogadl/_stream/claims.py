"""Say which epochs each iterator of one stream or loader reads, and where each stands."""

from typing import Any

from yogadl._lock import ProcessLock
from yogadl._stream.cut import Span
from yogadl._stream.recipe import Progress, Recipe
from yogadl._stream.shard import Point


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

    def newest(self) -> Progress:
        """Return the progress of the newest iterator; an empty one if there is none."""
        return self._newest

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
