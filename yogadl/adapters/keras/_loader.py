"""Hand a stream to Keras: as a `PyDataset` with x, y and sample weights."""

import operator
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any, Final, NamedTuple

import keras

from yogadl._core.arguments import int_argument
from yogadl._core.process import ProcessLock
from yogadl._core.protocols import Stream
from yogadl._core.spec import DictNode, Leaf, Node, SequenceNode, Spec
from yogadl._dataref import takes_a_stream
from yogadl._stream import Cut, RecordStream, StreamIterator, as_stream
from yogadl.adapters._checks import ahead_of, cut_of, ranks_of, warn_if_unsharded
from yogadl.errors import ConfigurationError, MissingDependencyError, UnsupportedDataError

# Map the fields of a record to Keras's x, y and sample weight.


# A function of a batch; or Keras's structure of inputs, with keys of the record in the place of arrays.
Fields = Any
_MOST_TUPLE_ITEMS = 3
_TUPLE_FORMS = "Keras takes (x,), (x, y) or (x, y, sample_weight)"


def arranger(
    spec: Spec, fields: Fields, padding_field: str | None, *, is_single: bool
) -> Callable[[Any], Any] | None:
    """Return the function that turns a batch into Keras's batch, or None if Keras takes it as it is.

    Batches have `padding_field` in addition to the fields of the spec.
    """
    tree = spec.tree
    if callable(fields):
        function: Callable[[Any], Any] = fields
        return function
    if fields is None:
        if isinstance(tree, SequenceNode) and len(tree.children) > _MOST_TUPLE_ITEMS:
            raise ConfigurationError(
                f"the record has {len(tree.children)} items, and {_TUPLE_FORMS}: choose some, such as "
                "fields=(0, 2)"
            )
        _require_arrays(tree, "", is_single)
        return None
    if not isinstance(fields, tuple | list):
        fields = (fields,)
    if not 1 <= len(fields) <= _MOST_TUPLE_ITEMS:
        raise ConfigurationError(f"fields has {len(fields)} items, and {_TUPLE_FORMS}")
    return partial(_selected, _selection(fields, tree, padding_field, is_single))


def _selected(selection: Any, batch: Any) -> Any:
    """Return the arrays of a batch that `selection`, a result of `_selection`, has the keys of."""
    if isinstance(selection, dict):
        return {key: _selected(inner, batch) for key, inner in selection.items()}
    if isinstance(selection, tuple):
        return tuple(_selected(inner, batch) for inner in selection)
    return batch[selection]


def _selection(fields: Fields, tree: Node, padding_field: str | None, is_single: bool) -> Any:
    """Return `fields` with each name of a field replaced by its key in a batch, which may be a position."""
    if isinstance(fields, dict):
        return {key: _selection(item, tree, padding_field, is_single) for key, item in fields.items()}
    if isinstance(fields, tuple | list):
        return tuple(_selection(item, tree, padding_field, is_single) for item in fields)
    if not isinstance(fields, str | int) or isinstance(fields, bool):
        raise ConfigurationError(
            f"fields has {fields!r}: give a key of the record, a tuple or dict of keys, or a function"
        )
    if isinstance(tree, Leaf):
        raise ConfigurationError("the record is a single value: it has no fields to choose from")
    if fields == padding_field:
        return padding_field
    keys = list(tree.keys)
    if fields not in keys:
        raise ConfigurationError(f"fields has {fields!r}, which the record does not have; it has {keys}")
    position = keys.index(fields)
    _require_arrays(tree.children[position], str(fields), is_single)
    return fields if isinstance(tree, DictNode) else position


def _require_arrays(node: Node, path: str, is_single: bool) -> None:
    """Refuse fields whose batches are lists, since Keras would take a list for several inputs."""
    for field in Spec(node).fields:
        if not (field.leaf.is_fixed or (is_single and field.leaf.is_numeric)):
            name = "/".join(part for part in (path, field.name) if part)
            named = f"field {name!r}" if name else "the record"
            raise UnsupportedDataError(
                f"{named} varies in length, or is text or json, so a batch of it is a list, but Keras takes "
                "arrays: leave the field out by fields=, or make it an array by a function, such as "
                "fields=lambda batch: (pad(batch['text']), batch['label'])"
            )


