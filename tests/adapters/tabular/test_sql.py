"""A DB-API cursor is read by rows, in chunks, with the query's names."""

import contextlib
import sqlite3
import subprocess
import sys

import numpy as np
import pages
import pytest
from inside import open_source
from sizes import around, arrangements, bounded, check_batch, constant, records_of, scaled

import yogadl
from yogadl.adapters import sql
from yogadl.errors import ConfigurationError, UnsupportedDataError

ROWS = 20_011


@pytest.fixture
def database():
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE t (id INTEGER, score REAL, name TEXT, data BLOB)")
        connection.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", rows(ROWS))
        yield connection


def rows(count):
    return [(i, i / 2, f"é{i}", bytes([i % 256]) * (i % 9)) for i in range(count)]


def cached(data, path, **options):
    storage = yogadl.open_storage(path)
    storage.submit(data, "rows", "1", **options)
    return storage.fetch("rows", "1")


def test_a_cursor_becomes_records_with_the_querys_names(database, tmp_path):
    ref = cached(database.execute("SELECT id, score AS points, name, data FROM t ORDER BY id"), tmp_path)
    assert ref.spec.keys() == ["id", "points", "name", "data"]
    assert [field.leaf.dtype for field in ref.spec.fields] == ["int64", "float64", "str", "bytes"]
    batch = ref.gather(range(ROWS))
    assert list(zip(*(list(column) for column in batch.values()), strict=True)) == rows(ROWS)


def test_names_may_be_given(database):
    source = sql.rows(database.execute("SELECT id, id FROM t"), ["a", "b"])
    assert source.spec.keys() == ["a", "b"]
    assert source.length is None
    assert not source.can_start_anywhere


@pytest.mark.parametrize("start", [0, 1, 63, 64, 65, 8255, 8256, 8257, ROWS - 1, ROWS])
def test_reading_may_begin_at_any_record(database, start):
    source = sql.rows(database.execute("SELECT id FROM t ORDER BY id"))
    assert [int(i) for columns in source.chunks(start) for i in columns[0]] == list(range(start, ROWS))


def test_rows_are_fetched_in_chunks_by_what_they_take(database):
    class Counts:
        def __init__(self, cursor):
            self.description, self._cursor, self.asked = cursor.description, cursor, []

        def fetchmany(self, size):
            self.asked.append(size)
            return self._cursor.fetchmany(size)

    small = Counts(database.execute("SELECT id FROM t"))
    list(open_source(small).chunks())
    assert small.asked == [64, 8192, 8192, 8192, 8192]
    large = Counts(database.execute("SELECT zeroblob(1000000) FROM t LIMIT 100"))
    list(open_source(large).chunks())
    assert large.asked == [64, 8, 8, 8, 8, 8, 8]


def as_dict(cursor, row):
    return dict(zip("ab", row, strict=True))


@pytest.mark.parametrize("factory", [None, sqlite3.Row, as_dict])
def test_rows_may_be_tuples_or_mappings(database, factory, tmp_path):
    database.row_factory = factory
    ref = cached(database.execute("SELECT id AS a, name AS b FROM t WHERE id < 3 ORDER BY id"), tmp_path)
    assert [(int(record["a"]), record["b"]) for record in ref] == [(0, "é0"), (1, "é1"), (2, "é2")]


def test_a_cursor_without_a_result_is_refused(database):
    with pytest.raises(UnsupportedDataError, match="execute a SELECT first"):
        open_source(database.cursor())


def test_a_query_without_rows_is_refused_like_every_empty_source(database):
    with pytest.raises(UnsupportedDataError, match="no records"):
        open_source(database.execute("SELECT * FROM t WHERE id < 0"))


def test_names_that_come_twice_are_refused(database):
    with pytest.raises(UnsupportedDataError, match=r"two columns are called 'id'; rename one.*\(AS\)"):
        open_source(database.execute("SELECT id, id FROM t"))


