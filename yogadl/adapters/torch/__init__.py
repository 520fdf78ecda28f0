"""Read PyTorch's datasets into caches, and hand streams to PyTorch.

The names of this module need PyTorch. Which of them to take, how to go on after a stop, and how they go with
Accelerate, Lightning and the HF Trainer: docs/howto/pytorch.md.
"""

from yogadl.adapters import _checks

_checks.require("torch", "datasets and DataLoaders of PyTorch need PyTorch: pip install 'yogadl[torch]'")

from yogadl.adapters.torch._dataset import Dataset
from yogadl.adapters.torch._iterable import IterableDataset
from yogadl.adapters.torch._loader import make_dataloader
from yogadl.adapters.torch._sampler import BatchSampler, Sampler
from yogadl.adapters.torch._shards import shards
from yogadl.adapters.torch._source import source
from yogadl.adapters.torch._state import cursor

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
