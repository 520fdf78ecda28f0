"""Read a `PyDataset` as a source: split its batches into records."""

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from yogadl._core.columns import Columns, field_column, split
from yogadl._core.forms import PLAIN, Forms
from yogadl._core.spec import Keys, Leaf, Spec, leaf_at, node_of
from yogadl._sources.sources import NO_RECORDS, Source
from yogadl.adapters._checks import Path, map_leaves
from yogadl.errors import UnsupportedDataError


def source(data: Any, forms: Forms = PLAIN) -> Source | None:  # any object of Keras
    """Return the source in a `keras.utils.PyDataset` or a `Sequence` of Keras 2, or ``None`` in others.

    Args:
        data: The dataset; its batches are split into records.
        forms: The caller's statements about the values of records.

    Raises:
        UnsupportedDataError: if the dataset is endless, has no records, or has batches that are no arrays.
    """
    if isinstance(data, keras.utils.PyDataset) or _is_sequence(data):
        return BatchesSource(data, forms)
    return None


def _is_sequence(data: Any) -> bool:
    """Return whether an object is a `Sequence` of Keras 2, which is another package."""
    return any(kind.__name__ == "Sequence" and "keras" in kind.__module__ for kind in type(data).__mro__)


class BatchesSource(Source):
    """The records in the batches of a finite `PyDataset`, or of a `Sequence` of Keras 2, read once, in order.

    A record is one row of every array of a batch, in the batch's tree: a batch (x, y) has records (x, y). The
    batches may be of any length, and of NumPy, TensorFlow, PyTorch (in memory) or JAX.
    """

    def __init__(self, batches: Any, forms: Forms = PLAIN) -> None:
        count = batches.num_batches if hasattr(batches, "num_batches") else len(batches)
        if count is None:
            raise UnsupportedDataError(
                "the PyDataset has no end (its num_batches is None), so a cache of it would never be "
                "complete: let num_batches return the number of batches in an epoch"
            )
        self._batches = _trees(batches, int(count))
        first = next(self._batches, None)
        if first is None:
            raise UnsupportedDataError(NO_RECORDS)
        self._first = first
        first_of_all = map_leaves(lambda array, _: array[0], first)

        def leaf(value: Any, path: str, _: Keys) -> Leaf:
            return leaf_at(path, 0, value, forms.allow_pickle)

        self.spec: Spec = Spec(node_of(first_of_all, leaf, has_lists=True))  # a list in a batch is structure

    def chunks(self, start: int = 0) -> Iterator[Columns]:
        """Yield the records from `start` on, a batch at a time, after reading those before."""
        first, batch = 0, self._first
        while batch is not None:
            columns = self._columns(batch, first)
            count = len(columns[0])
            if first + count > start:
                yield [column[max(0, start - first) :] for column in columns]
            first, batch = first + count, next(self._batches, None)

    def _columns(self, batch: Any, first: int) -> Columns:
        arrays = [values[0] for values in split(self.spec, [batch], first)]
        return [
            np.array(array, order="C")  # a copy: a dataset may fill one array again and again
            if field.leaf.is_numeric and array.dtype == field.leaf.numpy_dtype
            else field_column(field, list(array), first)
            for field, array in zip(self.spec.fields, arrays, strict=True)
        ]


def _trees(batches: Any, count: int) -> Iterator[Any]:
    """Yield the non-empty batches of an epoch as trees of arrays; call the epoch's hooks as Keras does."""
    if hasattr(batches, "on_epoch_begin"):
        batches.on_epoch_begin()
    for number in range(count):
        try:
            batch = batches[number]
        except Exception as error:
            error.add_note(f"while reading batch {number} of the {type(batches).__name__}")
            raise
        sizes: dict[str, int] = {}
        convert = _converter(sizes, number)
        tree = map_leaves(convert, tuple(batch) if isinstance(batch, list) else batch)
        if len(set(sizes.values())) > 1:
            raise UnsupportedDataError(f"the arrays of batch {number} are of different lengths: {sizes}")
        if any(sizes.values()):
            yield tree
    if hasattr(batches, "on_epoch_end"):
        batches.on_epoch_end()


def _converter(sizes: dict[str, int], number: int) -> Callable[[Any, Path], NDArray[Any]]:
    """Return a function that converts a tensor of batch `number` to an array, and notes its length."""

    def convert(value: Any, keys: Path) -> NDArray[Any]:
        path = "/".join(map(str, keys))
        if hasattr(value, "detach"):  # a tensor of PyTorch, which may require a gradient
            value = value.detach()
        array = np.asarray(value)
        if value is None or array.ndim == 0:
            name = f"{path!r} of batch {number}" if path else f"batch {number}"
            raise UnsupportedDataError(
                f"{name} is {value!r:.60}, not an array with a row per record: leave it out of the batches, "
                "or make it one (np.asarray)"
            )
        sizes[path] = len(array)
        return array

    return convert
