"""Say which items a loader reads, one after another across epochs, and where a number of them leads.

Integers and JSON only: Grain's checkpoints hold the text of a course, and a cursor is made of nothing else.
"""

import json
import sys
from typing import Any

from yogadl._order import derive_key
from yogadl._stream import RecordStream, cursor
from yogadl._stream.arguments import flag, whole
from yogadl._stream.batch import make_cut
from yogadl._stream.cursor import Identity
from yogadl._stream.rows import Cut, Point, Shard
from yogadl.errors import CursorError

_TAG = int.from_bytes(b"grain-1", "big")


class Course:
    """The items of a shard, records or batches, numbered from the stream's start on.

    Immutable; pickles. Behind its last epoch an endless order goes on, for whoever repeats.

    Args:
        identity: The data and its order.
        shard: Whose share.
        start: Where item 0 is.
        cut: How many records make an item, and how many epochs there are.

    Attributes:
        length: How many items there are; `sys.maxsize` if it is endless.
    """

    def __init__(self, identity: Identity, shard: Shard, start: Point, cut: Cut) -> None:
        self.identity = identity
        self.shard = shard
        self.start = start
        self.cut = cut
        self._begun = cut.items(shard.own(start.position))
        self._full = cut.items(shard.own(0))
        self.length = sys.maxsize
        if cut.epochs is not None:
            self.length = self._begun + (cut.epochs - 1) * self._full
        shard.require_step(start, cut.span(start).end)

    def locate(self, number: int) -> tuple[int, int]:
        """Return (epoch, number in it) of an item.

        Raises:
            ConfigurationError: if it lies in an epoch that shards of unequal length would not enter together.
            IndexError: if there is none.
        """
        if number < self._begun:
            return self.start.epoch, number
        self.shard.require_step(self.start, None)
        if not self._full:
            raise IndexError(f"there is no item {number}: an epoch of this shard has none")
        onward, rest = divmod(number - self._begun, self._full)
        return self.start.epoch + 1 + onward, rest

    def random_key(self, number: int) -> int:
        """Return what the randomness of an item is keyed by: seed, epoch and its first record's position."""
        epoch, inside = self.locate(number)
        origin = self.start.position if epoch == self.start.epoch else 0
        position = origin + inside * self.cut.size * self.shard.ranks + self.shard.rank
        return derive_key(_TAG, self.identity.seed or 0, epoch, position)

    def cursor(self, delivered: int, *, is_short: bool = False) -> dict[str, Any]:
        """Return the cursor that stands where so many items were delivered.

        Args:
            delivered: How many.
            is_short: Whether more were asked for, by a batch that was to be larger: then a shard that has one
                record less than others stands at the end with them.
        """
        epochs = self.cut.epochs
        if is_short and epochs is not None and delivered == self.length:
            origin = self.start.position if epochs == 1 else 0
            end = self.shard.after(origin, self.shard.rows(origin))
            return cursor.write(self.identity, Point(self.start.epoch + epochs - 1, end))
        point = self.cut.reach(self.shard, self.cut.span(self.start), delivered)
        return cursor.write(self.identity, point)

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain JSON."""
        return {
            "start": cursor.write(self.identity, self.start),
            "shard": [self.shard.rank, self.shard.ranks, self.shard.remainder],
            "cut": [self.cut.size, self.cut.drop_remainder, self.cut.epochs],
        }

    @classmethod
    def from_json(cls, described: Any) -> "Course":  # Any: it comes from a file
        """Return what `to_json` described.

        Raises:
            CursorError: if it is nothing of the kind.
        """
        try:
            start, (rank, ranks, remainder) = described["start"], described["shard"]
            size, drop_remainder, epochs = described["cut"]
            identity = Identity(
                start["records"],
                start["fingerprint"],
                start["order"],
                start["seed"],
                start["skip_shuffle_at_epoch_end"],
            )
            point = cursor.read(identity, start)
            shard = Shard(identity.records, whole("rank", rank), whole("ranks", ranks, 1), remainder)
            cut = Cut(whole("size", size, 1), flag("drop_remainder", drop_remainder), epochs)
            return cls(identity, shard, point, cut)
        except (KeyError, TypeError, ValueError) as error:
            raise CursorError(f"the state's sampler is damaged: {json.dumps(described)[:200]}") from error


def course_of(stream: RecordStream, size: int, drop_remainder: bool, epochs: int | None) -> Course:
    """Return the course of a stream's records (`size` 1) or batches.

    Raises:
        ConfigurationError: if the arguments make no sense, or shards of unequal length would drift apart.
    """
    run = stream.run
    cut = make_cut(run, size, flag("drop_remainder", drop_remainder), epochs, False)
    return Course(run.identity(), run.shard, run.start, cut)
