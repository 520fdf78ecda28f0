"""Read a tf.data pipeline as a source, so that a killed build continues within the pipeline.

For that, the state of the pipeline's iterator is noted from time to time, and saved with each part of a
cache.
"""

import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import script_ops

from yogadl._core.arguments import users_level
from yogadl._core.columns import Columns
from yogadl._core.forms import PLAIN, Forms
from yogadl._core.spec import BadValueError, Leaf, Spec, refuse
from yogadl._sources.sources import NO_RECORDS, ResumableSource, Source
from yogadl.adapters.tensorflow import _specs as pack
from yogadl.adapters.tensorflow._graph import Graph
from yogadl.adapters.tensorflow._specs import (
    Dataset,
    StoredComponent,
    Tensor,
    components_of,
    require_eager,
    without_autograph,
)
from yogadl.errors import ConfigurationError, UnsupportedDataError

# To note a state takes about 2 ms. The next state is noted after this many times the time that one state
# took. After a kill, the records that were read after the last state are read again.
_NOTE_INTERVAL_FACTOR: Final = 50
# The limits of one state, and of all states held: with data that tf.data has read ahead, a state can have
# tens of megabytes.
_MOST_BYTES: Final = 48 * 2**20
_HELD_BYTES: Final = 96 * 2**20
_HEADER_BYTES: Final = 8 + 32


class IteratorState(NamedTuple):
    """The state of an iterator as tf.data writes it, and the number of the record that is next."""

    record: int
    content: bytes


class IteratorStates:
    """Note the state of an iterator from time to time, and find the state nearest to a record. Thread-safe.

    A part of the cache is sealed while the next one is being read, so all states since the last saved state
    are kept; if they are too large together, every other one is dropped.

    Args:
        graph_sha256: The hash of the pipeline's graph; states of other pipelines are ignored. ``None``: note
            nothing.
    """

    def __init__(self, graph_sha256: str | None) -> None:
        self._graph = bytes.fromhex(graph_sha256 or "")
        self._can_save = graph_sha256 is not None
        self._lock = threading.Lock()
        self._noted_states: list[IteratorState] = []
        self._loaded_states: list[IteratorState] = []
        self._cost_s = 0.0
        self._last_noted_s = -float("inf")

    def note(self, iterator: Any, record: int) -> None:  # an iterator of TensorFlow
        """Note an iterator's state, unless one was noted shortly before or tf.data can't write it."""
        started_s = time.monotonic()
        if not self._can_save or started_s - self._last_noted_s < _NOTE_INTERVAL_FACTOR * self._cost_s:
            return
        content = _serialized(iterator)
        if content is None or len(content) > _MOST_BYTES:
            self._can_save = False
            return
        self._last_noted_s = time.monotonic()
        self._cost_s = self._last_noted_s - started_s
        with self._lock:
            self._noted_states.append(IteratorState(record, content))
            while sum(len(state.content) for state in self._noted_states) > _HELD_BYTES:
                del self._noted_states[-2::-2]

    def save(self, record: int) -> bytes | None:
        """Return the last state noted before this record, for `load`; drop the earlier states."""
        with self._lock:
            nearest = _nearest(self._noted_states, record)
            if nearest is None:
                return None
            self._noted_states = [state for state in self._noted_states if state.record >= nearest.record]
        return nearest.record.to_bytes(8, "little") + self._graph + nearest.content

    def load(self, saved: bytes) -> None:
        """Accept a state that an earlier process saved; the last two such states are kept."""
        record, graph = int.from_bytes(saved[:8], "little"), saved[8:_HEADER_BYTES]
        if self._can_save and graph == self._graph:
            self._loaded_states = [*self._loaded_states[-1:], IteratorState(record, saved[_HEADER_BYTES:])]

    def nearest(self, record: int) -> IteratorState | None:
        """Return the loaded state from which the fewest records are read up to this record."""
        return _nearest(self._loaded_states, record)

    def drop(self, state: IteratorState) -> None:
        """Remove a loaded state that can't be restored."""
        self._loaded_states = [loaded for loaded in self._loaded_states if loaded is not state]


