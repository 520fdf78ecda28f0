"""Hand a stream to Grain, as a `DataLoader` or a `MapDataset`, and read Grain's datasets as sources."""

import inspect
import json
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

import grain
import numpy as np
from absl import flags

from yogadl._core.arguments import int_argument, names_of, unknown_argument
from yogadl._dataref import RecordsRef, takes_a_stream
from yogadl._sources.sources import IterableSource, Source
from yogadl._stream import Cut, NumberedBatches, Numbering, RecordStream, as_order, as_stream
from yogadl.adapters._checks import SHARD_ARGUMENTS, cut_of, ranks_of, warn_if_unsharded
from yogadl.adapters.grain._items import (
    Assignment,
    BatchItems,
    Effect,
    ItemsOrNone,
    Operation,
    RecordItems,
    StreamItems,
    StreamMapDataset,
    effect_of,
    length_of,
    random_key,
    to_json,
)
from yogadl.errors import ConfigurationError, UnsupportedDataError

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


class Sampler(_ShardPlaces):
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
        >>> sampler = yogadl_grain.Sampler(ref.stream(shard_rank=1, num_shards=2))
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
        batch_size: The number of records in a batch, which is read in one step; ``None``: single records.
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
    _check_options(options, names_of(make_dataloader))
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
        batch_size: The number of records in a batch, which is read in one step; ``None``: single records.
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


def allow_workers() -> None:
    """Let Grain start workers in a program that does not parse absl's flags, whose values Grain reads."""
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()


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
    warn_if_unsharded(stream, ranks_of("jax"), SHARD_ARGUMENTS)
    cut = cut_of(batch_size, drop_remainder, epochs, skip_finished_epoch=skip_finished_epoch)
    batches = NumberedBatches(stream, cut, padding_field=padding_field)
    batches.numbering.warn_if_finished()
    return RecordItems(batches) if batch_size is None else BatchItems(batches)


def _check_options(options: Collection[str], ours: Sequence[str]) -> None:
    """Refuse options that `grain.DataLoader` does not have, and options that the stream sets."""
    parameters = inspect.signature(grain.DataLoader).parameters
    known = [*ours, *(name for name in parameters if name not in ("data_source", "sampler", *ours))]
    for name in options:
        if name not in known:
            raise unknown_argument("make_dataloader", name, known, {"ref.stream": RecordsRef.stream})


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


# Read Grain's datasets and loaders as sources, in order.


# Grain's classes have no annotations, so `Any` stands for its datasets.

# A dataset without end has a length of `sys.maxsize`, or of `sys.maxsize` divided by the shards.
_ENDLESS: Final = sys.maxsize >> 20

# Map datasets that have an element at every index; in all others some elements may be missing.
_WITHOUT_GAPS: Final = frozenset(
    {
        *("SourceMapDataset", "RangeMapDataset", "StreamMapDataset", "MapMapDataset", "RandomMapMapDataset"),
        *("MapWithIndexMapDataset", "BatchMapDataset", "ShuffleMapDataset", "WindowShuffleMapDataset"),
        *("ConcatenateMapDataset", "MixedMapDataset", "ZipMapDataset", "_WithSeedMapDataset"),
        *("SliceMapDataset", "RepeatMapDataset"),
    }
)


def source(data: Any, allow_pickle: bool = False) -> Source | None:  # any object of Grain
    """Return the source in Grain's data, or ``None`` if it can be read by position, like any list.

    Args:
        data: A `grain.MapDataset`, `grain.IterDataset` or `grain.DataLoader`, of single records.
        allow_pickle: Whether leaves that have no stored form may be pickled.

    Raises:
        UnsupportedDataError: if the data never ends, or a record can't be stored.
    """
    if isinstance(data, grain.MapDataset):
        _require_end(data)
        if all(type(stage).__name__ in _WITHOUT_GAPS for stage in _stages(data)):
            return None
        data = data.to_iter_dataset(grain.ReadOptions(0, 0))
    elif isinstance(data, grain.IterDataset):
        _require_end(data)
    elif isinstance(data, grain.DataLoader):
        _require_end(data._dataset)
    else:
        return None
    allow_workers()
    return IterableSource(_elements(data), allow_pickle=allow_pickle)


def _elements(data: Any) -> Iterator[Any]:
    """Yield Grain's elements, then close Grain's iterator, which may have worker processes."""
    iterator = iter(data)
    try:
        yield from iterator
    finally:
        if isinstance(iterator, grain.DataLoaderIterator):
            iterator = iterator._iterator
        iterator.close()


def _stages(data: Any) -> Iterator[Any]:
    todo = [data]
    while todo:
        stage = todo.pop()
        yield stage
        todo += getattr(stage, "parents", ())


def _require_end(data: Any) -> None:
    for stage in _stages(data):
        name = type(stage).__name__
        is_endless = isinstance(stage, grain.MapDataset) and len(stage) >= _ENDLESS
        if is_endless or (name == "RepeatIterDataset" and stage._num_epochs is None):
            raise UnsupportedDataError(
                f"the data never ends, because of its {name}: give the number of epochs, 1 for a cache"
            )
