"""Say how each component of an element travels through tf.data: as which arrays, to which tensors."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from yogadl._interfaces import Column
from yogadl._leaf import Leaf
from yogadl._spec import NamedTupleNode
from yogadl.adapters.tensorflow import _pack as pack
from yogadl.adapters.tensorflow._specs import RAGGED, Tensor, TypeSpec, tf_dtype, uniform_sizes
from yogadl.adapters.tensorflow._tensors import decoded, ragged, serialized, shaped
from yogadl.errors import ConfigurationError


class Part:
    """A component of an element: how it travels as tensors through tf.data.

    Attributes:
        name: Of the field.
        dtypes: Of the arrays that it travels as.
        is_plain: Whether those are its batch already, and unbatching makes its records.
        is_remembered: Whether it is to have the spec of a ragged tensor of ragged rank 0.
    """

    name: str
    dtypes: list[str]
    is_plain = False
    is_remembered = False

    def pack(self, columns: Sequence[Column], padding: Any) -> pack.Arrays:
        """Return the arrays."""
        raise NotImplementedError

    def batch(self, tensors: Iterator[Tensor], size: int | None) -> Tensor:
        """Take the tensors of a batch and return the component."""
        raise NotImplementedError

    def rows(self, tensors: Iterator[Tensor]) -> list[Tensor]:
        """Take the tensors of many records and return them with their shapes, a record a row."""
        raise NotImplementedError

    def record(self, tensors: Iterator[Tensor]) -> Tensor:
        """Take the tensors of one record, or of all where it is plain, and return the component."""
        raise NotImplementedError

    def remembered(self, spec: TypeSpec) -> TypeSpec:
        """Return the spec that the component is to have."""
        return spec


class FixedPart(Part):
    """Values of one shape."""

    is_plain = True

    def __init__(self, name: str, leaf: Leaf, number: int) -> None:
        self.name = name
        self.dtypes = [tf_dtype(leaf)]
        self._leaf = leaf
        self._number = number

    def pack(self, columns: Sequence[Column], padding: Any) -> pack.Arrays:
        column = columns[self._number]
        return [column] if isinstance(column, np.ndarray) and self._leaf.is_numeric else pack.texts(column)

    def batch(self, tensors: Iterator[Tensor], size: int | None) -> Tensor:
        assert self._leaf.shape is not None
        return shaped(next(tensors), [size, *self._leaf.shape])

    def rows(self, tensors: Iterator[Tensor]) -> list[Tensor]:
        return [self.batch(tensors, None)]

    def record(self, tensors: Iterator[Tensor]) -> Tensor:
        return next(tensors)


class PaddingPart(FixedPart):
    """Which records are padding."""

    def __init__(self, name: str) -> None:
        super().__init__(name, Leaf("bool"), -1)

    def pack(self, columns: Sequence[Column], padding: Any) -> pack.Arrays:
        return [padding]


class VaryingPart(Part):
    """Values of varying shape, for single records: as bytes, which unbatching is fast at."""

    def __init__(self, name: str, leaf: Leaf, number: int) -> None:
        self.name = name
        self._leaf = leaf
        self._number = number
        self.dtypes = ["string", "int64"] if leaf.is_numeric else ["string"]
        self.is_remembered = leaf.ragged_rank == 0

    def pack(self, columns: Sequence[Column], padding: Any) -> pack.Arrays:
        column = columns[self._number]
        if self._leaf.is_numeric:
            return pack.raws(self._leaf, column)
        found = np.empty(len(column), object)
        found[:] = [serialized(value) for value in column]
        return [found]

    def rows(self, tensors: Iterator[Tensor]) -> list[Tensor]:
        found = [shaped(next(tensors), [None])]
        if self._leaf.is_numeric:
            shape = self._leaf.shape
            found.append(shaped(next(tensors), [None, None if shape is None else len(shape)]))
        return found

    def record(self, tensors: Iterator[Tensor]) -> Tensor:
        leaf = self._leaf
        data = next(tensors)
        if not leaf.is_numeric:
            value = tf.io.parse_tensor(data, tf.string)
        else:
            shape = next(tensors)
            if leaf.shape is None:
                shape = shape[1 : 1 + shape[0]]
            value = tf.reshape(decoded(data, leaf.dtype), shape)
        if self.is_remembered:
            value = tf.raw_ops.RaggedTensorToVariant(
                rt_nested_splits=[], rt_dense_values=value, batched_input=False
            )
            return value
        return value if leaf.shape is None else tf.ensure_shape(value, leaf.shape)

    def remembered(self, spec: TypeSpec) -> TypeSpec:
        if not self.is_remembered:
            return spec
        leaf = self._leaf
        return tf.RaggedTensorSpec(
            leaf.shape, tf_dtype(leaf), ragged_rank=0, row_splits_dtype=tf.dtypes.as_dtype(leaf.row_splits)
        )


class RowsPart(Part):
    """Values of varying shape, for batches: a ragged tensor."""

    def __init__(self, name: str, leaf: Leaf, number: int) -> None:
        self.name = name
        self._leaf = leaf
        self._number = number
        self._rank = pack.ragged_rank(leaf)
        self.dtypes = [tf_dtype(leaf), *["int64"] * self._rank]

    def pack(self, columns: Sequence[Column], padding: Any) -> pack.Arrays:
        return pack.rows(self._leaf, columns[self._number])

    def batch(self, tensors: Iterator[Tensor], size: int | None) -> Tensor:
        shape = self._leaf.shape
        assert shape is not None
        flat = shaped(next(tensors), [None, *shape[self._rank :]])
        splits = [next(tensors) for _ in range(self._rank)]
        sizes = [size, *shape[: self._rank]]
        kind = tf.dtypes.as_dtype(self._leaf.row_splits or "int64")
        return ragged(flat, [tf.cast(x, kind) for x in splits], sizes)


class StackedPart(Part):
    """Values of unknown rank, for batches: those of a batch must have one shape."""

    def __init__(self, name: str, leaf: Leaf, number: int) -> None:
        self.name = name
        self._leaf = leaf
        self._number = number
        self.dtypes = [tf_dtype(leaf)]

    def pack(self, columns: Sequence[Column], padding: Any) -> pack.Arrays:
        return pack.stacked(self.name, self._leaf, columns[self._number])

    def batch(self, tensors: Iterator[Tensor], size: int | None) -> Tensor:
        return next(tensors)


class RaggedPart(Part):
    """Ragged tensors, stored as flat values and row splits."""

    def __init__(self, name: str, node: NamedTupleNode, numbers: list[int], is_batched: bool) -> None:
        leaves = [child for child in node.children if isinstance(child, Leaf)]
        flat = leaves[0]
        if len(leaves) != len(node.children) or flat.shape is None or flat.ragged_rank != len(leaves) - 1:
            raise ConfigurationError(f"field {name!r} is a {RAGGED} of unknown form")
        self.name = name
        self._leaves = leaves
        self._numbers = numbers
        self._uniform = uniform_sizes(node)
        self._columns = [
            (FixedPart if None not in (leaf.shape or ()) else VaryingPart)(name, leaf, number)
            for leaf, number in zip(leaves, numbers, strict=True)
        ]
        if is_batched:
            self.dtypes = [tf_dtype(flat), *["int64"] * len(leaves)]
        else:
            self.dtypes = [name for column in self._columns for name in column.dtypes]
        self._is_batched = is_batched

    def pack(self, columns: Sequence[Column], padding: Any) -> pack.Arrays:
        if self._is_batched:
            return pack.nested_rows(self.name, [columns[number] for number in self._numbers])
        return [array for column in self._columns for array in column.pack(columns, padding)]

    @property
    def _sizes(self) -> list[int | None]:
        outer = self._leaves[1].shape
        assert outer is not None
        return [None if outer[0] is None else outer[0] - 1, *self._uniform]

    def batch(self, tensors: Iterator[Tensor], size: int | None) -> Tensor:
        flat = self._leaves[0]
        assert flat.shape is not None
        values = shaped(next(tensors), [None, *flat.shape[1:]])
        kind = tf.dtypes.as_dtype(self._leaves[1].dtype)
        splits = [tf.cast(next(tensors), kind) for _ in self._leaves]
        return ragged(values, splits, [size, *self._sizes])

    def rows(self, tensors: Iterator[Tensor]) -> list[Tensor]:
        return [tensor for column in self._columns for tensor in column.rows(tensors)]

    def record(self, tensors: Iterator[Tensor]) -> Tensor:
        flat, *splits = [column.record(tensors) for column in self._columns]
        return ragged(flat, splits, self._sizes)
