"""Mix the records of several parents, with exact counts of each in every run of 4,096 positions.

A run is 4,096 neighbouring positions. A stretch is the part of an epoch over which one set of weights holds.
A turn of a parent is a position at which one of its records comes; turns are counted within the epoch.

`docs/explanation/order.md` states the arithmetic, frozen as version 1. `benchmarks/stages.py` measures it.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from yogadl._core.frozen import frozen
from yogadl._order.blocks import Blocks, Drawn, Mixture
from yogadl._order.keys import (
    GOLDEN,
    RECORDS_LIMIT,
    absorb,
    apportion,
    bounds_reached,
    check_records,
    check_within,
    derive_key,
    mix_array,
)
from yogadl._order.order import Order
from yogadl._order.permutation import Integers
from yogadl.errors import ConfigurationError

RUN_BITS: Final = 12
RUN: Final = 1 << RUN_BITS
MOST_BITS: Final = 256  # of a weight
MOST_CHANGES: Final = 100  # of the weights within an epoch
MIX_TAG = int.from_bytes(b"mix-1", "big")
AGAIN_TAG = int.from_bytes(b"again-1", "big")


class Stretch(NamedTuple):
    """The positions of an epoch over which one set of weights holds: all, unless weights change."""

    weights: tuple[int, ...]
    number: int  # of this stretch in the epoch
    first: int  # position
    size: int  # positions until the epoch's end
    taken: tuple[int, ...]  # records of each parent in the earlier stretches

    def counts(self, size: int) -> list[int]:
        """Return how many records of each parent the epoch has up to position `size` of the stretch.

        `size` must end a run, or the epoch.
        """
        counts = apportion(size, self.weights)
        return [taken + count for taken, count in zip(self.taken, counts, strict=True)]


@frozen
class MixOrder(Order):
    """A mix of the parents, anew in each epoch. The records of each parent come in that parent's own order.

    Args:
        mixture: The parents' lengths and weights, and the other settings of the mix.
        shuffle_seed: The seed of the parents' shuffles.
        make_order: Returns the order of a parent, given its length, its shuffle and a seed.
        epoch: The epoch within which the weights changed, if `past` is not empty.
        past: The earlier weights in that epoch, each with the position up to which it held.
    """

    mixture: Mixture
    shuffle_seed: int
    make_order: Callable[[int, bool | Blocks | Drawn, int], Any]
    epoch: int = 0
    past: tuple[tuple[tuple[int, ...], int], ...] = ()

    @property
    def seed(self) -> int | None:
        """The seed of the parents' shuffles and draws, if there are any."""
        return self.shuffle_seed if self.mixture.shuffle or self.mixture.is_drawn else None

    @cached_property
    def records(self) -> int:
        """The number of positions of an epoch."""
        return self._stretches[0].size if not self.past else replace(self, past=()).records

    @cached_property
    def _stretches(self) -> list[Stretch]:
        """The stretches of the epoch within which the weights changed; without a change, the single stretch.

        Positions are counted so that the epoch ends where an epoch of the current weights alone would end.
        """
        mixture, stretches = self.mixture, list[Stretch]()
        taken = (0,) * len(mixture.lengths)
        for number, (weights, last) in enumerate([*self.past, (mixture.weights, 0)]):
            remaining = [length - count for length, count in zip(mixture.lengths, taken, strict=True)]
            size = reach(weights, remaining, mixture.at_end)
            epoch_size = reach(weights, mixture.lengths, mixture.at_end) if number else size
            check_records(epoch_size)
            stretch = Stretch(weights, number, epoch_size - size, size, taken)
            stretches.append(stretch)
            if number < len(self.past):
                if not stretch.first < last < epoch_size:
                    raise ConfigurationError("the cursor's changes of weights lie outside of the epoch")
                taken = self._taken(stretch, last - stretch.first)
        return stretches

    def _taken(self, stretch: Stretch, size: int) -> tuple[int, ...]:
        """Return how many records of each parent the epoch has up to position `size` of a stretch."""
        run, within = divmod(size, RUN)
        counts = np.array(stretch.counts(run * RUN), np.int64)
        if within:
            parents = _lay_out(self.mixture.seed, self.epoch, stretch, run).parents[:within]
            counts += np.bincount(parents, minlength=len(counts))
        return tuple(counts.tolist())

    def changed(self, epoch: int, position: int, mixture: Mixture) -> tuple["MixOrder", int]:
        """Return the order that continues this one with other weights, and the position at which it begins.

        Raises:
            ConfigurationError: if the weights changed too often in the epoch.
        """
        past = self.past if epoch == self.epoch else ()
        new = MixOrder(mixture, self.shuffle_seed, self.make_order)
        if position >= self.records:
            return new, new.records
        if position > self._stretch(epoch).first:
            past = (*past, (self.mixture.weights, position))
        if len(past) > MOST_CHANGES:
            raise ConfigurationError(
                f"the weights of a mix can change at most {MOST_CHANGES} times within an epoch: keep them "
                "until the next epoch"
            )
        new = replace(new, epoch=epoch if past else 0, past=past)
        return new, new.start(epoch)

    def start(self, epoch: int) -> int:
        """Return the first position of an epoch that this order has: where the weights changed last, or 0."""
        return self._stretch(epoch).first

    def _stretch(self, epoch: int) -> Stretch:
        if epoch == self.epoch or not self.past:
            return self._stretches[-1]
        return replace(self, past=())._stretches[0]

    def indices(self, positions: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """Return at each position the index of its record in the parents' concatenation.

        Raises:
            IndexError: if a position does not exist, or came before the weights changed.
        """
        flat = check_within(positions, self.records, "position")
        stretch = self._stretch(epoch)
        if stretch.first:
            flat = flat - stretch.first
            if flat.size and int(flat.min()) < 0:
                raise IndexError(
                    f"epoch {epoch} of this mix begins at position {stretch.first}: its weights changed there"
                )
        parents, turns = self._turns(flat, epoch, stretch)
        found = np.empty(flat.size, np.int64)
        start = 0
        for number, length in enumerate(self.mixture.lengths):
            its = np.flatnonzero(parents == number)
            if its.size:
                found[its] = self._of_parent(number, turns.take(its), epoch) + start
            start += length
        return found.reshape(np.shape(positions))

    def parents(self, positions: Integers, epoch: int) -> NDArray[np.uint16]:
        """Return the number of the parent at each position, none of them before `start`."""
        return self.turns(positions, epoch)[0]

    def turns(self, positions: Integers, epoch: int) -> tuple[NDArray[np.uint16], Integers]:
        """Return the parent at each position, none of them before `start`, and the number of its turn."""
        stretch = self._stretch(epoch)
        return self._turns(positions - stretch.first, epoch, stretch)

    def all_turns(self, epoch: int, number: int) -> int:
        """Return the number of a parent's turns in an epoch, those before the weights changed among them."""
        stretch = self._stretch(epoch)
        return stretch.counts(stretch.size)[number]

    @property
    def shuffled_blocks(self) -> Blocks | None:
        """The blocks of each parent, if these are shuffled so."""
        return self.mixture.shuffle if isinstance(self.mixture.shuffle, Blocks) else None

    def _turns(self, flat: Integers, epoch: int, stretch: Stretch) -> tuple[NDArray[np.uint16], Integers]:
        """Return at each position of a stretch its parent, and the number of the parent's turn."""
        parents, turns = np.empty(flat.size, np.uint16), np.empty(flat.size, np.int64)
        runs = flat >> RUN_BITS
        first = 0
        for last in [*(np.flatnonzero(runs[1:] != runs[:-1]) + 1).tolist(), flat.size]:
            if first < last:
                run = int(runs[first])
                layout = _lay_out(self.mixture.seed, epoch, stretch, run)
                within = flat[first:last] - (run << RUN_BITS)
                layout.parents.take(within, out=parents[first:last])
                layout.turns.take(within, out=turns[first:last])
            first = last
        return parents, turns

    def _of_parent(self, number: int, turns: Integers, epoch: int) -> Integers:
        """Return the indices of a parent's records that come in these turns of the parent."""
        records = self.mixture.lengths[number]
        found: Integers
        if int(turns.max()) < records:
            found = self.order_of_pass(records, 0).indices(turns, epoch)
            return found
        passes, turns = np.divmod(turns, np.int64(records))  # the parent is read several times in an epoch
        found = np.empty(turns.size, np.int64)
        for number_of_pass in np.unique(passes).tolist():
            in_pass = passes == number_of_pass
            found[in_pass] = self.order_of_pass(records, number_of_pass).indices(turns[in_pass], epoch)
        return found

    def order_of_pass(
        self, records: int, number_of_pass: int
    ) -> Any:  # an `Order`, which a higher module defines
        """Return the order of a parent's records in one pass over them; an epoch's passes count from 0."""
        seed = self.shuffle_seed
        if number_of_pass:
            seed = derive_key(AGAIN_TAG, seed, number_of_pass)
        shuffle: Any = self.mixture.shuffle
        if self.mixture.is_drawn:
            shuffle = Drawn(shuffle, sum(self.mixture.lengths))
        return self.make_order(records, shuffle, seed)

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
            "parents": self.order_of_pass(0, 0).describe(),
        }

    @property
    def change(self) -> tuple[int, dict[str, Any]] | None:
        """The epoch within which the weights changed, and the order's description for that epoch."""
        if not self.past:
            return None
        before = [
            {"weights": list(weights), "from": stretch.first, "to": last}
            for (weights, last), stretch in zip(self.past, self._stretches, strict=False)
        ]
        return self.epoch, {**self.describe(), "before": before}

    def as_saved(self, cursor: Any) -> "MixOrder":  # Any: the cursor comes from a file
        """Return this order with the weights of a cursor, or this order itself if those are invalid.

        Everything else stays, so that a comparison with the cursor finds other differences.
        """
        order = cursor.get("order") if isinstance(cursor, Mapping) else None
        before = order.get("before", []) if isinstance(order, Mapping) else None
        if not isinstance(order, Mapping) or not isinstance(before, list) or len(before) > MOST_CHANGES:
            return self
        weights = self._read_weights(order)
        past = [
            (self._read_weights(entry), entry.get("to")) for entry in before if isinstance(entry, Mapping)
        ]
        valid = [(used, last) for used, last in past if used and type(last) is int and last < RECORDS_LIMIT]
        epoch = cursor.get("epoch") if before else 0
        if not weights or len(valid) < len(before) or type(epoch) is not int:
            return self
        saved = replace(self, mixture=replace(self.mixture, weights=weights), epoch=epoch, past=tuple(valid))
        try:
            _ = saved._stretches
        except ConfigurationError:
            return self
        return saved

    def _read_weights(self, description: Mapping[Any, Any]) -> tuple[int, ...]:
        """Return the weights in a cursor, or an empty tuple if they are invalid."""
        weights = description.get("weights")
        if not isinstance(weights, list) or len(weights) != len(self.mixture.lengths):
            return ()
        if not all(type(weight) is int and 0 < weight < 2**MOST_BITS for weight in weights):
            return ()
        return tuple(weights) if min(weights) * RUN >= sum(weights) else ()


