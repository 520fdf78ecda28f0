"""Build caches on a Ray cluster, also from its datasets, and read caches as Ray datasets.

The names of this module need Ray. docs/howto/ray.md shows their use.
"""

import concurrent.futures
import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any, Final

from yogadl.adapters import _checks

_checks.require("ray", "Ray's executor and datasets need Ray: pip install 'yogadl[ray]'")

import numpy as np
import pyarrow as pa
import ray
import ray.data
from ray.data.block import BlockAccessor, BlockMetadata
from ray.data.datasource import Datasink, Datasource, ReadTask
from ray.data.extensions import ArrowPythonObjectArray
from ray.exceptions import RayError, RayTaskError, TaskCancelledError

from yogadl._core.columns import Columns
from yogadl._core.forms import EMPTY, PLAIN, Forms
from yogadl._core.printable import masked
from yogadl._core.protocols import Column
from yogadl._core.spec import JSON, Spec
from yogadl._dataref import RecordsRef
from yogadl._sources.partitioned import Partitioned
from yogadl._sources.sources import SelfWritingSource, Source, open_source
from yogadl.adapters._checks import RECORD_COLUMN
from yogadl.errors import ConfigurationError, UnsupportedDataError, WorkerDiedError

__all__ = ["RayExecutor", "read", "source"]

# Run the tasks of a build on a Ray cluster.


