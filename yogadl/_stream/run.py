"""Find the records that a shard reads, announce them, and read them: source, order and functions together."""

import copy
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from threading import get_ident
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from yogadl._core.arguments import int_argument
from yogadl._core.frozen import frozen
from yogadl._core.process import ProcessLock
from yogadl._core.protocols import (
    READ,
    Announced,
    Column,
    Int64s,
    Lineage,
    Memory,
    Numbers,
    OnPlanned,
    RandomAccess,
    Stored,
    lineage_of,
    received_by,
    views_of,
    will_read,
)
from yogadl._core.spec import Spec
from yogadl._order import GlobalOrder, Order, substitute
from yogadl._stream.cursor import Identity, Numbering, Skipped, read_cursor
from yogadl._stream.cut import Cut, Pieces, Point, Rows, Shard, joined, pieces_of
from yogadl.errors import ConfigurationError, StageError

if TYPE_CHECKING:
    from yogadl._stream.block_ahead import BlockAhead, BlockPlanner, MixedBlockAhead
    from yogadl._views.functions import Chain
    from yogadl._views.stages import Places, Rejected, Replaced, Stage, StageOptions

# The order costs some 30 us a call and some 5 ns an index, so many indices are computed at a time, from the
# first call on: 0.1 ms. (Chunks that begin small and grow were slower with large records: the arrays of each
# chunk come to lie between the memory of two batches, which is then faulted in anew. Measured with
# benchmarks/.)
INDICES_PER_CHUNK = 16384
# A smaller block costs more to hold than requests for its records one by one.
_BLOCK_RECORDS = 4
_MOST_REJECTED: Final = 100_000  # records that are listed


class Totals(NamedTuple):
    """Times and counts so far, or since earlier totals.

    Args:
        stages: The seconds of each stage.
        asked: The number of requests by the consumer for items that are read ahead.
        ready: The number of items that were ready at these requests, in total.
        requests: The number of requests for ranges, here and by workers.
        received_bytes: The number of bytes received by them.
        rejected: The number of records that others replaced.
    """

    stages: Mapping[str, float]
    asked: int = 0
    ready: int = 0
    requests: int = 0
    received_bytes: int = 0
    rejected: int = 0

    def since(self, before: "Totals") -> "Totals":
        """Return what was added since other totals."""
        stages = {stage: seconds - before.stages.get(stage, 0.0) for stage, seconds in self.stages.items()}
        return Totals(stages, *(now - then for now, then in zip(self[1:], before[1:], strict=True)))


