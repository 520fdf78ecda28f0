"""The orders of records: the source's own, the global shuffle, that within windows of blocks, and sequences.

Windows of blocks are for data that is larger than the disk, or in a remote store. The words block, lane and
window are explained in `Blocks`. The rest are the records that fill no window. The place of a record is its
index after the blocks are shuffled, but before records are shuffled within windows. Lanes and episodes are
explained in `Sequences`; a piece is an episode, or a stretch of one that is cut.

`make_order` chooses an order. `docs/explanation/order.md` states the arithmetic, frozen as version 1. The hot
code is flat; `benchmarks/order.py` justifies it.
"""

import functools
import hashlib
import heapq
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from yogadl._core.frozen import frozen
from yogadl._order.blocks import Blocks, BlocksOfGroups, Drawn, Mixture, Sequences, SequencesOfEpisodes
from yogadl._order.keys import (
    RECORDS_LIMIT,
    absorb,
    absorb_array,
    check_records,
    check_within,
    derive_key,
    splitmix64_output,
)
from yogadl._order.order import Order
from yogadl._order.permutation import (
    CHUNK,
    Integers,
    Network,
    Words,
    make_network,
    make_schedule,
    permute,
    permute_keyed,
    unpermute,
)
from yogadl.errors import ConfigurationError

BLOCKS_TAG = int.from_bytes(b"blocks-1", "big")
_LANES, _BLOCKS, _REST = 0, 1, 2  # the uses of a key of (seed, epoch)


class _WindowLayout(NamedTuple):
    """The sizes that follow from the number of records and the parameters of the blocks."""

    lane_records: int  # records of one lane in one window
    window_blocks: int
    window_records: int
    blocks: int  # full blocks
    windowed: int  # positions that lie in windows; all others are the rest


class _Keys(NamedTuple):
    """The keys of one epoch."""

    lanes: int
    blocks: int
    rest: int


# Maps positions to indices, or places to positions, in the windows or in the rest.
_MapNumbers = Callable[[Integers, int, Blocks, _Keys], Integers]


