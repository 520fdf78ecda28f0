"""Hand a stream to Grain, as a `DataLoader` or a `MapDataset`, and turn Grain's states into cursors."""

import inspect
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

import grain
import numpy as np

from yogadl._core.arguments import int_argument, names_of
from yogadl._core.frozen import MANY_DIGITS, parse_json
from yogadl._dataref import takes_a_stream
from yogadl._stream import Cut, NumberedBatches, Numbering, RecordStream, as_order, as_stream, walk
from yogadl.adapters._checks import cut_of, ranks_of, refuse_unknown, warn_if_unsharded
from yogadl.adapters.grain._items import (
    Assignment,
    BatchItems,
    Effect,
    ItemsOrNone,
    Operation,
    RecordItems,
    StreamItems,
    StreamMapDataset,
    allow_workers,
    effect_of,
    from_json,
    length_of,
    random_key,
    to_json,
)
from yogadl.errors import ConfigurationError, CursorError

# Samplers of a `grain.DataLoader`, which return the number of the next record or batch.


_AT_ONCE: Final = 1024  # the number of records whose indices are computed together


class _ShardPlaces:
    """The places of one shard: numbers from 0, at which Grain reads its items.

    In Grain, place i of shard r of R has the index i * R + r.

    Attributes:
        numbering: The numbering of the items.
    """

    def __init__(self, numbering: Numbering, length: int) -> None:
        self.numbering = numbering
        self._rank, self._ranks = numbering.shard.rank, numbering.shard.ranks
        self._places = length
        # Grain reads this attribute if a DataLoader gets no shard_options.
        self._shard_options = grain.sharding.ShardOptions(self._rank, self._ranks)

    def __len__(self) -> int:
        """Return this shard's number of places times the number of shards, by which Grain divides it."""
        return min(sys.maxsize, self._places * self._ranks)

    def _place(self, index: int) -> int:
        place, rank = divmod(index, self._ranks)
        if rank != self._rank:
            raise ConfigurationError(
                f"the DataLoader reads shard {rank} of {self._ranks}, the stream is shard {self._rank}: "
                "leave out shard_options, since the stream sets the shard"
            )
        if not 0 <= place < self._places:
            raise IndexError(f"there is no place {place}: the sampler has {self._places}")
        return place

    def _rng(self, item: int) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(key=random_key(self.numbering, item)))


class IndexSampler(_ShardPlaces):
    """The records of a stream in its order, for a `grain.DataLoader` over `DataSource`.

    Immutable, thread-safe; picklable if the stream is. Every iteration of the loader begins at the stream's
    start. Grain's checkpoints contain the ``repr`` of the sampler, from which `cursor` computes the cursor.

    Args:
        stream: The stream, which sets the records, the start, the order and the shard. Leave out
            ``shard_options`` of the DataLoader, or pass the same shard.
        epochs: The number of epochs; ``None``: without end.

    Raises:
        ConfigurationError: if shards of unequal length would drift into different epochs.

    Example:
        >>> import grain, yogadl
        >>> from yogadl.adapters import grain as yogadl_grain
        >>> ref = yogadl.from_source([10, 11, 12, 13, 14])
        >>> sampler = yogadl_grain.IndexSampler(ref.stream(shard_rank=1, num_shards=2))
        >>> source = yogadl_grain.DataSource(ref)
        >>> [int(record) for record in grain.DataLoader(data_source=source, sampler=sampler)]
        [11, 13]
    """

    @takes_a_stream
    def __init__(self, stream: RecordStream, epochs: int | None = 1) -> None:
        numbering = as_order(stream).run.numbering(Cut(epochs=epochs))
        numbering.warn_if_finished()
        super().__init__(numbering, length_of(numbering))
        self._batches = NumberedBatches(stream, Cut(_AT_ONCE))
        self._computed_indices: tuple[int, int, list[int]] = (
            -1,
            0,
            [],
        )  # (epoch, number of the batch, indices)

    def __getitem__(self, index: int) -> grain.RecordMetadata:
        place = self._place(index)
        epoch, row = self.numbering.locate(place)
        number, within = divmod(row, _AT_ONCE)
        computed = self._computed_indices
        if computed[:2] != (epoch, number):
            computed = (epoch, number, self._batches.rows(epoch, number).indices.tolist())
            self._computed_indices = computed
        return grain.RecordMetadata(index, computed[2][within], self._rng(place))

    def __repr__(self) -> str:
        return f"yogadl.Sampler({json.dumps(to_json(self.numbering))})"


