"""Number the items of a shard, records or batches, one after another across epochs: integers only.

Frameworks that request items by number need the number of items, the epoch of item j, and the cursor after a
number of delivered items.
"""

from functools import cached_property
from typing import Any

from yogadl._core.frozen import frozen
from yogadl._stream.cursor import Identity, write_cursor
from yogadl._stream.cut import Cut
from yogadl._stream.shard import Point, Shard


@frozen
class Numbering:
    """The items of a shard, numbered from a start on. Immutable; pickles.

    The numbers continue behind the last epoch, for callers that repeat.

    Args:
        identity: The data and its order.
        shard: The shard.
        start: The place of item 0.
        cut: The number of records in an item, all of one epoch, and the number of epochs.

    Raises:
        ConfigurationError: if there would never be an item, or shards of unequal length would drift into
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
        """The number of items in the first epoch, from the start on."""
        return self.cut.items(self.shard.own(self.start.position))

    @cached_property
    def full(self) -> int:
        """The number of items in a whole epoch."""
        return self.cut.items(self.shard.own(0))

    @cached_property
    def length(self) -> int | None:
        """The number of all items; None: without end."""
        epochs = self.cut.epochs
        return None if epochs is None else self.begun + (epochs - 1) * self.full

    def count(self, epoch: int) -> int:
        """Return the number of items in an epoch; in the first epoch, from the start on."""
        return self.begun if epoch == self.start.epoch else self.full

    def locate(self, number: int) -> tuple[int, int]:
        """Return the epoch of an item, and its number in the epoch.

        Raises:
            ConfigurationError: if the item lies in an epoch that shards of unequal length would not enter
                together.
            IndexError: if the item does not exist.
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
        """Return the place of a reader after it delivered this many items."""
        return self.cut.reach(self.shard, self.cut.span(self.start), delivered)

    def end(self) -> Point:
        """Return the end of the last epoch, which is the same for all shards."""
        assert self.cut.epochs is not None
        last = self.start.epoch + self.cut.epochs - 1
        return self.shard.end(self.start if last == self.start.epoch else Point(last, 0))

    def cursor(self, point: Point) -> dict[str, Any]:
        """Return the cursor for a point."""
        return write_cursor(self.identity, point)
