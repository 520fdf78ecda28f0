"""Read tables by column: pyarrow, Parquet files, pandas, polars, HF datasets.

Every column of a table is a field of the records; there is no loop over records. `yogadl.open_storage(...)
.submit(table, ...)` finds its way here by itself. What each type of column becomes, and what is refused:
docs/sources.md.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from yogadl._sources import NO_RECORDS, Columns, Source
from yogadl._spec import Spec
from yogadl.errors import ConfigurationError, MissingDependencyError, UnsupportedDataError

try:
    import pyarrow as pa
except ImportError as error:
    raise MissingDependencyError("tables are read through Arrow: pip install pyarrow") from error

from yogadl.adapters._arrow import Values, bytes_of, spec_of, stored_columns, value_lists

__all__ = ["parquet", "source"]

# How much is converted at once: enough to make the work per chunk small, little enough to stay in caches.
_CHUNK_RECORDS: Final = 64 * 1024
_CHUNK_BYTES: Final = 8 * 2**20
# Batches smaller than this are joined first: 1,000 records, as they often come, cost as much as 8,000.
_LEAST_RECORDS: Final = 8 * 1024
_FIRST_RECORDS: Final = 64


def source(data: Any, allow_pickle: bool = False) -> Source | None:  # a table of whatever library
    """Return the source in `data`, or ``None`` if it is none of the tables that this module knows.

    Args:
        data: A table, a file or a stream of pyarrow, a frame of pandas or polars, a dataset of HF datasets.
        allow_pickle: Makes no difference: what Arrow has a type for is stored without, and all else refused.

    Raises:
        UnsupportedDataError: if a column can't be stored, by its name; if there are no records.
    """
    package = _package_of(data)
    if package == "pandas":
        return _of_pandas(data)
    if package == "polars":
        return _of_polars(data)
    if package == "datasets":
        return _of_datasets(data)
    found = _of_pyarrow(data)
    if found is None and hasattr(data, "__arrow_c_stream__"):
        return StreamSource(pa.RecordBatchReader.from_stream(data))
    return found


def _package_of(data: Any) -> str | None:
    known = ("pandas", "polars", "datasets")
    packages = (kind.__module__.partition(".")[0] for kind in type(data).__mro__)
    return next((package for package in packages if package in known), None)


def parquet(
    path_or_paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    columns: Sequence[str] | None = None,
) -> Source:
    """Return a source that reads Parquet files, one after the other, without ever holding one whole.

    A few tens of MB are decoded at a time, on a second thread while those before are written. A build that was
    killed goes on at the row group where it stopped; `submit(..., workers=4)` reads in four processes.

    Args:
        path_or_paths: The files, in the order in which their records follow each other; all of one schema.
        columns: Which columns to read, in this order; all if not given.

    Raises:
        UnsupportedDataError: if a column can't be stored, by its name; if there are no records.
        ConfigurationError: if there is no such column, or no path.

    Example:
        >>> import pyarrow as pa, pyarrow.parquet as pq, tempfile, yogadl
        >>> from yogadl.adapters import arrays
        >>> folder = tempfile.TemporaryDirectory()
        >>> pq.write_table(pa.table({"x": [1.5, 2.5], "name": ["a", "b"]}), f"{folder.name}/a.parquet")
        >>> storage = yogadl.open_storage(f"{folder.name}/caches")
        >>> storage.submit(arrays.parquet(f"{folder.name}/a.parquet"), "letters", "1")
        >>> storage.fetch("letters", "1")[1]
        {'x': np.float64(2.5), 'name': 'b'}
        >>> folder.cleanup()
    """
    if isinstance(path_or_paths, str | os.PathLike):
        path_or_paths = [path_or_paths]
    paths = [os.fspath(path) for path in path_or_paths]
    if not paths:
        raise ConfigurationError("give the path of at least one Parquet file")
    return _of_parquet_files(paths, columns)


# In memory: rows by their numbers.


class _Frame(Protocol):
    """A table that gives any of its rows at once; `names` is ``None`` if it is a single column."""

    names: Sequence[Any] | None

    def __len__(self) -> int: ...

    def rows(self, start: int, stop: int) -> Sequence[Values]: ...

    def take(self, indices: NDArray[np.int64]) -> Sequence[Values]: ...


class FrameSource:
    """A table in memory, or mapped into it. As picklable as the table is.

    Args:
        frame: The table.
    """

    can_start_anywhere = True

    def __init__(self, frame: _Frame) -> None:
        self.length = len(frame)
        if not self.length:
            raise UnsupportedDataError(NO_RECORDS)
        self._frame = frame
        self.spec: Spec = spec_of(frame.names, frame.rows(0, 1))

    def chunks(self, start: int = 0) -> Iterator[Columns]:
        """Yield the records from `start` on."""
        count = _FIRST_RECORDS
        while start < self.length:
            stop = min(start + count, self.length)
            stored = self._stored(self._frame.rows(start, stop), range(start, stop))
            yield stored
            record_bytes = bytes_of(stored) // (stop - start)
            start, count = stop, _records_of(record_bytes)

    def columns(self, indices: NDArray[np.int64]) -> Columns:
        """Return any records, as `from_source` reads them."""
        return value_lists(self.spec, self._stored(self._frame.take(indices), indices.tolist()))

    def _stored(self, columns: Sequence[Values], numbers: Sequence[int]) -> Columns:
        found = spec_of(self._frame.names, columns)
        if found != self.spec:  # a column of Python objects has no type of its own
            raise UnsupportedDataError(
                f"records {numbers[0]} to {numbers[-1]}: {_difference(self.spec, found)}; make every column "
                "of one type (astype)"
            )
        return stored_columns(self._frame.names, columns, numbers)


def _records_of(record_bytes: int) -> int:
    return max(1, min(_CHUNK_RECORDS, _CHUNK_BYTES // max(1, record_bytes)))


def _difference(ours: Spec, theirs: Spec) -> str:
    for a, b in zip(ours.fields, theirs.fields, strict=False):
        if a != b:
            return f"field {b.name!r} is {b.leaf.dtype} {b.leaf.shape}, not {a.leaf.dtype} {a.leaf.shape} as before"
    return f"there are {len(theirs.fields)} fields, not {len(ours.fields)} as before"


@dataclass(frozen=True)
class _ArrowFrame:
    names: Sequence[Any] | None
    table: Any  # a pa.Table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def rows(self, start: int, stop: int) -> Sequence[Values]:
        return _columns(self.table.slice(start, stop - start))

    def take(self, indices: NDArray[np.int64]) -> Sequence[Values]:
        return _columns(self.table.take(pa.array(indices)))


def _columns(table: Any) -> Sequence[Values]:
    found: list[Values] = table.columns
    return found


def _of_pyarrow(data: Any) -> Source | None:
    if isinstance(data, pa.Array | pa.ChunkedArray):
        return FrameSource(_ArrowFrame(None, pa.table({"": data})))
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if isinstance(data, pa.Table):
        return FrameSource(_ArrowFrame(data.column_names, data))
    if isinstance(data, pa.RecordBatchReader):
        return StreamSource(data)
    # These two modules are loaded only by whoever has made such an object.
    kinds = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(data).__mro__}
    if "pyarrow.parquet.core.ParquetFile" in kinds:
        return _of_parquet_files([data], None)
    if "pyarrow._dataset.Dataset" in kinds:
        return _of_arrow_dataset(data)
    if "pyarrow._dataset.Scanner" in kinds:
        return StreamSource(data.to_reader())
    return None


@dataclass(frozen=True)
class _PandasFrame:
    names: Sequence[Any] | None
    frame: Any  # a pd.DataFrame

    def __len__(self) -> int:
        return len(self.frame)

    def rows(self, start: int, stop: int) -> Sequence[Values]:
        return self._columns(self.frame.iloc[start:stop], start)

    def take(self, indices: NDArray[np.int64]) -> Sequence[Values]:
        return self._columns(self.frame.iloc[indices], int(indices[0]))

    def _columns(self, frame: Any, first: int) -> list[Values]:
        return [
            _of_series(name, frame.iloc[:, number], first)
            for number, name in enumerate(self.names or [frame.columns[0]])
        ]


def _of_series(name: Any, series: Any, first: int) -> Values:
    if isinstance(series.dtype, np.dtype) and series.dtype.kind in "biufc":
        return series.to_numpy()  # not through Arrow, for which NaN would be a null
    try:
        return pa.array(series, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise UnsupportedDataError(
            f"from record {first} on: field {name!r} ({series.dtype}) has values that Arrow has no type for "
            f"({error}); make every column of one type (astype), or submit records instead of the table"
        ) from error


def _of_pandas(data: Any) -> Source | None:
    if hasattr(data, "columns") and hasattr(data, "iloc"):
        return FrameSource(_PandasFrame(list(data.columns), data))
    if hasattr(data, "to_frame") and hasattr(data, "iloc"):
        return FrameSource(_PandasFrame(None, data.to_frame("")))
    return None


@dataclass(frozen=True)
class _PolarsFrame:
    names: Sequence[Any] | None
    frame: Any  # a pl.DataFrame

    def __len__(self) -> int:
        return int(self.frame.height)

    def rows(self, start: int, stop: int) -> Sequence[Values]:
        return _columns(self.frame.slice(start, stop - start).to_arrow())

    def take(self, indices: NDArray[np.int64]) -> Sequence[Values]:
        return _columns(self.frame[indices].to_arrow())


def _of_polars(data: Any) -> Source | None:
    if hasattr(data, "collect") and hasattr(data, "collect_schema"):
        data = data.collect()
    if hasattr(data, "height") and hasattr(data, "columns"):
        return FrameSource(_PolarsFrame(data.columns, data))
    if hasattr(data, "to_frame"):
        return FrameSource(_PolarsFrame(None, data.to_frame()))
    return None


@dataclass(frozen=True)
class _HuggingFaceFrame:
    names: Sequence[Any]
    dataset: Any  # a datasets.Dataset in the format "arrow"
    media: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.dataset)

    def rows(self, start: int, stop: int) -> Sequence[Values]:
        return _columns(_with_bytes(self.dataset[start:stop], self.media).select(self.names))

    def take(self, indices: NDArray[np.int64]) -> Sequence[Values]:
        return _columns(_with_bytes(self.dataset[indices.tolist()], self.media).select(self.names))


def _of_datasets(data: Any) -> Source | None:
    if hasattr(data, "keys"):
        raise UnsupportedDataError(
            f"a {type(data).__name__} is several datasets, {sorted(data)}: give one of them"
        )
    if hasattr(data, "format") and hasattr(data, "with_format") and hasattr(data, "__getitem__"):
        if data.format["type"] == "custom":
            return None  # a transform of the user's own: only record by record does it run
        names = list(data.format["columns"])
        arrow = data.with_format("arrow", columns=names)
        return FrameSource(_HuggingFaceFrame(names, arrow, _media(data.features, names)))
    if hasattr(data, "with_format") and hasattr(data, "iter"):
        arrow = data.with_format("arrow")
        tables = iter(arrow.iter(batch_size=1024))
        first = next((table for table in tables if table.num_rows), None)
        if first is None:
            raise UnsupportedDataError(NO_RECORDS)
        media = _media(data.features or {}, first.column_names)
        every = (_with_bytes(table, media) for table in _chained(first, tables))
        first = next(every)
        batches = (batch for table in _chained(first, every) for batch in table.to_batches())
        return StreamSource(pa.RecordBatchReader.from_batches(first.schema, batches))
    return None


def _chained(first: Any, rest: Iterable[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def _media(features: Any, names: Sequence[str]) -> tuple[str, ...]:
    """Return which columns hold files, as their bytes or a path: images, audio and the like."""
    found = []
    for name in names:
        arrow_type = getattr(features.get(name), "pa_type", None)
        if (
            arrow_type is not None
            and pa.types.is_struct(arrow_type)
            and arrow_type.get_field_index("bytes") >= 0
        ):
            found.append(name)
    return tuple(found)


def _with_bytes(table: Any, media: Sequence[str]) -> Any:
    """Put in place of each column of files the bytes of those files, encoded as they are."""
    if not media:
        return table
    from datasets.table import embed_table_storage

    table = embed_table_storage(table)
    for name in media:
        number = table.schema.get_field_index(name)
        column = table.column(number)
        chunks = [chunk.field("bytes") for chunk in column.chunks]
        table = table.set_column(number, name, pa.chunked_array(chunks, column.type.field("bytes").type))
    return table


# Streams: batches as they come.


class StreamSource:
    """Batches of Arrow, read once, in order.

    Args:
        reader: A pa.RecordBatchReader.
    """

    can_start_anywhere = False
    length = None

    def __init__(self, reader: Any) -> None:
        self._names = reader.schema.names
        self.spec: Spec = spec_of(self._names, list(reader.schema))
        batches = iter(reader)
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            raise UnsupportedDataError(NO_RECORDS)
        self._batches = _chained(first, batches)

    def chunks(self, start: int = 0) -> Iterator[Columns]:
        """Yield the records from `start` on; those before are read, too."""
        return _chunks(self._names, self._batches, start, start)


@dataclass(frozen=True)
class _Piece:
    """Some records of a source that can be read without those before."""

    records: int
    batches: Callable[[], Iterable[Any]]


class PiecesSource:
    """Row groups of Parquet files, one after the other, each read when its turn comes.

    Args:
        schema: What all of them have.
        pieces: The row groups.
    """

    can_start_anywhere = True

    def __init__(self, schema: Any, pieces: Sequence[_Piece]) -> None:
        self._names = schema.names
        self._pieces = pieces
        self.spec: Spec = spec_of(self._names, list(schema))
        self.length = sum(piece.records for piece in pieces)
        if not self.length:
            raise UnsupportedDataError(NO_RECORDS)

    def chunks(self, start: int = 0) -> Iterator[Columns]:
        """Yield the records from `start` on, having read at most one row group's before."""
        first = 0
        for number, piece in enumerate(self._pieces):
            if first + piece.records > start:
                rest = self._pieces[number:]
                batches = (batch for piece in rest for batch in piece.batches())
                yield from _chunks(self._names, batches, start, start - first)
                return
            first += piece.records