class Counters:
    """Times and counts of reading, for all iterators of a loader. Thread-safe; a pickled one begins anew."""

    __slots__ = ("_broken", "_changed", "_rejected", "_replaced", "_stages", "_too_many", "asked", "ready",
                 "received_bytes", "rejections", "requests")  # fmt: skip

    def __init__(self) -> None:
        # By stage and thread, so that no thread waits for another to add to it.
        self._stages: dict[tuple[str, int], float] = {}
        self.asked = 0  # requests by the consumer for items that are read ahead
        self.ready = 0  # items that were ready at these requests, in total
        self.requests = self.received_bytes = 0  # of ranges read by worker processes
        # Records that others replace, by stage, epoch, position and attempt, since one may be read again.
        self._rejected: dict[tuple[int, int, int, int], Rejected] = {}
        self.rejections = 0  # their number, also of those that are not listed
        self._broken: dict[int, set[Any]] = {}  # different ones by stage, if a stage has `max_errors`
        self._too_many: StageError | None = None
        # The records that others replaced at the places read last, and the changes since `changes`.
        self._replaced: dict[tuple[int, int], Sequence[Rejected]] = {}
        self._changed: dict[tuple[int, int], Sequence[Rejected]] = {}

    def __reduce__(self) -> Any:
        return Counters, ()

    def add(self, stage: str, seconds: float) -> None:
        """Add to the time of a stage, from any thread or process."""
        key = stage, get_ident()
        self._stages[key] = self._stages.get(key, 0.0) + seconds

    def stages(self) -> dict[str, float]:
        """Return the seconds of each stage so far."""
        found: dict[str, float] = {}
        for (stage, _), seconds in list(self._stages.items()):
            found[stage] = found.get(stage, 0.0) + seconds
        return found

    def reject(self, rejected: "Rejected", attempt: int, stage: "Stage", record: Any) -> None:
        """Count a record that another one replaces, from any thread or process; `record` tells which it is.

        Raises:
            StageError: if it is one more than the stage's `max_errors`.
        """
        key = stage.number, rejected.epoch, rejected.position, attempt
        if key not in self._rejected:
            if len(self._rejected) < _MOST_REJECTED:
                self._rejected[key] = rejected
            self.rejections += 1
        if stage.max_errors is None:
            return
        broken = self._broken.setdefault(stage.number, set())
        broken.add(record)
        if len(broken) > stage.max_errors:
            self._too_many = StageError(
                f"{stage} failed at {len(broken)} records, more than max_errors={stage.max_errors}; at "
                f"record {rejected.index} with {rejected.reason}. Each process counts its own records, so "
                "end the job's other ranks, too. This loader delivers nothing more: to go on from its "
                "cursor, mend the data or raise max_errors, and make the loader anew",
                stage.number,
                rejected.index,
            )
        self.check()

    def check(self) -> None:
        """Raise an error if more records were rejected than a stage's `max_errors`."""
        if self._too_many is not None:
            raise copy.copy(self._too_many)

    def settle(self, places: "Places", replaced: "Replaced") -> None:
        """Note at which of the places that were read another record came, and in place of which ones."""
        if not replaced and not self._replaced:
            return
        changes = {
            place: replaced.get(place, ())
            for epoch, positions in places
            for place in zip(itertools.repeat(epoch), map(int, positions), strict=False)
            if place in replaced or place in self._replaced
        }
        self.take_changes(changes)
        self._changed.update(changes)
        while len(self._changed) > _MOST_REJECTED:
            self._changed.pop(next(iter(self._changed)), None)

    def changes(self) -> "Replaced":
        """Return what `settle` has noted since the last call."""
        found, self._changed = self._changed, {}
        return found

    def take_changes(self, changes: "Replaced") -> None:
        """Note what was noted in a worker process."""
        for place, rejected in changes.items():
            self._replaced.pop(place, None)
            if rejected:
                self._replaced[place] = rejected
        while len(self._replaced) > _MOST_REJECTED:
            self._replaced.pop(next(iter(self._replaced)), None)

    def replaced_at(self, places: "Places") -> "Iterator[tuple[int, int, int, Sequence[Rejected]]]":
        """Yield each place where another record came: its number among these, and in place of which ones."""
        if not self._replaced:
            return
        number = 0
        for epoch, positions in places:
            for position in map(int, positions):
                rejected = self._replaced.get((epoch, position))
                if rejected:
                    yield number, epoch, position, rejected
                number += 1

    def rejected_since(self, count: int) -> "list[tuple[Rejected, int, int]]":
        """Return each listed record but the first ones, with its attempt and the number of its stage."""
        entries = itertools.islice(self._rejected.items(), count, None)
        return [(rejected, attempt, stage) for (stage, _, _, attempt), rejected in entries]

    def rejected(self) -> "list[Rejected]":
        """Return the records that others replaced, in the order of their positions."""
        entries = sorted(self._rejected.items(), key=lambda entry: (*entry[0][1:], entry[0][0]))
        return [rejected for _, rejected in entries]


