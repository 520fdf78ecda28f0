"""Save a Keras model together with the position in its training data: one file, replaced atomically."""

import itertools
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import keras
import numpy as np

from yogadl._core.arguments import int_argument
from yogadl._core.frozen import MANY_DIGITS, parse_json
from yogadl.adapters._checks import put_in_place
from yogadl.adapters.keras._loader import PyDataset
from yogadl.errors import CacheFormatError, ConfigurationError

# Find the differences between two models of Keras, from the form in which Keras saves them.


_MOST_DIFFERENCES: Final = 5  # the number of differences to name
_APPENDED_NUMBER: Final = re.compile(r"_\d+$")
# Settings of how a model runs, and values that Keras derives from others, are no differences of the model.
_IGNORED: Final = {"jit_compile", "run_eagerly", "build_config", "shared_object_id"}


def changes(saved: Any, current: Any) -> list[str]:
    """Return differences between two models, as "layers[1].units: 8 saved, 16 now"; at most five.

    Compared are the layers and the arguments of `compile`, except for a learning rate that is a number, which
    callbacks change, and for the numbers that Keras appends to names.

    Args:
        saved: The saved model, in the form of `keras.saving.serialize_keras_object`.
        current: The newly made model, in the same form.
    """
    saved, current = (_without_numbers(tree, set(_names(tree))) for tree in (saved, current))
    return list(itertools.islice(_differences(saved, current, ""), _MOST_DIFFERENCES))


def _names(tree: Any) -> Iterator[str]:
    """Yield the names of layers and of all other named objects."""
    if isinstance(tree, dict):
        if isinstance(tree.get("name"), str):
            yield tree["name"]
        tree = tree.values()
    elif not isinstance(tree, list | tuple):
        return
    for inner in tree:
        yield from _names(inner)


def _without_numbers(tree: Any, names: set[str]) -> Any:
    """Return the tree without numbers that Keras appends: the second "dense" of a process is "dense_1"."""
    if isinstance(tree, dict):
        if tree.get("class_name") == "__tuple__":
            return _without_numbers(tree["items"], names)
        if tree.get("class_name") == "__lambda__":
            return "a lambda"  # the code of a lambda contains line numbers
        return {key: _without_numbers(inner, names) for key, inner in tree.items() if key not in _IGNORED}
    if isinstance(tree, list | tuple):
        return [_without_numbers(inner, names) for inner in tree]
    if isinstance(tree, str) and tree in names:
        return _APPENDED_NUMBER.sub("", tree)
    return tree


def _differences(saved: Any, current: Any, where: str) -> Iterator[str]:
    if isinstance(saved, dict) and isinstance(current, dict):
        if saved.get("class_name") != current.get("class_name"):
            yield _difference(where, saved, current)
            return
        for key in dict.fromkeys([*saved, *current]):
            inside = where if key == "config" else f"{where}.{key}" if where else key
            before, now = saved.get(key), current.get(key)
            if not (key == "learning_rate" and isinstance(before, float) and isinstance(now, float)):
                yield from _differences(before, now, inside)
    elif isinstance(saved, list) and isinstance(current, list) and len(saved) == len(current):
        for number, (before, now) in enumerate(zip(saved, current, strict=True)):
            yield from _differences(before, now, f"{where}[{number}]")
    elif saved != current:
        yield _difference(where, saved, current)


def _difference(where: str, saved: Any, current: Any) -> str:
    return f"{where or 'the model'}: {_shown(saved)} saved, {_shown(current)} now"


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return str(value.get("class_name"))
    if isinstance(value, list) and any(isinstance(inner, dict) for inner in value):
        return f"{len(value)} items"
    return repr(value)


_STATE_FILE: Final = "yogadl.json"  # a file in the archive of a .keras file, beside Keras's own

Model = Any  # a keras.Model: Keras has no annotations that a checker can use


