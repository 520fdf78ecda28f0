"""Read tables as sources: in memory or mapped, Parquet files, and Arrow's datasets."""

import hashlib
import json
import os
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from yogadl._core.arguments import users_level
from yogadl._core.columns import Columns
from yogadl._core.forms import PLAIN, Forms, forms_of
from yogadl._core.infer import SAMPLED_RECORDS, holds_trees
from yogadl._core.protocols import Indices
from yogadl._core.spec import Spec
from yogadl._foreign.arrow_columns import TableForm, Values, bytes_of, is_list, spec_of, value_lists
from yogadl._sources.sources import NO_RECORDS, Source
from yogadl.adapters.arrays._columns import PiecesSource, RowGroup, StreamSource, chunk_records
from yogadl.errors import ConfigurationError, UnsupportedDataError

# Read any rows of tables in memory, or mapped into memory: pyarrow, pandas, polars, HF datasets.


_FIRST_RECORDS: Final = 64
_ARROW_ERRORS: Final = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError)
_TREES: Final = "json values"  # in the place of the type of a column that does not pass through Arrow

Rows = slice | Indices  # a slice has a start and a stop, and no step


class FrameSource(Source):
    """A table in memory, or mapped into it. Picklable if the table is.

    Args:
        names: The columns' names; ``None`` for a single column.
        table: The table; it must have a length.
        read: A function of a module, or a partial of one: returns the columns of some rows of the table.
        forms: What is said about the values of records.
    """

    can_start_anywhere = True
    has_final_spec = True

    def __init__(
        self,
        names: Sequence[Any] | None,
        table: Any,
        read: Callable[[Any, Rows], Sequence[Values]],
        forms: Forms,
    ) -> None:
        self.length: int = len(table)
        if not self.length:
            raise UnsupportedDataError(NO_RECORDS)
        self._table, self._read = table, read
        first = read(table, slice(0, min(self.length, SAMPLED_RECORDS)))
        self.spec: Spec = spec_of(names, first, forms)
        self._form = TableForm(names, self.spec, forms.missing)

    def chunks(self, start: int = 0) -> Iterator[Columns]:
        """Yield the records from `start` on."""
        count = _FIRST_RECORDS
        while start < self.length:
            stop = min(start + count, self.length)
            rows = self._read(self._table, slice(start, stop))
            stored = self._form.stored(rows, range(start, stop))
            yield stored
            record_bytes = bytes_of(stored) // (stop - start)
            start, count = stop, chunk_records(record_bytes)

    def columns(self, indices: Indices) -> Columns:
        """Return the records at any indices; `from_source` reads by this method."""
        stored = self._form.stored(self._read(self._table, indices), indices.tolist())
        return value_lists(self.spec, stored)


def _rows_of_arrow(table: Any, chosen: Rows) -> Sequence[Values]:
    if isinstance(chosen, slice):
        found = table.slice(chosen.start, chosen.stop - chosen.start)
    else:
        try:
            found = table.take(pa.array(chosen))
        except pa.ArrowNotImplementedError:  # some types, such as views, have no `take`
            found = pa.concat_tables([table.slice(index, 1) for index in chosen.tolist()])
    columns: Sequence[Values] = found.columns
    return columns


def of_pyarrow(data: Any, forms: Forms) -> FrameSource | None:
    """Return the source of a table, a batch or an array of pyarrow."""
    if isinstance(data, pa.Array | pa.ChunkedArray):
        return FrameSource(None, pa.table({"": data}), _rows_of_arrow, forms)
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if not isinstance(data, pa.Table):
        return None
    return FrameSource(data.column_names, data, _rows_of_arrow, forms)


def _rows_of_pandas(frame: Any, chosen: Rows, columns: Sequence[tuple[Any, Any]]) -> list[Values]:
    some = frame.iloc[chosen]
    return [_series_values(name, some.iloc[:, n], data_type) for n, (name, data_type) in enumerate(columns)]


def _series_values(name: Any, series: Any, data_type: Any) -> Values:
    if isinstance(series.dtype, np.dtype) and series.dtype.kind in "biufc":
        return series.to_numpy()  # not through Arrow, which would read NaN as null
    if isinstance(data_type, str):
        return _with_nones(series)
    try:
        if data_type is not None and is_list(data_type):  # whose items keep NaN
            return pa.array(_with_nones(series), type=data_type, from_pandas=False)
        return pa.array(series, type=data_type, from_pandas=True)
    except _ARROW_ERRORS as error:
        raise _unconvertible(name, series.dtype, error) from error


