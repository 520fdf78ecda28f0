"""Find the share of the records that this process reads, from torch.distributed."""

import math
import warnings
from typing import Any, Final

import torch.distributed as dist

from yogadl._stream import Cut, RecordStream
from yogadl.adapters._checks import ranks_of, warn_if_unsharded
from yogadl.errors import ConfigurationError

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
        return _of_mesh(group_or_mesh)
    if not (dist.is_available() and dist.is_initialized()):
        if group_or_mesh is not None:
            raise ConfigurationError(
                "torch.distributed is not initialised, so there are no process groups: call "
                "torch.distributed.init_process_group first, or pass nothing"
            )
        return _shard(0, 1)
    rank = dist.get_rank(group_or_mesh)
    if rank < 0:
        raise ConfigurationError(
            f"rank {dist.get_rank()} is not in the process group that was passed: pass the data-parallel "
            "group of this rank"
        )
    return _shard(rank, dist.get_world_size(group_or_mesh))


def _shard(rank: int, ranks: int) -> dict[str, int]:
    return {"shard_rank": rank, "num_shards": ranks}


def _of_mesh(mesh: Any) -> dict[str, int]:
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
            "mesh.get_group(name) of the one that is, or leave shards out if every rank reads everything"
        )
    place = mesh.get_coordinate()
    if place is None:
        raise ConfigurationError("this rank is not in the mesh that was passed: pass a mesh of this rank")
    rank = 0
    for number in chosen:
        rank = rank * sizes[number] + place[number]
    return _shard(rank, math.prod(sizes[number] for number in chosen))


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
