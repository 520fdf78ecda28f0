"""export to Parquet and Arrow: every field comes back, from a file that others read."""

import json

import ml_dtypes
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from inside import set_constants
from trees import JSON_VALUES, same_json

import yogadl
from yogadl.errors import UnsupportedDataError

RNG = np.random.default_rng(7)
COUNT = 23


@pytest.fixture(params=["parquet", "arrow"])
def exported(request, storage, tmp_path, monkeypatch):
    """Export any source and return the table that is in the file."""
    numbers = iter(range(100))

    def exported(source, chunk_bytes=2**25, **options):
        set_constants(monkeypatch, EXPORT_CHUNK_BYTES=chunk_bytes)
        folder = tmp_path / f"out{next(numbers)}"
        storage.submit(source, "d", "1", build=yogadl.BuildOptions(part_bytes=500), **options)
        found = storage.export("d", "1", folder, request.param)
        assert found.files == (f"records.{request.param}",)
        path = folder / found.files[0]
        table = pq.read_table(path) if request.param == "parquet" else pa.ipc.open_file(path).read_all()
        table.validate(full=True)
        assert table.num_rows == found.records == len(storage.fetch("d", "1"))
        return table

    return exported


NUMBERS = {
    **{name: RNG.integers(0, 100, COUNT).astype(name) for name in ("int8", "uint16", "int64", "uint64")},
    **{name: RNG.random(COUNT).astype(name) for name in ("float16", "float32", "float64")},
    "bool": RNG.random(COUNT) < 0.5,
    "second": np.arange(COUNT).astype("M8[s]"),
    "nano": np.arange(COUNT).astype("M8[ns]"),
    "took": np.arange(COUNT).astype("m8[us]"),
    "day": np.arange(COUNT).astype("M8[D]"),
}
TYPES = {
    "bool": "bool",
    "second": "timestamp[s]",
    "nano": "timestamp[ns]",
    "took": "duration[us]",
    "day": "date32[day]",
}


@pytest.mark.parametrize("chunk_bytes", [1, 200, 2**25])
def test_numbers_have_a_column_of_their_type(exported, chunk_bytes):
    table = exported(NUMBERS, chunk_bytes)
    assert table.column_names == list(NUMBERS)
    for name, array in NUMBERS.items():
        found = table[name].to_numpy()
        assert np.array_equal(found.astype(array.dtype), array), name
        if name in TYPES and not (name == "second" and str(table[name].type) == "timestamp[ms]"):  # Parquet's
            assert str(table[name].type) == TYPES[name]


@pytest.mark.parametrize("shape", [(3,), (2, 3), (1,), (2, 1, 2), (0,), (2, 0), (0, 2)], ids=str)
@pytest.mark.parametrize("chunk_bytes", [60, 2**25])
def test_fixed_shapes_are_lists_of_a_fixed_size(exported, shape, chunk_bytes):
    array = RNG.random((COUNT, *shape)).astype(np.float32)
    table = exported({"x": array, "n": np.arange(COUNT)}, chunk_bytes)
    assert table["x"].to_pylist() == array.tolist()
    kind = table.schema.field("x").type
    for size in shape:
        assert pa.types.is_fixed_size_list(kind) == (size > 0)
        kind = kind.value_type
    assert kind == pa.float32()


def test_texts_and_bytes(exported):
    records = [{"t": "ü" * (i % 4), "b": bytes(i), "n": i} for i in range(COUNT)]
    table = exported(records, 50)
    assert table.to_pylist() == records
    assert table.schema.field("t").type == pa.string()
    assert table.schema.field("b").type == pa.binary()


@pytest.mark.parametrize("chunk_bytes", [50, 2**25])
def test_arrays_that_vary_are_lists(exported, chunk_bytes):
    records = [
        {
            "one": np.arange(i % 3),
            "two": RNG.random((i % 3, 2 - i % 2)),
            "inner": np.full((i % 4, 3), i, np.int8),
            "texts": np.array(["a"] * (i % 2) + ["b"], object),
            "blobs": np.array([[b"x", bytes(i)]] * (i % 3 + 1), object),
        }
        for i in range(COUNT)
    ]
    table = exported(records, chunk_bytes)
    for name in records[0]:
        assert table[name].to_pylist() == [record[name].tolist() for record in records], name
    inner = table.schema.field("inner").type
    assert pa.types.is_list(inner)
    assert inner.value_type.list_size == 3


def test_arrays_of_any_rank_come_with_their_shapes(exported):
    values = [np.float32(5), np.zeros((2, 2), np.float32), np.arange(3, dtype=np.float32)] * 4
    table = exported([{"x": value} for value in values])
    for found, value in zip(table["x"].to_pylist(), values, strict=True):
        assert found["shape"] == list(np.shape(value))
        assert found["values"] == np.ravel(value).tolist()
    texts = [np.array("a", object)[()], np.array([["b", "c"]], object)]
    assert exported([{"x": text} for text in texts])["x"].to_pylist() == [
        {"shape": [], "values": ["a"]},
        {"shape": [1, 2], "values": ["b", "c"]},
    ]


def test_what_arrow_has_no_type_for_is_there_by_its_bits_or_parts_and_named(exported):
    data = {
        "wave": (RNG.random((COUNT, 2)) + 2j).astype(np.complex64),
        "small": RNG.random(COUNT).astype(ml_dtypes.bfloat16),
        "tiny": RNG.random((COUNT, 2)).astype(ml_dtypes.float8_e5m2),
        "hours": np.arange(COUNT).astype("M8[h]"),
    }
    table = exported(data)
    for name, array in data.items():
        assert table.schema.field(name).metadata[b"yogadl.dtype"].decode() == array.dtype.name
    parts = np.array(table["wave"].to_pylist(), np.float32)
    assert np.array_equal(parts[..., 0] + 1j * parts[..., 1], data["wave"])
    assert np.array_equal(table["small"].to_numpy().view(ml_dtypes.bfloat16), data["small"])
    bits = np.array(table["tiny"].to_pylist(), np.uint8)
    assert np.array_equal(bits.view(ml_dtypes.float8_e5m2), data["tiny"])
    assert np.array_equal(table["hours"].to_numpy().view("M8[h]"), data["hours"])