# Read batches by number, and read ahead if the numbers follow each other.


class BatchReader:
    """The batches of a stream by number, counted from the stream's start, across epochs.

    If batches are requested one after another, threads read ahead; `ahead` is the number of batches and the
    number of threads. Any other number can be requested, too, and reading ahead continues there. Safe to use
    from several threads and after a fork; picklable if the stream is, without the batches read ahead.

    Attributes:
        stream: The stream, which starts at batch 0.
        numbering: The numbering of the batches.
        furthest: The greatest number requested; -1 before the first request.
    """

    def __init__(
        self,
        stream: RecordStream,
        cut: Cut,
        padding_field: str | None,
        ahead: tuple[int, int],
        is_single: bool,
    ) -> None:
        depth, threads = ahead
        self.stream = stream = stream.past_finished(replace(cut, epochs=1))
        size = None if is_single else cut.size
        loader = stream.batch(size, cut.drop_remainder, cut.epochs, padding_field=padding_field)
        self.numbering = stream.run.numbering(cut)
        self.numbering.warn_if_finished()
        self.furthest = -1
        self._options = cut, padding_field, ahead, is_single
        self._loader = loader.prefetch(depth, threads=threads) if depth else loader
        self._batches: StreamIterator | None = None
        self._next = 0  # the number of the batch that `_batches` delivers next
        self._lock = ProcessLock()

    def __reduce__(self) -> Any:
        return BatchReader, (self.stream, *self._options)

    def batch(self, number: int) -> Any:  # a tree like the record's
        """Read one batch, or raise an IndexError."""
        count = self.numbering.length
        if number < 0 or (count is not None and number >= count):
            raise IndexError(f"there is no batch {number}: there are {count}")
        with self._lock:
            if self._batches is None or number != self._next:
                start = self.cursor(number)
                self._batches = self._loader.at(start["epoch"], start["position"])
                self._next = number
            batch = next(self._batches)
            self._next = number + 1
            self.furthest = max(self.furthest, number)
        return batch

    def cursor(self, delivered: int) -> dict[str, Any]:
        """Return the cursor after a number of delivered batches."""
        delivered, count = int_argument("delivered", delivered), self.numbering.length
        if count is not None and delivered > count:
            raise ConfigurationError(f"{delivered} batches can't be delivered: there are {count}")
        return self.numbering.cursor(delivered)

    def at(self, state: Mapping[str, Any], rebind: bool = False) -> "BatchReader":
        """Return a reader of the same stream whose batch 0 is the first one after the cursor."""
        return BatchReader(RecordStream(self.stream.run.resumed(state, rebind)), *self._options)


# Hand a stream to Keras: as a `PyDataset`.


# Keras up to 3.6 builds a model with batches that are then missing from the training.
if tuple(map(int, keras.__version__.split(".")[:2])) < (3, 7):
    raise MissingDependencyError(
        f"Keras {keras.__version__} loses batches of datasets that have no end: pip install 'keras>=3.7'"
    )

# How many callers to search. In Keras 3.15, `get_data_adapter` is the third caller and `fit` the sixth.
_MOST_FRAMES: Final = 8
_SHUFFLE_MESSAGE: Final = (
    "Keras's fit shuffles the batches of a dataset that ends. Pass shuffle=False to train in the stream's "
    "order, the same in each epoch of Keras's. Or pass epochs=None to PyDataset, and "
    "steps_per_epoch=dataset.steps_per_epoch to fit: then each epoch is the next of the stream's, in its own "
    "order"
)
_BACKUP_MESSAGE: Final = (
    "keras.callbacks.BackupAndRestore(save_freq=<number>) does not save the position in the data: after a "
    "stop it resumes with the weights of the middle of an epoch, but with data from its start, so that some "
    "records come twice. Use yogadl.adapters.keras.Checkpoint(path, dataset, every_batches=<number>) in its "
    "place"
)