def _with_nones(series: Any) -> Any:
    """Return the values of a column of Python objects, with None in the place of what pandas calls null."""
    values, is_null = series.to_numpy(copy=True), series.isna().to_numpy()
    values[is_null] = None
    return values


def _object_column_type(name: Any, series: Any, forms: Forms) -> Any:
    """Return the Arrow type of all values of a column of Python objects; None for any other column.

    A column of json values is `_TREES`: in Arrow, dicts would have the keys of all others.
    """
    if series.dtype != object:
        return None
    first = _with_nones(series.iloc[:SAMPLED_RECORDS]).tolist()
    if str(name) in forms.missing:
        first = [value for value in first if value is not None]
    has_filled = any(path.startswith(f"{name}/") for path in forms.missing)
    if str(name) in forms.json or (not has_filled and holds_trees(first, str(name))):
        return _TREES
    values = series.to_numpy()
    try:
        found = pa.infer_type(values, from_pandas=True)
    except _ARROW_ERRORS as error:
        raise _unconvertible(name, series.dtype, error) from error
    # Refused, because Arrow would convert bytes and str to one type.
    if (pa.types.is_binary(found) or pa.types.is_string(found)) and {bytes, str} <= set(map(type, values)):
        raise _unconvertible(name, series.dtype, "bytes and str are mixed")
    return found


def _unconvertible(name: Any, dtype: Any, error: object) -> UnsupportedDataError:
    return UnsupportedDataError(
        f"field {str(name)!r} is a column of {dtype} that Arrow can't take ({error}); make all its values of "
        "one type, or cast it (astype)"
    )


def _pandas_source(names: Sequence[Any] | None, frame: Any, forms: Forms) -> FrameSource:
    named = enumerate([""] if names is None else names)
    columns = [(name, _object_column_type(name, frame.iloc[:, number], forms)) for number, name in named]
    trees = [str(name) for name, data_type in columns if isinstance(data_type, str)]
    forms = replace(forms, json=(*forms.json, *trees))
    return FrameSource(names, frame, partial(_rows_of_pandas, columns=columns), forms)


def of_pandas(data: Any, forms: Forms) -> FrameSource | None:
    """Return the source of a DataFrame or a Series of pandas; the index is left out."""
    if hasattr(data, "columns") and hasattr(data, "iloc"):
        return _pandas_source(list(data.columns), data, forms)
    if hasattr(data, "to_frame") and hasattr(data, "iloc"):
        return _pandas_source(None, data.to_frame(""), forms)
    return None


def _rows_of_polars(frame: Any, chosen: Rows) -> Sequence[Values]:
    columns: Sequence[Values] = frame[chosen].to_arrow().columns
    return columns


def _polars_source(names: Sequence[Any] | None, frame: Any, forms: Forms) -> FrameSource:
    for name, dtype in frame.schema.items():
        try:
            exported = None if _has_objects(dtype) else frame.select(name).head(1).to_arrow()
        except _ARROW_ERRORS:
            exported = None
        if exported is None:  # objects would be exported as their addresses in memory
            raise UnsupportedDataError(
                f"field {name!r} is a column of polars' {dtype}, for which Arrow has no type; cast it"
            )
    return FrameSource(names, frame, _rows_of_polars, forms)


def _has_objects(dtype: Any) -> bool:
    inner = [field.dtype for field in getattr(dtype, "fields", ())]
    if getattr(dtype, "inner", None) is not None:
        inner.append(dtype.inner)
    return str(dtype) == "Object" or any(map(_has_objects, inner))


def of_polars(data: Any, forms: Forms) -> FrameSource | None:
    """Return the source of a DataFrame, a LazyFrame (which is collected), or a Series of polars."""
    if hasattr(data, "collect") and hasattr(data, "collect_schema"):
        data = data.collect()
    if hasattr(data, "height") and hasattr(data, "columns"):
        return _polars_source(data.columns, data, forms)
    if hasattr(data, "to_frame"):
        return _polars_source(None, data.to_frame(), forms)
    return None


