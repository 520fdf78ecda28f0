"""Say which records are to be read, and where in which epoch each comes: what `Run.read` takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from yogadl._interfaces import Indices

Flags = NDArray[np.bool_]


class Piece(NamedTuple):
    """Some rows of one epoch, at ascending positions: mostly evenly spaced, so that a range says them."""

    epoch: int
    positions: range | Indices


@dataclass(frozen=True, slots=True)
class Rows:
    """Records in the order in which they are read, and where each comes. Immutable.

    A slice and `take` are rows, too; a slice copies nothing.

    Args:
        indices: Which record each is.
        pieces: At which position of which epoch it comes, epoch by epoch: as many, in the same order.
        records: How many an epoch has. Whoever stands behind them is padding: a record that repeats another.
    """

    indices: Indices
    pieces: Sequence[Piece]
    records: int

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, chosen: slice) -> "Rows":
        indices = self.indices[chosen]
        if len(self.pieces) == 1:  # benchmarks/gather.py: once a read
            ((epoch, positions),) = self.pieces
            return Rows(indices, (Piece(epoch, positions[chosen]),), self.records)
        start, stop, step = chosen.indices(len(self.indices))
        pieces, first = [], 0
        for epoch, positions in self.pieces:
            end = first + len(positions)
            low = start if start >= first else first + (start - first) % step
            if low < min(stop, end):
                pieces.append(Piece(epoch, positions[low - first : min(stop, end) - first : step]))
            first = end
        return Rows(indices, pieces, self.records)

    def take(self, numbers: Indices) -> "Rows":
        """Return some of these rows, given their numbers in ascending order."""
        pieces, first = [], 0
        for epoch, positions in self.pieces:
            end = first + len(positions)
            low, high = np.searchsorted(numbers, (first, end)).tolist()
            if low < high:
                within = numbers[low:high] - first
                if isinstance(positions, range):
                    pieces.append(Piece(epoch, positions.start + positions.step * within))
                else:
                    pieces.append(Piece(epoch, positions[within]))
            first = end
        return Rows(self.indices[numbers], pieces, self.records)

    @property
    def padding(self) -> Flags:
        """Which of them repeat a record to fill the shard, as a new array: at most the last of each epoch."""
        flags = np.zeros(len(self.indices), np.bool_)
        end = 0
        for _, positions in self.pieces:
            end += len(positions)
            if len(positions) and positions[-1] >= self.records:
                flags[end - 1] = True
        return flags


def joined(rows: Sequence[Rows]) -> Rows:
    """Return the rows of several as one."""
    if len(rows) == 1:
        return rows[0]
    indices = np.concatenate([some.indices for some in rows])
    return Rows(indices, [piece for some in rows for piece in some.pieces], rows[0].records)