def test_a_date_that_is_missing_is_null(exported):
    days = np.array(["2024-01-01", "NaT"], "M8[D]")
    times = np.array(["NaT", 5], "m8[ns]")
    table = exported({"day": days, "took": times, "days": np.stack([days, days])})
    assert [day is None for day in table["day"].to_pylist()] == [False, True]
    assert table["took"].null_count == 1
    assert [day is None for day in table["days"].to_pylist()[0]] == [False, True]


def test_trees_are_structs(exported):
    records = [
        {"a": i, "b": {"c": (float(i), {"d": f"{i}"}), "e": (i, np.full(2, i))}, "none": {}, 7: i}
        for i in range(COUNT)
    ]
    table = exported(records, 100)
    assert table.to_pylist()[3] == {
        "a": 3,
        "b": {"c": {"0": 3.0, "1": {"d": "3"}}, "e": {"0": 3, "1": [3, 3]}},
        "7": 3,
    }


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (np.arange(5), [{"record": i} for i in range(5)]),
        (["a", "bc"], [{"record": "a"}, {"record": "bc"}]),
        ([(1, "a"), (2, "b")], [{"0": 1, "1": "a"}, {"0": 2, "1": "b"}]),
    ],
)
def test_records_that_are_no_dicts(exported, source, expected):
    assert exported(source).to_pylist() == expected


def test_the_files_metadata_say_what_it_was(exported, storage):
    table = exported({"x": np.arange(3)})
    said = json.loads(table.schema.metadata[b"yogadl"])
    ref = storage.fetch("d", "1")
    assert said == {"spec": ref.spec.to_json(), "fingerprint": ref.fingerprint}


def test_what_was_exported_can_be_submitted_again(exported, storage):
    records = [
        {"i": i, "t": f"{i}", "b": bytes(i % 3), "x": np.full((2, 3), i, np.float32), "r": np.arange(i % 4)}
        for i in range(COUNT)
    ]
    table = exported(records)
    storage.submit(table, "again", "1")
    assert storage.fetch("again", "1").fingerprint == storage.fetch("d", "1").fingerprint


def test_no_records_make_a_file_without_rows(storage, tmp_path):
    storage.submit({"x": np.arange(3)}, "d", "1")
    found = yogadl.storage.export(storage.fetch("d", "1")[:0], tmp_path / "out", "parquet")
    assert pq.read_table(found.folder / "records.parquet").schema.names == ["x"]


def test_a_text_that_is_no_unicode_is_refused_by_field_and_record(storage, tmp_path):
    storage.submit([{"t": "a"}, {"t": "\ud800"}], "d", "1")
    with pytest.raises(UnsupportedDataError, match=r"record 1: field 't' has half of a surrogate pair"):
        storage.export("d", "1", tmp_path / "out", "parquet")
    storage.submit([{"t": np.array(["a", "b"], object)}, {"t": np.array(["\ud800"], object)}], "d", "2")
    with pytest.raises(UnsupportedDataError, match=r"record 1: field 't'"):
        storage.export("d", "2", tmp_path / "out", "arrow")
    assert not (tmp_path / "out").exists()


def test_keys_that_would_be_one_column_are_refused(storage, tmp_path):
    storage.submit([{"a": {0: 1, "0": 2}}], "d", "1")
    with pytest.raises(UnsupportedDataError, match=r"two fields of a would be the column '0'"):
        storage.export("d", "1", tmp_path / "out", "arrow")


def test_more_text_than_arrow_can_count_is_cut_in_two(exported, monkeypatch):
    set_constants(monkeypatch, MAX_BYTES=100)
    records = [{"t": "x" * (i % 40), "n": i} for i in range(COUNT)]
    assert exported(records).to_pylist() == records


TREES = [{"tree": JSON_VALUES[number % len(JSON_VALUES)], "n": number} for number in range(COUNT)]


@pytest.mark.parametrize("chunk_bytes", [1, 2**25])
def test_json_values_are_of_arrows_type_for_json_and_come_back(exported, chunk_bytes, storage):
    table = exported(TREES, chunk_bytes, json="tree")
    kind = table.schema.field("tree").type
    assert getattr(kind, "extension_name", "") == "arrow.json"
    texts = table["tree"].to_pylist()
    assert texts == [json.dumps(one["tree"], ensure_ascii=False, separators=(",", ":")) for one in TREES]
    for ref in (storage.submit(table, "again", "1"), yogadl.from_source(table)):
        assert ref.spec.tree.children[0] == yogadl.Leaf("json")
        assert same_json([record["tree"] for record in ref], [record["tree"] for record in TREES])
    assert storage.fetch("again", "1").fingerprint == storage.fetch("d", "1").fingerprint


def test_json_values_are_strings_where_pyarrow_has_no_type_for_them(exported, monkeypatch):
    set_constants(monkeypatch, HAS_JSON=False)
    table = exported(TREES, json="tree")
    field = table.schema.field("tree")
    assert (field.type, field.metadata[b"yogadl.dtype"]) == (pa.string(), b"json")
    assert same_json(list(map(json.loads, table["tree"].to_pylist())), [one["tree"] for one in TREES])
