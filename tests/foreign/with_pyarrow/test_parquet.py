"""Parquet files are read where they lie: groups of rows, decoded whole, as any other version."""

import datetime
import itertools
import multiprocessing
import os
import pickle
import random
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trees
from inside import set_constants

import yogadl
from yogadl.errors import CacheFormatError, ConfigurationError, CursorError, UnsupportedDataError
from yogadl.storage import copy

SIZES = (1000, 777, 1, 350, 2)  # rows of each file
GROUPS = (100, 97, 1, 50, 1)  # rows of its groups
ROWS = sum(SIZES)


def table(first, count):
    rows = range(first, first + count)
    return pa.table({
        "n": pa.array(rows, pa.int64()),
        "half": pa.array([k / 2 for k in rows], pa.float32()),
        "small": pa.array([k % 200 for k in rows], pa.uint8()),
        "is_odd": pa.array([k % 2 == 1 for k in rows]),
        "text": pa.array(["é" * (k % 5) + str(k) for k in rows]),
        "raw": pa.array([bytes([k % 256]) * (k % 7) for k in rows]),
        "large": pa.array([str(k) for k in rows], pa.large_string()),
        "tokens": pa.array([list(range(k % 5)) for k in rows], pa.list_(pa.int32())),
        "pair": pa.FixedSizeListArray.from_arrays(pa.array([k + j for k in rows for j in (0, 1)]), 2),
        "words": pa.array([["a", str(k)] for k in rows], pa.list_(pa.string(), 2)),
        "inner": pa.array([{"a": k, "b": {"c": str(k)}} for k in rows]),
        "chat": pa.array([[{"role": "user", "content": str(k)}] * (k % 3) for k in rows],
                         pa.list_(pa.struct({"role": pa.string(), "content": pa.string()}))),
        "kind": pa.array([("cat", "dog")[k % 2] for k in rows]).dictionary_encode(),
        "when": pa.array([k * 10**6 for k in rows], pa.timestamp("us", "UTC")),
        "day": pa.array(list(rows), pa.int32()).cast(pa.date32()),
    })  # fmt: skip


def write_all(folder, sizes=SIZES, groups=GROUPS, **options):
    folder.mkdir(parents=True, exist_ok=True)
    first = 0
    for number, (count, rows) in enumerate(zip(sizes, groups, strict=True)):
        pq.write_table(table(first, count), folder / f"{number:03d}.parquet", row_group_size=rows, **options)
        first += count
    return folder


@pytest.fixture
def files(tmp_path):
    return write_all(tmp_path / "in")


@pytest.fixture
def ref(storage, files):
    return storage.adopt(f"{files}/*.parquet", "rows", "1")


def everything(ref, **how):
    """Return the column of numbers of an epoch."""
    batches = list(ref.stream(**how).batch(64).at(0))
    return np.concatenate([batch["n"] for batch in batches])


def test_the_records_are_those_that_a_cache_of_the_tables_has(storage, ref):
    expected = storage.submit(table(0, ROWS), "copied", "1")
    assert ref.spec == expected.spec
    assert len(ref) == ROWS
    order = np.random.default_rng(0).permutation(ROWS)[:500]
    trees.assert_equal(ref.gather(order), expected.gather(order))
    for index in (0, 99, 100, 999, 1000, 1776, 1777, 1778, ROWS - 1, -1):
        trees.assert_equal(ref[index], expected[index])
        trees.assert_same_numbers(ref[index]["pair"], np.asarray(expected[index]["pair"]))


def test_nothing_of_a_batch_is_shared_with_what_is_held(ref):
    first = ref.gather([5, 6])
    for value in (first["n"], first["pair"], first["tokens"][0]):
        assert value.flags.writeable
        value[...] = 0
    first["chat"][1].append("x")
    trees.assert_equal(ref.gather([5, 6])["n"], np.array([5, 6]))
    assert ref.gather([5, 6])["chat"] == [[{"role": "user", "content": "5"}] * 2, []]


def test_fields_alone_are_read(ref):
    some = ref.fields("text", "n")
    assert some[7] == {"text": "éé7", "n": 7}
    trees.assert_equal(some.gather([1500, 3]), {"text": ["1500", "ééé3"], "n": np.array([1500, 3])})


def test_repeated_and_no_indices(ref):
    assert ref.gather([])["text"] == []
    assert ref.gather([])["pair"].shape == (0, 2)
    assert ref.gather([9, 9, 2000, 9])["n"].tolist() == [9, 9, 2000, 9]


