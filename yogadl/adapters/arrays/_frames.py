"""Read any rows of tables in memory, or mapped into memory: pyarrow, pandas, polars, HF datasets."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from yogadl._core.columns import Columns
from yogadl._core.protocols import Indices
from yogadl._core.spec import Spec
from yogadl._sources.sources import NO_RECORDS
from yogadl.adapters.arrays._batches import StreamSource, chunk_records
from yogadl.adapters.arrays._columns import bytes_of, stored_columns, value_lists
from yogadl.adapters.arrays._types import Values, spec_of
from yogadl.errors import UnsupportedDataError

_FIRST_RECORDS: Final = 64
_ARROW_ERRORS: Final = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError)

Rows = slice | Indices  # a slice has a start and a stop, and no step


class FrameSource:
    """A table in memory, or mapped into it. Picklable if the table is.

    Args:
        names: The columns' names; ``None`` for a single column.
        table: The table; it must have a length.
        read: A function of a module, or a partial of one: returns the columns of some rows of the table.
    """

    can_start_anywhere = True
    has_final_spec = True

    def __init__(
        self, names: Sequence[Any] | None, table: Any, read: Callable[[Any, Rows], Sequence[Values]]
    ) -> None:
        self.length = len(table)
        if not self.length:
            raise UnsupportedDataError(NO_RECORDS)
        self._names, self._table, self._read = names, table, read
        self.spec: Spec = spec_of(names, read(table, slice(0, 1)))

    def chunks(self, start: int = 0) -> Iterator[Columns]:
        """Yield the records from `start` on."""
        count = _FIRST_RECORDS
        while start < self.length:
            stop = min(start + count, self.length)
            rows = self._read(self._table, slice(start, stop))
            stored = stored_columns(self._names, rows, range(start, stop))
            yield stored
            record_bytes = bytes_of(stored) // (stop - start)
            start, count = stop, chunk_records(record_bytes)

    def columns(self, indices: Indices) -> Columns:
        """Return the records at any indices; `from_source` reads by this method."""
        stored = stored_columns(self._names, self._read(self._table, indices), indices.tolist())
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


def of_pyarrow(data: Any) -> FrameSource | None:
    """Return the source of a table, a batch or an array of pyarrow."""
    if isinstance(data, pa.Array | pa.ChunkedArray):
        return FrameSource(None, pa.table({"": data}), _rows_of_arrow)
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    return FrameSource(data.column_names, data, _rows_of_arrow) if isinstance(data, pa.Table) else None


def _rows_of_pandas(frame: Any, chosen: Rows, columns: Sequence[tuple[Any, Any]]) -> list[Values]:
    some = frame.iloc[chosen]
    return [_of_series(name, some.iloc[:, n], data_type) for n, (name, data_type) in enumerate(columns)]


def _of_series(name: Any, series: Any, data_type: Any) -> Values:
    if isinstance(series.dtype, np.dtype) and series.dtype.kind in "biufc":
        return series.to_numpy()  # not through Arrow, which would read NaN as null
    try:
        return pa.array(series, type=data_type, from_pandas=True)
    except _ARROW_ERRORS as error:
        raise _untyped(name, series.dtype, error) from error


def _type_of(name: Any, series: Any) -> Any:
    """Return the common Arrow type of the values of a column of Python objects, else None."""
    if series.dtype != object:
        return None
    values = series.to_numpy()
    try:
        found = pa.infer_type(values, from_pandas=True)
    except _ARROW_ERRORS as error:
        raise _untyped(name, series.dtype, error) from error
    # Arrow would convert both to one type.
    if (pa.types.is_binary(found) or pa.types.is_string(found)) and {bytes, str} <= set(map(type, values)):
        raise _untyped(name, series.dtype, "bytes and str are mixed")
    return found


def _untyped(name: Any, dtype: Any, error: object) -> UnsupportedDataError:
    return UnsupportedDataError(
        f"field {str(name)!r} is a column of {dtype} that Arrow can't take ({error}); make all its values of "
        "one type, or cast it (astype)"
    )


def _pandas_source(names: Sequence[Any] | None, frame: Any) -> FrameSource:
    named = enumerate([""] if names is None else names)
    columns = [(name, _type_of(name, frame.iloc[:, number])) for number, name in named]
    return FrameSource(names, frame, partial(_rows_of_pandas, columns=columns))


def of_pandas(data: Any) -> FrameSource | None:
    """Return the source of a DataFrame or a Series of pandas; the index is left out."""
    if hasattr(data, "columns") and hasattr(data, "iloc"):
        return _pandas_source(list(data.columns), data)
    if hasattr(data, "to_frame") and hasattr(data, "iloc"):
        return _pandas_source(None, data.to_frame(""))
    return None


def _rows_of_polars(frame: Any, chosen: Rows) -> Sequence[Values]:
    columns: Sequence[Values] = frame[chosen].to_arrow().columns
    return columns


def _polars_source(names: Sequence[Any] | None, frame: Any) -> FrameSource:
    for name, dtype in frame.schema.items():
        try:
            exported = None if _has_objects(dtype) else frame.select(name).head(1).to_arrow()
        except _ARROW_ERRORS:
            exported = None
        if exported is None:  # objects would be exported as their addresses in memory
            raise UnsupportedDataError(
                f"field {name!r} is a column of polars' {dtype}, for which Arrow has no type; cast it"
            )
    return FrameSource(names, frame, _rows_of_polars)


def _has_objects(dtype: Any) -> bool:
    inner = [field.dtype for field in getattr(dtype, "fields", ())]
    if getattr(dtype, "inner", None) is not None:
        inner.append(dtype.inner)
    return str(dtype) == "Object" or any(map(_has_objects, inner))


def of_polars(data: Any) -> FrameSource | None:
    """Return the source of a DataFrame, a LazyFrame (which is collected), or a Series of polars."""
    if hasattr(data, "collect") and hasattr(data, "collect_schema"):
        data = data.collect()
    if hasattr(data, "height") and hasattr(data, "columns"):
        return _polars_source(data.columns, data)
    if hasattr(data, "to_frame"):
        return _polars_source(None, data.to_frame())
    return None


def _rows_of_datasets(
    dataset: Any, chosen: Rows, names: Sequence[str], media: Sequence[str]
) -> Sequence[Values]:
    table = dataset[chosen if isinstance(chosen, slice) else chosen.tolist()]
    columns: Sequence[Values] = _with_bytes(table, media).select(names).columns
    return columns


def of_datasets(data: Any) -> FrameSource | StreamSource | None:
    """Return the source of a Dataset or IterableDataset of HF datasets."""
    if hasattr(data, "keys"):
        raise UnsupportedDataError(
            f"a {type(data).__name__} is several datasets, {sorted(data)}: give one of them"
        )
    if hasattr(data, "format") and hasattr(data, "with_format") and hasattr(data, "__getitem__"):
        if data.format["type"] == "custom":
            return None  # a transform of the user, which runs only record by record
        names = list(data.format["columns"])
        arrow = data.with_format("arrow", columns=names)
        read = partial(_rows_of_datasets, names=names, media=_media(data.features, names))
        return FrameSource(names, arrow, read)
    if hasattr(data, "with_format") and hasattr(data, "iter"):
        arrow = data.with_format("arrow")
        tables = iter(arrow.iter(batch_size=1024))
        first = next((table for table in tables if table.num_rows), None)
        if first is None:
            raise UnsupportedDataError(NO_RECORDS)
        media = _media(data.features or {}, first.column_names)
        every = (_with_bytes(table, media) for table in chain([first], tables))
        first = next(every)
        batches = (batch for table in chain([first], every) for batch in table.to_batches())
        return StreamSource(pa.RecordBatchReader.from_batches(first.schema, batches))
    return None


def _media(features: Any, names: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that hold files, as bytes or a path: images, audio and other media."""
    types = {name: getattr(features.get(name), "pa_type", None) for name in names}
    structs = {name: kind for name, kind in types.items() if kind is not None and pa.types.is_struct(kind)}
    return tuple(name for name, kind in structs.items() if kind.get_field_index("bytes") >= 0)


def _with_bytes(table: Any, media: Sequence[str]) -> Any:
    """Replace each column of files by a column of the files' bytes, which stay encoded."""
    if not media:
        return table
    from datasets.table import embed_table_storage

    table = embed_table_storage(table)
    for name in media:
        number = table.schema.get_field_index(name)
        table = table.set_column(number, name, pc.struct_field(table.column(number), ["bytes"]))
    return table
