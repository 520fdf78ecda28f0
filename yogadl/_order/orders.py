"""The source's own order and the global shuffle; `make_order` chooses an order."""

import functools
import operator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from yogadl._core.frozen import frozen
from yogadl._order.blocks import Blocks, Mixture
from yogadl._order.keys import check_records, check_within, derive_key
from yogadl._order.permutation import permute, unpermute
from yogadl.errors import ConfigurationError

GLOBAL_TAG = int.from_bytes(b"global-1", "big")


class Order(Protocol):
    """A map from the positions of an epoch to record indices.

    Implementations are frozen, hashable, picklable, and safe to call from several threads at once. All orders
    except a mix are one to one, and have an inverse, `positions`.
    """

    @property
    def records(self) -> int:
        """The number of positions."""

    def indices(self, positions: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """Return the record index at each position, as a new array of the same shape.

        Raises:
            IndexError: If a position is negative, or not less than `records`.
        """

    def describe(self) -> dict[str, Any]:  # JSON
        """Return the order's name, version and parameters, for a cursor; neither the seed nor `records`."""


@frozen
class SourceOrder:
    """The records in the source's order, in every epoch."""

    records: int

    def __post_init__(self) -> None:
        check_records(self.records)

    def indices(self, positions: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """Return the positions themselves."""
        return check_within(positions, self.records, "position").reshape(np.shape(positions)).copy()

    def positions(self, indices: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """Return the indices themselves."""
        return check_within(indices, self.records, "index").reshape(np.shape(indices)).copy()

    def describe(self) -> dict[str, Any]:
        """Return the order's name and version, for a cursor."""
        return {"name": "source", "version": 1}


@frozen
class GlobalOrder:
    """A shuffle of all records, anew in each epoch, in constant memory."""

    records: int
    seed: int

    def __post_init__(self) -> None:
        check_records(self.records)

    def indices(self, positions: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """Return the record index at each position."""
        flat = check_within(positions, self.records, "position")
        return permute(flat, self.records, _global_key(self.seed, epoch)).reshape(np.shape(positions))

    def positions(self, indices: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """Return the position of each record index."""
        flat = check_within(indices, self.records, "index")
        return unpermute(flat, self.records, _global_key(self.seed, epoch)).reshape(np.shape(indices))

    def describe(self) -> dict[str, Any]:
        """Return the order's name and version, for a cursor."""
        return {"name": "global", "version": 1}


@functools.lru_cache(maxsize=64)
def _global_key(seed: int, epoch: int) -> int:
    return derive_key(GLOBAL_TAG, seed, epoch)


def make_order(records: int, shuffle: bool | Blocks | Mixture, seed: int) -> Order:
    """Return the order for the arguments of a stream.

    Args:
        records: The number of records.
        shuffle: False for the source's order, True for the global shuffle, `Blocks` or a `Mixture`.
        seed: Any integer, of any size and sign; unused without a shuffle.

    Raises:
        ConfigurationError: If `shuffle` is anything else, or `records` or `seed` is no suitable integer.
    """
    try:
        records, seed = operator.index(records), operator.index(seed)
    except TypeError as error:
        raise ConfigurationError(
            f"An order needs integers, not records={records!r} and seed={seed!r}; pass an int as the seed."
        ) from error
    if isinstance(shuffle, Blocks):
        from yogadl._order.windows import BlocksOrder

        return BlocksOrder(records, seed, shuffle)
    if isinstance(shuffle, Mixture):
        from yogadl._order.mix import MixOrder

        return MixOrder(shuffle, seed, make_order)
    if isinstance(shuffle, (bool, np.bool_)):
        return GlobalOrder(records, seed) if shuffle else SourceOrder(records)
    raise ConfigurationError(
        f"shuffle={shuffle!r} is no order; pass True, False or yogadl.Blocks(records=..., window=...)."
    )