@frozen
class BlocksOrder(Order):
    """A shuffle of blocks, and of records within windows of them, anew in each epoch, in constant memory."""

    records: int
    seed: int
    blocks: Blocks

    def __post_init__(self) -> None:
        check_records(self.records)

    @property
    def shuffled_blocks(self) -> Blocks:
        """The blocks."""
        return self.blocks

    def indices(self, positions: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """Return the record index at each position."""
        flat = check_within(positions, self.records, "position")
        found = self._map_by_part(flat, epoch, _indices_in_windows, _indices_in_rest)
        return found.reshape(np.shape(positions))

    def positions(self, indices: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """Return the position of each record index."""
        flat = check_within(indices, self.records, "index")
        layout, keys = _lay_out(self.records, self.blocks), _epoch_keys(self.seed, epoch)
        places = flat.copy()
        full = np.flatnonzero(flat < layout.blocks * self.blocks.size)
        block, offset = np.divmod(flat[full], np.int64(self.blocks.size))
        places[full] = unpermute(block, layout.blocks, keys.blocks) * np.int64(self.blocks.size) + offset
        found = self._map_by_part(places, epoch, _positions_in_windows, _positions_in_rest)
        return found.reshape(np.shape(indices))

    def neighbours(self, position: int, epoch: int) -> tuple[int, int]:
        """Return the first position of the window that a position lies in, and the one after the last."""
        layout = _lay_out(self.records, self.blocks)
        if position >= layout.windowed:
            return layout.windowed, self.records
        size = self.blocks.size * self.blocks.window * self.blocks.lanes
        return position // size * size, (position // size + 1) * size

    def _map_by_part(
        self, numbers: Integers, epoch: int, in_windows: _MapNumbers, in_rest: _MapNumbers
    ) -> Integers:
        """Apply one function to the numbers in windows and another to those in the rest, chunk by chunk."""
        windowed = _lay_out(self.records, self.blocks).windowed
        arguments = self.records, self.blocks, _epoch_keys(self.seed, epoch)
        results = np.empty(numbers.size, np.int64)
        for start in range(0, numbers.size, CHUNK):
            chunk, result = numbers[start : start + CHUNK], results[start : start + CHUNK]
            if int(chunk.max()) < windowed:
                result[:] = in_windows(chunk, *arguments)
            elif int(chunk.min()) >= windowed:
                result[:] = in_rest(chunk, *arguments)
            else:
                inside = chunk < windowed
                result[inside] = in_windows(chunk[inside], *arguments)
                result[~inside] = in_rest(chunk[~inside], *arguments)
        return results

    def describe(self) -> dict[str, Any]:
        """Return the order's name, version and parameters, for a cursor."""
        return {
            "name": "blocks",
            "version": 1,
            "records": self.blocks.size,
            "window": self.blocks.window,
            "lanes": self.blocks.lanes,
        }


@functools.lru_cache(maxsize=64)
def _lay_out(records: int, blocks: Blocks) -> _WindowLayout:
    window_blocks = blocks.window * blocks.lanes
    window_records = window_blocks * blocks.size
    return _WindowLayout(
        lane_records=blocks.window * blocks.size,
        window_blocks=window_blocks,
        window_records=window_records,
        blocks=records // blocks.size,
        windowed=records // window_records * window_records,
    )


@functools.lru_cache(maxsize=64)
def _epoch_keys(seed: int, epoch: int) -> _Keys:
    state = derive_key(BLOCKS_TAG, seed, epoch)
    return _Keys(absorb(state, _LANES), absorb(state, _BLOCKS), absorb(state, _REST))


def _indices_in_windows(positions: Integers, records: int, blocks: Blocks, keys: _Keys) -> Integers:
    layout = _lay_out(records, blocks)
    word = _word(layout.window_records)
    window, offset = _divide_by_window(positions, layout.window_records, word)
    turn = offset // word(blocks.lanes)
    lane = offset - turn * word(blocks.lanes)
    drawn = _permute_in_lane(turn, window, lane, layout, keys, inverse=False)
    block_in_lane = drawn // word(blocks.size)
    record = drawn - block_in_lane * word(blocks.size)
    np.multiply(lane, word(blocks.window), out=lane)
    np.add(lane, block_in_lane, out=lane)
    block = np.add(lane, window * np.int64(layout.window_blocks), dtype=np.int64, casting="unsafe")
    index = permute(block, layout.blocks, keys.blocks)
    np.multiply(index, np.int64(blocks.size), out=index)
    np.add(index, record, out=index, dtype=np.int64, casting="unsafe")
    return index


def _positions_in_windows(places: Integers, records: int, blocks: Blocks, keys: _Keys) -> Integers:
    layout = _lay_out(records, blocks)
    word = _word(layout.window_records)
    window, offset = _divide_by_window(places, layout.window_records, word)
    lane = offset // word(layout.lane_records)
    drawn = offset - lane * word(layout.lane_records)
    turn = _permute_in_lane(drawn, window, lane, layout, keys, inverse=True)
    np.multiply(turn, word(blocks.lanes), out=turn)
    np.add(turn, lane, out=turn)
    positions = np.empty(places.size, np.int64)
    np.add(turn, window * np.int64(layout.window_records), out=positions, dtype=np.int64, casting="unsafe")
    return positions


def _indices_in_rest(positions: Integers, records: int, blocks: Blocks, keys: _Keys) -> Integers:
    layout = _lay_out(records, blocks)
    start = np.int64(layout.windowed)
    index = permute(positions - start, records - layout.windowed, keys.rest) + start
    # The last block may be short: its records keep their indices, and only full blocks are shuffled.
    full = np.flatnonzero(index < layout.blocks * blocks.size)
    block, offset = np.divmod(index[full], np.int64(blocks.size))
    index[full] = permute(block, layout.blocks, keys.blocks) * np.int64(blocks.size) + offset
    return index


def _positions_in_rest(places: Integers, records: int, blocks: Blocks, keys: _Keys) -> Integers:
    windowed = _lay_out(records, blocks).windowed
    return unpermute(places - np.int64(windowed), records - windowed, keys.rest) + np.int64(windowed)


def _word(limit: int) -> type[np.uint32] | type[np.uint64]:
    """Return the narrowest word for numbers up to a limit: arithmetic in 32 bits is twice as fast."""
    return np.uint32 if limit <= 1 << 31 else np.uint64


def _divide_by_window(numbers: Integers, window_records: int, word: type[Any]) -> tuple[Integers, Words]:
    """Return the window of each number (a single one if it is the same for all) and the offset in it."""
    first, last = int(numbers.min()) // window_records, int(numbers.max()) // window_records
    size = np.int64(window_records)
    window = np.array([first], np.int64) if first == last else numbers // size
    return window, (numbers - window * size).astype(word)


def _permute_in_lane(
    numbers: Words, window: Integers, lane: Words, layout: _WindowLayout, keys: _Keys, inverse: bool
) -> Words:
    """Permute each number by the key of its window and lane."""
    if layout.lane_records == 1:
        return numbers
    network = make_network(layout.lane_records)
    in_window = absorb_array(keys.lanes, window.astype(np.uint64))
    key = absorb_array(in_window, lane.astype(np.uint64))
    schedule = make_schedule(network, keys.lanes)
    drawn = permute_keyed(numbers.astype(np.int64), network, schedule, _halve(key, network), inverse)
    return drawn.astype(lane.dtype)


def _halve(key: NDArray[np.uint64], network: Network) -> tuple[Words, Words]:
    """Make the keys of the even and of the odd rounds from one key."""
    if network.word_bits == 32:
        return key.astype(np.uint32), (key >> np.uint64(32)).astype(np.uint32)
    return key, absorb_array(0, key)


GLOBAL_TAG = int.from_bytes(b"global-1", "big")


@frozen
class SourceOrder(Order):
    """The records in the source's order, in every epoch."""

    seed: ClassVar[int | None] = None
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
class GlobalOrder(Order):
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


STEPS_TAG = int.from_bytes(b"steps-1", "big")


@frozen
class StepsOrder(Order):
    """A shuffle of steps of neighbouring records, and of the records after these, anew in each epoch."""

    records: int
    seed: int
    steps: int
    size: int  # of a step

    def __post_init__(self) -> None:
        check_records(self.records)

    def indices(self, positions: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """Return the record index at each position."""
        flat = check_within(positions, self.records, "position")
        key, stepped = derive_key(STEPS_TAG, self.seed, epoch), self.steps * self.size
        found, inside = np.empty_like(flat), flat < stepped
        step, within = np.divmod(flat[inside], np.int64(self.size))
        found[inside] = permute(step, self.steps, absorb(key, 0)) * np.int64(self.size) + within
        rest = flat[~inside] - np.int64(stepped)
        found[~inside] = permute(rest, self.records - stepped, absorb(key, 1)) + np.int64(stepped)
        return found.reshape(np.shape(positions))

    def describe(self) -> dict[str, Any]:
        """Return the order's name, version and parameters, for a cursor."""
        return {"name": "steps", "version": 1, "steps": self.steps, "size": self.size}


_KEPT_LAYOUTS: Final = 4  # of epochs
Shuffle = TypeVar("Shuffle")
Layout = TypeVar("Layout")


class LaidOutOrder(Order, Generic[Shuffle, Layout]):
    """An order that lays an epoch out as a whole when it is first asked for; the last few layouts are kept.

    Args:
        records: The number of records.
        seed: The seed.
        shuffle: The parameters, and arrays of what is shuffled.
    """

    _tag: ClassVar[int]

    def __init__(self, records: int, seed: int, shuffle: Shuffle) -> None:
        check_records(records)
        self._records, self._seed, self._shuffle = records, seed, shuffle
        self._layouts: dict[int, Layout] = {}

    def __reduce__(self) -> Any:
        return type(self), (self._records, self._seed, self._shuffle)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def _parts(self) -> tuple[Any, Sequence[Integers]]:
        """Return the parameters of the shuffle, and the arrays."""
        raise NotImplementedError

    def _lay_out(self, key: int) -> Layout:
        raise NotImplementedError

    @functools.cached_property
    def _identity(self) -> tuple[int, int, Any, str]:
        parameters, arrays = self._parts()
        digest = hashlib.sha256()
        for numbers in arrays:
            digest.update(numbers.astype("<i8", copy=False).tobytes())
        return self._records, self._seed, parameters, digest.hexdigest()[:16]

    @property
    def records(self) -> int:
        """The number of positions."""
        return self._records

    @property
    def seed(self) -> int:
        """The seed of the shuffle."""
        return self._seed

    def _layout(self, epoch: int) -> Layout:
        found = self._layouts.get(epoch)
        if found is None:
            found = self._lay_out(derive_key(self._tag, self._seed, epoch))
            layouts = dict(list(self._layouts.items())[1 - _KEPT_LAYOUTS :])
            self._layouts = {**layouts, epoch: found}
        return found


GROUPS_TAG = int.from_bytes(b"groups-1", "big")


class _GroupLayout(NamedTuple):
    """Where an epoch has the groups, one after the other in shuffled order, cut into lanes and windows.

    Attributes:
        groups: The number of the group at each place.
        starts: Where each of these begins.
        lanes: Where each lane begins.
        windows: Where each window begins, those of one lane after those of the lane before.
        key: The key of all windows.
    """

    groups: Integers
    starts: Integers
    lanes: Integers
    windows: Integers
    key: int


class GroupsOrder(LaidOutOrder[BlocksOfGroups, _GroupLayout]):
    """A shuffle of groups of neighbouring records, and of records within windows of them, in each epoch anew.

    `shuffle` is the groups, with the window and the lanes.
    """

    _tag = GROUPS_TAG

    def _parts(self) -> tuple[Blocks, Sequence[Integers]]:
        return self._shuffle.blocks, [self._shuffle.ends]

    def indices(self, positions: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """Return the record index at each position."""
        flat = check_within(positions, self._records, "position")
        layout = self._layout(epoch)
        turn, lane = np.divmod(flat, np.int64(len(layout.lanes)))
        places = layout.lanes[lane] + turn
        windows = np.searchsorted(layout.windows, places, side="right") - 1
        for window in np.unique(windows).tolist():
            inside = windows == window
            start, end = self._window(layout, window)
            places[inside] = permute(places[inside] - start, end - start, absorb(layout.key, window)) + start
        at = np.searchsorted(layout.starts, places, side="right") - 1
        groups = layout.groups[at]
        found: NDArray[np.int64] = self._firsts[groups] + (places - layout.starts[at])
        return found.reshape(np.shape(positions))

    def neighbours(self, position: int, epoch: int) -> tuple[int, int]:
        """Return the first position of the window that a position lies in, and the one after the last.

        The positions of other lanes at the same time are among these.
        """
        layout = self._layout(epoch)
        lanes = len(layout.lanes)
        turn, lane = divmod(position, lanes)
        place = int(layout.lanes[lane]) + turn
        window = int(np.searchsorted(layout.windows, place, side="right")) - 1
        start, end = (each - int(layout.lanes[lane]) for each in self._window(layout, window))
        return start * lanes, min(end * lanes, self._records)

    def _window(self, layout: _GroupLayout, window: int) -> tuple[int, int]:
        is_last = window + 1 == len(layout.windows)
        return int(layout.windows[window]), self._records if is_last else int(layout.windows[window + 1])

    @functools.cached_property
    def _firsts(self) -> Integers:
        return np.concatenate([np.zeros(1, np.int64), self._shuffle.ends[:-1]])

    def _lay_out(self, key: int) -> _GroupLayout:
        blocks, count = self._shuffle.blocks, len(self._shuffle.ends)
        groups = permute(np.arange(count, dtype=np.int64), count, absorb(key, 0))
        sizes = (self._shuffle.ends - self._firsts)[groups]
        starts = np.cumsum(sizes) - sizes
        lanes = min(blocks.lanes, self._records)
        each, more = divmod(self._records, lanes)
        numbers = np.arange(lanes, dtype=np.int64)
        lane_starts = numbers * each + np.minimum(numbers, more)
        pieces = np.union1d(starts, lane_starts)  # groups, cut at the borders of lanes
        lane_of = np.searchsorted(lane_starts, pieces, side="right") - 1
        place_in_lane = np.arange(len(pieces)) - np.searchsorted(pieces, lane_starts)[lane_of]
        windows = pieces[place_in_lane % blocks.window == 0]
        return _GroupLayout(groups, starts, lane_starts, windows, absorb(key, 1))

    def describe(self) -> dict[str, Any]:
        """Return the order's name, version and parameters, for a cursor."""
        blocks = self._shuffle.blocks
        return {
            "name": "groups",
            "version": 1,
            "window": blocks.window,
            "lanes": blocks.lanes,
            "groups": self._identity[-1],
        }


SEQUENCES_TAG = int.from_bytes(b"lanes-1", "big")
# Episodes of each lane, on average, that are dealt by length: more of them are cut less, but are mixed less.
_LEVELLING: Final = 4


class _LaneLayout(NamedTuple):
    """The pieces of an epoch: those of one lane after those of the lane before, each lane's in its order.

    Attributes:
        starts: Where each piece begins, if the lanes are laid end to end.
        places: The place of its first record; see `SequencesOfEpisodes`.
    """

    starts: Integers
    places: Integers


class SequencesOrder(LaidOutOrder[SequencesOfEpisodes, _LaneLayout]):
    """An order in which the positions of one lane are episodes, one after another, in each epoch others.

    Position p is of lane ``p % lanes``. It takes 8 bytes an episode, and 16 for each of the last few epochs.
    `shuffle` is the number of lanes, and the episodes.
    """

    _tag = SEQUENCES_TAG

    def _parts(self) -> tuple[Sequences, Sequence[Integers]]:
        order = self._shuffle.order
        return self._shuffle.sequences, [self._shuffle.ends, *([] if order is None else [order])]

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

    def _lay_out(self, key: int) -> _LaneLayout:
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
        return _LaneLayout(np.cumsum(sizes) - sizes, places[by_lane])

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


DRAW_TAG = int.from_bytes(b"draw-1", "big")
_DRAW_BITS = 31


def draw_of(seed: int, epoch: int, total: int) -> int:
    """Return the draw of an epoch of `total` records: at most 31 bits, so that an index is less than 2**62.

    Two epochs with the same draw are alike, which happens by chance only.
    """
    bits = min(_DRAW_BITS, max(0, (RECORDS_LIMIT // max(1, total)).bit_length() - 1))
    return derive_key(DRAW_TAG, seed, epoch) >> (64 - bits)


@frozen
class DrawnOrder(Order):
    """An order whose indices are ``draw * total + record``, where each epoch has its draw.

    Records that are made anew in each epoch, such as rows of several documents, thus get the epoch with the
    index, through all views and processes.
    """

    base: Order
    seed: int
    total: int

    @property
    def records(self) -> int:
        """The number of positions."""
        return self.base.records

    def indices(self, positions: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """Return the record index at each position, with the draw."""
        found = self.base.indices(positions, epoch)
        found += draw_of(self.seed, epoch, self.total) * self.total
        return found

    def describe(self) -> dict[str, Any]:
        """Return the base's name, version and parameters, and the version of the draw, for a cursor."""
        return {**self.base.describe(), "draw": 1}


SUBSTITUTE_TAG = int.from_bytes(b"substitute-1", "big")
_DRAWN_AT_ONCE: Final = 64


def substitute(
    order: Order,
    epoch: int,
    position: int,
    attempt: int,
    are_kept: Callable[[Integers], NDArray[np.bool_]] | None,
) -> int:
    """Return the position whose record an attempt puts in the place of that at a position.

    It is drawn from all positions of the epoch: in a mix from those of the same parent, in an order of blocks
    from those of the same window.

    Args:
        order: The order.
        epoch: The epoch.
        position: The position; one beyond the epoch's end is padding.
        attempt: The number of the attempt, from 0.
        are_kept: Returns whether positions may be drawn; None: all may.
    """
    key = derive_key(SUBSTITUTE_TAG, order.seed or 0, epoch, position, attempt)
    first = order.start(epoch)
    position = first + (position - first) % (order.records - first)
    parent = order.parents(np.array([position]), epoch)
    first, end = order.neighbours(position, epoch)
    for number in itertools.count(step=_DRAWN_AT_ONCE):  # ends: the position itself fits
        words = [splitmix64_output(key, number + i) for i in range(_DRAWN_AT_ONCE)]
        drawn = np.array([first + (word * (end - first) >> 64) for word in words], np.int64)
        fit = np.ones(len(drawn), np.bool_)
        if parent is not None:
            fit &= np.asarray(order.parents(drawn, epoch)) == parent
        if are_kept is not None:
            fit &= are_kept(drawn)
        if fit.any():
            return int(drawn[fit.argmax()])
    raise AssertionError


def make_order(
    records: int, shuffle: bool | Blocks | BlocksOfGroups | SequencesOfEpisodes | Drawn | Mixture, seed: int
) -> Order:
    """Return the order for the arguments of a stream.

    Args:
        records: The number of records.
        shuffle: False for the source's order, True for the global shuffle, `Blocks`, `Drawn` or a `Mixture`.
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
    if isinstance(shuffle, BlocksOfGroups):
        return GroupsOrder(records, seed, shuffle)
    if isinstance(shuffle, SequencesOfEpisodes):
        return SequencesOrder(records, seed, shuffle)
    if isinstance(shuffle, Blocks):
        return BlocksOrder(records, seed, shuffle)
    if isinstance(shuffle, Drawn):
        if shuffle.shuffle and shuffle.steps[1] > 1:
            base: Order = StepsOrder(records, seed, *shuffle.steps)
        else:
            base = make_order(records, shuffle.shuffle, seed)
        return DrawnOrder(base, seed, shuffle.total or records)
    if isinstance(shuffle, Mixture):
        from yogadl._order.mix import MixOrder

        return MixOrder(shuffle, seed, make_order)
    if isinstance(shuffle, (bool, np.bool_)):
        return GlobalOrder(records, seed) if shuffle else SourceOrder(records)
    raise ConfigurationError(
        f"shuffle={shuffle!r} is no order; pass True, False or yogadl.Blocks(records=..., window=...)."
    )