def _nearest(states: list[IteratorState], record: int) -> IteratorState | None:
    fitting = [state for state in states if state.record <= record]
    return max(fitting, key=lambda state: state.record, default=None)


def _serialized(iterator: Any) -> bytes | None:
    """Return an iterator's state, or ``None`` if tf.data can't write it, as of generators."""
    policy = tf.data.experimental.ExternalStatePolicy.FAIL.value
    try:
        variants = tf.raw_ops.SerializeIterator(
            resource_handle=iterator._iterator_resource, external_state_policy=policy
        )
        content: bytes = tf.io.serialize_tensor(variants).numpy()
    except tf.errors.OpError:
        return None
    return content


def restore(iterator: Any, state: IteratorState) -> bool:
    """Set a new iterator to a saved state, and return whether that succeeded."""
    try:
        variants = tf.io.parse_tensor(state.content, tf.variant)
        tf.raw_ops.DeserializeIterator(resource_handle=iterator._iterator_resource, serialized=variants)
    except tf.errors.OpError:
        return False
    return True


_CHUNK_BYTES: Final = 8 * 2**20
_CHUNK_RECORDS: Final = 8 * 1024
# Records of varying size are read in small chunks, as their size is known only afterwards.
_VARYING_RECORDS: Final = 64
_LARGE_RECORDS: Final = 16
_LARGE_GRAPH_BYTES: Final = 2**28
# The most time to search for the record that fails, for which the records before it are read again.
_SEARCH_S: Final = 20.0
# Stages that are endless if their input is, though tf.data may not know their length.
_ENDLESS_AS_INPUT: Final = frozenset(
    f"_{name}Dataset"
    for name in (
        "Batch", "Filter", "FlatMap", "Interleave", "Map", "Options", "PaddedBatch", "ParallelBatch",
        "ParallelInterleave", "ParallelMap", "Prefetch", "Restructured", "Shuffle", "Unbatch",
    )
) | {"ResumableDataset"}  # fmt: skip


def source(data: Any, forms: Forms = PLAIN) -> Source | None:  # any object of TensorFlow
    """Return the source in a `tf.data.Dataset`, or ``None`` if `data` is not one.

    Args:
        data: The pipeline, of single records.
        forms: The caller's statements about the values of records; Tensors are stored without pickle.

    Raises:
        UnsupportedDataError: if the pipeline never ends, or has components that can't be stored; names them.
        ConfigurationError: if TensorFlow does not execute eagerly.
    """
    return DatasetSource(data) if isinstance(data, tf.data.Dataset) else None


