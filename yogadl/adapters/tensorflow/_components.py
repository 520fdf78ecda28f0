"""Pass each component of an element through tf.data: its columns as arrays, the arrays as tensors."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from yogadl._core.json_value import encode
from yogadl._core.protocols import Column
from yogadl._core.spec import BYTES, JSON, STR, DictNode, Leaf, NamedTupleNode, Node, Spec
from yogadl.adapters._checks import with_padding
from yogadl.adapters.tensorflow import _specs as pack
from yogadl.adapters.tensorflow._specs import (
    DTYPES,
    RAGGED,
    Tensor,
    TypeSpec,
    decoded,
    is_ragged,
    ragged,
    serialized,
    shaped,
    tf_dtype,
    uniform_sizes,
)
from yogadl.errors import ConfigurationError, UnsupportedDataError


class Component:
    """A component of an element: the conversion of its columns to arrays, and of the arrays to its tensor."""

    name: str  # the field's name
    dtypes: list[str]  # the dtypes of the arrays
    is_plain = False  # whether the arrays are a batch already, which `unbatch` splits into records
    is_ragged_rank_0 = False  # whether the component must get the spec of a ragged tensor of ragged rank 0

    def pack(self, columns: Sequence[Column], padding: Any) -> pack.Arrays:
        """Return the arrays."""
        raise NotImplementedError

    def batch(self, tensors: Iterator[Tensor], size: int | None) -> Tensor:
        """Take the tensors of a batch and return the component."""
        raise NotImplementedError

    def rows(self, tensors: Iterator[Tensor]) -> list[Tensor]:
        """Take the tensors of many records, one row for each, and return them with their shapes set."""
        raise NotImplementedError

    def record(self, tensors: Iterator[Tensor]) -> Tensor:
        """Take the tensors of one record (of a batch if the component is plain) and return the component."""
        raise NotImplementedError

    def spec_of(self, spec: TypeSpec) -> TypeSpec:
        """Return the spec of the component in the finished dataset."""
        return spec


class LeafComponent(Component):
    """A component that is one field of the record: the leaf, and the number of its column."""

    def __init__(self, name: str, leaf: Leaf, number: int) -> None:
        self.name = name
        self.dtypes = [tf_dtype(leaf)]
        self._leaf = leaf
        self._number = number


class FixedComponent(LeafComponent):
    """Values of one shape."""

    is_plain = True

    def pack(self, columns: Sequence[Column], padding: Any) -> pack.Arrays:
        column = columns[self._number]
        if self._leaf.dtype == JSON:
            return [pack.encoded(map(encode, column))]
        return [column] if isinstance(column, np.ndarray) and self._leaf.is_numeric else pack.texts(column)

    def batch(self, tensors: Iterator[Tensor], size: int | None) -> Tensor:
        assert self._leaf.shape is not None
        return shaped(next(tensors), [size, *self._leaf.shape])

    def rows(self, tensors: Iterator[Tensor]) -> list[Tensor]:
        return [self.batch(tensors, None)]

    def record(self, tensors: Iterator[Tensor]) -> Tensor:
        return next(tensors)


class PaddingComponent(FixedComponent):
    """The flags that mark records as padding."""

    def __init__(self, name: str) -> None:
        super().__init__(name, Leaf("bool"), -1)

    def pack(self, columns: Sequence[Column], padding: Any) -> pack.Arrays:
        return [padding]


class VaryingComponent(LeafComponent):
    """Values of varying shape, for single records: as bytes, which `unbatch` splits fast."""

    def __init__(self, name: str, leaf: Leaf, number: int) -> None:
        super().__init__(name, leaf, number)
        self.dtypes = ["string", "int64"] if leaf.is_numeric else ["string"]
        self.is_ragged_rank_0 = leaf.ragged_rank == 0

    def pack(self, columns: Sequence[Column], padding: Any) -> pack.Arrays:
        column = columns[self._number]
        if self._leaf.is_numeric:
            return pack.bytes_and_shapes(self._leaf, column)
        return [pack.encoded(map(serialized, column))]

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
        if self.is_ragged_rank_0:
            return tf.raw_ops.RaggedTensorToVariant(
                rt_nested_splits=[], rt_dense_values=value, batched_input=False
            )
        return value if leaf.shape is None else tf.ensure_shape(value, leaf.shape)

    def spec_of(self, spec: TypeSpec) -> TypeSpec:
        if not self.is_ragged_rank_0:
            return spec
        leaf = self._leaf
        return tf.RaggedTensorSpec(
            leaf.shape, tf_dtype(leaf), ragged_rank=0, row_splits_dtype=tf.dtypes.as_dtype(leaf.row_splits)
        )


class RaggedRowsComponent(LeafComponent):
    """Values of varying shape, for batches: a ragged tensor."""

    def __init__(self, name: str, leaf: Leaf, number: int) -> None:
        super().__init__(name, leaf, number)
        self._rank = pack.ragged_rank(leaf)
        self.dtypes += ["int64"] * self._rank

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


class StackedComponent(LeafComponent):
    """Values of unknown rank, for batches: all values of a batch must have one shape."""

    def pack(self, columns: Sequence[Column], padding: Any) -> pack.Arrays:
        return pack.stacked(self.name, self._leaf, columns[self._number])

    def batch(self, tensors: Iterator[Tensor], size: int | None) -> Tensor:
        return next(tensors)


class RaggedComponent(Component):
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
            (FixedComponent if None not in (leaf.shape or ()) else VaryingComponent)(name, leaf, number)
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


def components_of_record(
    spec: Spec, padding_field: str | None, *, is_batched: bool
) -> tuple[list[Component], Node]:
    """Return the components of the elements for tf.data, and the tree into which they are put."""
    components: list[Component] = []
    numbers = iter(range(len(spec.fields)))

    def visit(node: Node, path: str) -> None:
        if isinstance(node, Leaf):
            components.append(_component(path, node, next(numbers), is_batched))
        elif is_ragged(node):
            assert isinstance(node, NamedTupleNode)
            components.append(RaggedComponent(path, node, [next(numbers) for _ in node.children], is_batched))
        else:
            for key, child in zip(node.keys, node.children, strict=True):
                visit(child, f"{path}/{key}" if path else str(key))

    visit(spec.tree, "")
    if padding_field is not None:
        components.append(PaddingComponent(padding_field))
    return components, with_padding(spec, padding_field).tree


def _component(path: str, leaf: Leaf, number: int, is_batched: bool) -> Component:
    if leaf.dtype not in (BYTES, STR, JSON) and leaf.dtype not in DTYPES:
        remedy = (
            "view it as int64 before it is cached"
            if leaf.dtype[:4] in ("date", "time")
            else "choose the others by ref.fields(...)"
        )
        raise UnsupportedDataError(
            f"field {path!r} has dtype {leaf.dtype}, for which tf.data has no tensors: {remedy}"
        )
    is_empty = leaf.shape is not None and 0 in leaf.shape and not is_batched  # `unbatch` crashes on it
    if leaf.shape is not None and None not in leaf.shape and not is_empty:
        return FixedComponent(path, leaf, number)
    if not is_batched:
        return VaryingComponent(path, leaf, number)
    if leaf.shape is None:
        return StackedComponent(path, leaf, number)
    return RaggedRowsComponent(path, leaf, number)


def assembled(node: Node, values: Iterator[Any]) -> Any:
    """Put a value for each component, in order, into the record's tree; a list becomes a tuple."""
    if isinstance(node, Leaf) or is_ragged(node):
        return next(values)
    built = [assembled(child, values) for child in node.children]
    return tuple(built) if node.kind == "list" else node.build(built)


def flat_specs(node: Node, spec: TypeSpec) -> list[TypeSpec]:
    """Return the specs of the components, in order."""
    if isinstance(node, Leaf) or is_ragged(node):
        return [spec]
    items = [spec[key] for key in node.keys] if isinstance(node, DictNode) else list(spec)
    return [
        found for child, item in zip(node.children, items, strict=True) for found in flat_specs(child, item)
    ]
