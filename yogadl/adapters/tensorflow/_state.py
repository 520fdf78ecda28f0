"""Save the next epoch in checkpoints of tf.data, whatever stages are between an epoch and `repeat`.

A checkpoint of tf.data contains the state of each iterator that is still held. Most stages drop their input's
iterator when it ends: a batch after its last element, a shuffle that empties its buffer. The iterator's
state, which contains the epoch, is then missing. Therefore the iterators of the dataset that
`make_tf_dataset` returns, and of all datasets that its methods make of it, write the count of epochs in
addition to tf.data's own state.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, Final

import tensorflow as tf

from yogadl.adapters.tensorflow._gather import FOREIGN, EpochTokens
from yogadl.adapters.tensorflow._specs import Dataset, Tensor, TypeSpec
from yogadl.errors import ConfigurationError, CursorError

_IDENTITY_BYTES: Final = 8


class EpochCount:
    """The number of epochs of a dataset that were begun, as tf.data counts them.

    The object holds an iterator over the random dataset whose numbers identify epochs. The state of this
    iterator contains the number of other iterators that were made, and restoring the state sets that number
    for all.

    Args:
        identity: A number of 63 bits that identifies the epochs' dataset.
        random: The random dataset; this must be the first to iterate over it.
        epochs: The epochs that are counted.
    """

    def __init__(self, identity: int, random: Dataset, epochs: EpochTokens) -> None:
        self._identity = identity.to_bytes(_IDENTITY_BYTES, "little")
        self._iterator = iter(random)
        self._epochs = epochs

    def save(self) -> bytes:
        """Return the count for `restore`."""
        variants = self._iterator._serialize_to_tensors()["_STATE"]
        content: bytes = tf.io.serialize_tensor(variants).numpy()
        return self._identity + content

    def restore(self, saved: bytes) -> None:
        """Set the count that `save` returned, or raise a CursorError if it is of another dataset."""
        if saved[:_IDENTITY_BYTES] != self._identity:
            raise CursorError(FOREIGN)
        variants = tf.io.parse_tensor(saved[_IDENTITY_BYTES:], tf.variant)
        self._iterator._restore_from_tensors({"_STATE": variants})

    def trust(self) -> None:
        """Note that checkpoints contain the count."""
        self._epochs.is_counted = True


class ResumableDataset(tf.data.Dataset):  # type: ignore[misc]  # TensorFlow has no annotations
    """A wrapper of a dataset whose iterators have the count of epochs in their checkpoints.

    The same holds for the iterators of datasets that its methods return.

    Args:
        dataset: The wrapped dataset.
        count: The count of its own epochs, in addition to those of its input datasets.
    """

    def __init__(self, dataset: Dataset, count: EpochCount | None = None) -> None:
        self._dataset = dataset
        self._yogadl_count = count
        super().__init__(dataset._variant_tensor)

    def _inputs(self) -> list[Dataset]:
        return [self._dataset]

    @property
    def element_spec(self) -> TypeSpec:
        """The structure of an element."""
        return self._dataset.element_spec

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator."""
        iterator: Iterator[Any] = super().__iter__()
        if tf.executing_eagerly():
            _write_counts(iterator, list(dict.fromkeys(_counts_of(self))))
        return iterator


def _counts_of(dataset: Dataset) -> Iterator[EpochCount]:
    """Yield the counts of a dataset and of all its inputs, in a fixed order."""
    count = getattr(dataset, "_yogadl_count", None)
    if count is not None:
        yield count
    for stage in dataset._inputs():
        yield from _counts_of(stage)


def _write_counts(iterator: Any, counts: list[EpochCount]) -> None:
    """Add the counts to an iterator's checkpoints."""
    save, restore = iterator._serialize_to_tensors, iterator._restore_from_tensors
    is_symbolic = iterator._dataset.options().experimental_symbolic_checkpoint
    for count in counts:
        count.trust()

    def save_all() -> dict[str, Tensor]:
        if is_symbolic:
            raise ConfigurationError(
                "with the option experimental_symbolic_checkpoint tf.data writes down an earlier state than "
                "that of the epochs: leave the option out"
            )
        while True:  # until no epoch begins meanwhile in a thread of tf.data that reads ahead
            saved = [count.save() for count in counts]
            found = save()
            if saved == [count.save() for count in counts]:
                return {**found, "_EPOCHS": tf.constant(saved)}

    def restore_all(tensors: dict[str, Tensor]) -> Any:
        saved = tensors["_EPOCHS"].numpy().tolist()
        if len(saved) != len(counts):
            raise CursorError(FOREIGN)
        for count, content in zip(counts, saved, strict=True):
            count.restore(content)
        return restore(tensors)

    def copy(object_map: dict[Any, Any]) -> None:  # for checkpoints that are written in a thread
        tensors = save_all()
        stand_in = object_map.setdefault(iterator, iter(tf.data.Dataset.range(0)))
        stand_in._serialize_to_tensors = lambda: tensors

    iterator._serialize_to_tensors = save_all
    iterator._restore_from_tensors = restore_all
    iterator._copy_trackable_to_cpu = copy


def _resumable(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that makes its result resumable if the result is a dataset."""

    @functools.wraps(method)
    def transform(self: ResumableDataset, *arguments: Any, **options: Any) -> Any:
        found = method(self, *arguments, **options)
        return ResumableDataset(found) if isinstance(found, tf.data.Dataset) else found

    return transform


for _name, _method in inspect.getmembers_static(tf.data.Dataset, inspect.isfunction):
    if not _name.startswith("_"):
        setattr(ResumableDataset, _name, _resumable(_method))
