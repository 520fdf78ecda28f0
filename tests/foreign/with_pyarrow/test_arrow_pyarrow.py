"""Files that pyarrow and HF datasets write are indexed; what can't be read at random is refused."""

import io
import re
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from foreign_files import WINDOWS, fuzz, read, reader_of, records_of, refusal
from inside import Arrow
from pyarrow import feather

from yogadl import Leaf


def number(name, k):
    return np.dtype(name).type(k % 120)


NUMBERS = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)] + [
    "float16",
    "float32",
    "float64",
]
# Each type with its leaf and a function of a row's number that makes a value.
TYPES = {
    **{name: (pa.type_for_alias(name.replace("float16", "halffloat")), Leaf(name), partial(number, name))
       for name in NUMBERS},
    "bool": (pa.bool_(), Leaf("bool"), lambda k: k % 3 == 0),
    "string": (pa.string(), Leaf("str"), lambda k: "é" * (k % 5)),
    "large_string": (pa.large_string(), Leaf("str"), lambda k: "é" * (k % 5)),
    "binary": (pa.binary(), Leaf("bytes"), lambda k: b"b" * (k * 37 % 101)),
    "large_binary": (pa.large_binary(), Leaf("bytes"), lambda k: b"b" * (k * 37 % 101)),
    "fixed_size_binary": (pa.binary(5), Leaf("bytes"), lambda k: b"%05d" % k),
    "list": (pa.list_(pa.int16()), Leaf("int16", (None,)), lambda k: list(range(k % 9))),
    "large_list": (pa.large_list(pa.float64()), Leaf("float64", (None,)), lambda k: [0.5] * (k % 9)),
    "small_array": (pa.list_(pa.float32(), 3), Leaf("float32", (3,)), lambda k: [k, 1, 2]),
    "array": (pa.list_(pa.float32(), 7), Leaf("float32", (7,)), lambda k: list(range(k, k + 7))),
    "timestamp": (pa.timestamp("us"), Leaf("datetime64[us]"), lambda k: np.datetime64(k, "us")),
    "zoned": (pa.timestamp("s", "Europe/Paris"), Leaf("datetime64[s]"), lambda k: np.datetime64(k, "s")),
    "times": (pa.list_(pa.timestamp("ns")), Leaf("datetime64[ns]", (None,)),
              lambda k: [np.datetime64(k, "ns")] * (k % 3)),
    "duration": (pa.duration("ms"), Leaf("timedelta64[ms]"), lambda k: np.timedelta64(k, "ms")),
    "date32": (pa.date32(), Leaf("datetime64[D]"), lambda k: np.datetime64(k, "D")),
    "date64": (pa.date64(), Leaf("datetime64[ms]"), lambda k: np.datetime64(86400000 * k, "ms")),
}  # fmt: skip
ODD = {
    "struct": pa.struct([("x", pa.int8()), ("y", pa.list_(pa.string()))]),
    "fieldless": pa.struct([]),
    "structs": pa.list_(pa.struct([("x", pa.int8())])),
    "dictionary": pa.dictionary(pa.int8(), pa.string()),
    "lists": pa.list_(pa.list_(pa.int8())),
    "strings": pa.list_(pa.string()),
    "bits": pa.list_(pa.bool_()),
    "map": pa.map_(pa.string(), pa.int8()),
    "decimal": pa.decimal128(9, 2),
    "null": pa.null(),
    "time": pa.time32("s"),
    "dates": pa.list_(pa.date32()),
    "string_view": pa.string_view(),
    "binary_view": pa.binary_view(),
    "list_view": pa.list_view(pa.int8()),
    "uuid": pa.uuid(),
    "dense": pa.dense_union([pa.field("a", pa.int8()), pa.field("b", pa.string())]),
    "sparse": pa.sparse_union([pa.field("a", pa.int8()), pa.field("b", pa.string())]),
    "run_end": pa.run_end_encoded(pa.int32(), pa.int8()),
    "empty": pa.binary(0),
    "empties": pa.list_(pa.int8(), 0),
}
KINDS = [pa.ipc.new_file, pa.ipc.new_stream]


TIMES = ["timestamp", "zoned", "times", "duration", "date32", "date64"]
STORED = {"times": pa.list_(pa.int64()), "date32": pa.int32()}


def whole(value):
    """Return a time, or a list of times, as integers, from which pyarrow makes all kinds of them."""
    return list(map(whole, value)) if isinstance(value, list) else value.astype(np.int64).item()


def table_of(rows, names=tuple(TYPES)):
    columns = {}
    for name in names:
        kind, _, make = TYPES[name]
        values = [make(k) for k in range(rows)]
        if name in TIMES:
            plain = STORED.get(name, pa.int64())
            columns[name] = pa.array(list(map(whole, values)), plain).cast(kind)
        else:
            columns[name] = pa.array(values, kind)
    return pa.table(columns)


