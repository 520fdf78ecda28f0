"""Divide the rows of an epoch among shards, records and batches; integers only.

`Rows` are records to read with their positions in their epochs.
"""

import itertools
import warnings
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from yogadl._core.arguments import bool_argument, int_argument
from yogadl._core.frozen import frozen
from yogadl._core.protocols import Indices, Int64s
from yogadl.errors import ConfigurationError

# Compute the positions that a shard reads, and the place after a number of rows: integers only.
#
# A run starts at position g of an epoch of n records. Its row k consists of the positions g + kR .. g + kR +
# R - 1, and shard r of R is column r. A cursor counts *requested* rows, so that it is equal on all
# shards: after k rows it is at min(n, g + kR), whether or not this shard had a record in the last row.


Remainder = Literal["uneven", "drop", "pad"]


class Point(NamedTuple):
    """A place in the endless order: an epoch, and a position in it counted over all shards."""

    epoch: int
    position: int


def walk(first: int, full: int, count: int) -> tuple[int, int]:
    """Return the number of epochs passed, and the steps in the last one, after `count` steps.

    The first epoch has `first` steps, each later one `full`. The last step of an epoch belongs to that epoch.
    """
    if count <= first:
        return 0, count
    onward, steps = divmod(count - first - 1, full)
    return onward + 1, steps + 1


