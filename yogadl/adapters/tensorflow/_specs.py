"""Define how the components of a pipeline's elements are stored, and convert them to columns and back.

An element of a tf.data pipeline is a tree of components: tensors, and ragged tensors. A dense tensor is
stored in one field; a ragged tensor in several: its flat values, and its row splits from the outermost level
in.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from yogadl._core.columns import check_size
from yogadl._core.protocols import Column
from yogadl._core.spec import (
    BYTES,
    NUMPY_DTYPES,
    BadValueError,
    Keys,
    Leaf,
    NamedTupleNode,
    Node,
    Spec,
    node_of,
)
from yogadl._format.columns import HeapValues, as_bytes, shapes_of
from yogadl._format.table import running_sums
from yogadl.errors import ConfigurationError, UnsupportedDataError

# A tf.data.Dataset, a tf.Tensor, a tf.TypeSpec: TensorFlow has no annotations that a checker can use.
Dataset = Any
Tensor = Any
TypeSpec = Any

# The dtypes that tf.data can batch, slice and return. Others (float8, int4, quantized) fail in its kernels.
DTYPES: Final = NUMPY_DTYPES | {"bfloat16"}
RAGGED: Final = "RaggedTensor"  # the name of the namedtuple in which a ragged tensor is stored
_SPLITS: Final = re.compile(r"row_splits_\d+(?:_of_(\d+))?")
_REMEDIES: Final = {
    "SparseTensorSpec": "make it dense (tf.sparse.to_dense) or ragged (tf.RaggedTensor.from_sparse)",
    "OptionalSpec": "take its value and filter those that have none",
    "DatasetSpec": "make it a tensor (batch it, then get_single_element), or flat_map it into records",
    "NoneTensorSpec": "leave the component out, or put a value in its place",
}


@dataclass(frozen=True)
class StoredComponent:
    """One component of an element: its path in the element, and the leaves that store it."""

    path: tuple[Any, ...]
    leaves: tuple[Leaf, ...]
    is_ragged: bool

    @property
    def is_dense(self) -> bool:
        """Whether each of its leaves has one shape in all records."""
        return all(leaf.shape is not None and None not in leaf.shape for leaf in self.leaves)

    def split(self, value: Tensor) -> list[Tensor]:
        """Return the value as tensors that can be batched."""
        tensors = [value.flat_values, *value.nested_row_splits] if self.is_ragged else [value]
        parts = []
        for leaf, tensor in zip(self.leaves, tensors, strict=True):
            if leaf.shape is not None and None not in leaf.shape:
                parts.append(tf.ensure_shape(tensor, leaf.shape))
            else:
                parts += [tf.reshape(tensor, [-1]), tf.shape(tensor, out_type=tf.int64)]
        return parts


def components_of(element_spec: TypeSpec) -> tuple[Spec, list[StoredComponent]]:
    """Return how the elements of a dataset are stored; refuse components that can't be stored."""
    components: list[StoredComponent] = []

    def leaf(spec: TypeSpec, path: str, keys: Keys) -> Node:
        node = _leaf_of(spec, f"component {path!r} of the dataset" if path else "the element of the dataset")
        leaves = tuple(field.leaf for field in Spec(node).fields)
        components.append(StoredComponent(keys, leaves, not isinstance(node, Leaf)))
        return node

    spec = Spec(node_of(element_spec, leaf))
    if not components:
        raise UnsupportedDataError("the dataset's elements have no components; give each at least one")
    return spec, components


def _leaf_of(spec: TypeSpec, name: str) -> Node:
    """Return the node that stores one component."""
    if isinstance(spec, tf.TensorSpec):
        return Leaf(_dtype_of(spec.dtype, name), _shape_of(spec.shape))
    if isinstance(spec, tf.RaggedTensorSpec) and spec.flat_values_spec is None:
        return _ragged_of(spec, name)
    kind = type(spec).__name__
    raise UnsupportedDataError(
        f"{name} is a {kind}, which has no stored form: {_REMEDIES.get(kind, 'make it tensors')}"
    )