_PASSES: Final = RECORDS_LIMIT  # over a parent in an epoch; no parent has as many turns


@frozen
class ParentOrder(Order):
    """The order of one parent's records in a mix: of each pass over them, of which an epoch may have several.

    Each pass counts as an epoch of its own; see `epoch_of`.
    """

    mix: MixOrder
    number: int
    is_same: bool  # every epoch of the mix has the order of the first

    @property
    def records(self) -> int:
        """The number of the parent's records."""
        return self.mix.mixture.lengths[self.number]

    @property
    def seed(self) -> int | None:
        """The seed of the parents' shuffles."""
        return self.mix.seed

    @property
    def shuffled_blocks(self) -> Blocks | None:
        """The blocks of the parent."""
        return self.mix.shuffled_blocks

    @staticmethod
    def epoch_of(epoch: int, number_of_pass: int) -> int:
        """Return the number under which this order knows a pass in an epoch of the mix."""
        return epoch * _PASSES + number_of_pass

    def indices(self, positions: Integers, epoch: int) -> Integers:
        """Return the index of the parent's record at each position."""
        of_mix, number_of_pass = divmod(epoch, _PASSES)
        order = self.mix.order_of_pass(self.records, number_of_pass)
        found: Integers = order.indices(positions, 0 if self.is_same else of_mix)
        return found

    def follows(self, before: int, epoch: int) -> bool:
        """Return whether one pass comes next after another: in the same epoch, or in the next one."""
        (before, last), (epoch, number_of_pass) = divmod(before, _PASSES), divmod(epoch, _PASSES)
        return (epoch, number_of_pass) in ((before, last + 1), (before + 1, 0))

    def end(self, epoch: int) -> int:
        """Return the position after the last one that is read in a pass: an epoch may end within one."""
        of_mix, number_of_pass = divmod(epoch, _PASSES)
        of_mix = 0 if self.is_same else of_mix
        turns = self.mix.all_turns(of_mix, self.number) - number_of_pass * self.records
        return min(self.records, max(0, turns))

    def describe(self) -> dict[str, Any]:
        """Return the description of the mix, and which parent this is."""
        return {**self.mix.describe(), "parent": self.number}


