"""Read tf.data pipelines into caches, and hand streams to tf.data.

The names of this module need TensorFlow. What is stored how, what is refused and how to resume:
docs/tensorflow.md.
"""

import hashlib
import json
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from yogadl._interfaces import Column, Stream
from yogadl._leaf import BYTES, STR, BadValueError, Leaf, refuse
from yogadl._sources import NO_RECORDS, Columns, Source, size_of
from yogadl._spec import DictNode, NamedTupleNode, Node, SequenceNode, Spec, check_keys
from yogadl._stream import Loader, RecordStream
from yogadl.adapters._tensorflow import pack
from yogadl.adapters._tensorflow.gather import Epochs, Gather
from yogadl.adapters._tensorflow.graph import Graph, graph_of
from yogadl.errors import ConfigurationError, MissingDependencyError, UnsupportedDataError

try:
    import tensorflow as tf
except ImportError as error:
    raise MissingDependencyError(
        "tf.data pipelines and make_tf_dataset need TensorFlow: pip install 'yogadl[tensorflow]'"
    ) from error

__all__ = ["cache", "make_tf_dataset", "source"]

# A tf.data.Dataset, a tf.Tensor, a tf.TypeSpec: TensorFlow has no annotations that a checker can use.
Dataset = Any
Tensor = Any
TypeSpec = Any

# What tf.data can batch, slice and give back. Others (float8, int4, quantized) fail in its kernels.
_DTYPES: Final = frozenset(
    {"bool", "bfloat16", "float16", "float32", "float64", "complex64", "complex128"}
    | {f"{kind}int{bits}" for kind in ("", "u") for bits in (8, 16, 32, 64)}
)
_RAGGED: Final = "RaggedTensor"  # the namedtuple that a ragged tensor is stored as
_SPLITS: Final = re.compile(r"row_splits_(\d+)(?:_of_(\d+))?")

_CHUNK_BYTES: Final = 8 * 2**20
_CHUNK_RECORDS: Final = 8 * 1024
_VARYING_RECORDS: Final = 64
_LARGE_RECORDS: Final = 16
_GATHERED_BYTES: Final = 2**20
_GATHERED_RECORDS: Final = 1024
_LARGE_GRAPH_BYTES: Final = 2**28


# A pipeline as a source.


def source(data: Any, allow_pickle: bool = False) -> Source | None:  # any object of TensorFlow's
    """Return the source in a `tf.data.Dataset`, or ``None`` if `data` is none.

    Args:
        data: The pipeline, of single records.
        allow_pickle: Makes no difference: tensors are stored without.

    Raises:
        UnsupportedDataError: if it never ends, or has components that can't be stored; names them.
    """
    return DatasetSource(data) if isinstance(data, tf.data.Dataset) else None


