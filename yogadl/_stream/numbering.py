"""Number the items of a shard, records or batches, one after another across epochs: integers only.

What frameworks that ask for items by number need to know: how many there are, which epoch the j-th is of, and
where a cursor stands once so many were delivered.
"""

from functools import cached_property
from typing import Any

from yogadl._frozen import frozen
from yogadl._stream.cursor import Identity, write_cursor
from yogadl._stream.cut import Cut
from yogadl._stream.shard import Point, Shard


@frozen
class Numbering:
    """The items of a shard, numbered from a start on. Immutable; pickles.

    Behind the last epoch the numbers go on, for callers that repeat.

    Args:
        identity: The data and its order.
        shard: Whose share.
        start: Where item 0 is.
        cut: How many records make an item, all of one epoch, and how many epochs there are.

    Raises:
        ConfigurationError: if there would never be any, or shards of unequal length would drift into
            different epochs.

    Example:
        >>> from yogadl._stream import Cut, Numbering, Point, Shard
        >>> shard = Shard(records=5, rank=0, ranks=1, remainder="uneven")
        >>> batches = Numbering(None, shard, Point(0, 2), Cut(size=2, epochs=3))
        >>> batches.begun, batches.full, batches.length
        (2, 3, 8)
        >>> batches.locate(3), batches.reach(3)
        ((1, 1), Point(epoch=1, position=2))
    """

    identity: Identity
    shard: Shard
    start: Point
    cut: Cut

    def __post_init__(self) -> None:
        assert not self.cut.across_epochs
        self.cut.require_items(self.shard)
        self.shard.require_step(self.start, self.cut.span(self.start).end)

    @cached_property
    def begun(self) -> int:
        """How many items the epoch of the start has, from there on."""
        return self.cut.items(self.shard.own(self.start.position))

    @cached_property
    def full(self) -> int:
        """How many a whole epoch has."""
        return self.cut.items(self.shard.own(0))

    @cached_property
    def length(self) -> int | None:
        """How many there are; None: without end."""
        epochs = self.cut.epochs
        return None if epochs is None else self.begun + (epochs - 1) * self.full

    def count(self, epoch: int) -> int:
        """Count the items of an epoch; of the one of the start, those from there on."""
        return self.begun if epoch == self.start.epoch else self.full

    def locate(self, number: int) -> tuple[int, int]:
        """Return (epoch, number in it) of an item.

        Raises:
            ConfigurationError: if it lies in an epoch that shards of unequal length would not enter together.
            IndexError: if there is none.
        """
        if number < self.begun:
            return self.start.epoch, number
        self.shard.require_step(self.start, None)
        if not self.full:
            raise IndexError(f"there is no item {number}: an epoch of this shard has none")
        onward, inside = divmod(number - self.begun, self.full)
        return self.start.epoch + 1 + onward, inside

    def position(self, epoch: int, inside: int) -> int:
        """Return the position of the first record of an item, given its number in the epoch."""
        origin = self.start.position if epoch == self.start.epoch else 0
        return origin + inside * self.cut.size * self.shard.ranks + self.shard.rank

    def reach(self, delivered: int) -> Point:
        """Return where a reader stands once so many items were delivered."""
        return self.cut.reach(self.shard, self.cut.span(self.start), delivered)

    def end(self) -> Point:
        """Return where the last epoch ends, for all shards alike."""
        assert self.cut.epochs is not None
        last = self.start.epoch + self.cut.epochs - 1
        return self.shard.end(self.start if last == self.start.epoch else Point(last, 0))

    def cursor(self, point: Point) -> dict[str, Any]:
        """Return the cursor that stands at a point."""
        return write_cursor(self.identity, point)
