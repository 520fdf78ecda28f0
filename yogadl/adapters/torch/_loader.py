"""Make a DataLoader of a stream, of whole batches of tensors; find the cursor in a DataLoader's state."""

import multiprocessing
import pickle
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypedDict, Unpack

import numpy as np
import torch

from yogadl._core.arguments import bool_argument, int_argument, names_of
from yogadl._core.frozen import frozen
from yogadl._core.protocols import Made
from yogadl._stream import (
    Batches,
    Finish,
    Flags,
    Loader,
    Prefetch,
    Recipe,
    RecordStream,
    WorkerErrors,
    WorkerOptions,
    as_stream,
)
from yogadl.adapters._checks import check_function, cut_of, delivered_in_turn, map_leaves, refuse_unknown
from yogadl.adapters.torch._sampler import warn_of_shards
from yogadl.adapters.torch._source import to_tensors
from yogadl.errors import ConfigurationError, CursorError

# Start worker processes as PyTorch's DataLoader does, and send their tensors in shared memory.


_ERRORS: Final = WorkerErrors("make_dataloader", "worker_init_fn", "timeout", "multiprocessing_context")
_CHUNKS_PER_WORKER: Final = 2  # chunks of batches to read ahead; DataLoader's prefetch_factor counts batches


class LoaderOptions(TypedDict, total=False):
    """The options with the names and meanings of `torch.utils.data.DataLoader`."""

    prefetch_factor: int | None
    persistent_workers: bool
    multiprocessing_context: Any  # a start method's name, or a context
    worker_init_fn: Callable[[int], None] | None
    timeout: float
    generator: Any  # a torch.Generator


def worker_options(workers: int, options: Any, transform: Any) -> WorkerOptions:
    """Return the options with which workers are started.

    Args:
        workers: The number of workers.
        options: The `LoaderOptions` that have a value.
        transform: The function that workers call, for messages.

    Raises:
        ConfigurationError: if an option is invalid.
    """
    context = options.get("multiprocessing_context") or multiprocessing.get_context()
    method = context if isinstance(context, str) else context.get_start_method()
    generator = options.get("generator")
    if generator is not None and not isinstance(generator, torch.Generator):
        raise ConfigurationError(f"generator must be a torch.Generator, not {generator!r}")
    initialize = options.get("worker_init_fn")
    check_function("worker_init_fn", initialize, "a function of a worker's number")
    return WorkerOptions(
        workers,
        begin=_Seeding(workers, initialize, generator),
        is_begun_by_pool=True,
        timeout_s=options.get("timeout") or None,
        method=method,
        is_persistent=bool(options.get("persistent_workers")),
        factor=int_argument("prefetch_factor", options.get("prefetch_factor", _CHUNKS_PER_WORKER), 1),
        named=(("transform", transform), ("worker_init_fn", initialize)),
        preload=("yogadl.adapters.torch",),
        errors=_ERRORS,
    )


@frozen
class _Seeding:
    """Draw a seed for a pool of workers, as DataLoader does; return the function that begins each worker."""

    workers: int
    initialize: Callable[[int], object] | None
    generator: Any

    def __call__(self) -> "_WorkerSetup":
        drawn = torch.empty((), dtype=torch.int64).random_(generator=self.generator)
        return _WorkerSetup(self.workers, self.initialize, int(drawn))


@frozen
class _WorkerSetup:
    """Begin a worker as DataLoader does: with seeds of its own, and one thread."""

    workers: int
    initialize: Callable[[int], object] | None
    seed: int

    def __call__(self, number: int) -> None:
        torch_worker = torch.utils.data._utils.worker
        torch.set_num_threads(1)
        seed = self.seed + number
        random.seed(seed)
        torch.manual_seed(seed)
        np.random.seed(torch_worker._generate_state(self.seed, number))
        torch_worker._worker_info = torch_worker.WorkerInfo(
            id=number, num_workers=self.workers, seed=seed, dataset=None
        )
        if self.initialize is not None:
            self.initialize(number)


def reduce_tensor(value: Any) -> Any:
    """Return how to pickle a tensor with its memory out of band; `NotImplemented` for any other value."""
    if type(value) is torch.Tensor and _is_plain(value):
        raw = value.contiguous().as_strided((value.numel(),), (1,)).view(torch.uint8).numpy().data
        return _rebuilt_tensor, (pickle.PickleBuffer(raw), value.dtype, tuple(value.shape))
    return NotImplemented


def _is_plain(tensor: Any) -> bool:
    """Return whether a tensor is plain memory on the CPU."""
    return bool(
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    )