class RayExecutor(concurrent.futures.Executor):
    """An executor of Ray tasks: ``BuildOptions(engine=RayExecutor(num_cpus=2))``.

    If the worker or the node of a task dies, Ray runs the task again, three times by default. If the function
    itself raises, the build fails at once with that error. If Ray is not initialized, the first submitted
    task initializes it; to choose a cluster, call ``ray.init`` before. Safe to use from several threads.

    Args:
        options: The options of ``ray.remote`` for a task: `num_cpus`, `memory`, `resources`, `max_retries`,
            `scheduling_strategy`, `runtime_env`, ...

    Raises:
        ConfigurationError: if Ray has no such option.
    """

    def __init__(self, **options: Any) -> None:
        try:
            self._remote = ray.remote(_call).options(**options) if options else ray.remote(_call)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"Ray's tasks can't have the options {masked(options)}: {error}"
            ) from error

    def submit(
        self, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> "concurrent.futures.Future[Any]":
        """Run a function with its arguments in a task."""
        return _TaskFuture(self._remote.remote(function, args, kwargs))


class _TaskFuture(concurrent.futures.Future[Any]):
    """The future of one task's result."""

    def __init__(self, ref: Any) -> None:
        super().__init__()
        self._ref = ref
        ref.future().add_done_callback(self._take)

    def cancel(self) -> bool:
        """Cancel the task, or stop its process if it runs; a build survives this."""
        if not super().cancel():
            return False
        ray.cancel(self._ref, force=True)
        return True

    def _take(self, done: "concurrent.futures.Future[Any]") -> None:
        if not self.set_running_or_notify_cancel():
            return
        error = done.exception()
        if error is None:
            self.set_result(done.result())
        else:
            self.set_exception(error_of_task(error))


def error_of_task(error: BaseException) -> BaseException:
    """Return the error that a task raised, caused by Ray's error; a WorkerDiedError if the task was lost."""
    cause = getattr(error, "cause", None)
    # An error in a user's function of a dataset arrives only as Ray's text.
    if isinstance(error, RayTaskError) and isinstance(cause, Exception) and not isinstance(cause, RayError):
        cause.__cause__ = error
        return cause
    if isinstance(error, RayError) and not isinstance(error, TaskCancelledError | RayTaskError):
        died = WorkerDiedError(f"a Ray task of the build died with its worker or node: {error}")
        died.__cause__ = error
        return died
    return error


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return function(*args, **kwargs)


# Write a Ray dataset into a cache, in the tasks that make its blocks.


def source(data: Any, forms: Forms = PLAIN) -> Source | None:
    """Return the source of a ``ray.data.Dataset``, or None for any other object of Ray."""
    return RayDatasetSource(data, forms) if isinstance(data, ray.data.Dataset) else None


class RayDatasetSource(SelfWritingSource):
    """The rows of a Ray dataset as records: dicts with a value for each column.

    Args:
        dataset: The dataset.
        forms: The caller's statements about the values of records.
    """

    def __init__(self, dataset: "ray.data.Dataset", forms: Forms) -> None:
        self._dataset = dataset
        self._forms = forms

    @cached_property
    def spec(self) -> Spec:
        """The structure of the first record."""
        return self._opened(self._dataset.take_batch(1, batch_format="pyarrow")).spec

    def chunks(self, start: int = 0) -> Iterator[Columns]:
        """Yield the records from `start` on, through this process, after reading those before."""
        with _in_order(self._dataset):
            for batch in self._dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
                count = batch.num_rows
                if start < count:
                    yield from self._opened(batch).chunks(start)
                start = max(0, start - count)

    def write_partitions(self, write: Callable[[int, Any], object]) -> int:
        """Call ``write(partition, records)`` in the tasks that make the records; return the partition count.

        The partitions are in the order of the dataset, also if actors make its blocks.
        """
        sink = _Sink(write, self._forms)
        try:
            with _in_order(self._dataset):
                self._dataset.write_datasink(sink)
        except RayTaskError as error:
            raise error_of_task(error)  # noqa: B904  (`error_of_task` set its cause)
        return sink.partitions

    def _opened(self, batch: Any) -> Source:
        return open_source(_columns_of(batch, self._forms), self._forms)


class _Sink(Datasink[int]):  # type: ignore[misc]  # Ray is not annotated for us
    """A sink that writes the blocks of each task as one partition."""

    def __init__(self, write: Callable[[int, Any], object], forms: Forms) -> None:
        self._write = write
        self._forms = forms
        self.partitions = 0

    def get_name(self) -> str:
        return "yogadl"

    def write(self, blocks: Iterable[Any], ctx: Any) -> int:
        filled = [block for block in blocks if BlockAccessor.for_block(block).num_rows()]
        records: Any = (
            Partitioned([partial(_columns_of, block, self._forms) for block in filled]) if filled else []
        )
        self._write(ctx.task_idx, records)
        return int(ctx.task_idx)

    def on_write_complete(self, write_result: Any) -> None:
        self.partitions = 1 + int(max(write_result.write_returns, default=-1))


@contextlib.contextmanager
def _in_order(dataset: "ray.data.Dataset") -> Iterator[None]:
    """Have the blocks of a dataset keep their order when it is executed."""
    options = dataset.context.execution_options
    before = options.preserve_order
    options.preserve_order = True
    try:
        yield
    finally:
        options.preserve_order = before


def _columns_of(block: Any, forms: Forms) -> dict[str, Any]:
    """Return the columns of a block's rows; a column is a list if its values are no numbers of one shape.

    Args:
        block: The rows.
        forms: The caller's statements about the values; columns that have dicts are json values, too.

    Raises:
        UnsupportedDataError: if a value is missing of which nothing is said: Ray makes it NaN, and makes
            integers of such a column floats.
    """
    accessor = BlockAccessor.for_block(block)
    lists = {}
    for name, column in zip(accessor.column_names(), accessor.to_arrow().columns, strict=True):
        if name in forms.json or _has_dicts(column.type):
            lists[name] = column.to_pylist(maps_as_pydicts="strict")
            continue
        values = column.combine_chunks()
        if name in forms.missing and column.null_count:
            lists[name] = _filled(values, name, forms.missing[name])
            continue
        missing = column.null_count
        while hasattr(values, "flatten") and hasattr(values.type, "value_type"):  # items of lists
            values = values.flatten()
            missing += values.null_count
        if missing:
            raise UnsupportedDataError(
                f"column {name!r} has missing values: a value in their place, missing={{{name!r}: ...}}; or "
                "fill them first, for example by dataset.map_batches, or leave out the rows or the column"
            )
    batch = accessor.to_numpy([name for name in accessor.column_names() if name not in lists])
    found = {name: column.tolist() if column.dtype == object else column for name, column in batch.items()}
    return {name: lists[name] if name in lists else found[name] for name in accessor.column_names()}


def _filled(values: Any, name: str, fill: Any) -> Any:
    """Return a column with what comes in the place of its missing values, in the column's own type."""
    if pa.types.is_null(values.type):  # other blocks may have values
        return [None if fill == EMPTY else fill] * len(values)
    if values.type.num_fields:
        items = values.type.value_type
        is_array = pa.types.is_integer(items) or pa.types.is_floating(items)
        empty: Any = [] if fill == EMPTY else fill
        make = partial(np.array, dtype=items.to_pandas_dtype()) if is_array else list
        return [make(empty if value is None else value) for value in values.to_pylist()]
    is_text = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
    is_bytes = pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type)
    if fill == EMPTY and (is_text or is_bytes):
        fill = "" if is_text else b""
    try:
        filled = values.fill_null(pa.scalar(fill, values.type))
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError) as error:
        raise UnsupportedDataError(
            f"column {name!r} is {values.type}, which has no {fill!r:.60}: give another value, "
            f"missing={{{name!r}: ...}}"
        ) from error
    return filled.to_pylist() if is_text or is_bytes else filled.to_numpy(zero_copy_only=False)