def written(table, kind=pa.ipc.new_file, rows=None, **options):
    sink = io.BytesIO()
    with kind(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=rows)
    return sink.getvalue()


def check(records, rows, names=tuple(TYPES)):
    assert len(records) == rows
    for k, record in enumerate(records):
        assert list(record) == list(names)
        for name in names:
            np.testing.assert_array_equal(record[name], TYPES[name][2](k))


@pytest.mark.parametrize("window_bytes", WINDOWS)
@pytest.mark.parametrize("rows", [0, 1, 7, 131])
@pytest.mark.parametrize("kind", KINDS)
def test_every_type_comes_back(kind, rows, window_bytes):
    table = table_of(rows)
    found, records = read(Arrow(), written(table, kind, 23), window_bytes=window_bytes)
    check(records, rows)
    assert found.spec.tree.children == tuple(leaf for _, leaf, _ in TYPES.values())


def odd_array(name):
    """Return three values of one of the types ODD."""
    odd = ODD[name]
    if name in ("dense", "sparse"):
        tags = pa.array([0, 1, 0], pa.int8())
        parts = [pa.array([1, 2, 3], pa.int8()), pa.array(["a", "b", "c"])]
        array = (
            pa.UnionArray.from_dense(tags, pa.array([0, 0, 1], pa.int32()), parts, ["a", "b"])
            if name == "dense"
            else pa.UnionArray.from_sparse(tags, parts, ["a", "b"])
        )
    elif name == "run_end":
        array = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array([1, 2], pa.int8()))
    else:
        array = pa.array([None] * 3, odd)
    return array


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ODD)
def test_what_has_no_stored_form_is_refused_and_can_be_left_out(name, kind):
    columns = [pa.array([0, 1, 2], pa.int8()), odd_array(name), pa.array(["", "é", "éé"])]
    rows, names = [{"b": "é" * k, "a": k} for k in range(3)], ["a", "odd", "b"]
    inside = pa.table({"s": pa.StructArray.from_arrays(columns, names)})
    for table, place, fields, expected in (
        (pa.table(columns, names), "column 'odd", ("b", "a"), rows),
        (inside, "'s/odd", ("s/b", "s/a"), [{"s": row} for row in rows]),
    ):
        content = written(table, kind)
        problem = refusal(Arrow(), content)
        assert place in problem
        assert "fields=" in problem
        assert records_of(Arrow(fields), content) == expected


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_buffers_are_refused(compression):
    assert "uncompressed" in refusal(Arrow(), written(table_of(131), compression=compression))


@pytest.mark.parametrize("version", [pa.ipc.MetadataVersion.V4, pa.ipc.MetadataVersion.V5])
def test_both_versions_of_the_metadata_are_read(version):
    check(records_of(Arrow(), written(table_of(7), metadata_version=version)), 7)


def test_files_before_version_0_15_are_refused():
    content = written(table_of(7), pa.ipc.new_stream, use_legacy_format=True)
    assert "0.15" in refusal(Arrow(), content)


def test_feather():
    sink = io.BytesIO()
    feather.write_feather(table_of(131, ("int8", "string")), sink, compression="uncompressed")
    check(records_of(Arrow(), sink.getvalue()), 131, ("int8", "string"))


@pytest.mark.parametrize("values", [pa.array([1, None]), pa.array([[1], [None]]), pa.array(["a", None])])
def test_nulls_are_refused(values):
    problem = refusal(Arrow(), written(pa.table({"a": values})))
    assert re.search(r"column 'a' has nulls( in its lists)?: fill them", problem)


def test_columns_of_one_name_are_refused():
    table = pa.table([pa.array([1]), pa.array([2]), pa.array([3])], names=["a", "a", "b"])
    assert "rename" in refusal(Arrow(), written(table))
    assert records_of(Arrow(("b",)), written(table)) == [{"b": 3}]


def test_no_columns_are_refused():
    assert "no columns" in refusal(Arrow(), written(pa.table({})))


def test_other_columns_than_the_first_file_are_refused():
    kind = Arrow().of_first_file(reader_of(written(table_of(1, ("int8", "string")))))
    for names in (("int8",), ("int8", "binary"), ("string", "int8")):
        assert "first file" in refusal(kind, written(table_of(1, names)), kind_is_known=True)
    check(
        records_of(kind, written(table_of(3, ("int8", "string"))), kind_is_known=True),
        3,
        ("int8", "string"),
    )


