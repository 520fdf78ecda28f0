"""Make a `grain.DataLoader` of a stream."""

import inspect
import os
from collections.abc import Collection, Sequence
from typing import Any

import grain
from absl import flags

from yogadl._arguments import unknown_argument, whole
from yogadl._dataref import RecordsRef
from yogadl._stream import Cut, NumberedBatches, Numbering, RecordStream, as_stream
from yogadl.adapters.grain._effect import Operation, effect_of
from yogadl.adapters.grain._numbering import length_of
from yogadl.adapters.grain._ranks import warn_of_no_shard
from yogadl.adapters.grain._sampler import ItemSampler
from yogadl.adapters.grain._sources import Batches, Dealt, Records
from yogadl.adapters.grain._turns import Turns
from yogadl.errors import ConfigurationError

_WITHOUT_RNG = (grain.transforms.Map, grain.transforms.Filter, grain.transforms.Batch)


def allow_workers() -> None:
    """Let Grain start workers in a program that does not parse absl's flags: it asks for their values."""
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()


def items_of(
    stream: RecordStream,
    epochs: int | None,
    batch_size: int | None,
    drop_remainder: bool,
    padding_field: str | None,
    skip_finished_epoch: bool,
) -> tuple[Numbering, Records | Batches]:
    """Return which items there are, and what reads them by number: records, or batches if there is a size.

    Raises:
        ConfigurationError: if the arguments make no sense.
    """
    stream = as_stream(stream)
    warn_of_no_shard(stream)
    if batch_size is None and drop_remainder:
        raise ConfigurationError("drop_remainder needs batch_size; for grain.transforms.Batch, pass it there")
    size = 1 if batch_size is None else batch_size
    cut = Cut(size, drop_remainder, epochs, skip_finished_epoch=skip_finished_epoch)
    stream = stream.past_finished(cut)
    numbering = stream.run.numbering(cut)
    batches = NumberedBatches(stream, size, drop_remainder, padding_field=padding_field)  # checks the field
    if batch_size is None:
        return numbering, Records(stream, numbering, padding_field)
    return numbering, Batches(batches, numbering)


def check_options(options: Collection[str], ours: Sequence[str]) -> None:
    """Refuse options that `grain.DataLoader` does not have, or that say what the stream says.

    Raises:
        ConfigurationError: names the first, and what was meant.
    """
    parameters = inspect.signature(grain.DataLoader).parameters
    known = [*ours, *(name for name in parameters if name not in ("data_source", "sampler", *ours))]
    for name in options:
        if name not in known:
            raise unknown_argument("make_dataloader", name, known, {"ref.stream": RecordsRef.stream})


def make_loader(
    numbering: Numbering,
    source: Records | Batches,
    operations: Sequence[Operation],
    worker_count: int | None,
    options: dict[str, Any],
) -> grain.DataLoader:
    """Return the loader; `options` are its other arguments.

    Raises:
        ConfigurationError: if they name other shards than the stream's.
    """
    workers = os.cpu_count() or 1 if worker_count is None else whole("worker_count", worker_count)
    if workers:
        allow_workers()
    _check_shards(numbering, options.pop("shard_options", None))
    effect = effect_of(operations)
    turns = Turns(max(1, workers), effect.deal, length_of(numbering))
    is_random = not all(isinstance(operation, _WITHOUT_RNG) for operation in operations)
    sampler = ItemSampler(numbering, turns, effect, is_random=is_random)
    read: Records | Batches | Dealt = source
    if turns.length != length_of(numbering):
        read, operations = Dealt(source), [_Filled(), *operations]
    options.setdefault("read_options", grain.ReadOptions(0, 0))
    return grain.DataLoader(
        data_source=read, sampler=sampler, operations=operations, worker_count=workers, **options
    )


class _Filled(grain.transforms.Filter):  # type: ignore[misc]  # of Any: Grain has no annotations
    """Drop empty places."""

    def filter(self, element: Any) -> bool:
        return element is not None


def _check_shards(numbering: Numbering, shards: grain.sharding.ShardOptions | None) -> None:
    """Refuse shard options that say anything but what the stream says."""
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
