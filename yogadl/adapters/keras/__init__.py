"""Read Keras's datasets into caches, and hand streams to Keras, on whatever backend it runs.

The names of this module need Keras 3. How to train, evaluate and go on after a stop: docs/keras.md.
"""

import operator
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from yogadl._arguments import whole
from yogadl._dataref import takes_a_stream
from yogadl._interfaces import Stream
from yogadl._sources import Source
from yogadl._stream import RecordStream, as_stream
from yogadl.adapters.keras._batches import BatchesSource
from yogadl.adapters.keras._calls import reading_call
from yogadl.adapters.keras._changes import changes
from yogadl.adapters.keras._fields import Fields, arranger
from yogadl.adapters.keras._files import read_state, replace_by
from yogadl.adapters.keras._ranks import warn_of_no_shard
from yogadl.adapters.keras._reading import BatchReader, Cutting
from yogadl.errors import ConfigurationError, MissingDependencyError

try:
    import keras
except ImportError as error:
    raise MissingDependencyError(
        "PyDataset and Checkpoint need Keras 3 and a backend for it: pip install 'yogadl[keras]'"
    ) from error
# Up to 3.6, what fit asks for to build a model is lost to the training (tests/adapters/test_keras_training).
if tuple(map(int, keras.__version__.split(".")[:2])) < (3, 7):
    raise MissingDependencyError(
        f"Keras {keras.__version__} loses batches of datasets that have no end: pip install 'keras>=3.7'"
    )

__all__ = ["Checkpoint", "PyDataset", "source"]

Model = Any  # a keras.Model: Keras has no annotations that a checker can use

_SHUFFLED: Final = (
    "Keras's fit shuffles the batches of a dataset that ends. Pass shuffle=False to train in the stream's "
    "order, the same in each epoch of Keras's. Or leave out epochs= and pass "
    "steps_per_epoch=dataset.steps_per_epoch: then each epoch is the next of the stream's, in its own order"
)


# A dataset as a source.


def source(data: Any, allow_pickle: bool = False) -> Source | None:  # any object of Keras's
    """Return the source in a `keras.utils.PyDataset` or a `Sequence` of Keras 2; ``None`` if it is neither.

    Args:
        data: The dataset: its batches are taken apart into records.
        allow_pickle: Whether values without a stored form may be pickled.

    Raises:
        UnsupportedDataError: if it has no end, no records, or what is no batch of arrays.
    """
    if isinstance(data, keras.utils.PyDataset) or _is_sequence(data):
        return BatchesSource(data, allow_pickle=allow_pickle)
    return None


def _is_sequence(data: Any) -> bool:
    """Return whether this is a `Sequence` of Keras 2, which is a package of its own by now."""
    return any(kind.__name__ == "Sequence" and "keras" in kind.__module__ for kind in type(data).__mro__)


# A stream as a dataset.


