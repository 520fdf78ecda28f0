"""Read whole blocks ahead in an order of `yogadl.Blocks`: one shard then needs each block, once an epoch.

The blocks of a window are requested and held in a store until the window is over. To hold a block means to
keep its bytes, in memory or on disk, so that its records are not requested one by one.
"""

import contextlib
import itertools
import os
import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from yogadl._core.process import PerProcess, ProcessLock
from yogadl._core.protocols import (
    Announced,
    Indices,
    OnPlanned,
    RandomAccess,
    Stored,
    Stretches,
    views_of,
)
from yogadl._order.mix import MixOrder, ParentOrder
from yogadl._stream.cursor import Skipped
from yogadl._stream.cut import Rows, Shard
from yogadl._views.joined import JoinedRecords

# The windows held at a time: the one being read, and the next.
_WINDOWS: Final = 2
# Smaller windows are combined up to this size.
_WINDOW_BYTES: Final = 8_000_000
# The bytes between blocks are held, too, which takes 1/_GAP_DIVISOR more memory.
_GAP_DIVISOR: Final = 64
# The longest wait for a request to be sent. Before that, the entries of the values may have to be requested.
_BEGUN_LIMIT_S: Final = 60.0
# The most readers, each at its own place in the order, that are recognised by their last position.
_READERS: Final = 8
# The bytes requested and not yet received at a time, besides those needed at once.
_COMING_BYTES: Final = 64 * 2**20
# A window is over when 1/_WINDOW_OVERLAP_DIVISOR of the next one was announced, since other readers may read
# more slowly.
_WINDOW_OVERLAP_DIVISOR: Final = 8
# The bytes requested together, so that the wait for the entries of their values happens once.
_REQUEST_BYTES: Final = 4 * 2**20


# Each stream of a process has a store of its own.
_numbers = itertools.count()


# Called instead of a cache's announcement with the parent's and the window's name, and what is held there.
BlockPlanner = Callable[[tuple[int, str], Any, Indices, Sequence[int] | None, Stretches | None], Announced]


class BlockPart(NamedTuple):
    """The records that an order of blocks is of: all of a source, or those of one parent of a mix.

    Attributes:
        records: These records, of caches that may be far away.
        row_bytes: The size of one as it is read.
        first: The index of the first of them in the source.
        number: The number of the parent.
    """

    records: Sequence[RandomAccess]
    row_bytes: int
    first: int = 0
    number: int = 0


class _ReadingPlace(NamedTuple):
    """A reader that goes through an epoch.

    Attributes:
        epoch: The epoch.
        last: The position that was announced last.
        since: The call in which the reader began, by number.
    """

    epoch: int
    last: int
    since: int


class _BlockWindow:
    """The blocks of one window of which a shard reads more than half, in the order of their first use.

    Args:
        label: The name of the window.
        low: The position at which the window begins.
        high: The position before which it ends.
        blocks: The numbers of the blocks.
        uses: The position at which each block is used first.
        counts: The number of each block's records that the shard reads.

    Attributes:
        requested: The number of blocks requested.
        touched: The call in which the window was used last, by number.
        numbers: The blocks that are held.
        held: The object that holds them, by cache.
        announced: The handles of what was announced of caches without a store.
        begun: The requests being sent: the first block of each, and an event that is set once it was sent.
    """

    def __init__(
        self, label: str, low: int, high: int, blocks: Indices, uses: Indices, counts: Indices
    ) -> None:
        self.label, self.low, self.high = label, low, high
        self.blocks, self.uses, self.counts = blocks, uses, counts
        self.requested = self.touched = 0
        self.numbers = np.empty(0, np.int64)
        self.held: dict[Any, Any] = {}
        self.announced: list[Announced] = []
        self.begun: list[tuple[int, threading.Event]] = []

    def coming_bytes(self) -> int:
        """Return the number of bytes requested and not received yet."""
        return sum(held.coming_bytes() for held in list(self.held.values()))


class _Reading:
    """The blocks that one process holds and has requested.

    Attributes:
        windows: The windows by epoch and number, the last used last.
        stores: The stores that hold blocks, by cache, or ``None`` before they were looked for.
        readers: Where the threads are that read, the latest last.
        calls: The number of calls of `hold_and_list_missing`.
        most_span: The most positions in one of them.
        is_requesting_more: Whether a thread requests more blocks.
    """

    def __init__(self) -> None:
        self.windows: OrderedDict[tuple[int, int], _BlockWindow] = OrderedDict()
        self.stores: dict[Any, Any] | None = None
        self.readers: list[_ReadingPlace] = []
        self.calls = self.most_span = 0
        self.is_requesting_more = False


