"""Declare what an order is: a map from the positions of an epoch to records."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from yogadl._order.blocks import Blocks


class Order:
    """A map from the positions of an epoch to record indices.

    Subclasses are frozen, hashable, picklable, and safe to call from several threads at once. All orders
    except a mix are one to one, and have an inverse, `positions`.

    Attributes:
        records: The number of positions.
        seed: The seed of the shuffle, or None without one.
    """

    if TYPE_CHECKING:  # at run time, fields or properties of the subclass

        @property
        def records(self) -> int: ...
        @property
        def seed(self) -> int | None: ...

    def indices(self, positions: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """Return the record index at each position, as a new array of the same shape.

        Raises:
            IndexError: If a position is negative, or not less than `records`.
        """
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:  # JSON
        """Return the order's name, version and parameters, for a cursor; neither the seed nor `records`."""
        raise NotImplementedError

    def start(self, epoch: int) -> int:
        """Return the first position of an epoch that this order has."""
        return 0

    def end(self, epoch: int) -> int:
        """Return the position after the last one that is read in an epoch."""
        return self.records

    def follows(self, before: int, epoch: int) -> bool:
        """Return whether one epoch comes next after another."""
        return epoch == before + 1

    @property
    def shuffled_blocks(self) -> Blocks | None:
        """The blocks that the order shuffles, if it does; of a mix, those of each parent."""
        return None

    def neighbours(self, position: int, epoch: int) -> tuple[int, int]:
        """Return the first of the positions that replace a record, and the one after the last."""
        return self.start(epoch), self.records

    def parents(self, positions: NDArray[Any], epoch: int) -> NDArray[np.uint16] | None:
        """Return the number of the parent at each position of a mix, or None of other orders."""
        return None

    @property
    def lanes(self) -> int | None:
        """The number of lanes, if records that follow one another in time come in the same lane; else None.

        Position p is of lane ``p % lanes``, and a batch has one record of each lane.
        """
        return None

    @property
    def change(self) -> tuple[int, dict[str, Any]] | None:
        """The epoch within which the weights of a mix changed, and the order's description for that epoch."""
        return None
