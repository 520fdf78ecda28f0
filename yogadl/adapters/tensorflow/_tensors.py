"""Make tensors of what a call handed over: shapes said, ragged tensors put together, bytes decoded."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import tensorflow as tf

from yogadl.adapters.tensorflow import _pack as pack
from yogadl.adapters.tensorflow._specs import Tensor

# Functions of ours are graphs as they are: translating them takes time, and leaves files in /tmp.
as_it_is: Final = tf.autograph.experimental.do_not_convert


def shaped(tensor: Tensor, shape: list[int | None]) -> Tensor:
    """Say a shape that is known to be right."""
    tensor.set_shape(shape)
    return tensor


def ragged(flat: Tensor, splits: Sequence[Tensor], sizes: Sequence[int | None]) -> Tensor:
    """Return a ragged tensor.

    Args:
        flat: Its flat values.
        splits: Its row splits, from the outermost in.
        sizes: How many rows it has, then how many items the rows of each level have; ``None``: varying.
    """
    found = flat
    for level in reversed(range(len(splits))):
        size = sizes[level + 1]
        rows = splits[level]
        if level == 0:
            rows = shaped(rows, [None if sizes[0] is None else sizes[0] + 1])
        if size is None:
            found = tf.RaggedTensor.from_row_splits(found, rows, validate=False)
        else:
            count = sizes[0] if level == 0 and sizes[0] is not None else tf.shape(rows, rows.dtype)[0] - 1
            found = tf.RaggedTensor.from_uniform_row_length(found, size, nrows=count, validate=False)
    return found


def serialized(value: Any) -> bytes:  # bytes or str, or an array of them
    """Return strings of any shape as one string of bytes, for `tf.io.parse_tensor`."""
    array = np.asarray(value, object)
    found = np.empty(array.size, object)
    found[:] = pack.encoded(array.ravel().tolist())
    content: bytes = tf.make_tensor_proto(
        found.reshape(array.shape), tf.string, array.shape
    ).SerializeToString()
    return content


def decoded(data: Tensor, dtype: str) -> Tensor:
    """Return the numbers in a string of bytes."""
    kind = tf.dtypes.as_dtype(dtype)
    if dtype in ("uint32", "uint64", "complex64", "complex128"):  # which decode_raw does not know
        return tf.bitcast(tf.reshape(tf.io.decode_raw(data, tf.uint8), [-1, kind.size]), kind)
    return tf.io.decode_raw(data, kind)
