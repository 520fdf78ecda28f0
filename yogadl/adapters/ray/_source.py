"""Write a Ray dataset into a cache, in the tasks that make its blocks."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from typing import Any

import ray.data
from ray.data.block import BlockAccessor
from ray.data.datasource import Datasink
from ray.exceptions import RayTaskError

from yogadl._core.columns import Columns
from yogadl._core.spec import Spec
from yogadl._sources.partitioned import Partitioned
from yogadl._sources.sources import Source, open_source
from yogadl.adapters.ray._executor import original
from yogadl.errors import UnsupportedDataError


def source(data: Any, allow_pickle: bool = False) -> Source | None:
    """Return the source of a ``ray.data.Dataset``, or None for any other object of Ray."""
    return DatasetSource(data, allow_pickle) if isinstance(data, ray.data.Dataset) else None


class DatasetSource(Source):
    """The rows of a Ray dataset as records: dicts with a value for each column.

    Args:
        dataset: The dataset.
        allow_pickle: Whether objects without a stored form may be pickled.
    """

    length = None
    can_start_anywhere = False

    def __init__(self, dataset: "ray.data.Dataset", allow_pickle: bool) -> None:
        self._dataset = dataset
        self._allow_pickle = allow_pickle

    @cached_property
    def spec(self) -> Spec:  # type: ignore[override]  # it is never set
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
        sink = _Sink(write)
        try:
            with _in_order(self._dataset):
                self._dataset.write_datasink(sink)
        except RayTaskError as error:
            raise original(error)  # noqa: B904  (Ray's error is its cause already)
        return sink.partitions

    def _opened(self, batch: Any) -> Source:
        return open_source(_columns_of(batch), allow_pickle=self._allow_pickle)


class _Sink(Datasink[int]):  # type: ignore[misc]  # Ray is not annotated for us
    """A sink that writes the blocks of each task as one partition."""

    def __init__(self, write: Callable[[int, Any], object]) -> None:
        self._write = write
        self.partitions = 0

    def get_name(self) -> str:
        return "yogadl"

    def write(self, blocks: Iterable[Any], ctx: Any) -> int:
        filled = [block for block in blocks if BlockAccessor.for_block(block).num_rows()]
        records: Any = Partitioned([partial(_columns_of, block) for block in filled]) if filled else []
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


def _columns_of(block: Any) -> dict[str, Any]:
    """Return the columns of a block's rows; a column is a list if its values are no numbers of one shape.

    Raises:
        UnsupportedDataError: if a value is missing: Ray makes it NaN, and makes integers of such a column
            floats.
    """
    accessor = BlockAccessor.for_block(block)
    for name, column in zip(accessor.column_names(), accessor.to_arrow().columns, strict=True):
        missing, whole = column.null_count, column.combine_chunks()
        while hasattr(whole, "flatten") and hasattr(whole.type, "value_type"):  # items of lists
            whole = whole.flatten()
            missing += whole.null_count
        if missing:
            raise UnsupportedDataError(
                f"column {name!r} has missing values, which can't be stored: fill them before, by "
                "dataset.map_batches say, or leave the rows or the column out"
            )
    batch = accessor.to_numpy()
    return {name: column.tolist() if column.dtype == object else column for name, column in batch.items()}
