"""The samples of MDS shards are found; shards that are damaged or compressed are refused."""

import json
import struct

import numpy as np
import pytest
from foreign_files import WINDOWS, mds_config, mds_of, read, refusal
from inside import MDS, shards_of

from yogadl import Leaf
from yogadl.errors import UnsupportedDataError

COLUMNS = {
    "a": "int", "b": "bytes", "c": "str", "d": "ndarray:float32:2,3", "e": "ndarray:int16", "f": "float32",
    "g": "ndarray:int16:2", "h": "jpeg", "i": "json", "j": "str_int", "k": "uint8", "l": "pkl",
}  # fmt: skip


def array_of(values, code=0):
    sizes = np.array(values.shape, f"<u{1 << code}").tobytes()
    return bytes([values.ndim << 2 | code]) + sizes + values.tobytes()


def sample_of(k):
    return [
        struct.pack("<q", -k), b"b" * (k * 37 % 101), "é".encode() * k, np.full((2, 3), k, "<f4").tobytes(),
        array_of(np.arange(1 + k % 5, dtype="<i2"), k % 4), struct.pack("<f", k),
        np.array([k, -k], "<i2").tobytes(), b"\xff\xd8" * k, b'{"k": 1}', str(k).encode(), bytes([k]), b"",
    ]  # fmt: skip


def expected_of(k):
    return {
        "a": -k, "b": b"b" * (k * 37 % 101), "c": "é" * k, "d": np.full((2, 3), k), "e": np.arange(1 + k % 5),
        "f": k, "g": [k, -k], "h": b"\xff\xd8" * k, "i": '{"k": 1}', "j": str(k), "k": k, "l": b"",
    }  # fmt: skip


@pytest.mark.parametrize("window_bytes", WINDOWS)
@pytest.mark.parametrize("count", [0, 1, 2, 131])
def test_samples_come_back(count, window_bytes):
    kind, records = read(MDS(), mds_of(COLUMNS, map(sample_of, range(count))), window_bytes)
    assert len(records) == count
    for k, record in enumerate(records):
        assert list(record) == list(COLUMNS)
        for name, value in expected_of(k).items():
            np.testing.assert_array_equal(record[name], value)
    leaves = dict(zip(COLUMNS, kind.spec.tree.children, strict=True))
    assert leaves["e"] == Leaf("int16", (None,) if count else None)
    assert leaves["g"] == Leaf("int16", (2,))


def test_fields_choose_columns_and_their_order():
    kind, records = read(MDS(("k", "a")), mds_of({**COLUMNS, "p": "pil"}, [[*sample_of(3), b"pixels"]]))
    assert records == [{"k": 3, "a": -3}]
    assert kind.spec.keys() == ["k", "a"]


ONE = {"b": "bytes"}
GOOD = mds_of(ONE, [[b"xyz"], [b"uv"]])


# An array whose number of dimensions is not known before it is read, and which lies behind the shard's end.
FAR = mds_of({"b": "bytes", "e": "ndarray:int16"}, [[b"xyz", array_of(np.arange(2, dtype="<i2"))]]).replace(
    struct.pack("<I", 3), struct.pack("<I", 10_000), 1
)


def changed(position, value):
    content = bytearray(GOOD)
    content[position : position + 4] = struct.pack("<I", value)
    return bytes(content)


