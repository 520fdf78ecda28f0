"""The order of sequences: each lane of a batch reads one episode after another, from their beginnings.

The words lane and episode are explained in `Sequences`. A piece is an episode, or a stretch of one
that is cut. `docs/explanation/order.md` states the arithmetic, frozen as version 1; `benchmarks/order.py`
measures it.
"""

import functools
import hashlib
import heapq
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from yogadl._order.blocks import SequencesOfEpisodes
from yogadl._order.keys import absorb, check_records, check_within, derive_key
from yogadl._order.order import Order
from yogadl._order.permutation import Integers, permute

SEQUENCES_TAG = int.from_bytes(b"lanes-1", "big")
# Episodes of each lane, on average, that are dealt by length: more of them are cut less, but are mixed less.
_LEVELLING: Final = 4
_KEPT_LAYOUTS: Final = 4  # of epochs


class _Layout(NamedTuple):
    """The pieces of an epoch: those of one lane after those of the lane before, each lane's in its order.

    Attributes:
        starts: Where each piece begins, if the lanes are laid end to end.
        places: The place of its first record; see `SequencesOfEpisodes`.
    """

    starts: Integers
    places: Integers


class SequencesOrder(Order):
    """An order in which the positions of one lane are episodes, one after another, in each epoch others.

    Position p is of lane ``p % lanes``. It takes 8 bytes an episode, and 16 for each of the last few epochs.

    Args:
        records: The number of records.
        seed: The seed.
        shuffle: The number of lanes, and the episodes.
    """

    def __init__(self, records: int, seed: int, shuffle: SequencesOfEpisodes) -> None:
        check_records(records)
        self._records, self._seed, self._shuffle = records, seed, shuffle
        self._layouts: dict[int, _Layout] = {}

    def __reduce__(self) -> Any:
        return SequencesOrder, (self._records, self._seed, self._shuffle)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SequencesOrder) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @functools.cached_property
    def _identity(self) -> tuple[Any, ...]:
        digest = hashlib.sha256()
        for numbers in (self._shuffle.ends, self._shuffle.order):
            if numbers is not None:
                digest.update(numbers.astype("<i8", copy=False).tobytes())
        return self._records, self._seed, self._shuffle.sequences, digest.hexdigest()[:16]

    @property
    def records(self) -> int:
        """The number of positions."""
        return self._records

    @property
    def seed(self) -> int:
        """The seed of the shuffle."""
        return self._seed

    @property
    def lanes(self) -> int:
        """The number of lanes."""
        return self._shuffle.sequences.lanes

    def indices(self, positions: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """Return the record index at each position; that of a marked one has `records` added.

        The first record of each piece is marked, unless `Sequences.first` is None.
        """
        flat = check_within(positions, self._records, "position")
        layout = self._layout(epoch)
        turn, lane = np.divmod(flat, np.int64(self.lanes))
        in_lanes = turn + lane * np.int64(self._records // self.lanes)
        in_lanes += np.minimum(lane, np.int64(self._records % self.lanes))
        piece = np.searchsorted(layout.starts, in_lanes, side="right") - 1
        in_lanes -= layout.starts[piece]
        found: NDArray[np.int64] = layout.places[piece] + in_lanes
        if self._shuffle.order is not None:
            found = self._shuffle.order[found]
        if self._shuffle.sequences.first is not None:
            found[in_lanes == 0] += self._records
        return found.reshape(np.shape(positions))

    def _layout(self, epoch: int) -> _Layout:
        found = self._layouts.get(epoch)
        if found is None:
            found = self._lay_out(derive_key(SEQUENCES_TAG, self._seed, epoch))
            layouts = dict(list(self._layouts.items())[1 - _KEPT_LAYOUTS :])
            self._layouts = {**layouts, epoch: found}
        return found

    def _lay_out(self, key: int) -> _Layout:
        ends = self._shuffle.ends
        all_sizes = np.diff(ends, prepend=0)
        shares = _equal_shares(self._records, min(self.lanes, self._records))
        episodes, lane = _deal(all_sizes, shares, absorb(key, 0))
        sizes, place = all_sizes[episodes], ends[episodes] - all_sizes[episodes]
        before = np.cumsum(sizes) - sizes  # in the lanes as dealt, laid end to end
        bounds = np.append(before, self._records)[np.searchsorted(lane, np.arange(len(shares) + 1))]
        kept = np.minimum(shares[lane] - (before - bounds[lane]), sizes)  # at least 1: see `_deal`
        # What is above a lane's share is laid end to end, and so is what the other lanes lack.
        more, lack = sizes - kept, np.maximum(shares - np.diff(bounds), 0)
        is_cut, is_filled = np.flatnonzero(more), np.flatnonzero(lack)
        cut_starts = np.cumsum(more[is_cut]) - more[is_cut]
        fill_starts = np.cumsum(lack[is_filled]) - lack[is_filled]
        cuts = np.union1d(cut_starts, fill_starts)
        which = np.searchsorted(cut_starts, cuts, side="right") - 1
        of = is_cut[which]
        fills = is_filled[np.searchsorted(fill_starts, cuts, side="right") - 1]
        places = np.concatenate([place, place[of] + kept[of] + cuts - cut_starts[which]])
        sizes = np.concatenate([kept, np.diff(cuts, append=more.sum())])
        lane = np.concatenate([lane, fills])
        drawn = permute(np.arange(len(places), dtype=np.int64), len(places), absorb(key, 1))
        by_lane = np.lexsort((drawn, lane))
        sizes = sizes[by_lane]
        return _Layout(np.cumsum(sizes) - sizes, places[by_lane])

    def describe(self) -> dict[str, Any]:
        """Return the order's name, version and parameters, for a cursor."""
        return {"name": "sequences", "version": 1, "lanes": self.lanes, "episodes": self._identity[-1]}


def _equal_shares(total: int, lanes: int) -> Integers:
    """Return whole shares of a number that differ by at most one, the larger ones first."""
    each, more = divmod(total, max(1, lanes))
    return each + (np.arange(lanes, dtype=np.int64) < more)


def _deal(sizes: Integers, shares: Integers, key: int) -> tuple[Integers, Integers]:
    """Return the episodes in the order of their lanes, and the lane of each.

    Most are laid end to end in random order, and cut between two episodes, near equal sums. The last ones are
    dealt by length, the longest first, each to the lane that lacks most. So each episode begins within its
    lane's share.
    """
    count, lanes = len(sizes), len(shares)
    drawn = permute(np.arange(count, dtype=np.int64), count, key)
    first = count - min(count, _LEVELLING * lanes)
    bulk, rest = drawn[:first], drawn[first:]
    rest = rest[np.argsort(-sizes[rest], kind="stable")]
    ends = np.cumsum(sizes[bulk])
    borders = np.cumsum(_equal_shares(int(sizes[bulk].sum()), lanes))
    lane = np.searchsorted(borders, ends - sizes[bulk], side="right")
    bounds = np.append(0, ends)[np.searchsorted(lane, np.arange(lanes + 1))]
    heap = list(zip((np.diff(bounds) - shares).tolist(), range(lanes), strict=True))
    heapq.heapify(heap)
    lanes_of_rest = list[int]()
    for size in sizes[rest].tolist():
        above, emptiest = heap[0]
        lanes_of_rest.append(emptiest)
        heapq.heapreplace(heap, (above + size, emptiest))
    lane = np.concatenate([lane, np.array(lanes_of_rest, np.int64)])
    by_lane = np.argsort(lane, kind="stable")
    return np.concatenate([bulk, rest])[by_lane], lane[by_lane]
