"""Notice a stream that every rank of a job would read in full."""

import sys
import warnings

from yogadl._stream import RecordStream


def warn_of_no_shard(stream: RecordStream, backend: str) -> None:
    """Warn if the stream is unsharded, and Keras's backend says that the job has several ranks.

    tf.distribute is not asked: it shards what Keras makes of a dataset by itself.
    """
    count = _ranks(backend) if stream.shard.ranks == 1 else 1
    if count > 1:
        warnings.warn(
            f"the stream is unsharded, so each of the {count} ranks trains on every record: pass shard_rank= "
            "and num_shards= to ref.stream. If that is what you want, ignore this",
            UserWarning,
            stacklevel=1,  # at a place of ours, not the caller's: so Python shows it once a process
        )


def _ranks(backend: str) -> int:
    """Return how many ranks have found each other so far; nothing is imported, and nothing initialized."""
    module = sys.modules.get(backend)
    distributed = getattr(module, "distributed", None)
    is_initialized = getattr(distributed, "is_initialized", None)
    if module is None or distributed is None or is_initialized is None or not is_initialized():
        return 1
    return int(distributed.get_world_size() if backend == "torch" else module.process_count())
