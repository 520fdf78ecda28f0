"""Compute the positions that a shard reads, and the place after a number of rows: integers only.

A run starts at position g of an epoch of n records. Its row k consists of the positions
g + kR .. g + kR + R - 1, and shard r of R is column r. A cursor counts *requested* rows, in step on every
shard: after k rows it stands at min(n, g + kR), whether or not this shard had a record in the last row.
"""

from typing import Literal, NamedTuple

from yogadl._core.frozen import frozen
from yogadl.errors import ConfigurationError

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
        left = self.records - position
        return left // self.ranks if self.remainder == "drop" else -(-left // self.ranks)

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
