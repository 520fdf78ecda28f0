"""What comes in the place of nulls of adopted Arrow files is said by field, and stays so in `refresh`."""

import numpy as np
import pyarrow as pa
import pytest

import yogadl
from yogadl.errors import ConfigurationError, UnsupportedDataError

ROWS = 300
MISSING = {
    "text": "empty", "tokens": "empty", "label": -1, "small": np.int8(-128), "x": float("nan"), "is_x": True,
    "s/y": 0.25,
}  # fmt: skip


def table(first):
    def some(k, value, of):
        return None if k % of == 0 else value

    rows = range(first, first + ROWS)
    return pa.table({
        "text": pa.array([some(k, f"{k}", 3) for k in rows]),
        "tokens": pa.array([some(k, [k] * (k % 4), 5) for k in rows], pa.list_(pa.int32())),
        "label": pa.array([some(k, k, 7) for k in rows], pa.int64()),
        "small": pa.array([some(k, k % 100, 2) for k in rows], pa.int8()),
        "x": pa.array([some(k, k / 2, 4) for k in rows], pa.float32()),
        "is_x": pa.array([some(k, False, 6) for k in rows]),
        "s": pa.array([some(k, {"y": some(k, k / 2, 9)}, 8) for k in rows], pa.struct({"y": pa.float64()})),
        "n": pa.array(rows, pa.int64()),
    })  # fmt: skip


def expected(first):
    rows = table(first).to_pylist()
    for row in rows:
        inner = {"y": None} if row["s"] is None else row["s"]
        row["s"] = {"y": 0.25 if inner["y"] is None else inner["y"]}
        fills = {"text": "", "tokens": [], "label": -1, "small": -128, "x": float("nan"), "is_x": True}
        row |= {name: fill for name, fill in fills.items() if row[name] is None}
    return rows


def write(path, first):
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table(first).schema) as writer:
        writer.write_table(table(first), max_chunksize=131)


def assert_same(ref, rows):
    assert len(ref) == len(rows)
    for k, row in enumerate(rows):
        found = ref[k]
        assert found["tokens"].dtype == np.int32
        found["tokens"] = found["tokens"].tolist()
        assert np.isnan(found["x"]) == np.isnan(row["x"])
        if np.isnan(row["x"]):
            found["x"] = row["x"] = 0
        assert found == row


@pytest.mark.parametrize("read", [True, False])
def test_nulls_of_each_type(storage, tmp_path, read):
    (tmp_path / "a").mkdir()
    write(tmp_path / "a" / "0.arrow", 0)
    paths = tmp_path / "a" / "*.arrow"
    ref = storage.adopt(paths, "d", "1", missing=MISSING, files=yogadl.FileOptions(read=read))
    assert_same(ref, expected(0))
    assert [leaf.dtype for leaf in (field.leaf for field in ref.spec.fields)] == [
        "str", "int32", "int64", "int8", "float32", "bool", "float64", "int64",
    ]  # fmt: skip
    write(tmp_path / "a" / "1.arrow", ROWS)
    assert_same(storage.refresh("d", "1", "2"), expected(0) + expected(ROWS))
    if read:  # a cache of the same records has the same fingerprint
        copy = storage.submit(ref, "d", "copy")
        assert copy.fingerprint == ref.fingerprint


def test_what_is_not_named_is_refused(storage, tmp_path):
    write(tmp_path / "0.arrow", 0)
    for name in MISSING:
        fills = {other: fill for other, fill in MISSING.items() if other != name}
        with pytest.raises(UnsupportedDataError, match=f"column '{name}' .*nulls"):
            storage.adopt(tmp_path / "0.arrow", "d", "1", missing=fills)
    assert_same(storage.adopt(tmp_path / "0.arrow", "d", "1", missing=MISSING), expected(0))


@pytest.mark.parametrize(
    "fills", [{"other": 1}, {"label": "empty"}, {"small": 128}, {"is_x": 1}, {"text": "x"}]
)
def test_what_a_column_can_not_have_is_refused(storage, tmp_path, fills):
    write(tmp_path / "0.arrow", 0)
    with pytest.raises(ConfigurationError, match="missing="):
        storage.adopt(tmp_path / "0.arrow", "d", "1", missing=MISSING | fills)


def test_the_command_says_it_too(storage, yoga, tmp_path):
    write(tmp_path / "0.arrow", 0)
    words = ["text=empty", "tokens=empty", "label=-1", "small=-128", "x=nan", "is_x=true", "s/y=0.25"]
    options = [word for each in words for word in ("--missing", each)]
    done = yoga("adopt", "d", "1", tmp_path / "0.arrow", *options, "-s", storage.location)
    assert done.code == 0, done
    assert_same(storage.fetch("d", "1"), expected(0))
    done = yoga("refresh", "d", "1", "2", "-s", storage.location)
    assert "are as they were" in done.out
    twice = yoga(
        "adopt", "d", "2", tmp_path / "0.arrow", *options, "--missing", "x=1", "-s", storage.location
    )
    assert twice.code == 2
    both = yoga(
        "adopt", "d", "2", tmp_path / "0.arrow", *options, "--missing", "empty", "-s", storage.location
    )
    assert both.code == 2


def test_lists_that_have_nulls_within_are_refused(storage, tmp_path):
    column = pa.array([[1, None], None], pa.list_(pa.int32()))
    rows = pa.table({"a": column})
    with pa.OSFile(str(tmp_path / "0.arrow"), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows)
    with pytest.raises(UnsupportedDataError, match="nulls in its lists"):
        storage.adopt(tmp_path / "0.arrow", "d", "1", missing="empty")
