"""Notice a stream that every process of a job would read in full."""

import sys
import warnings

from yogadl._stream import RecordStream


def warn_of_no_shard(stream: RecordStream) -> None:
    """Warn if the stream is unsharded, and JAX says that the job has several processes."""
    count = _processes() if stream.shard.ranks == 1 else 1
    if count > 1:
        warnings.warn(
            f"the stream is unsharded, so each of the {count} processes reads every record: pass shard_rank= "
            "and num_shards= to ref.stream. If that is what you want, ignore this",
            UserWarning,
            stacklevel=1,  # at a place of ours, not the caller's: so Python shows it once a process
        )


def _processes() -> int:
    """Return how many processes have found each other so far; imports and initializes nothing."""
    jax = sys.modules.get("jax")
    is_initialized = getattr(getattr(jax, "distributed", None), "is_initialized", None)
    return int(jax.process_count()) if jax and is_initialized and is_initialized() else 1