class ItemSampler(_ShardPlaces):
    """The numbers of items, records or batches, assigned to workers; after the last item, empty places.

    `is_random` tells whether any operation needs random generators, as making them doubles the time.
    """

    def __init__(
        self, numbering: Numbering, assignment: Assignment, effect: Effect, *, is_random: bool
    ) -> None:
        super().__init__(numbering, assignment.length)
        self._items = length_of(numbering)
        self._assignment = assignment
        self._effect = effect
        self._is_random = is_random

    def __getitem__(self, index: int) -> grain.RecordMetadata:
        item = min(self._assignment.item(self._place(index)), self._items)
        rng = self._rng(item) if self._is_random and item < self._items else None
        return grain.RecordMetadata(index, item, rng)

    def __repr__(self) -> str:
        described: dict[str, Any] = to_json(self.numbering)
        described["effect"] = asdict(self._effect)
        return f"yogadl.ItemSampler({json.dumps(described)})"


# Hand a stream to Grain: as a `grain.DataLoader`, or as a `grain.MapDataset`.


_SET_BY_STREAM: Final = ("data_source", "sampler")
_WITHOUT_RNG = (grain.transforms.Map, grain.transforms.Filter, grain.transforms.Batch)


def make_dataloader(
    stream: RecordStream,
    operations: Sequence[Any] = (),  # Grain's transformations have no common type
    worker_count: int | None = 0,
    *,
    epochs: int | None = 1,
    batch_size: int | None = None,
    drop_remainder: bool = False,
    padding_field: str | None = None,
    skip_finished_epoch: bool = False,
    **options: Any,  # further options of `grain.DataLoader`
) -> grain.DataLoader:
    """Return a `grain.DataLoader` that reads a stream; each iteration begins at the stream's start.

    With any number of workers, the output is in the stream's order, if all operations before
    ``grain.transforms.Batch`` are maps: each worker then makes whole batches. The generator of a random map
    depends on the stream's seed, the epoch and the record's position, not on the worker. `cursor` accepts the
    loader's iterators and states.

    Args:
        stream: The stream to read; it sets the records, the start, the order and the shard.
        operations: The transformations of each record (of each batch, if `batch_size` is given).
        worker_count: The number of processes that apply them; 0: none, ``None``: one for each CPU.
        epochs: The number of epochs to read; ``None``: without end.
        batch_size: The number of records in a batch; ``None``: the stream's items as they are, records or
            the batches of `DataRef.bucketed`. A batch is
            read in one step.
        drop_remainder: Whether to leave out an epoch's last batch if it is short.
        padding_field: The name of a bool field to add; true for a record that repeats another only to make
            the shards equally long.
        skip_finished_epoch: If no item is left in the cursor's epoch, read the next epoch instead of
            yielding nothing; see docs/howto/cursors.md.
        **options: The other arguments of `grain.DataLoader`. By default ``read_options`` sets no threads,
            which only help if reading waits; ``shard_options`` must agree with the stream.

    Raises:
        ConfigurationError: if an argument is invalid, or `stream` is a loader: what `stream.batch` returns.

    Example:
        >>> import grain, numpy as np, yogadl
        >>> from yogadl.adapters import grain as yogadl_grain
        >>> ref = yogadl.from_source({"x": np.arange(6)})
        >>> loader = yogadl_grain.make_dataloader(ref.stream(), [grain.transforms.Batch(4)])
        >>> [batch["x"].tolist() for batch in loader]
        [[0, 1, 2, 3], [4, 5]]
        >>> [batch["x"].tolist() for batch in yogadl_grain.make_dataloader(ref.stream(), batch_size=4)]
        [[0, 1, 2, 3], [4, 5]]
    """
    known = dict.fromkeys([*names_of(make_dataloader), *inspect.signature(grain.DataLoader).parameters])
    refuse_unknown("make_dataloader", options, [name for name in known if name not in _SET_BY_STREAM])
    items = _items_of(stream, epochs, batch_size, drop_remainder, padding_field, skip_finished_epoch)
    return _data_loader(items, list(operations), worker_count, options)


