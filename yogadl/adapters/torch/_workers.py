"""Start worker processes as PyTorch's DataLoader does, and send their tensors in shared memory."""

import multiprocessing
import pickle
import random
from collections.abc import Callable
from typing import Any, Final, TypedDict

import numpy as np
import torch

from yogadl._core.arguments import whole
from yogadl._core.frozen import frozen
from yogadl._stream import Names, WorkerOptions
from yogadl.errors import ConfigurationError

_NAMES: Final = Names("make_dataloader", "worker_init_fn", "timeout", "multiprocessing_context")
_FACTOR: Final = 2  # chunks of batches for each worker; DataLoader counts batches


class LoaderOptions(TypedDict, total=False):
    """The options with the names and meanings of `torch.utils.data.DataLoader`."""

    prefetch_factor: int | None
    persistent_workers: bool
    multiprocessing_context: Any  # a start method's name, or a context
    worker_init_fn: Callable[[int], None] | None
    timeout: float
    generator: Any  # a torch.Generator


def worker_options(workers: int, given: Any, transform: Any) -> WorkerOptions:
    """Return the options with which workers are started.

    Args:
        workers: The number of workers.
        given: The `LoaderOptions` that have a value.
        transform: The function that workers call, for messages.

    Raises:
        ConfigurationError: if an option is invalid.
    """
    context = given.get("multiprocessing_context") or multiprocessing.get_context()
    method = context if isinstance(context, str) else context.get_start_method()
    generator = given.get("generator")
    if generator is not None and not isinstance(generator, torch.Generator):
        raise ConfigurationError(f"generator must be a torch.Generator, not {generator!r}")
    initialize = given.get("worker_init_fn")
    if initialize is not None and not callable(initialize):
        raise ConfigurationError(
            f"worker_init_fn must be a function of a worker's number, not {initialize!r}"
        )
    return WorkerOptions(
        workers,
        begin=_Seeding(workers, initialize, generator),
        is_begun_by_pool=True,
        timeout_s=given.get("timeout") or None,
        method=method,
        is_persistent=bool(given.get("persistent_workers")),
        factor=whole("prefetch_factor", given.get("prefetch_factor", _FACTOR), 1),
        named=(("transform", transform), ("worker_init_fn", initialize)),
        preload=("yogadl.adapters.torch",),
        names=_NAMES,
    )


@frozen
class _Seeding:
    """Draw DataLoader's random seed for a pool of workers, and return the function that begins a worker."""

    workers: int
    initialize: Callable[[int], object] | None
    generator: Any

    def __call__(self) -> "_Begin":
        drawn = torch.empty((), dtype=torch.int64).random_(generator=self.generator)
        return _Begin(self.workers, self.initialize, int(drawn))


@frozen
class _Begin:
    """Begin a worker as DataLoader does: with seeds of its own, and one thread."""

    workers: int
    initialize: Callable[[int], object] | None
    seed: int

    def __call__(self, number: int) -> None:
        theirs = torch.utils.data._utils.worker
        torch.set_num_threads(1)
        seed = self.seed + number
        random.seed(seed)
        torch.manual_seed(seed)
        np.random.seed(theirs._generate_state(self.seed, number))
        theirs._worker_info = theirs.WorkerInfo(id=number, num_workers=self.workers, seed=seed, dataset=None)
        if self.initialize is not None:
            self.initialize(number)


def reduce_tensor(value: Any) -> Any:
    """Return how to pickle a tensor with its memory out of band; `NotImplemented` for any other value."""
    if type(value) is torch.Tensor and _is_plain(value):
        raw = value.contiguous().as_strided((value.numel(),), (1,)).view(torch.uint8).numpy().data
        return _tensor, (pickle.PickleBuffer(raw), value.dtype, tuple(value.shape))
    return NotImplemented


def _is_plain(tensor: Any) -> bool:
    """Return whether a tensor is plain memory on the CPU."""
    return bool(
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    )


def _tensor(raw: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    return torch.from_numpy(np.frombuffer(raw, np.uint8)).view(dtype).reshape(shape)
