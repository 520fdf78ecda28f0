"""Compute how a shard's rows form records or batches, and where a number of these ends: integers only."""

import warnings
from typing import NamedTuple

from yogadl._core.arguments import flag, whole
from yogadl._core.frozen import frozen
from yogadl._stream.shard import Point, Shard, walk
from yogadl.errors import ConfigurationError


class Span(NamedTuple):
    """The range that one iterator reads: from `start` up to the epoch `end`, or for ever.

    `first` is the first epoch that the iterator claimed. Loading a cursor may move `start` between `first`
    and `end`.
    """

    start: Point
    first: int
    end: int | None


@frozen
class Cut:
    """The way to cut a shard's rows into items (records or batches), and the number of epochs.

    Args:
        size: The number of records in an item.
        drop_remainder: Whether an epoch's last item is left out if it is short.
        epochs: The number of epochs that one iterator reads; None: without end.
        across_epochs: Whether an epoch's last item is filled from the next epoch.
        skip_finished_epoch: Whether each iterator continues where the last one stopped, and begins the next
            epoch only if nothing is left of that one. Otherwise each iterator reads the next epoch, and the
            first one after a cursor reads the rest of the cursor's epoch, which may be empty.

    Raises:
        ConfigurationError: if an argument makes no sense.
    """

    size: int = 1
    drop_remainder: bool = False
    epochs: int | None = 1
    across_epochs: bool = False
    skip_finished_epoch: bool = False

    def __post_init__(self) -> None:
        checked = {
            "size": whole("a batch's n (batch_size)", self.size, 1),
            "epochs": None if self.epochs is None else whole("epochs", self.epochs, 1),
        }
        for name in ("drop_remainder", "across_epochs", "skip_finished_epoch"):
            checked[name] = flag(name, getattr(self, name))
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def require_items(self, shard: Shard) -> None:
        """Warn if a shard has records, but too few for an item.

        Raises:
            ConfigurationError: if an endless iterator would never yield an item.
        """
        rows = shard.own(0)  # of a whole epoch: a short rest of the first epoch is no mistake
        if self.epochs is None and not (rows if self.across_epochs else self.items(rows)):
            raise ConfigurationError(
                f"an epoch of this shard has {rows} records and makes no batch of {self.size}, so "
                "epochs=None would never yield anything: read fewer shards, make smaller batches, or pass "
                "across_epochs=True"
            )
        in_all = rows * (self.epochs or 1) if self.across_epochs else rows
        if in_all and not self.items(in_all):
            # The warning's line is here, not the caller's: Python then shows it once a process.
            warnings.warn(
                f"there is no batch to read: {in_all} records make none of {self.size}, and short ones are "
                "left out. Make smaller batches, read fewer shards, or keep the short one",
                UserWarning,
                stacklevel=1,
            )

    def span(self, start: Point) -> Span:
        """Return the span of `epochs` epochs that begins at `start`."""
        end = None if self.epochs is None else start.epoch + self.epochs
        return Span(start, start.epoch, end)

    def resume(self, span: Span, point: Point) -> Span:
        """Return `span` continued from `point`: the end stays if `point` lies within."""
        if span.first <= point.epoch and (span.end is None or point.epoch < span.end):
            return Span(point, span.first, span.end)
        return self.span(point)

    def past_finished(self, shard: Shard, span: Span) -> Span:
        """Return `span`, or the next span if this one has no item left and finished epochs are skipped.

        An item of any shard counts as left: in an uneven epoch only some shards have an item in the last row,
        and all shards must skip together or not at all.
        """
        if not self.skip_finished_epoch or not self._is_finished(shard, span):
            return span
        assert span.end is not None
        return self.span(Point(span.end, 0))

    def warn_if_finished(self, shard: Shard, span: Span) -> None:
        """Log that a resumed span is empty: a trainer may take this for the end of the training."""
        if self._is_finished(shard, span):
            import logging  # slow to import, and rarely needed

            epoch = span.start.epoch
            logging.getLogger("yogadl").warning(
                "nothing is left to read of epoch %d, where the cursor stands, so this iteration is empty. A "
                "loop that counts its epochs by the cursor expects that. For a trainer that counts by itself "
                "pass skip_finished_epoch=True to what makes the loader, or start at "
                "stream.cursor(0, epoch=%d)",
                epoch, span.end,
            )  # fmt: skip

    def _is_finished(self, shard: Shard, span: Span) -> bool:
        """Return whether a span that begins within an epoch has no item on any shard."""
        if span.end is None or not span.start.position:
            return False
        epoch, position = span.start
        rows, more, full = shard.rows(position), span.end - epoch - 1, shard.rows(0)
        if self.across_epochs:
            return not self.items(rows + more * full)
        return not self.items(rows) + more * self.items(full)

    def items(self, rows: int) -> int:
        """Return the number of items made of this many rows of the shard."""
        return rows // self.size if self.drop_remainder else -(-rows // self.size)

    def count(self, shard: Shard, position: int = 0) -> int | None:
        """Return the number of items in `epochs` epochs, the first from a position on; None: without end."""
        if self.epochs is None:
            return None
        first, full, more = shard.own(position), shard.own(0), self.epochs - 1
        return (
            self.items(first + more * full)
            if self.across_epochs
            else self.items(first) + more * self.items(full)
        )

    def reach(self, shard: Shard, span: Span, items: int) -> Point:
        """Return the place of a reader of `span` after it delivered this many items."""
        epoch, position = span.start
        if self.across_epochs:
            rows = items * self.size
            if span.end is not None:
                rows = min(rows, shard.rows(position) + (span.end - epoch - 1) * shard.rows(0))
            return shard.forward(span.start, rows)
        onward, steps = walk(self.items(shard.own(position)), self.items(shard.own(0)), items)
        origin = 0 if onward else position
        rows = min(shard.rows(origin), steps * self.size)
        return Point(epoch + onward, shard.after(origin, rows))

    def records(self, shard: Shard, span: Span, items: int) -> int:
        """Return the number of records in the first `items` items of a span, including padding."""
        first, full = shard.own(span.start.position), shard.own(0)
        if self.across_epochs:
            rows = items * self.size
            return rows if span.end is None else min(rows, first + (span.end - span.start.epoch - 1) * full)
        onward, steps = walk(self.items(first), self.items(full), items)
        before = self._kept(first) + (onward - 1) * self._kept(full) if onward else 0
        return before + min(full if onward else first, steps * self.size)

    def _kept(self, rows: int) -> int:
        """Return the number of an epoch's rows that are in items."""
        return min(rows, self.items(rows) * self.size)
