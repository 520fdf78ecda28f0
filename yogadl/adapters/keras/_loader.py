"""Hand a stream to Keras: as a `PyDataset`."""

import operator
import sys
import warnings
from collections.abc import Mapping
from types import FrameType
from typing import Any, Final, NamedTuple

import keras

from yogadl._dataref import takes_a_stream
from yogadl._interfaces import Stream
from yogadl._stream import RecordStream, as_stream
from yogadl.adapters._checks import SHARD_ARGUMENTS, ahead_of, cut_of, ranks_of, warn_if_unsharded
from yogadl.adapters.keras._fields import Fields, arranger
from yogadl.adapters.keras._reader import BatchReader
from yogadl.errors import ConfigurationError, MissingDependencyError

# Up to 3.6, the batches that fit asks for to build a model are lost to the training.
if tuple(map(int, keras.__version__.split(".")[:2])) < (3, 7):
    raise MissingDependencyError(
        f"Keras {keras.__version__} loses batches of datasets that have no end: pip install 'keras>=3.7'"
    )

_MOST_FRAMES: Final = 8  # to look at for Keras's call; in Keras 3.15 it is the third, and `fit` the sixth
_SHUFFLED: Final = (
    "Keras's fit shuffles the batches of a dataset that ends. Pass shuffle=False to train in the stream's "
    "order, the same in each epoch of Keras's. Or leave out epochs= and pass "
    "steps_per_epoch=dataset.steps_per_epoch: then each epoch is the next of the stream's, in its own order"
)
_BACKED_UP: Final = (
    "keras.callbacks.BackupAndRestore(save_freq=<number>) does not know of the place in the data: after a "
    "stop it goes on with the weights of the middle of an epoch, and with data from its start, so that some "
    "records come twice. Use yogadl.adapters.keras.Checkpoint(path, dataset, every_batches=<number>) in its "
    "place"
)


class PyDataset(keras.utils.PyDataset):  # type: ignore[misc]  # Keras has no annotations
    """Deliver a stream's batches to Keras, in the stream's order.

    By default it is endless, for `fit`: batch i is the i-th batch after the stream's start, across epochs.
    This keeps the stream's order, since Keras shuffles and repeats the batches of finite datasets only. Pass
    ``steps_per_epoch=dataset.steps_per_epoch``. With ``epochs=1`` it has an end, for `evaluate`, `predict`
    and ``validation_data=``.

    Each `fit`, `evaluate` and `predict` begins at batch 0. A `Checkpoint` among the callbacks makes batch 0
    the batch where training stopped. Keras reads the dataset with one worker; the dataset itself reads
    ahead. Safe to read from several threads; pickles if the stream and `fields` do.

    Args:
        stream: What `DataRef.stream` returned.
        batch_size: Records in a batch.
        fields: What Keras gets: ``("image", "label")`` names the keys of the record for x and y; a third key
            is for the sample weight. Each may be a tuple or a dict of keys. Or a function of a batch. None:
            records are (x, y) already, or only x.
        drop_remainder: Leave out an epoch's last batch if it is short.
        epochs: How many of the stream's epochs there are; None: it never ends.
        padding_field: Name of a bool field to add: true for records that only repeat one to fill the shard.
        prefetch: How many batches are read ahead, in a thread; 0 for none.
        threads: How many threads read them; see `Loader.prefetch`.

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
        threads: int = 1,
    ) -> None:
        super().__init__()
        stream = as_stream(stream)
        # Without an end, batch 0 is the next one, not the rest of an epoch, which may have none.
        cut = cut_of(batch_size, drop_remainder, epochs, skip_finished_epoch=epochs is None)
        self._reader = BatchReader(stream, cut, padding_field, ahead_of(prefetch, threads))
        self._arrange = arranger(stream.spec, fields, padding_field)
        # Not with an end: validation is often the same on all ranks. (tf.distribute shards by itself.)
        if epochs is None:
            warn_if_unsharded(stream, ranks_of(keras.backend.backend()), SHARD_ARGUMENTS)

    @property
    def stream(self) -> RecordStream:
        """What it reads, as it starts where batch 0 does."""
        return self._reader.stream

    @property
    def num_batches(self) -> int | None:
        """How many batches there are; None if it has no end."""
        return self._reader.numbering.length

    @property
    def steps_per_epoch(self) -> int:
        """How many batches a whole epoch has."""
        return self._reader.numbering.full

    @property
    def steps_left(self) -> int:
        """How many batches are left of the epoch in which batch 0 is."""
        return self._reader.numbering.begun

    @property
    def asked_for(self) -> int:
        """How many batches were asked for, from batch 0 on, at least those that were consumed."""
        return self._reader.furthest + 1

    @property
    def workers(self) -> int:
        """How many threads of Keras read it, always one. With several, batches get lost on some backends.

        Keras asks this before it reads the dataset, so here is where it is told what it can't do.

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
        if fit_backs_up_within_epochs(self):
            warnings.warn(_BACKED_UP, UserWarning, stacklevel=1)  # a line of this file: once a process
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
        """Whether processes of Keras read it, always False."""
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

        Count the batches that the training loop consumed; Keras asks for more, since it reads ahead.

        Raises:
            ConfigurationError: if there are not so many.
        """
        return self._reader.cursor(delivered)

    def load_state_dict(self, state: Mapping[str, Any], rebind: bool = False) -> None:
        """Make the first batch after a cursor batch 0.

        Args:
            state: A cursor, of this dataset or of any loader of the same data and order.
            rebind: Whether to accept a cursor of other data of equal length.

        Raises:
            CursorError: if it is no cursor, or one of other data or another order.
            ConfigurationError: if shards of unequal length would drift into different epochs.
        """
        self._reader = self._reader.at(state, rebind)


class ReadingCall(NamedTuple):
    """How the batches of a dataset will be asked for: shuffled if it ends, and how many."""

    is_shuffled: bool
    steps: int | None


def reading_call() -> ReadingCall | None:
    """Return how Keras will read the dataset that it prepares to read now; None if it does not.

    Keras does not tell the dataset. So this looks at the arguments of `get_data_adapter`, which `fit` and its
    like call with the dataset, on every backend, before anything is read.
    """
    given = given_to("get_data_adapter", "shuffle", "steps_per_epoch")
    return None if given is None else ReadingCall(bool(given["shuffle"]), given["steps_per_epoch"])


def fit_backs_up_within_epochs(dataset: PyDataset) -> bool:
    """Return whether a `fit` that prepares to train on the dataset has such a callback of Keras's."""
    given = given_to("fit", "x", "callbacks")
    if given is None or given["x"] is not dataset:
        return False
    callbacks = getattr(given["callbacks"], "callbacks", given["callbacks"])  # of a CallbackList
    listed = callbacks if isinstance(callbacks, list | tuple) else [callbacks]
    kind = keras.callbacks.BackupAndRestore
    return any(isinstance(one, kind) and one.save_freq != "epoch" for one in listed)


def given_to(function: str, *names: str) -> Mapping[str, Any] | None:
    """Return the arguments of the function that called this, at some distance, and has such arguments."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MOST_FRAMES + 1):
        if frame is None:
            break
        if frame.f_code.co_name == function and all(name in frame.f_locals for name in names):
            return frame.f_locals
        frame = frame.f_back
    return None