def _chunks(names: Sequence[str], batches: Iterable[Any], first: int, skipped: int) -> Iterator[Columns]:
    """Yield columns of a good size, reading ahead on another thread.

    Args:
        names: The columns.
        batches: Where the records come from.
        first: The number of the first record yielded.
        skipped: How many records lie before it in `batches`.
    """
    for table in _read_ahead(_tables(_without(batches, skipped))):
        size = _records_of(table.nbytes // table.num_rows)
        for start in range(0, table.num_rows, size):
            piece = table.slice(start, size)
            yield stored_columns(names, piece.columns, range(first, first + len(piece)))
            first += len(piece)


def _without(batches: Iterable[Any], skipped: int) -> Iterator[Any]:
    for batch in batches:
        if batch.num_rows > skipped:
            yield batch.slice(skipped)
        skipped = max(0, skipped - batch.num_rows)


def _tables(batches: Iterable[Any]) -> Iterator[Any]:
    """Join small batches."""
    held: list[Any] = []
    for batch in batches:
        held.append(batch)
        records = sum(batch.num_rows for batch in held)
        if records >= _LEAST_RECORDS or sum(batch.nbytes for batch in held) >= _CHUNK_BYTES:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)


def _read_ahead(items: Iterator[Any]) -> Iterator[Any]:
    """Iterate over what is never ``None``, getting the next one on a thread while this one is used."""
    with ThreadPoolExecutor(1, thread_name_prefix="yogadl-read-ahead") as pool:
        ahead = pool.submit(next, items, None)
        while (item := ahead.result()) is not None:
            ahead = pool.submit(next, items, None)
            yield item


