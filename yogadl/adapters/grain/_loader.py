"""Hand a stream to Grain: as a `grain.DataLoader`, or as a `grain.MapDataset`."""

import inspect
import os
from collections.abc import Collection, Sequence
from typing import Any

import grain
from absl import flags

from yogadl._core.arguments import names_of, unknown_argument, whole
from yogadl._dataref import RecordsRef, takes_a_stream
from yogadl._stream import NumberedBatches, Numbering, RecordStream, as_stream
from yogadl.adapters._checks import SHARD_ARGUMENTS, cut_of, ranks_of, warn_if_unsharded
from yogadl.adapters.grain._assignment import Assignment, Operation, effect_of
from yogadl.adapters.grain._items import BatchItems, ItemsOrNone, RecordItems, StreamMapDataset
from yogadl.adapters.grain._numbering import length_of
from yogadl.adapters.grain._sampler import ItemSampler
from yogadl.errors import ConfigurationError

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
        padding_field: The name of a bool field to add; true for records that only repeat one to fill the
            shard.
        skip_finished_epoch: If no item is left in the cursor's epoch, read the next epoch instead of
            yielding nothing; see docs/howto/cursors.md.
        **options: The other arguments of `grain.DataLoader`. By default ``read_options`` sets no threads,
            which only help if reading waits; ``shard_options`` must agree with the stream.

    Raises:
        ConfigurationError: if an argument is invalid, or the stream is a loader already.

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
    numbering, items = _items_of(
        stream, epochs, batch_size, drop_remainder, padding_field, skip_finished_epoch
    )
    return _data_loader(numbering, items, list(operations), worker_count, options)


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
        padding_field: The name of a bool field to add; true for records that only repeat one to fill the
            shard.
        skip_finished_epoch: Start with the next epoch if no item is left in the cursor's epoch; needed for
            ``.repeat()``, which can't repeat an empty dataset.

    Raises:
        ConfigurationError: if an argument is invalid, or the stream is a loader already.

    Example:
        >>> import numpy as np, yogadl
        >>> from yogadl.adapters import grain as yogadl_grain
        >>> ref = yogadl.from_source({"x": np.arange(6)})
        >>> dataset = yogadl_grain.map_dataset(ref.stream(), batch_size=4).map(lambda batch: batch["x"] * 10)
        >>> [batch.tolist() for batch in dataset]
        [[0, 10, 20, 30], [40, 50]]
    """
    allow_workers()
    found = _items_of(stream, epochs, batch_size, drop_remainder, padding_field, skip_finished_epoch)
    return StreamMapDataset(*found)


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
) -> tuple[Numbering, RecordItems | BatchItems]:
    """Return the numbering of the items, and the reader of items by number: batches if a size is given."""
    stream = as_stream(stream)
    warn_if_unsharded(stream, ranks_of("jax"), SHARD_ARGUMENTS)
    cut = cut_of(batch_size, drop_remainder, epochs, skip_finished_epoch=skip_finished_epoch)
    stream = stream.past_finished(cut)
    numbering = stream.run.numbering(cut)
    cut.warn_if_finished(numbering.shard, cut.span(numbering.start))
    batches = NumberedBatches(
        stream, cut.size, drop_remainder, padding_field=padding_field
    )  # checks the field
    if batch_size is None:
        return numbering, RecordItems(stream, numbering, padding_field)
    return numbering, BatchItems(batches, numbering)


def _check_options(options: Collection[str], ours: Sequence[str]) -> None:
    """Refuse options that `grain.DataLoader` does not have, and options that the stream sets."""
    parameters = inspect.signature(grain.DataLoader).parameters
    known = [*ours, *(name for name in parameters if name not in ("data_source", "sampler", *ours))]
    for name in options:
        if name not in known:
            raise unknown_argument("make_dataloader", name, known, {"ref.stream": RecordsRef.stream})


def _data_loader(
    numbering: Numbering,
    source: RecordItems | BatchItems,
    operations: Sequence[Operation],
    worker_count: int | None,
    options: dict[str, Any],
) -> grain.DataLoader:
    """Return the loader; `options` are the other arguments of `grain.DataLoader`."""
    workers = os.cpu_count() or 1 if worker_count is None else whole("worker_count", worker_count)
    if workers:
        allow_workers()
    _check_shards(numbering, options.pop("shard_options", None))
    effect = effect_of(operations)
    assignment = Assignment(max(1, workers), effect.deal, length_of(numbering))
    is_random = not all(isinstance(operation, _WITHOUT_RNG) for operation in operations)
    sampler = ItemSampler(numbering, assignment, effect, is_random=is_random)
    items: RecordItems | BatchItems | ItemsOrNone = source
    if assignment.length != length_of(numbering):
        items, operations = ItemsOrNone(source), [_NotEmpty(), *operations]
    options.setdefault("read_options", grain.ReadOptions(0, 0))
    return grain.DataLoader(
        data_source=items, sampler=sampler, operations=operations, worker_count=workers, **options
    )


class _NotEmpty(grain.transforms.Filter):  # type: ignore[misc]  # of Any: Grain has no annotations
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
