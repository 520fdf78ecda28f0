"""Give Grain records and batches by number, and assign them to Grain's workers."""

import json
import math
import operator
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import grain
import numpy as np
from absl import flags

from yogadl._core.arguments import int_argument
from yogadl._core.protocols import RandomAccess
from yogadl._core.spec import Leaf
from yogadl._dataref import RecordsRef, as_ref
from yogadl._order import derive_key
from yogadl._stream import (
    INDICES_PER_CHUNK,
    Ahead,
    Cut,
    Identity,
    NumberedBatches,
    Numbering,
    Point,
    Rows,
    Shard,
    read_cursor,
)
from yogadl.adapters._checks import delivered_in_turn, with_padding
from yogadl.errors import ConfigurationError, CursorError

# Assign items to Grain's worker processes so that Grain delivers the workers' elements in order.
#
# Grain gives worker k of w every w-th item, k, k + w, ..., and takes one element from each worker in turn. If
# the workers batch their items, their batches are not the batches of the order, and the delivered items are
# no prefix of the order. Therefore the sampler assigns items by the batch: the j-th batch of worker k is
# batch j * w + k of the order. The number of items in a batch depends on the operations. A place is a number
# that Grain gives to a worker; the assignment maps it to the number of an item.


# Grain's transformations and operations have no common type.
Operation = Any

# Grain's own transformations that change the number of items, besides Batch; and those that keep it.
_CHANGE_ITEM_COUNT = (grain.transforms.Filter, grain.experimental.FlatMapTransform)
_ONE_TO_ONE = (grain.transforms.Map, grain.transforms.RandomMap, grain.transforms.TfRandomMap)


@dataclass(frozen=True)
class Effect:
    """The effect of operations on the number of items; Grain's checkpoints contain it as JSON.

    Attributes:
        deal: The items of one element (this name is in checkpoints): the product of the sizes of the batch
            operations before the first operation that may change the number of items otherwise.
        is_in_step: Whether only batching changes the number of items, so that all shards stay in step.
        is_known: Whether all operations are Grain's own. Another operation may take items and deliver none.
    """

    deal: int
    is_in_step: bool
    is_known: bool


def effect_of(operations: Sequence[Operation]) -> Effect:
    """Return the effect of operations on the number of items."""
    deal, is_in_step, is_known = 1, True, True
    for operation in operations:
        if isinstance(operation, grain.transforms.Batch):
            deal *= operation.batch_size if is_in_step else 1
        elif not isinstance(operation, _ONE_TO_ONE):
            is_in_step, is_known = False, is_known and isinstance(operation, _CHANGE_ITEM_COUNT)
    return Effect(deal, is_in_step, is_known)


@dataclass(frozen=True)
class Assignment:
    """The assignment of items to workers: integers only.

    Args:
        workers: The number of workers; 1 also if Grain uses none.
        deal: The number of consecutive items that one worker gets at a time: the items of one element that
            it delivers.
        items: The number of items; `sys.maxsize` if they are endless.
    """

    workers: int
    deal: int
    items: int

    @property
    def length(self) -> int:
        """The number of places that Grain divides among the workers; places after the end may be empty."""
        if self.workers == 1 or self.deal == 1 or self.items == sys.maxsize:
            return self.items
        round_items = self.workers * self.deal  # each worker gets one element's items
        return math.ceil(self.items / round_items) * round_items

    def item(self, place: int) -> int:
        """Return the item at a place; an item after the end means that the place is empty."""
        if self.workers == 1 or self.deal == 1:
            return place
        place_of_worker, worker = divmod(place, self.workers)
        element, within = divmod(place_of_worker, self.deal)
        return (element * self.workers + worker) * self.deal + within

    def delivered(self, taken: Sequence[int]) -> int | None:
        """Return the number of delivered items, or ``None`` if they are no prefix of the order.

        Args:
            taken: The number of items that each worker took for the delivered elements.
        """
        elements = []
        for worker, count in enumerate(taken):
            full, rest = divmod(count, self.deal)
            if rest:  # only the last element of all may have fewer items
                if (full * self.workers + worker) * self.deal + rest != self.items:
                    return None
                full += 1
            elements.append(full)
        total = delivered_in_turn(elements)
        return None if total is None else min(total * self.deal, self.items)


