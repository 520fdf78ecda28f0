"""Read tf.data pipelines into caches, and hand streams to tf.data.

The names of this module need TensorFlow. What is stored how, what is refused and how to resume:
docs/tensorflow.md.
"""

import hashlib
import json
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from yogadl._interfaces import Column, Stream
from yogadl._leaf import BYTES, STR, BadValueError, Leaf, refuse
from yogadl._sources import NO_RECORDS, Columns, Source
from yogadl._spec import DictNode, NamedTupleNode, Node, SequenceNode, Spec, check_keys
from yogadl._stream import Loader, RecordStream
from yogadl._stream.arguments import whole
from yogadl.adapters._tensorflow import pack
from yogadl.adapters._tensorflow.gather import FOREIGN, Epochs, Gather
from yogadl.adapters._tensorflow.graph import Graph
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

# Functions of ours are graphs as they are: translating them takes time, and leaves files in /tmp.
_as_it_is: Final = tf.autograph.experimental.do_not_convert

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
                "the dataset never ends (its cardinality is infinite): cache it before repeat(), or "
                "take(n) of it"
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
            tensors = self._tensors(batch, lambda _, value: [value]) if self._is_plain else batch
            columns, count = self._columns(tensors, first)
            yield first, first + count, columns
            first += count
        if not first:
            raise UnsupportedDataError(NO_RECORDS)

    def _batched(self) -> Dataset:
        """Return the pipeline in batches: of flat tuples of tensors, or of its elements if all are dense."""
        is_tuple = type(self._dataset.element_spec) is tuple  # tf.data unpacks those, and only those

        def split(*element: Any) -> tuple[Tensor, ...]:
            return tuple(self._tensors(element if is_tuple else element[0], _Component.split))

        fixed = sum(field.leaf.row_bytes for field in self.spec.fields if field.leaf.is_fixed)
        count = max(1, min(_CHUNK_BYTES // max(1, fixed), _CHUNK_RECORDS))
        for component in self._components:
            count = min(count, component.most)
        if self._is_plain:
            return self._dataset.batch(count)
        return self._dataset.map(_as_it_is(split)).ragged_batch(count)

    @property
    def _is_plain(self) -> bool:
        return all(component.is_dense and not component.is_ragged for component in self._components)

    def _tensors(self, element: Any, taken: Callable[["_Component", Any], list[Tensor]]) -> list[Tensor]:
        """Return what is taken of each component of an element, in order."""
        found: list[Tensor] = []
        for component in self._components:
            value = element
            for key in component.path:
                value = value[key]
            found += taken(component, value)
        return found

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
    raise UnsupportedDataError(
        f"{name} of the dataset is a {type(spec).__name__}, which has no stored form: {mend}"
    )


def _ragged_of(spec: TypeSpec, path: str) -> Node:
    """A ragged tensor is its flat values and row splits; of ragged rank 0, a tensor that remembers it."""
    dtype, shape = _dtype_of(spec.dtype, path), _shape_of(spec.shape)
    rank, splits = spec.ragged_rank, spec.row_splits_dtype.name
    if rank == 0:
        return Leaf(dtype, shape, 0, splits)
    if shape is None:
        raise UnsupportedDataError(
            f"component {path!r} of the dataset is a ragged tensor of unknown rank, which has no stored "
            "form: give it a shape (tf.ensure_shape, or the output_signature of a generator)"
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
        for tensor in tf.nest.flatten(getattr(part, "_tensors", [])):  # what it was made of
            held += (tensor.shape.num_elements() or 0) * tensor.dtype.size if tf.is_tensor(tensor) else 0
    if held > _LARGE_GRAPH_BYTES:
        return None
    policy = tf.data.experimental.ExternalStatePolicy.IGNORE
    try:
        serialized = dataset._as_serialized_graph(external_state_policy=policy)
    except (tf.errors.OpError, ValueError):
        return None
    definition = tf.compat.v1.GraphDef()
    definition.ParseFromString(serialized.numpy())
    return Graph(definition)


def _warn_of_what_varies(dataset: Dataset) -> None:
    graph = _graph(dataset)
    for what, mend in graph.doubts() if graph else ():
        warnings.warn(
            f"the dataset that is to be cached has a flaw, {what}, and the cache keeps what this run gives: "
            f"{mend}",
            UserWarning,
            stacklevel=2,
        )


# A stream as a tf.data.Dataset.


def make_tf_dataset(
    stream: Stream,
    batch_size: int | None = None,
    drop_remainder: bool = False,
    *,
    padding_field: str | None = None,
) -> Dataset:
    """Return a stream as a `tf.data.Dataset`, of records or of batches.

    Each of its iterators, and each repetition by ``repeat``, reads the stream's next epoch. Its iterators
    can be saved with `tf.train.Checkpoint` and go on in a dataset that was made in the same way, without
    reading what was skipped. Records are gathered by the batch, outside of Python's lock.

    Args:
        stream: What `DataRef.stream` returned; one that a user made is read through `from_generator`.
        batch_size: Records in a batch; ``None`` for single records. Leaves of varying length become ragged.
        drop_remainder: Whether to leave out an epoch's last batch if it is short.
        padding_field: The name under which a bool a record says what repeats a record to fill the shard.

    Raises:
        ConfigurationError: if the arguments make no sense, or the stream is a loader already.
        UnsupportedDataError: if tf.data has no tensors for a field; names it.

    Example:
        >>> import numpy as np, yogadl
        >>> from yogadl.adapters import tensorflow as yogadl_tf
        >>> ref = yogadl.from_source({"x": np.arange(6), "y": np.ones((6, 2))})
        >>> dataset = yogadl_tf.make_tf_dataset(ref.stream(shuffle=True), batch_size=4)
        >>> [batch["x"].shape[0] for batch in dataset]
        [4, 2]
    """
    if isinstance(stream, Loader):
        raise ConfigurationError("pass the stream itself, and batch_size=, instead of stream.batch(...)")
    if batch_size is not None:
        batch_size = whole("batch_size", batch_size, 1)
    if not isinstance(stream, RecordStream):
        return _from_generator(stream, batch_size, drop_remainder, padding_field)
    # The loader checks its arguments, and those of the padding field.
    stream.batch(batch_size or 1, drop_remainder, padding_field=padding_field)
    parts, tree = _parts_of(stream.spec, padding_field, is_batched=batch_size is not None)
    if batch_size is not None:
        return _batches(stream, batch_size, drop_remainder, parts, tree)
    return _records(stream, parts, tree)


def _from_generator(
    stream: Stream, batch_size: int | None, drop_remainder: bool, padding_field: str | None
) -> Dataset:
    if padding_field is not None:
        raise ConfigurationError("padding_field needs a stream of this library, which knows what is padding")
    if stream.output_types is None:
        raise ConfigurationError(
            "a Stream of your own must say what it yields: give it output_types (and output_shapes), as for "
            "tf.data.Dataset.from_generator"
        )
    dataset = tf.data.Dataset.from_generator(
        stream.iterator_fn, output_types=stream.output_types, output_shapes=stream.output_shapes
    )
    return dataset if batch_size is None else dataset.batch(batch_size, drop_remainder)


def _batches(
    stream: RecordStream, size: int, drop_remainder: bool, parts: "list[_Part]", tree: Node
) -> Dataset:
    static = size if drop_remainder else None

    def build(*tensors: Tensor) -> Any:
        rest = iter(tensors)
        return _assembled(tree, iter([part.batch(rest, static) for part in parts]))

    plan = _Plan(stream, size, drop_remainder, [part.name for part in parts], "batches")
    return _with_sharding(_items(plan, parts, 2, build), stream)


def _records(stream: RecordStream, parts: "list[_Part]", tree: Node) -> Dataset:
    size = max(1, min(_GATHERED_RECORDS, _GATHERED_BYTES // max(1, stream.source.record_bytes)))

    def build(*tensors: Tensor) -> tuple[Tensor, ...]:
        rest = iter(tensors)
        return tuple(tensor for part in parts for tensor in part.rows(rest))

    def decode(*tensors: Tensor) -> Any:
        rest = iter(tensors)
        return _assembled(tree, iter([part.record(rest) for part in parts]))

    plan = _Plan(stream, size, False, [part.name for part in parts], "records")
    if all(part.is_plain for part in parts):
        records = _items(plan, parts, 1, lambda *tensors: decode(*build(*tensors))).unbatch()
    else:
        # Not a map, which tf.data would make parallel: `_items` says why nothing may be read ahead here.
        records = _items(plan, parts, 1, build).unbatch()
        records = records.scan(
            tf.constant(0), _as_it_is(lambda state, *tensors: (state, decode(*_unpacked(tensors))))
        )
    if stream.start.position == 0:
        records = records.apply(tf.data.experimental.assert_cardinality(len(stream)))
    records = _with_sharding(records, stream)
    if not any(part.is_remembered for part in parts):
        return records
    # A ragged tensor of ragged rank 0 is a plain tensor inside a function: only the structure tells.
    specs = zip(parts, _flat_specs(tree, records.element_spec), strict=True)
    spec = _assembled(tree, iter([part.remembered(spec) for part, spec in specs]))
    found = tf.data.experimental.from_variant(tf.data.experimental.to_variant(records), spec)
    found._yogadl_origin = records  # whose functions it calls
    return found


def _unpacked(tensors: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the components of an element, which arrive as they are or as one tuple."""
    return tensors[0] if len(tensors) == 1 and isinstance(tensors[0], tuple) else tensors


@dataclass(frozen=True)
class _Plan:
    """Say how the rows of a stream are cut into items, and what an iterator's checkpoint must match."""

    stream: RecordStream
    size: int
    drop_remainder: bool
    names: list[str]
    kind: str

    def items(self, position: int) -> int:
        """Count the items from a position of an epoch to its end."""
        rows = self.stream.shard.own(position)
        return rows // self.size if self.drop_remainder else -(-rows // self.size)

    def seed(self) -> bytes:
        """Return a hash of all that decides what an item is."""
        shard = self.stream.shard
        described = [self.stream.cursor(0), shard.rank, shard.ranks, shard.remainder, self.size]
        described += [self.drop_remainder, self.kind, self.stream.spec.to_json(), self.names]
        return hashlib.sha256(json.dumps(described).encode()).digest()


def _items(plan: _Plan, parts: "list[_Part]", ahead: int, build: Callable[..., Any]) -> Dataset:
    """Return a dataset of all items of an epoch, of the next one each time that it is iterated over.

    Which one that is a checkpoint knows only from a random dataset that is being read. So one is read beside
    the items, at the very end: what lies within has come to its end, and is forgotten, while the last items
    of the epoch still wait in some buffer. For the same reason nothing after this may read ahead.
    """
    stream = plan.stream
    seed = plan.seed()
    random = _random(seed)
    full, first = plan.items(0), plan.items(stream.start.position)

    def tokens(count: int) -> list[int]:
        again = _random(seed)
        found = tf.data.Dataset.zip((again.batch(2), again)).take(1).repeat(count).batch(count)
        return [_joined(*pair) for pair in next(iter(found))[0].numpy().tolist()]

    epochs = Epochs(tokens, stream.start.epoch)
    gather = Gather(stream, plan.size, epochs)
    dtypes = [tf.int64, *(tf.dtypes.as_dtype(name) for part in parts for name in part.dtypes)]
    mine = int.from_bytes(seed[16:24], "little") >> 1

    def read(pair: Any, item: Any) -> list[Any]:
        with gather.calls:
            columns, padding = gather.columns(_joined(*pair.tolist()), int(item))
            return [np.int64(mine), *(array for part in parts for array in part.pack(columns, padding))]

    def call(pair: Tensor, item: Tensor) -> tuple[Tensor, ...]:
        return tuple(tf.numpy_function(read, (pair, item), dtypes, stateful=False))

    def check(state: Tensor, whose: Tensor, *tensors: Tensor) -> Any:
        with tf.control_dependencies([tf.debugging.assert_equal(whose, np.int64(mine), FOREIGN)]):
            return state, build(*map(tf.identity, tensors))

    items = tf.data.Dataset.zip((random.batch(2), tf.data.Dataset.range(max(full, first))))
    items = items.scan((tf.constant(True), tf.constant([0, 0], tf.int64)), _as_it_is(_keep_first))
    if first != full:
        begun = tf.constant([epochs.first_token >> 32, epochs.first_token & 0xFFFFFFFF], tf.int64)

        def is_inside(pair: Tensor, item: Tensor) -> Tensor:
            return item < tf.where(tf.reduce_all(pair == begun), np.int64(first), np.int64(full))

        items = items.take_while(_as_it_is(is_inside))
    items = tf.data.Dataset.zip((items.map(_as_it_is(call)).prefetch(ahead), random))
    return items.scan(tf.constant(0), _as_it_is(lambda state, element: check(state, *element[0])))


def _random(seed: bytes) -> Dataset:
    """Return an endless dataset of numbers, others at each iteration: a fixed sequence of iterations.

    `Dataset.random` would mix in what `tf.random.set_seed` was given, so that a checkpoint met others.
    """
    numbers = [int.from_bytes(seed[i : i + 8], "little") >> 2 for i in (0, 8)]
    variant = tf.raw_ops.RandomDatasetV2(
        seed=tf.constant(numbers[0] + 1, tf.int64),
        seed2=tf.constant(numbers[1] + 1, tf.int64),
        seed_generator=tf.raw_ops.DummySeedGenerator(),
        output_types=[tf.int64],
        output_shapes=[[]],
        rerandomize_each_iteration=True,
    )
    return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.int64))


def _joined(high: int, low: int) -> int:
    """Return a token: a number of 32 bits would come twice within some ten thousand epochs."""
    return high << 32 | low


def _keep_first(state: Any, element: Any) -> Any:
    """Give every item of an epoch the epoch's first pair of numbers."""
    is_first, kept = state
    pair, item = element
    pair = tf.where(is_first, pair, kept)
    return (tf.constant(False), pair), (pair, item)


def _with_sharding(dataset: Dataset, stream: RecordStream) -> Dataset:
    """Say how tf.distribute may share the dataset out: not at all if it is one shard already."""
    policies = tf.data.experimental.AutoShardPolicy
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = (
        policies.OFF if stream.shard.ranks > 1 else policies.DATA
    )
    return dataset.with_options(options)


def _assembled(node: Node, parts: Iterator[Any]) -> Any:
    """Put one thing a part, in order, into the record's tree; a list of the record becomes a tuple."""
    if isinstance(node, Leaf) or _is_ragged(node):
        return next(parts)
    built = [_assembled(child, parts) for child in node.children]
    return tuple(built) if node.kind == "list" else node.build(built)


def _flat_specs(node: Node, spec: TypeSpec) -> list[TypeSpec]:
    """Return the specs of the parts, in order."""
    if isinstance(node, Leaf) or _is_ragged(node):
        return [spec]
    items = [spec[key] for key in node.keys] if isinstance(node, DictNode) else list(spec)
    return [
        found for child, item in zip(node.children, items, strict=True) for found in _flat_specs(child, item)
    ]


def _is_ragged(node: Node) -> bool:
    return isinstance(node, NamedTupleNode) and node.name == _RAGGED and node.keys[:1] == ("flat_values",)


def _parts_of(spec: Spec, padding_field: str | None, *, is_batched: bool) -> "tuple[list[_Part], Node]":
    """Return what a record consists of for tf.data, and the tree that it is put into."""
    parts: list[_Part] = []
    numbers = iter(range(len(spec.fields)))

    def visit(node: Node, path: str) -> None:
        if isinstance(node, Leaf):
            parts.append(_part_of(path, node, next(numbers), is_batched))
        elif _is_ragged(node):
            assert isinstance(node, NamedTupleNode)
            parts.append(_RaggedPart(path, node, [next(numbers) for _ in node.children], is_batched))
        else:
            for key, child in zip(node.keys, node.children, strict=True):
                visit(child, f"{path}/{key}" if path else str(key))

    visit(spec.tree, "")
    if padding_field is None:
        return parts, spec.tree
    assert isinstance(spec.tree, DictNode)
    parts.append(_PaddingPart(padding_field))
    return parts, DictNode((*spec.tree.keys, padding_field), (*spec.tree.children, Leaf("bool")))


def _part_of(path: str, leaf: Leaf, number: int, is_batched: bool) -> "_Part":
    if leaf.dtype not in (BYTES, STR) and leaf.dtype not in _DTYPES:
        mend = (
            "view it as int64 before it is cached"
            if leaf.dtype[:4] in ("date", "time")
            else "choose the others by ref.fields(...)"
        )
        raise UnsupportedDataError(
            f"field {path!r} has dtype {leaf.dtype}, which tf.data has no tensors for: {mend}"
        )
    is_empty = leaf.shape is not None and 0 in leaf.shape and not is_batched  # at which unbatch crashes
    if leaf.shape is not None and None not in leaf.shape and not is_empty:
        return _FixedPart(path, leaf, number)
    if not is_batched:
        return _VaryingPart(path, leaf, number)
    if leaf.shape is None:
        raise UnsupportedDataError(
            f"the values of field {path!r} differ in how many dimensions they have, so no batch can be made "
            "of them: leave out batch_size, or choose the other fields by ref.fields(...)"
        )
    return _RowsPart(path, leaf, number)


class _Part:
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


def _tf_dtype(leaf: Leaf) -> str:
    return leaf.dtype if leaf.is_numeric else "string"


class _FixedPart(_Part):
    """Values of one shape."""

    is_plain = True

    def __init__(self, name: str, leaf: Leaf, number: int) -> None:
        self.name = name
        self.dtypes = [_tf_dtype(leaf)]
        self._leaf = leaf
        self._number = number

    def pack(self, columns: Sequence[Column], padding: Any) -> pack.Arrays:
        column = columns[self._number]
        return [column] if isinstance(column, np.ndarray) and self._leaf.is_numeric else pack.texts(column)

    def batch(self, tensors: Iterator[Tensor], size: int | None) -> Tensor:
        assert self._leaf.shape is not None
        return _shaped(next(tensors), [size, *self._leaf.shape])

    def rows(self, tensors: Iterator[Tensor]) -> list[Tensor]:
        return [self.batch(tensors, None)]

    def record(self, tensors: Iterator[Tensor]) -> Tensor:
        return next(tensors)


class _PaddingPart(_FixedPart):
    """Which records are padding."""

    def __init__(self, name: str) -> None:
        super().__init__(name, Leaf("bool"), -1)

    def pack(self, columns: Sequence[Column], padding: Any) -> pack.Arrays:
        return [padding]


class _VaryingPart(_Part):
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
        found[:] = [_serialized(value) for value in column]
        return [found]

    def rows(self, tensors: Iterator[Tensor]) -> list[Tensor]:
        found = [_shaped(next(tensors), [None])]
        if self._leaf.is_numeric:
            shape = self._leaf.shape
            found.append(_shaped(next(tensors), [None, None if shape is None else len(shape)]))
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
            value = tf.reshape(_decoded(data, leaf.dtype), shape)
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
            leaf.shape, _tf_dtype(leaf), ragged_rank=0, row_splits_dtype=tf.dtypes.as_dtype(leaf.row_splits)
        )


class _RowsPart(_Part):
    """Values of varying shape, for batches: a ragged tensor."""

    def __init__(self, name: str, leaf: Leaf, number: int) -> None:
        self.name = name
        self._leaf = leaf
        self._number = number
        self._rank = pack.ragged_rank(leaf)
        self.dtypes = [_tf_dtype(leaf), *["int64"] * self._rank]

    def pack(self, columns: Sequence[Column], padding: Any) -> pack.Arrays:
        return pack.rows(self._leaf, columns[self._number])

    def batch(self, tensors: Iterator[Tensor], size: int | None) -> Tensor:
        shape = self._leaf.shape
        assert shape is not None
        flat = _shaped(next(tensors), [None, *shape[self._rank :]])
        splits = [next(tensors) for _ in range(self._rank)]
        sizes = [size, *shape[: self._rank]]
        kind = tf.dtypes.as_dtype(self._leaf.row_splits or "int64")
        return _ragged(flat, [tf.cast(x, kind) for x in splits], sizes)


class _RaggedPart(_Part):
    """Ragged tensors, stored as flat values and row splits."""

    def __init__(self, name: str, node: NamedTupleNode, numbers: list[int], is_batched: bool) -> None:
        leaves = [child for child in node.children if isinstance(child, Leaf)]
        flat = leaves[0]
        if len(leaves) != len(node.children) or flat.shape is None or flat.ragged_rank != len(leaves) - 1:
            raise ConfigurationError(f"field {name!r} is a {_RAGGED} of unknown form")
        self.name = name
        self._leaves = leaves
        self._numbers = numbers
        self._uniform = [
            int(m[2]) if (m := _SPLITS.fullmatch(key)) and m[2] else None for key in node.keys[1:]
        ]
        self._columns = [
            (_FixedPart if None not in (leaf.shape or ()) else _VaryingPart)(name, leaf, number)
            for leaf, number in zip(leaves, numbers, strict=True)
        ]
        if is_batched:
            self.dtypes = [_tf_dtype(flat), *["int64"] * len(leaves)]
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
        values = _shaped(next(tensors), [None, *flat.shape[1:]])
        kind = tf.dtypes.as_dtype(self._leaves[1].dtype)
        splits = [tf.cast(next(tensors), kind) for _ in self._leaves]
        return _ragged(values, splits, [size, *self._sizes])

    def rows(self, tensors: Iterator[Tensor]) -> list[Tensor]:
        return [tensor for column in self._columns for tensor in column.rows(tensors)]

    def record(self, tensors: Iterator[Tensor]) -> Tensor:
        flat, *splits = [column.record(tensors) for column in self._columns]
        return _ragged(flat, splits, self._sizes)


def _shaped(tensor: Tensor, shape: list[int | None]) -> Tensor:
    """Say a shape that is known to be right."""
    tensor.set_shape(shape)
    return tensor


def _ragged(flat: Tensor, splits: Sequence[Tensor], sizes: Sequence[int | None]) -> Tensor:
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
            rows = _shaped(rows, [None if sizes[0] is None else sizes[0] + 1])
        if size is None:
            found = tf.RaggedTensor.from_row_splits(found, rows, validate=False)
        else:
            count = sizes[0] if level == 0 and sizes[0] is not None else tf.shape(rows, rows.dtype)[0] - 1
            found = tf.RaggedTensor.from_uniform_row_length(found, size, nrows=count, validate=False)
    return found


def _serialized(value: Any) -> bytes:  # bytes or str, or an array of them
    array = np.asarray(value, object)
    found = np.empty(array.size, object)
    found[:] = pack.encoded(array.ravel().tolist())
    content: bytes = tf.make_tensor_proto(
        found.reshape(array.shape), tf.string, array.shape
    ).SerializeToString()
    return content


def _decoded(data: Tensor, dtype: str) -> Tensor:
    """Return the numbers in a string of bytes."""
    kind = tf.dtypes.as_dtype(dtype)
    if dtype in ("uint32", "uint64", "complex64", "complex128"):  # which decode_raw does not know
        return tf.bitcast(tf.reshape(tf.io.decode_raw(data, tf.uint8), [-1, kind.size]), kind)
    return tf.io.decode_raw(data, kind)


# Both in one line.


class _Pipeline(threading.local):
    """What builds the cache of a pipeline, for whoever compares builders: its graph is its argument."""

    dataset: Dataset = None

    def __call__(self, graph: str) -> Dataset:
        return self.dataset


def cache(
    storage: Any, dataset_id: str, dataset_version: str, **stream_options: Any
) -> Callable[[Dataset], Dataset]:
    """Return a transformation for `tf.data.Dataset.apply` that caches the pipeline up to there.

    On first use the pipeline is read once; from then on it never runs again. If its graph is another than the
    one that built the cache, a warning says so once, and the cache is served.

    Args:
        storage: Where the cache is kept.
        dataset_id: What it is called.
        dataset_version: Which version; bump it when the pipeline changes.
        **stream_options: How it is read: the arguments of `DataRef.stream`.

    Example:
        >>> import tempfile, tensorflow as tf, yogadl
        >>> from yogadl.adapters import tensorflow as yogadl_tf
        >>> folder = tempfile.TemporaryDirectory()
        >>> storage = yogadl.open_storage(folder.name)
        >>> squares = tf.data.Dataset.range(5).map(lambda x: x * x)
        >>> squares = squares.apply(yogadl_tf.cache(storage, "squares", "1", shuffle=True))
        >>> sorted(int(x) for x in squares)
        [0, 1, 4, 9, 16]
        >>> folder.cleanup()
    """

    pipeline = _Pipeline()
    build_once = storage.cacheable(dataset_id, dataset_version)(pipeline)

    def apply(dataset: Dataset) -> Dataset:
        graph = _graph(dataset)
        pipeline.dataset = dataset
        try:
            ref = build_once(graph=graph.sha256() if graph else "unknown")
        finally:
            pipeline.dataset = None
        return make_tf_dataset(ref.stream(**stream_options))

    return apply
