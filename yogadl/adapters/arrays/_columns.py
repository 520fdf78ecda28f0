"""Read tables that come in batches, in order; a thread reads the next batch while the last one is stored."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa

from yogadl._core.columns import Columns
from yogadl._core.forms import Forms
from yogadl._core.infer import SAMPLED_RECORDS
from yogadl._core.spec import JSON, Spec
from yogadl._foreign.arrow_columns import TableForm, is_nested, spec_of
from yogadl._sources.sources import NO_RECORDS, Source, refuse_spec
from yogadl.errors import UnsupportedDataError

# The limits of one conversion: large enough that the work per chunk is small, and small enough for CPU
# caches.
_CHUNK_RECORDS: Final = 64 * 1024
_CHUNK_BYTES: Final = 8 * 2**20
# Smaller batches are joined: converting 1,000 records, a common size, takes as long as converting 8,000.
_LEAST_RECORDS: Final = 8 * 1024


def chunk_records(record_bytes: int) -> int:
    """Return the number of records of this size to convert at once."""
    return max(1, min(_CHUNK_RECORDS, _CHUNK_BYTES // max(1, record_bytes)))


class StreamSource(Source):
    """Batches of Arrow, read once, in order."""

    def __init__(self, reader: Any, forms: Forms) -> None:  # a pa.RecordBatchReader
        batches = iter(reader)
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            raise UnsupportedDataError(NO_RECORDS)
        names = reader.schema.names
        self.spec: Spec = spec_of(names, first.slice(0, SAMPLED_RECORDS).columns, forms)
        self._table = TableForm(names, self.spec, forms.missing)
        self._batches = chain([first], batches)

    def chunks(self, start: int = 0) -> Iterator[Columns]:
        """Yield the records from `start` on; the records before `start` are read and dropped."""
        return _chunked(self._table, self._batches, start, start)


@dataclass(frozen=True)
class RowGroup:
    """A row group of a Parquet file, which can be read without the row groups before."""

    records: int
    batches: Callable[[], Iterable[Any]]


class PiecesSource(Source):
    """Row groups of Parquet files of one schema, read one after the other."""

    can_start_anywhere = True
    has_final_spec = True
    _missing: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, schema: Any, pieces: Sequence[RowGroup], forms: Forms) -> None:
        self._pieces = pieces
        self.length: int = sum(piece.records for piece in pieces)
        if not self.length:
            raise UnsupportedDataError(NO_RECORDS)
        # Whether lists and structs have nulls, only the records show.
        first = schema.empty_table()
        if any(map(is_nested, schema.types)):
            first = _first_batch(pieces).slice(0, SAMPLED_RECORDS)
        self._names = schema.names
        self.spec: Spec = spec_of(self._names, first.columns, forms)
        if forms.missing:  # else the source has the attributes, and so the hash, that it always had
            self._missing = forms.missing
        # Where the source is divided among workers: reading from within a row group would decode all of it.
        self.starts = list(accumulate((piece.records for piece in pieces[:-1]), initial=0))

    def as_source(self, forms: Forms) -> "PiecesSource":
        """Return the source with what a build says of its records, beside what was said before."""
        refuse_spec(self, forms)
        if not forms.says:
            return self
        said = replace(forms, json=(*self._json, *forms.json), missing={**self._missing, **forms.missing})
        return PiecesSource(_first_batch(self._pieces).schema, self._pieces, said)

    def said(self, origin: str) -> str:
        """Return a hash of all that decides the records, given that of the files; see `Forms.decide`."""
        return Forms(self._json, self._missing).decide(origin)

    @property
    def _json(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.spec.fields if field.leaf.dtype == JSON)

    @property
    def pieces(self) -> Sequence[RowGroup]:
        """The row groups."""
        return self._pieces

    def chunks(self, start: int = 0) -> Iterator[Columns]:
        """Yield the records from `start` on; at most the beginning of one row group is read and dropped."""
        first = 0
        for number, piece in enumerate(self._pieces):
            if first + piece.records > start:
                rest = self._pieces[number:]
                batches = (batch for piece in rest for batch in piece.batches())
                table = TableForm(self._names, self.spec, self._missing)
                yield from _chunked(table, batches, start, start - first)
                return
            first += piece.records


def _first_batch(pieces: Sequence[RowGroup]) -> Any:
    """Return the first batch that has records."""
    return next(batch for piece in pieces if piece.records for batch in piece.batches() if batch.num_rows)


def _chunked(form: TableForm, batches: Iterable[Any], first: int, skipped: int) -> Iterator[Columns]:
    """Yield columns in chunks of `chunk_records`, reading ahead on another thread.

    Args:
        form: The form of the records.
        batches: The batches with the records.
        first: The number of the first record to yield.
        skipped: The number of records before it in `batches`.
    """
    for table in _read_ahead(_joined_batches(_without_first(batches, skipped))):
        size = chunk_records(table.nbytes // table.num_rows)
        for start in range(0, table.num_rows, size):
            piece = table.slice(start, size)
            yield form.stored(piece.columns, range(first, first + len(piece)))
            first += len(piece)


def _without_first(batches: Iterable[Any], skipped: int) -> Iterator[Any]:
    """Yield the batches without the first `skipped` records."""
    for batch in batches:
        if batch.num_rows > skipped:
            yield batch.slice(skipped)
        skipped = max(0, skipped - batch.num_rows)


def _joined_batches(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield tables of one or more batches, of at least `_LEAST_RECORDS` records or `_CHUNK_BYTES` bytes."""
    waiting: list[Any] = []
    for batch in batches:
        waiting.append(batch)
        records = sum(batch.num_rows for batch in waiting)
        if records >= _LEAST_RECORDS or sum(batch.nbytes for batch in waiting) >= _CHUNK_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting)


def _read_ahead(items: Iterator[Any]) -> Iterator[Any]:
    """Yield items, none of which is ``None``; a thread reads the next item while the caller uses one."""
    with ThreadPoolExecutor(1, thread_name_prefix="yogadl-read-ahead") as pool:
        ahead = pool.submit(next, items, None)
        while (item := ahead.result()) is not None:
            ahead = pool.submit(next, items, None)
            yield item
