"""The records to read, and their positions in their epochs: the argument of `Run.read`."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from yogadl._core.protocols import Indices

Flags = NDArray[np.bool_]


# An epoch, and the ascending positions of rows in it: a range if they are evenly spaced.
Positions = tuple[int, range | Indices]


class Rows:
    """Records in the order in which they are read, with their positions. Immutable.

    A slice and the result of `take` are `Rows`, too; a slice copies nothing. (The class is no dataclass: each
    batch makes one, and a plain class takes half the time.)

    Args:
        indices: The index of each record.
        pieces: The epoch and the positions of the records, epoch by epoch, in the same order as `indices`.
        records: The number of positions of an epoch. Records at or beyond it are padding, which repeats
            others.
    """

    __slots__ = ("indices", "pieces", "records")

    def __init__(self, indices: Indices, pieces: Sequence[Positions], records: int) -> None:
        self.indices = indices
        self.pieces = pieces
        self.records = records

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, chosen: slice) -> "Rows":
        indices, pieces = self.indices[chosen], self.pieces
        if len(pieces) == 1:
            epoch, positions = pieces[0]
            return Rows(indices, ((epoch, positions[chosen]),), self.records)
        start, stop, step = chosen.indices(len(self.indices))
        chosen_pieces: list[Positions] = []
        first = 0
        for epoch, positions in pieces:
            end = first + len(positions)
            low = start if start >= first else first + (start - first) % step
            if low < min(stop, end):
                chosen_pieces.append((epoch, positions[low - first : min(stop, end) - first : step]))
            first = end
        return Rows(indices, chosen_pieces, self.records)

    def take(self, numbers: Indices) -> "Rows":
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
        return Rows(self.indices[numbers], pieces, self.records)

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
    return Rows(indices, [piece for part in rows for piece in part.pieces], rows[0].records)