def first_of(content):
    return struct.unpack_from("<I", content, 4)[0]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"1234567", "no shard"),
        (changed(0, 2**32 - 1), "is longer"),
        (changed(4, 2**32 - 1), "configuration can't have"),
        (changed(4, 0), "configuration can't have"),
        (changed(8, 0), "do not follow each other"),
        (changed(8, 2**32 - 1), "do not follow each other"),
        (changed(12, 2**32 - 1), "the samples end at"),
        (GOOD[:-1], "the samples end at"),
        (GOOD + b"1", "the samples end at"),
        (mds_of(ONE, []) + b"1", "bytes follow"),
        (changed(first_of(GOOD), 4), "do not add up"),
        (changed(first_of(GOOD), 2**32 - 1), "do not add up"),
        (FAR, "do not add up"),
        (mds_of(ONE, [], format="csv"), "only version 2 of mds"),
        (mds_of(ONE, [], version=3), "only version 2 of mds"),
        (mds_of(ONE, [], column_names=["a", "b"]), "damaged"),
        (mds_of(ONE, [], column_names=[1]), "damaged"),
        (mds_of(ONE, [], column_sizes=[3]), "has None bytes, not 3"),
        (mds_of({"a": "int"}, [], column_sizes=[-1]), "can't have -1 bytes"),
        (mds_of({}, []), "damaged"),
        (mds_of({f"a{k}": "int" for k in range(5000)}, []), "damaged"),
        (mds_of({"p": "pil"}, []), "leave it out"),
        (mds_of({"p": "ndarray"}, []), "leave it out"),
        (mds_of({"p": "ndarray:int16:0"}, []), "leave it out"),
        (mds_of({"p": f"ndarray:int16:{2**60}"}, []), "leave it out"),
        (mds_of({"p": "ndarray:object:2"}, []), "leave it out"),
        (mds_of({"e": "ndarray:int16"}, [[b""]]), "no head"),
        (mds_of({"e": "ndarray:int16"}, [[b"\x04"]]), "shorter than its shape"),
        (mds_of({"e": "ndarray:int16"}, [[b"\x04\x02ab"]]), "shape and bytes differ"),
        (mds_of({"e": "ndarray:int16"}, [[b"\x04\x00"]]), "shape and bytes differ"),
        (mds_of({"e": "ndarray:int16"}, [[b"\x7f" + b"\xff" * 248]]), "shape and bytes differ"),
        (mds_of({"e": "ndarray:int16"}, [[b"\xff" + b"\xff" * 600]]), "another rank"),
        (mds_of({"e": "ndarray:int16"}, [[b"\x04\x01ab"], [b"\x08\x01\x01ab"]]), "another rank"),
        (mds_of({"e": "ndarray:int16"}, [[b"\x04\x01ab"], [b""]]), "no head"),
    ],
)
def test_what_is_refused(content, problem):
    assert problem in refusal(MDS(), content)


def index_of(**changes):
    raw = {"basename": "shard.00000.mds", "bytes": 123, "hashes": {}}
    entry = {**mds_config(ONE), "raw_data": raw, "zip_data": None, "samples": 2, **changes}
    return json.dumps({"version": 2, "shards": [entry]}).encode()


def test_the_shards_of_an_index():
    assert shards_of(index_of()) == [("shard.00000.mds", 123)]
    assert shards_of(index_of(raw_data={"basename": "a/b.mds", "bytes": 0})) == [("a/b.mds", 0)]
    assert shards_of(b'{"version": 2, "shards": []}') == []


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "no index"),
        (b"[]", "no index"),
        (b'{"version": 2}', "no index"),
        (b'{"version": 2, "shards": 5}', "no index"),
        (b'{"version": 2, "shards": [5]}', "no index"),
        (b'{"version": 1, "shards": []}', "version 1 is not 2"),
        (b"[" * 100000, "no index"),
        (index_of(format="jsonl"), "'jsonl'"),
        (index_of(compression="zstd"), "compressed ('zstd')"),
        (index_of(zip_data={}), "compressed"),
        (index_of(raw_data=None), "no index"),
        *(
            (index_of(raw_data={"basename": name, "bytes": 1}), "not in its folder")
            for name in ("../a", "/a", "a/../b", "", ".", "a//b", "a\\b", "a\0b")
        ),
        (index_of(raw_data={"basename": "a", "bytes": -1}), "is no file"),
        (index_of(raw_data={"basename": 1, "bytes": 1}), "is no file"),
    ],
)
def test_what_is_no_index(content, problem):
    with pytest.raises(UnsupportedDataError) as caught:
        shards_of(content)
    assert problem in str(caught.value)