@frozen
class Shard:
    """The share of an epoch's positions that one reader reads."""

    records: int
    rank: int
    ranks: int
    remainder: Remainder

    def rows(self, position: int) -> int:
        """Return the number of rows from `position` to the epoch's end, the same on every shard."""
        positions = self.records - position
        return positions // self.ranks if self.remainder == "drop" else -(-positions // self.ranks)

    def own(self, position: int) -> int:
        """Return the number of rows from `position` in which this shard has a record: `rows`, or one less."""
        if self.remainder == "uneven":
            return max(0, -(-(self.records - position - self.rank) // self.ranks))
        return self.rows(position)

    def after(self, position: int, rows: int) -> int:
        """Return the position after this many rows from `position`."""
        return min(self.records, position + rows * self.ranks)

    def end(self, start: Point) -> Point:
        """Return where the epoch of `start`, read from there, ends for all shards alike."""
        return Point(start.epoch, self.after(start.position, self.rows(start.position)))

    def forward(self, start: Point, rows: int) -> Point:
        """Return the place after this many rows from `start`, across epochs."""
        onward, steps = walk(self.rows(start.position), self.rows(0), rows)
        return Point(start.epoch + onward, self.after(0 if onward else start.position, steps))

    def delivered(self, start: Point, records: int) -> Point:
        """Return the place of this shard after it delivered this many of its own records, across epochs.

        After all of its records in an epoch, the shard is at the epoch's end, even if other shards have one
        more record. A shard without records moves along with the others.

        Raises:
            ConfigurationError: if no shard has a record.
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
        """Refuse to read across an epoch's end with shards of unequal length.

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
            "size": int_argument("a batch's n (batch_size)", self.size, 1),
            "epochs": None if self.epochs is None else int_argument("epochs", self.epochs, 1),
        }
        for name in ("drop_remainder", "across_epochs", "skip_finished_epoch"):
            checked[name] = bool_argument(name, getattr(self, name))
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
        joined_rows = rows * (self.epochs or 1) if self.across_epochs else rows
        if joined_rows and not self.items(joined_rows):
            # The warning points at this line, not at the caller's, so that Python shows it once a process.
            warnings.warn(
                f"there is no batch to read: {joined_rows} records make none of {self.size}, and short ones "
                "are left out. Make smaller batches, read fewer shards, or keep the short one",
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
        """Log that a resumed span is empty: a trainer may mistake this for the end of the training."""
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
        return not self._items_of_epochs(shard.rows(position), shard.rows(0), span.end - epoch)

    def items(self, rows: int) -> int:
        """Return the number of items made of this many rows of the shard."""
        return rows // self.size if self.drop_remainder else -(-rows // self.size)

    def count(self, shard: Shard, position: int = 0) -> int | None:
        """Return the number of items in `epochs` epochs, the first from a position on; None: without end."""
        if self.epochs is None:
            return None
        return self._items_of_epochs(shard.own(position), shard.own(0), self.epochs)

    def _items_of_epochs(self, first: int, full: int, epochs: int) -> int:
        """Return the number of items in some epochs, given the rows of the first and of each later one."""
        if self.across_epochs:
            return self.items(first + (epochs - 1) * full)
        return self.items(first) + (epochs - 1) * self.items(full)

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
        before = self._rows_in_items(first) + (onward - 1) * self._rows_in_items(full) if onward else 0
        return before + min(full if onward else first, steps * self.size)

    def _rows_in_items(self, rows: int) -> int:
        """Return the number of an epoch's rows that are in items."""
        return min(rows, self.items(rows) * self.size)


# List the rows of each item, so that they can be read in any order, and anywhere: integers only.


class RowRange(NamedTuple):
    """Rows `first` to `last - 1` of an epoch, counted from a place in it."""

    origin: Point
    first: int
    last: int


# The rows of some consecutive items, epoch by epoch.
Pieces = tuple[RowRange, ...]


def pieces_of(shard: Shard, cut: Cut, start: Point, end: int | None, items: int = 1) -> Iterator[Pieces]:
    """Yield the rows from `start` to the epoch `end`, for this many items at a time.

    Only the last rows of an epoch (of all, with `across_epochs`) end with a short item; if the cut drops
    short items, they are left out.
    """
    size = items * cut.size
    held: list[RowRange] = []
    room = size
    for epoch in itertools.count(start.epoch) if end is None else range(start.epoch, end):
        origin = start if epoch == start.epoch else Point(epoch, 0)
        own, row = shard.own(origin.position), 0
        while row < own:
            last = row + min(room, own - row)
            held.append(RowRange(origin, row, last))
            room -= last - row
            row = last
            if not room:
                yield tuple(held)
                held, room = [], size
        if held and not (cut.across_epochs and epoch + 1 != end):
            left_out = (size - room) % cut.size if cut.drop_remainder else 0
            if full_items := _without(held, left_out):
                yield full_items
            held, room = [], size


def _without(pieces: list[RowRange], rows: int) -> Pieces:
    """Return the pieces without this many rows at their end."""
    while rows:
        last = pieces.pop()
        kept = max(last.first, last.last - rows)
        rows -= last.last - kept
        if kept > last.first:
            pieces.append(last._replace(last=kept))
    return tuple(pieces)


def count_of(pieces: Pieces) -> int:
    """Return the number of rows."""
    return sum(piece.last - piece.first for piece in pieces)


Flags = NDArray[np.bool_]


# An epoch, and the ascending positions of rows in it: a range if they are evenly spaced.
Positions = tuple[int, range | Int64s]


class Rows:
    """Records in the order in which they are read, with their positions. Immutable.

    A slice and the result of `take` are `Rows`, too; a slice copies nothing. (The class is no dataclass: each
    batch makes one, and a plain class takes half the time.)

    Args:
        indices: The index of each record.
        pieces: The epoch and the positions of the records, epoch by epoch, in the same order as `indices`.
        records: The number of positions of an epoch. Records at or beyond it are padding, which repeats
            others.
        held: The object that keeps the bytes announced of the records, until these rows were read.
    """

    __slots__ = ("held", "indices", "pieces", "records")

    def __init__(
        self,
        indices: Indices,
        pieces: Sequence[Positions],
        records: int,
        held: tuple[object, ...] = (),
    ) -> None:
        self.indices = indices
        self.pieces = pieces
        self.records = records
        self.held = held

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, chosen: slice) -> "Rows":
        indices, pieces = self.indices[chosen], self.pieces
        if len(pieces) == 1:
            epoch, positions = pieces[0]
            return Rows(indices, ((epoch, positions[chosen]),), self.records, self.held)
        start, stop, step = chosen.indices(len(self.indices))
        chosen_pieces: list[Positions] = []
        first = 0
        for epoch, positions in pieces:
            end = first + len(positions)
            low = start if start >= first else first + (start - first) % step
            if low < min(stop, end):
                chosen_pieces.append((epoch, positions[low - first : min(stop, end) - first : step]))
            first = end
        return Rows(indices, chosen_pieces, self.records, self.held)

    def take(self, numbers: Int64s) -> "Rows":
        """Return some of these rows, given their numbers in ascending order."""
        pieces: list[Positions] = []
        first = 0
        for epoch, positions in self.pieces:
            end = first + len(positions)
            low, high = np.searchsorted(numbers, (first, end)).tolist()
            if low < high:
                within = numbers[low:high] - first
                if isinstance(positions, range):
                    pieces.append((epoch, positions.start + positions.step * within))
                else:
                    pieces.append((epoch, positions[within]))
            first = end
        return Rows(self.indices[numbers], pieces, self.records, self.held)

    @property
    def padding(self) -> Flags:
        """Whether each record is padding, as a new array; at most the last record of each epoch is."""
        flags = np.zeros(len(self.indices), np.bool_)
        end = 0
        for _, positions in self.pieces:
            count = len(positions)
            end += count
            if count and positions[-1] >= self.records:
                flags[end - 1] = True
        return flags


def joined(rows: Sequence[Rows]) -> Rows:
    """Return several rows as one."""
    if len(rows) == 1:
        return rows[0]
    indices = np.concatenate([part.indices for part in rows])
    pieces = [piece for part in rows for piece in part.pieces]
    return Rows(indices, pieces, rows[0].records, tuple(held for part in rows for held in part.held))
