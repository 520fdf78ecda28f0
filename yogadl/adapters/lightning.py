"""Hand a stream to Lightning: a data module whose checkpoints go on exactly, and a save in one rename.

Works with `lightning` and with `pytorch_lightning`, whichever is imported first (`lightning` if none is).
Written for and tested with Lightning 2.6.6. docs/howto/pytorch.md has a complete script.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from yogadl._core.arguments import names_of
from yogadl._stream import Cut, Loader, Point, RecordStream, as_stream, write_cursor
from yogadl.adapters._checks import cut_of, put_in_place, refuse_unknown, require, tried_with

_PACKAGES: Final = ("lightning.pytorch", "pytorch_lightning")


def _package() -> str:
    """Return the package of Lightning whose classes the script's own are made of."""
    for name in _PACKAGES:
        if name in sys.modules:
            return name
    names = (name for name in _PACKAGES if find_spec(name.partition(".")[0]) is not None)
    name = next(names, _PACKAGES[0])
    require(name, "a data module of Lightning needs Lightning: pip install lightning 'yogadl[torch]'")
    return name


_NAME: Final = _package()
_LightningDataModule: Any = import_module(_NAME).LightningDataModule
_TorchCheckpointIO: Any = import_module(f"{_NAME}.plugins").TorchCheckpointIO

tried_with(_NAME.partition(".")[0], "2.6")

from yogadl.adapters.torch import make_dataloader, shards
from yogadl.adapters.torch._loader import LoaderOptions
from yogadl.adapters.torch._sampler import dealt_out

__all__ = ["AtomicCheckpointIO", "DataModule"]

# Arguments that this module decides, and not the caller: Lightning begins the epochs.
_OURS: Final = frozenset({"stream", "batch_size", "epochs", "skip_finished_epoch"})
_CURSOR: Final = "cursor"  # the key in a checkpoint


class DataModule(_LightningDataModule):  # type: ignore[misc]  # Lightning is not installed where types are checked
    """A data module that trains on a stream, and saves the stream's cursor in each checkpoint.

    The loader is made when Lightning asks for it, because only then the number of ranks is known. A stream
    without shards is dealt out to the data-parallel ranks, as Lightning does it with a sampler; the last few
    records of each epoch's order are left out if they are not one for each rank. A stream that has shards is
    read as it is.

    A run that goes on from a checkpoint reads the next batch of the same epoch, also on another number of
    ranks or with another batch size: Lightning's count of the epoch's batches is then set to the place in the
    stream. If the checkpoint is of an epoch's end, the next epoch is read. A `fit` without a checkpoint
    begins where the stream does, unless its trainer has trained before.

    A subclass may have `val_dataloader` and all other methods of a data module. The methods of this class
    call `super()`. Picklable if the stream is.

    Args:
        stream: The stream to train on, of `DataRef.stream`.
        batch_size: The number of records in a batch of a rank; ``None``: the stream's items as they are,
            records or the batches of `DataRef.bucketed`.
        **options: All other arguments of `torch.make_dataloader`, such as ``num_workers``, ``drop_remainder``
            and ``transform``, without ``epochs`` and ``skip_finished_epoch``.

    Attributes:
        loader: The loader that the trainer reads, or ``None`` before it asked for one.

    Raises:
        ConfigurationError: if an argument is invalid.

    Example:
        >>> import numpy as np, yogadl
        >>> from yogadl.adapters.lightning import DataModule
        >>> ref = yogadl.from_source({"x": np.eye(5, dtype=np.float32), "y": np.arange(5)})
        >>> data = DataModule(ref.stream(), 2)
        >>> [batch["y"].tolist() for batch in data.train_dataloader()]
        [[0, 1], [2, 3], [4]]
    """

    def __init__(self, stream: RecordStream, batch_size: int | None = None, **options: Any) -> None:
        super().__init__()
        known = [name for name in names_of(make_dataloader) if name not in _OURS]
        refuse_unknown("DataModule", options, (*known, *LoaderOptions.__annotations__))
        self._stream = as_stream(stream)
        self._size, self._options = batch_size, options
        self._cut = cut_of(batch_size, options.get("drop_remainder", False), skip_finished_epoch=True)
        self._forget()

    def _forget(self) -> None:
        self.loader: Loader[Any] | None = None
        self._epochs: _Epochs | None = None
        self._cursor: Mapping[str, Any] | None = None

    def setup(self, stage: str) -> None:
        """Begin anew with a trainer that has not trained: it would count the stream's epochs from 0."""
        super().setup(stage)
        if stage == "fit" and not self.trainer.global_step:
            self._forget()

    def train_dataloader(self) -> Any:
        """Return the loader, which goes on at the checkpoint, or where the loader before it is."""
        at = self._epochs.state_dict() if self._epochs is not None else self._cursor
        self.loader = make_dataloader(self._dealt(), self._size, skip_finished_epoch=True, **self._options)
        self._epochs = _Epochs(self.loader, self._cut)
        if at is not None:
            self._epochs.load_state_dict(at)
            if self._cursor is not None and self.trainer is not None:
                _count_as(self.trainer, self._epochs.begun(), len(self.loader))
        self._cursor = None
        return self._epochs

    def _dealt(self) -> RecordStream:
        """Return this rank's share of the stream."""
        # Lightning's answer knows of meshes: ranks that differ only in tensor parallelism read the same.
        given = None if self.trainer is None else self.trainer.distributed_sampler_kwargs
        share = (
            shards() if given is None else {"shard_rank": given["rank"], "num_shards": given["num_replicas"]}
        )
        return dealt_out(self._stream, **share)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint contains: the cursor, or nothing before the first batch was asked for."""
        at = self._epochs.state_dict() if self._epochs is not None else self._cursor
        return {} if at is None else {_CURSOR: dict(at)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next loader go on at a checkpoint."""
        self._forget()
        self._cursor = state_dict.get(_CURSOR)