def test_the_wrong_number_of_names_is_refused(database):
    with pytest.raises(ConfigurationError, match="1 names for 2 columns"):
        sql.rows(database.execute("SELECT id, name FROM t"), ["id"])


@pytest.mark.parametrize("at", [0, 1, 63, 64, 9000])
def test_a_null_is_refused_with_its_field_and_record(database, at, tmp_path):
    cursor = database.execute("SELECT id, nullif(id, ?) AS x FROM t ORDER BY id", (at,))
    with pytest.raises(UnsupportedDataError, match=f"record {at}: field 'x' is None"):
        cached(cursor, tmp_path)


def test_a_column_of_several_types_is_refused_with_its_field_and_record(database, tmp_path):
    cursor = database.execute("SELECT iif(id < 100, id, name) AS x FROM t ORDER BY id")
    with pytest.raises(UnsupportedDataError, match="record 100: field 'x' has dtype str"):
        cached(cursor, tmp_path)


def test_objects_are_pickled_only_if_asked_for(tmp_path):
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.row_factory = lambda cursor, row: ({1, 2},)
        with pytest.raises(UnsupportedDataError, match=r"field 'x' is a builtins\.set"):
            cached(connection.execute("SELECT 1 AS x"), tmp_path)
        storage = yogadl.open_storage(tmp_path)
        storage.submit(
            connection.execute("SELECT 1 AS x"), "rows", "1", records=yogadl.RecordOptions(allow_pickle=True)
        )
        assert storage.fetch("rows", "1", allow_pickle=True)[0] == {"x": {1, 2}}


def test_an_error_of_the_database_keeps_its_type_and_says_where(database, tmp_path):
    def fails(number):
        if number == 10_000:
            raise ValueError
        return number

    database.create_function("fails", 1, fails)
    with pytest.raises(sqlite3.OperationalError) as caught:
        cached(database.execute("SELECT fails(id) FROM t"), tmp_path)
    assert caught.value.__notes__ == ["while fetching the rows from record 8256 on"]


def test_a_cursor_can_neither_be_shared_nor_read_at_random(database, tmp_path):
    with pytest.raises(ConfigurationError, match="can be read in pieces"):
        cached(database.execute("SELECT id FROM t"), tmp_path, workers=2)
    with pytest.raises(UnsupportedDataError, match=r"storage\.submit"):
        yogadl.from_source(database.execute("SELECT id FROM t"))


def test_numbers_are_arrays(database):
    columns = next(open_source(database.execute("SELECT id, score FROM t ORDER BY id")).chunks())
    assert [column.dtype for column in columns] == [np.int64, np.float64]


def test_no_other_adapter_is_loaded_for_it():
    code = (
        "import sqlite3, sys, yogadl._sources.sources as s\n"
        "s.open_source(sqlite3.connect(':memory:').execute('SELECT 1'))\n"
        "print([name for name in sys.modules if name.startswith(('yogadl.adapters.', 'pyarrow', 'pandas'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "['yogadl.adapters.sql']", done.stderr


def test_the_examples_of_the_docstrings_run():
    assert pages.run_docstrings(sql)


@pytest.mark.parametrize("way", arrangements([]))
def test_blobs_and_counts_of_rows_around_each_size_constant_come_back(tmp_path, way):
    smaller = {"adapters.sql._CHUNK_BYTES": 2**12, "adapters.sql._CHUNK_RECORDS": 90}
    with bounded(), scaled(smaller), contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE t (value BLOB, number INTEGER)")
        sizes = arrangements([*around(2**12), *around(2**12 // constant("adapters.sql._FIRST_RECORDS"))])[way]
        for count in (*around(constant("adapters.sql._FIRST_RECORDS")), *around(90)):
            records = records_of("bytes", (sizes * count)[:count])
            connection.execute("DELETE FROM t")
            connection.executemany("INSERT INTO t VALUES (:value, :number)", records)
            ref = cached(connection.execute("SELECT * FROM t ORDER BY number"), tmp_path)
            check_batch(ref.gather(range(count)), records)