def _ragged_of(spec: TypeSpec, name: str) -> Node:
    """Return flat values and row splits; for ragged rank 0, a leaf that records this rank."""
    dtype, shape = _dtype_of(spec.dtype, name), _shape_of(spec.shape)
    rank, splits = spec.ragged_rank, spec.row_splits_dtype.name
    if rank == 0:
        return Leaf(dtype, shape, 0, splits)
    if shape is None:
        raise UnsupportedDataError(
            f"{name} is a ragged tensor of unknown rank, which has no stored form: give it a shape "
            "(tf.ensure_shape, or the output_signature of a generator)"
        )
    names, leaves = ["flat_values"], [Leaf(dtype, (None, *shape[rank + 1 :]), rank, splits)]
    for level in range(rank):
        size = shape[level] if level == 0 else None
        uniform = shape[level + 1]
        names.append(f"row_splits_{level}" + ("" if uniform is None else f"_of_{uniform}"))
        leaves.append(Leaf(splits, (None if size is None else size + 1,)))
    return NamedTupleNode(RAGGED, tuple(names), tuple(leaves))


def is_ragged(node: Node) -> bool:
    """Return whether a node stores a ragged tensor."""
    return isinstance(node, NamedTupleNode) and node.name == RAGGED and node.keys[:1] == ("flat_values",)


def uniform_sizes(node: NamedTupleNode) -> list[int | None]:
    """Return the number of items in the rows of each level of a stored ragged tensor; ``None``: varying."""
    matches = [_SPLITS.fullmatch(key) for key in node.keys[1:]]
    return [int(match[1]) if match and match[1] else None for match in matches]


def _dtype_of(dtype: Any, name: str) -> str:
    if dtype == tf.string:
        return BYTES
    stored = str(dtype.name)
    if stored not in DTYPES:
        raise UnsupportedDataError(
            f"{name} has dtype {stored}, which tf.data can't batch: cast it, or tf.bitcast it to integers"
        )
    return stored


def _shape_of(shape: Any) -> tuple[int | None, ...] | None:
    return None if shape.rank is None else tuple(shape.as_list())


def tf_dtype(leaf: Leaf) -> str:
    """Return the name of TensorFlow's dtype for a leaf."""
    return leaf.dtype if leaf.is_numeric else "string"


# Make tensors of the arrays that a call returns: set shapes, assemble ragged tensors, decode bytes.


# yogadl's functions need no AutoGraph: the translation takes time, and leaves files in /tmp.
without_autograph: Final = tf.autograph.experimental.do_not_convert


def shaped(tensor: Tensor, shape: list[int | None]) -> Tensor:
    """Set a tensor's shape, which TensorFlow can't infer, and return the tensor."""
    tensor.set_shape(shape)
    return tensor


def ragged(flat: Tensor, splits: Sequence[Tensor], sizes: Sequence[int | None]) -> Tensor:
    """Return a ragged tensor of flat values and row splits, from the outermost in.

    `sizes` has the number of rows, then the number of items in the rows of each level; ``None``: varying.
    """
    values = flat
    for level in reversed(range(len(splits))):
        size = sizes[level + 1]
        rows = splits[level]
        if level == 0:
            rows = shaped(rows, [None if sizes[0] is None else sizes[0] + 1])
        if size is None:
            values = tf.RaggedTensor.from_row_splits(values, rows, validate=False)
        else:
            count = sizes[0] if level == 0 and sizes[0] is not None else tf.shape(rows, rows.dtype)[0] - 1
            values = tf.RaggedTensor.from_uniform_row_length(values, size, nrows=count, validate=False)
    return values


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
            "is called inside a tf.function: make the dataset outside of it; inside, iterate over the dataset"
        )
    else:
        problem = (
            "is called in TensorFlow's graph mode: leave out tf.compat.v1.disable_eager_execution(), "
            "disable_v2_behavior() and tf.Graph().as_default()"
        )
    raise ConfigurationError(f"{what} needs eager execution, but {problem}")


# Convert columns to arrays that one call can return to tf.data, and arrays of tf.data to columns.


Arrays = list[NDArray[Any]]


def encoded(values: Iterable[Any]) -> NDArray[Any]:
    """Return an array of objects, with str encoded as bytes."""
    items = [item if isinstance(item, bytes) else item.encode("utf-8", "surrogatepass") for item in values]
    found = np.empty(len(items), object)
    found[:] = items
    return found


def texts(column: Column) -> Arrays:
    """Pack a column of bytes or str, scalars or arrays of one shape."""
    first = column[0]
    if not isinstance(first, np.ndarray):
        return [encoded(column)]
    stacked = np.stack(list(column))
    return [encoded(stacked.ravel().tolist()).reshape(stacked.shape)]