class PyDataset(keras.utils.PyDataset):  # type: ignore[misc]  # Keras has no annotations
    """Deliver a stream's batches to Keras, in the stream's order.

    Endless by default, for `fit`: batch i is the i-th from the stream's start on, across epochs, so that
    Keras, which shuffles and repeats the batches of finite datasets, has nothing to decide. Pass
    ``steps_per_epoch=dataset.steps_per_epoch``. With ``epochs=1`` it ends, for `evaluate`, `predict` and
    ``validation_data=``.

    Each `fit`, `evaluate` and `predict` begins at batch 0; a `Checkpoint` among the callbacks moves that on.
    Keras reads it with one worker; the batches are read ahead here. Safe to read from several threads;
    pickles if the stream and `fields` do.

    Args:
        stream: What `DataRef.stream` returned.
        batch_size: Records in a batch.
        fields: What Keras gets: ``("image", "label")`` for x and y, with the keys of the record; a third is
            the sample weight. Each may be a tuple or a dict of keys. Or a function of a batch. None: records
            are (x, y) already, or x alone.
        drop_remainder: Leave out an epoch's last batch if it is short.
        epochs: How many of the stream's epochs there are; None: it never ends.
        padding_field: The name under which a bool a record says what repeats one to fill the shard.
        prefetch: How many batches are read ahead, in a thread; 0 for none.

    Raises:
        ConfigurationError: if the arguments make no sense, or are not of a stream's records.
        UnsupportedDataError: if a field that Keras is to get varies in length; names it.

    Example:
        >>> import numpy as np, yogadl
        >>> from yogadl.adapters import keras as yogadl_keras
        >>> ref = yogadl.from_source({"x": np.arange(6.0), "y": np.arange(6)})
        >>> dataset = yogadl_keras.PyDataset(ref.stream(), 4, fields=("x", "y"))
        >>> dataset.steps_per_epoch
        2
        >>> [y.tolist() for x, y in (dataset[0], dataset[1], dataset[2])]
        [[0, 1, 2, 3], [4, 5], [0, 1, 2, 3]]
    """

    @takes_a_stream
    def __init__(
        self,
        stream: Stream,
        batch_size: int,
        *,
        fields: Fields = None,
        drop_remainder: bool = False,
        epochs: int | None = None,
        padding_field: str | None = None,
        prefetch: int = 2,
    ) -> None:
        super().__init__()
        stream = as_stream(stream)
        self._reader = BatchReader(
            stream, Cutting(batch_size, drop_remainder, epochs, padding_field, prefetch)
        )
        self._arrange = arranger(stream.spec, fields, padding_field)
        if epochs is None:  # validation is often the same on all ranks
            warn_of_no_shard(stream, keras.backend.backend())

    @property
    def stream(self) -> RecordStream:
        """What it reads, as it starts where batch 0 does."""
        return self._reader.stream

    @property
    def num_batches(self) -> int | None:
        """How many batches there are; None: without end."""
        return self._reader.numbering.length

    @property
    def steps_per_epoch(self) -> int:
        """How many batches a whole epoch has."""
        return self._reader.numbering.full

    @property
    def steps_left(self) -> int:
        """How many batches the epoch of the stream has in which batch 0 is, from there on."""
        return self._reader.numbering.begun

    @property
    def asked_for(self) -> int:
        """How many batches were asked for, from batch 0 on: at least what was consumed."""
        return self._reader.furthest + 1

    @property
    def workers(self) -> int:
        """How many threads of Keras's read: one. With several, batches get lost on some backends.

        Keras asks when it takes up the dataset, before it reads, so that here it is told what it can't do.

        Raises:
            ConfigurationError: if `fit` would shuffle the batches, or nothing says when to stop.
        """
        call, is_endless = reading_call(), self.num_batches is None
        if call is not None and is_endless and not call.steps:
            raise ConfigurationError(
                "the dataset has no end, so Keras must be told how many batches to read: pass "
                "steps_per_epoch=dataset.steps_per_epoch to fit, validation_steps= for validation_data=, and "
                "steps= to evaluate and predict. Or make the dataset with epochs=1, to evaluate and predict"
            )
        if call is not None and not is_endless and call.is_shuffled:
            raise ConfigurationError(_SHUFFLED)
        return 1

    @workers.setter
    def workers(self, value: int) -> None:
        if value != 1:
            raise ConfigurationError(
                f"workers={value!r}: Keras reads this dataset with one worker; to read more batches ahead, "
                "pass prefetch="
            )

    @property
    def use_multiprocessing(self) -> bool:
        """Whether processes of Keras's read: never."""
        return False

    @use_multiprocessing.setter
    def use_multiprocessing(self, value: bool) -> None:
        if value:
            raise ConfigurationError("use_multiprocessing=True: Keras reads this dataset with one worker")

    def __getitem__(self, index: int) -> Any:
        """Return a batch.

        Raises:
            IndexError: if there is no such batch.
            ConfigurationError: if the dataset ends, and its batches are not asked for in order.
        """
        number, count = operator.index(index), self.num_batches
        if count is not None and self.asked_for < number < count:
            raise ConfigurationError(
                f"batch {number} was asked for before batch {self.asked_for}: {_SHUFFLED}"
            )
        batch = self._reader.batch(number)
        return batch if self._arrange is None else self._arrange(batch)

    def cursor(self, delivered: int) -> dict[str, Any]:
        """Return the cursor that stands where so many batches were consumed, from batch 0 on.

        Count what the training loop consumed: what Keras asked for is more, since it probes and reads ahead.

        Raises:
            ConfigurationError: if there are not so many.
        """
        return self._reader.cursor(delivered)

    def load_state_dict(self, state: Mapping[str, Any], rebind: bool = False) -> None:
        """Let batch 0 be the one that comes after a cursor.

        Args:
            state: A cursor, of this dataset or of any loader of the same data and order.
            rebind: Accept a cursor of other data of equal length, by your word.

        Raises:
            CursorError: if it is no cursor, or one of other data or another order.
            ConfigurationError: if shards of unequal length would drift into different epochs.
        """
        self._reader = self._reader.at(state, rebind)