@takes_a_stream
def map_dataset(
    stream: RecordStream,
    batch_size: int | None = None,
    *,
    epochs: int | None = 1,
    drop_remainder: bool = False,
    padding_field: str | None = None,
    skip_finished_epoch: bool = False,
) -> StreamMapDataset:
    """Return a stream as a `grain.MapDataset`, of records or of batches, for the Dataset API.

    Element 0 is at the stream's start. ``.repeat()`` continues with the stream's next epochs, each in its own
    order. If the stream starts within an epoch, pass `epochs` instead of calling ``.repeat(n)``, which takes
    the length of the first, shorter epoch for that of all epochs. Pass ``grain.ReadOptions(0, 0)`` to
    ``to_iter_dataset``: Grain's default, 16 threads and 500 elements in memory, is made for slow reads.

    Args:
        stream: The stream to read; it sets the records, the start, the order and the shard.
        batch_size: The number of records in a batch; ``None``: the stream's items as they are, records or
            the batches of `DataRef.bucketed`. A batch is
            read in one step.
        epochs: The number of epochs that the dataset's length covers; ``None``: without end.
        drop_remainder: Whether to leave out an epoch's last batch if it is short.
        padding_field: The name of a bool field to add; true for a record that repeats another only to make
            the shards equally long.
        skip_finished_epoch: Start with the next epoch if no item is left in the cursor's epoch; needed for
            ``.repeat()``, which can't repeat an empty dataset.

    Raises:
        ConfigurationError: if an argument is invalid, or `stream` is a loader: what `stream.batch` returns.

    Example:
        >>> import numpy as np, yogadl
        >>> from yogadl.adapters import grain as yogadl_grain
        >>> ref = yogadl.from_source({"x": np.arange(6)})
        >>> dataset = yogadl_grain.map_dataset(ref.stream(), batch_size=4).map(lambda batch: batch["x"] * 10)
        >>> [batch.tolist() for batch in dataset]
        [[0, 10, 20, 30], [40, 50]]
    """
    allow_workers()
    items = _items_of(stream, epochs, batch_size, drop_remainder, padding_field, skip_finished_epoch)
    return StreamMapDataset(items)


def _items_of(
    stream: RecordStream,
    epochs: int | None,
    batch_size: int | None,
    drop_remainder: bool,
    padding_field: str | None,
    skip_finished_epoch: bool,
) -> StreamItems:
    """Return the reader of items by number: of batches if a size is given, else of records."""
    stream = as_stream(stream)
    warn_if_unsharded(stream, ranks_of("jax"))
    cut = cut_of(batch_size, drop_remainder, epochs, skip_finished_epoch=skip_finished_epoch)
    if batch_size is not None:
        stream.run.require_batch(cut.size)
    batches = NumberedBatches(stream, cut, padding_field=padding_field)
    batches.numbering.warn_if_finished()
    return RecordItems(batches) if batch_size is None else BatchItems(batches)


def _data_loader(
    source: StreamItems,
    operations: Sequence[Operation],
    worker_count: int | None,
    options: dict[str, Any],
) -> grain.DataLoader:
    """Return the loader; `options` are the other arguments of `grain.DataLoader`."""
    workers = os.cpu_count() or 1 if worker_count is None else int_argument("worker_count", worker_count)
    if workers:
        allow_workers()
    numbering = source.numbering
    _check_shards(numbering, options.pop("shard_options", None))
    effect = effect_of(operations)
    assignment = Assignment(max(1, workers), effect.deal, length_of(numbering))
    is_random = not all(isinstance(operation, _WITHOUT_RNG) for operation in operations)
    sampler = ItemSampler(numbering, assignment, effect, is_random=is_random)
    items: StreamItems | ItemsOrNone = source
    if assignment.length != length_of(numbering):
        items, operations = ItemsOrNone(source), [_DropEmptyPlaces(), *operations]
    options.setdefault("read_options", grain.ReadOptions(0, 0))
    return grain.DataLoader(
        data_source=items, sampler=sampler, operations=operations, worker_count=workers, **options
    )


