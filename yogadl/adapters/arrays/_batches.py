"""Read tables that come in batches, in order; a thread reads the next batch while one is stored."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, Final

import pyarrow as pa

from yogadl._core.columns import Columns
from yogadl._core.spec import Spec
from yogadl._sources.sources import NO_RECORDS
from yogadl.adapters.arrays._columns import stored_columns
from yogadl.adapters.arrays._types import spec_of
from yogadl.errors import UnsupportedDataError

# The size of one conversion: large enough that the work per chunk is small, and small enough for CPU caches.
_CHUNK_RECORDS: Final = 64 * 1024
_CHUNK_BYTES: Final = 8 * 2**20
# Smaller batches are joined: converting 1,000 records, a common size, takes as long as converting 8,000.
_LEAST_RECORDS: Final = 8 * 1024


def chunk_records(record_bytes: int) -> int:
    """Return the number of records of this size to convert at once."""
    return max(1, min(_CHUNK_RECORDS, _CHUNK_BYTES // max(1, record_bytes)))


class StreamSource:
    """Batches of Arrow, read once, in order."""

    can_start_anywhere = False
    length = None

    def __init__(self, reader: Any) -> None:  # a pa.RecordBatchReader
        self._names = reader.schema.names
        self.spec: Spec = spec_of(self._names, list(reader.schema))
        batches = iter(reader)
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            raise UnsupportedDataError(NO_RECORDS)
        self._batches = chain([first], batches)

    def chunks(self, start: int = 0) -> Iterator[Columns]:
        """Yield the records from `start` on; the records before `start` are read and dropped."""
        return _chunked(self._names, self._batches, start, start)


@dataclass(frozen=True)
class Piece:
    """A row group of a Parquet file, which can be read without the row groups before."""

    records: int
    batches: Callable[[], Iterable[Any]]


class PiecesSource:
    """Row groups of Parquet files of one schema, read one after the other."""

    can_start_anywhere = True
    has_final_spec = True

    def __init__(self, schema: Any, pieces: Sequence[Piece]) -> None:
        self._names = schema.names
        self._pieces = pieces
        self.spec: Spec = spec_of(self._names, list(schema))
        self.length = sum(piece.records for piece in pieces)
        if not self.length:
            raise UnsupportedDataError(NO_RECORDS)
        # A share that begins within a row group would read the whole row group.
        self.starts = list(accumulate((piece.records for piece in pieces[:-1]), initial=0))

    def chunks(self, start: int = 0) -> Iterator[Columns]:
        """Yield the records from `start` on; at most the beginning of one row group is read and dropped."""
        first = 0
        for number, piece in enumerate(self._pieces):
            if first + piece.records > start:
                rest = self._pieces[number:]
                batches = (batch for piece in rest for batch in piece.batches())
                yield from _chunked(self._names, batches, start, start - first)
                return
            first += piece.records


def _chunked(names: Sequence[str], batches: Iterable[Any], first: int, skipped: int) -> Iterator[Columns]:
    """Yield columns in chunks of `chunk_records`, reading ahead on another thread.

    Args:
        names: The columns' names.
        batches: The batches with the records.
        first: The number of the first record to yield.
        skipped: The number of records before it in `batches`.
    """
    for table in _read_ahead(_tables(_without(batches, skipped))):
        size = chunk_records(table.nbytes // table.num_rows)
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
    """Yield items, none of which is ``None``; a thread reads the next item while the caller uses one."""
    with ThreadPoolExecutor(1, thread_name_prefix="yogadl-read-ahead") as pool:
        ahead = pool.submit(next, items, None)
        while (item := ahead.result()) is not None:
            ahead = pool.submit(next, items, None)
            yield item