class DatasetSource(ResumableSource):
    """The records of a tf.data pipeline, read in order.

    One iterator is kept and continues. To go back, or far ahead, another iterator begins at the nearest state
    that an earlier process saved (`restore`), or at the start.

    Attributes:
        provenance: The description of the pipeline for the manifest.
        origin: The pipeline's Python functions, whose code the graph lacks.
        is_costly: Whether a build that continues compares only samples of the records, since reading all of
            them is costly: the graph and the functions then determine all records.
    """

    spec: Spec
    can_start_anywhere = True
    has_final_spec = True

    def __init__(self, dataset: Dataset) -> None:
        require_eager("to read a tf.data pipeline")
        if _is_endless(dataset):
            raise UnsupportedDataError(
                "the dataset never ends (its cardinality is infinite): cache it before repeat(), or "
                "take(n) of it"
            )
        count = int(dataset.cardinality())
        if count == 0:
            raise UnsupportedDataError(NO_RECORDS)
        self.length = count if count >= 0 else None
        self.spec, self._components = components_of(dataset.element_spec)
        self._dataset = dataset
        graph = graph_of(dataset)
        sha256 = graph.sha256() if graph else None
        self.provenance = {"graph": sha256} if sha256 else {}
        self.origin = python_functions(graph) if graph else None
        self.is_costly = self.origin is not None and graph is not None and not graph.has_unknown_content()
        # The state of a stage that shuffles or caches contains all its records, so it is too large to write.
        self._states = IteratorStates(None if graph is None or graph.holds_records() else sha256)
        self._pass: _Pass | None = None
        _warn_of_flaws(graph)

    def __reduce__(self) -> Any:
        raise ConfigurationError(
            "a tf.data pipeline is read by one process: leave out workers=, and let tf.data itself work in "
            "parallel (num_parallel_calls=tf.data.AUTOTUNE)"
        )

    def state(self, record: int) -> bytes | None:
        """Return the state from which a later process can continue at this record, or shortly before it."""
        return self._states.save(record)

    def restore(self, state: bytes) -> None:
        """Accept a state that `state` returned in an earlier process."""
        self._states.load(state)

    def chunks(self, start: int = 0) -> Iterator[Columns]:
        """Yield the records from `start` on."""
        reading = self._pass_to(start)
        while True:
            if reading.first <= start < reading.end:
                skipped, start = start - reading.first, reading.end
                columns = reading.columns
                yield [column[skipped:] for column in columns] if skipped else columns
            if not reading.read_next():
                self._pass = None
                return

    def _pass_to(self, start: int) -> "_Pass":
        """Return the pass that has to read the fewest records to get to record `start`."""
        if self._pass is not None and self._pass.first > start:
            self._pass = None
        state = self._states.nearest(start)
        if state is not None and (self._pass is None or self._pass.end < state.record):
            iterator = iter(self._batched())
            if restore(iterator, state):
                self._pass = _Pass(self, iterator, state.record)
            else:
                self._states.drop(state)
        if self._pass is None:
            self._pass = _Pass(self, iter(self._batched()), 0)
        return self._pass

    def read(self, iterator: Any, first: int) -> tuple[Columns, int] | None:
        """Read the chunk that begins with record `first`, and count its records, or ``None`` at the end."""
        if first:
            self._states.note(iterator, first)
        try:
            batch = next(iterator)
        except StopIteration:
            if not first:
                raise UnsupportedDataError(NO_RECORDS) from None
            return None
        except Exception as error:
            failing = self._first_failing_record()
            which = f"the records from {first} on" if failing is None else f"record {failing}"
            error.add_note(f"while reading {which} of the tf.data pipeline")
            raise
        tensors = self._tensors(batch, lambda _, value: [value]) if self._all_dense else batch
        return self._columns(tensors, first)

    def _first_failing_record(self) -> int | None:
        """Return the first record that fails if each is read alone, or ``None`` if none fails in time.

        tf.data's error does not contain the number of the record, and states exist only between chunks.
        Therefore this method reads from the start.
        """
        limit_s = time.monotonic() + _SEARCH_S
        number = 0
        try:
            for _ in self._elements().with_options(_ordered_options()):
                number += 1
                if time.monotonic() > limit_s:
                    return None
        except tf.errors.OpError:
            return number
        return None

    def _elements(self) -> Dataset:
        """Return the pipeline; if not all components are dense, with elements that can be batched."""
        is_tuple = type(self._dataset.element_spec) is tuple  # tf.data unpacks only a plain tuple

        def split(*element: Any) -> tuple[Tensor, ...]:
            return tuple(self._tensors(element if is_tuple else element[0], StoredComponent.split))

        return self._dataset if self._all_dense else self._dataset.map(without_autograph(split))

    def _batched(self) -> Dataset:
        """Return the elements in batches."""
        fixed = sum(field.leaf.row_bytes for field in self.spec.fields if field.leaf.is_fixed)
        count = max(1, min(_CHUNK_BYTES // max(1, fixed), *map(_most_records_at_once, self._components)))
        elements = self._elements()
        batched = elements.batch(count) if self._all_dense else elements.ragged_batch(count)
        return batched.prefetch(2).with_options(_ordered_options())

    @property
    def _all_dense(self) -> bool:
        return all(component.is_dense and not component.is_ragged for component in self._components)

    def _tensors(self, element: Any, split: Callable[[StoredComponent, Any], list[Tensor]]) -> list[Tensor]:
        """Return the tensors into which `split` turns the components of an element, in order."""
        tensors: list[Tensor] = []
        for component in self._components:
            value = element
            for key in component.path:
                value = value[key]
            tensors += split(component, value)
        return tensors

    def _columns(self, tensors: Sequence[Tensor], first: int) -> tuple[Columns, int]:
        columns: Columns = []
        rest = iter(tensors)
        for field in self.spec.fields:
            try:
                columns.append(_column(field.leaf, rest))
            except BadValueError as error:
                raise refuse(field.name, first + error.position, error.problem) from None
        return columns, len(columns[0])


class _Pass:
    """One pass through the pipeline: the current chunk of records, and the iterator after it.

    `first` is the number of the record at which the iterator begins; later, of the first record of the chunk.
    """

    def __init__(self, source: DatasetSource, iterator: Any, first: int) -> None:
        self._source = source
        self._iterator = [iterator]  # a list, so that the finalizer can drop the iterator
        # An iterator that still reads ahead, perhaps in Python, would keep the interpreter from exiting.
        weakref.finalize(self, self._iterator.clear)
        self.first = self.end = first
        self.columns: Columns = []

    def read_next(self) -> bool:
        """Read the next chunk, and return whether there was one."""
        chunk = self._source.read(self._iterator[0], self.end)
        if chunk is None:
            return False
        self.columns, count = chunk
        self.first, self.end = self.end, self.end + count
        return True


def _ordered_options() -> Any:  # options of tf.data
    options = tf.data.Options()
    options.deterministic = True
    return options


def _most_records_at_once(component: StoredComponent) -> int:
    """Return the number of records to read at a time, for this component."""
    if component.is_dense and component.leaves[0].is_numeric:
        return _CHUNK_RECORDS
    shape = component.leaves[0].shape
    return _LARGE_RECORDS if shape is None or len(shape) > 2 else _VARYING_RECORDS


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


def _is_endless(dataset: Dataset) -> bool:
    """Return whether a dataset is endless, also if tf.data does not know its length, as after a filter."""
    while True:
        count = int(dataset.cardinality())
        inputs = dataset._inputs()
        is_unknown = count == tf.data.UNKNOWN_CARDINALITY and type(dataset).__name__ in _ENDLESS_AS_INPUT
        if not is_unknown or len(inputs) != 1:
            return count == int(tf.data.INFINITE_CARDINALITY)
        dataset = inputs[0]


def graph_of(dataset: Dataset) -> Graph | None:
    """Return the pipeline's graph, or ``None`` if it is too large, or tf.data can't write it."""
    tensor_bytes, todo = 0, [dataset]
    while todo:
        stage = todo.pop()
        todo += stage._inputs()
        for tensor in tf.nest.flatten(getattr(stage, "_tensors", [])):  # the stage's input tensors
            if tf.is_tensor(tensor):
                tensor_bytes += (tensor.shape.num_elements() or 0) * tensor.dtype.size
    if tensor_bytes > _LARGE_GRAPH_BYTES:
        return None
    policy = tf.data.experimental.ExternalStatePolicy.IGNORE
    try:
        serialized = dataset._as_serialized_graph(external_state_policy=policy)
    except (tf.errors.OpError, ValueError):
        return None
    definition = tf.compat.v1.GraphDef()
    definition.ParseFromString(serialized.numpy())
    return Graph(definition)


def python_functions(graph: Graph) -> list[Any] | None:
    """Return the Python functions that a pipeline calls, or ``None`` if they can't be found."""
    # TensorFlow has no public way from a graph to its functions.
    registry: Any = getattr(script_ops, "_py_funcs", None)
    try:
        functions = [registry.get(token.decode()) for token in graph.python_tokens()]
    except AttributeError:
        return None
    if any(function is None for function in functions):
        return None
    # The order of functions in a graph varies.
    return sorted(functions, key=lambda function: getattr(function, "__qualname__", ""))


def _warn_of_flaws(graph: Graph | None) -> None:
    for what, remedy in graph.uncacheable_operations() if graph else ():
        warnings.warn(
            f"the dataset to cache has a flaw, {what}, and the cache keeps the records of this run: {remedy}",
            UserWarning,
            stacklevel=users_level("tensorflow"),
        )
