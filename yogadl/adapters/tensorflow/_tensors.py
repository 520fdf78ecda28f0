"""Make tensors of the arrays that a call returns: set shapes, assemble ragged tensors, decode bytes."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import tensorflow as tf

from yogadl.adapters.tensorflow._pack import encoded
from yogadl.adapters.tensorflow._specs import Tensor
from yogadl.errors import ConfigurationError

# yogadl's functions need no AutoGraph: the translation takes time, and leaves files in /tmp.
without_autograph: Final = tf.autograph.experimental.do_not_convert


def shaped(tensor: Tensor, shape: list[int | None]) -> Tensor:
    """Set a shape that is known to be right."""
    tensor.set_shape(shape)
    return tensor


def ragged(flat: Tensor, splits: Sequence[Tensor], sizes: Sequence[int | None]) -> Tensor:
    """Return a ragged tensor of flat values and row splits, from the outermost in.

    `sizes` has the number of rows, then the number of items in the rows of each level; ``None``: varying.
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
    found = encoded(array.ravel().tolist()).reshape(array.shape)
    content: bytes = tf.make_tensor_proto(found, tf.string, array.shape).SerializeToString()
    return content


def decoded(data: Tensor, dtype: str) -> Tensor:
    """Return the numbers in a string of bytes."""
    kind = tf.dtypes.as_dtype(dtype)
    if dtype in ("uint32", "uint64", "complex64", "complex128"):  # decode_raw lacks these dtypes
        return tf.bitcast(tf.reshape(tf.io.decode_raw(data, tf.uint8), [-1, kind.size]), kind)
    return tf.io.decode_raw(data, kind)


def require_eager(what: str) -> None:
    """Raise a ConfigurationError inside a `tf.function` and in graph mode, naming the caller `what`."""
    if tf.executing_eagerly():
        return
    if tf.inside_function():
        problem = (
            "is called inside a tf.function: make the dataset outside of it; what is ready can be iterated "
            "over inside"
        )
    else:
        problem = (
            "is called in TensorFlow's graph mode: leave out tf.compat.v1.disable_eager_execution(), "
            "disable_v2_behavior() and tf.Graph().as_default()"
        )
    raise ConfigurationError(f"{what} needs eager execution, but {problem}")