# Compute what Grain needs about numbered items: a length, random keys, and JSON for its checkpoints.
#
# Grain's checkpoints contain a numbering as JSON. A cursor can be computed from this JSON alone.


_KEY_USE = int.from_bytes(b"grain-1", "big")


def length_of(numbering: Numbering) -> int:
    """Return the number of items; `sys.maxsize`, Grain's value for endless data, if there is no end."""
    return sys.maxsize if numbering.length is None else numbering.length


def random_key(numbering: Numbering, number: int) -> int:
    """Return the key of an item's random generator, made of seed, epoch and the first record's position."""
    epoch, inside = numbering.locate(number)
    return derive_key(_KEY_USE, numbering.identity.seed or 0, epoch, numbering.position(epoch, inside))


def to_json(numbering: Numbering) -> dict[str, Any]:
    """Return the numbering as plain JSON."""
    shard, cut = numbering.shard, numbering.cut
    return {
        "start": numbering.cursor(0),
        "shard": [shard.rank, shard.ranks, shard.remainder],
        "cut": [cut.size, cut.drop_remainder, cut.epochs],
    }


def from_json(described: Any) -> Numbering:  # Any: the JSON comes from a file
    """Return the numbering in JSON of `to_json`, or raise a CursorError."""
    try:
        start, (rank, ranks, remainder) = described["start"], described["shard"]
        size, drop_remainder, epochs = described["cut"]
        identity = Identity.of(start)
        point = read_cursor(identity, start)
        shard = Shard(
            identity.skipped.kept, int_argument("rank", rank), int_argument("ranks", ranks, 1), remainder
        )
        return Numbering(identity, shard, point, Cut(size, drop_remainder, epochs))
    except (KeyError, TypeError, ValueError) as error:
        raise CursorError(
            "the state's sampler is damaged, use a state as get_state returned it: "
            f"{json.dumps(described)[:200]}"
        ) from error


# Give Grain records and batches by number: as random-access data sources, and as a map dataset.
#
# All classes here are safe to use from any number of threads and after a fork. An object is picklable if its
# source is.


# The bytes of records that one read ahead reads: few enough that they are still in the CPU's cache when Grain
# uses them, at 20 us a record. The number of records is limited too, and grows from the least to the most.
_AHEAD_BYTES: Final = 1_000_000
_MOST_RECORDS_AHEAD: Final = 1024
_LEAST_RECORDS_AHEAD: Final = 16


def described(kind: str, source: RandomAccess | RecordsRef) -> str:
    """Return the text by which Grain's checkpoints identify a data source, independent of its location."""
    return f"yogadl.{kind}(records={len(source)}, fingerprint={source.fingerprint!r})"


class DataSource:
    """The records of a `DataRef` by their index: a `grain.sources.RandomAccessDataSource`.

    It serves every sampler and every `grain.MapDataset.source`. It reads record by record, without knowledge
    of the records that follow; therefore `make_dataloader` and `map_dataset` are faster.

    Args:
        ref: The records.

    Raises:
        ConfigurationError: if `ref` has no random access.

    Example:
        >>> import grain, numpy as np, yogadl
        >>> from yogadl.adapters import grain as yogadl_grain
        >>> ref = yogadl.from_source({"x": np.arange(5)})
        >>> source = yogadl_grain.DataSource(ref)
        >>> list(grain.MapDataset.source(source).map(lambda record: int(record["x"])))
        [0, 1, 2, 3, 4]
    """

    def __init__(self, ref: RecordsRef) -> None:
        self._ref = as_ref(ref)
        self._name = described("DataSource", ref)

    def __len__(self) -> int:
        return len(self._ref)

    def __getitem__(self, index: Any) -> Any:
        return self._ref.__getitems__([index])[0]

    def _getitems(self, indices: Sequence[int]) -> list[Any]:
        """Read many records at once: Grain calls this method where it can."""
        return self._ref.__getitems__(indices)

    def __repr__(self) -> str:
        return self._name