class _DropEmptyPlaces(grain.transforms.Filter):  # type: ignore[misc]  # of Any: Grain has no annotations
    """A filter that drops empty places."""

    def filter(self, element: Any) -> bool:
        return element is not None


def _check_shards(numbering: Numbering, shards: grain.sharding.ShardOptions | None) -> None:
    """Raise a `ConfigurationError` if shard options differ from the stream's shard."""
    if shards is None:
        return
    shard = numbering.shard
    index, count = shards.shard_index, shards.shard_count
    if (index, count) != (shard.rank, shard.ranks):
        raise ConfigurationError(
            f"shard_options is shard {index} of {count}, the stream is shard {shard.rank} of {shard.ranks}: "
            f"pass ref.stream(shard_rank={index}, num_shards={count})"
        )
    if shards.drop_remainder and shard.remainder != "drop" and shard.records % shard.ranks:
        raise ConfigurationError(
            "shard_options drops the remainder, the stream does not: pass "
            "ref.stream(drop_shard_remainder=True)"
        )


# Turn a state of Grain into a cursor, if the delivered items are a prefix of the order.
#
# Grain's states count the items that each worker took. The number of delivered items depends on the
# transformations in between, so a state is refused if one of them may change the count.


# Grain has no annotations and no public names for the stages of a pipeline: `Any` stands for its iterators,
# datasets and states, and the sets below contain the names of its classes. Other classes are refused.
_DAMAGED: Final = "the state is damaged: use a state as get_state returned it"
_RESUME: Final = "resume from Grain's own state instead (set_state, or Orbax)"
_ONE_TO_ONE: Final = frozenset(
    {
        *("_MapDatasetIterator", "_RandomMapDatasetIterator", "_MapWithIndexDatasetIterator"),
        *("_LimitDatasetIterator", "ThreadPrefetchDatasetIterator"),
        *("MapIterDataset", "RandomMapIterDataset", "MapWithIndexIterDataset", "ThreadPrefetchIterDataset"),
        *("WithOptionsIterDataset", "_WithSeedIterDataset", "_MpContextIterDataset"),
        *("ProcessPrefetchIterDataset", "_LazyWorkerSliceIterDataset"),
        *("MapMapDataset", "RandomMapMapDataset", "MapWithIndexMapDataset", "_WithSeedMapDataset"),
    }
)
_BATCHES: Final = frozenset({"_BatchDatasetIterator", "BatchIterDataset"})
_MAP_READERS: Final = frozenset({"PrefetchDatasetIterator", "PrefetchIterDataset"})
_FILTERS: Final = frozenset({"_FilterDatasetIterator", "FilterIterDataset", "FilterMapDataset"})


def cursor(iterator_or_state: Any) -> dict[str, Any]:  # Grain's iterators, or their states
    """Return the cursor after the last element that an iterator of Grain has delivered.

    A job can resume from the cursor with any number of ranks or workers, any batch size and any framework:
    pass it to ``ref.stream(cursor=...)``. Reads no records.

    Args:
        iterator_or_state: An iterator of a `grain.DataLoader`, or of datasets that begin with `map_dataset`;
            or the result of an iterator's ``get_state`` if `make_dataloader` made the loader.

    Raises:
        CursorError: if the delivered items may not be the beginning of the order, or the state belongs to
            other data.

    Example:
        >>> import yogadl
        >>> from yogadl.adapters import grain as yogadl_grain
        >>> stream = yogadl.from_source([10, 11, 12, 13, 14]).stream()
        >>> batches = iter(yogadl_grain.make_dataloader(stream, batch_size=2))
        >>> next(batches).tolist()
        [10, 11]
        >>> yogadl_grain.cursor(batches)["position"], yogadl_grain.cursor(batches.get_state())["position"]
        (2, 2)
    """
    if isinstance(iterator_or_state, grain.DataLoaderIterator):
        return _cursor_of_loader(iterator_or_state)
    if isinstance(iterator_or_state, grain.DatasetIterator):
        return _cursor_of_dataset(iterator_or_state)
    state = iterator_or_state
    if isinstance(state, bytes | str):
        try:
            state = parse_json(state, most_digits=MANY_DIGITS)
        except ValueError:
            raise CursorError(f"this is no state of Grain's, which would be JSON: {state[:60]!r}") from None
    numbering, effect = _read_sampler(state)
    if effect is None:
        raise CursorError(
            "the state does not contain the DataLoader's operations, which decide how many records were "
            "delivered: pass the iterator itself, or use make_dataloader, whose states contain them"
        )
    return _cursor_of_counts(numbering, effect, _taken_counts(state, numbering), effect.deal)