class DatasetSource:
    """The records of a tf.data pipeline, read in order, many at a time.

    Going back starts the pipeline anew, going on skips by reading: `chunks` keeps one iterator.
    """

    can_start_anywhere = True

    def __init__(self, dataset: Dataset) -> None:
        count = int(dataset.cardinality())
        if count == tf.data.INFINITE_CARDINALITY:
            raise UnsupportedDataError(
                "the dataset never ends (its cardinality is infinite): cache it before repeat(), or take(n) of it"
            )
        if count == 0:
            raise UnsupportedDataError(NO_RECORDS)
        self.length = count if count >= 0 else None
        self._components: list[_Component] = []
        self.spec = Spec(_node_of(dataset.element_spec, "", self._components))
        if not self._components:
            raise UnsupportedDataError("the dataset's elements have no components; give each at least one")
        self._dataset = dataset
        self._live: Iterator[tuple[int, int, Columns]] | None = None
        self._held: tuple[int, int, Columns] = (0, 0, [])
        _warn_of_what_varies(dataset)

    def __reduce__(self) -> Any:
        raise ConfigurationError(
            "a tf.data pipeline is read by one process: leave out workers=, and let tf.data itself work in "
            "parallel (num_parallel_calls=tf.data.AUTOTUNE)"
        )

    def chunks(self, start: int = 0) -> Iterator[Columns]:
        """Yield the records from `start` on."""
        if self._live is None or start < self._held[0]:
            self._live, self._held = self._read(), (0, 0, [])
        while True:
            first, end, columns = self._held
            if first <= start < end:
                start, begun = end, start - first
                yield [column[begun:] for column in columns] if begun else columns
            try:
                self._held = next(self._live)
            except StopIteration:
                self._live = None
                return

    def _read(self) -> Iterator[tuple[int, int, Columns]]:
        options = tf.data.Options()
        options.deterministic = True
        first = 0
        batches = iter(self._batched().prefetch(2).with_options(options))
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                break
            except Exception as error:
                error.add_note(f"while reading the records from {first} on of the tf.data pipeline")
                raise
            columns, count = self._columns(tf.nest.flatten(batch), first)
            yield first, first + count, columns
            first += count
        if not first:
            raise UnsupportedDataError(NO_RECORDS)

    def _batched(self) -> Dataset:
        """Return the pipeline in batches of flat tuples of tensors."""
        is_tuple = type(self._dataset.element_spec) is tuple  # tf.data unpacks those, and only those
        components = self._components

        def split(*element: Any) -> tuple[Tensor, ...]:
            found: list[Tensor] = []
            for component in components:
                value = element if is_tuple else element[0]
                for key in component.path:
                    value = value[key]
                found += component.split(value)
            return tuple(found)

        fixed = sum(field.leaf.row_bytes for field in self.spec.fields if field.leaf.is_fixed)
        count = max(1, min(_CHUNK_BYTES // max(1, fixed), _CHUNK_RECORDS))
        for component in components:
            count = min(count, component.most)
        dataset = self._dataset.map(split)
        if all(component.is_dense for component in components):
            return dataset.batch(count)
        return dataset.ragged_batch(count)

    def _columns(self, tensors: Sequence[Tensor], first: int) -> tuple[Columns, int]:
        found: Columns = []
        rest = iter(tensors)
        number = 0
        for component in self._components:
            for _ in component.leaves:
                field = self.spec.fields[number]
                number += 1
                try:
                    found.append(_column(field.leaf, rest))
                except BadValueError as error:
                    raise refuse(field.name, first + error.position, error.problem) from None
        return found, len(found[0])


def _column(leaf: Leaf, tensors: Iterator[Tensor]) -> Any:  # a column for `CacheWriter.write`
    if leaf.shape is not None and None not in leaf.shape:
        return pack.fixed_column(leaf, np.asarray(next(tensors)))
    flat, shape = next(tensors), next(tensors)
    values, splits = np.asarray(flat.values), np.asarray(flat.row_splits)
    if leaf.shape is not None:
        sizes = np.asarray(shape)
        ranks = np.full((len(sizes), 1), sizes.shape[1], np.int64)
        return pack.varying_column(leaf, values, splits, np.hstack([ranks, sizes]))
    ranks = np.diff(np.asarray(shape.row_splits))
    sizes = shape.to_tensor().numpy()
    return pack.varying_column(leaf, values, splits, np.hstack([ranks[:, None], sizes]).astype(np.int64))


@dataclass(frozen=True)
class _Component:
    """One component of an element: where it is, and the leaves it is stored as."""

    path: tuple[Any, ...]
    leaves: tuple[Leaf, ...]
    is_ragged: bool

    @property
    def is_dense(self) -> bool:
        """Whether all of it has one shape in all records."""
        return all(leaf.shape is not None and None not in leaf.shape for leaf in self.leaves)

    @property
    def most(self) -> int:
        """How many of these to read at a time: their size is known only once they are there."""
        if self.is_dense and self.leaves[0].is_numeric:
            return _CHUNK_RECORDS
        shape = self.leaves[0].shape
        return _LARGE_RECORDS if shape is None or len(shape) > 2 else _VARYING_RECORDS

    def split(self, value: Tensor) -> list[Tensor]:
        """Return the value as tensors that can be batched."""
        if not self.is_ragged:
            parts = [value]
        else:
            parts = [value.flat_values, *value.nested_row_splits]
        found = []
        for leaf, part in zip(self.leaves, parts, strict=True):
            if leaf.shape is not None and None not in leaf.shape:
                found.append(tf.ensure_shape(part, leaf.shape))
            else:
                found += [tf.reshape(part, [-1]), tf.shape(part, out_type=tf.int64)]
        return found


def _node_of(spec: TypeSpec, path: str, components: list[_Component], keys: tuple[Any, ...] = ()) -> Node:
    def child(key: Any, position: Any, item: TypeSpec) -> Node:
        return _node_of(item, f"{path}/{key}" if path else str(key), components, (*keys, position))

    if isinstance(spec, dict):
        check_keys(spec, path, 0)
        return DictNode(tuple(spec), tuple(child(key, key, item) for key, item in spec.items()))
    if isinstance(spec, tuple) and hasattr(spec, "_fields"):
        names = tuple(spec._fields)
        children = tuple(child(name, i, item) for i, (name, item) in enumerate(zip(names, spec, strict=True)))
        return NamedTupleNode(type(spec).__name__, names, children)
    if isinstance(spec, tuple):
        return SequenceNode("tuple", tuple(child(i, i, item) for i, item in enumerate(spec)))
    node = _leaf_of(spec, path)
    leaves = tuple(field.leaf for field in Spec(node).fields)
    components.append(_Component(keys, leaves, not isinstance(node, Leaf)))
    return node


def _leaf_of(spec: TypeSpec, path: str) -> Node:
    """Return how one component is stored."""
    if isinstance(spec, tf.TensorSpec):
        return Leaf(_dtype_of(spec.dtype, path), _shape_of(spec.shape))
    if isinstance(spec, tf.RaggedTensorSpec) and spec.flat_values_spec is None:
        return _ragged_of(spec, path)
    mends = {
        "SparseTensorSpec": "make it dense (tf.sparse.to_dense) or ragged (tf.RaggedTensor.from_sparse)",
        "OptionalSpec": "take its value and filter those that have none",
        "DatasetSpec": "make it a tensor (batch it, then get_single_element), or flat_map it into records",
        "NoneTensorSpec": "leave the component out, or put a value in its place",
    }
    mend = mends.get(type(spec).__name__, "make it tensors")
    name = f"component {path!r}" if path else "the element"
    raise UnsupportedDataError(f"{name} of the dataset is a {type(spec).__name__}, which has no stored form: {mend}")


def _ragged_of(spec: TypeSpec, path: str) -> Node:
    """A ragged tensor is its flat values and row splits; one of ragged rank 0 a tensor that remembers that."""
    dtype, shape = _dtype_of(spec.dtype, path), _shape_of(spec.shape)
    rank, splits = spec.ragged_rank, spec.row_splits_dtype.name
    if rank == 0:
        return Leaf(dtype, shape, 0, splits)
    if shape is None:
        raise UnsupportedDataError(
            f"component {path!r} of the dataset is a ragged tensor of unknown rank, which has no stored form: "
            "give it a shape (tf.ensure_shape, or the output_signature of a generator)"
        )
    names, leaves = ["flat_values"], [Leaf(dtype, (None, *shape[rank + 1 :]), rank, splits)]
    for level in range(rank):
        size = shape[level] if level == 0 else None
        uniform = shape[level + 1]
        names.append(f"row_splits_{level}" + ("" if uniform is None else f"_of_{uniform}"))
        leaves.append(Leaf(splits, (None if size is None else size + 1,)))
    return NamedTupleNode(_RAGGED, tuple(names), tuple(leaves))


def _dtype_of(dtype: Any, path: str) -> str:
    if dtype == tf.string:
        return BYTES
    name = str(dtype.name)
    if name not in _DTYPES:
        raise UnsupportedDataError(
            f"component {path!r} of the dataset has dtype {name}, which tf.data can't batch: cast it, or "
            "tf.bitcast it to integers"
        )
    return name


def _shape_of(shape: Any) -> tuple[int | None, ...] | None:
    return None if shape.rank is None else tuple(shape.as_list())


def _graph(dataset: Dataset) -> Graph | None:
    """Return the pipeline's graph; ``None`` if it is too large, or tf.data can't write it down."""
    held, todo = 0, [dataset]
    while todo:
        part = todo.pop()
        todo += part._inputs()
        held += sum(size_of(np.asarray(x)) for x in _tensors_of(part))
    if held > _LARGE_GRAPH_BYTES:
        return None
    policy = tf.data.experimental.ExternalStatePolicy.IGNORE
    try:
        serialized = dataset._as_serialized_graph(external_state_policy=policy)
    except (tf.errors.OpError, ValueError):
        return None
    graph = tf.compat.v1.GraphDef()
    graph.ParseFromString(serialized.numpy())
    return graph_of(graph, _is_stateful)


def _tensors_of(dataset: Dataset) -> list[Tensor]:
    """Return the numbers that a dataset was made of, from_tensor_slices for one."""
    tensors = tf.nest.flatten(getattr(dataset, "_tensors", []))
    return [x for x in tensors if isinstance(x, tf.Tensor) and x.dtype in (tf.string, *tf.dtypes.__dict__.values())]


def _is_stateful(op: str) -> bool:
    definition = tf.raw_ops.__dict__.get(op)
    return definition is not None


def _warn_of_what_varies(dataset: Dataset) -> None:
    graph = _graph(dataset)
    for what, mend in graph.doubts() if graph else ():
        warnings.warn(
            f"the dataset that is being cached {what}, and the cache keeps the outcome of this one run: {mend}",
            UserWarning,
            stacklevel=2,
        )
