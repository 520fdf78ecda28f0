"""Read Parquet files, and Arrow's datasets of them, row group by row group."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from yogadl.adapters.arrays._batches import Piece, PiecesSource, StreamSource, chunk_records
from yogadl.errors import ConfigurationError, UnsupportedDataError


def of_files(files: Sequence[Any], columns: Sequence[str] | None) -> PiecesSource:
    """Return the source of Parquet files, each given as a path or as a pq.ParquetFile."""
    pieces: list[Piece] = []
    expected = None
    for file in files:
        opened = _opened(file)
        schema = _chosen(opened.schema_arrow.remove_metadata(), columns, file)
        if expected is None:
            expected = schema
        if [(field.name, field.type) for field in schema] != [(field.name, field.type) for field in expected]:
            raise UnsupportedDataError(f"{file} has the columns {_listed(schema)}, not {_listed(expected)}")
        for number in range(opened.metadata.num_row_groups):
            group = opened.metadata.row_group(number)
            if group.num_rows:
                size = chunk_records(group.total_byte_size // group.num_rows)
                pieces.append(Piece(group.num_rows, _Group(file, number, columns, 2 * size)))
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
        opened = _opened(self.file)
        try:
            columns = None if self.columns is None else list(self.columns)
            for batch in opened.iter_batches(self.batch_records, row_groups=[self.number], columns=columns):
                yield batch if columns is None else batch.select(columns)
        finally:
            if opened is not self.file:
                opened.close()


def of_dataset(dataset: Any) -> PiecesSource | StreamSource:
    """Return the source of a pa.dataset.Dataset; by row groups if its files are Parquet."""
    try:
        fragments = list(dataset.get_fragments())
        groups = [group for fragment in fragments for group in fragment.split_by_row_group()]
    except (ValueError, AttributeError):  # filtered, projected, or of files without row groups
        return StreamSource(dataset.scanner().to_reader())
    # `count_rows` counts the whole file, so it is not used.
    counts = [sum(part.num_rows for part in group.row_groups) for group in groups]
    found = [
        Piece(count, partial(_of_fragment, group, dataset.schema))
        for count, group in zip(counts, groups, strict=True)
        if count
    ]
    return PiecesSource(dataset.schema, found)


def _of_fragment(fragment: Any, schema: Any) -> Iterator[Any]:
    """Read the batches of one row group of a pa.dataset.Dataset, with the columns of its folder's name."""
    from pyarrow.dataset import Scanner

    yield from Scanner.from_fragment(fragment, schema=schema).to_batches()