@pytest.mark.parametrize("window", [1, 3, 100])
@pytest.mark.parametrize("lanes", [1, 2, 5, ROWS, ROWS + 1])
def test_blocks_of_groups_have_each_row_once(ref, window, lanes):
    shuffle = yogadl.Blocks("groups", window=window, lanes=lanes)
    for ranks in (1, 2, 3):
        parts = [
            everything(ref.fields("n"), shuffle=shuffle, shuffle_seed=3, shard_rank=rank, num_shards=ranks)
            for rank in range(ranks)
        ]
        assert sorted(np.concatenate(parts).tolist()) == list(range(ROWS))
    other = everything(ref.fields("n"), shuffle=shuffle, shuffle_seed=4)
    assert other.tolist() != list(range(ROWS))


def test_a_rank_reads_the_groups_of_its_lanes_alone(ref):
    shuffle = yogadl.Blocks("groups", window=2, lanes=4)
    ends = ref._records.group_ends
    seen = [
        set(np.searchsorted(ends, everything(ref, shuffle=shuffle, shard_rank=r, num_shards=4), "right"))
        for r in range(4)
    ]
    for one, other in itertools.combinations(seen, 2):
        assert len(one & other) <= 1  # a group that lies at the border of two lanes


@pytest.mark.parametrize("shuffle", [False, True, yogadl.Blocks("groups", window=3, lanes=2)])
def test_a_cursor_continues_on_other_ranks(ref, shuffle):
    def stream(rank=0, ranks=1, cursor=None):
        made = ref.fields("n").stream(
            shuffle=shuffle, shuffle_seed=1, shard_rank=rank, num_shards=ranks, cursor=cursor
        )
        return iter(made.batch(16))

    whole = np.concatenate([batch["n"] for batch in itertools.islice(stream(), ROWS // 16)])
    one = stream()
    for _ in range(10):
        next(one)
    cursor = one.state_dict()
    resumed = [stream(rank, 2, cursor) for rank in range(2)]
    rest = [np.concatenate([next(each)["n"] for _ in range(3)]) for each in resumed]
    assert np.stack(rest, axis=1).reshape(-1).tolist() == whole[160 : 160 + 96].tolist()
    with pytest.raises(CursorError, match="order"):
        ref.stream(shuffle=yogadl.Blocks("groups", window=7), shuffle_seed=1, cursor=cursor)


def test_blocks_of_groups_need_groups(storage, ref):
    other = storage.submit(range(10), "plain", "1")
    shuffle = yogadl.Blocks("groups", window=2)
    for wrong in (other, ref.select([1, 2, 3]), ref[::2], yogadl.concat([ref, ref])):
        with pytest.raises(ConfigurationError, match="groups"):
            wrong.stream(shuffle=shuffle)
    with pytest.raises(ConfigurationError, match="groups"):
        yogadl.mix({"a": (ref, 0.5), "b": (ref, 0.5)}).stream(shuffle=shuffle)
    for wrong in ({"window": 0}, {"window": 2, "lanes": -1}, {"window": 2, "lanes": 0}, {"window": "a"}):
        with pytest.raises(ConfigurationError):
            yogadl.Blocks("groups", **wrong)
    with pytest.raises(ConfigurationError):
        yogadl.Blocks("group", window=2)


def test_views_have_the_groups_of_their_parents(ref):
    shuffle = yogadl.Blocks("groups", window=2)
    mapped = ref.map(lambda record: {"n": record["n"]})
    assert sorted(everything(mapped, shuffle=shuffle).tolist()) == list(range(ROWS))
    for start, stop in ((0, 1), (99, 101), (100, 200), (37, 1999)):
        assert sorted(everything(ref[start:stop], shuffle=shuffle).tolist()) == list(range(start, stop))


def test_workers_read_the_same(ref):
    shuffle = yogadl.Blocks("groups", window=2)
    stream = ref.fields("n").stream(shuffle=shuffle)
    expected = [batch["n"].tolist() for batch in stream.batch(64).at(0)]
    found = [batch["n"].tolist() for batch in stream.batch(64).prefetch(2, workers=2).at(0)]
    assert found == expected


def test_views_over_rows(ref):
    assert len(ref.filter(lambda record: record["n"] % 3 == 0)) == len(range(0, ROWS, 3))
    chunks = ref.fields("tokens").chunks("tokens", 4)
    joined = np.concatenate([np.arange(k % 5, dtype=np.int32) for k in range(ROWS)])
    assert np.concatenate([chunks[k]["tokens"] for k in range(len(chunks))]).tolist() == (
        joined[: len(joined) // 4 * 4].tolist()
    )
    packed = ref.fields("tokens").packed(8, fields="tokens")
    total = sum(int((row["segments"] > 0).sum()) for row in packed.at(0)) if len(packed) else 0
    assert total == len(joined)


def test_a_version_goes_to_other_processes(ref):
    again = pickle.loads(pickle.dumps(ref))
    assert again[1234]["n"] == 1234
    ref.gather([0])
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(_number_of, [(ref, k) for k in (1, 999, 2000)]) == [1, 999, 2000]


def _number_of(given):
    ref, index = given
    return int(ref[index]["n"])


def test_files_that_changed_are_an_error_until_refreshed(storage, files, ref):
    path = files / "001.parquet"
    pq.write_table(table(5000, 500), path, row_group_size=97)
    fresh = storage.fetch("rows", "1")
    with pytest.raises(CacheFormatError, match=r"001.parquet is not the file"):
        fresh.gather([1000])
    assert fresh[0]["n"] == 0  # other files are as they were
    with pytest.raises(CacheFormatError, match=r"001.parquet"):
        storage.verify("rows", "1")
    pq.write_table(table(9000, 10), files / "999.parquet")
    new = storage.refresh("rows", "1", "2")
    numbers = [*range(1000), *range(5000, 5500), 1777, *range(1778, 2128), 2128, 2129, *range(9000, 9010)]
    assert everything(new).tolist() == numbers
    assert storage.refresh("rows", "2", "3").lineage.version == "2"
    storage.verify("rows", "2")


def test_files_are_appended(storage, files, ref, tmp_path):
    pq.write_table(table(ROWS, 33), tmp_path / "more.parquet", row_group_size=10)
    after = yogadl.FileOptions(base_version="1")
    more = storage.adopt(tmp_path / "more.parquet", "rows", "2", files=after)
    assert everything(more).tolist() == list(range(ROWS + 33))
    assert more.lineage.earlier[-1].version == "1"
    assert more[:ROWS].fingerprint == ref.fingerprint
    narrow = table(0, 3).select(["n", "text"])
    pq.write_table(narrow, tmp_path / "narrow.parquet")
    with pytest.raises(UnsupportedDataError):
        storage.adopt(tmp_path / "narrow.parquet", "rows", "3", files=after)
    with pytest.raises(ConfigurationError, match="rows of Parquet"):
        storage.append(table(0, 3), "rows", "3", base_version="1")
    plain = storage.submit(table(0, 5), "plain", "1")
    with pytest.raises(ConfigurationError, match="rows of Parquet"):
        storage.adopt(f"{files}/*.parquet", "plain", "2", files=after)
    assert len(plain) == 5


def test_copies(storage, ref, tmp_path):
    cursor = _cursor_after(ref, 5)
    other = yogadl.open_storage(tmp_path / "others")
    copy(storage, other, "rows", "1")
    copied = other.fetch("rows", "1")
    assert copied.fingerprint == ref.fingerprint
    whole = yogadl.open_storage(tmp_path / "whole")
    copy(storage, whole, "rows", "1", materialize=True)
    with pytest.raises(ConfigurationError, match="can't be compressed"):
        storage.recompress("rows", "1", "small", codec="zstd")
    compacted = storage.compact("rows", "1", "compact")
    small = storage.recompress("rows", "1", "small", codec="zstd", materialize=True)
    for each in (copied, whole.fetch("rows", "1"), storage.submit(ref, "kept", "1"), compacted, small):
        assert everything(each).tolist() == list(range(ROWS))
        rest = iter(each.stream(shuffle=True, cursor=cursor).batch(64))
        assert next(rest)["n"].tolist() == everything(ref, shuffle=True)[5 * 64 : 6 * 64].tolist()
    for path in (tmp_path / "in").iterdir():
        path.unlink()
    assert whole.fetch("rows", "1")[2000]["n"] == 2000


def test_sizes_are_those_of_columns(storage, ref, files):
    sizes = storage.field_sizes("rows", "1")
    assert list(sizes) == [field.name for field in ref.spec.fields]
    metadata = [pq.ParquetFile(path).metadata for path in files.iterdir()]
    groups = [each.row_group(number) for each in metadata for number in range(each.num_row_groups)]
    assert sizes["n"].raw_bytes == sum(group.column(0).total_compressed_size for group in groups)


def _cursor_after(ref, batches):
    reading = iter(ref.stream(shuffle=True).batch(64))
    for _ in range(batches):
        next(reading)
    return reading.state_dict()


def test_a_bucket_by_range_and_through_a_mirror(files, tmp_path):
    local = yogadl.open_storage(tmp_path / "bucket", foreign={f"file://{files}": {}})
    local.adopt(f"file://{files}/*.parquet", "rows", "1")
    for mirror in (None, tmp_path / "mirror"):
        storage = yogadl.open_storage(
            f"file://{tmp_path}/bucket", mirror=mirror, foreign={f"file://{files}": {}}
        )
        ref = storage.fetch("rows", "1")
        for shuffle in (True, yogadl.Blocks("groups", window=3)):
            assert sorted(everything(ref, shuffle=shuffle).tolist()) == list(range(ROWS))
        assert ref[2100]["text"] == "2100"
        assert str(ref.stream(shuffle=True).plan())


def test_exact_fingerprints(storage, files):
    weak = storage.adopt(f"{files}/*.parquet", "rows", "weak")
    exact = storage.adopt(f"{files}/*.parquet", "rows", "exact", files=yogadl.FileOptions(read=True))
    assert weak.fingerprint != exact.fingerprint
    for path in files.iterdir():
        os.utime(path, ns=(1, 10**18))
    again = storage.adopt(f"{files}/*.parquet", "rows", "again", files=yogadl.FileOptions(read=True))
    assert again.fingerprint == exact.fingerprint
    assert again[77]["n"] == 77


def test_nulls(storage, tmp_path):
    rows = pa.table({
        "n": pa.array([1, None, 3]), "text": pa.array(["a", None, "c"]),
        "tokens": pa.array([[1], None, []], pa.list_(pa.int64())),
    })  # fmt: skip
    pq.write_table(rows, tmp_path / "a.parquet")
    with pytest.raises(UnsupportedDataError, match=r"a.parquet: row group 0: field 'n' is None.*missing="):
        storage.adopt(tmp_path / "a.parquet", "rows", "1")
    with pytest.raises(UnsupportedDataError, match="field 'text' is None"):
        storage.adopt(tmp_path / "a.parquet", "rows", "1", missing={"n": -1})
    ref = storage.adopt(
        tmp_path / "a.parquet", "rows", "1", missing={"n": -1, "text": "empty", "tokens": "empty"}
    )
    assert ref.gather(range(3))["n"].tolist() == [1, -1, 3]
    assert ref.gather(range(3))["text"] == ["a", "", "c"]
    assert [each.tolist() for each in ref.gather(range(3))["tokens"]] == [[1], [], []]
    other = storage.adopt(
        tmp_path / "a.parquet", "rows", "2", missing={"n": -2, "text": "empty", "tokens": "empty"}
    )
    assert other.fingerprint != ref.fingerprint
    inner = pa.table({"s": pa.array([{"y": 1.5}, {"y": None}, {"y": None}], pa.struct({"y": pa.float64()}))})
    pq.write_table(inner, tmp_path / "s.parquet")
    filled = storage.adopt(tmp_path / "s.parquet", "inner", "1", missing={"s/y": 0.25})
    assert [record["s"]["y"] for record in filled] == [1.5, 0.25, 0.25]
    late = storage.adopt(tmp_path / "a.parquet", "rows", "3", fields=("tokens",))
    with pytest.raises(UnsupportedDataError, match=r"row group 0: .*'tokens' is None"):  # a footer can't tell
        late.gather([0])
    for wrong in ({"n": "empty"}, {"n": 0.5}, {"x": 1}, {"text": 3}):
        with pytest.raises(ConfigurationError):
            storage.adopt(tmp_path / "a.parquet", "rows", "4", missing=wrong)


def test_columns_that_files_lack(storage, tmp_path):
    for name, rows in (
        ("a", {"n": [1, 2]}),
        ("b", {"n": [3], "text": ["x"], "score": pa.array([0.5], pa.float32())}),
        ("c", {"text": ["y"], "n": [4], "score": pa.array([1.5], pa.float32())}),
    ):
        pq.write_table(pa.table(rows), tmp_path / f"{name}.parquet")
    paths = f"{tmp_path}/*.parquet"
    with pytest.raises(UnsupportedDataError, match=r"a.parquet lacks the column 'text'"):
        storage.adopt(paths, "rows", "1")
    assert storage.adopt(paths, "rows", "0", fields=("n",)).gather(range(4))["n"].tolist() == [1, 2, 3, 4]
    ref = storage.adopt(paths, "rows", "1", missing={"text": "empty", "score": float("nan")})
    assert ref.gather(range(4))["text"] == ["", "", "x", "y"]
    np.testing.assert_array_equal(
        ref.gather(range(4))["score"], np.array([np.nan, np.nan, 0.5, 1.5], np.float32)
    )
    pq.write_table(pa.table({"n": [1.5]}), tmp_path / "d.parquet")
    with pytest.raises(UnsupportedDataError, match=r"d.parquet has 'n' as double"):
        storage.adopt(paths, "rows", "2", fields=("n",))
    with pytest.raises(ConfigurationError, match="no file has the column 'x'"):
        storage.adopt(paths, "rows", "2", fields=("n", "x"))


def test_structs_of_one_column(storage, tmp_path):
    for name, rows in (
        ("a", {"s": [{"text": ["x"]}, {"text": []}]}),
        ("b", {"s": [{"b": 5}, {"b": None}]}),
        ("c", {"s": [{"b": {"c": 5}}, {"b": {"c": None}}]}),
    ):
        pq.write_table(pa.table(rows), tmp_path / f"{name}.parquet")
    assert list(storage.adopt(tmp_path / "a.parquet", "a", "1")[1]["s"]["text"]) == []
    assert storage.adopt(tmp_path / "b.parquet", "b", "1", missing={"s/b": -1})[1] == {"s": {"b": -1}}
    assert storage.adopt(tmp_path / "c.parquet", "c", "1", missing={"s/b/c": -1})[1]["s"]["b"]["c"] == -1
    assert list(storage.adopt(tmp_path / "a.parquet", "d", "1", missing="empty")[1]["s"]["text"]) == []


def test_columns_of_structs_that_files_lack(storage, tmp_path):
    pq.write_table(pa.table({"n": [1], "s": [{"a": 5, "b": "x"}]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"n": [2]}), tmp_path / "b.parquet")
    pq.write_table(pa.table({"other": [2]}), tmp_path / "c.parquet")
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    with pytest.raises(UnsupportedDataError, match=r"missing={'s/a': ..., 's/b': ...}"):
        storage.adopt(paths, "rows", "1")
    ref = storage.adopt(paths, "rows", "1", missing={"s/a": -1, "s/b": "empty"})
    assert list(ref) == [{"n": 1, "s": {"a": 5, "b": "x"}}, {"n": 2, "s": {"a": -1, "b": ""}}]
    paths.append(tmp_path / "c.parquet")
    filled = storage.adopt(paths, "rows", "2", fields=("n",), missing={"n": 7})
    assert filled.gather(range(3))["n"].tolist() == [1, 2, 7]


def test_files_without_rows_have_no_say(storage, tmp_path):
    for name, rows in (
        ("a", {"l": pa.array([], pa.null())}),
        ("b", {"l": [[1]], "d": pa.array([None], pa.int8())}),
        ("c", {"d": pa.array([3], pa.int8()), "l": pa.array([None], pa.null())}),
    ):
        pq.write_table(pa.table(rows), tmp_path / f"{name}.parquet")
    files = f"{tmp_path}/*.parquet"
    with pytest.raises(UnsupportedDataError, match=r"c.parquet.*'l' is None"):
        storage.adopt(files, "rows", "1", missing={"d": -1})
    ref = storage.adopt(files, "rows", "1", missing={"d": -1, "l": "empty"})
    assert [(record["l"].tolist(), int(record["d"])) for record in ref] == [([1], -1), ([], 3)]


def test_dates_in_the_place_of_nulls(storage, tmp_path):
    days = [datetime.date(2020, 1, 2), None]
    rows = pa.table({
        "day": pa.array(days), "at": pa.array([None, datetime.datetime(2020, 1, 2)], pa.timestamp("us")),
        "took": pa.array([None, 5], pa.duration("s")),
    })  # fmt: skip
    path = tmp_path / "a.parquet"
    pq.write_table(rows, path)
    first, at = datetime.date(1970, 1, 1), np.datetime64("2000-01-01T00:00:01")
    missing = {"day": first, "at": at, "took": datetime.timedelta(seconds=-1)}
    ref = storage.adopt(path, "rows", "1", missing=missing)
    assert ref.gather([0, 1])["day"].tolist() == [days[0], first]
    assert str(ref[0]["at"]) == "2000-01-01T00:00:01.000000"
    assert ref.gather([0, 1])["took"].astype(int).tolist() == [-1, 5]
    assert storage.fetch("rows", "1")[0]["took"] == np.timedelta64(-1, "s")
    os.utime(path, ns=(5, 5))
    assert str(storage.refresh("rows", "1", "2")[1]["day"]) == "1970-01-01"
    ref = storage.adopt(path, "ints", "1", fields=("took",), missing={"took": np.timedelta64(7, "m")})
    assert ref[0]["took"] == np.timedelta64(420, "s")


def test_texts_that_are_none(storage, tmp_path):
    texts = pa.array([b"ok", b"\xff\xfe"]).view(pa.string())
    pq.write_table(pa.table({"a": texts}), tmp_path / "a.parquet")
    ref = storage.adopt(tmp_path / "a.parquet", "rows", "1")
    assert ref[0] == {"a": "ok"}
    with pytest.raises(UnsupportedDataError, match=r"a.parquet: row group 0: a text .* is not UTF-8"):
        ref.gather([0, 1])


def test_pictures_that_only_some_files_have_with_a_path(storage, tmp_path):
    features = b'{"info": {"features": {"image": {"_type": "Image"}}}}'
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    schema = pa.schema({"image": kind}, metadata={b"huggingface": features})
    rows = [{"image": {"bytes": b"1", "path": "x"}}]
    pq.write_table(pa.Table.from_pylist(rows, schema), tmp_path / "a.parquet")
    pq.write_table(pa.table({"image": [b"2"]}), tmp_path / "b.parquet")
    for paths, found in (("ab", [b"1", b"2"]), ("ba", [b"2", b"1"])):
        ref = storage.adopt([tmp_path / f"{name}.parquet" for name in paths], paths, "1")
        assert ref.gather([0, 1])["image"] == found


def test_tensors(storage, tmp_path):
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(24, dtype=np.float32).reshape(4, 2, 3))
    pq.write_table(pa.table({"t": tensors}), tmp_path / "a.parquet")
    ref = storage.adopt(tmp_path / "a.parquet", "rows", "1")
    assert ref[3]["t"].tolist() == [[18, 19, 20], [21, 22, 23]]


def test_names_of_folders_are_no_column(storage, tmp_path, caplog):
    (tmp_path / "in/p=1").mkdir(parents=True)
    pq.write_table(pa.table({"n": [1]}), tmp_path / "in/p=1/a.parquet")
    assert storage.adopt(tmp_path / "in", "rows", "1")[0] == {"n": 1}
    assert "folders such as p=1 are no column" in caplog.text


def test_columns_of_a_group_that_together_are_too_large(storage, tmp_path, monkeypatch):
    rows = pa.table({name: np.arange(1000) for name in "abc"})
    pq.write_table(rows, tmp_path / "a.parquet", row_group_size=500)
    set_constants(monkeypatch, HELD_BYTES=2 * 4000)
    ref = storage.adopt(tmp_path / "a.parquet", "rows", "1")
    for name in ("a", "b", "c", "a"):  # those that were read before are let go of
        assert ref.fields(name)[700] == {name: 700}
    assert ref.fields("a", "c")[7] == {"a": 7, "c": 7}
    with pytest.raises(ConfigurationError, match="the columns a, b, c take 12"):
        ref[7]


def test_names_that_no_column_has(storage, files):
    for said in ("zz", "inner/a"):
        with pytest.raises(ConfigurationError, match="json= names"):
            storage.adopt(f"{files}/*.parquet", "rows", "1", files=yogadl.FileOptions(json=(said,)))
    with pytest.raises(ConfigurationError, match='or "groups"'):
        yogadl.Blocks("group", window=2)


def test_json_columns(storage, files):
    said = yogadl.FileOptions(json=("inner", "tokens"))
    ref = storage.adopt(f"{files}/*.parquet", "rows", "1", fields=("inner", "tokens"), files=said)
    assert ref[8] == {"inner": {"a": 8, "b": {"c": "8"}}, "tokens": [0, 1, 2]}


@pytest.mark.parametrize(
    "kind", [pa.binary(), pa.date32(), pa.timestamp("us"), pa.duration("s"), pa.time32("s")]
)
def test_types_that_json_has_not_are_refused_at_once(storage, tmp_path, kind):
    rows = pa.table({"n": [1], "tree": pa.array([[]], pa.list_(pa.struct({"a": pa.list_(kind)})))})
    pq.write_table(rows, tmp_path / "a.parquet")
    with pytest.raises(UnsupportedDataError, match=r"a.parquet: column 'tree' is .* has no form in JSON"):
        storage.adopt(tmp_path / "a.parquet", "rows", "1")
    assert storage.adopt(tmp_path / "a.parquet", "rows", "1", fields=("n",))[0] == {"n": 1}


def test_images_of_hugging_face(storage, tmp_path):
    features = (
        b'{"info": {"features": {"image": {"_type": "Image"}, "n": {"dtype": "int64", "_type": "Value"}}}}'
    )
    schema = pa.schema(
        {"image": pa.struct({"bytes": pa.binary(), "path": pa.string()}), "n": pa.int64()},
        metadata={b"huggingface": features},
    )
    rows = [{"image": {"bytes": b"\xff" * k, "path": None}, "n": k} for k in range(5)]
    pq.write_table(pa.Table.from_pylist(rows, schema), tmp_path / "a.parquet", row_group_size=2)
    ref = storage.adopt(tmp_path / "a.parquet", "images", "1")
    assert ref.gather([4, 0])["image"] == [b"\xff" * 4, b""]
    assert ref[2] == {"image": b"\xff" * 2, "n": 2}


def test_splits_are_not_mixed(storage, tmp_path):
    for split, number in itertools.product(("train", "test"), range(2)):
        path = tmp_path / f"data/{split}-{number:05d}-of-00002.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(table(number * 10, 10), path)
    with pytest.raises(ConfigurationError, match=r"test.*train"):
        storage.adopt(tmp_path / "data", "rows", "1")
    ref = storage.adopt(f"{tmp_path}/data/train-*.parquet", "rows", "1")
    assert everything(ref).tolist() == list(range(20))


@pytest.mark.parametrize("options", [
    {"compression": "NONE"}, {"compression": "ZSTD"}, {"use_dictionary": False}, {"data_page_version": "2.0"},
    {"data_page_size": 64}, {"version": "1.0"}, {"write_page_index": True}, {"store_schema": False},
])  # fmt: skip
def test_files_as_others_write_them(storage, tmp_path, options):
    write_all(tmp_path / "in", **options)
    ref = storage.adopt(tmp_path / "in", "rows", "1")
    expected = storage.submit(table(0, ROWS), "copied", "1")
    order = np.random.default_rng(0).permutation(ROWS)[:200]
    found, wanted = (
        ref.fields("n", "text", "tokens", "inner"),
        expected.fields("n", "text", "tokens", "inner"),
    )
    trees.assert_equal(found.gather(order), wanted.gather(order))


def test_groups_and_files_without_rows(storage, tmp_path):
    with pq.ParquetWriter(tmp_path / "a.parquet", table(0, 1).schema) as writer:
        for first, count in ((0, 3), (3, 0), (3, 2)):
            writer.write_table(table(0, 9).slice(first, count))
    pq.write_table(table(0, 9).slice(0, 0), tmp_path / "b.parquet")
    pq.write_table(table(5, 4), tmp_path / "c.parquet")
    ref = storage.adopt(f"{tmp_path}/*.parquet", "rows", "1")
    assert everything(ref).tolist() == list(range(9))
    with pytest.raises(UnsupportedDataError, match="record"):
        storage.adopt(tmp_path / "b.parquet", "rows", "2")


@pytest.mark.parametrize("room", [-1, 0, 1])
def test_groups_that_are_held_by_their_bytes(storage, tmp_path, monkeypatch, room):
    pq.write_table(pa.table({"n": np.arange(1000)}), tmp_path / "a.parquet", row_group_size=100)
    set_constants(monkeypatch, HELD_BYTES=800 + room)
    ref = storage.adopt(tmp_path / "a.parquet", "rows", "1")
    if room < 0:
        with pytest.raises(ConfigurationError, match=r"row group 0: the columns n take.*smaller row groups"):
            ref.gather([5])
        return
    order = np.random.default_rng(0).permutation(1000)
    assert ref.gather(order)["n"].tolist() == order.tolist()
    assert sorted(everything(ref, shuffle=yogadl.Blocks("groups", window=3)).tolist()) == list(range(1000))


@pytest.mark.parametrize("extra", [-1, 0, 1, 5000])
def test_footers_of_any_length(storage, tmp_path, monkeypatch, extra):
    pq.write_table(table(0, 50), tmp_path / "a.parquet", row_group_size=5)
    size = int.from_bytes((tmp_path / "a.parquet").read_bytes()[-8:-4], "little")
    set_constants(monkeypatch, TAIL_BYTES=size + 8 + extra)
    assert everything(storage.adopt(tmp_path / "a.parquet", "rows", "1")).tolist() == list(range(50))


@pytest.mark.parametrize("size", [0, 3, 11, 12, 13])
def test_files_that_are_none(storage, tmp_path, size):
    (tmp_path / "a.parquet").write_bytes(
        b"PAR1" + b"x" * 8 + b"PAR1" if size > 12 else b"PAR1PAR1PAR1"[:size]
    )
    with pytest.raises(UnsupportedDataError, match=r"a.parquet"):
        storage.adopt(tmp_path / "a.parquet", "rows", "1")


def test_windows_decode_each_group_once_a_batch_and_of_it_only_the_columns_in_use(ref, monkeypatch):
    windows = ref.windows({"pair": [-1, 0], "raw": [0, 300]}, None).fields("n", "pair", "raw")
    decoded, opened = [], pq.ParquetFile

    def noted(file, metadata=None, **options):
        found = opened(file, metadata=metadata, **options)
        if metadata is None:  # a footer is read
            return found

        def read_row_group(number, column_indices, **options):
            names = [metadata.schema.column(column).path.partition(".")[0] for column in column_indices]
            decoded.extend((metadata.num_rows, number, name) for name in names)
            return found.reader.read_row_group(number, column_indices=column_indices, **options)

        return SimpleNamespace(reader=SimpleNamespace(read_row_group=read_row_group))

    monkeypatch.setattr(pq, "ParquetFile", noted)
    batch = windows.gather([5, 6, 250, 1001])
    assert batch["pair"][:, :, 0].tolist() == [[4, 5], [5, 6], [249, 250], [1000, 1001]]
    assert batch["raw"][1] == [bytes([k % 256]) * (k % 7) for k in (305, 306, 550, 1301)]
    assert len(set(decoded)) == len(decoded) > 0
    assert {column for _, _, column in decoded} == {"n", "pair", "raw"}


def test_a_group_is_decoded_once_by_many_threads(ref, monkeypatch):
    from concurrent.futures import ThreadPoolExecutor

    decoded = []
    opened = pq.ParquetFile

    def counting(file, metadata=None, **options):
        if metadata is not None:  # else a footer is read
            decoded.append(file)
        return opened(file, metadata=metadata, **options)

    monkeypatch.setattr(pq, "ParquetFile", counting)
    dice = random.Random(0)
    picks = [[dice.randrange(ROWS) for _ in range(50)] for _ in range(40)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda pick: ref.gather(pick)["n"].tolist(), picks))
    assert found == picks
    ref.gather(range(ROWS))
    assert len(decoded) == len(ref._records.group_ends)
    decoded.clear()
    assert len(everything(ref, shuffle=yogadl.Blocks("groups", window=2))) == ROWS
    assert not decoded  # all are held


@pytest.mark.parametrize("shuffle", [False, yogadl.Blocks("groups", window=3), True])
def test_plans_count_each_group_once(ref, files, tmp_path, shuffle):
    local = yogadl.open_storage(tmp_path / "bucket", foreign={f"file://{files}": {}})
    local.adopt(f"file://{files}/*.parquet", "rows", "1")
    storage = yogadl.open_storage(f"file://{tmp_path}/bucket", mirror=None, foreign={f"file://{files}": {}})
    planned = storage.fetch("rows", "1").stream(shuffle=shuffle).batch(64).plan().way("ranges").bytes
    far = storage.fetch("rows", "1")
    assert len(far._records.group_ends) == len(ref._records.group_ends)  # what is known of groups is read
    before = far.locality().range_bytes
    assert len(everything(far, shuffle=shuffle)) == ROWS
    metadata = [pq.ParquetFile(path).metadata for path in sorted(files.iterdir())]
    footers = sum(each.serialized_size + 8 for each in metadata)
    parts = sum(path.stat().st_size for path in (tmp_path / "bucket").rglob("*.mdb"))
    received = far.locality().range_bytes - before
    assert planned <= received <= planned + footers + 2 * parts  # where columns lie is read, too