def _rows_of_datasets(
    dataset: Any, chosen: Rows, names: Sequence[str], media: Sequence[str]
) -> Sequence[Values]:
    table = dataset[chosen if isinstance(chosen, slice) else chosen.tolist()]
    columns: Sequence[Values] = _with_file_contents(table, media).select(names).columns
    return columns


def of_datasets(data: Any, forms: Forms) -> FrameSource | StreamSource | None:
    """Return the source of a Dataset or IterableDataset of HF datasets."""
    if hasattr(data, "keys"):
        raise UnsupportedDataError(
            f"a {type(data).__name__} is several datasets, {sorted(data)}: pass one of them"
        )
    if hasattr(data, "format") and hasattr(data, "with_format") and hasattr(data, "__getitem__"):
        if data.format["type"] == "custom":
            return None  # a user's transform: it is called record by record, so columns can't be read
        names = list(data.format["columns"])
        arrow = data.with_format("arrow", columns=names)
        read = partial(_rows_of_datasets, names=names, media=_media_columns(data.features, names))
        return FrameSource(names, arrow, read, forms)
    if hasattr(data, "with_format") and hasattr(data, "iter"):
        arrow = data.with_format("arrow")
        tables = iter(arrow.iter(batch_size=1024))
        first = next((table for table in tables if table.num_rows), None)
        if first is None:
            raise UnsupportedDataError(NO_RECORDS)
        media = _media_columns(data.features or {}, first.column_names)
        loaded = (_with_file_contents(table, media) for table in chain([first], tables))
        first = next(loaded)
        batches = (batch for table in chain([first], loaded) for batch in table.to_batches())
        return StreamSource(pa.RecordBatchReader.from_batches(first.schema, batches), forms)
    return None


def identity_of(data: Any, with_version: str) -> str | None:
    """Return a text that is equal only for the same records, or None if it can't be known.

    Args:
        data: A Dataset of HF datasets, or the source of Parquet files.
        with_version: The call that names a version, for an error.

    Raises:
        ConfigurationError: if a Dataset has a random fingerprint.
    """
    if not isinstance(data, PiecesSource):
        return _fingerprint_of(data, with_version)
    found = _state_of_files(data)
    return None if found is None else data.said(found)


def _state_of_files(source: PiecesSource) -> str | None:
    """Return the paths, sizes and times of files, and the columns; None if they are not known by paths."""
    groups = [piece.batches for piece in source.pieces]
    described = []
    for group in groups:
        if not isinstance(group, _RowGroupBatches) or not isinstance(group.file, str):
            return None
        columns = None if group.columns is None else list(group.columns)
        state = os.stat(group.file)
        described.append([group.file, group.number, columns, state.st_size, state.st_mtime_ns])
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()


def _fingerprint_of(data: Any, with_version: str) -> str:
    """Return the fingerprint that HF datasets gives a Dataset: a hash of its origin and all transforms.

    Args:
        data: The Dataset.
        with_version: The call that names a version, for the error.

    Raises:
        ConfigurationError: if it is a random one, because a transform could not be hashed.
    """
    from datasets import fingerprint as hashing

    found: str = data._fingerprint
    drawn = _random_fingerprints(getattr(hashing, "fingerprint_rng", None))
    folder = getattr(hashing, "_TEMP_DIR_FOR_TEMP_CACHE_FILES", None)
    # A result that is kept on disk is named by its fingerprint, except those in this folder, and what is
    # made from it has the same files.
    files = [os.path.split(file["filename"]) for file in data.cache_files]
    names = {name.removeprefix("cache-")[:16] for at, name in files if folder is None or at != folder.name}
    if drawn & {found, *names}:
        raise ConfigurationError(
            f"the fingerprint {found!r} of this Dataset is random: datasets could not hash the function, or "
            'another argument, of a transform such as map (its warning "couldn\'t be hashed properly" names '
            "it), so each process would build the version anew. Use only what pickle or dill can store in "
            f"that function; or give a version, and change it whenever the records do: {with_version}"
        )
    if getattr(hashing, "fingerprint_warnings", {}).get("update_fingerprint_transform_hash_failed"):
        warnings.warn(
            "datasets could not hash a transform in this process. If this Dataset was made from its result, "
            f"each process builds the version anew; then give a version: {with_version}",
            UserWarning,
            stacklevel=users_level(),
        )
    return found