def reach(weights: Sequence[int], remaining: Sequence[int], at_end: str) -> int:
    """Return the number of positions until the epoch's end, given how many records remain of each parent.

    With "stop" it is the largest number for which no parent needs more records than it has; with "repeat" the
    smallest with which every parent is read to its end. A number is passed over if some parent had fewer
    records up to there than up to the end of the last full run.
    """
    weight_sum = sum(weights)
    parents = list(zip(weights, remaining, strict=True))
    if at_end == "stop":
        size = min(((records + 1) * weight_sum - 1) // weight for weight, records in parents)
    else:
        size = max(
            ((records - 1) * weight_sum) // weight + 1 if records > 0 else 0 for weight, records in parents
        )
    while True:
        counts = apportion(size, weights)
        before = apportion(size - size % RUN, weights)
        fits = (
            all(count <= records for count, records in zip(counts, remaining, strict=True))
            if at_end == "stop"
            else all(count >= records for count, records in zip(counts, remaining, strict=True))
        )
        if fits and all(count >= least for count, least in zip(counts, before, strict=True)):
            return size
        size += -1 if at_end == "stop" else 1


@frozen
class _TurnsOfRun:
    """For each position of a run, the number of its parent, and the number of that parent's turn."""

    parents: NDArray[np.uint16]
    turns: Integers


# Caches the runs of a few readers that read side by side: 40 KiB each. The arrays are read-only and depend
# only on the arguments, so threads and forked processes may share them.
@functools.lru_cache(maxsize=32)
def _lay_out(seed: int, epoch: int, stretch: Stretch, run: int) -> _TurnsOfRun:
    size = min(RUN, stretch.size - run * RUN)
    before, after = stretch.counts(run * RUN), stretch.counts(run * RUN + size)
    counts = [last - first for first, last in zip(before, after, strict=True)]
    state = derive_key(MIX_TAG, seed, epoch)
    key = absorb(absorb(state, stretch.number) if stretch.number else state, run)
    words = np.arange(1, size + 1, dtype=np.uint64)
    np.multiply(words, np.uint64(GOLDEN), out=words)
    np.add(words, np.uint64(key), out=words)
    mix_array(words)
    # Each parent gets as many of the sorted words as it has positions. No two words are equal, so the
    # smallest word of each parent decides which positions belong to it. To sort the words alone takes a
    # quarter of the time of an argsort (benchmarks/stages.py).
    begins = np.cumsum(counts[:-1], dtype=np.int64)
    parents = bounds_reached(words, np.sort(words)[begins[begins < size]]).astype(np.uint16)
    turns = np.empty(size, np.int64)
    # numpy sorts 16-bit integers in linear time, for any number of parents.
    in_turn = [np.arange(first, last) for first, last in zip(before, after, strict=True)]
    turns[np.argsort(parents, kind="stable")] = np.concatenate(in_turn)
    parents.flags.writeable = turns.flags.writeable = False
    return _TurnsOfRun(parents, turns)