class BlockAhead:
    """Chooses the blocks to hold as rows are announced. Thread-safe; a pickled or forked copy begins anew.

    Args:
        source: The source of the records.
        order: The order, which is of blocks.
        shard: The shard.
        skipped: The positions that are left out.
        is_same: Whether every epoch has the order of the first.
        on_planned: Called instead of each cache's announcement, if nothing will be read.
        part: The records of the order; None: those of the source.

    Attributes:
        most_rows: The most rows to announce ahead: blocks are held for the rows being read.
        held_bytes: The memory that holds the window being read, and the next.
        all_held_bytes: That of all parents of a mix together.
        records: The number of records decided on, held or not, if nothing is read.
    """

    def __init__(
        self,
        source: RandomAccess,
        order: Any,  # an order of blocks
        shard: Shard,
        skipped: Skipped | None,
        is_same: bool,
        on_planned: BlockPlanner | None = None,
        part: BlockPart | None = None,
    ) -> None:
        self._source, self._order, self._shard, self._skipped = source, order, shard, skipped
        self._part = BlockPart([source], _row_bytes(source)) if part is None else part
        self._is_same = is_same
        self._on_planned = on_planned
        blocks = order.shuffled_blocks
        self._block_records = blocks.size
        window_records = blocks.size * blocks.window * blocks.lanes
        row_bytes = self._part.row_bytes
        # The positions of a window.
        self._positions = window_records * max(1, _WINDOW_BYTES * shard.ranks // (window_records * row_bytes))
        rows = min(self._positions, order.records) // shard.ranks
        self.most_rows: int = max(1, rows // _WINDOW_OVERLAP_DIVISOR // 2)
        self.held_bytes: int = _WINDOWS * rows * row_bytes * (_GAP_DIVISOR + 1) // _GAP_DIVISOR
        self.all_held_bytes = self.held_bytes
        self._lock = ProcessLock()
        self.records = 0
        self._of_process = PerProcess(_Reading)

    def __reduce__(self) -> Any:
        of_order = self._order, self._shard, self._skipped, self._is_same
        return BlockAhead, (self._source, *of_order, None, self._part)

    @property
    def _own(self) -> _Reading:
        return self._of_process()

    def hold_and_find_missing(self, rows: Rows, *, is_shared: bool) -> NDArray[np.bool_]:
        """Begin to hold the blocks of announced rows; return which of the records are not held.

        Args:
            rows: The announced rows.
            is_shared: Whether other processes read rows between these.
        """
        with self._lock:
            self._own.calls += 1
            awaited: list[threading.Event] = []
            is_other = np.ones(len(rows), bool)
            if self._finds_stores(is_shared):
                end = 0
                for _, positions in rows.pieces:
                    start, end = end, end + len(positions)
                    if len(positions):
                        of_epoch = rows[start:end]
                        is_other[start:end] = self._hold_and_find_others(of_epoch, is_shared, awaited)
            self.records += int(is_other.sum())
        for event in awaited:  # otherwise their records would be requested, too
            event.wait(_BEGUN_LIMIT_S)
        return is_other

    def continues(self, rows: Rows, *, is_shared: bool) -> bool:
        """Return whether these rows continue rows that were announced.

        The first rows of a reader are needed at once, and a reader at random positions needs no blocks.
        """
        return len(rows) > 0 and self._find_reader(rows, is_shared) is not None

    def _find_reader(self, rows: Rows, is_shared: bool) -> _ReadingPlace | None:
        """Return the reader whose next rows these are, if any."""
        epoch, positions = rows.pieces[0]
        first, last = int(positions[0]), int(positions[-1])
        reach = self._shard.ranks
        if is_shared:  # other processes read the rows between
            reach = 64 * (last - first + reach)
        if self._skipped is not None:
            reach += self._positions
        candidates = [
            reader for reader in self._own.readers if 0 < self._ahead_of(reader, epoch, first) <= reach
        ]
        return max(candidates, default=None)

    def _ahead_of(self, reader: _ReadingPlace, epoch: int, position: int) -> int:
        """Return how many positions a place is ahead of a reader, in its epoch or the next; 0: not at all."""
        if reader.epoch == epoch:
            return position - reader.last
        is_next = self._order.follows(reader.epoch, epoch)
        return self._order.end(reader.epoch) + position - reader.last if is_next else 0

    def _hold_and_find_others(self, rows: Rows, is_shared: bool, awaited: list[threading.Event]) -> Any:
        """Return whether each of these rows, of one epoch, is outside of all held blocks.

        The events of requests that are being sent for other rows are added to `awaited`.
        """
        [(epoch, positions)] = rows.pieces
        before = self._find_reader(rows, is_shared)
        first, last = int(positions[0]), min(int(positions[-1]), self._order.records - 1)
        if before is not None:
            self._own.readers.remove(before)
            self._own.most_span = max(self._own.most_span, last - first)
        is_same_epoch = before is not None and before.epoch == epoch
        reader = _ReadingPlace(epoch, last, before.since if before and is_same_epoch else self._own.calls)
        self._own.readers = [*self._own.readers[1 - _READERS :], reader]
        is_other = np.ones(len(rows), bool)
        if before is None:
            return is_other
        blocks = rows.indices // self._block_records
        for number in range(first // self._positions, last // self._positions + 1):
            window = self._window(epoch, number, first)
            wanted = int(np.searchsorted(window.uses, last, side="right"))
            while window.requested < wanted:
                group = self._take_next_blocks(window, wanted, reader)
                if group is None:
                    break  # without room, the records are read one by one
                self._hold(window, group)
            is_other &= ~np.isin(blocks, window.numbers)
            awaited += [event for start, event in window.begun if start < wanted]
        if self._own.stores and not self._own.is_requesting_more:
            self._own.is_requesting_more = True
            next(iter(self._own.stores.values())).later(partial(self._request_more, reader))
        return is_other

    def has_stores(self, *, is_shared: bool) -> bool:
        """Return whether any cache is read in blocks, given whether other processes read rows between."""
        with self._lock:
            return self._finds_stores(is_shared)

    def _finds_stores(self, is_shared: bool) -> bool:
        """Find the stores that hold blocks; return whether there are any."""
        if self._own.stores and any(store.is_lost for store in self._own.stores.values()):
            self._own.stores = None
            self._own.windows.clear()
        if self._own.stores is None:
            key = f"{self._order.describe()} {self._order.seed} {self._shard.rank}/{self._shard.ranks}"
            if not is_shared:  # only this stream knows when one of its windows is over
                key += f" {os.getpid()} {next(_numbers)}"
            views = itertools.chain.from_iterable(map(views_of, self._part.records))
            is_held = self._on_planned is None and self.is_joined
            caches = {view: len(view) for view in views if is_held and isinstance(view, Stored)}
            self._own.stores = {}
            for cache, count in caches.items():
                held_bytes = self.held_bytes * count // sum(caches.values())
                own = min(self._shard.own(0), count)
                room = held_bytes, self.all_held_bytes
                store = cache.block_store(key, own, room, is_shared=is_shared)
                if store is not None:
                    self._own.stores[cache] = store
        return bool(self._own.stores) or (self._on_planned is not None and self.is_joined)

    @cached_property
    def is_joined(self) -> bool:
        """Whether a block's records are neighbours in a cache, unlike those of a shuffled view."""
        near = far = 0

        def count(_: Any, indices: Indices, *__: Any) -> Announced:
            nonlocal near, far
            steps = np.abs(np.diff(indices))
            near, far = near + int((steps < 2).sum()), far + int((steps > 1).sum())
            return Announced()

        block = np.arange(min(self._block_records, self._order.records))
        self._source.will_need(block + self._part.first, on_planned=count)
        return near >= far

    def _window(self, epoch: int, number: int, position: int) -> _BlockWindow:
        """Return a window, entered at a position, or at the window's beginning if that is later."""
        window = self._own.windows.get((epoch, number))
        if window is None:
            window = self._own.windows[epoch, number] = self._choose_blocks(epoch, number, position)
        self._own.windows.move_to_end((epoch, number))
        window.touched = self._own.calls
        return window

    def _choose_blocks(self, epoch: int, number: int, position: int) -> _BlockWindow:
        """Choose the blocks of a window of which this shard reads more than half from a position on."""
        step, records = self._shard.ranks, self._order.records
        low = number * self._positions
        high = min(low + self._positions, self._order.end(epoch))
        if self._skipped is None:
            start = max(low, position)
            places = np.arange(start + (position - start) % step, high, step)
        else:  # there is only one shard
            kept = np.arange(self._skipped.before(max(low, position)), self._skipped.before(high))
            places = self._skipped.places(kept)
        blocks, firsts, counts = np.unique(
            self._order.indices(places, 0 if self._is_same else epoch) // self._block_records,
            return_index=True,
            return_counts=True,
        )
        chosen = np.flatnonzero(
            2 * counts > np.minimum(self._block_records, records - blocks * self._block_records)
        )
        chosen = chosen[np.argsort(firsts[chosen])]
        label = f"{epoch}-{number}"
        return _BlockWindow(label, low, high, blocks[chosen], places[firsts[chosen]], counts[chosen])

    def _take_next_blocks(self, window: _BlockWindow, end: int, reader: _ReadingPlace) -> Indices | None:
        """Return the next blocks of a window to hold, before block `end`, or None if there is no room.

        Room comes from windows that no process of this machine still reads, judging by this reader's
        position, and from windows that were not used since this reader began.
        """
        own = self._own
        block_bytes = self._block_records * self._part.row_bytes
        most = max(1, _REQUEST_BYTES // block_bytes)
        group = window.blocks[window.requested : min(end, window.requested + most)]
        size_bytes = len(group) * block_bytes
        while own.stores and sum(store.free_bytes() for store in own.stores.values()) < size_bytes:
            over_before = reader.last - max(self._positions // _WINDOW_OVERLAP_DIVISOR, 2 * own.most_span)
            past = (
                key
                for key, other in own.windows.items()
                if other is not window
                and (other.high <= over_before if key[0] == reader.epoch else other.touched < reader.since)
            )
            oldest = next(past, None)
            if oldest is None:
                return None
            del own.windows[oldest]
        self.records += int(window.counts[window.requested : window.requested + len(group)].sum())
        window.requested += len(group)
        window.numbers = np.union1d(window.numbers, group)
        return group

    def _hold(self, window: _BlockWindow, blocks: Indices) -> None:
        """Begin to read blocks, each whole and by itself, and keep them as long as the window."""

        def hold(
            entries: bool,
            cache: Any,
            indices: Indices,
            fields: Sequence[int] | None,
            stretches: Stretches | None,
        ) -> Announced:
            store = (self._own.stores or {}).get(cache)
            if store is not None:
                held = window.held.setdefault(cache, store.window(window.label))
                cache.hold(indices, fields, stretches, held, entries=entries)
            elif not entries:
                window.announced.append(cache.will_need(indices, fields))
            return Announced()

        each = self._block_records
        records = [
            np.arange(first, min(first + each, self._order.records)) + self._part.first
            for first in (blocks * each).tolist()
        ]
        steps: list[OnPlanned] = [partial(hold, True), partial(hold, False)]
        if self._on_planned is not None:
            steps = [partial(self._on_planned, (self._part.number, window.label))]
        for step in steps:
            for indices in records:
                self._source.will_need(indices, on_planned=step)

    def _request_more(self, reader: _ReadingPlace) -> None:
        """Request more blocks: of the window being read, and then of the next."""
        with contextlib.suppress(Exception):  # reading the blocks raises it
            while (request := self._choose_next_request(reader)) is not None:
                window, blocks, begun = request
                try:
                    self._hold(window, blocks)
                finally:
                    window.begun.remove(begun)
                    begun[1].set()
        self._own.is_requesting_more = False

    def _choose_next_request(
        self, reader: _ReadingPlace
    ) -> tuple[_BlockWindow, Indices, tuple[int, threading.Event]] | None:
        """Return the blocks to hold next, or None if there are none for now."""
        with self._lock:
            number = reader.last // self._positions
            current = self._own.windows.get((reader.epoch, number))
            if current is None or self._coming_bytes() >= _COMING_BYTES:
                return None
            window = current
            if current.requested == len(current.blocks):
                if current.high >= self._order.end(reader.epoch):
                    return None
                window = self._window(reader.epoch, number + 1, reader.last)
                if window.requested == len(window.blocks):
                    return None
            begun = window.requested, threading.Event()
            blocks = self._take_next_blocks(window, len(window.blocks), reader)
            if blocks is None:
                return None
            window.begun.append(begun)
            return window, blocks, begun

    def _coming_bytes(self) -> int:
        return sum(window.coming_bytes() for window in self._own.windows.values())


def _row_bytes(records: RandomAccess) -> int:
    """Return the bytes that are read for a record, in whole blocks.

    Functions may make records larger, and windows share stored ones: all but those at the borders of blocks.
    """
    stored_bytes = sum(len(view) * view.record_bytes for view in views_of(records) if not view.parents)
    return max(1, min(records.record_bytes, 2 * stored_bytes // max(1, len(records))))


class MixedBlockAhead:
    """Chooses the blocks to hold of each parent of a mix by the parent's own order; see `BlockAhead`.

    Args:
        source: The source of the records: the parents' concatenation, or views of it.
        order: The order, which is a mix of parents whose orders are of blocks.
        shard: The only shard.
        is_same: Whether every epoch has the order of the first.
        on_planned: Called instead of each cache's announcement, if nothing will be read.
    """

    def __init__(
        self,
        source: RandomAccess,
        order: MixOrder,
        shard: Shard,
        is_same: bool,
        on_planned: BlockPlanner | None = None,
    ) -> None:
        self._order, self._is_same = order, is_same
        joined = source
        while not isinstance(joined, JoinedRecords):
            [joined] = joined.parents
        self._firsts = [0, *itertools.accumulate(order.mixture.lengths)]
        ends = list(itertools.accumulate(map(len, joined.parents)))  # a parent may be several of these
        self._parents = list[BlockAhead]()
        for number, (first, end) in enumerate(itertools.pairwise(self._firsts)):
            its = ParentOrder(order, number, is_same)
            records = joined.parents[bisect_right(ends, first) : bisect_left(ends, end) + 1]
            row_bytes = max(map(_row_bytes, records)) * source.record_bytes // max(1, joined.record_bytes)
            part = BlockPart(records, max(1, row_bytes), first, number)
            share = replace(shard, records=its.end(its.epoch_of(0, 0)))
            self._parents.append(BlockAhead(source, its, share, None, False, on_planned, part))
        for parent in self._parents:
            parent.all_held_bytes = self.held_bytes
        self._arguments = source, order, shard, is_same

    def __reduce__(self) -> Any:
        return MixedBlockAhead, self._arguments

    @property
    def most_rows(self) -> int:
        """The most rows to announce ahead: blocks are held for the rows being read."""
        weights = self._order.mixture.weights
        each = [
            parent.most_rows * sum(weights) // weight
            for parent, weight in zip(self._parents, weights, strict=True)
        ]
        return max(1, min(each))

    @property
    def is_joined(self) -> bool:
        """Whether a block's records are neighbours in a cache, of any parent."""
        return any(parent.is_joined for parent in self._parents)

    @property
    def held_bytes(self) -> int:
        """The memory that holds the windows being read, and the next."""
        return sum(parent.held_bytes for parent in self._parents)

    @property
    def records(self) -> int:
        """The number of records decided on, held or not, if nothing is read."""
        return sum(parent.records for parent in self._parents)

    def hold_and_find_missing(self, rows: Rows, *, is_shared: bool) -> NDArray[np.bool_]:
        """Begin to hold the blocks of announced rows; return which of the records are not held."""
        are_missing = np.ones(len(rows), np.bool_)
        for parent, its, at in self._by_parent(rows):
            are_missing[at] = parent.hold_and_find_missing(its, is_shared=is_shared)
        return are_missing

    def continues(self, rows: Rows, *, is_shared: bool) -> bool:
        """Return whether these rows continue rows of some parent that were announced."""
        return any(parent.continues(its, is_shared=is_shared) for parent, its, _ in self._by_parent(rows))

    def has_stores(self, *, is_shared: bool) -> bool:
        """Return whether any cache is read in blocks, given whether other processes read rows between."""
        return True in {parent.has_stores(is_shared=is_shared) for parent in self._parents}

    def _by_parent(self, rows: Rows) -> Iterator[tuple[BlockAhead, Rows, Indices]]:
        """Yield for each parent, and pass over its records, the rows as it counts them, and their numbers."""
        end = 0
        for epoch, positions in rows.pieces:
            start, end = end, end + len(positions)
            numbers, turns = self._order.turns(np.asarray(positions, np.int64), 0 if self._is_same else epoch)
            for number, parent in enumerate(self._parents):
                its = np.flatnonzero(numbers == number)
                passes, turns_there = np.divmod(turns[its], self._order.mixture.lengths[number])
                for number_of_pass in np.unique(passes).tolist():
                    of_pass = passes == number_of_pass
                    at = start + its[of_pass]
                    pieces = ((ParentOrder.epoch_of(epoch, number_of_pass), turns_there[of_pass]),)
                    indices = rows.indices[at] - self._firsts[number]
                    yield parent, Rows(indices, pieces, self._order.mixture.lengths[number]), at