def _cursor_of_counts(numbering: Numbering, effect: Effect, taken: list[int], deal: int) -> dict[str, Any]:
    """Return the cursor from the number of items that each worker took, assigned `deal` at a time."""
    if not effect.is_known:
        raise CursorError(
            "an operation that is not one of Grain's transformations may keep records that it took, so the "
            f"number of delivered records is not known: {_RESUME}"
        )
    delivered = Assignment(len(taken), deal, length_of(numbering)).delivered(taken)
    is_short = delivered is not None and delivered % effect.deal > 0
    return _cursor(numbering, delivered, effect.is_in_step, is_short)


def _cursor(numbering: Numbering, delivered: int | None, is_in_step: bool, is_short: bool) -> dict[str, Any]:
    """Return the cursor, or raise a `CursorError` if there is none for these items."""
    if delivered is None:
        raise CursorError(
            "the workers' records are no prefix of the order, since each worker makes its own batches: use "
            "make_dataloader, which gives each worker whole batches, or batch after the workers, or "
            f"{_RESUME}"
        )
    if not is_in_step and numbering.shard.ranks > 1:
        raise CursorError(
            "a filter, or another stage that changes how many records there are, takes the shards out of "
            f"step, so no cursor is valid for all of them: {_RESUME}"
        )
    # A short batch at the end of the items means the end itself: a shard that has one record less than the
    # others ends at the same position as they do.
    return numbering.cursor(delivered, is_end=is_short and delivered == numbering.length)


def _cursor_of_loader(iterator: Any) -> dict[str, Any]:
    loader = iterator._data_loader
    state = json.loads(iterator.get_state())
    numbering, effect = _read_sampler(state)
    taken = _taken_counts(state, numbering)
    if effect is not None:
        return _cursor_of_counts(numbering, effect, taken, effect.deal)
    shards, shard = loader._shard_options, numbering.shard
    if (shards.shard_index, shards.shard_count) != (shard.rank, shard.ranks):
        raise CursorError(
            f"the DataLoader reads shard {shards.shard_index} of {shards.shard_count} of the stream's "
            "records, but a cursor has no shard: pass the shard to ref.stream(shard_rank=..., "
            "num_shards=...) instead"
        )
    effect = effect_of(loader._operations)
    if len(taken) > 1 and effect.deal > 1:  # workers make the batches, so shards may be out of step, too
        effect = replace(effect, is_in_step=False)
    return _cursor_of_counts(numbering, effect, taken, 1)


def _read_sampler(state: Any) -> tuple[Numbering, Effect | None]:
    """Return the sampler's part of a state: the numbering, and the effect if the sampler recorded it."""
    sampler = state.get("sampler") if isinstance(state, Mapping) else None
    if not isinstance(sampler, str):
        raise CursorError(
            "the state has no sampler. The state of a grain.MapDataset or IterDataset does not identify its "
            "data: pass the iterator itself (after set_state). After a FlatMap there is no cursor: "
            f"{_RESUME}"
        )
    kind, _, text = sampler.partition("(")
    if kind not in ("yogadl.Sampler", "yogadl.ItemSampler"):
        raise CursorError(
            f"the order is that of {sampler[:80]}, but a cursor needs a sampler of yogadl: use "
            "make_dataloader"
        )
    try:
        described = parse_json(text[:-1], most_digits=MANY_DIGITS)
        numbering = from_json(described)
        if kind == "yogadl.Sampler":
            return numbering, None
        effect = Effect(**described["effect"])
        int_argument("deal", effect.deal, 1)
        return numbering, effect
    except (KeyError, TypeError, ValueError) as error:
        raise CursorError(_DAMAGED) from error


