"""Tables of pyarrow, pandas, polars and HF datasets, and Parquet files, become caches by column."""

import datetime
import decimal
import itertools
import logging
import pickle
import subprocess
import sys

import datasets
import hypothesis.strategies as st
import numpy as np
import pages
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from inside import HeapValues, open_source, sha256_of_data, stored_column
from inside import arrays_source as _source
from trees import same_json

import yogadl
from yogadl.adapters import arrays
from yogadl.errors import ConfigurationError, UnsupportedDataError

ROWS = 1009


def cached(data, path, **options):
    storage = yogadl.open_storage(path)
    storage.submit(data, "table", "1", **options)
    return storage.fetch("table", "1")


def plain(value):
    """Return what Python has for a value of a record."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def rows_of(ref):
    return plain_rows(ref[i] for i in range(len(ref)))


def plain_rows(records):
    return [plain(record) for record in records]


def numbers(rows=ROWS):
    random = np.random.default_rng(7)
    return pa.table(
        {
            "i64": np.arange(rows),
            "u8": random.integers(0, 256, rows).astype(np.uint8),
            "f16": random.random(rows).astype(np.float16),
            "f32": random.random(rows, np.float32),
            "f64": random.random(rows),
            "yes": random.random(rows) < 0.5,
        }
    )


def everything(rows=ROWS):
    """Return a table with a column of every kind that all libraries here have."""
    table = numbers(rows)
    texts = [f"é{i}" * (i % 5) for i in range(rows)]
    columns = {
        "text": texts,
        "bytes": [text.encode() for text in texts],
        "list": pa.array([list(range(i % 4)) for i in range(rows)], pa.list_(pa.int32())),
        "texts": pa.array([texts[i : i + i % 3] for i in range(rows)], pa.list_(pa.string())),
        "point": pa.array([[i, -i] for i in range(rows)], pa.list_(pa.int16(), 2)),
        "struct": [{"a": i, "b": {"c": str(i)}} for i in range(rows)],
        "kind": pa.array([("cat", "dog", "eel")[i % 3] for i in range(rows)]).dictionary_encode(),
    }
    for name, column in columns.items():
        table = table.append_column(name, column if isinstance(column, pa.Array) else pa.array(column))
    return table


# Every library.


def hugging_face(table):
    return datasets.Dataset(table)


class Speaks:
    """Whatever speaks Arrow is read as a stream."""

    def __init__(self, table):
        self.__arrow_c_stream__ = table.__arrow_c_stream__


SOURCES = {
    "Table": lambda table: table,
    "RecordBatch": lambda table: table.combine_chunks().to_batches()[0],
    "RecordBatchReader": lambda table: table.to_reader(max_chunksize=100),
    "pyarrow Dataset": pyarrow.dataset.dataset,
    "Scanner": lambda table: pyarrow.dataset.dataset(table).scanner(),
    "polars": pl.from_arrow,
    "polars lazy": lambda table: pl.from_arrow(table).lazy(),
    "HF": hugging_face,
    "HF iterable": lambda table: hugging_face(table).to_iterable_dataset(),
    "a generator function of it": lambda table: lambda: table,
    "what speaks Arrow": Speaks,
}


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_every_kind_of_table_gives_the_records_that_it_has(make, tmp_path):
    table = everything()
    ref, of_table = cached(make(table), tmp_path), cached(table, tmp_path / "table")
    assert rows_of(ref) == table.to_pylist()
    assert (ref.spec, ref.fingerprint) == (of_table.spec, of_table.fingerprint)


def test_numbers_are_those_of_arrays_down_to_the_fingerprint(tmp_path):
    table = numbers()
    columns = {name: table[name].to_numpy() for name in table.column_names}
    assert cached(table, tmp_path / "a").fingerprint == cached(columns, tmp_path / "b").fingerprint


def test_numbers_are_not_copied():
    table = numbers(1000)
    column = table["f64"].chunk(0).to_numpy()
    (chunk, *_) = open_source(table).chunks()
    assert np.shares_memory(chunk[4], column)


def test_text_stays_in_arrows_buffers():
    table = pa.table({"text": ["some", "text"] * 30})
    data = np.frombuffer(table["text"].chunk(0).buffers()[2], np.uint8)
    (column,) = next(open_source(table).chunks())
    assert isinstance(column, HeapValues)
    assert np.shares_memory(column.data, data)


# Types.

EPOCH = np.datetime64("1970-01-01T00:00:00", "s")

TYPES = {
    **{
        str(kind): (pa.array([1, 0, 3], kind), np.array([1, 0, 3], kind.to_pandas_dtype()))
        for kind in (
            pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
            pa.float32(), pa.float64(),
        )
    },
    "float16": (pa.array(np.array([1, 2, 3], np.float16)), np.array([1, 2, 3], np.float16)),
    "bool": (pa.array([True, False, True]), np.array([True, False, True])),
    "date32": (pa.array([0, 1, 2], pa.date32()), np.array([0, 1, 2], "M8[D]")),
    "date64": (
        pa.array([0, 86_400_000, 172_800_000], pa.date64()),
        np.array([0, 1, 2], "M8[D]").astype("M8[ms]"),
    ),
    **{
        f"timestamp {unit}": (pa.array([-1, 0, 2], pa.timestamp(unit)), np.array([-1, 0, 2], f"M8[{unit}]"))
        for unit in ("s", "ms", "us", "ns")
    },
    **{
        f"duration {unit}": (pa.array([-1, 0, 2], pa.duration(unit)), np.array([-1, 0, 2], f"m8[{unit}]"))
        for unit in ("s", "ms", "us", "ns")
    },
    "a time zone is dropped": (
        pa.array([0, 1, 2], pa.timestamp("us", "Asia/Tokyo")),
        np.array([0, 1, 2], "M8[us]"),
    ),
    "dictionary of numbers": (pa.array([1.5, 2.5, 1.5]).dictionary_encode(), np.array([1.5, 2.5, 1.5])),
    "run-end encoded": (pa.RunEndEncodedArray.from_arrays([2, 3], [7, 8]), np.array([7, 7, 8])),
    "fixed-size list": (pa.array([[1, 2]] * 3, pa.list_(pa.int8(), 2)), np.array([[1, 2]] * 3, np.int8)),
    "fixed-size list of those": (
        pa.array([[[1, 2], [3, 4], [5, 6]]] * 3, pa.list_(pa.list_(pa.int8(), 2), 3)),
        np.array([[[1, 2], [3, 4], [5, 6]]] * 3, np.int8),
    ),
    "fixed-size list of none": (pa.array([[]] * 3, pa.list_(pa.int8(), 0)), np.zeros((3, 0), np.int8)),
    "fixed-size list of bool": (
        pa.array([[True, False]] * 3, pa.list_(pa.bool_(), 2)),
        np.array([[True, False]] * 3),
    ),
    "tensor": (
        pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(18).reshape(3, 3, 2)),
        np.arange(18).reshape(3, 3, 2),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("array", "expected"), TYPES.values(), ids=TYPES)
def test_what_takes_the_same_bytes_in_every_record_becomes_an_array(array, expected, tmp_path):
    for number, table in enumerate(
        [pa.table({"x": array}), pa.table({"x": pa.concat_arrays([array, array])[2:5]})]
    ):
        want = expected if number == 0 else expected[[2, 0, 1]]
        found = cached(table, tmp_path / str(number)).gather([0, 1, 2])["x"]
        assert found.dtype == want.dtype
        assert found.shape == want.shape
        assert np.array_equal(found, want)


VARYING = {
    "string": pa.array(["a", "", "ü" * 300], pa.string()),
    "large_string": pa.array(["a", "", "ü" * 300], pa.large_string()),
    "string_view": pa.array(["a", "", "ü" * 300], pa.string_view()),
    "binary": pa.array([b"a", b"", b"\xff" * 300], pa.binary()),
    "large_binary": pa.array([b"a", b"", b"\xff" * 300], pa.large_binary()),
    "binary_view": pa.array([b"a", b"", b"\xff" * 300], pa.binary_view()),
    "fixed-size binary": pa.array([b"abc", b"\0\0\0", b"def"], pa.binary(3)),
    "dictionary of strings": pa.array(["a", "b", "a"]).dictionary_encode(),
    "only empty strings": pa.array(["", "", ""]),
    "list": pa.array([[1, 2], [], [3]], pa.list_(pa.int32())),
    "large list": pa.array([[1.5, 2], [], [3]], pa.large_list(pa.float32())),
    "list view": pa.array([[1, 2], [], [3]], pa.list_view(pa.int64())),
    "large list view": pa.array([[1, 2], [], [3]], pa.large_list_view(pa.int64())),
    "only empty lists": pa.array([[], [], []], pa.list_(pa.int64())),
    "list of bool": pa.array([[True, False], [], [True]]),
    "list of fixed-size lists": pa.array([[[1, 2]], [], [[3, 4], [5, 6]]], pa.list_(pa.list_(pa.int64(), 2))),
    "list of strings": pa.array([["a", "bé"], [], ["", "c"]]),
    "list of binary": pa.array([[b"a", b"bc"], [], [b""]]),
    "list of a dictionary": pa.array(
        [["a", "b"], [], ["a"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))
    ),
    "fixed-size list of strings": pa.array([["a", "bé"], ["", ""], ["", "c"]], pa.list_(pa.string(), 2)),
    "list of fixed-size lists of strings": pa.array(
        [[["a", "bé"]], [], [["", "c"]]], pa.list_(pa.list_(pa.string(), 2))
    ),
}


@pytest.mark.parametrize("array", VARYING.values(), ids=VARYING)
def test_what_varies_in_length_keeps_its_values(array, tmp_path):
    doubled = pa.concat_arrays([array, array])
    for number, piece in enumerate([array, array[1:], array[2:], doubled[2:5]]):
        ref = cached(pa.table({"x": piece}), tmp_path / str(number))
        assert [row["x"] for row in rows_of(ref)] == piece.to_pylist()


@pytest.mark.parametrize("array", VARYING.values(), ids=VARYING)
def test_what_varies_in_length_is_hashed_and_stored_as_if_read_record_by_record(array):
    source = open_source(pa.table({"x": array}))
    (column,) = next(source.chunks())
    leaf = source.spec.fields[0].leaf
    expected = stored_column(leaf, source.columns(np.arange(len(array)))[0])
    assert column.data.tobytes() == expected.data.tobytes()
    assert column.lengths.tolist() == expected.lengths.tolist()
    assert column.shapes.tolist() == expected.shapes.tolist()
    assert column.is_text == expected.is_text


def test_a_list_says_that_its_length_varies_even_if_it_does_not(tmp_path):
    ref = cached(pa.table({"x": [[1, 2], [3, 4]]}), tmp_path)
    assert ref.spec.fields[0].leaf.shape == (None,)
    assert isinstance(ref.gather([0, 1])["x"], list)


ALONE = {
    **{
        f"numbers of {type(column).__module__}.{type(column).__name__}": (column, [5, 6])
        for column in (pa.array([5, 6]), pa.chunked_array([[5], [6]]), pl.Series([5, 6]), pd.Series([5, 6]))
    },
    **{
        f"NaN of {make.__module__}": (make({"x": [np.nan, 1.0]}), [{"x": np.nan}, {"x": 1.0}])
        for make in (pa.table, pl.DataFrame, pd.DataFrame)
    },
    "keys of dicts": (
        pd.DataFrame({"x": pd.Series([{"a": 1}] * 100 + [{"a": 1, "b": 2}])}),
        [{"x": {"a": 1}}] * 100 + [{"x": {"a": 1, "b": 2}}],
    ),
}


@pytest.mark.parametrize(("data", "records"), ALONE.values(), ids=ALONE)
def test_what_is_no_table_of_plain_columns_gives_its_records(data, records, tmp_path):
    """A column alone is the record, NaN is a number, and no key of a dict in a data frame is lost."""
    assert repr(rows_of(cached(data, tmp_path))) == repr(plain_rows(records))


def test_structs_are_dicts_in_order(tmp_path):
    ref = cached(pa.table({"s": [{"b": 1, "a": {"z": "x", "y": [1.5]}}] * 2}), tmp_path)
    assert [field.name for field in ref.spec.fields] == ["s/b", "s/a/z", "s/a/y"]
    assert list(ref[0]["s"]) == ["b", "a"]


UNION = pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])
REFUSED = {
    "decimal": (pa.array([decimal.Decimal("1.5")]), "decimal128.*cast it to float64, or to string"),
    "time32": (pa.array([1], pa.time32("s")), "time32.*cast it to an integer"),
    "time64": (pa.array([1], pa.time64("us")), "time64.*cast it to an integer"),
    "interval": (pa.array([pa.MonthDayNano([1, 2, 3])]), "interval.*cast it to a duration"),
    "union": (UNION, "union.*a column of each kind"),
    "null": (pa.nulls(1), "record 0: field 'x' is None"),
    "list of decimals": (pa.array([[decimal.Decimal("1.5")]]), "list<.*cast it to float64"),
    "extension": (pa.array([b"0" * 16], pa.uuid()), "uuid.*cast it to the type that it is kept as"),
    "in a struct": (pa.array([{"t": datetime.time(1)}]), "field 'x/t' is time64"),
}


@pytest.mark.parametrize(("array", "says"), REFUSED.values(), ids=REFUSED)
def test_types_without_a_stored_form_are_refused_by_name(array, says):
    table = pa.table({"fine": [1], "x": array})
    with pytest.raises(UnsupportedDataError, match=says) as caught:
        open_source(table)
    assert "'x" in str(caught.value)


def twice(*columns):
    return pa.table(list(columns), names=["x"] * len(columns))


def pandas_column(values, **options):
    return pd.DataFrame({"x": pd.Series(values, **options)})


DAYS = ["2020-01-01", "2020-01-01", None]
# Also where a library has what Arrow has not, or does not tell what is missing.
REFUSED_OF_LIBRARIES = {
    **{
        f"pandas misses {number}": (data, r"record 2: field 'x' is None.*missing=")
        for number, data in enumerate([
            pandas_column([1, 2, None], dtype="Int64"), pandas_column(["a", "b", None], dtype=object),
            pandas_column(["a", "b", np.nan], dtype=object), pandas_column(["a", "b", None], dtype="str"),
            pandas_column(["a", "b", None], dtype="category"), pandas_column(pd.to_datetime(DAYS)),
            pandas_column(pd.to_datetime(DAYS, utc=True)),
        ])
    },
    **{
        f"pandas object {number}": (pandas_column(values, dtype=object), "field 'x' is a column of object")
        for number, values in enumerate([[1, "a"], [object(), 1], ["a", b"a"], [np.zeros((2, 2))] * 2])
    },
    **{
        f"polars {series.dtype} {number}": (series.to_frame(), says)
        for number, (series, says) in enumerate([
            (pl.Series("x", [object()], dtype=pl.Object), "field 'x' is a column of polars' Object"),
            (pl.Series("x", [1], dtype=pl.Int128), "field 'x' is a column of polars' Int128"),
            (pl.Series("x", [decimal.Decimal("1.5")]), "decimal128"),
            (pl.Series("x", [datetime.time(1)]), "time64"),
            (pl.Series("x", [None]), "record 0: field 'x' is None"),
            (pl.Series("x", [1, None]), "record 1: field 'x' is None"),
        ])
    },
    "no columns": (pa.table({"x": [1]}).select([]), "no columns"),
    "no columns of pandas": (pd.DataFrame(index=range(3)), "no columns"),
    "keys of pandas": (pd.DataFrame({("a", 1): [1]}), "keys are str or int"),
    "twice": (twice([1], [2]), "two columns are called 'x'"),
    "twice in pandas": (pd.DataFrame([[1, 2]], columns=["x", "x"]), "two columns are called 'x'"),
    "twice in a reader": (twice([1], [2]).to_reader(), "two columns are called 'x'"),
    "twice in a struct": (
        pa.table({"s": pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["x", "x"])}),
        "struct 's' has two fields of one name",
    ),
    "splits": (
        datasets.DatasetDict(test=datasets.Dataset.from_dict({"x": [1]})),
        r"several datasets, \['test'\]: pass one",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("data", "says"), REFUSED_OF_LIBRARIES.values(), ids=REFUSED_OF_LIBRARIES)
def test_what_a_library_has_and_a_cache_has_not_is_refused(data, says, storage):
    with pytest.raises(UnsupportedDataError, match=says):
        storage.submit(data, "d", "1")


# Nulls.

NULLS = {
    "number": (pa.array([*range(1100), None, None]), "field 'x' is None"),
    "bool": (pa.array([True] * 1100 + [None]), "field 'x' is None"),
    "text": (pa.array(["a"] * 1100 + [None]), "field 'x' is None"),
    "list": (pa.array([[1]] * 1100 + [None]), "field 'x' is None"),
    "fixed-size list": (pa.array([[1]] * 1100 + [None], pa.list_(pa.int8(), 1)), "field 'x' is None"),
    "struct": (pa.array([{"a": 1}] * 1100 + [None]), "field 'x' is None"),
    "in a struct": (pa.array([{"a": 1}] * 1100 + [{"a": None}]), "field 'x/a' is None"),
    "in a list": (pa.array([[1, 2], []] * 550 + [[3, 4, None]]), "field 'x' has an item that is None"),
    "in a list of text": (pa.array([["a"], []] * 550 + [["a", None]]), "field 'x' has an item that is None"),
    "in a fixed-size list": (
        pa.array([[1, 2]] * 1100 + [[3, None]], pa.list_(pa.int8(), 2)),
        "field 'x' has an item that is None",
    ),
    "a fixed-size list in a list": (
        pa.array([[[1, 2]], []] * 550 + [[[1, 2], None]], pa.list_(pa.list_(pa.int8(), 2))),
        "field 'x' has an item that is None",
    ),
    "index of a dictionary": (pa.array(["a"] * 1100 + [None]).dictionary_encode(), "field 'x' is None"),
    "value of a dictionary": (
        pa.DictionaryArray.from_arrays([0] * 1100 + [1], pa.array(["a", None])),
        "field 'x' is None",
    ),
}


@pytest.mark.parametrize(("array", "says"), NULLS.values(), ids=NULLS)
def test_a_null_is_refused_with_its_field_record_and_mend(array, says, tmp_path):
    table = pa.table({"id": np.arange(len(array)), "x": array})
    batches = pa.RecordBatchReader.from_batches(table.schema, itertools.chain(
        *(piece.to_batches() for piece in (table[:3], table[3:3], table[3:1099], table[1099:]))
    ))  # fmt: skip
    for source in (table, batches):
        with pytest.raises(UnsupportedDataError, match=f"^record 1100: {says}.*(missing|json)="):
            cached(source, tmp_path)


def test_nulls_outside_a_slice_do_not_matter(tmp_path):
    table = pa.table(
        {"x": [None, 1, 2, None], "l": [None, [1], [2], [None]], "s": [None, {"a": 1}, {"a": 2}, None]}
    )
    assert rows_of(cached(table[1:3], tmp_path)) == table[1:3].to_pylist()


# Chunks, offsets and empty tables.

VALUES = {
    pa.int16(): st.integers(-9, 9),
    pa.float64(): st.floats(allow_nan=False),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(st.characters(codec="utf-8"), max_size=5),
    pa.large_binary(): st.binary(max_size=5),
    pa.string_view(): st.text(st.characters(codec="utf-8"), max_size=20),
    pa.dictionary(pa.int8(), pa.string()): st.sampled_from(["a", "bé", ""]),
}
SCALARS = st.sampled_from(list(VALUES)).map(lambda kind: (kind, VALUES[kind]))


def lists_of(inner):
    kind, values = inner
    return st.sampled_from([
        (pa.list_(kind), st.lists(values, max_size=4)),
        (pa.large_list(kind), st.lists(values, max_size=4)),
        (pa.list_(kind, 3), st.lists(values, min_size=3, max_size=3)),
    ])  # fmt: skip


def structs_of(inner):
    return st.lists(inner, min_size=1, max_size=3).map(
        lambda fields: (
            pa.struct([(f"f{i}", kind) for i, (kind, _) in enumerate(fields)]),
            st.fixed_dictionaries({f"f{i}": values for i, (_, values) in enumerate(fields)}),
        )
    )


LEAVES = SCALARS | SCALARS.flatmap(lists_of)
COLUMNS = LEAVES | structs_of(LEAVES | structs_of(LEAVES))


@st.composite
def tables(draw):
    kinds = draw(st.lists(COLUMNS, min_size=1, max_size=3))
    chunks = []
    for rows in draw(st.lists(st.integers(0, 7), min_size=1, max_size=4)):
        columns = [
            pa.array(draw(st.lists(values, min_size=rows, max_size=rows)), kind) for kind, values in kinds
        ]
        start, stop = sorted(draw(st.tuples(st.integers(0, rows), st.integers(0, rows))))
        chunk = pa.table(columns, names=[f"c{i}" for i in range(len(kinds))])
        chunks.append(chunk.slice(start, stop - start))
    return pa.concat_tables(chunks)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(table=tables())
def test_chunks_slices_and_offsets_of_any_type(table, tmp_path):
    if not len(table):
        with pytest.raises(UnsupportedDataError, match="no records"):
            open_source(table)
        return
    rows = table.to_pylist()
    assert rows_of(yogadl.from_source(table)) == rows
    storage = yogadl.open_storage(tmp_path)
    for source in (table, table.to_reader(max_chunksize=2)):
        storage.submit(source, "any", "1")
        assert rows_of(storage.fetch("any", "1")) == rows


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_an_empty_table_is_refused_like_every_empty_source(make):
    table = pa.table({"x": pa.array([], pa.int64())})
    if make is SOURCES["RecordBatch"]:
        data = pa.record_batch({"x": table["x"].combine_chunks()})
    elif make is SOURCES["HF iterable"]:
        data = datasets.IterableDataset.from_generator(lambda: iter(()))
    else:
        data = make(table)
    with pytest.raises(UnsupportedDataError, match="no records"):
        open_source(data)


@pytest.mark.parametrize("start", [0, 1, 63, 64, 65, 500, ROWS - 1, ROWS])
def test_reading_may_begin_at_any_record(start, tmp_path):
    table = everything()
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=64)
    sources = [table, pl.from_arrow(table), hugging_face(table), arrays.parquet(tmp_path / "a.parquet")]
    for source in map(open_source, sources):
        assert source.can_start_anywhere
        assert source.length == ROWS
        found = [int(i) for columns in source.chunks(start) for i in columns[0]]
        assert found == list(range(start, ROWS))


# Without a cache.


@pytest.mark.parametrize("name", ["Table", "RecordBatch", "polars", "HF"])
def test_from_source_reads_a_table_at_random(name):
    table = everything()
    ref = yogadl.from_source(SOURCES[name](table))
    expected = table.to_pylist()
    assert [plain(ref[i]) for i in (1008, 0, 500)] == [expected[i] for i in (1008, 0, 500)]
    batch = ref.gather([7, 7, 3])
    assert batch["i64"].tolist() == [7, 7, 3]
    assert batch["text"] == [expected[i]["text"] for i in (7, 7, 3)]
    assert sorted(int(i) for batch in ref.stream(shuffle=True).batch(100) for i in batch["i64"]) == list(
        range(ROWS)
    )
    assert len(pickle.loads(pickle.dumps(ref))) == ROWS


@pytest.mark.parametrize(
    "name", ["RecordBatchReader", "pyarrow Dataset", "Scanner", "polars lazy", "HF iterable"]
)
def test_from_source_says_what_to_do_with_what_has_no_random_access(name):
    with pytest.raises(UnsupportedDataError, match=r"storage\.submit"):
        yogadl.from_source(SOURCES[name](everything(5)))


def test_a_null_found_at_random_is_named_by_its_record():
    ref = yogadl.from_source(pa.table({"x": pa.array([*range(500), None, *range(500)])}))
    with pytest.raises(UnsupportedDataError, match="record 500: field 'x' is None"):
        ref.gather([3, 500, 4])


# pandas.


def test_a_data_frame_of_every_dtype(tmp_path):
    frame = pd.DataFrame(
        {
            "int": np.arange(5),
            "float": [0.5, np.nan, 1, 2, 3],
            "complex": np.arange(5) * 1j,
            "nullable": pd.array([1, 2, 3, 4, 5], dtype="Int16"),
            "nullable float": pd.array([1, 2, 3, 4, 5], dtype="Float32"),
            "nullable bool": pd.array([True, False] * 2 + [True], dtype="boolean"),
            "str": pd.array(list("abcde"), dtype="str"),
            "object": np.array(list("abcdé"), dtype=object),
            "bytes": np.array([b"a"] * 5, dtype=object),
            "category": pd.Categorical(list("ababa")),
            "when": pd.to_datetime(["2020-01-01"] * 5).as_unit("ns"),
            "where": pd.to_datetime(["2020-01-01"] * 5).as_unit("ns").tz_localize("Europe/Berlin"),
            "long": pd.to_timedelta(range(5), unit="s").as_unit("ms"),
            "arrow": pd.array([[1], [2, 3], [], [], [4]], dtype=pd.ArrowDtype(pa.list_(pa.int64()))),
            "lists": [np.array([]), np.array([1.5]), np.array([]), np.array([2.0, 3.0]), np.array([])],
            "dicts": [{"a": i, "b": str(i)} for i in range(5)],
        },
        index=list("vwxyz"),
    )
    ref = cached(frame, tmp_path)
    assert {field.name: (field.leaf.dtype, field.leaf.shape) for field in ref.spec.fields} == {
        "int": ("int64", ()), "float": ("float64", ()), "complex": ("complex128", ()),
        "nullable": ("int16", ()),
        "nullable float": ("float32", ()), "nullable bool": ("bool", ()), "str": ("str", ()),
        "object": ("str", ()), "bytes": ("bytes", ()), "category": ("str", ()),
        "when": ("datetime64[ns]", ()), "where": ("datetime64[ns]", ()), "long": ("timedelta64[ms]", ()),
        "arrow": ("int64", (None,)), "lists": ("float64", (None,)),
        "dicts/a": ("int64", ()), "dicts/b": ("str", ()),
    }  # fmt: skip
    batch = ref.gather([4, 3, 1])
    assert batch["object"] == ["é", "d", "b"]
    assert batch["category"] == ["a", "b", "b"]
    assert [item.tolist() for item in batch["lists"]] == [[], [2, 3], [1.5]]
    assert batch["where"][0] == np.datetime64("2019-12-31T23:00")
    assert batch["complex"].tolist() == [4j, 3j, 1j]
    again = yogadl.from_source(frame).gather([4, 3, 1])
    assert repr(again) == repr(batch)


def test_columns_of_a_data_frame_may_be_called_by_numbers(tmp_path):
    assert cached(pd.DataFrame(np.eye(3)), tmp_path)[1] == {0: 0, 1: 1, 2: 0}


# polars.


def test_a_polars_frame_of_every_dtype(tmp_path):
    frame = pl.DataFrame(
        {
            "array": pl.Series([[1, 2], [3, 4]], dtype=pl.Array(pl.Int8, 2)),
            "nested": pl.Series([[[1], [2]], [[3], [4]]], dtype=pl.Array(pl.Array(pl.Int8, 1), 2)),
            "category": pl.Series(["a", "b"], dtype=pl.Categorical),
            "enum": pl.Series(["b", "a"], dtype=pl.Enum(["a", "b"])),
            "date": [datetime.date(2020, 1, 1)] * 2,
            "when": pl.Series([datetime.datetime(2020, 1, 1)] * 2).dt.replace_time_zone("Asia/Tokyo"),
            "long": [datetime.timedelta(seconds=1)] * 2,
            "binary": [b"a", b""],
            "half": pl.Series([0.5, 1.5], dtype=pl.Float16),
            "Object": pl.Series(["Object", "Object"], dtype=pl.Enum(["Object"])),
        }
    )
    ref = cached(frame, tmp_path)
    batch = ref.gather([1, 0])
    assert batch["array"].tolist() == [[3, 4], [1, 2]]
    assert batch["nested"].shape == (2, 2, 1)
    assert (batch["category"], batch["enum"], batch["binary"]) == (["b", "a"], ["a", "b"], [b"", b"a"])
    assert batch["date"].dtype == "M8[D]"
    assert batch["when"][0] == np.datetime64("2019-12-31T15:00")
    assert batch["long"][0] == np.timedelta64(1, "s")


# HF datasets.


def test_a_hugging_face_dataset_with_features(tmp_path):
    features = datasets.Features(
        {
            "label": datasets.ClassLabel(names=["no", "yes"]),
            "matrix": datasets.Array2D((2, 3), "float32"),
            "rows": datasets.Array2D((None, 2), "int32"),
            "tokens": datasets.Sequence(datasets.Value("int16")),
            "pair": datasets.Sequence(datasets.Value("int16"), length=2),
        }
    )
    columns = {
        "label": ["yes", "no", "yes"],
        "matrix": np.arange(18, dtype=np.float32).reshape(3, 2, 3).tolist(),
        "rows": [[[1, 2]], [[3, 4], [5, 6]], [[7, 8]]],
        "tokens": [[1], [], [2, 3]],
        "pair": [[1, 2], [3, 4], [5, 6]],
    }
    ref = cached(datasets.Dataset.from_dict(columns, features=features), tmp_path)
    assert [field.leaf.shape for field in ref.spec.fields] == [(), (2, 3), (None, 2), (None,), (2,)]
    expected = columns | {"label": [1, 0, 1]}
    assert rows_of(ref) == [
        {name: column[number] for name, column in expected.items()} for number in range(3)
    ]


def test_a_selection_of_a_hugging_face_dataset_is_what_is_read(tmp_path):
    dataset = datasets.Dataset.from_dict({"x": list(range(50)), "y": list("ab") * 25})
    chosen = dataset.select([7, 3, 40]).with_format("numpy", columns=["x"])
    assert rows_of(cached(chosen, tmp_path)) == [{"x": 7}, {"x": 3}, {"x": 40}]


def test_images_are_their_encoded_bytes_whether_held_or_in_a_file(tmp_path):
    (tmp_path / "a.png").write_bytes(b"not really a PNG")
    dataset = datasets.Dataset.from_dict(
        {"image": [{"bytes": b"held", "path": None}, {"bytes": None, "path": str(tmp_path / "a.png")}]},
        features=datasets.Features({"image": datasets.Image()}),
    )
    for number, source in enumerate([dataset, dataset.to_iterable_dataset()]):
        found = rows_of(cached(source, tmp_path / str(number)))
        assert found == [{"image": b"held"}, {"image": b"not really a PNG"}]
    missing = datasets.Dataset.from_dict({"image": [{"bytes": b"", "path": None}, None]}, dataset.features)
    with pytest.raises(UnsupportedDataError, match="record 1: field 'image' is None"):
        cached(missing, tmp_path / "missing")


def test_a_transform_of_the_users_own_is_applied(tmp_path):
    dataset = datasets.Dataset.from_dict({"x": [1, 2, 3]})
    dataset.set_transform(lambda batch: {"double": [np.int64(2 * x) for x in batch["x"]]})
    assert rows_of(cached(dataset, tmp_path)) == [{"double": 2}, {"double": 4}, {"double": 6}]


# Parquet.


@pytest.fixture
def files(tmp_path):
    table = everything()
    for number, piece in enumerate([table[:400], table[400:400], table[400:]]):
        pq.write_table(piece, tmp_path / f"{number}.parquet", row_group_size=130)
    return [tmp_path / f"{number}.parquet" for number in range(3)]


def test_parquet_files_are_read_one_after_the_other(files, tmp_path):
    expected = everything()
    for workers in (1, 2):
        ref = cached(arrays.parquet(files), tmp_path / str(workers), workers=workers)
        assert rows_of(ref) == expected.to_pylist()
    assert rows_of(cached(arrays.parquet(str(files[0])), tmp_path / "b")) == expected[:400].to_pylist()
    assert rows_of(cached(pq.ParquetFile(files[0]), tmp_path / "c")) == expected[:400].to_pylist()


def test_parquet_columns_come_in_the_order_asked_for(files, tmp_path):
    ref = cached(arrays.parquet(files, columns=["struct", "i64"]), tmp_path / "cache")
    assert ref.spec.keys() == ["struct", "i64"]
    assert rows_of(ref) == everything().select(["struct", "i64"]).to_pylist()


def halved(files):
    content = files[0].read_bytes()
    files[0].write_bytes(content[: len(content) // 2])
    return files[0]


def with_another(files):
    pq.write_table(pa.table({"x": [1]}), files[0].with_name("other.parquet"))
    return [files[0], files[0].with_name("other.parquet")]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda files: arrays.parquet(files, columns=["i64", "none"]),
            ConfigurationError,
            r"lacks the columns \['none'\]",
        ),
        (lambda files: arrays.parquet(files, columns=[]), ConfigurationError, "without columns"),
        (lambda files: arrays.parquet([]), ConfigurationError, "at least one"),
        (lambda files: arrays.parquet(files[1]), UnsupportedDataError, "no records"),
        (lambda files: arrays.parquet("nowhere.parquet"), FileNotFoundError, "nowhere"),
        (
            lambda files: arrays.parquet(with_another(files)),
            UnsupportedDataError,
            r"other\.parquet has the columns 'x' int64, but the first file has 'i64' int64",
        ),
        (lambda files: arrays.parquet(halved(files)), pa.ArrowInvalid, "Parquet"),
        (
            lambda files: cached(pq.ParquetFile(files[0]), files[0].with_name("cache"), workers=2),
            UnsupportedDataError,
            r"give its path, arrays\.parquet\(path\)",
        ),
    ],
    ids=["columns", "no columns", "no file", "no records", "nowhere", "another schema", "halved", "opened"],
)
def test_parquet_files_that_can_not_be_read_are_refused_by_name(files, call, error, words):
    with pytest.raises(error, match=words):
        call(files)


def test_parquet_as_an_argument_keeps_its_form(tmp_path, monkeypatch):
    """A new form would be a new version of all that was built of it: names of classes are in it."""
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"a": [1, 2, 3]}), "a.parquet")
    assert sha256_of_data(arrays.parquet("a.parquet"))[:16] == "f741c4283edc114b"


def test_a_killed_build_goes_on_where_it_stopped(tmp_path, caplog):
    pq.write_table(
        pa.table({"x": np.arange(200_000), "t": np.arange(200_000).astype(str)}),
        tmp_path / "a.parquet",
        row_group_size=10_000,
    )
    source = arrays.parquet(tmp_path / "a.parquet")
    storage = yogadl.open_storage(tmp_path / "cache")

    class Killed(Exception):
        pass

    class Dies:
        spec, length, can_start_anywhere = source.spec, source.length, True

        def chunks(self, start=0):
            for number, columns in enumerate(source.chunks(start)):
                if number == 15:
                    raise Killed
                yield columns

    with pytest.raises(Killed):
        storage.submit(Dies(), "killed", "1", build=yogadl.BuildOptions(part_bytes=500_000))
    with caplog.at_level(logging.INFO, "yogadl"):
        storage.submit(source, "killed", "1", build=yogadl.BuildOptions(part_bytes=500_000))
    assert "continuing at record" in caplog.text
    storage.submit(source, "whole", "1")
    assert storage.fetch("killed", "1").fingerprint == storage.fetch("whole", "1").fingerprint


def test_a_dataset_of_parquet_files_is_read_by_row_groups(tmp_path):
    table = everything().append_column("part", pa.array(["p", "q"] * (ROWS // 2) + ["p"]))
    table = table.sort_by([("part", "ascending"), ("i64", "ascending")])
    pyarrow.dataset.write_dataset(
        table, tmp_path / "in", format="parquet", partitioning=["part"], partitioning_flavor="hive",
        max_rows_per_group=100,
    )  # fmt: skip
    dataset = pyarrow.dataset.dataset(tmp_path / "in", format="parquet", partitioning="hive")
    source = open_source(dataset)
    assert (source.length, source.can_start_anywhere) == (ROWS, True)
    assert [int(i) for columns in source.chunks(700) for i in columns[0]] == table["i64"].to_pylist()[700:]
    assert rows_of(cached(dataset, tmp_path / "a")) == table.to_pylist()
    few = dataset.filter(pyarrow.dataset.field("i64") < 10)
    assert len(cached(few, tmp_path / "b")) == 10
    assert len(cached(few.scanner(columns=["text"]), tmp_path / "c")) == 10


def test_a_source_that_fails_while_reading_ahead_raises_its_own_error(tmp_path):
    def batches():
        yield from numbers(20_000).to_batches(max_chunksize=10_000)
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        cached(pa.RecordBatchReader.from_batches(numbers(1).schema, batches()), tmp_path)


def test_a_folder_of_ones_own_called_datasets_is_nothing_special(tmp_path):
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "__init__.py").write_text(
        "class Mine:\n"
        "    def __len__(self): return 2\n"
        "    def __getitem__(self, index): return {'x': index}\n"
    )
    code = (
        "import datasets, sys, yogadl\n"
        "assert int(yogadl.from_source(datasets.Mine())[1]['x']) == 1\n"
        "assert 'pyarrow' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_examples_of_the_docstrings_run():
    assert pages.run_docstrings(_source)


def json_column(texts, kind=None):
    stored = pa.array(texts, kind or pa.string())
    return pa.ExtensionArray.from_storage(pa.json_(stored.type), stored)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
def test_texts_of_arrows_type_for_json_are_json_values_wherever_they_are(storage, kind):
    texts = ['{"b": [1, 2.0], "a": null}', None, " 18446744073709551615 "]
    values = [{"b": [1, 2.0], "a": None}, None, 2**64 - 1]
    column = json_column(texts, kind)
    offsets = pa.array([0, 1, 1, 3], pa.int32())
    table = pa.table(
        {
            "top": column,
            "inner": pa.StructArray.from_arrays([column, pa.array([1, 2, 3])], ["tree", "n"]),
            "items": pa.ListArray.from_arrays(offsets, column),
            "named": pa.MapArray.from_arrays(offsets, pa.array(["x", "y", "z"]), column),
        }
    )
    for ref in (storage.submit(table, "d", "1"), yogadl.from_source(table)):
        records = list(ref)
        assert same_json([record["top"] for record in records], values)
        assert [record["inner"]["tree"] for record in records] == values
        assert same_json([record["items"] for record in records], [values[:1], [], values[1:]])
        assert [record["named"] for record in records] == [
            {"x": values[0]}, {}, {"y": None, "z": values[2]}
        ]  # fmt: skip


@pytest.mark.parametrize(
    "text", ["nul", "", "[1e400]", "18446744073709551616", '{"a": -9223372036854775809}', "NaN"]
)
def test_a_text_of_that_type_without_an_exact_value_is_refused(storage, text):
    table = pa.table({"tree": json_column(['{"a": 1}', None, text])})
    with pytest.raises(UnsupportedDataError, match="record 2: field 'tree' is no JSON, though its type"):
        storage.submit(table, "d", "1")
