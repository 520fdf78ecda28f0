"""Read tables in memory, or mapped into it, at any rows: pyarrow, pandas, polars, HF datasets."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from yogadl._columns import Columns
from yogadl._sources import NO_RECORDS
from yogadl._spec import Spec
from yogadl.adapters.arrays._batches import StreamSource, chained, chunk_records
from yogadl.adapters.arrays._columns import bytes_of, stored_columns, value_lists
from yogadl.adapters.arrays._types import Values, spec_of
from yogadl.errors import UnsupportedDataError

_FIRST_RECORDS: Final = 64
_ARROW_ERRORS: Final = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError)


class Frame(Protocol):
    """A table that gives any of its rows at once; `names` is ``None`` if it is a single column."""

    @property
    def names(self) -> Sequence[Any] | None: ...

    def __len__(self) -> int: ...

    def rows(self, start: int, stop: int) -> Sequence[Values]: ...

    def take(self, indices: NDArray[np.int64]) -> Sequence[Values]: ...


class FrameSource:
    """A table in memory, or mapped into it. As picklable as the table is.

    Args:
        frame: The table.
    """

    can_start_anywhere = True
    has_final_spec = True

    def __init__(self, frame: Frame) -> None:
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
            stored = stored_columns(self._frame.names, self._frame.rows(start, stop), range(start, stop))
            yield stored
            record_bytes = bytes_of(stored) // (stop - start)
            start, count = stop, chunk_records(record_bytes)

    def columns(self, indices: NDArray[np.int64]) -> Columns:
        """Return any records, as `from_source` reads them."""
        stored = stored_columns(self._frame.names, self._frame.take(indices), indices.tolist())
        return value_lists(self.spec, stored)


@dataclass(frozen=True)
class _ArrowFrame:
    names: Sequence[Any] | None
    table: Any  # a pa.Table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def rows(self, start: int, stop: int) -> Sequence[Values]:
        return _columns(self.table.slice(start, stop - start))

    def take(self, indices: NDArray[np.int64]) -> Sequence[Values]:
        try:
            return _columns(self.table.take(pa.array(indices)))
        except pa.ArrowNotImplementedError:  # there is no take of views, say
            return _columns(pa.concat_tables([self.table.slice(index, 1) for index in indices.tolist()]))


def _columns(table: Any) -> Sequence[Values]:
    found: list[Values] = table.columns
    return found


def of_pyarrow(data: Any) -> FrameSource | None:
    """Return the source of a table, a batch or an array of pyarrow."""
    if isinstance(data, pa.Array | pa.ChunkedArray):
        return FrameSource(_ArrowFrame(None, pa.table({"": data})))
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    return FrameSource(_ArrowFrame(data.column_names, data)) if isinstance(data, pa.Table) else None


@dataclass(frozen=True)
class _PandasFrame:
    names: Sequence[Any] | None
    frame: Any  # a pd.DataFrame
    types: Sequence[Any]  # what all values of each column have in common, if they are Python objects

    def __len__(self) -> int:
        return len(self.frame)

    def rows(self, start: int, stop: int) -> Sequence[Values]:
        return self._columns(self.frame.iloc[start:stop])

    def take(self, indices: NDArray[np.int64]) -> Sequence[Values]:
        return self._columns(self.frame.iloc[indices])

    def _columns(self, frame: Any) -> list[Values]:
        return [
            _of_series(name, frame.iloc[:, number], data_type)
            for number, (name, data_type) in enumerate(zip(_named(self.names), self.types, strict=True))
        ]


def _named(names: Sequence[Any] | None) -> Sequence[Any]:
    return [""] if names is None else names


def _of_series(name: Any, series: Any, data_type: Any) -> Values:
    if isinstance(series.dtype, np.dtype) and series.dtype.kind in "biufc":
        return series.to_numpy()  # not through Arrow, for which NaN would be a null
    try:
        return pa.array(series, type=data_type, from_pandas=True)
    except _ARROW_ERRORS as error:
        raise _untyped(name, series.dtype, error) from error


def _type_of(name: Any, series: Any) -> Any:
    if series.dtype != object:
        return None
    values = series.to_numpy()
    try:
        found = pa.infer_type(values, from_pandas=True)
    except _ARROW_ERRORS as error:
        raise _untyped(name, series.dtype, error) from error
    # Arrow would make one of both.
    if (pa.types.is_binary(found) or pa.types.is_string(found)) and {bytes, str} <= set(map(type, values)):
        raise _untyped(name, series.dtype, "bytes and str are mixed")
    return found


def _untyped(name: Any, dtype: Any, error: object) -> UnsupportedDataError:
    return UnsupportedDataError(
        f"field {str(name)!r} is a column of {dtype} that Arrow can't take ({error}); make all its values of "
        "one type, or cast it (astype)"
    )


def _pandas_source(names: Sequence[Any] | None, frame: Any) -> FrameSource:
    series = [frame.iloc[:, number] for number in range(len(frame.columns))]
    types = [_type_of(name, one) for name, one in zip(_named(names), series, strict=True)]
    return FrameSource(_PandasFrame(names, frame, types))


def of_pandas(data: Any) -> FrameSource | None:
    """Return the source of a DataFrame or a Series of pandas; its index is left out."""
    if hasattr(data, "columns") and hasattr(data, "iloc"):
        return _pandas_source(list(data.columns), data)
    if hasattr(data, "to_frame") and hasattr(data, "iloc"):
        return _pandas_source(None, data.to_frame(""))
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
    return FrameSource(_PolarsFrame(names, frame))


def _has_objects(dtype: Any) -> bool:
    inner = [field.dtype for field in getattr(dtype, "fields", ())]
    if getattr(dtype, "inner", None) is not None:
        inner.append(dtype.inner)
    return str(dtype) == "Object" or any(map(_has_objects, inner))


def of_polars(data: Any) -> FrameSource | None:
    """Return the source of a DataFrame, a LazyFrame, which is collected, or a Series of polars."""
    if hasattr(data, "collect") and hasattr(data, "collect_schema"):
        data = data.collect()
    if hasattr(data, "height") and hasattr(data, "columns"):
        return _polars_source(data.columns, data)
    if hasattr(data, "to_frame"):
        return _polars_source(None, data.to_frame())
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


def of_datasets(data: Any) -> FrameSource | StreamSource | None:
    """Return the source of a Dataset or IterableDataset of HF datasets."""
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
        every = (_with_bytes(table, media) for table in chained(first, tables))
        first = next(every)
        batches = (batch for table in chained(first, every) for batch in table.to_batches())
        return StreamSource(pa.RecordBatchReader.from_batches(first.schema, batches))
    return None


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
        table = table.set_column(number, name, pc.struct_field(table.column(number), ["bytes"]))
    return table