def _rebuilt_tensor(raw: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    return torch.from_numpy(np.frombuffer(raw, np.uint8)).view(dtype).reshape(shape)


_PINNED_AHEAD: Final = 2


def make_dataloader(
    stream: RecordStream,
    batch_size: int | None = None,
    num_workers: int = 0,
    *,
    drop_remainder: bool = False,
    epochs: int | None = 1,
    padding_field: str | None = None,
    pin_memory: bool = False,
    transform: Callable[[Any], Made] | None = None,
    skip_finished_epoch: bool = False,
    **options: Unpack[LoaderOptions],
) -> Loader[Made]:
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
        batch_size: The number of records in a batch; ``None``: the stream's items as they are, records or
            the batches of `DataRef.bucketed`.
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
    workers = int_argument("num_workers", num_workers)
    cut = cut_of(batch_size, drop_remainder, epochs, skip_finished_epoch=skip_finished_epoch)
    batches = TensorBatches(run, padding_field=padding_field, is_single=batch_size is None)
    check_function("transform", transform, "a function of a batch")
    given = _checked(options, workers)
    recipe = Recipe(batches, cut, () if transform is None else (partial(map, transform),))
    if workers:
        recipe = recipe.in_workers(worker_options(workers, given, transform))
    if bool_argument("pin_memory", pin_memory) and _should_pin():
        recipe = replace(recipe, stages=(*recipe.stages, partial(map, _pinned), Prefetch(_PINNED_AHEAD)))
    warn_of_shards(stream, cut)
    return Loader(stream, recipe)


def _checked(options: Any, workers: int) -> dict[str, Any]:
    """Check the options of DataLoader, and return those that have a value."""
    known = (*names_of(make_dataloader), *LoaderOptions.__annotations__)
    refuse_unknown("make_dataloader", options, known)
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
        assemble, convert = spec.assemble, to_tensors(spec)

        def finish(columns: Any, flags: Flags) -> Any:
            batch = assemble(self.values(convert(columns)))
            if name is not None:
                [batch[name]] = self.values([torch.from_numpy(flags)])
            return batch

        return finish


def _pinned(batch: Any) -> Any:
    return map_leaves(lambda leaf, _: leaf.pin_memory() if isinstance(leaf, torch.Tensor) else leaf, batch)


def _should_pin() -> bool:
    """Return whether there is an accelerator to pin memory for; without one, pinning only takes time."""
    if hasattr(torch, "accelerator"):  # since torch 2.6
        return (
            bool(torch.accelerator.is_available()) and torch.accelerator.current_accelerator().type != "mps"
        )
    return bool(torch.cuda.is_available())


# Find the cursor in a state of torchdata's StatefulDataLoader.


_CURSOR_KEY: Final = "yogadl"  # a key that each cursor has


def cursor(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cursor in a StatefulDataLoader's `state_dict`, to resume with any other loader.

    The cursor counts the delivered records, not those that workers had ready. If the epoch was read to its
    end, the cursor is at the start of the next one.

    Args:
        state_dict: The state of a StatefulDataLoader over yogadl's `Sampler`, `BatchSampler` or
            `IterableDataset`, with any number of workers. A cursor is returned as it is.

    Raises:
        CursorError: if the state has no cursor; or if the delivered records are not the beginning of the
            epoch: between snapshots (``snapshot_every_n_steps``), or if DataLoader makes batches of the
            records of several workers.

    Example:
        >>> import yogadl
        >>> from yogadl.adapters import torch as yogadl_torch
        >>> stream = yogadl.from_source([10, 11, 12]).stream()
        >>> yogadl_torch.cursor(stream.cursor(delivered=2))["position"]
        2
    """
    if _CURSOR_KEY in state_dict:
        return dict(state_dict)
    main, shares = _states_in(state_dict)
    last_cursor = (
        _cursor_of_shares(shares)
        if shares
        else _first_cursor(main, ("_sampler_iter_state", "_index_sampler_state"))
    )
    if last_cursor is None:
        raise CursorError(
            "there is no yogadl cursor in this state: save state_dict() of a StatefulDataLoader whose "
            "sampler, batch_sampler or dataset is of yogadl.adapters.torch"
        )
    if state_dict.get("_iterator_finished"):
        return {**last_cursor, "epoch": last_cursor["epoch"] + 1, "position": 0}
    return dict(last_cursor)


def _states_in(state: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[Mapping[str, Any]]]:
    """Return the state of the training process, and those of the iterators of `IterableDataset`."""
    snapshot = state.get("_snapshot")
    if snapshot is None:
        main, fetchers = state, [state.get("fetcher_state")]
    else:
        steps = state.get("_steps_since_snapshot", 0)
        if steps:
            were = "batch was" if steps == 1 else "batches were"
            raise CursorError(
                f"{steps} {were} delivered after the last snapshot of the workers: save when a multiple of "
                "snapshot_every_n_steps was delivered, or leave that at 1"
            )
        main = snapshot["_main_snapshot"]
        fetchers = [worker.get("fetcher_state") for worker in snapshot["_worker_snapshots"].values()]
    states = [fetcher.get("dataset_iter_state") for fetcher in fetchers if fetcher]
    return main, [
        share for share in states if isinstance(share, Mapping) and _CURSOR_KEY in share.get("cursor", ())
    ]


def _cursor_of_shares(shares: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the cursor after the items of all workers; refuse items that are not the first of the epoch."""
    workers = shares[0]["workers"]
    by_worker = sorted(shares, key=lambda share: share["worker"])
    if len(shares) != workers or delivered_in_turn([share["yielded"] for share in by_worker]) is None:
        counts = ", ".join(str(share["yielded"]) for share in shares)
        raise CursorError(
            f"the {workers} workers delivered {counts} items, which are not the first of the epoch: let the "
            "dataset make the batches (IterableDataset(stream, batch_size=...), DataLoader(batch_size=None)) "
            "or save when each worker delivered as many batches"
        )
    if all("end" in share for share in shares):
        return dict(shares[0]["end"])
    last = max(shares, key=lambda share: (share["cursor"]["epoch"], share["cursor"]["position"]))
    return dict(last["cursor"])


def _first_cursor(state: Any, keys: tuple[str, ...]) -> dict[str, Any] | None:
    """Return the first cursor under one of these keys, or under the keys in which samplers nest it."""
    for key in keys:
        inner = state.get(key)
        if isinstance(inner, Mapping):
            found = (
                dict(inner)
                if _CURSOR_KEY in inner
                else _first_cursor(inner, ("sampler_iter_state", "sampler_state"))
            )
            if found is not None:
                return found
    return None
