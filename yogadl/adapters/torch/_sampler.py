"""Samplers of a DataLoader: a rank's share of the order of a stream, and the position to continue from."""

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
import torch.distributed as dist

from yogadl._core.arguments import bool_argument, int_argument
from yogadl._dataref import takes_a_stream
from yogadl._stream import (
    Cut,
    Point,
    Read,
    Recipe,
    RecordStream,
    Restartable,
    Run,
    Shard,
    StreamIterator,
    as_order,
    begin,
    write_cursor,
)
from yogadl.adapters._checks import cut_of, ranks_of, warn_if_unsharded
from yogadl.errors import ConfigurationError

# Find the share of the records that this process reads, from torch.distributed.


# A ProcessGroup or a DeviceMesh: torch need not be installed where the types are checked.
Group = Any

# The names of mesh dimensions along which ranks read different records. Along all other dimensions (tp, pp,
# cp, sp, ep and future ones) ranks must read the same records.
DATA_PARALLEL: Final = frozenset(
    {"dp", "ddp", "fsdp", "hsdp", "data", "data_parallel", "batch", "replicate", "shard"}
    | {"dp_replicate", "dp_shard", "dp_shard_mod_ep", "dp_shard_in_ep"}
)


def shards(group_or_mesh: Group = None) -> dict[str, int]:
    """Return the arguments for `ref.stream` that give this process its share.

    Args:
        group_or_mesh: The data-parallel process group; or a `DeviceMesh`: then only its dimensions with a
            name in `DATA_PARALLEL` (dp, dp_replicate, dp_shard, fsdp, data, ...) count, and ranks that differ
            only in other dimensions (tp, pp, cp, ...) read the same share. ``None``: every rank of the job
            reads its own share.

    Returns:
        ``{"shard_rank": ..., "num_shards": ...}``; a single shard if torch.distributed is not initialised.

    Raises:
        ConfigurationError: if this process is not in the group or mesh, or the mesh does not name its
            dimensions.

    Example:
        >>> import yogadl
        >>> from yogadl.adapters import torch as yogadl_torch
        >>> ref = yogadl.from_source([10, 11, 12])
        >>> stream = ref.stream(shuffle=True, **yogadl_torch.shards())
    """
    if group_or_mesh is not None and hasattr(group_or_mesh, "mesh_dim_names"):
        return _shard_of_mesh(group_or_mesh)
    if not (dist.is_available() and dist.is_initialized()):
        if group_or_mesh is not None:
            raise ConfigurationError(
                "torch.distributed is not initialised, so there are no process groups: call "
                "torch.distributed.init_process_group first, or pass nothing"
            )
        return _arguments_of_shard(0, 1)
    rank = dist.get_rank(group_or_mesh)
    if rank < 0:
        raise ConfigurationError(
            f"rank {dist.get_rank()} is not in the process group that was passed: pass the data-parallel "
            "group of this rank"
        )
    return _arguments_of_shard(rank, dist.get_world_size(group_or_mesh))


def _arguments_of_shard(rank: int, ranks: int) -> dict[str, int]:
    return {"shard_rank": rank, "num_shards": ranks}


def _shard_of_mesh(mesh: Any) -> dict[str, int]:
    names, sizes = mesh.mesh_dim_names, tuple(mesh.mesh.shape)
    if names is None:
        if len(sizes) > 1:
            raise ConfigurationError(
                f"the mesh of shape {sizes} does not name its dimensions: give init_device_mesh "
                "mesh_dim_names=('dp', 'tp') or the like, or pass mesh.get_group(dimension)"
            )
        names = ("dp",)
    chosen = [number for number, name in enumerate(names) if name in DATA_PARALLEL]
    if not chosen:
        raise ConfigurationError(
            f"no dimension of the mesh {tuple(names)} is known to be data-parallel, as 'dp' would be: pass "
            "mesh.get_group(name) of the data-parallel one, or leave shards out if every rank reads all "
            "records"
        )
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise ConfigurationError("this rank is not in the mesh that was passed: pass a mesh of this rank")
    rank = 0
    for number in chosen:
        rank = rank * sizes[number] + coordinate[number]
    return _arguments_of_shard(rank, math.prod(sizes[number] for number in chosen))