@frozen
class Run:
    """The records of one shard, in order, from `start` on. Immutable; pickles if the source does."""

    source: RandomAccess
    order: Order
    shard: Shard
    start: Point
    seed: int | None
    skip_shuffle_at_epoch_end: bool
    chain: "Chain | None" = None  # functions that the records pass through
    skipped: Skipped | None = None  # positions that are left out, if any; the shard does not count them
    counters: Counters = field(default_factory=Counters, compare=False)  # times and counts of reading

    @property
    def spec(self) -> Spec:
        """The structure of a record after the functions."""
        return (self.chain or self.source).spec

    @property
    def record_bytes(self) -> int:
        """The approximate size of a record, at least 1."""
        return max(1, (self.chain or self.source).record_bytes)

    @property
    def calls_functions(self) -> bool:
        """Whether a function of the user's is called with each record."""
        return self.chain is not None or any(view.stages for view in views_of(self.source))

    def at_once(self, size_bytes: int, records: int) -> int:
        """Return the number of records to read at a time: up to `size_bytes` and `records`, at least 1.

        Records with a function are read one by one, so that an error comes after the records before it.
        """
        return 1 if self.calls_functions else max(1, min(records, size_bytes // self.record_bytes))

    def stage_seed(self, seed: int | None) -> int:
        """Return the seed of a random function: the argument, or the seed of the order if it is None."""
        return (self.seed or 0) if seed is None else int_argument("seed", seed, None)

    def then(
        self, stages: "tuple[Stage, ...]", function: Callable[..., Any], seed: int | None
    ) -> "tuple[Stage, ...]":
        """Return the functions of batches with one more, numbered after the functions of records."""
        from yogadl._views.stages import Stage

        before = len(self.chain.stages) if self.chain else 0
        return (*stages, Stage.of(function, before + len(stages), seed))

    def through(
        self, function: Callable[..., Any], seed: int | None, spec: Any, options: "StageOptions"
    ) -> "Run":
        """Return the run whose records are passed through one more function; see `Chain`."""
        if self.order.lanes is not None and options.on_error == "substitute":
            raise ConfigurationError(
                'on_error="substitute" would put a record of another time into a sequence: leave broken '
                'records out before, ref.map(fn, on_error="skip").stream(...), or whole episodes by '
                "ref.filter"
            )
        from yogadl._views.functions import Chain  # imported only if functions are called

        chain = (self.chain or Chain(self.source, ())).then(function, seed, spec, options)
        return replace(self, chain=chain)

    def index(self, epoch: int, position: int, attempt: int) -> int:
        """Return the index of the record that an attempt puts in the place of that at a position."""
        are_kept = None if self.skipped is None else self.skipped.are_kept
        found = np.array([substitute(self.order, epoch, position, attempt, are_kept)], np.int64)
        return int(self.order.indices(found, 0 if self.skip_shuffle_at_epoch_end else epoch)[0])

    def reject(self, rejected: "Rejected", attempt: int, stage: "Stage") -> None:
        """Count a record that another one replaces; see `Counters.reject`."""
        # Of rows that each epoch makes anew, the same number is another row in each.
        is_row = self.source.numbered.is_drawn
        record = (rejected.epoch, rejected.index) if is_row else rejected.index
        self.counters.reject(rejected, attempt, stage, record)

    def settle(self, places: "Places", replaced: "Replaced") -> None:
        """Note where other records came; see `Counters.settle`."""
        self.counters.settle(places, replaced)

    def counted_anew(self) -> "Run":
        """Return the same run for another loader, with times and counts of its own."""
        return replace(self, counters=Counters())

    def require_batch(self, size: int | None, nodes: int = 1) -> None:
        """Refuse batches of another size than the order needs; None: the shards alone are checked.

        Each shard may be divided among nodes, too.

        Raises:
            ConfigurationError: if records follow one another in lanes, and a batch has not one of each.
        """
        lanes, ranks = self.order.lanes, self.shard.ranks * nodes
        if lanes is None:
            return
        if lanes % ranks:
            raise ConfigurationError(
                f"Sequences(lanes={lanes}) can't be divided among {ranks} shards: pass a number of lanes "
                f"that is a multiple of {ranks}"
            )
        if size is not None and size * ranks != lanes:
            raise ConfigurationError(
                f"a batch of Sequences(lanes={lanes}) over {ranks} shards has one record of each lane: its "
                f"size must be {lanes // ranks}, not {size}"
            )

    def require_undivided(self, workers: int, instead: str) -> None:
        """Refuse to let each worker make batches of some records of its own.

        Raises:
            ConfigurationError: if records follow one another in lanes, and there are several workers.
        """
        if self.order.lanes is not None and workers > 1:
            raise ConfigurationError(
                f"records of Sequences(lanes={self.order.lanes}) can't be divided among {workers} workers, "
                f"in whose batches a row would not go on with its episode: {instead}"
            )

    def skipping(self, skipped: Skipped) -> "Run":
        """Return the run that leaves out these positions, and no others, from the same place on.

        Raises:
            ConfigurationError: if records follow one another in time, of which none can be left out.
        """
        if self.order.lanes is not None and skipped.ranges:
            raise ConfigurationError(
                "Sequences can't leave out positions, since a lane would go on with another record: leave "
                "out whole episodes by ref.filter or ref.select, and begin without a cursor"
            )
        position = self.identity().skipped.place(self.start.position)
        start = Point(self.start.epoch, skipped.before(position))
        shard = replace(self.shard, records=skipped.kept)
        return replace(self, shard=shard, start=start, skipped=skipped if skipped.ranges else None)

    def resumed(self, cursor: Any, rebind: bool = False) -> "Run":  # Any: the cursor comes from a file
        """Return the run that starts at a cursor's place.

        Raises:
            CursorError: if `cursor` is no cursor, or belongs to other data or another order.
        """
        return replace(self, start=read_cursor(self.identity(), cursor, rebind))

    def identity(self) -> Identity:
        """Return the identity that a cursor of this run must match."""
        return Identity(
            skipped=self.skipped or Skipped((), self.shard.records),
            fingerprint=self.source.fingerprint,
            order=self.order.describe(),
            seed=self.order.seed,
            skip_shuffle_at_epoch_end=self.skip_shuffle_at_epoch_end,
            change=self.order.change,
            lineage=self._lineage,
            rows=self._rows,
            source=self.source,
        )

    @cached_property
    def _rows(self) -> str | None:
        """The composition of the records, unless each is one record of the data."""
        from yogadl._views.views import composition_of  # only cursors need it

        return composition_of(self.source)

    @cached_property
    def _lineage(self) -> Lineage | None:
        """The dataset version that is read, if all records of one are."""
        return lineage_of(self.source)

    @cached_property
    def block_ahead(self) -> "BlockAhead | MixedBlockAhead | None":
        """The reader of whole blocks of remote caches, or None if no shard has blocks of its own."""
        blocks, ranks = self.order.shuffled_blocks, self.shard.ranks
        if blocks is None or blocks.size < _BLOCK_RECORDS or blocks.lanes % ranks:
            return None
        from yogadl._order.mix import MixOrder  # not imported for other orders

        # With two of these, several ranks read from each lane, or it isn't known what a parent leaves out.
        if (ranks > 1) + isinstance(self.order, MixOrder) + (self.skipped is not None) > 1:
            return None
        if not any(isinstance(view, Stored) for view in views_of(self.source)):
            return None
        found = self.planned_blocks(None)
        return found if found.is_joined else None

    def planned_blocks(self, on_planned: "BlockPlanner | None") -> "BlockAhead | MixedBlockAhead":
        """Return the reader of blocks for a plan."""
        # Not imported for other orders.
        from yogadl._order.mix import MixOrder
        from yogadl._stream.block_ahead import BlockAhead, MixedBlockAhead

        source, shard, is_same = self.source, self.shard, self.skip_shuffle_at_epoch_end
        if isinstance(self.order, MixOrder):
            return MixedBlockAhead(source, self.order, shard, is_same, on_planned)
        return BlockAhead(source, self.order, shard, self.skipped, is_same, on_planned)

    def totals(self) -> Totals:
        """Return the times and counts of reading so far."""
        counters = self.counters
        requests, received_bytes = received_by(self.source)
        requests, received_bytes = requests + counters.requests, received_bytes + counters.received_bytes
        counts = counters.asked, counters.ready, requests, received_bytes, counters.rejections
        return Totals(counters.stages(), *counts)

    def numbering(self, cut: Cut) -> Numbering:
        """Return the items that the rows are cut into, numbered from `start` on."""
        lineage = self._lineage and replace(self._lineage, earlier=())  # many, and sent to other processes
        return Numbering(replace(self.identity(), lineage=lineage, source=None), self.shard, self.start, cut)

    def origin(self, epoch: int) -> int:
        """Return the position from which the rows of an epoch are counted: the run's own, or 0."""
        return self.start.position if epoch == self.start.epoch else 0

    def rows(self, point: Point, first: int, last: int) -> Rows:
        """Return rows `first` to `last - 1` of the epoch of `point`, counted from there."""
        shard = self.shard
        origin, step = point.position + shard.rank, shard.ranks
        positions = range(origin + first * step, origin + last * step, step)
        to_read = np.arange(positions.start, positions.stop, step, dtype=np.int64)
        places: range | Int64s = positions
        records = shard.records
        if self.skipped is not None:
            places, records = self.skipped.places(to_read), self.skipped.records
        # Only an epoch's last row can reach beyond the end; its record there is padding.
        if len(to_read) and positions[-1] >= shard.records:
            low = self.order.start(point.epoch)
            low = low if self.skipped is None else self.skipped.before(low)
            to_read[-1] = low + (to_read[-1] - shard.records) % (shard.records - low)
        if self.skipped is not None:
            to_read = self.skipped.places(to_read)
        indices = self.order.indices(to_read, 0 if self.skip_shuffle_at_epoch_end else point.epoch)
        return Rows(indices, ((point.epoch, places),), records)

    def rows_of(self, pieces: Pieces) -> Rows:
        """Return the rows of some consecutive items."""
        return joined([self.rows(*piece) for piece in pieces])

    def numbers(self, rows: Rows) -> Numbers:
        """Return the numbers by which users know the rows' records."""
        return self.source.user_numbers(rows.indices)

    def chunks(self, cut: Cut, start: Point, end: int | None) -> Iterator[Rows]:
        """Yield all rows from `start` to the epoch `end`, in chunks of many items; see `pieces_of`."""
        # In tiny epochs, filling a chunk would take a call for each of a thousand epochs.
        limit = min(INDICES_PER_CHUNK, 16 * self.shard.own(0)) if cut.across_epochs else INDICES_PER_CHUNK
        for pieces in pieces_of(self.shard, cut, start, end, max(1, limit // cut.size)):
            yield self.rows_of(pieces)

    def read(
        self, rows: Rows, fields: Sequence[int] | None = None, memory: Memory | None = None
    ) -> Sequence[Column]:
        """Read records: one column a field, or one for each of `fields`, gathered into `memory` if possible.

        Streams, adapters and worker processes read records only through this method, with rows that hold the
        position of each record.
        """
        if self.chain is not None:
            self.counters.check()
            found = self.chain.columns(rows.indices, rows.pieces, self.counters.add, memory, self)
            return found if fields is None else [found[number] for number in fields]
        began = perf_counter()
        if fields is None and memory is None:
            columns = self.source.columns(rows.indices)
        else:
            columns = self.source.columns(rows.indices, fields, memory)
        self.counters.add(READ, perf_counter() - began)
        return columns


# Announce records before they are read, so that the kernel can fetch those not in memory.


AHEAD_BYTES: Final = 32_000_000
_STEPS: Final = 8  # announcements for AHEAD_BYTES: small batches then cost a comparison each


def announce_rows(run: Run, rows: Rows) -> Announced:
    """Announce only these rows; other processes read the rows between them."""
    blocks = run.block_ahead
    if blocks is None:
        return run.source.will_need(rows.indices)
    return run.source.will_need(rows.indices[blocks.hold_and_find_missing(rows, is_shared=True)])


class Ahead:
    """Announces the records that follow those read: a few at first, then up to `AHEAD_BYTES`.

    Safe to use from several threads: at worst a record is announced twice.

    Args:
        run: The run of the records.
        rows: The rows that follow each other; their positions in the order may be unknown.
        on_planned: Called instead of each cache's announcement.
        blocks: The planned blocks, used instead of the run's.
        is_shared: Whether other processes read rows between these.
        is_in_order: Whether rows are asked for in order. Otherwise threads may ask for them in nearly this
            order, and what was announced of a stretch before them is held, too.
    """

    def __init__(
        self,
        run: Run,
        rows: Rows,
        on_planned: OnPlanned | None = None,
        blocks: "BlockAhead | MixedBlockAhead | None" = None,
        *,
        is_shared: bool = False,
        is_in_order: bool = True,
    ) -> None:
        self._source = run.source
        run.source.prepare(rows.indices)
        self._rows = rows
        self._on_planned = on_planned
        self._announced = 0
        # Where the rows of each announcement begin and end, and what keeps their bytes.
        self._held: list[tuple[int, int, tuple[object, ...]]] = []
        self._most = max(1, AHEAD_BYTES // run.record_bytes)
        self._behind = 0 if is_in_order else self._most
        self._is_shared = is_shared or any(
            isinstance(positions, range) and positions.step != run.shard.ranks for _, positions in rows.pieces
        )
        self._blocks = run.block_ahead if on_planned is None and rows.pieces else blocks
        if on_planned is None:
            held_bytes = None if self._blocks is None else self._blocks.held_bytes
            own, is_scattered = run.shard.own(0), isinstance(run.order, GlobalOrder)
            will_read(run.source, own, held_bytes=held_bytes, is_scattered=is_scattered)
        if self._blocks is not None and self._blocks.has_stores(is_shared=self._is_shared):
            self._most = min(self._most, self._blocks.most_rows)
        else:
            self._blocks = None

    def of(self, first: int, last: int) -> Rows:
        """Return rows `first` to `last - 1`, which are read next; announce the records after them.

        These are announced, too, if they were not. The rows returned hold the bytes that were announced.
        """
        total, ahead = len(self._rows), min(last, self._most)
        if self._announced < min(total, last + ahead - ahead // _STEPS):
            start, end = max(first, self._announced), min(total, last + ahead)
            rows, blocks = self._rows[start:end], self._blocks
            if blocks is not None and not blocks.continues(rows, is_shared=self._is_shared):
                rows = rows[: max(0, last - start)]  # these are needed at once, and perhaps no others are
            self._announced = start + len(rows)
            indices = (
                rows.indices
                if blocks is None
                else rows.indices[blocks.hold_and_find_missing(rows, is_shared=self._is_shared)]
            )
            announced = self._source.will_need(indices, on_planned=self._on_planned)
            if announced.held:
                self._held.append((start, self._announced, announced.held))
            self._announced += announced.spared
        found = self._rows[first:last]
        if self._held:
            self._held = [each for each in self._held if each[1] > first - self._behind]
            found.held = tuple(
                held for start, end, each in self._held if start < last and end > first for held in each
            )
        return found

    def let_go(self) -> None:
        """Keep no bytes that were announced but those that rows hold, which are being read."""
        self._held = []


# Compute rows that are requested in any order, a block of them at a time, and announce the next ones.


_KEPT: Final = 4  # blocks of rows


class RowBlocks:
    """Computes the rows of a run, requested in any order, a block at a time.

    Safe to use from any number of threads and after a fork.

    Args:
        run: The run.
        size: The usual number of rows in a request.
        announces: Whether to announce the rows that follow each request. This requires that all rows are
            requested here, and none of them in other processes.
    """

    def __init__(self, run: Run, size: int, *, announces: bool = True) -> None:
        self._run = run
        self._announces = announces
        self._block = max(1, INDICES_PER_CHUNK // size) * size
        # By origin and block: the block's rows, and the object that announces them.
        self._kept: OrderedDict[tuple[Point, int], tuple[Rows, Ahead]] = OrderedDict()
        self._lock = ProcessLock()

    def rows(self, origin: Point, first: int, last: int) -> Rows:
        """Return rows `first` to `last - 1` of the epoch of `origin`, counted from there; at least one."""
        found = []
        while first < last:
            block, within = divmod(first, self._block)
            rows, ahead = self._rows(origin, block)
            end = min(within + last - first, self._block)
            found.append(ahead.of(within, end) if self._announces else rows[within:end])
            first += end - within
        return joined(found)

    def _rows(self, origin: Point, block: int) -> tuple[Rows, Ahead]:
        with self._lock:
            found = self._kept.get((origin, block))
            if found is None:
                first = block * self._block
                last = min(first + self._block, self._run.shard.own(origin.position))
                rows = self._run.rows(origin, first, last)
                for _, before in list(self._kept.values())[:-1]:  # threads may still read the last rows
                    before.let_go()
                ahead = Ahead(self._run, rows, is_shared=not self._announces, is_in_order=False)
                found = self._kept[origin, block] = rows, ahead
                while len(self._kept) > _KEPT:
                    self._kept.popitem(last=False)
            return found