def _taken_counts(state: Any, numbering: Numbering) -> list[int]:
    """Return the number of items that each worker took, computed from the last index that it has seen."""
    rank, ranks = numbering.shard.rank, numbering.shard.ranks
    counts_and_rests = []
    try:
        workers, last = (
            max(1, int_argument("worker_count", state["worker_count"])),
            state["last_seen_indices"],
        )
        for worker in range(workers):
            first = rank + worker * ranks - workers * ranks  # Grain's value before the first item
            counts_and_rests.append(
                divmod(int_argument("last seen index", last[str(worker)] - first), workers * ranks)
            )
    except (KeyError, TypeError, ValueError) as error:
        raise CursorError(_DAMAGED) from error
    if any(rest for _, rest in counts_and_rests):
        raise CursorError(
            f"the state's 'last_seen_indices' {last!r} are not those of shard {rank} of {ranks}: use a state "
            "that this shard saved"
        )
    return [count for count, _ in counts_and_rests]


def _cursor_of_dataset(iterator: Any) -> dict[str, Any]:
    taken = _next_indices(iterator.get_state())
    delivered, size, is_in_step, is_short = None, 1, True, False
    for stage in _stages(iterator):
        name = type(stage).__name__
        if getattr(stage, "_sequential_slice", False) or getattr(stage, "part", None) is not None:
            raise CursorError(
                "with sequential_slice=True each worker reads a part of its own, so the delivered items are "
                f"no prefix of the order: {_RESUME}"
            )
        if isinstance(stage, StreamMapDataset):
            return _cursor(stage.numbering, delivered, is_in_step, is_short)
        if name in _FILTERS:
            is_in_step = False
        elif name in _BATCHES:
            size *= stage._batch_size
            is_in_step = is_in_step and (len(taken) == 1 or name != "BatchIterDataset")
        elif name in _MAP_READERS:
            delivered = Assignment(len(taken), 1, sum(taken)).delivered(taken)
            is_short = delivered is not None and delivered % size > 0
        elif name == "BatchMapDataset" and delivered:
            epoch, batches = walk(len(stage), len(stage), delivered)
            length, wanted = len(stage.parents[0]), batches * stage._batch_size
            delivered, is_short = epoch * length + min(length, wanted), is_short or wanted > length
        elif not (name in _ONE_TO_ONE or name == "BatchMapDataset" or _is_plain_repeat(stage)):
            raise CursorError(
                f"there is no cursor after a {name}, since the delivered items may be no prefix of the "
                f"order: {_RESUME}"
            )
    raise CursorError("the iterator does not read a stream of yogadl: begin with map_dataset(stream)")


def _is_plain_repeat(stage: Any) -> bool:
    return type(stage).__name__ == "RepeatMapDataset" and bool(stage._reseed_each_epoch)


def _stages(iterator: Any) -> Iterator[Any]:
    """Yield the stages of a pipeline from its end to its beginning: iterators, then their datasets."""
    stage = iterator
    while stage is not None:
        name = type(stage).__name__
        if (
            name == "InterleaveDatasetIterator"
        ):  # of mp_prefetch: a process for each of several equal datasets
            if {type(dataset).__name__ for dataset in stage._datasets} != {"ProcessPrefetchIterDataset"}:
                yield stage
                return
            stage = stage._datasets[0]
            continue
        yield stage
        if name == "PrefetchDatasetIterator":
            stage = stage._map_parent
            continue
        parents = stage._parents if isinstance(stage, grain.DatasetIterator) else stage.parents
        stage = parents[0] if len(parents) == 1 else None


def _next_indices(state: Any) -> list[int]:
    """Return the number of elements that each worker, or the only process, took of the `MapDataset`."""
    while "next_index" not in state:
        if "iterators_in_use_states" in state:
            indices, states = state["iterators_in_use_indices"], state["iterators_in_use_states"]
            found = {index: _next_indices(inner) for index, inner in zip(indices, states, strict=True)}
            return [count for index in sorted(found) for count in found[index]]
        if "parent" not in state:
            raise CursorError(f"there is no cursor for a state like {str(state)[:80]}: {_RESUME}")
        state = state["parent"]
    return [int(state["next_index"])]