class _Epochs:
    """What Lightning reads: an epoch each `iter`. Its state is that of the loader, but never an epoch's end.

    At an epoch's end on two ranks a record may be left that only one rank would read, and a run that was
    stopped there must not read it.
    """

    def __init__(self, loader: Loader[Any], cut: Cut) -> None:
        self._loader, self._cut = loader, cut

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)

    def __len__(self) -> int:
        return len(self._loader)

    def begun(self) -> int | None:
        """Return the number of the epoch's batches before the loader's place, or None at its beginning."""
        shard, position = self._loader.stream.shard, self._place().position
        if not position:
            return None
        return len(self._loader) - self._cut.items(shard.own(position))

    def _place(self) -> Point:
        run = self._loader.stream.run.resumed(self._loader.state_dict())
        return self._cut.past_finished(run.shard, self._cut.span(run.start)).start

    def state_dict(self) -> dict[str, Any]:
        return write_cursor(self._loader.stream.run.identity(), self._place())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._loader.load_state_dict(state)


def _count_as(trainer: Any, begun: int | None, whole: int) -> None:
    """Set Lightning's counts of batches and epochs, which it has restored, to the place in the stream.

    Lightning counts an epoch's batches by the number of ranks that saved. It also takes a checkpoint of an
    epoch's last batch, or of its end, for one in mid-epoch: it then counts the next epoch as the same one, or
    (with ``max_steps``) reads one batch as an epoch of its own. Its counts have to be those of a run that has
    read so far.

    Args:
        trainer: The trainer, before it begins to train.
        begun: The number of batches that were read of the epoch, or None at an epoch's beginning.
        whole: The number of batches of a whole epoch.
    """
    loop = trainer.fit_loop.epoch_loop
    batches, epochs = loop.batch_progress, trainer.fit_loop.epoch_progress
    count = batches.current
    if not count.ready or not _reads_whole_epochs(trainer, whole):
        return  # no checkpoint was restored; or the epochs of Lightning are none of the stream
    is_saved_after_epoch = epochs.current.processed >= epochs.current.ready
    is_saved_after_batch = count.completed < count.processed
    shift = (whole if begun is None else begun) - count.ready
    for name in ("ready", "started", "processed", "completed"):
        setattr(count, name, getattr(count, name) + shift)
    if begun is None and (is_saved_after_epoch or is_saved_after_batch):
        batches.is_last_batch = False  # of the epoch that begins
        for epoch in (epochs.current, epochs.total):
            epoch.started = epoch.processed = epoch.completed = epoch.ready
        if is_saved_after_epoch:
            loop.restarting = False


def _reads_whole_epochs(trainer: Any, whole: int) -> bool:
    limit = trainer.limit_train_batches
    return limit is None or limit >= (1.0 if isinstance(limit, float) else whole)


_NEW: Final = "checkpoint.new"


class AtomicCheckpointIO(_TorchCheckpointIO):  # type: ignore[misc]  # as for `DataModule`
    """A plugin of the trainer that saves each checkpoint in one rename: ``Trainer(plugins=[...])``.

    Lightning writes a checkpoint to the folder for temporary files, and moves it. If that folder is on
    another disk, the move is a copy, and a kill leaves half a file. This plugin moves it to a name of its own
    in the checkpoint's folder, waits until it is on the disk, and renames it. A checkpoint with an address,
    such as ``s3://...``, is saved as Lightning does it.

    Example:
        >>> import tempfile, pathlib
        >>> from yogadl.adapters.lightning import AtomicCheckpointIO
        >>> path = pathlib.Path(tempfile.mkdtemp(), "last.ckpt")
        >>> AtomicCheckpointIO().save_checkpoint({"step": 3}, path)
        >>> AtomicCheckpointIO().load_checkpoint(path)
        {'step': 3}
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Save a checkpoint; a checkpoint that had this path stays whole until it is replaced."""
        if "://" in os.fspath(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        new = Path(path).with_name(_NEW)
        super().save_checkpoint(checkpoint, new, storage_options)
        put_in_place(new, Path(path))