def _has_dicts(data_type: Any) -> bool:
    """Return whether values of a type of Arrow are dicts, or lists of them."""
    while pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
        data_type = data_type.value_type
    return bool(pa.types.is_struct(data_type) or pa.types.is_map(data_type))


# Read a `DataRef` as a Ray dataset, whose tasks read their own rows.


_BLOCK_BYTES: Final = 64 * 2**20


def read(ref: RecordsRef, *, tasks: int = -1, **options: Any) -> "ray.data.Dataset":
    """Return the records of a `DataRef` as a ``ray.data.Dataset``, in their order; nothing is read yet.

    Each task opens the data on the node where it runs, so all nodes must reach the data: in a bucket, or in a
    folder that they share. Each value of a nested record becomes a column, such as ``"image/pixels"``.

    Args:
        ref: The result of `fetch`, or any view, filter or mapped form of it.
        tasks: The number of tasks that read; -1: Ray chooses it.
        options: Options of ``ray.data.read_datasource``: `ray_remote_args`, `concurrency`, ...

    Raises:
        ConfigurationError: if `ref` has no random access.
    """
    if not isinstance(ref, RecordsRef):
        raise ConfigurationError(
            f"a {type(ref).__name__} can't be read by tasks: pass the result of storage.fetch(...), or a "
            "view of it"
        )
    dataset = ray.data.read_datasource(
        _RefDatasource(ref), override_num_blocks=None if tasks == -1 else tasks, **options
    )
    # By default Ray delivers first what is read first.
    dataset.context.execution_options.preserve_order = True
    return dataset


class _RefDatasource(Datasource):  # type: ignore[misc]  # Ray is not annotated for us
    """The rows of a `DataRef`, to be read in ranges."""

    def __init__(self, ref: RecordsRef) -> None:
        self._ref = ref

    def get_name(self) -> str:
        return "yogadl"

    def estimate_inmemory_data_size(self) -> int:
        return len(self._ref) * self._ref.record_bytes

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        ref, records = self._ref, len(self._ref)
        tasks = max(1, min(parallelism, records))
        read_tasks = []
        for number in range(tasks):
            first, end = records * number // tasks, records * (number + 1) // tasks
            metadata = BlockMetadata(
                num_rows=end - first,
                size_bytes=(end - first) * ref.record_bytes,
                input_files=None,
                exec_stats=None,
            )
            read_tasks.append(
                ReadTask(_reader(ref, first, end), metadata, per_task_row_limit=per_task_row_limit)
            )
        return read_tasks


def _reader(ref: RecordsRef, first: int, end: int) -> Callable[[], Iterable[Any]]:
    """Return the function of a task: it reads a range of records, in blocks of at most 64 MiB."""

    def blocks() -> Iterator[Any]:
        count = max(1, _BLOCK_BYTES // ref.record_bytes)
        names = [field.name or RECORD_COLUMN for field in ref.spec.fields]
        trees = [name for name, field in zip(names, ref.spec.fields, strict=True) if field.leaf.dtype == JSON]
        for start in range(first, end, count) or [first]:
            columns = ref.columns(np.arange(start, min(start + count, end)))
            yield _block(dict(zip(names, columns, strict=True)), trees)

    return blocks


def _block(columns: Mapping[str, Column], trees: Collection[str]) -> Any:
    """Return a block of columns, of which `trees` have json values.

    Ray would make structs of dicts, in which each has the keys of all, and the integers of some are floats.
    """
    plain = {name: _array(column) for name, column in columns.items() if name not in trees}
    if not trees:
        return BlockAccessor.batch_to_block(plain)
    table = BlockAccessor.for_block(BlockAccessor.batch_to_block(plain)).to_arrow() if plain else None
    return pa.table(
        {
            name: ArrowPythonObjectArray.from_objects(column)
            if table is None or name in trees
            else table[name]
            for name, column in columns.items()
        }
    )


def _array(column: Column) -> Any:
    """Return a column as an array; an array of objects if the values vary in length."""
    if not isinstance(column, list):
        return column
    found = np.empty(len(column), object)
    found[:] = column
    return found