# Parquet.


def _of_parquet_files(files: Sequence[Any], columns: Sequence[str] | None) -> Source:
    pieces: list[_Piece] = []
    expected = None
    for file in files:
        opened = _opened(file)
        schema = _chosen(opened.schema_arrow.remove_metadata(), columns, file)
        if expected is None:
            expected = schema
        if schema != expected:
            raise UnsupportedDataError(f"{file} has the columns {_listed(schema)}, not {_listed(expected)}")
        for number in range(opened.metadata.num_row_groups):
            group = opened.metadata.row_group(number)
            if group.num_rows:
                size = _records_of(group.total_byte_size // group.num_rows)
                pieces.append(_Piece(group.num_rows, _Group(file, number, schema.names, 2 * size)))
        if opened is not file:
            opened.close()
    return PiecesSource(expected, pieces)


def _opened(file: Any) -> Any:
    import pyarrow.parquet

    return pyarrow.parquet.ParquetFile(file) if isinstance(file, str) else file


def _chosen(schema: Any, columns: Sequence[str] | None, file: Any) -> Any:
    if columns is None:
        return schema
    missing = [name for name in columns if name not in schema.names]
    if missing or not columns:
        raise ConfigurationError(f"{file} has the columns {schema.names}, and not {missing or 'none'}")
    return pa.schema([schema.field(name) for name in columns])


def _listed(schema: Any) -> str:
    return ", ".join(f"{field.name!r} {field.type}" for field in schema)


@dataclass(frozen=True)
class _Group:
    """One row group; picklable if the file is given by its path."""

    file: Any
    number: int
    names: Sequence[str]
    batch_records: int

    def __call__(self) -> Iterator[Any]:
        opened = _opened(self.file)
        try:
            for batch in opened.iter_batches(
                self.batch_records, row_groups=[self.number], columns=list(self.names)
            ):
                yield batch.select(list(self.names))
        finally:
            if opened is not self.file:
                opened.close()


def _of_arrow_dataset(dataset: Any) -> Source:
    """Return the source of a pa.dataset.Dataset: by row groups if its files are Parquet."""
    try:
        fragments = list(dataset.get_fragments())
        groups = [group for fragment in fragments for group in fragment.split_by_row_group()]
    except (ValueError, AttributeError):  # filtered, projected, or of files without row groups
        return StreamSource(dataset.scanner().to_reader())
    pieces = [_Piece(group.count_rows(), _Fragment(group, dataset.schema)) for group in groups]
    return PiecesSource(dataset.schema, [piece for piece in pieces if piece.records])


@dataclass(frozen=True)
class _Fragment:
    """One row group of a pa.dataset.Dataset, with the columns that its folder's name says."""

    fragment: Any
    schema: Any

    def __call__(self) -> Iterator[Any]:
        from pyarrow.dataset import Scanner

        yield from Scanner.from_fragment(self.fragment, schema=self.schema).to_batches()
