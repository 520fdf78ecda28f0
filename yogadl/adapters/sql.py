"""Read the result of a database query from a DB-API cursor, in chunks of rows."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from yogadl._core.columns import Columns, field_column, size_of
from yogadl._core.forms import PLAIN, Forms
from yogadl._core.infer import infer
from yogadl._core.spec import Spec, check_keys
from yogadl._sources.sources import NO_RECORDS, Source
from yogadl.errors import ConfigurationError, UnsupportedDataError

__all__ = ["rows", "source"]

_FIRST_RECORDS: Final = 64
_CHUNK_RECORDS: Final = 8 * 1024
_CHUNK_BYTES: Final = 8 * 2**20


def source(data: Any, forms: Forms = PLAIN) -> Source | None:  # a cursor of any database
    """Return the source in `data`, or ``None`` if it is no DB-API cursor.

    Args:
        data: A cursor that has executed a SELECT.
        forms: The caller's statements about the values of records.

    Raises:
        UnsupportedDataError: if there are no rows or a value can't be stored; names field and record.
    """
    if not hasattr(data, "description") or not hasattr(data, "fetchmany"):
        return None
    return RowsSource(data, None, forms)


def rows(cursor: Any, names: Sequence[str] | None = None) -> Source:  # a cursor of any database
    """Return a source of the remaining rows of a cursor: dicts whose keys are the names of the columns.

    A few thousand rows are fetched at a time. The rows keep the order of the query; without ORDER BY, the
    database decides the order.

    Args:
        cursor: A DB-API cursor that has executed a SELECT.
        names: The names of the columns, in order; if not given, the query's column names.

    Raises:
        UnsupportedDataError: if there are no rows or a value can't be stored; names field and record.
        ConfigurationError: if there are more or fewer names than columns.

    Example:
        >>> import sqlite3
        >>> from yogadl.adapters import sql
        >>> database = sqlite3.connect(":memory:")
        >>> cursor = database.execute("SELECT 1, 'one' UNION SELECT 2, 'two' ORDER BY 1")
        >>> sql.rows(cursor, ["number", "text"]).spec.keys()
        ['number', 'text']
        >>> database.close()
    """
    return RowsSource(cursor, names)


class RowsSource(Source):
    """The rows of a cursor, read once, in order; see `rows` and `source`."""

    def __init__(self, cursor: Any, names: Sequence[str] | None, forms: Forms = PLAIN) -> None:
        if cursor.description is None:
            raise UnsupportedDataError("the cursor has no result; let it execute a SELECT first")
        columns = [column[0] for column in cursor.description]
        self._names = columns if names is None else list(names)
        if len(self._names) != len(columns):
            raise ConfigurationError(
                f"there are {len(self._names)} names for {len(columns)} columns: {self._names} for {columns}"
            )
        check_keys(self._names, "", 0)
        repeated = [name for number, name in enumerate(self._names) if name in self._names[:number]]
        if repeated:
            raise UnsupportedDataError(
                f"two columns are called {repeated[0]!r}; rename one in the SELECT (AS), or pass names="
            )
        self._cursor = cursor
        self._first = self._fetch(_FIRST_RECORDS, 0)
        if not self._first:
            raise UnsupportedDataError(NO_RECORDS)
        sample = [dict(zip(self._names, _values(row), strict=True)) for row in self._first]
        forms = forms.for_sample(sample)
        self._missing = forms.missing
        self.spec: Spec = infer(list(map(forms.filled, sample)), forms)

    def chunks(self, start: int = 0) -> Iterator[Columns]:
        """Yield the rows from `start` on; the rows before `start` are fetched and dropped."""
        first, fetched, self._first = 0, self._first, []
        while fetched:
            columns = self._columns(fetched, first)
            if first + len(fetched) > start:
                yield [column[max(0, start - first) :] for column in columns]
            first += len(fetched)
            row_bytes = sum(map(size_of, columns)) // len(fetched)
            fetched = self._fetch(max(1, min(_CHUNK_RECORDS, _CHUNK_BYTES // max(1, row_bytes))), first)

    def _fetch(self, count: int, first: int) -> list[Any]:
        try:
            return list(self._cursor.fetchmany(count))
        except Exception as error:
            error.add_note(f"while fetching the rows from record {first} on")
            raise

    def _columns(self, fetched: Sequence[Any], first: int) -> Columns:
        split = zip(self.spec.fields, zip(*map(_values, fetched), strict=True), strict=True)
        return [field_column(field, self._filled(field.name, values), first) for field, values in split]

    def _filled(self, name: str, values: Sequence[Any]) -> Sequence[Any]:
        if name not in self._missing:
            return values
        return [self._missing[name] if value is None else value for value in values]


def _values(row: Any) -> Sequence[Any]:
    """Return the values of a row, in the query's order; some cursors return mappings in place of tuples."""
    return tuple(row.values()) if isinstance(row, Mapping) else row