class _Upcoming(NamedTuple):
    """Items to read one after another: their numbers, their rows, and the object that announces the rows."""

    numbers: range
    rows: Rows
    ahead: Ahead


class _ThreadState(threading.local):
    """A thread's last read, the records that it has read ahead, and the items to read next."""

    def __init__(self) -> None:
        self.last = -1
        self.step = 0
        self.count = 0
        self.ready: dict[int, Any] = {}
        self.upcoming: _Upcoming | None = None


class StreamItems:
    """The items of a stream, by number.

    Attributes:
        numbering: The numbers of the items.
    """

    _kind: str  # in the text by which Grain's checkpoints identify the items

    def __init__(self, batches: NumberedBatches) -> None:
        self.numbering = batches.numbering
        self._batches = batches

    def __len__(self) -> int:
        return length_of(self.numbering)

    def __repr__(self) -> str:
        return described(self._kind, self._batches.stream.source)

    def __getitem__(self, number: Any) -> Any:
        raise NotImplementedError

    def element_spec(self) -> Any:
        """Return the tree of an item with shape and dtype of each leaf."""
        spec = with_padding(self._batches.stream.spec, self._batches.padding_field)
        return spec.assemble([self._leaf_spec(field.leaf) for field in spec.fields])

    def _leaf_spec(self, leaf: Leaf) -> "ElementSpec":
        raise NotImplementedError


class RecordItems(StreamItems):
    """The records of a stream, by number.

    If every w-th record is read, for any w, the next records are read ahead, many at once, separately for
    each thread. A returned record belongs to the caller; a second request for its number reads it again.
    """

    _kind = "Records"

    def __init__(self, batches: NumberedBatches) -> None:
        super().__init__(batches)
        self._run = run = batches.stream.run
        self._padding_field = batches.padding_field
        self._most_ahead = run.at_once(_AHEAD_BYTES, _MOST_RECORDS_AHEAD)
        self._thread = _ThreadState()

    def __reduce__(self) -> Any:
        return RecordItems, (self._batches,)

    def _leaf_spec(self, leaf: Leaf) -> "ElementSpec":
        if leaf.shape is None:
            return ElementSpec((), np.dtype(object))
        return ElementSpec(leaf.shape, leaf.numpy_dtype)

    def __getitem__(self, number: Any) -> Any:  # called once a record: benchmarks/grain_loader.py
        thread = self._thread
        step = number - thread.last
        is_steady = step == thread.step and step > 0
        thread.last, thread.step = number, step
        if number in thread.ready:
            return thread.ready.pop(number)
        thread.count = min(self._most_ahead, max(_LEAST_RECORDS_AHEAD, 2 * thread.count)) if is_steady else 1
        thread.ready = self._read(operator.index(number), thread.count, max(1, step))
        return thread.ready.pop(number)

    def _read(self, number: int, count: int, step: int) -> dict[int, Any]:
        """Read `count` records, every `step`-th of an epoch; if there are several, announce the next ones."""
        upcoming = self._thread.upcoming
        if upcoming is None or number not in upcoming.numbers or step != upcoming.numbers.step:
            upcoming = self._thread.upcoming = self._upcoming(
                number, INDICES_PER_CHUNK if count > 1 else 1, step
            )
        first = upcoming.numbers.index(number)
        last = min(len(upcoming.rows), first + count)
        run = self._run
        rows = upcoming.ahead.of(first, last) if count > 1 else upcoming.rows[first:last]
        records = run.spec.records(run.read(rows), len(rows))
        if self._padding_field is not None:
            for record, is_padding in zip(records, rows.padding, strict=True):
                record[self._padding_field] = is_padding
        return dict(zip(upcoming.numbers[first:last], records, strict=True))

    def _upcoming(self, number: int, count: int, step: int) -> _Upcoming:
        """Return every `step`-th of the next `count` rows of an epoch."""
        epoch, row = self.numbering.locate(number)
        run = self._run
        point = Point(epoch, run.origin(epoch))
        rows = run.rows(point, row, min(row + count, run.shard.own(point.position)))[::step]
        return _Upcoming(range(number, number + len(rows) * step, step), rows, Ahead(run, rows))


