"""List the rows of each item, so that workers can read them in any order: integers only."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from yogadl._stream.cut import Cut
from yogadl._stream.shard import Point, Shard


class Piece(NamedTuple):
    """Rows `first` to `last - 1` of an epoch, counted from the position `origin`."""

    epoch: int
    origin: int
    first: int
    last: int


# The rows of some consecutive items, epoch by epoch.
Pieces = tuple[Piece, ...]


def pieces_of(shard: Shard, cut: Cut, start: Point, end: int | None, items: int = 1) -> Iterator[Pieces]:
    """Yield the rows from `start` to the epoch `end`, for this many items at a time.

    The rows are the same as those of `Run.chunks`, which cuts them elsewhere.
    """
    size = items * cut.size
    held: list[Piece] = []
    room = size
    for epoch in itertools.count(start.epoch) if end is None else range(start.epoch, end):
        origin = start.position if epoch == start.epoch else 0
        own, row = shard.own(origin), 0
        while row < own:
            last = row + min(room, own - row)
            held.append(Piece(epoch, origin, row, last))
            room -= last - row
            row = last
            if not room:
                yield tuple(held)
                held, room = [], size
        if held and not (cut.across_epochs and epoch + 1 != end):
            left_out = (size - room) % cut.size if cut.drop_remainder else 0
            if whole := _without(held, left_out):
                yield whole
            held, room = [], size


def _without(pieces: list[Piece], rows: int) -> Pieces:
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
