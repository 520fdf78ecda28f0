"""Make a DataLoader of a stream: whole batches of tensors, from this process or from workers."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final, Unpack

import torch

from yogadl._core.arguments import flag, names_of, unknown_argument, whole
from yogadl._core.frozen import frozen
from yogadl._dataref import RecordsRef
from yogadl._stream import (
    Batches,
    Finish,
    Flags,
    Loader,
    Prefetch,
    Recipe,
    RecordStream,
    as_stream,
)
from yogadl.adapters._checks import cut_of
from yogadl.adapters._trees import map_leaves
from yogadl.adapters.torch._shards import warn_of_shards
from yogadl.adapters.torch._tensors import converters
from yogadl.adapters.torch._workers import LoaderOptions, reduce_tensor, worker_options
from yogadl.errors import ConfigurationError

_PINNED_AHEAD: Final = 2


def make_dataloader(
    stream: RecordStream,
    batch_size: int,
    num_workers: int = 0,
    *,
    drop_remainder: bool = False,
    epochs: int | None = 1,
    padding_field: str | None = None,
    pin_memory: bool = False,
    transform: Callable[[Any], Any] | None = None,
    skip_finished_epoch: bool = False,
    **options: Unpack[LoaderOptions],
) -> Loader:
    """Return a loader for a training loop: batches of tensors, each gathered in one step.

    Each `iter` reads the stream's next epoch (or the next `epochs`). The batches and their order are those
    of ``stream.batch(batch_size)``, with any number of workers. A batch has the tree of a record, with
    tensors for arrays; nothing else reads or writes their memory. Bytes, str and values of varying length
    are lists; dates stay numpy arrays.

    `state_dict` is the cursor: it counts the batches that the loop received, not those that workers have
    ready. A cursor can be used with any number of workers and ranks, and in any framework. `load_state_dict`
    takes a cursor; `torch.distributed.checkpoint` can call both, too. An error in a worker keeps its type.
    Picklable.

    Args:
        stream: The stream to read, of `DataRef.stream`.
        batch_size: The number of records in a batch.
        num_workers: The number of processes that read; 0: only this process, which is fastest unless
            functions take much time.
        drop_remainder: Leave out an epoch's last batch if it is short.
        epochs: The number of epochs that one iterator reads; ``None``: without end.
        padding_field: The name of a bool field to add; true for records that only repeat one to fill the
            shard.
        pin_memory: Copy batches into page-locked memory, in a thread, two ahead.
        transform: A function of a batch, called in the worker; its result is delivered.
        skip_finished_epoch: For trainers that begin epochs at their own times (HF Trainer, Lightning). If
            ``True``, each iteration continues where the last one stopped, even if no cursor was saved; if no
            batch is left in that epoch, it reads the next one. If ``False``, each iteration reads the next
            epoch; the first one after a cursor reads the rest of the cursor's epoch, which may be empty.
        **options: ``prefetch_factor``, ``persistent_workers``, ``multiprocessing_context``,
            ``worker_init_fn``, ``timeout`` and ``generator``, as for `torch.utils.data.DataLoader`.

    Raises:
        ConfigurationError: if an argument is invalid.

    Example:
        >>> import numpy as np, yogadl
        >>> from yogadl.adapters import torch as yogadl_torch
        >>> ref = yogadl.from_source({"x": np.eye(5, dtype=np.float32), "y": np.arange(5)})
        >>> loader = yogadl_torch.make_dataloader(ref.stream(), batch_size=2)
        >>> [batch["y"] for batch in loader]
        [tensor([0, 1]), tensor([2, 3]), tensor([4])]
        >>> loader.load_state_dict(loader.stream.cursor(delivered=2))
        >>> next(iter(loader))["y"]
        tensor([2, 3])
    """
    run = as_stream(stream).run
    workers = whole("num_workers", num_workers)
    size = whole("batch_size", batch_size, 1)
    cut = cut_of(size, drop_remainder, epochs, skip_finished_epoch=skip_finished_epoch)
    batches = TensorBatches(run, padding_field=padding_field)
    if transform is not None and not callable(transform):
        raise ConfigurationError(f"transform must be a function of a batch, not {transform!r}")
    given = _checked(options, workers)
    recipe = Recipe(batches, cut, () if transform is None else (partial(map, transform),))
    if workers:
        recipe = recipe.in_workers(worker_options(workers, given, transform))
    if flag("pin_memory", pin_memory) and _can_pin():
        recipe = replace(recipe, stages=(*recipe.stages, partial(map, _pinned), Prefetch(_PINNED_AHEAD)))
    warn_of_shards(stream, cut)
    return Loader(stream, recipe)


def _checked(options: Any, workers: int) -> dict[str, Any]:
    """Return the options of DataLoader that have a value, after checking them."""
    known = (*names_of(make_dataloader), *LoaderOptions.__annotations__)
    for name in options.keys() - known:
        raise unknown_argument("make_dataloader", name, known, {"ref.stream": RecordsRef.stream})
    given = {name: value for name, value in options.items() if value is not None and value is not False}
    for name in ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout"):
        if given.get(name, 0) != 0 and not workers:  # a `timeout` of 0 is no timeout
            raise ConfigurationError(f"{name} is about worker processes: pass num_workers=1 or more with it")
    return given


@frozen
class TensorBatches(Batches):
    """Items that are batches of tensors."""

    reduce = staticmethod(reduce_tensor)

    def finish(self) -> Finish:
        """Return a function that makes a batch of its columns and padding flags."""
        spec, name = self.run.spec, self.padding_field
        assemble, convert = spec.assemble, converters(spec)

        def finish(columns: Any, flags: Flags) -> Any:
            batch = assemble([to(column) for to, column in zip(convert, columns, strict=True)])
            if name is not None:
                batch[name] = torch.from_numpy(flags)
            return batch

        return finish


def _pinned(batch: Any) -> Any:
    return map_leaves(lambda leaf, _: leaf.pin_memory() if isinstance(leaf, torch.Tensor) else leaf, batch)


def _can_pin() -> bool:
    """Return whether there is an accelerator to pin memory for; without one, pinning only takes time."""
    if hasattr(torch, "accelerator"):  # since torch 2.6
        return (
            bool(torch.accelerator.is_available()) and torch.accelerator.current_accelerator().type != "mps"
        )
    return bool(torch.cuda.is_available())
