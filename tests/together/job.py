"""Say what one rank of a training run reads, as JSON that any process can take up."""

import json
from dataclasses import asdict, dataclass
from typing import Any

import yogadl

SIZES = (503, 120, 7)  # of the caches that conftest.py makes: together/503 and so on


@dataclass(frozen=True)
class Job:
    """What one rank reads: which cache, which share of it, in which batches, and from where on.

    The records are {"id": int64, "x": float32[3]}; an id is the number of its record. They are shuffled.

    Args:
        storage: The folder of the storage.
        dataset_id: Which cache.
        version: Which version of it.
        rank: Which rank this is.
        ranks: Of how many.
        batch_size: Records in a batch of this rank.
        workers: Processes that read ahead, if the framework has such; else how many batches it reads ahead.
        seed: Of the shuffle.
        epochs: How many epochs to read, counted from that of the cursor.
        cursor: Where to go on; ``None``: at the start.
        drop_shard_remainder: Leave out the last records that don't go round.
        pad_shard_remainder: Repeat the first ones instead.
    """

    storage: str
    dataset_id: str
    version: str
    rank: int = 0
    ranks: int = 1
    batch_size: int = 1
    workers: int = 0
    seed: int = 0
    epochs: int = 1
    cursor: dict[str, Any] | None = None
    drop_shard_remainder: bool = False
    pad_shard_remainder: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> "Job":
        return Job(**json.loads(text))

    def ref(self) -> yogadl.RecordsRef:
        """Open the cache."""
        return yogadl.open_storage(self.storage).fetch(self.dataset_id, self.version)

    def stream(self) -> Any:
        """Open this rank's stream, which starts at the cursor."""
        return self.ref().stream(
            shuffle=True,
            shuffle_seed=self.seed,
            shard_rank=self.rank,
            num_shards=self.ranks,
            drop_shard_remainder=self.drop_shard_remainder,
            pad_shard_remainder=self.pad_shard_remainder,
            cursor=self.cursor,
        )