class BatchItems(StreamItems):
    """The batches of a stream, by number."""

    _kind = "Batches"

    def __getitem__(self, number: Any) -> Any:
        return self._batches.batch(*self.numbering.locate(number))

    def _leaf_spec(self, leaf: Leaf) -> "ElementSpec":
        size = self.numbering.cut.size if self.numbering.cut.drop_remainder else None
        if not leaf.is_fixed:  # a list in a batch
            return ElementSpec((size,), np.dtype(object))
        return ElementSpec((size, *(leaf.shape or ())), leaf.numpy_dtype)


class ItemsOrNone:
    """Items by number, and ``None`` at the number after the last item, for an empty place.

    Grain gives all workers the same number of places, but the last batch of some workers is short or missing.
    """

    def __init__(self, source: StreamItems) -> None:
        self._source = source
        self._empty = len(source)

    def __len__(self) -> int:
        return self._empty + 1

    def __repr__(self) -> str:
        return repr(self._source)

    def __getitem__(self, number: Any) -> Any:
        return None if number == self._empty else self._source[number]


@dataclass(frozen=True)  # not a tuple, which Grain would take for a tree
class ElementSpec:
    """The shape and dtype of one leaf: Grain's `ShapeDtypeStructProtocol`."""

    shape: tuple[int | None, ...]
    dtype: np.dtype[Any]


class StreamMapDataset(grain.MapDataset):  # type: ignore[misc]  # of Any: Grain has no annotations
    """A stream's items, records or batches, as a map dataset; `map_dataset` returns it.

    Its length is the number of items. An index after the end belongs to a later epoch, as `repeat` requires,
    and a negative index counts from the end. Immutable, thread-safe; picklable if the stream is.

    Attributes:
        numbering: The numbers of the items.
        part: The numbers in this part, if the dataset is one of several consecutive parts; else ``None``.
    """

    def __init__(self, source: StreamItems) -> None:
        super().__init__()
        self.numbering = source.numbering
        self._source = source
        self.part: range | None = None

    def __len__(self) -> int:
        return length_of(self.numbering) if self.part is None else len(self.part)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        number = operator.index(index)
        if number < 0:
            number = self._from_the_end(number)
        if self.part is None:
            return self._source[number]
        if number >= len(self.part):
            raise ConfigurationError(
                f"element {number} was requested of a part of {len(self.part)}: after sequential_slice=True "
                "Grain's repeat() would read the parts of other workers, too. Pass epochs= to map_dataset "
                "instead of calling repeat(), or leave sequential_slice out"
            )
        return self._source[self.part[number]]

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Keep part `sl.start` of `sl.step` consecutive parts: Grain calls this on a copy for each worker.

        Raises:
            ConfigurationError: if the dataset has no end.
        """
        assert sequential_slice, "Grain itself makes any other slice, and does not call this method"
        if self.numbering.cut.epochs is None:
            raise ConfigurationError(
                "a dataset without end (epochs=None) has no consecutive parts: pass a number of epochs, or "
                "leave sequential_slice out"
            )
        size, more = divmod(length_of(self.numbering), sl.step)
        first = sl.start * size + min(sl.start, more)
        self.part = range(first, first + size + (sl.start < more))

    @property
    def _element_spec(self) -> Any:  # a tree like the element
        return self._source.element_spec()

    def _from_the_end(self, number: int) -> int:
        """Return the number for a negative index, modulo the length as in Grain's sources."""
        if self.numbering.cut.epochs is None or not len(self):
            what = "without end" if len(self) else "without elements"
            raise IndexError(f"a dataset {what} has no element {number}")
        return number % len(self)

    def to_iter_dataset(
        self, read_options: grain.ReadOptions | None = None, *, allow_nones: bool = False
    ) -> grain.IterDataset:
        """Return the dataset to iterate over; by default without threads, which would only slow it down."""
        options = grain.ReadOptions(0, 0) if read_options is None else read_options
        return super().to_iter_dataset(options, allow_nones=allow_nones)

    def __str__(self) -> str:
        return f"StreamMapDataset({self._source!r})"


def allow_workers() -> None:
    """Let Grain start workers in a program that does not parse absl's flags, whose values Grain reads."""
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