class Checkpoint(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no annotations
    """Save the model together with the place in its training data, and go on from there exactly.

    A checkpoint is one file of Keras (weights, optimizer and all), with the cursor in it. It is replaced
    atomically: whoever kills the process finds the last whole one. It counts the batches that the training
    loop has consumed, whatever was read ahead. Each `fit` that has it among its callbacks goes on where the
    last one stopped.

    In a job of several ranks each has its own, of the same path, and all of them `restore`; one saves, the
    others pass ``saves=False``.

    Args:
        path: The file, which ends in ``.keras``.
        dataset: What `fit` is given; it must be endless.
        every_batches: Save after so many batches, too; None: at the ends of epochs only.
        saves: Whether it saves at all, and does not only count.

    Attributes:
        epoch: The epoch of Keras's to go on in.
        step: How many of its steps are done.

    Raises:
        ConfigurationError: if the arguments make no sense.

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
            raise ConfigurationError(f"{path} must end in .keras, as Keras asks of the files of its models")
        if not isinstance(dataset, PyDataset):
            raise ConfigurationError(
                "a checkpoint counts the batches of a yogadl.adapters.keras.PyDataset, not of a "
                f"{type(dataset).__module__}.{type(dataset).__qualname__}: make one of the stream, "
                "PyDataset(ref.stream(...), batch_size), and give it to fit, on any backend. Or save the "
                "iterator of a tf.data dataset by tf.train.Checkpoint, in a loop of your own"
            )
        if dataset.num_batches is not None:
            raise ConfigurationError(
                f"a checkpoint needs a dataset without end, and this one has {dataset.num_batches} batches: "
                "leave out its epochs=, and give it to fit with what Checkpoint.parts yields"
            )
        self._dataset = dataset
        self._every = None if every_batches is None else whole("every_batches", every_batches, 1)
        self._saves = saves
        self.epoch = 0
        self.step = 0
        self._cursor = dataset.cursor(0)
        self._earlier = 0  # batches of this fit, up to its current epoch
        self._within = 0  # and in that
        self._done = 0  # steps of the epoch that this fit began in, done before it
        self._unsaved = 0
        self._stride = 1  # batches from one call of ours to the next

    def cursor(self) -> dict[str, Any]:
        """Return the cursor that stands where the training loop does."""
        return self._cursor

    def restore(self, make_model: Callable[[], Model] | None = None, **options: Any) -> Model | None:
        """Return the saved model and let the dataset go on where it stopped.

        If nothing was saved, it is what `make_model` returns, or None without that.

        Args:
            make_model: Makes the model, compiled, to begin with. What is saved must be one like it: the same
                layers, loss, metrics and optimizer, but for the learning rate, if that is a number.
            **options: For `keras.models.load_model`.

        Raises:
            CacheFormatError: if the file is no checkpoint of this class.
            CursorError: if it was saved with other data or another order.
            ConfigurationError: if the saved model isn't what `make_model` makes now; says what differs.
        """
        # First, for what it sets besides: Keras loads a model by the global dtype policy.
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
        if self.step and steps != state["steps_per_epoch"]:  # other batches now, or another number of ranks
            self.step = steps - self._dataset.steps_left
            self.epoch += self._dataset.stream.start.epoch - self._cursor["epoch"]  # if they leave nothing
        return model

    def _check_same(self, model: Model, made: Model) -> None:
        if not made.built:
            made.build_from_config(model.get_build_config())
        serialize = keras.saving.serialize_keras_object
        found = changes(serialize(model), serialize(made))
        if found:
            raise ConfigurationError(
                f"{self._path} was saved of another model than make_model makes now: {'; '.join(found)}. "
                "Move it away to begin anew, or restore() without make_model to go on with what was saved"
            )

    def parts(self, epochs: int, steps_per_epoch: int | None = None) -> Iterator[dict[str, int]]:
        """Yield the arguments of the calls of `fit` that are left of a training: at most two.

        Since `fit` has one number of steps for all epochs, what is left of an epoch is a call for itself.

        Args:
            epochs: Of how many epochs the whole training is.
            steps_per_epoch: And each of them of how many steps; those of the stream, if not given.

        Raises:
            ConfigurationError: if as many steps of the epoch are done already.
        """
        steps = self._dataset.steps_per_epoch if steps_per_epoch is None else steps_per_epoch
        steps = whole("steps_per_epoch", steps, 1)
        while self.epoch < epochs:
            epoch, last = self.epoch, self.epoch + 1 if self.step else epochs
            if self.step >= steps:
                raise ConfigurationError(
                    f"{self.step} steps of epoch {epoch} are done, which has {steps}: pass the "
                    "steps_per_epoch that the training began with"
                )
            yield {"initial_epoch": epoch, "epochs": last, "steps_per_epoch": steps - self.step}
            if self.epoch < last or self.model.stop_training:
                return

    def save(self) -> None:
        """Replace the checkpoint by the model as it is now; called by `fit` in time."""
        self._unsaved = 0
        if self._dataset.asked_for < self._earlier + self._within:
            raise ConfigurationError(
                f"fit consumed {self._earlier + self._within} batches, but the checkpoint's dataset was "
                f"asked for {self._dataset.asked_for}: make the checkpoint with the one that fit is given"
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
        """Let the fit begin where the last one stopped."""
        if self.params["steps"] is None:
            raise ConfigurationError(
                "the dataset has no end, so fit needs steps_per_epoch=dataset.steps_per_epoch (or what "
                "Checkpoint.parts gives)"
            )
        self._dataset.load_state_dict(self._cursor)
        self._earlier, self._within, self._done = 0, 0, self.step
        self._stride = self.model.steps_per_execution

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note which epoch it is."""
        if epoch != self.epoch:
            self.epoch, self.step, self._done = epoch, 0, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count what was consumed."""
        self._unsaved += self._stride
        self._within += self._stride
        self.step = self._done + self._within
        self._cursor = self._dataset.cursor(self._earlier + self._within)
        if self._within >= self.params["steps"]:
            self.epoch, self.step = self.epoch + 1, 0
        if self._every is not None and self._unsaved >= self._every:
            self.save()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Save, unless something stopped the training within the epoch: then it is not over, and saved so."""
        if self._within >= self.params["steps"]:
            self._done = 0
        self._earlier, self._within = self._earlier + self._within, 0
        self.save()


def _seeds(model: Model) -> list[Any]:
    """Return the variables that Dropout and its like draw by: Keras's own files lack them."""
    return [variable for variable in model.non_trainable_variables if variable.name == "seed_generator_state"]
