"""Read a `DataRef` as a Ray dataset, whose tasks read their own rows."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np
import ray.data
from ray.data.block import BlockAccessor, BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from yogadl._core.protocols import Column
from yogadl._dataref import RecordsRef
from yogadl.adapters._trees import RECORD_COLUMN
from yogadl.errors import ConfigurationError

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
            f"a {type(ref).__name__} can't be read by tasks: give what storage.fetch(...) or a view returned"
        )
    return ray.data.read_datasource(_Rows(ref), override_num_blocks=None if tasks == -1 else tasks, **options)


class _Rows(Datasource):  # type: ignore[misc]  # Ray is not annotated for us
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
        found = []
        for number in range(tasks):
            first, end = records * number // tasks, records * (number + 1) // tasks
            metadata = BlockMetadata(
                num_rows=end - first,
                size_bytes=(end - first) * ref.record_bytes,
                input_files=None,
                exec_stats=None,
            )
            found.append(ReadTask(_reader(ref, first, end), metadata, per_task_row_limit=per_task_row_limit))
        return found


def _reader(ref: RecordsRef, first: int, end: int) -> Callable[[], Iterable[Any]]:
    """Return the function of a task: it reads a range of records, in blocks of at most 64 MiB."""

    def blocks() -> Iterator[Any]:
        count = max(1, _BLOCK_BYTES // ref.record_bytes)
        names = [field.name or RECORD_COLUMN for field in ref.spec.fields]
        for start in range(first, end, count) or [first]:
            columns = ref.columns(np.arange(start, min(start + count, end)))
            batch = {name: _array(column) for name, column in zip(names, columns, strict=True)}
            yield BlockAccessor.batch_to_block(batch)

    return blocks


def _array(column: Column) -> Any:
    """Return a column as an array; an array of objects if the values vary in length."""
    if not isinstance(column, list):
        return column
    found = np.empty(len(column), object)
    found[:] = column
    return found