def _random_fingerprints(generator: random.Random | None) -> set[str]:
    """Return the random fingerprints that datasets has drawn in this process, of many the last ones.

    The generator gives out the 624 words of its state one after another, two a fingerprint.
    """
    if generator is None:
        return set()
    version, (*words, given), _ = generator.getstate()
    again = random.Random()
    again.setstate((version, (*words, 0), None))
    return {f"{again.getrandbits(64):016x}" for _ in range(given // 2)}


def _media_columns(features: Any, names: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that hold files, as bytes or a path: images, audio and other media."""
    types = {name: getattr(features.get(name), "pa_type", None) for name in names}
    structs = {name: kind for name, kind in types.items() if kind is not None and pa.types.is_struct(kind)}
    return tuple(name for name, kind in structs.items() if kind.get_field_index("bytes") >= 0)


def _with_file_contents(table: Any, media: Sequence[str]) -> Any:
    """Replace each column of files by a column of the files' bytes, which stay encoded."""
    if not media:
        return table
    from datasets.table import embed_table_storage

    table = embed_table_storage(table)
    for name in media:
        number = table.schema.get_field_index(name)
        table = table.set_column(number, name, pc.struct_field(table.column(number), ["bytes"]))
    return table


# Read Parquet files, and Arrow's datasets of them, row group by row group.


def of_files(files: Sequence[Any], columns: Sequence[str] | None, forms: Forms) -> PiecesSource:
    """Return the source of Parquet files, each given as a path or as a pq.ParquetFile."""
    pieces: list[RowGroup] = []
    expected = None
    for file in files:
        opened = _open_parquet(file)
        schema = _chosen_schema(opened.schema_arrow.remove_metadata(), columns, file)
        if expected is None:
            expected = schema
        if [(field.name, field.type) for field in schema] != [(field.name, field.type) for field in expected]:
            raise UnsupportedDataError(
                f"{file} has the columns {_listed(schema)}, but the first file has {_listed(expected)}: pass "
                "files of one schema, or the columns= that they share"
            )
        for number in range(opened.metadata.num_row_groups):
            group = opened.metadata.row_group(number)
            if group.num_rows:
                size = chunk_records(group.total_byte_size // group.num_rows)
                pieces.append(RowGroup(group.num_rows, _RowGroupBatches(file, number, columns, 2 * size)))
        if opened is not file:
            opened.close()
    return PiecesSource(expected, pieces, forms)


def _open_parquet(file: Any) -> Any:
    import pyarrow.parquet

    return pyarrow.parquet.ParquetFile(file) if isinstance(file, str) else file


def _chosen_schema(schema: Any, columns: Sequence[str] | None, file: Any) -> Any:
    if columns is None:
        return schema
    missing = [name for name in columns if name not in schema.names]
    if missing or not columns:
        problem = f"lacks the columns {missing}" if missing else "can't be read without columns"
        raise ConfigurationError(f"{file} {problem}: choose columns= among {schema.names}")
    return pa.schema([schema.field(name) for name in columns])


def _listed(schema: Any) -> str:
    return ", ".join(f"{field.name!r} {field.type}" for field in schema)


@dataclass(frozen=True)
class _RowGroupBatches:
    """The batches of one row group; picklable if the file is given by its path."""

    file: Any
    number: int
    columns: Sequence[str] | None
    batch_records: int

    def __getstate__(self) -> dict[str, Any]:
        if not isinstance(self.file, str):
            raise UnsupportedDataError(
                "an open ParquetFile can't be sent to other processes: give its path, arrays.parquet(path)"
            )
        return self.__dict__

    def __call__(self) -> Iterator[Any]:
        opened = _open_parquet(self.file)
        try:
            columns = None if self.columns is None else list(self.columns)
            for batch in opened.iter_batches(self.batch_records, row_groups=[self.number], columns=columns):
                yield batch if columns is None else batch.select(columns)
        finally:
            if opened is not self.file:
                opened.close()


def of_dataset(dataset: Any, forms: Forms) -> PiecesSource | StreamSource:
    """Return the source of a pa.dataset.Dataset; by row groups if its files are Parquet."""
    try:
        fragments = list(dataset.get_fragments())
        groups = [group for fragment in fragments for group in fragment.split_by_row_group()]
    except (ValueError, AttributeError):  # filtered, projected, or of files without row groups
        return StreamSource(dataset.scanner().to_reader(), forms)
    # `count_rows` counts the whole file, so it is not used.
    counts = [sum(part.num_rows for part in group.row_groups) for group in groups]
    found = [
        RowGroup(count, partial(_fragment_batches, group, dataset.schema))
        for count, group in zip(counts, groups, strict=True)
        if count
    ]
    return PiecesSource(dataset.schema, found, forms)


def _fragment_batches(fragment: Any, schema: Any) -> Iterator[Any]:
    """Read the batches of one row group of a pa.dataset.Dataset, with the columns of its folder's name."""
    from pyarrow.dataset import Scanner

    yield from Scanner.from_fragment(fragment, schema=schema).to_batches()


# Find the source of a table of any supported library.


def source(data: Any, forms: Forms = PLAIN) -> Source | None:  # a table of any library
    """Return the source in `data`, or ``None`` if `data` is no table that this module supports.

    Args:
        data: A table, a file or a stream of pyarrow, a frame of pandas or polars, a dataset of HF datasets.
        forms: What is said about the values of records; values with an Arrow type need no pickle, others are
            refused.

    Raises:
        UnsupportedDataError: if a column can't be stored (names the column), or if there are no records.
    """
    packages = [kind.__module__.partition(".")[0] for kind in type(data).__mro__]
    package = next((name for name in packages if name in ("pandas", "polars", "datasets")), None)
    if package == "pandas":
        return of_pandas(data, forms)
    if package == "polars":
        return of_polars(data, forms)
    if package == "datasets":
        return of_datasets(data, forms)
    found = _source_of_pyarrow(data, forms)
    if found is None and hasattr(data, "__arrow_c_stream__"):
        return StreamSource(pa.RecordBatchReader.from_stream(data), forms)
    return found


def parquet(
    path_or_paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    columns: Sequence[str] | None = None,
    *,
    json: Sequence[str] = (),
    missing: Mapping[str, Any] | None = None,
) -> Source:
    """Return a source that reads Parquet files one after the other, without ever holding a whole file.

    A few tens of MB are decoded at a time, on a second thread, while the previous data is written. A killed
    build continues at the row group where it stopped; `submit(..., workers=4)` reads in four processes.

    Args:
        path_or_paths: The files, in the order of their records; all files have the same schema.
        columns: The columns to read, in this order; all columns if not given.
        json: As for `CacheStorage.submit`: the names of columns that are json values.
        missing: As for `CacheStorage.submit`: what comes in the place of nulls.

    Raises:
        UnsupportedDataError: if a column can't be stored (names the column), or if there are no records.
        ConfigurationError: if a column does not exist, or no path is given.

    Example:
        >>> import pyarrow as pa, pyarrow.parquet as pq, tempfile, yogadl
        >>> from yogadl.adapters import arrays
        >>> folder = tempfile.TemporaryDirectory()
        >>> pq.write_table(pa.table({"x": [1.5, 2.5], "name": ["a", "b"]}), f"{folder.name}/a.parquet")
        >>> storage = yogadl.open_storage(f"{folder.name}/caches")
        >>> ref = storage.submit(arrays.parquet(f"{folder.name}/a.parquet"), "letters", "1")
        >>> ref[1]
        {'x': np.float64(2.5), 'name': 'b'}
        >>> folder.cleanup()
    """
    if isinstance(path_or_paths, str | os.PathLike):
        path_or_paths = [path_or_paths]
    paths = [os.fspath(path) for path in path_or_paths]
    if not paths:
        raise ConfigurationError("give the path of at least one Parquet file")
    return of_files(paths, columns, forms_of(json, missing))


def _source_of_pyarrow(data: Any, forms: Forms) -> Source | None:
    if isinstance(data, pa.RecordBatchReader):
        return StreamSource(data, forms)
    # Compared by name: these modules of pyarrow are loaded only if there are such objects.
    kinds = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(data).__mro__}
    if "pyarrow.parquet.core.ParquetFile" in kinds:
        return of_files([data], None, forms)
    if "pyarrow._dataset.Dataset" in kinds:
        return of_dataset(data, forms)
    if "pyarrow._dataset.Scanner" in kinds:
        return StreamSource(data.to_reader(), forms)
    return of_pyarrow(data, forms)
