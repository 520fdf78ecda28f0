"""What goes into a cache comes out of it: every dtype, every shape, every structure."""

from collections import namedtuple
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trees import assert_same

import yogadl
from yogadl import Leaf
from yogadl.errors import ConfigurationError, UnsupportedDataError

DTYPES = [
    *["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"],
    *["float16", "float32", "float64", "complex64", "complex128"],
    *["datetime64[ns]", "datetime64[D]", "timedelta64[ms]", "timedelta64[25s]"],
    *[ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.int4],
    *[">i2", ">f4", ">f8", ">c8", ">M8[ns]"],
]


def any_bits(dtype, shape):
    """Values of every bit pattern that the dtype has: NaNs with payloads, infinities, NaT, -0."""
    dtype = np.dtype(dtype)
    count = int(np.prod(shape))
    rng = np.random.default_rng(count)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.name in ("int4", "uint4"):
        return rng.integers(0, 7, shape).astype(dtype)
    return np.frombuffer(rng.bytes(count * dtype.itemsize), dtype).reshape(shape)


def check(ref, records):
    """Read every way there is and compare with the records."""
    count = len(records)
    assert len(ref) == count
    for index in {0, count // 2, count - 1, -1, -count}:
        assert_same(ref[index], records[index])
    order = np.random.default_rng(0).permutation(count)
    for found, index in zip(ref.__getitems__(order), order, strict=True):
        assert_same(found, records[index])
    for found, expected in zip(ref, records, strict=True):
        assert_same(found, expected)


@pytest.mark.parametrize(  # each dtype alone and in a shape, and each shape with dtypes of other sizes
    ("dtype", "shape"),
    [(dtype, shape) for dtype in DTYPES for shape in [(), (2, 3)]]
    + [(dtype, shape) for dtype in ("bool", "uint16", ">f8") for shape in [(3,), (0,), (2, 0)]],
    ids=str,
)
def test_numbers_of_every_dtype_and_shape(built, dtype, shape):
    array = any_bits(dtype, (37, *shape))
    from_arrays = built({"x": array}, build=yogadl.BuildOptions(part_bytes=max(1, array.nbytes // 3)))
    check(from_arrays, [{"x": row} for row in array])
    from_records = built([{"x": row} for row in array])
    check(from_records, [{"x": row} for row in array])
    assert from_records.fingerprint == from_arrays.fingerprint

    batch = from_arrays.gather([30, 3, 3, -1])["x"]
    expected = array[[30, 3, 3, -1]]
    expected = expected.astype(expected.dtype.newbyteorder("="))
    assert type(batch) is np.ndarray
    assert (batch.dtype, batch.shape) == (expected.dtype, expected.shape)
    assert batch.tobytes() == expected.tobytes()
    assert batch.flags.c_contiguous
    assert batch.flags.writeable
    leaf = from_arrays.spec.fields[0].leaf
    assert leaf == Leaf(np.dtype(dtype).name, shape)


TEXTS = ["", "a", "üñï", "日本語", "👩‍👩‍👧", "\0", "a\0b\0", "\ud800", "x\udfff\ud800y", "z" * 5000, "\r\n"]


@pytest.mark.parametrize("part_bytes", [None, 64])
def test_text_of_every_kind(built, part_bytes):
    records = [{"text": text, "n": n} for n, text in enumerate(TEXTS * 3)]
    check(built(records, build=yogadl.BuildOptions(part_bytes=part_bytes)), records)
    ref = built({"text": TEXTS * 3, "n": np.arange(33)}, build=yogadl.BuildOptions(part_bytes=part_bytes))
    check(ref, records)
    assert ref.gather([1, 3])["text"] == ["a", "日本語"]


@pytest.mark.parametrize("part_bytes", [None, 64])
def test_bytes_of_every_length(built, part_bytes):
    values = [
        np.random.default_rng(size).bytes(size) for size in (0, 1, 7, 8, 9, 0, 511, 512, 513, 70_000, 0)
    ]
    values += [b"\0", b"trailing\0\0", b""]
    check(built(values, build=yogadl.BuildOptions(part_bytes=part_bytes)), values)
    check(built([bytearray(value) for value in values]), values)
    check(built([memoryview(value) for value in values]), values)


@pytest.mark.parametrize(
    "arrays",
    [
        [np.array(["a", "bc"]), np.array(["üñï", ""])],
        [np.array([b"a", b"bc"]), np.array([b"", b"x"])],
        [np.array(["a", "bc\0"], object), np.array(["\ud800", ""], object)],
        [np.array([b"a\0", b"bc"], object), np.array([b"", b"x"], object)],
        [np.array(["a", "bc"]), np.array([], object), np.array(["x"] * 9)],
        [np.array([["a", "b"]]), np.array([["c"], ["d"]])],
        [np.array(["a"]), np.array([["c"], ["d"]]), "scalar", np.array("0-d")],
    ],
    ids=repr,
)
def test_arrays_of_text_and_bytes(built, arrays):
    expected = [
        value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value for value in arrays
    ]
    ref = built(arrays * 3)
    check(ref, expected * 3)
    assert isinstance(ref.gather([0, 1]), list)
    again = built(record for record in ref)
    assert again.fingerprint == ref.fingerprint


@pytest.mark.parametrize("dtype", ["int8", "float32", ml_dtypes.bfloat16, "datetime64[ns]", ">i4"], ids=str)
@pytest.mark.parametrize("part_bytes", [None, 100])
def test_ragged_arrays_of_one_rank(built, dtype, part_bytes):
    shapes = [(0, 2), (3, 2), (1, 5), (7, 0), (3, 2), (2, 2)] * 5
    arrays = [any_bits(dtype, shape) for shape in shapes]
    ref = built([{"x": array} for array in arrays], build=yogadl.BuildOptions(part_bytes=part_bytes))
    assert ref.spec.fields[0].leaf.shape == (None, None)
    check(ref, [{"x": array} for array in arrays])
    batch = ref.gather([1, 2])["x"]
    assert isinstance(batch, list)
    batch[0][:] = 0  # writable, and nobody else's
    assert_same(ref[1], {"x": arrays[1]})


@pytest.mark.parametrize("part_bytes", [None, 40])
def test_arrays_of_unknown_rank_and_scalars_among_them(built, part_bytes):
    values = [
        np.int32(5),
        np.zeros((2, 2), np.int32),
        np.arange(3, dtype=np.int32),
        np.zeros((0,), np.int32),
    ] * 8
    ref = built(values, build=yogadl.BuildOptions(part_bytes=part_bytes))
    assert ref.spec.fields[0].leaf.shape is None
    check(ref, values)


def test_a_rank_beyond_what_an_entry_holds_is_refused_by_name_early_or_late(built):
    big = np.zeros((1,) * 9)
    check(built([big, big]), [big, big])
    ragged = [big, np.zeros((1,) * 8 + (2,))]
    check(built(ragged), ragged)
    with pytest.raises(UnsupportedDataError, match="record 40: the record itself has 9 dimensions"):
        built([np.zeros(1)] * 40 + [big] * 40)
    with pytest.raises(
        UnsupportedDataError, match="the record itself has 9 dimensions; a field in which their number varies"
    ):
        built([big, np.zeros(1)] * 20)


@pytest.mark.parametrize(
    "layout",
    [
        lambda a: a.transpose(0, 2, 1),
        np.asfortranarray,
        lambda a: a[::2],
        lambda a: a[::-1],
        lambda a: a[:, ::-1, ::2],
        lambda a: np.broadcast_to(a[0], a.shape),
        lambda a: a[:, 1:],
    ],
    ids=["transposed", "fortran", "every second", "reversed", "inside reversed", "broadcast", "inner slice"],
)
def test_arrays_of_any_memory_layout(built, layout):
    array = layout(np.arange(20 * 4 * 6, dtype=np.float32).reshape(20, 4, 6))
    for ref in (built(array), built(list(array)), yogadl.from_source(array), yogadl.from_source(list(array))):
        found = ref.gather(range(len(array)))
        assert np.array_equal(found, array)
        assert found.flags.c_contiguous
        assert found.flags.writeable
        check(ref, list(array))
    assert built(array).fingerprint == built(np.ascontiguousarray(array)).fingerprint


def test_a_memory_mapped_array(built, tmp_path):
    np.save(tmp_path / "a.npy", np.arange(1000).reshape(100, 10))
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    for ref in (built(mapped), yogadl.from_source(mapped)):
        batch = ref.gather([5, 1])
        assert type(batch) is np.ndarray
        assert np.array_equal(batch, mapped[[5, 1]])


class Point(NamedTuple):
    x: int
    y: np.ndarray


Renamed = namedtuple("Renamed", ["good", "class"], rename=True)


@pytest.mark.parametrize(
    "make",
    [
        lambda i: {"a": i, "b": {"c": np.full(3, i), "d": [f"t{i}", (i * 0.5,)]}},
        lambda i: [i, np.full(2, i)],
        lambda i: (i, b"x" * i),
        lambda i: Point(i, np.full(2, i)),
        lambda i: {"p": Point(i, np.full(2, i)), "q": [Point(i, np.zeros(1))]},
        lambda i: Renamed(i, i),
        lambda i: i,
        lambda i: np.full((2, 2), i),
        lambda i: f"record {i}",
        lambda i: {0: i, -7: i, "0": i},
        lambda i: {"a/b": i, "": i, "ü": i},
        lambda i: {"empty": {}, "a": i, "none": [], "nothing": ()},
        lambda i: {f"field {k}": i for k in range(300)},
    ],
)
def test_records_of_every_structure(built, make):
    records = [make(i) for i in range(20)]
    ref = built(records, build=yogadl.BuildOptions(part_bytes=300))
    check(ref, records)
    check(built(iter(records)), records)
    check(yogadl.from_source(records), records)
    batch = ref.gather([3, 1])
    assert type(batch) is type(records[0]) or not isinstance(records[0], dict | list)


def test_keys_in_another_order_are_stored_under_the_first_records_order(built):
    records = [{"a": i, "b": -i} if i % 2 else {"b": -i, "a": i} for i in range(10)]
    ref = built(records)
    assert list(ref[5]) == ["b", "a"]
    assert [(int(r["a"]), int(r["b"])) for r in ref] == [(i, -i) for i in range(10)]


def test_python_numbers_come_back_as_numpy_scalars_of_the_stored_dtype(built):
    record = built([{"b": True, "i": 3, "f": 0.5, "c": 1j}])[0]
    types = {key: type(value) for key, value in record.items()}
    assert types == {"b": np.bool_, "i": np.int64, "f": np.float64, "c": np.complex128}


def test_every_array_that_is_handed_out_is_the_callers_own(built):
    data = {"x": np.arange(40).reshape(20, 2), "r": [np.arange(k % 3) for k in range(20)], "n": np.arange(20)}
    ref = built(data, build=yogadl.BuildOptions(part_bytes=100))
    for read in (lambda: [ref[4]], lambda: ref.__getitems__([4, 4]), lambda: list(ref)[4:5]):
        records = read()
        for record in records:
            assert record["x"].tolist() == [8, 9]
            record["x"][:] = -1
            record["r"][:] = -1
        assert ref[4]["x"].tolist() == [8, 9]
        assert ref[4]["r"].tolist() == [0]
    one, two = ref.gather([4, 4]), ref.gather([4, 4])
    one["x"][0] = -1
    assert one["x"].tolist() == [[-1, -1], [8, 9]]
    assert two["x"].tolist() == [[8, 9], [8, 9]]
    assert not np.shares_memory(one["r"][0], one["r"][1])


def test_objects_are_pickled_by_wish_and_unpickled_by_wish(storage):
    records = [{"o": None, "n": 1}, {"o": {1, 2}, "n": 2}, {"o": "text", "n": 3}]
    with pytest.raises(UnsupportedDataError, match=r"record 0: field 'o' is None.*allow_pickle=True"):
        storage.submit(records, "d", "1")
    storage.submit(records, "d", "1", records=yogadl.RecordOptions(allow_pickle=True))
    with pytest.raises(ConfigurationError, match="allow_pickle=True"):
        storage.fetch("d", "1")
    ref = storage.fetch("d", "1", allow_pickle=True)
    assert ref.gather([1, 0])["o"] == [{1, 2}, None]
    assert ref[2]["o"] == "text"
    assert storage.info("d", "1").spec.fields[0].leaf.dtype == "object"
    with pytest.raises(UnsupportedDataError, match="allow_pickle"):
        storage.submit(ref, "d", "2")


def test_a_cache_copies_to_the_same_content(built):
    records = [
        {"x": np.arange(i % 3), "t": f"{i}", "n": i, "w": np.array(["a"] * (1 - i % 2), object)}
        for i in range(50)
    ]
    ref = built(records)
    for copy in (
        built(ref),
        built(iter(ref)),
        built(list(ref)),
        built(ref, build=yogadl.BuildOptions(part_bytes=50)),
    ):
        assert copy.fingerprint == ref.fingerprint
    assert built(ref[48::-1]).fingerprint == built(records[48::-1]).fingerprint


VALUES = st.sampled_from(
    [
        st.binary(max_size=600),
        st.text(st.characters(codec=None), max_size=40),
        st.tuples(st.integers(0, 4), st.integers(0, 4)).map(lambda shape: any_bits("int16", shape)),
        st.lists(st.integers(0, 2), max_size=3).map(lambda shape: any_bits("float32", shape)),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(),
        st.lists(st.text(max_size=5), max_size=5).map(lambda texts: np.array(texts, "U5")),
    ]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(
    values=VALUES.flatmap(lambda value: st.lists(value, min_size=1, max_size=30)),
    part_bytes=st.sampled_from([None, 1, 37, 1000]),
)
def test_any_column_of_any_values_comes_back(built, values, part_bytes):
    check(
        built([{"v": value} for value in values], build=yogadl.BuildOptions(part_bytes=part_bytes)),
        [{"v": value} for value in values],
    )
