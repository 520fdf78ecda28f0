"""Let a Trainer of Hugging Face, and those built on it (trl's, your own), go on at the exact record.

A Trainer finds its place in the data by reading again what it had read, on the same number of ranks, and
counts epochs by its steps. Here the place is a cursor in each checkpoint, and the Trainer's counts follow it.

Run with transformers 5.24 and trl 1.16.
"""

import functools
import inspect
import itertools
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from yogadl._core.frozen import frozen
from yogadl._core.protocols import DataRef
from yogadl._dataref import RecordsRef, from_source
from yogadl._stream import Loader, MakeInWorkers, Point, RecordStream, Shard, as_stream
from yogadl.errors import ConfigurationError, CursorError, MissingDependencyError

try:
    import datasets
    import torch
    import transformers
    from torch.utils.data import RandomSampler, SequentialSampler
    from transformers.trainer import TRAINER_STATE_NAME
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, has_length
except ImportError as error:
    raise MissingDependencyError(
        "exact Trainers need transformers, PyTorch and datasets: pip install 'yogadl[hf,torch]' transformers"
    ) from error

from yogadl.adapters._checks import tried_with
from yogadl.adapters.datasets import StreamDataset, to_hf
from yogadl.adapters.torch import make_dataloader
from yogadl.adapters.torch._sampler import dealt_out

__all__ = ["exact"]

# transformers and torch have no types where they are checked: `Any` stands for their objects throughout.

_TRIED: Final = {"transformers": "5.24", "trl": "1.16"}
_OURS: Final = frozenset({"_prepare_dataset", "_place", "_stream", "_load", "_steps"})  # of no Trainer
CURSOR_NAME: Final = "yogadl_cursor.json"
TrainerT = TypeVar("TrainerT", bound=type)


def exact(trainer: TrainerT) -> TrainerT:
    """Return a subclass of a Trainer that goes on at the exact record; all else is as in the Trainer.

    Its `train_dataset` is a reference, a stream, a loader of `torch.make_dataloader`, or any dataset with a
    length and items. Each checkpoint has the cursor. ``train(resume_from_checkpoint=True)`` goes on at the
    newest whole one, on any number of ranks and with other batches, and begins anew if there is none.

    Args:
        trainer: `transformers.Trainer`, or any subclass of it, such as those of `trl`.

    Raises:
        ConfigurationError: if `trainer` is no Trainer, or of a version that has not the methods that are
            overridden.

    Example:
        >>> import transformers
        >>> from yogadl.adapters.transformers import exact
        >>> exact(transformers.Trainer).__name__
        'ExactTrainer'
    """
    if not issubclass(trainer, transformers.Trainer):
        raise ConfigurationError(f"exact takes the class transformers.Trainer or a subclass, not {trainer!r}")
    made: TrainerT = _exact(trainer)
    return made


@functools.cache
def _exact(trainer: Any) -> Any:
    if issubclass(trainer, _Exact):
        return trainer
    for name in vars(_Exact).keys() - {"__init__", *vars(_Anything)}:
        if callable(getattr(_Exact, name)) and name not in _OURS and not hasattr(transformers.Trainer, name):
            raise ConfigurationError(
                f"the Trainer of transformers {transformers.__version__} has no {name}, which exact needs: "
                f"install {_TRIED['transformers']}"
            )
    for package, version in _TRIED.items():
        if any(base.__module__.partition(".")[0] == package for base in trainer.__mro__):
            tried_with(package, version)
    names = {"__doc__": trainer.__doc__, "__module__": __name__}
    return type(f"Exact{trainer.__name__}", (_Exact, trainer), names)


_Anything: Any = object  # the Trainer comes behind it


