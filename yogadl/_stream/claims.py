"""Assign epochs to the iterators of one stream or loader, and note the place of each."""

from typing import Any

from yogadl._core.process import ProcessLock
from yogadl._stream.cut import Span
from yogadl._stream.recipe import Progress, Recipe
from yogadl._stream.shard import Point


class Claims:
    """Assigns epochs to the iterators of one stream or loader. Thread-safe; pickles without its lock."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self._next = recipe.span(recipe.run.start)
        self._endless: Progress | None = None  # the newest claim's iterator, if it is endless
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
        """Return the progress of the newest iterator; an empty one if there was no iterator."""
        return self._newest

    def begin(self, progress: Progress) -> None:
        """Note the newest iterator; with `skip_finished_epoch`, it continues where the last one stopped."""
        before = self._newest
        if before.span is not None and self.recipe.cut.skip_finished_epoch:
            with self._lock:
                self._next = self.recipe.resume(before.span, self.recipe.reach(before))
                self._endless = None
        self._newest = progress

    def next_span(self) -> Span:
        """Return the span of the next claim. An endless iterator leaves it the epochs not entered yet."""
        if self._endless is None:
            return self._next
        return self.recipe.cut.span(Point(self.recipe.reach(self._endless).epoch + 1, 0))

    def claim(self, progress: Progress) -> Span:
        """Assign the next span to `progress`, and return it."""
        with self._lock:
            span = self.next_span()
            self._hand_over(span, progress)
            progress.span = span
        return span

    def move(self, span: Span, progress: Progress) -> None:
        """Note that an iterator was moved to `span`, after which the next claim begins."""
        with self._lock:
            self._hand_over(span, progress)

    def restart(self, point: Point) -> None:
        """Have the next claim begin at `point`, and forget the newest iterator."""
        with self._lock:
            self._next, self._endless = self.recipe.resume(self.next_span(), point), None
            self._newest = Progress()

    def _hand_over(self, span: Span, progress: Progress) -> None:
        if span.end is None:
            self._endless = progress
        else:
            self._next = self.recipe.cut.span(Point(span.end, 0))

    def reach(self) -> Point:
        """Return the place of the newest iterator, or where the next one would begin if there is none."""
        newest = self._newest
        return self.next_span().start if newest.span is None else self.recipe.reach(newest)