def stacked(name: str, leaf: Leaf, column: Column) -> Arrays:
    """Pack a column of values that must have one shape, though the field has no known shape."""
    shapes = sorted({np.shape(value) for value in column})
    if len(shapes) > 1:
        raise UnsupportedDataError(
            f"the values of field {name!r} have no known rank, and differ within a batch ({shapes[0]} and "
            f"{shapes[-1]}), so they can't become one tensor: leave out batch_size, or choose the other "
            "fields by ref.fields(...)"
        )
    if not leaf.is_numeric:
        return texts(column)
    return [np.stack([np.asarray(value, leaf.numpy_dtype) for value in column])]


def bytes_and_shapes(leaf: Leaf, column: Column) -> Arrays:
    """Pack numbers of varying shape, one row for each record: the bytes of the value, and its shape.

    If the leaf has no known rank, each shape begins with the rank of its value.
    """
    values = [np.asarray(value, leaf.numpy_dtype) for value in column]
    data = encoded(value.tobytes() for value in values)
    if leaf.shape is not None:
        return [data, np.array([value.shape for value in values], np.int64).reshape(len(values), -1)]
    return [data, shapes_of([value.shape for value in values])]


def ragged_rank(leaf: Leaf) -> int:
    """Return the number of ragged dimensions in a batch of this leaf."""
    assert leaf.shape is not None
    return 1 + max(i for i, size in enumerate(leaf.shape) if size is None)


def rows(leaf: Leaf, column: Column) -> Arrays:
    """Pack varying values as one ragged tensor: flat values, then row splits from the outermost in."""
    assert leaf.shape is not None
    rank = ragged_rank(leaf)
    values = [np.asarray(value, leaf.numpy_dtype) for value in column]
    inner = leaf.shape[rank:]
    shapes = np.array([value.shape for value in values], np.int64).reshape(len(values), -1)
    if leaf.is_numeric:
        flat = np.concatenate([value.reshape(math.prod(value.shape[:rank]), *inner) for value in values])
    else:
        flat = encoded(np.concatenate([value.reshape(-1) for value in values]).tolist())
        flat = flat.reshape(int(sum(math.prod(value.shape[:rank]) for value in values)), *inner)
    found, counts = [flat], np.ones(len(values), np.int64)
    for level in range(rank):
        lengths = np.repeat(shapes[:, level], counts)
        found.append(running_sums(lengths))
        counts = counts * shapes[:, level]
    return found


def nested_rows(name: str, columns: Sequence[Column]) -> Arrays:
    """Pack ragged values, given as flat values and row splits, as one ragged tensor of one more dimension."""
    flats, *splits = columns
    values = [np.asarray(value) for value in flats]
    if len({value.shape[1:] for value in values}) > 1:
        raise UnsupportedDataError(
            f"the ragged tensors of field {name!r} have inner dimensions that differ from record to record, "
            "so no batch can be made of them: leave out batch_size"
        )
    flat = np.concatenate(values)
    if flat.dtype == object:
        flat = encoded(flat.ravel().tolist()).reshape(flat.shape)
    found = [flat, running_sums([len(value) - 1 for value in splits[0]])]
    for level in splits:
        found.append(running_sums(np.concatenate([np.diff(value) for value in level])))
    return found


def fixed_column(leaf: Leaf, values: NDArray[Any]) -> Any:  # a column for `CacheWriter.write`
    """Return a batch of values of one shape as a column."""
    if leaf.is_numeric:
        return values
    return values.tolist() if values.ndim == 1 else list(values)


def varying_column(leaf: Leaf, flat: NDArray[Any], splits: NDArray[Any], shapes: NDArray[Any]) -> Any:
    """Return a batch of flat values of any shapes as a column.

    `splits` has the start of each record's values, and the end of the last ones. `shapes`, an array of
    (records, 1 + the largest rank), has the rank and the sizes of each value, followed by zeros.
    """
    lengths = np.diff(splits).astype(np.int64)
    if leaf.is_numeric:
        sizes = lengths * leaf.numpy_dtype.itemsize
        if sizes.size:
            check_size(int(sizes.argmax()), int(sizes.max()))
        return HeapValues(as_bytes(flat), sizes, shapes, is_text=False)
    found = []
    for number, shape in enumerate(shapes.tolist()):
        if math.prod(shape[1 : 1 + shape[0]]) != lengths[number]:
            raise BadValueError(number, "has another number of elements than its shape says")
        values = flat[splits[number] : splits[number + 1]]
        found.append(values.reshape(shape[1 : 1 + shape[0]]) if shape[0] else values[0])
    return found