class _Exact(_Anything):  # type: ignore[misc]  # untyped
    """The methods of an exact Trainer that replace a Trainer's own; a base of each before the Trainer."""

    _stands_in: Any = None  # for a stream, in the Trainer's own checks and preparations
    _joins_rows = False  # of a stream, by the Trainer's own collator
    _data: str | None = None  # the fingerprint of a reference or dataset
    _resumed: "_CursorCheckpoint | None" = None
    _group: tuple[int, Any] = -1, None  # the step of the newest batches, and the cursor before them
    _loader: Any = None  # of this training

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        inits: Any = super().__init__
        bound = inspect.signature(inits).bind_partial(*args, **kwargs)
        extra: dict[str, Any] = {}  # of a subclass that passes its arguments on
        for name, parameter in bound.signature.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                extra = bound.arguments.get(name, {})
        given = bound.arguments if "train_dataset" in bound.arguments else extra
        data = given.get("train_dataset")
        if isinstance(data, StreamDataset):
            data = data.stream
        if isinstance(data, RecordStream | Loader):
            self._stands_in = given["train_dataset"] = _first_row(data)
            has_collator = any(one.get("data_collator") is not None for one in (bound.arguments, extra))
            self._joins_rows = isinstance(data, RecordStream) and not has_collator
        elif isinstance(data, DataRef):
            given["train_dataset"] = data = _dataset_of(data)
        if isinstance(data, datasets.Dataset):
            self._data = data._fingerprint
        for arguments in bound.arguments, extra:
            evaluated = arguments.get("eval_dataset")
            if isinstance(evaluated, RecordStream):
                raise ConfigurationError(
                    "eval_dataset can't be a stream: pass the reference, or make_dataloader(stream, ...)"
                )
            if isinstance(evaluated, DataRef):
                arguments["eval_dataset"] = _dataset_of(evaluated)
        inits(*bound.args, **bound.kwargs)
        if self._stands_in is not None:
            if getattr(self.args, "precompute_ref_log_probs", False):  # of some of trl's arguments
                raise ConfigurationError(
                    "precompute_ref_log_probs adds a column to a dataset: pass the reference instead of a "
                    "stream of it, train_dataset=ref"
                )
            self.train_dataset = data
        self.callback_handler.callbacks.insert(0, _EpochProgress())

    def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Leave a stream as it is, where trl would tokenise it and make labels of masks."""
        if dataset is not self._stands_in:
            return super()._prepare_dataset(dataset, *args, **kwargs)
        if not self._joins_rows:
            return dataset
        if any(getattr(given, "packing", False) for given in (*args, *kwargs.values())):
            raise ConfigurationError(
                "packing=True packs a dataset that trl prepares, which a stream is not: leave it out, and "
                "pack the stream, ref.packed(...).stream(...)"
            )
        names = dataset.column_names
        masks = {"completion_mask", "assistant_masks"} & set(names)
        if masks and "labels" not in names:
            raise ConfigurationError(
                f"of {', '.join(sorted(masks))} trl makes labels when it prepares a dataset, which a stream "
                "is not: give the records 'labels', -100 where nothing is to be learnt, or pass the reference"
            )
        if not any(name.endswith("ids") for name in names):
            raise ConfigurationError(
                f"the stream's records, with {', '.join(names)}, are not tokenised, and trl tokenises only a "
                "dataset: pass the reference, train_dataset=ref, or map the stream to token ids"
            )
        return dataset

    # The loader.

    def _get_dataloader(
        self,
        dataset: Any,
        description: str,
        batch_size: int,
        sampler_fn: Callable[[Any], Any] | None = None,
        is_training: bool = False,
        dataloader_key: str | None = None,
    ) -> Any:
        if not is_training and isinstance(dataset, Loader):
            return dataset
        if not is_training:
            return super()._get_dataloader(
                dataset, description, batch_size, sampler_fn, False, dataloader_key
            )
        rank, ranks = self._place()
        if isinstance(dataset, datasets.Dataset):
            dataset = self._remove_unused_columns(dataset, description=description)
            collate = self.data_collator
        else:
            collate = self._get_collator_with_removed_columns(self.data_collator, description)
        if isinstance(dataset, torch.utils.data.IterableDataset) or not has_length(dataset):
            raise ConfigurationError(
                f"a {type(dataset).__name__} can only be read forwards, so a Trainer that resumes would have "
                "to read again what it has read: build a cache of it, storage.submit(...), and pass the "
                "reference"
            )
        sampler: Any = None if sampler_fn is None else sampler_fn(dataset)
        repeats, drop = 1, self.args.dataloader_drop_last
        if type(sampler).__name__ == "RepeatSampler":  # of trl: the ranks share groups of prompts
            collate = _CollateShare(collate, sampler.mini_repeat_count, rank * batch_size, batch_size)
            batch_size, repeats, drop, rank, ranks = sampler.batch_size, sampler.repeat_count, True, 0, 1
        elif self.accelerator.split_batches:
            batch_size //= ranks
        if isinstance(dataset, Loader) and repeats == 1:
            loader = dataset
        elif isinstance(dataset, Loader | RecordStream):
            stream = dealt_out(as_stream(dataset), rank, ranks)
            loader = self._load(stream, batch_size, drop, _CollateRows(collate))
        else:
            stream = self._stream(dataset, sampler, rank, ranks)
            loader = self._load(stream, batch_size, drop, _CollateItems(dataset, collate))
        _check(loader, rank, ranks)
        self._loader = EpochLoader(loader, repeats, self._resumed)
        return self._loader

    def _place(self) -> tuple[int, int]:
        """Return the rank and number of those that read different records."""
        same = self.get_tp_size() * self.get_cp_size() * self.get_sp_size()
        return self.args.process_index // same, self.args.world_size // same

    def _stream(self, dataset: Any, sampler: Any, rank: int, ranks: int) -> RecordStream:
        """Return a stream of the numbers of a dataset's items, in the order of such a sampler."""
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        if type(sampler).__name__ == "RepeatSampler":
            shuffle, seed = sampler.shuffle, sampler.seed
        elif type(sampler) in (RandomSampler, SequentialSampler):
            shuffle = type(sampler) is RandomSampler
        else:
            raise ConfigurationError(
                f"the order of a {type(sampler).__name__} can't be resumed exactly: pass a stream with the "
                "order that you want, as of ref.bucketed(...), or train_sampling_strategy='random'"
            )
        return from_source(range(len(dataset)), "rows").stream(
            shuffle=shuffle,
            shuffle_seed=seed,
            shard_rank=rank,
            num_shards=ranks,
            drop_shard_remainder=ranks > 1,
        )

    def _load(self, stream: RecordStream, batch_size: int, drop: bool, transform: Any) -> Loader:
        options: dict[str, Any] = {}
        if workers := self.args.dataloader_num_workers:
            options = {
                "persistent_workers": self.args.dataloader_persistent_workers,
                "multiprocessing_context": self.args.dataloader_multiprocessing_context,
                "prefetch_factor": self.args.dataloader_prefetch_factor,
            }
        return make_dataloader(
            stream,
            batch_size,
            workers,
            drop_remainder=drop,
            pin_memory=self.args.dataloader_pin_memory,
            transform=transform,
            **options,
        )

    # The counts: of epochs, of steps in an epoch, of all steps.

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        self._resumed = None
        if resume_from_checkpoint is True:
            self._resumed = _newest(Path(self.args.output_dir))
        elif resume_from_checkpoint:
            self._resumed = _checkpoint(Path(resume_from_checkpoint))
        self._group = -1, None
        path = None
        if self._resumed is not None:
            path = str(self._resumed.path)
            self._resumed.check(self._data)
        return super().train(path, *args, **kwargs)

    def set_initial_training_values(self, args: Any, dataloader: Any) -> Any:
        if dataloader is not self._loader:
            raise ConfigurationError(
                f"get_train_dataloader of {type(self).__name__} returns a {type(dataloader).__name__} of its "
                "own: leave that method out, and pass the reference, stream or loader as train_dataset"
            )
        epochs, whole, *values, max_steps = super().set_initial_training_values(args, dataloader)
        done = 0 if self._resumed is None else self._resumed.steps
        first = self._loader.first_epoch
        left = self._steps(self._loader.left(first))
        if args.max_steps > 0:
            epochs = first + 1 + -(-max(0, max_steps - done - left) // whole)
        else:
            # Of an epoch that is read in part, the steps before it count as whole ones of today's size.
            max_steps = done + max(0, max_steps - first * whole - (whole - left))
        if done >= max_steps:
            epochs = first  # or the Trainer makes one step before it looks
        return epochs, whole, *values, max_steps

    def _steps(self, batches: int) -> int:
        return -(-batches // int(self.args.gradient_accumulation_steps))

    def _init_training_state(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        super()._init_training_state(*args, **kwargs)
        return self._loader.first_epoch, 0  # batches to skip: the loader begins at the cursor

    def _run_epoch(self, **given: Any) -> None:
        batches = self._loader.left(given["epoch"])
        steps = {"steps_in_epoch": batches, "num_update_steps_per_epoch": self._steps(batches)}
        super()._run_epoch(**{**given, **steps})

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        # A save before the step of these batches is done, as at SIGTERM, saves the place before them.
        self._group = self.state.global_step, self._loader.state_dict()
        return super().get_batch_samples(*args, **kwargs)

    # The checkpoints.

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = Path(self._get_output_dir(trial), f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")
        if self.args.should_save:
            folder.mkdir(parents=True, exist_ok=True)
            # A checkpoint is whole with this file, which the Trainer writes last.
            (folder / TRAINER_STATE_NAME).unlink(missing_ok=True)
            written = folder / f"{CURSOR_NAME}.new"
            step, cursor = self._group
            if step != self.state.global_step:
                cursor = self._loader.state_dict()
            written.write_text(json.dumps({"cursor": cursor, "data": self._data}), "utf-8")
            written.replace(folder / CURSOR_NAME)
        if self._loader.is_within_repeats:
            warnings.warn(
                f"{folder} lies within the steps that share completions: who resumes there generates them "
                "anew, and repeats these steps. Save at multiples of steps_per_generation * num_iterations",
                UserWarning,
                stacklevel=2,
            )
        self.accelerator.wait_for_everyone()
        super()._save_checkpoint(model, trial)

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        self.accelerator.wait_for_everyone()  # before one of the ranks says that all is written


class _EpochProgress(transformers.TrainerCallback):  # type: ignore[misc]  # untyped
    """Tells the Trainer which part of its epoch is done, where it has begun in the middle of one."""

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        state.epoch = given["train_dataloader"].epochs_done()


class EpochLoader:
    """The batches of one epoch after another, as a Trainer names them; the first one from a cursor on.

    Args:
        loader: The batches.
        repeats: How often each batch is delivered. A cursor within its repeats is at its beginning.
        resumed: The checkpoint where to begin.
    """

    def __init__(self, loader: Loader, repeats: int, resumed: "_CursorCheckpoint | None") -> None:
        self.dataset = loader.stream.source  # a Trainer takes its length for the number of all records
        self._loader, self._repeats = loader, repeats
        self._cut, self._shard = loader._recipe.cut, loader.stream.shard
        begun = loader.stream.run.start
        if resumed is not None:
            loader.load_state_dict(resumed.cursor)
            begun = loader._claims.next_span().start
        elif loader._claims.next_span().start != begun:
            warnings.warn(
                "the loader was read before, or has loaded a cursor: the training begins where its stream "
                "does. To begin at a cursor, open the stream there, ref.stream(..., cursor=cursor)",
                UserWarning,
                stacklevel=1,  # of no line of the user's: the Trainer calls
            )
            loader._claims.restart(begun)
        self._start = begun
        if not self._cut.items(self._shard.own(self._start.position)):
            self._start = Point(self._start.epoch + 1, 0)
        self._epoch, self._left, self._delivered = self._start.epoch, 0, 0
        self._cursor = loader.state_dict()

    @property
    def first_epoch(self) -> int:
        """The epoch in which to begin."""
        return self._start.epoch

    @property
    def is_within_repeats(self) -> bool:
        """Whether some repeats of the last batch are left."""
        return self._delivered % self._repeats != 0

    def left(self, epoch: int) -> int:
        """Return the number of batches that an epoch has, or has left."""
        return self._cut.items(self._shard.own(self._begin(epoch).position)) * self._repeats

    def set_epoch(self, epoch: int) -> None:
        """Let the next iterator read this epoch."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._loader) * self._repeats

    def __iter__(self) -> Iterator[Any]:
        self._left, self._delivered = self.left(self._epoch), 0
        self._loader._claims.restart(self._begin(self._epoch))
        self._cursor = self._loader.state_dict()
        batches = iter(self._loader)
        for batch in self._started(batches) if self._has_workers else batches:
            for left in reversed(range(self._repeats)):
                self._delivered += 1
                if not left:
                    self._cursor = self._loader.state_dict()
                yield batch

    def state_dict(self) -> dict[str, Any]:
        """Return the cursor after the delivered batches."""
        return self._cursor

    def epochs_done(self) -> float:
        """Return the number of epochs that are done, with a fraction."""
        return self._epoch + 1 - (self._left - self._delivered) / len(self)

    def _begin(self, epoch: int) -> Point:
        return self._start if epoch == self._start.epoch else Point(epoch, 0)

    @property
    def _has_workers(self) -> bool:
        return isinstance(self._loader._recipe.make, MakeInWorkers)

    def _started(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Draw the seed of workers, and leave the random numbers as they were: a checkpoint has them."""
        drawn = torch.get_rng_state()
        first = list(itertools.islice(batches, 1))
        torch.set_rng_state(drawn)
        return itertools.chain(first, batches)


def _check(loader: Loader, rank: int, ranks: int) -> None:
    if loader.epochs != 1:
        raise ConfigurationError(
            f"the loader reads {loader.epochs} epochs at a time, and a Trainer counts them: make it with "
            "epochs=1"
        )
    shard = loader.stream.shard
    if (shard.rank, shard.ranks) != (rank, ranks):
        raise ConfigurationError(
            f"this is rank {rank} of {ranks}, and the loader reads shard {shard.rank} of {shard.ranks}: make "
            "it after the TrainingArguments, with **yogadl.adapters.torch.shards(), or pass the stream as it "
            "is, without shards"
        )


# Classes that stand for references and streams where a Trainer asks for a dataset.


def _dataset_of(ref: DataRef) -> Any:
    if not isinstance(ref, RecordsRef):
        raise ConfigurationError(
            f"a {type(ref).__name__} has other rows in each epoch: pass a stream of it, "
            "ref.stream(shuffle=True, shuffle_seed=0)"
        )
    return to_hf(ref)


def _first_row(data: RecordStream | Loader) -> Any:
    """Return a dataset of the first row, by which trl sees what kind of rows there are."""
    stream = data.stream if isinstance(data, Loader) else data
    if not stream.shard.records:
        raise ConfigurationError("the stream has no records: a Trainer can't train on it")
    whole = RecordStream(replace(stream.run, shard=Shard(stream.shard.records, 0, 1, "drop")))
    return datasets.Dataset.from_list(rows_of(next(make_dataloader(whole, 1).at(0))))


def rows_of(batch: Any) -> list[dict[str, Any]]:
    """Return the rows of a batch, as a ``datasets.Dataset`` has them: Python's values.

    Arrays of two dimensions and more stay tensors.
    """
    if not isinstance(batch, dict):
        raise ConfigurationError("a Trainer takes records that are dicts: stream.map(lambda x: {'name': x})")
    columns = [_values(column) for column in batch.values()]
    return [dict(zip(batch, values, strict=True)) for values in zip(*columns, strict=True)]


def _values(column: Any) -> Any:
    if isinstance(column, dict):
        return rows_of(column)
    if isinstance(column, torch.Tensor):
        return column.tolist() if column.ndim <= 2 else list(column)
    if isinstance(column, np.ndarray):
        return column.tolist()
    if isinstance(column, tuple):
        return list(zip(*map(_values, column), strict=True))
    return [
        item.tolist() if isinstance(item, torch.Tensor | np.ndarray) and item.ndim <= 1 else item
        for item in column
    ]


@frozen
class _CollateRows:
    """Make a batch of a stream's records as the Trainer's collator does."""

    collate: Callable[[list[Any]], Any]

    def __call__(self, batch: Any) -> Any:
        return self.collate(rows_of(batch))


@frozen
class _CollateItems:
    """Make a batch of a dataset's items, of which a stream has the numbers."""

    dataset: Any
    collate: Callable[[list[Any]], Any]

    def __call__(self, batch: Any) -> Any:
        indices = batch.tolist()
        if hasattr(self.dataset, "__getitems__"):  # as PyTorch's DataLoader asks
            return self.collate(self.dataset.__getitems__(indices))
        return self.collate([self.dataset[index] for index in indices])


@frozen
class _CollateShare:
    """Make a batch of a rank's share of rows, of which each is repeated."""

    collate: Callable[[list[Any]], Any]
    each: int
    first: int
    count: int

    def __call__(self, rows: list[Any]) -> Any:
        repeated = [row for row in rows for _ in range(self.each)]
        return self.collate(repeated[self.first : self.first + self.count])


# Checkpoints.


@frozen
class _CursorCheckpoint:
    """A checkpoint that is whole, and has a cursor."""

    path: Path
    cursor: Mapping[str, Any]
    data: str | None
    steps: int

    def check(self, data: str | None) -> None:
        """Warn if the checkpoint is of other records than those of this fingerprint."""
        if self.data is not None and data is not None and self.data != data:
            warnings.warn(
                f"{self.path} is of a dataset with another fingerprint: if its records are others, some of "
                "them will come twice in this epoch, and others not at all",
                UserWarning,
                stacklevel=3,
            )


def _newest(folder: Path) -> _CursorCheckpoint | None:
    """Return the newest checkpoint that is whole, if there is one."""
    numbered = []
    for path in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*"):
        number = path.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-")
        if path.is_dir() and number.isdecimal():
            numbered.append((int(number), path))
    for _, path in sorted(numbered, reverse=True):
        if _steps_of(path) is not None:
            return _checkpoint(path)
        warnings.warn(f"{path} is passed over: its save was not finished", UserWarning, stacklevel=3)
    warnings.warn(f"{folder} has no whole checkpoint: training begins anew", UserWarning, stacklevel=3)
    return None


def _checkpoint(path: Path) -> _CursorCheckpoint:
    """Return a checkpoint.

    Raises:
        CursorError: if it is not whole, or has no cursor.
    """
    steps = _steps_of(path)
    if steps is None:
        raise CursorError(
            f"{path} is no whole checkpoint, {TRAINER_STATE_NAME} is missing or cut: "
            "resume_from_checkpoint=True takes the newest whole one"
        )
    try:
        saved = json.loads((path / CURSOR_NAME).read_text("utf-8"))
    except FileNotFoundError:
        raise CursorError(
            f"{path} has no cursor, as an exact Trainer saves it, {CURSOR_NAME}: resume with the Trainer "
            "that saved it, or begin anew with its weights and a stream that starts where you want"
        ) from None
    except ValueError as error:
        raise CursorError(f"{path / CURSOR_NAME} is damaged: resume from another checkpoint") from error
    return _CursorCheckpoint(path, saved["cursor"], saved["data"], steps)


def _steps_of(path: Path) -> int | None:
    """Return the number of steps of a checkpoint, or ``None`` if it is not whole."""
    try:
        state = json.loads((path / TRAINER_STATE_NAME).read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return int(state["global_step"])
