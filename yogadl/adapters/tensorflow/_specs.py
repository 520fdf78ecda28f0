"""Define how the components of a pipeline's elements are stored, and refuse components that can't be."""

import re
from dataclasses import dataclass
from typing import Any, Final

import tensorflow as tf

from yogadl._core.leaf import BYTES, NUMPY_DTYPES, Leaf
from yogadl._core.spec import Keys, NamedTupleNode, Node, Spec, node_of
from yogadl.errors import UnsupportedDataError

# A tf.data.Dataset, a tf.Tensor, a tf.TypeSpec: TensorFlow has no annotations that a checker can use.
Dataset = Any
Tensor = Any
TypeSpec = Any

# The dtypes that tf.data can batch, slice and return. Others (float8, int4, quantized) fail in its kernels.
DTYPES: Final = NUMPY_DTYPES | {"bfloat16"}
RAGGED: Final = "RaggedTensor"  # the name of the namedtuple in which a ragged tensor is stored
_SPLITS: Final = re.compile(r"row_splits_\d+(?:_of_(\d+))?")
_MENDS: Final = {
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
        found = []
        for leaf, tensor in zip(self.leaves, tensors, strict=True):
            if leaf.shape is not None and None not in leaf.shape:
                found.append(tf.ensure_shape(tensor, leaf.shape))
            else:
                found += [tf.reshape(tensor, [-1]), tf.shape(tensor, out_type=tf.int64)]
        return found


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
        f"{name} is a {kind}, which has no stored form: {_MENDS.get(kind, 'make it tensors')}"
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
    found = [_SPLITS.fullmatch(key) for key in node.keys[1:]]
    return [int(match[1]) if match and match[1] else None for match in found]


def _dtype_of(dtype: Any, name: str) -> str:
    if dtype == tf.string:
        return BYTES
    found = str(dtype.name)
    if found not in DTYPES:
        raise UnsupportedDataError(
            f"{name} has dtype {found}, which tf.data can't batch: cast it, or tf.bitcast it to integers"
        )
    return found


def _shape_of(shape: Any) -> tuple[int | None, ...] | None:
    return None if shape.rank is None else tuple(shape.as_list())


def tf_dtype(leaf: Leaf) -> str:
    """Return the name of TensorFlow's dtype for a leaf."""
    return leaf.dtype if leaf.is_numeric else "string"
