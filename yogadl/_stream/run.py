"""Say which records a shard reads, row by row: the source, its order and the shard together."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from yogadl._interfaces import Indices, RandomAccess
from yogadl._order import Order
from yogadl._stream.cursor import Identity
from yogadl._stream.cut import Cut
from yogadl._stream.numbering import Numbering
from yogadl._stream.shard import Point, Shard

# The order costs some 30 us a call and some 5 ns an index, so it is asked for many at a time, from the
# first on: 0.1 ms. (Chunks that begin small and grow were slower on large records: each one's arrays
# come to lie between two batches' memory, which is then faulted in anew. Measured with benchmarks/.)
INDICES = 16384

Chunk = tuple[Indices, NDArray[np.bool_]]


@dataclass(frozen=True)
class Run:
    """The records of one shard, in order, from `start` on. Immutable; pickles if the source does."""

    source: RandomAccess
    order: Order
    shard: Shard
    start: Point
    seed: int | None
    skip_shuffle_at_epoch_end: bool

    def identity(self) -> Identity:
        """Return what a cursor of this run must match."""
        return Identity(
            records=self.shard.records,
            fingerprint=self.source.fingerprint,
            order=self.order.describe(),
            seed=self.seed,
            skip_shuffle_at_epoch_end=self.skip_shuffle_at_epoch_end,
        )

    def numbering(self, cut: Cut) -> Numbering:
        """Return the items that the rows are cut into, numbered from `start` on."""
        return Numbering(self.identity(), self.shard, self.start, cut)

    def origin(self, epoch: int) -> int:
        """Return the position that the rows of an epoch count from: the run's own, or 0."""
        return self.start.position if epoch == self.start.epoch else 0

    def chunk(self, point: Point, first: int, last: int) -> Chunk:
        """Return the indices of rows first .. last - 1 counted from `point`, and which are padding."""
        shard = self.shard
        origin, step = point.position + shard.rank, shard.ranks
        positions = np.arange(origin + first * step, origin + last * step, step, dtype=np.int64)
        padding = np.zeros(last - first, np.bool_)
        if last > first and positions[-1] >= shard.records:  # only an epoch's last row can stick out
            positions[-1] %= shard.records
            padding[-1] = True
        epoch = 0 if self.skip_shuffle_at_epoch_end else point.epoch
        return self.order.indices(positions, epoch), padding

    def chunks(self, cut: Cut, start: Point, end: int | None) -> Iterator[Chunk]:
        """Yield all indices from `start` to the epoch `end`, many items' worth at a time.

        Only the last chunk of an epoch (of all, with `across_epochs`) ends in a short item; where the
        cut drops that, the chunk goes without.
        """
        # Tiny epochs: looking a thousand of them ahead to fill a chunk would cost a call each.
        limit = min(INDICES, 16 * self.shard.own(0)) if cut.across_epochs else INDICES
        size = max(1, limit // cut.size) * cut.size
        pieces: list[Chunk] = []
        held = 0
        for epoch in itertools.count(start.epoch) if end is None else range(start.epoch, end):
            point = Point(epoch, start.position if epoch == start.epoch else 0)
            own, row = self.shard.own(point.position), 0
            while row < own:
                step = min(size - held, own - row)
                pieces.append(self.chunk(point, row, row + step))
                row, held = row + step, held + step
                if held == size:
                    yield _join(pieces, held)
                    pieces, held = [], 0
            if held and not (cut.across_epochs and epoch + 1 != end):
                whole = held - held % cut.size if cut.drop_remainder else held
                if whole:
                    yield _join(pieces, whole)
                pieces, held = [], 0


def _join(pieces: list[Chunk], count: int) -> Chunk:
    """Return the first `count` of several chunks as one."""
    if len(pieces) == 1:
        indices, padding = pieces[0]
        return indices[:count], padding[:count]
    return (
        np.concatenate([indices for indices, _ in pieces])[:count],
        np.concatenate([padding for _, padding in pieces])[:count],
    )
