"""Read data sources of TensorFlow Datasets (`tfds.data_source`), with the dtypes of their features.

This module imports nothing of TFDS. For a `tf.data.Dataset` of TFDS use the TensorFlow adapter.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from yogadl._core.forms import PLAIN, Forms
from yogadl._sources.sources import ItemsSource, Source, has_random_access
from yogadl.errors import UnsupportedDataError

__all__ = ["source"]

# The structure of the examples: a dict of features; (shape, dtype) for a feature, or None if it has neither.
Features = Any


def source(data: Any, forms: Forms = PLAIN) -> Source | None:  # any object of TFDS
    """Return the source in a data source of TFDS, or ``None`` if `data` is none.

    Examples are read by position, many at a time. Sequences, which TFDS returns as lists, become arrays, and
    numbers get the dtype of their feature.

    Args:
        data: The result of `tfds.data_source` or ``builder.as_data_source``.
        forms: The caller's statements about the values of records.

    Raises:
        UnsupportedDataError: if there are no examples or a value can't be stored; names the value.
    """
    if not has_random_access(data) or not hasattr(data, "dataset_info"):
        return None
    return ItemsSource(Examples(data), forms)


class Examples:
    """The examples of a data source, as trees that have a stored form. Picklable if the data source is."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self._features = _features_of(data.dataset_info.features.get_tensor_info())

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return [_stored(example, self._features, "") for example in self._data.__getitems__(list(indices))]


def _features_of(info: Any) -> Features:  # a tree of TFDS's TensorInfo
    if isinstance(info, dict):
        return {key: _features_of(item) for key, item in info.items()}
    if hasattr(info, "shape") and hasattr(info, "np_dtype"):
        return tuple(info.shape), np.dtype(info.np_dtype)
    return None


def _stored(value: Any, features: Features, path: str) -> Any:
    """Return a value with arrays in place of lists. Values without a feature, such as a decoder's, stay."""
    if isinstance(value, dict) and isinstance(features, dict):
        return {
            key: _stored(item, features.get(key), f"{path}/{key}" if path else str(key))
            for key, item in value.items()
        }
    if not isinstance(features, tuple):
        return value
    shape, dtype = features
    if isinstance(value, list):
        return _array(value, shape, dtype, path)
    if isinstance(value, bool | int | float) and dtype.kind in "biuf":
        return dtype.type(value)
    return value


def _array(values: list[Any], shape: tuple[int | None, ...], dtype: np.dtype[Any], path: str) -> Any:
    """Return a sequence as an array; an empty sequence too gets the dtype and rank of its feature."""
    if not values:
        # The feature's dtype for bytes is object, from which an empty array gets no stored dtype.
        empty = np.dtype("S1") if dtype.kind == "O" else dtype
        return np.empty((0, *(size or 0 for size in shape[1:])), empty)
    try:
        return np.array(values, dtype)
    except ValueError as error:
        raise UnsupportedDataError(
            f"feature {path!r} has sequences of different lengths within a sequence, which are no "
            "array: prepare it as TFRecords, and cache builder.as_dataset(...), which keeps ragged tensors"
        ) from error