class PyDataset(keras.utils.PyDataset):  # type: ignore[misc]  # Keras has no annotations
    """A stream's batches for Keras, in the stream's order.

    For `fit`, pass ``epochs=None``: the dataset is endless, and batch i is the i-th batch after the stream's
    start, across epochs. Pass ``steps_per_epoch=dataset.steps_per_epoch`` to `fit`. For `evaluate`, `predict`
    and ``validation_data=``, pass ``epochs=1``: the dataset has an end. No default would be right for both:
    Keras shuffles the batches of a finite dataset, and begins it anew in each epoch of `fit`.

    Each `fit`, `evaluate` and `predict` begins at batch 0. A `Checkpoint` among the callbacks makes batch 0
    the batch where training stopped. Keras reads the dataset with one worker; the dataset itself reads
    ahead. Safe to read from several threads; picklable if the stream and `fields` are.

    Args:
        stream: The stream to read, of `DataRef.stream`.
        batch_size: The number of records in a batch; ``None``: the stream's items as they are, each
            of which is a batch for Keras: those of `DataRef.bucketed`.
        fields: The inputs of Keras: ``("image", "label")`` names the keys of the record for x and y; a third
            key is for the sample weight. Each item may be a tuple or a dict of keys. Or a function of a
            batch. None: records are (x, y) already, or only x.
        drop_remainder: Leave out an epoch's last batch if it is short.
        epochs: The number of the stream's epochs; ``None``: without end.
        padding_field: The name of a bool field to add; true for records that only repeat one to fill the
            shard.
        prefetch: The number of batches to read ahead in threads; 0: none.
        threads: The number of threads that read them; see `Loader.prefetch`.

    Raises:
        ConfigurationError: if an argument is invalid, or names a field that the records lack.
        UnsupportedDataError: if a field for Keras varies in length; names the field.

    Example:
        >>> import numpy as np, yogadl
        >>> from yogadl.adapters import keras as yogadl_keras
        >>> ref = yogadl.from_source({"x": np.arange(6.0), "y": np.arange(6)})
        >>> dataset = yogadl_keras.PyDataset(ref.stream(), 4, fields=("x", "y"), epochs=None)
        >>> dataset.steps_per_epoch
        2
        >>> [y.tolist() for x, y in (dataset[0], dataset[1], dataset[2])]
        [[0, 1, 2, 3], [4, 5], [0, 1, 2, 3]]
    """

    @takes_a_stream
    def __init__(
        self,
        stream: Stream,
        batch_size: int | None = None,
        *,
        epochs: int | None,
        fields: Fields = None,
        drop_remainder: bool = False,
        padding_field: str | None = None,
        prefetch: int = 2,
        threads: int = 1,
    ) -> None:
        super().__init__()
        stream = as_stream(stream)
        # If the start's epoch has no batch left, batch 0 of an endless dataset is the first of the next one.
        cut = cut_of(batch_size, drop_remainder, epochs, skip_finished_epoch=epochs is None)
        is_single = batch_size is None
        self._reader = BatchReader(stream, cut, padding_field, ahead_of(prefetch, threads), is_single)
        self._arrange = arranger(stream.spec, fields, padding_field, is_single=is_single)
        # A finite dataset is not checked: validation data is often the same on all ranks. (tf.distribute
        # shards by itself.)
        if epochs is None:
            warn_if_unsharded(stream, ranks_of(keras.backend.backend()))

    @property
    def stream(self) -> RecordStream:
        """The stream that is read; it starts at batch 0."""
        return self._reader.stream

    @property
    def num_batches(self) -> int | None:
        """The number of batches, or None if the dataset is endless."""
        return self._reader.numbering.length

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches in a whole epoch."""
        return self._reader.numbering.full

    @property
    def steps_left(self) -> int:
        """The number of batches that are left in the epoch of batch 0."""
        return self._reader.numbering.begun

    @property
    def asked_for(self) -> int:
        """The number of batches requested from batch 0 on; at least the number of consumed batches."""
        return self._reader.furthest + 1

    @property
    def workers(self) -> int:
        """The number of threads of Keras that read it, always 1. Some backends lose batches with more.

        Keras reads this property before it reads the dataset, so the property checks how Keras is about to
        read.

        Raises:
            ConfigurationError: if `fit` would shuffle the batches, or an endless dataset gets no number of
                steps.
        """
        call, is_endless = reading_call(), self.num_batches is None
        if call is not None and is_endless and not call.steps:
            raise ConfigurationError(
                "the dataset has no end, so Keras must be told how many batches to read: pass "
                "steps_per_epoch=dataset.steps_per_epoch to fit, validation_steps= for validation_data=, and "
                "steps= to evaluate and predict. Or make the dataset with epochs=1, to evaluate and predict"
            )
        if call is not None and not is_endless and call.is_shuffled:
            raise ConfigurationError(_SHUFFLE_MESSAGE)
        if fit_backs_up_within_epochs(self):
            # stacklevel=1 blames this line, so Python shows the warning once per process.
            warnings.warn(_BACKUP_MESSAGE, UserWarning, stacklevel=1)
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
        """Whether processes of Keras read the dataset, which is always False."""
        return False

    @use_multiprocessing.setter
    def use_multiprocessing(self, value: bool) -> None:
        if value:
            raise ConfigurationError("use_multiprocessing=True: Keras reads this dataset with one worker")

    def __getitem__(self, index: int) -> Any:
        """Return a batch.

        Raises:
            IndexError: if there is no such batch.
            ConfigurationError: if the dataset is finite, and its batches are not requested in order.
        """
        number, count = operator.index(index), self.num_batches
        if count is not None and self.asked_for < number < count:
            raise ConfigurationError(
                f"batch {number} was requested before batch {self.asked_for}: {_SHUFFLE_MESSAGE}"
            )
        batch = self._reader.batch(number)
        return batch if self._arrange is None else self._arrange(batch)

    def cursor(self, delivered: int) -> dict[str, Any]:
        """Return the cursor after `delivered` consumed batches, counted from batch 0.

        Count the batches that the training loop consumed; Keras requests more, since it reads ahead.

        Raises:
            ConfigurationError: if the dataset has fewer batches.
        """
        return self._reader.cursor(delivered)

    def load_state_dict(self, state: Mapping[str, Any], rebind: bool = False) -> None:
        """Move batch 0 to the first batch after a cursor.

        Args:
            state: A cursor of this dataset, or of any loader of the same data and order.
            rebind: Whether to accept a cursor of other data of equal length.

        Raises:
            CursorError: if `state` is no cursor, or a cursor of other data or another order.
            ConfigurationError: if shards of unequal length would drift into different epochs.
        """
        self._reader = self._reader.at(state, rebind)


class ReadingCall(NamedTuple):
    """How Keras is about to read a dataset: whether it shuffles a finite one, and the number of steps."""

    is_shuffled: bool
    steps: int | None


def reading_call() -> ReadingCall | None:
    """Return how Keras will read the dataset, if called while Keras prepares it; otherwise None.

    Keras does not pass this to the dataset, so the function looks up the arguments of `get_data_adapter` in
    the call stack: `fit` and similar methods call it with the dataset, on every backend, before they read
    anything.
    """
    given = arguments_of_caller("get_data_adapter", "shuffle", "steps_per_epoch")
    return None if given is None else ReadingCall(bool(given["shuffle"]), given["steps_per_epoch"])


def fit_backs_up_within_epochs(dataset: PyDataset) -> bool:
    """Return whether a `fit` on the dataset has a BackupAndRestore that saves within epochs."""
    given = arguments_of_caller("fit", "x", "callbacks")
    if given is None or given["x"] is not dataset:
        return False
    callbacks = getattr(given["callbacks"], "callbacks", given["callbacks"])  # of a CallbackList
    listed = callbacks if isinstance(callbacks, list | tuple) else [callbacks]
    kind = keras.callbacks.BackupAndRestore
    return any(isinstance(callback, kind) and callback.save_freq != "epoch" for callback in listed)


def arguments_of_caller(function: str, *names: str) -> Mapping[str, Any] | None:
    """Return the local variables of the nearest caller of a certain name, or None if there is no such caller.

    Args:
        function: The name of the calling function.
        *names: Its arguments. A function of the same name without all of them is passed over.
    """
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MOST_FRAMES + 1):
        if frame is None:
            break
        if frame.f_code.co_name == function and all(name in frame.f_locals for name in names):
            return frame.f_locals
        frame = frame.f_back
    return None