class Checkpoint(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no annotations
    """Save the model together with the position in its training data, and continue exactly from there.

    A checkpoint is one file of Keras (weights, optimizer and all else) that also contains the cursor. The
    file is replaced atomically: if the process is killed, the last complete file remains. The cursor counts
    the batches that the training loop has consumed, not those read ahead. Each `fit` that has the checkpoint
    among its callbacks continues where the last one stopped.

    In a job of several ranks, each rank makes a checkpoint with the same path, and calls `restore`. One rank
    saves; the others pass ``saves=False``.

    Args:
        path: The file; its name ends in ``.keras``.
        dataset: The dataset that `fit` gets; it must be endless.
        every_batches: Save also after every so many batches; None: only at the ends of epochs.
        saves: Whether to save; if ``False``, the checkpoint only counts.

    Attributes:
        epoch: The epoch of Keras in which training continues.
        step: The number of finished steps of this epoch.

    Raises:
        ConfigurationError: if an argument is invalid.

    Example:
        A script that can be killed at any moment and started again::

            checkpoint = yogadl_keras.Checkpoint("run.keras", dataset, every_batches=100)
            model = checkpoint.restore(make_model)
            for part in checkpoint.parts(epochs=10):
                model.fit(dataset, callbacks=[checkpoint], **part)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        dataset: keras.utils.PyDataset,
        every_batches: int | None = None,
        *,
        saves: bool = True,
    ) -> None:
        super().__init__()
        self._path = Path(path)
        if self._path.suffix != ".keras":
            raise ConfigurationError(
                f"{path} must end in .keras, since Keras saves models only to such files"
            )
        if not isinstance(dataset, PyDataset):
            raise ConfigurationError(
                "a checkpoint counts the batches of a yogadl.adapters.keras.PyDataset, not of a "
                f"{type(dataset).__module__}.{type(dataset).__qualname__}: make one of the stream, "
                "PyDataset(ref.stream(...), batch_size, epochs=None), and give it to fit, on any backend. Or "
                "save the iterator of a tf.data dataset by tf.train.Checkpoint, in a loop of your own"
            )
        if dataset.num_batches is not None:
            raise ConfigurationError(
                f"a checkpoint needs a dataset without end, and this one has {dataset.num_batches} batches: "
                "make it with epochs=None, and give it to fit with what Checkpoint.parts yields"
            )
        self._dataset = dataset
        self._every_batches = (
            None if every_batches is None else int_argument("every_batches", every_batches, 1)
        )
        self._saves = saves
        self.epoch = 0
        self.step = 0
        self._cursor = dataset.cursor(0)
        self._batches_before_epoch = 0  # batches of this fit before its current epoch
        self._batches_in_epoch = 0  # batches of this fit in its current epoch
        self._steps_before_fit = 0  # steps of the current epoch that earlier fits did
        self._unsaved_batches = 0
        self._steps_per_call = 1  # batches from one call of `on_train_batch_end` to the next

    def cursor(self) -> dict[str, Any]:
        """Return the cursor after the last batch that the training loop consumed."""
        return self._cursor

    def restore(self, make_model: Callable[[], Model] | None = None, **options: Any) -> Model | None:
        """Return the saved model, and move the dataset to where training stopped.

        If nothing was saved, the method returns the result of `make_model`; without `make_model`, None.

        Args:
            make_model: A function that makes the compiled model to begin with. The saved model must be like
                it: the same layers, loss, metrics and optimizer; a learning rate that is a number may differ.
            **options: Options of `keras.models.load_model`.

        Raises:
            CacheFormatError: if the file is no checkpoint of this class.
            CursorError: if the checkpoint was saved with other data or another order.
            ConfigurationError: if the saved model differs from the one of `make_model`; names the
                differences.
        """
        # `make_model` runs first, since it may set the global dtype policy, which `load_model` uses.
        made = None if make_model is None else make_model()
        if not self._path.exists():
            return made
        state = read_state(self._path)
        model = keras.models.load_model(self._path, **options)
        if made is not None:
            self._check_same(model, made)
        self._dataset.load_state_dict(state["cursor"])
        for seed, value in zip(_seeds(model), state["seeds"], strict=True):
            seed.assign(np.array(value, seed.dtype))
        self._cursor, self.epoch, self.step = state["cursor"], state["epoch"], state["step"]
        steps = self._dataset.steps_per_epoch
        if self.step and steps != state["steps_per_epoch"]:  # other batches or ranks
            self.step = steps - self._dataset.steps_left
            # If no batch is left in the cursor's epoch, the dataset starts with the next epoch.
            self.epoch += self._dataset.stream.start.epoch - self._cursor["epoch"]
        return model

    def _check_same(self, model: Model, made: Model) -> None:
        if not made.built:
            made.build_from_config(model.get_build_config())
        serialize = keras.saving.serialize_keras_object
        found = changes(serialize(model), serialize(made))
        if found:
            raise ConfigurationError(
                f"{self._path} has another model than make_model makes now: {'; '.join(found)}. Move the "
                "file away to train from the start, or call restore() without make_model to use the saved "
                "model"
            )

    def parts(self, epochs: int, steps_per_epoch: int | None = None) -> Iterator[dict[str, int]]:
        """Yield the arguments for the remaining calls of `fit` of a training: at most two.

        `fit` takes one number of steps for all epochs, so the rest of an unfinished epoch needs its own call.

        Args:
            epochs: The number of epochs of the whole training.
            steps_per_epoch: The number of steps in each epoch; by default that of the stream.

        Raises:
            ConfigurationError: if `steps_per_epoch` steps of the epoch are done already.
        """
        steps = self._dataset.steps_per_epoch if steps_per_epoch is None else steps_per_epoch
        steps = int_argument("steps_per_epoch", steps, 1)
        while self.epoch < epochs:
            epoch, last = self.epoch, self.epoch + 1 if self.step else epochs
            if self.step >= steps:
                raise ConfigurationError(
                    f"epoch {epoch} has {steps} steps, but {self.step} are done already: pass the "
                    "steps_per_epoch with which the training began"
                )
            yield {"initial_epoch": epoch, "epochs": last, "steps_per_epoch": steps - self.step}
            if self.epoch < last or self.model.stop_training:
                return

    def save(self) -> None:
        """Replace the checkpoint by the current model; `fit` calls this method when a save is due."""
        self._unsaved_batches = 0
        if self._dataset.asked_for < self._batches_before_epoch + self._batches_in_epoch:
            raise ConfigurationError(
                f"fit consumed {self._batches_before_epoch + self._batches_in_epoch} batches, but the "
                f"dataset of the checkpoint delivered {self._dataset.asked_for}: make the checkpoint with "
                "the dataset passed to fit"
            )
        if self._saves:
            model = self.model
            seeds = [keras.ops.convert_to_numpy(seed.value).tolist() for seed in _seeds(model)]
            state = {
                "cursor": self._cursor,
                "epoch": self.epoch,
                "step": self.step,
                "steps_per_epoch": self._dataset.steps_per_epoch,
                "seeds": seeds,
            }
            replace_by(self._path, model.save, state)

    def on_train_begin(self, logs: Any = None) -> None:
        """Move the dataset to where the last fit stopped."""
        if self.params["steps"] is None:
            raise ConfigurationError(
                "the dataset has no end, so fit needs steps_per_epoch=dataset.steps_per_epoch (or the "
                "arguments that Checkpoint.parts yields)"
            )
        self._dataset.load_state_dict(self._cursor)
        self._batches_before_epoch, self._batches_in_epoch, self._steps_before_fit = 0, 0, self.step
        self._steps_per_call = self.model.steps_per_execution

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note the number of the epoch."""
        if epoch != self.epoch:
            self.epoch, self.step, self._steps_before_fit = epoch, 0, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count the consumed batches."""
        self._unsaved_batches += self._steps_per_call
        self._batches_in_epoch += self._steps_per_call
        self.step = self._steps_before_fit + self._batches_in_epoch
        self._cursor = self._dataset.cursor(self._batches_before_epoch + self._batches_in_epoch)
        if self._batches_in_epoch >= self.params["steps"]:
            self.epoch, self.step = self.epoch + 1, 0
        if self._every_batches is not None and self._unsaved_batches >= self._every_batches:
            self.save()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Save; if the training was stopped within the epoch, the epoch is saved as unfinished."""
        if self._batches_in_epoch >= self.params["steps"]:
            self._steps_before_fit = 0
        self._batches_before_epoch, self._batches_in_epoch = (
            self._batches_before_epoch + self._batches_in_epoch,
            0,
        )
        self.save()


def _seeds(model: Model) -> list[Any]:
    """Return the random states of layers such as Dropout, which Keras's own files do not contain."""
    return [variable for variable in model.non_trainable_variables if variable.name == "seed_generator_state"]


def replace_by(path: Path, save: Callable[[Path], object], state: dict[str, Any]) -> None:
    """Call `save` to write a model, add `state` as JSON, and replace `path` by the new file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.stem}.new.keras")
    save(new)
    with zipfile.ZipFile(new, "a") as archive:
        archive.writestr(_STATE_FILE, json.dumps(state))
    put_in_place(new, path)


def read_state(path: Path) -> dict[str, Any]:
    """Return the state that `replace_by` added, or raise a CacheFormatError."""
    try:
        with zipfile.ZipFile(path) as archive:
            state = parse_json(archive.read(_STATE_FILE), most_digits=MANY_DIGITS)
        return {name: state[name] for name in ("cursor", "epoch", "step", "steps_per_epoch", "seeds")}
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError) as error:
        raise CacheFormatError(
            f"{path} is not a checkpoint of yogadl, since it has no complete {_STATE_FILE}: move it away to "
            "train from the start, or load it with keras.models.load_model"
        ) from error
