"""What lies on the disk: readable by a stranger in plain Python, and by LMDB itself."""

import hashlib
import importlib.util
import json
from pathlib import Path

import lmdb
import ml_dtypes
import numpy as np
import pytest
from cache_files import parts_and_indexes
from inside import ArrayFile
from plain_reader import PlainCache, read_arrays
from xxhash import xxh3_64_intdigest

import yogadl
from yogadl.errors import CacheFormatError


def mixed_records(count):
    """Return records of every kind of field; 'late' varies only in the second half, 'rank' by rank."""
    rng = np.random.default_rng(1)
    return [
        {
            "number": i,
            "image": rng.integers(0, 255, (3, 5), np.uint8),
            "half": rng.normal(size=2).astype(ml_dtypes.bfloat16),
            "text": "ü\ud800" * (i % 4),
            "blob": rng.bytes(rng.integers(0, 3000)),
            "ragged": np.arange(i % 5, dtype=np.int16),
            "late": np.arange(3 if i < count // 2 else i % 6, dtype=np.float32),
            "rank": np.full((1,) * (i % 3), i, np.int32),
            "words": np.array(["a", "bc", ""][: i % 4 or 1], object),
            "nothing": np.zeros((0, 2)),
            "pair": (i, [float(i), {0: b"\0"}]),
        }
        for i in range(count)
    ]


def plain(value):
    """Return what the plain reader should find for a value that yogadl read."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, str):
        return "str", (), value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return "bytes", (), value
    array = np.asarray(value)
    if array.dtype == np.dtype(object):
        return "str", array.shape, [item.encode() for item in array.ravel()]
    return array.dtype.name, array.shape, array.tobytes()


def with_string_keys(found):
    if isinstance(found, dict):
        return {str(key): with_string_keys(item) for key, item in found.items()}
    return (
        [with_string_keys(item) for item in found]
        if isinstance(found, list) and not is_leaf(found)
        else found
    )


def is_leaf(found):
    return all(isinstance(item, bytes) for item in found)


NEEDS_ZSTD = pytest.mark.skipif(importlib.util.find_spec("zstandard") is None, reason="needs zstandard")


@pytest.mark.parametrize("codec", [None, pytest.param("zstd", marks=NEEDS_ZSTD)])
@pytest.mark.parametrize("part_bytes", [None, 20_000, 1])
def test_a_reader_of_a_few_plain_lines_reads_every_record(storage, part_bytes, codec):
    records = mixed_records(60)
    storage.submit(
        records, "team/mixed", "v/1", build=yogadl.BuildOptions(part_bytes=part_bytes), codec=codec
    )
    cache = PlainCache(Path(storage.location), "team/mixed", "v/1")
    assert cache.manifest["records"] == 60
    for i, record in enumerate(records):
        assert with_string_keys(cache.record(i)) == plain(record)


def parts_of(storage, dataset_id):
    return sorted(Path(storage.location, dataset_id, "parts").glob("*.mdb"))


def blocks_of(index):
    """Yield key, position, length and checksum of every block that an index names."""
    arrays, document = read_arrays(index)
    for f in range(len(document["fields"])):
        for kind in ("rows", "heap"):
            columns = [arrays[f"{f}.{kind}.{name}"].tolist() for name in ("position", "length", "checksum")]
            for block, (position, length, checksum) in enumerate(zip(*columns, strict=True)):
                yield f"{f:04d}.{kind}.{block:08d}".encode(), position, length, checksum


@pytest.mark.parametrize("part_bytes", [None, 100_000])
def test_lmdb_returns_every_block_by_key_with_the_bytes_at_its_position(storage, part_bytes):
    rng = np.random.default_rng(1)
    source = {
        "rows": rng.integers(0, 255, (5000, 700), np.uint8),
        "blob": [rng.bytes(k % 700) for k in range(5000)],
        "tiny": np.arange(5000),
    }
    storage.submit(source, "d", "1", build=yogadl.BuildOptions(part_bytes=part_bytes))
    parts = parts_and_indexes(Path(storage.location, "d"))
    assert len(parts) > (1 if part_bytes else 0)
    for path, index in parts:
        content = path.read_bytes()
        keys = []
        with (
            lmdb.open(str(path), subdir=False, readonly=True, lock=False) as database,
            database.begin() as transaction,
        ):
            for key, position, length, checksum in blocks_of(index):
                value = transaction.get(key)
                keys.append(key)
                assert value[:length] == content[position : position + length]
                assert not any(value[length:])
                assert position % database.stat()["psize"] == 16
                assert xxh3_64_intdigest(value[:length]) == checksum
            assert sorted(keys) == [key for key, _ in transaction.cursor()]


def test_every_file_is_named_by_its_content_and_the_manifest_names_them_all(storage):
    storage.submit(mixed_records(40), "d", "1", build=yogadl.BuildOptions(part_bytes=5000))
    root = Path(storage.location, "d")
    manifest = json.loads((root / "versions" / "1.json").read_text())
    (table,) = (root / "tables").iterdir()
    assert table.name == f"{hashlib.sha256(table.read_bytes()).hexdigest()}.parts"
    assert table.stem == manifest["table"]["sha256"]
    assert table.stat().st_size == manifest["table"]["bytes"]
    arrays, _ = read_arrays(table)
    named = [row.tobytes().hex() for row in arrays["part.sha256"]]
    assert len(named) == manifest["parts"] > 3
    assert {path.stem for path in parts_of(storage, "d")} == set(named)
    indexes = [row.tobytes().hex() for row in arrays["index.sha256"]]
    assert {path.stem for path in (root / "parts").glob("*.idx")} == set(indexes)
    for path in (root / "parts").iterdir():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.stem
    assert manifest["bytes"] == sum(path.stat().st_size for path in parts_of(storage, "d"))


def test_nothing_unfinished_is_left_beside_a_cache(storage):
    storage.submit(mixed_records(40), "d", "1", build=yogadl.BuildOptions(part_bytes=5000))
    files = {
        path.relative_to(Path(storage.location)).parts[1]
        for path in Path(storage.location).rglob("*")
        if path.is_file()
    }
    assert files - {"locks"} == {"versions", "parts", "tables"}
    assert not list(Path(storage.location).rglob(".*"))


def test_the_same_source_makes_the_same_files(tmp_path):
    names = []
    for place in ("a", "b"):
        storage = yogadl.open_storage(tmp_path / place)
        storage.submit(
            {"x": np.arange(10_000), "t": [f"{i}" for i in range(10_000)]},
            "d",
            "1",
            build=yogadl.BuildOptions(part_bytes=50_000),
        )
        names.append([path.name for path in parts_of(storage, "d")])
    assert names[0] == names[1]


@pytest.mark.parametrize(
    ("payload", "limit"),
    [
        ({"x": np.zeros((4000, 1024), np.uint8)}, 1.02),
        ({"x": np.zeros((500, 8192), np.uint8), "y": np.zeros(500, np.int64)}, 1.02),
        ({"x": np.zeros((30, 224, 224, 3), np.uint8), "y": np.zeros(30, np.int64)}, 1.02),
        ({"b": [bytes(1000 + k % 2000) for k in range(2500)]}, 1.02),
        ({"x": np.zeros((60_000, 16), np.float32), "y": np.zeros(60_000, np.int64)}, 1.03),
    ],
    ids=["1 KB", "8 KB", "images", "bytes of 1 to 3 KB", "72 bytes"],
)
def test_the_disk_holds_little_more_than_the_payload(storage, payload, limit):
    storage.submit(payload, "d", "1")
    bytes_on_disk = sum(path.stat().st_size for path in Path(storage.location).rglob("*") if path.is_file())
    payload_bytes = sum(c.nbytes if isinstance(c, np.ndarray) else sum(map(len, c)) for c in payload.values())
    assert payload_bytes > 3e6
    assert bytes_on_disk / payload_bytes <= limit


def test_a_million_records_in_one_part_take_a_small_table(storage):
    storage.submit(np.zeros((300_000, 16), np.float32), "d", "1")
    (table,) = Path(storage.location, "d", "tables").iterdir()
    assert table.stat().st_size < 10_000


def test_an_array_file_gives_back_its_arrays_and_document():
    arrays = {
        "a": np.arange(5, dtype=np.int64),
        "b.c": np.arange(6, dtype=np.uint64).reshape(2, 3),
        "": np.zeros(0, np.uint8),
    }
    content = ArrayFile(arrays, {"x": [1, "ü"]}).to_bytes()
    found = ArrayFile.from_buffer(content, "the file")
    assert found.document == {"x": [1, "ü"]}
    assert found.arrays.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found.arrays[name].dtype == array.dtype
        assert np.array_equal(found.arrays[name], array)
        assert not found.arrays[name].flags.writeable
    assert content == ArrayFile(dict(reversed(arrays.items())), {"x": [1, "ü"]}).to_bytes()


def test_no_cut_of_an_array_file_passes():
    content = ArrayFile({"a": np.arange(50, dtype=np.int64)}, {"x": 1}).to_bytes()
    for length in [*range(0, len(content), 7), len(content) - 1]:
        with pytest.raises(CacheFormatError, match="the table of d is damaged"):
            ArrayFile.from_buffer(content[:length], "the table of d")


def test_no_changed_byte_of_an_array_file_raises_anything_but_a_format_error():
    content = bytearray(ArrayFile({"a": np.arange(9, dtype=np.int64)}, {"x": 1}).to_bytes())
    for position in range(len(content) - 72):
        for value in (0, 0x7F, ord("9"), ord('"')):
            changed = content.copy()
            changed[position] = value
            try:
                ArrayFile.from_buffer(changed, "it")
            except CacheFormatError:
                pass