STREAM, FILE = (written(table_of(3), kind) for kind in (pa.ipc.new_stream, pa.ipc.new_file))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is cut"),
        (b"ARROW1", "no footer"),
        (FILE[:-1], "no footer"),
        (FILE[:1000], "no footer"),
        (FILE[: len(FILE) // 2] + FILE[-10:], "can't have"),
        (STREAM[:1000], "can't have"),
        (STREAM[:-100], "damaged, cut"),
        (STREAM + STREAM, "bytes follow the end"),
        (b"PAR1" + bytes(100), "no message of Arrow"),
    ],
)
def test_what_is_refused(content, problem):
    assert problem in refusal(Arrow(), content)


def test_a_stream_whose_end_is_not_marked_may_be_cut():
    assert "the stream has no end" in refusal(Arrow(), STREAM[:-8])
    check(records_of(Arrow(), STREAM[:-8] + b"\xff\xff\xff\xff" + bytes(4)), 3)


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files(kind):
    fuzz(Arrow(), written(table_of(7), kind, 5), rounds=600)


# Neighbours whose buffers vary in number, or whose nodes have none, lie between the fields that are read.
NEIGHBOURS = [
    ("view", pa.string_view()),
    ("null", pa.null()),
    ("lists", pa.list_(pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string_view()))]))),
    ("kinds", pa.dictionary(pa.int8(), pa.string())),
]


def struct_table(rows, *, seed=1, has_nulls):
    """Return a table with structs of all types, some of them nested, and its rows."""
    names = [name for name in TYPES if name not in TIMES]
    texts = [name for name in names if TYPES[name][1].dtype in ("str", "bytes")]
    random = np.random.default_rng(seed)

    def record(k):
        def null():
            return has_nulls and random.random() < 0.3

        def value(name):
            return None if null() else TYPES[name][2](k)

        row = {name: TYPES[name][2](k) if name not in texts else value(name) for name in names}
        inner = None if null() else {name: value(name) for name in texts}
        deep = None if null() else {"inner": inner, "s": value("string")}
        others = {name: None if null() else made for name, made in zip("vnlk", [f"view {k}" * 9, None, [
            {"a": 1, "b": ["long enough for a buffer"]}], "kind"], strict=True)}  # fmt: skip
        beside = {name: others[key] for key, (name, _) in zip("vnlk", NEIGHBOURS, strict=True)}
        return {"top": {**beside, **row}, **beside, "deep": deep}

    types = [(name, TYPES[name][0]) for name in names]
    inner = pa.struct([(name, TYPES[name][0]) for name in texts])
    kinds = {
        "top": pa.struct([*NEIGHBOURS, *types]),
        **dict(NEIGHBOURS),
        "deep": pa.struct([("inner", inner), ("s", pa.string())]),
    }
    records = [record(k) for k in range(rows)]
    columns = {name: pa.array([each[name] for each in records], kind) for name, kind in kinds.items()}
    fields = (*(f"top/{name}" for name in names), "deep")
    return pa.table(columns), fields


def same(found, expected, spec_node):
    """Compare a value with what pyarrow reads; a null is expected as an empty value."""
    if isinstance(found, dict):
        for key, child in zip(found, spec_node.children, strict=True):
            same(found[key], None if expected is None else expected[key], child)
    elif expected is None:
        assert found == ("" if spec_node.dtype == "str" else b"")
    else:
        np.testing.assert_array_equal(found, np.asarray(expected, spec_node.numpy_dtype))


@pytest.mark.parametrize("window_bytes", WINDOWS)
@pytest.mark.parametrize("has_nulls", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_structs_among_all_kinds_of_columns(monkeypatch, kind, has_nulls, window_bytes):
    monkeypatch.setattr("yogadl._foreign.arrow._BATCH_VALUES", 200)
    for rows in (0, 1, 7, 131):
        table, fields = struct_table(rows, has_nulls=has_nulls)
        for part in (table, table.slice(3)):
            format = Arrow(fields, "empty" if has_nulls else None)
            format, records = read(format, written(part, kind, 23), window_bytes=window_bytes)
            assert len(records) == len(part)
            tree = format.spec.tree
            assert tree.keys == ("top", "deep")
            for found, row in zip(records, part.to_pylist(), strict=True):
                row["top"] = {key: row["top"][key] for key in found["top"]}
                same(found, row, tree)
    if has_nulls:
        assert 'missing="empty"' in refusal(Arrow(fields), written(table, kind))


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_structs(kind):
    table, fields = struct_table(5, has_nulls=True)
    fuzz(Arrow(fields, "empty"), written(table, kind, 3), rounds=500)
    small = pa.table({"image": table["deep"], "n": pa.array(range(5))})
    fuzz(Arrow(missing="empty"), written(small, kind, 3), rounds=1000)
