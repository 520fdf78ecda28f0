"""Mix the records of several parents: exact counts of each in every run of 4,096 positions.

`docs/order.md` states the arithmetic, frozen as version 1. `benchmarks/stages.py` measures it.
"""

import functools
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from yogadl._frozen import frozen
from yogadl._order._apportion import apportion
from yogadl._order._blocks import Blocks, Mixture
from yogadl._order._check import check_records, check_within
from yogadl._order._keys import GOLDEN, absorb, derive_key, mix_array
from yogadl._order._permutation import Integers

RUN: Final = 4096
MIX_TAG = int.from_bytes(b"mix-1", "big")
AGAIN_TAG = int.from_bytes(b"again-1", "big")


@frozen
class MixOrder:
    """Mix the parents anew in each epoch; the k-th record of a parent is the k-th of its own order.

    Args:
        mixture: Of what.
        shuffle_seed: What the parents are shuffled by.
        make_order: Returns a parent's order, by its length, how it is shuffled and a seed.
    """

    mixture: Mixture
    shuffle_seed: int
    make_order: Callable[[int, bool | Blocks, int], Any]

    @property
    def seed(self) -> int | None:
        """What the parents are shuffled by, if they are."""
        return self.shuffle_seed if self.mixture.shuffle else None

    @cached_property
    def records(self) -> int:
        """How many positions an epoch has."""
        mixture = self.mixture
        found = reach(mixture.weights, mixture.lengths, mixture.at_end)
        check_records(found)
        return found

    @cached_property
    def _starts(self) -> list[int]:
        """Where each parent's records begin in the concatenation."""
        return [sum(self.mixture.lengths[:number]) for number in range(len(self.mixture.lengths))]

    def indices(self, positions: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """Return at each position which record of the parents' concatenation comes."""
        flat = check_within(positions, self.records, "position")
        parents, turns = np.empty(flat.size, np.uint16), np.empty(flat.size, np.int64)
        runs = flat // RUN
        first = 0
        for last in [*(np.flatnonzero(runs[1:] != runs[:-1]) + 1).tolist(), flat.size]:
            if first < last:
                run = int(runs[first])
                layout = _lay_out(self.mixture, self.records, epoch, run)
                within = flat[first:last] - run * RUN
                layout.parents.take(within, out=parents[first:last])
                layout.turns.take(within, out=turns[first:last])
            first = last
        found = np.empty(flat.size, np.int64)
        for number, start in enumerate(self._starts):
            its = np.flatnonzero(parents == number)
            if its.size:
                found[its] = self._of_parent(number, turns[its], epoch) + start
        return found.reshape(np.shape(positions))

    def _of_parent(self, number: int, turns: Integers, epoch: int) -> Integers:
        """Return which of a parent's records come in these turns of it."""
        records = self.mixture.lengths[number]
        found: Integers
        if int(turns.max()) < records:
            found = self._order(records, 0).indices(turns, epoch)
            return found
        again, turns = np.divmod(turns, np.int64(records))
        found = np.empty(turns.size, np.int64)
        for time in np.unique(again).tolist():
            its = again == time
            found[its] = self._order(records, time).indices(turns[its], epoch)
        return found

    def _order(self, records: int, time: int) -> Any:  # an `Order`, which stands above this
        """Return the order of a parent's records, read for the so many-th time in an epoch."""
        seed = derive_key(AGAIN_TAG, self.shuffle_seed, time) if time else self.shuffle_seed
        return self.make_order(records, self.mixture.shuffle, seed)

    def describe(self) -> dict[str, Any]:
        """Return the order's name, version and parameters, for a cursor."""
        mixture = self.mixture
        return {
            "name": "mix",
            "version": 1,
            "weights": list(mixture.weights),
            "lengths": list(mixture.lengths),
            "at_end": mixture.at_end,
            "seed": mixture.seed,
            "parents": self._order(0, 0).describe(),
        }


def reach(weights: Sequence[int], left: Sequence[int], at_end: str) -> int:
    """Return how many positions there are until the end, of parents that have so many records left.

    With "stop" the most for which no parent needs more; with "repeat" the least that give all of each. A last
    run is only as long as needs no parent to give less than nothing.
    """
    whole = sum(weights)
    each = list(zip(weights, left, strict=True))
    if at_end == "stop":
        size = min(((records + 1) * whole - 1) // weight for weight, records in each)
    else:
        size = max(((records - 1) * whole) // weight + 1 if records > 0 else 0 for weight, records in each)
    while True:
        counts = apportion(size, weights)
        before = apportion(size - size % RUN, weights)
        fits = (
            all(count <= records for count, records in zip(counts, left, strict=True))
            if at_end == "stop"
            else all(count >= records for count, records in zip(counts, left, strict=True))
        )
        if fits and all(count >= least for count, least in zip(counts, before, strict=True)):
            return size
        size += -1 if at_end == "stop" else 1


@frozen
class _Layout:
    """Which parent's turn each position of a run is, and which turn of it in the epoch."""

    parents: NDArray[np.uint16]
    turns: Integers


# Of the runs that a few readers go through side by side: 40 KiB each. Read-only, and depending on nothing
# else, so threads and forked processes may share them.
@functools.lru_cache(maxsize=32)
def _lay_out(mixture: Mixture, records: int, epoch: int, run: int) -> _Layout:
    size = min(RUN, records - run * RUN)
    before = apportion(run * RUN, mixture.weights)
    after = apportion(run * RUN + size, mixture.weights)
    counts = [last - first for first, last in zip(before, after, strict=True)]
    words = np.arange(1, size + 1, dtype=np.uint64)
    np.multiply(words, np.uint64(GOLDEN), out=words)
    np.add(words, np.uint64(absorb(derive_key(MIX_TAG, mixture.seed, epoch), run)), out=words)
    mix_array(words)
    parents, turns = np.empty(size, np.uint16), np.empty(size, np.int64)
    parents[np.argsort(words)] = np.repeat(np.arange(len(counts), dtype=np.uint16), counts)
    # Sorting 16 bits takes a time that grows with their number alone, whatever the number of parents.
    in_turn = [np.arange(first, last) for first, last in zip(before, after, strict=True)]
    turns[np.argsort(parents, kind="stable")] = np.concatenate(in_turn)
    parents.flags.writeable = turns.flags.writeable = False
    return _Layout(parents, turns)
