"""Give the records of a `DataRef` to whoever takes a ``Dataset`` or ``IterableDataset`` of Hugging Face.

A ``Dataset`` asks its table for rows, and does everything else itself. Here the table reads those rows out of
the reference, so features, formats, ``map``, ``filter``, ``sort``, ``save_to_disk`` and the trainers that ask
for a ``Dataset`` have the records as they are.
"""

import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from yogadl._core.spec import BYTES, JSON, STR, Leaf
from yogadl._dataref import RecordsRef, takes_a_stream
from yogadl._stream import Cut, NumberedBatches, Point, RecordStream, as_stream, read_cursor, write_cursor
from yogadl.errors import ConfigurationError, CursorError, MissingDependencyError

try:
    import pyarrow as pa
    from datasets import Dataset, DatasetInfo, Features, IterableDataset
    from datasets.iterable_dataset import _BaseExamplesIterable
    from datasets.table import InMemoryTable, Table
except ImportError as error:
    raise MissingDependencyError(
        "Datasets of Hugging Face are made by its library: pip install 'yogadl[hf]'"
    ) from error

from yogadl.adapters._checks import tried_with
from yogadl.adapters.arrow_export import record_batch, schema_of, with_texts

__all__ = ["make_iterable_dataset", "to_hf"]

tried_with("datasets", "5.2")

# `datasets` and pyarrow have no annotations, so `Any` stands for their objects throughout.

_READ_ROWS: Final = 1_000  # at a time, by what asks for all rows
_PLAIN: Final = frozenset({"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"})
_MOST_BYTES: Final = 2**32  # of all rows in memory, which only few methods of a Dataset ask for


def to_hf(ref: RecordsRef) -> Dataset:
    """Return the records as a ``datasets.Dataset``; nothing is read or copied until it is asked for.

    It counts as one in memory: ``map`` and ``filter`` keep their results there, unless they are given a
    ``cache_file_name``. The results in that file are found again, as the fingerprint is that of the records.

    Args:
        ref: The records; of packed rows those of an epoch, ``packed.at(epoch)``.

    Example:
        >>> import yogadl
        >>> ref = yogadl.from_source([{"text": "a", "label": 0}, {"text": "b", "label": 1}])
        >>> dataset = ref.to_hf()
        >>> dataset.features
        {'text': Value('string'), 'label': Value('int64')}
        >>> dataset.shuffle(seed=0)[0]
        {'text': 'b', 'label': 1}
    """
    if not isinstance(ref, RecordsRef):
        raise ConfigurationError(
            f"to_hf takes a reference to records, not a {type(ref).__name__}; of packed or sampled rows one "
            "epoch, .at(epoch)"
        )
    name = hashlib.sha256(f"yogadl {ref.fingerprint}".encode()).hexdigest()[:16]
    return RowsDataset(RowsTable(ref), fingerprint=name)


class RowsDataset(Dataset):  # type: ignore[misc]  # untyped
    """A ``Dataset`` of a `RowsTable`, of which a loader's batches need not become Arrow first."""

    def __getitems__(self, keys: list[int]) -> list[dict[str, Any]]:
        """Return the rows at some places, as a loader of PyTorch asks for them."""
        is_whole = self._format_type is None and self._format_columns in (None, self.column_names)
        table = self._data
        rows = table.plain_rows(keys, self._indices) if is_whole and isinstance(table, RowsTable) else None
        if rows is None:
            rows = list(super().__getitems__(keys))
        return rows

    def _select_contiguous(self, *args: Any, **kwargs: Any) -> Any:
        return _of_rows(super()._select_contiguous(*args, **kwargs))

    def _new_dataset_with_indices(self, *args: Any, **kwargs: Any) -> Any:
        return _of_rows(super()._new_dataset_with_indices(*args, **kwargs))


def _of_rows(dataset: Dataset) -> Dataset:
    """Return a part that the base class has made of a `RowsDataset`, as such a one."""
    dataset.__class__ = RowsDataset
    return dataset


