"""Compute which positions a shard reads, and how far a number of items reaches: integers only.

A run starts at position g of an epoch of n records. Its row k is the positions g + kR .. g + kR + R - 1
and shard r of R is column r. A cursor counts rows *asked for*, in step on every shard: after k rows it
stands at min(n, g + kR), whether or not this shard had a record in the last of them.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from yogadl.errors import ConfigurationError

Remainder = Literal["uneven", "drop", "pad"]


class Point(NamedTuple):
    """A place in the endless order: an epoch, and a position in it counted over all shards."""

    epoch: int
    position: int


class Span(NamedTuple):
    """What one iterator reads: from `start` up to the epoch `end`, or for ever.

    `first` is the first epoch that it claimed; a cursor loaded into it may move `start` about between
    `first` and `end`.
    """

    start: Point
    first: int
    end: int | None


def walk(first: int, full: int, count: int) -> tuple[int, int]:
    """Return (epochs onward, steps into that epoch) after `count` steps.

    The first epoch has `first` steps, each later one `full`. The last step of an epoch stays in it.
    """
    if count <= first:
        return 0, count
    onward, steps = divmod(count - first - 1, full)
    return onward + 1, steps + 1


@dataclass(frozen=True)
class Shard:
    """Say which positions of an epoch are this reader's."""

    records: int
    rank: int
    ranks: int
    remainder: Remainder

    def rows(self, position: int) -> int:
        """Count the rows from `position` to the epoch's end, the same on every shard."""
        left = self.records - position
        return left // self.ranks if self.remainder == "drop" else -(-left // self.ranks)

    def own(self, position: int) -> int:
        """Count the rows from `position` in which this shard has a record: `rows`, or one less."""
        if self.remainder == "uneven":
            return max(0, -(-(self.records - position - self.rank) // self.ranks))
        return self.rows(position)

    def after(self, position: int, rows: int) -> int:
        """Return the position that stands after so many rows from `position`."""
        return min(self.records, position + rows * self.ranks)

    def end(self, start: Point) -> Point:
        """Return where the epoch of `start` ends for all shards alike, read from there on."""
        return Point(start.epoch, self.after(start.position, self.rows(start.position)))

    def forward(self, start: Point, rows: int) -> Point:
        """Return where so many rows from `start` lead, across epochs."""
        onward, steps = walk(self.rows(start.position), self.rows(0), rows)
        return Point(start.epoch + onward, self.after(0 if onward else start.position, steps))

    def delivered(self, start: Point, records: int) -> Point:
        """Return where this shard stands once it has handed out so many of its own records, across epochs.

        All that it has in an epoch lead to the epoch's end, also where other shards have one more. One that
        has none goes along with those.

        Raises:
            ConfigurationError: if no shard has any to get there by.
        """
        first, full = self.own(start.position), self.own(0)
        if records > first and not full:
            if self.rows(0):
                return self.forward(start, records)
            raise ConfigurationError(
                f"a shard of {self.records} records over {self.ranks} shards yields none, so "
                f"{records} can't have been delivered; check start_offset (or delivered) and num_shards"
            )
        onward, steps = walk(first, full, records)
        origin = 0 if onward else start.position
        is_all = steps and steps == self.own(origin)
        return Point(start.epoch + onward, self.after(origin, self.rows(origin) if is_all else steps))

    def require_step(self, start: Point, end: int | None) -> None:
        """Refuse to cross an epoch's end with shards of unequal length.

        Raises:
            ConfigurationError: if more than one epoch is to be read and one of them is uneven.
        """
        if self.remainder != "uneven" or end == start.epoch + 1:
            return
        for position in (0, start.position):
            if (self.records - position) % self.ranks:
                raise ConfigurationError(
                    f"{self.records - position} records (from position {position} of {self.records}) over "
                    f"{self.ranks} shards are uneven, so the shards would drift into different epochs: pass "
                    "drop_shard_remainder=True or pad_shard_remainder=True, or read one epoch at a time"
                )


@dataclass(frozen=True)
class Cut:
    """Say how a shard's rows are cut into items (records or batches), and for how many epochs.

    Args:
        size: How many records make an item.
        drop_remainder: Whether an epoch's last item is left out if it is short.
        epochs: How many epochs one iterator reads; None: it never ends.
        across_epochs: Whether an epoch's last item is filled from the next epoch.
        skip_finished_epoch: Whether each iterator goes on where the last one stopped, with the next epoch
            only if nothing is left of that one. Otherwise each reads the next epoch, and the first after a
            cursor the rest of one, which may be nothing.
    """

    size: int = 1
    drop_remainder: bool = False
    epochs: int | None = 1
    across_epochs: bool = False
    skip_finished_epoch: bool = False

    def span(self, start: Point) -> Span:
        """Return the span of `epochs` epochs that begins at `start`."""
        end = None if self.epochs is None else start.epoch + self.epochs
        return Span(start, start.epoch, end)

    def resume(self, span: Span, point: Point) -> Span:
        """Return `span` as it goes on from `point`: its end stays if `point` lies within."""
        if span.first <= point.epoch and (span.end is None or point.epoch < span.end):
            return Span(point, span.first, span.end)
        return self.span(point)

    def past_finished(self, shard: Shard, span: Span) -> Span:
        """Return `span`, or the one after it if no item is left of it and such are skipped.

        An item that any shard has is left: in the last row of an uneven epoch only some have one, and all
        must skip together or not at all.
        """
        if not self.skip_finished_epoch or span.end is None or not span.start.position:
            return span
        epoch, position = span.start
        rows, more, full = shard.rows(position), span.end - epoch - 1, shard.rows(0)
        left = (
            self.items(rows + more * full)
            if self.across_epochs
            else self.items(rows) + more * self.items(full)
        )
        return span if left else self.span(Point(span.end, 0))

    def items(self, rows: int) -> int:
        """Count the items that so many rows of this shard make."""
        return rows // self.size if self.drop_remainder else -(-rows // self.size)

    def reach(self, shard: Shard, span: Span, items: int) -> Point:
        """Return where a reader of `span` stands once so many items were delivered."""
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