def dealt_out(stream: RecordStream, shard_rank: int, num_shards: int) -> RecordStream:
    """Return this rank's share of a stream that has no shards yet; the shares are of one length."""
    shard = stream.shard
    if shard.ranks > 1:
        return stream
    remainder = "drop" if shard.remainder == "uneven" else shard.remainder
    share = replace(shard, rank=shard_rank, ranks=num_shards, remainder=remainder)
    return RecordStream(replace(stream.run, shard=share))


def warn_of_shards(stream: RecordStream, cut: Cut) -> None:
    """Warn if all ranks of a job would read the same records, or have different numbers of batches."""
    ranks = ranks_of("torch")
    warn_if_unsharded(stream, ranks, "pass ref.stream(..., **yogadl.adapters.torch.shards(group_or_mesh))")
    if ranks > 1 and _is_uneven(stream, cut):
        warnings.warn(
            f"the {stream.shard.ranks} shards of {stream.shard.records} records have different numbers of "
            "batches, and ranks that wait for each other at each batch (DDP, FSDP) then wait for ever: pass "
            "drop_shard_remainder=True or pad_shard_remainder=True to ref.stream. If they don't wait for "
            "each other, ignore this",
            UserWarning,
            stacklevel=1,  # this file's line, not the caller's: Python then warns once a process
        )