class RowsTable(InMemoryTable):  # type: ignore[misc]  # untyped; only such a table can be joined with others
    """The table of a ``Dataset`` whose rows are read out of a reference when they are asked for.

    Args:
        ref: The records.
        schema: The schema of the rows, which may have other names and metadata than that of the records.
    """

    def __init__(self, ref: RecordsRef, schema: Any = None) -> None:
        # The base class would take a table that is read.
        self._ref = ref
        self._read_schema = schema_of(ref.spec)
        self._schema = self._read_schema if schema is None else schema
        tree = ref.spec.tree
        self._is_plain = all(map(_is_plain, [tree] if isinstance(tree, Leaf) else tree.children))

    def __reduce__(self) -> Any:
        return RowsTable, (self._ref, self._schema)

    def __deepcopy__(self, memo: Any) -> "RowsTable":
        return RowsTable(self._ref, self._schema)

    @property
    def schema(self) -> Any:
        """The schema of the rows."""
        return self._schema

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return len(self._ref)

    @property
    def num_columns(self) -> int:
        """The number of columns."""
        return len(self._schema)

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and columns."""
        return self.num_rows, self.num_columns

    @property
    def column_names(self) -> list[str]:
        """The names of the columns."""
        return list(self._schema.names)

    @property
    def nbytes(self) -> int:
        """The approximate size of all rows in memory."""
        return int(self._ref._records.record_bytes) * len(self._ref)

    @property
    def table(self) -> Any:
        """All rows, read into memory.

        Raises:
            ConfigurationError: if they are too large for that.
        """
        if self.nbytes > _MOST_BYTES:
            raise ConfigurationError(
                f"this reads all records into memory, some {self.nbytes / 1e9:.0f} GB: change them with "
                "map(..., cache_file_name='mapped/rows.arrow'), which writes to the disk, or work on a part, "
                "select(range(n))"
            )
        return pa.Table.from_batches(self.to_batches(), schema=self._schema)

    @property
    def columns(self) -> Any:
        """All columns, read into memory."""
        return self.table.columns

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, i: Any) -> Any:
        return self.table[i]

    def __repr__(self) -> str:
        return f"RowsTable of {self._ref!r}"

    def column(self, *args: Any, **kwargs: Any) -> Any:
        """Return a column, read into memory."""
        return self.table.column(*args, **kwargs)

    def fast_gather(self, indices: Sequence[int] | NDArray[Any]) -> Any:
        """Read rows."""
        return pa.Table.from_batches([self._batch(np.asarray(indices, np.int64))])

    def fast_slice(self, offset: int = 0, length: int | None = None) -> Any:
        """Read consecutive rows."""
        return self.fast_gather(np.arange(offset, self._end(offset, length)))

    def to_reader(self, max_chunksize: int | None = None) -> Any:
        """Return a reader of all rows, in batches of at most so many."""
        return pa.RecordBatchReader.from_batches(self._schema, self._batches(max_chunksize or _READ_ROWS))

    def to_batches(self, max_chunksize: int | None = None) -> list[Any]:
        """Read all rows."""
        return list(self._batches(max_chunksize or _READ_ROWS))

    def slice(self, offset: int = 0, length: int | None = None) -> "RowsTable":
        """Return consecutive rows, unread."""
        return RowsTable(self._ref[offset : self._end(offset, length)], self._schema)

    def select(self, columns: Iterable[str | int], *args: Any, **kwargs: Any) -> "RowsTable":
        """Return some columns, unread."""
        names = self.column_names
        places = [names.index(column) if isinstance(column, str) else column for column in columns]
        if places == list(range(len(names))):
            return self
        keys = [self._keys[place] for place in places]
        schema = pa.schema([self._schema.field(place) for place in places], self._schema.metadata)
        return RowsTable(self._ref.fields(*keys), schema)

    def drop(self, columns: str | Sequence[str], *args: Any, **kwargs: Any) -> "RowsTable":
        """Return the other columns, unread."""
        dropped = [columns] if isinstance(columns, str) else columns
        return self.select([name for name in self.column_names if name not in dropped])

    def remove_column(self, i: int, *args: Any, **kwargs: Any) -> "RowsTable":
        """Return the other columns, unread."""
        return self.drop(self.column_names[i])

    def rename_columns(self, names: Sequence[str], *args: Any, **kwargs: Any) -> "RowsTable":
        """Return the same rows with other names of columns, unread."""
        fields = [field.with_name(name) for field, name in zip(self._schema, names, strict=True)]
        return RowsTable(self._ref, pa.schema(fields, self._schema.metadata))

    def replace_schema_metadata(self, metadata: Any = None, *args: Any, **kwargs: Any) -> "RowsTable":
        """Return the same rows with other metadata, unread."""
        return RowsTable(self._ref, self._schema.with_metadata(metadata))

    def cast(self, target_schema: Any, *args: Any, **kwargs: Any) -> Table:
        """Return the rows in another schema; read into memory unless the values stay as they are."""
        if Features.from_arrow_schema(target_schema) == Features.from_arrow_schema(self._schema):
            return RowsTable(self._ref, target_schema)  # another nullability, or metadata
        return InMemoryTable(self.table).cast(target_schema, *args, **kwargs)

    @property
    def _keys(self) -> list[Any]:
        tree = self._ref.spec.tree
        keys = [] if isinstance(tree, Leaf) else list(tree.keys)
        return [key for key in keys if str(key) in self._read_schema.names]

    def plain_rows(self, places: list[int], chosen: Table | None) -> list[dict[str, Any]] | None:
        """Return rows with values of Python, of a table of `chosen` numbers if it is given.

        Returns:
            The columns, or None if a value would not be what Arrow makes of it, or a place is none of a row.
        """
        count = self.num_rows if chosen is None else chosen.num_rows
        if not self._is_plain or not all(0 <= place < count for place in places):
            return None
        if chosen is not None:
            places = chosen.column(0).take(pa.array(places)).to_numpy()
        values = map(_plain_values, self._ref._records.columns(np.asarray(places, np.int64)))
        names = self.column_names
        return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]

    def _end(self, offset: int, length: int | None) -> int:
        return self.num_rows if length is None else min(self.num_rows, offset + length)

    def _batch(self, indices: NDArray[np.int64]) -> Any:
        spec = self._ref.spec
        columns = with_texts(spec, self._ref._records.columns(indices))
        read = record_batch(spec, self._read_schema, columns, 0)
        return read.rename_columns(self._schema.names).cast(self._schema)

    def _batches(self, size: int) -> Iterator[Any]:
        for first in range(0, self.num_rows, size):
            yield self._batch(np.arange(first, min(self.num_rows, first + size)))


def _is_plain(node: Any) -> bool:
    """Return whether `_plain_values` makes of values what Arrow does: no times, halves or structs."""
    is_scalar = isinstance(node, Leaf) and node.shape == () and node.dtype in (STR, BYTES, JSON)
    return is_scalar or (
        isinstance(node, Leaf)
        and node.is_numeric
        and node.numpy_dtype.str[1:] in _PLAIN
        and (node.is_fixed or node.shape == (None,))
    )


def _plain_values(column: Any) -> list[Any]:
    """Return the values of a column as objects of Python."""
    if isinstance(column, np.ndarray):
        values: list[Any] = column.tolist()
        return values
    return [value.tolist() if isinstance(value, np.ndarray) else value for value in column]


def _in_memory(name: str) -> Any:
    """Return a method that reads all rows into memory first."""

    def method(self: RowsTable, *args: Any, **kwargs: Any) -> Any:
        return getattr(InMemoryTable(self.table), name)(*args, **kwargs)

    return method


for _name in ("filter", "flatten", "combine_chunks", "add_column", "append_column", "set_column"):
    setattr(RowsTable, _name, _in_memory(_name))


# A stream as an IterableDataset.

_SHARES: Final = 2**6 * 3 * 5  # of a dataset, which most numbers of workers and nodes divide
_AT_ONCE_BYTES: Final = 1_000_000
_AT_ONCE_RECORDS: Final = 256


@takes_a_stream
def make_iterable_dataset(stream: RecordStream) -> IterableDataset:
    """Return a stream's records as a ``datasets.IterableDataset``, in the stream's order.

    An iterator reads the epoch that `set_epoch` names; as with any such dataset, it is the same epoch again
    if none is named. `state_dict` and `load_state_dict` go on at the next record without reading what was
    read, on this dataset also in the right epoch. Workers of a loader and nodes of ``split_dataset_by_node``
    share the epoch exactly. Its length is that of the stream.

    Args:
        stream: The stream, of `DataRef.stream`, from its beginning; to go on at a cursor, load it.

    Raises:
        ConfigurationError: if `stream` is no stream, or begins at a cursor.

    Example:
        >>> import yogadl
        >>> from yogadl.adapters.datasets import make_iterable_dataset
        >>> ref = yogadl.from_source([{"text": "a"}, {"text": "b"}, {"text": "c"}])
        >>> dataset = make_iterable_dataset(ref.stream())
        >>> [row["text"] for row in dataset]
        ['a', 'b', 'c']
        >>> dataset.load_state_dict(ref.stream().cursor(delivered=2))
        >>> list(dataset)
        [{'text': 'c'}]
    """
    if as_stream(stream).run.start != Point(0, 0):
        raise ConfigurationError(
            "the stream begins at a cursor, and trainers name epochs: make the dataset of the stream without "
            "a cursor, and pass the cursor to its load_state_dict"
        )
    return StreamDataset(stream)


class StreamDataset(IterableDataset):  # type: ignore[misc]  # untyped
    """An ``IterableDataset`` over a stream; see `make_iterable_dataset`."""

    def __init__(self, stream: RecordStream) -> None:
        examples = StreamExamples(stream)
        super().__init__(examples, info=DatasetInfo(features=examples.features))
        self.stream = stream

    def __len__(self) -> int:
        return len(self.stream)

    def __reduce__(self) -> Any:
        # The base class has classes of its own made, which can't be pickled by name.
        return _restored, (self.stream, self._epoch, self._starting_state_dict)

    def state_dict(self) -> Any:
        """Return the state after the records so far; before the first one, that of the named epoch."""
        if self._state_dict["epoch"] != self.epoch:
            self._prepare_ex_iterable_for_iteration()
        return super().state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next iterators of that epoch go on at a state of this dataset, or at a cursor.

        Raises:
            CursorError: if the state is of other data or another order.
        """
        if "examples_iterable" not in state_dict:
            point = read_cursor(self.stream.run.identity(), state_dict)
            state = {**self._ex_iterable._init_state_dict(), "start": point.position}
            state_dict = {"examples_iterable": state, "epoch": point.epoch}
        self._ex_iterable.check(state_dict["examples_iterable"])
        self.set_epoch(state_dict["epoch"])
        super().load_state_dict(state_dict)

    def shuffle(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: the stream has its order."""
        raise ConfigurationError(
            "the order is the stream's: make the dataset of ref.stream(shuffle=True, shuffle_seed=7), which "
            "shuffles all records, in each epoch anew"
        )


def _restored(stream: RecordStream, epoch: Any, state: Any) -> StreamDataset:
    dataset = StreamDataset(stream)
    dataset._epoch, dataset._starting_state_dict = epoch, state
    return dataset


def _is_in_worker() -> bool:
    """Return whether this process is a worker of a DataLoader of PyTorch, which is not imported for it."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.utils.data.get_worker_info() is not None


class StreamExamples(_BaseExamplesIterable):  # type: ignore[misc]  # untyped
    """The examples of an epoch of a stream, or each so many-th of them."""

    def __init__(self, stream: RecordStream) -> None:
        super().__init__()
        self._stream = stream
        self._schema = schema_of(stream.spec)
        self._features = Features.from_arrow_schema(self._schema)
        self._epoch, self._first, self._step = 0, 0, 1
        self._is_of_worker = False
        self._sleep_on_threads_shutdown = False  # asked for where datasets are joined

    @property
    def features(self) -> Features:
        """The features of an example."""
        return self._features

    @property
    def num_shards(self) -> int:
        """The number of shares that can be divided among readers."""
        return _SHARES // self._step

    def shift_rngs(self, value: int) -> "StreamExamples":
        """Return the examples of an epoch, which `datasets` hands down so.

        In a worker it then hands down the number of the worker, too, after it has divided the examples.
        """
        return self if self._is_of_worker else self._with(_epoch=value)

    def shuffle_data_sources(self, generator: Any) -> "StreamExamples":
        """Return the same: the epoch decides the order."""
        return self

    def shard_data_sources(self, num_shards: int, index: int, contiguous: bool = True) -> "StreamExamples":
        """Return each so many-th example."""
        run, is_in_worker = self._stream.run, _is_in_worker()
        if is_in_worker:
            run.require_undivided(num_shards, "pass num_workers=0")
        run.require_batch(None, self._step * num_shards)
        first = self._first + index * self._step
        return self._with(_first=first, _step=self._step * num_shards, _is_of_worker=is_in_worker)

    def reshard_data_sources(self) -> "StreamExamples":
        """Return the same: it can be divided as it is."""
        return self

    def _with(self, **changes: Any) -> "StreamExamples":
        changed = copy(self)
        for name, value in changes.items():
            setattr(changed, name, value)
        return changed

    def _init_state_dict(self) -> dict[str, Any]:
        cursor = write_cursor(self._stream.run.identity(), Point(0, 0))
        self._state_dict = {"start": 0, "yielded": 0, "type": type(self).__name__, "cursor": cursor}
        return self._state_dict

    def check(self, state: Mapping[str, Any]) -> None:
        """Refuse a state of other data."""
        try:
            read_cursor(self._stream.run.identity(), state["cursor"])
        except KeyError as error:
            raise CursorError("the state is not one of a stream's IterableDataset") from error

    def __iter__(self) -> Iterator[tuple[str, dict[str, Any]]]:
        state: dict[str, Any] = self._state_dict
        self.check(state)
        stream = self._stream.starting(Point(self._epoch, state["start"]))
        size = self._step * stream.run.at_once(_AT_ONCE_BYTES, _AT_ONCE_RECORDS)
        numbered = NumberedBatches(stream, Cut(size))
        block, done = divmod(state["yielded"], size // self._step)
        for number in range(block, numbered.count(self._epoch)):
            rows = numbered.rows(self._epoch, number)[self._first + done * self._step :: self._step]
            done = 0
            columns = with_texts(stream.spec, list(stream.run.read(rows)))
            for row in record_batch(stream.spec, self._schema, columns, 0).to_pylist():
                state["yielded"] += 1
                yield f"{self._epoch}_{state['yielded']}", row
