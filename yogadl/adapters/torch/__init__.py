"""Read PyTorch's datasets into caches, and hand streams to PyTorch.

The names of this module need PyTorch. docs/howto/pytorch.md compares them, and covers resuming and the use
with Accelerate, Lightning and the HF Trainer.
"""

from yogadl.adapters import _checks

_checks.require("torch", "datasets and DataLoaders of PyTorch need PyTorch: pip install 'yogadl[torch]'")

from yogadl.adapters.torch._iterable import IterableDataset
from yogadl.adapters.torch._loader import cursor, make_dataloader
from yogadl.adapters.torch._sampler import BatchSampler, Sampler, shards
from yogadl.adapters.torch._source import Dataset, source

__all__ = [
    "BatchSampler",
    "Dataset",
    "IterableDataset",
    "Sampler",
    "cursor",
    "make_dataloader",
    "shards",
    "source",
]
