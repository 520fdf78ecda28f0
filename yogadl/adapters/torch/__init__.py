"""Read PyTorch's datasets into caches, and hand streams to PyTorch.

The names of this module need PyTorch. Which of them to take, how to go on after a stop, and how they go with
Accelerate, Lightning and the HF Trainer: docs/pytorch.md.
"""

from yogadl.errors import MissingDependencyError

try:
    import torch  # noqa: F401  (whether it is there is the question)
except ImportError as error:
    raise MissingDependencyError(
        "datasets and DataLoaders of PyTorch need PyTorch: pip install 'yogadl[torch]'"
    ) from error

from yogadl.adapters.torch._dataset import Dataset
from yogadl.adapters.torch._iterable import IterableDataset
from yogadl.adapters.torch._loader import make_dataloader
from yogadl.adapters.torch._sampler import BatchSampler, Sampler
from yogadl.adapters.torch._shards import shards
from yogadl.adapters.torch._source import source
from yogadl.adapters.torch._stateful import cursor

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