def _is_uneven(stream: RecordStream, cut: Cut) -> bool:
    """Return whether some shards have more batches than others, in the first epoch or in whole ones."""
    shard = stream.shard
    if shard.remainder != "uneven":
        return False
    lengths = [shard.records - position for position in (stream.run.start.position, 0)]
    return any(cut.items(length // shard.ranks) != cut.items(-(-length // shard.ranks)) for length in lengths)


# The epoch that a trainer names, where the stream goes on at a cursor.


class TrainersEpochs:
    """Tells where the epoch begins that a trainer names by `set_epoch`.

    A stream that goes on at a cursor reads the rest of that epoch. A trainer that restores its own count
    wrongly, or not at all, names another one first; its later epochs are counted from there, so none is read
    twice or left out.
    """

    def __init__(self, shard: Shard, cut: Cut, begun: Point) -> None:
        self._shard, self._cut, self._begun = shard, cut, begun
        self._ahead: int | None = None  # of the trainer's count

    def place(self, epoch: int) -> Point:
        """Return where to begin.

        Raises:
            ConfigurationError: if `epoch` is no number of an epoch.
        """
        epoch = int_argument("epoch", epoch)
        if self._ahead is None:
            self._ahead = self._compare(epoch)
        epoch += self._ahead
        return self._begun if epoch == self._begun.epoch else Point(epoch, 0)

    def _compare(self, epoch: int) -> int:
        begun = self._begun
        is_over = not self._cut.items(self._shard.own(begun.position))
        if begun == Point(0, 0) or epoch in (begun.epoch, begun.epoch + is_over):
            return 0
        warnings.warn(
            f"the trainer begins its epoch {epoch}, and the stream goes on in epoch {begun.epoch}, where its "
            "cursor is: the stream's epoch is read, and later ones are counted from there",
            UserWarning,
            stacklevel=1,  # of no line of the user's: a trainer calls
        )
        return begun.epoch - epoch


# Samplers of a DataLoader: the order of a stream, and the position from which to continue.


@dataclass(frozen=True)
class _Indices:
    """Items that are indices: a single index, or the list of a batch's indices."""

    run: Run
    is_batched: bool

    def counted_anew(self) -> "_Indices":
        """Return the same for another sampler; see `Run.counted_anew`."""
        return replace(self, run=self.run.counted_anew())

    def reads(self, cut: Cut, start: Point, end: int | None) -> Iterator[Read]:
        """Yield the indices from `start` to the epoch `end`; no records are read."""
        for rows in self.run.chunks(cut, start, end):
            indices = rows.indices.tolist()
            if self.is_batched:
                indices = [indices[first : first + cut.size] for first in range(0, len(indices), cut.size)]
            yield len(indices), iter(indices)


class SamplerIterator(StreamIterator):
    """An iterator over indices; its state stays within the epoch, also after the last index.

    A DataLoader requests indices before it delivers records. The request for the last index therefore does
    not mean that the epoch is over. StatefulDataLoader records that itself.
    """

    __slots__ = ()

    def state_dict(self) -> dict[str, Any]:
        """Return the cursor after the indices requested so far."""
        progress, run = self._progress, self._recipe.run
        if progress.span is None or not progress.is_finished:
            return super().state_dict()
        return write_cursor(run.identity(), run.shard.end(progress.span.start))

    get_state = state_dict


class _StreamSampler(Restartable):
    """The indices of a stream: the common part of both samplers."""

    def __init__(self, stream: RecordStream, cut: Cut, *, is_batched: bool) -> None:
        self.stream = as_order(stream)
        if is_batched:
            stream.run.require_batch(cut.size)
        recipe = Recipe(_Indices(stream.run, is_batched), cut)
        warn_of_shards(stream, cut)
        self._read_by(recipe)
        self._epochs = TrainersEpochs(stream.shard, cut, stream.run.start)

    def __iter__(self) -> StreamIterator:
        return begin(self._recipe, self._claims, SamplerIterator)

    def set_epoch(self, epoch: int) -> None:
        """Let the next iterator read this epoch: trainers call it. See `IterableDataset.set_epoch`."""
        self._claims.restart(self._epochs.place(epoch))

    def load_state_dict(self, state: Mapping[str, Any], rebind: bool = False) -> None:
        """Have the next iterator start at a cursor, from which a trainer's epochs are counted anew."""
        super().load_state_dict(state, rebind)
        self._epochs = TrainersEpochs(self.stream.shard, self._recipe.cut, self._claims.next_span().start)

    set_state = load_state_dict

    def __len__(self) -> int:
        return self._recipe.cut.items(len(self.stream))


class Sampler(_StreamSampler, torch.utils.data.Sampler):  # type: ignore[misc]  # torch has no types where they are checked
    """The indices of a stream's records, one by one: a sampler for any DataLoader.

    Each `iter` is the stream's next epoch, of its own shard. The dataset must be of the same reference as the
    stream: ``DataLoader(Dataset(ref), batch_size=32, sampler=Sampler(ref.stream(shuffle=True)))``.

    `state_dict` is the cursor after the *requested* indices. In torchdata's StatefulDataLoader these are the
    delivered records; see `cursor`. A plain DataLoader with workers requests indices ahead: with that, count
    the delivered records yourself and call ``stream.cursor(delivered=...)``, or use `make_dataloader`.
    Picklable.

    Args:
        stream: The stream, of `DataRef.stream`. Records that pad its shard are yielded like all others.

    Raises:
        ConfigurationError: if `stream` is no stream of a reference.

    Example:
        >>> import yogadl
        >>> from yogadl.adapters import torch as yogadl_torch
        >>> ref = yogadl.from_source([10, 11, 12, 13, 14])
        >>> sampler = yogadl_torch.Sampler(ref.stream(shard_rank=1, num_shards=2))
        >>> list(sampler), len(sampler)
        ([1, 3], 2)
    """

    @takes_a_stream
    def __init__(self, stream: RecordStream) -> None:
        _StreamSampler.__init__(self, stream, Cut(), is_batched=False)


class BatchSampler(_StreamSampler, torch.utils.data.Sampler):  # type: ignore[misc]  # as for `Sampler`
    """Lists of indices, one for each batch: a batch sampler for any DataLoader; otherwise like `Sampler`.

    Args:
        stream: The stream, of `DataRef.stream`.
        batch_size: The number of records in a batch.
        drop_last: Whether to leave out an epoch's last batch if it is short.

    Raises:
        ConfigurationError: if an argument is invalid.

    Example:
        >>> import yogadl
        >>> from yogadl.adapters import torch as yogadl_torch
        >>> ref = yogadl.from_source([10, 11, 12, 13, 14])
        >>> sampler = yogadl_torch.BatchSampler(ref.stream(), 2)
        >>> list(sampler), len(sampler)
        ([[0, 1], [2, 3], [4]], 3)
    """

    @takes_a_stream
    def __init__(self, stream: RecordStream, batch_size: int, drop_last: bool = False) -> None:
        self.batch_size = int_argument("batch_size", batch_size, 1)
        self.drop_last = bool_argument("drop_last", drop_last)
        cut = cut_of(self.batch_size, self.drop_last)
        _StreamSampler.__init__(self, stream, cut, is_batched=True)
