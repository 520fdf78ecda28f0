"""The share of the records that each process of a job reads, and a check of it."""

import jax

from yogadl._stream import RecordStream
from yogadl.adapters._checks import warn_if_unsharded
from yogadl.errors import ConfigurationError


def shards() -> dict[str, int]:
    """Return the arguments of `DataRef.stream` that give each process of the job its own share.

    Use them only without a sharding; with a sharding, all processes read the whole stream.

    Example:
        >>> import yogadl
        >>> from yogadl.adapters import jax as yogadl_jax
        >>> yogadl_jax.shards()
        {'shard_rank': 0, 'num_shards': 1}
        >>> stream = yogadl.from_source(range(10)).stream(**yogadl_jax.shards(), drop_shard_remainder=True)
    """
    return {"shard_rank": jax.process_index(), "num_shards": jax.process_count()}


def check_share(stream: RecordStream, spanned: int | None) -> None:
    """Check that the stream's shard fits the sharding: raise if not, warn if all processes read all.

    A batch lies on the devices of `spanned` processes; ``None``: there is no sharding.
    """
    shard, processes = stream.shard, jax.process_count()
    if shard.ranks > 1 and spanned == processes:
        raise ConfigurationError(
            "with a sharding each process finds its own rows of the job's batches, but the stream is shard "
            f"{shard.rank} of {shard.ranks} already: open it without shard_rank and num_shards"
        )
    if (spanned or 1) < processes:
        mend = "open it with **yogadl.adapters.jax.shards(), or pass a sharding over all devices"
        warn_if_unsharded(stream, processes, mend)
