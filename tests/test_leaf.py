"""One leaf: which dtype and shape a value has, and how values become a column."""

import enum
import json
import pickle

import ml_dtypes
import numpy as np
import pytest
from inside import BadValueError, batch_column, column_of, dtype_named, leaf_of, widen

from yogadl import Leaf
from yogadl.errors import CacheFormatError

NUMERIC = [
    *["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"],
    *["float16", "float32", "float64", "complex64", "complex128"],
    *["bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4"],
    *["datetime64[ns]", "datetime64[D]", "datetime64[25s]", "timedelta64[us]"],
]


@pytest.mark.parametrize("name", NUMERIC)
def test_a_dtype_is_found_by_the_name_that_its_arrays_have(name):
    dtype = dtype_named(name)
    assert leaf_of(np.zeros((2, 3), dtype)) == Leaf(name, (2, 3))
    assert leaf_of(np.zeros((), dtype)) == Leaf(name, ())
    assert leaf_of(np.zeros(1, dtype)[0]) == Leaf(name, ())


def test_a_leaf_shows_what_it_is_made_of_and_nothing_that_follows_from_it():
    shown = "Leaf(dtype='uint8', shape=(None, 3), ragged_rank=None, row_splits=None)"
    assert repr(Leaf("uint8", (None, 3))) == shown


@pytest.mark.parametrize(
    ("value", "dtype"), [(True, "bool"), (3, "int64"), (3.5, "float64"), (3j, "complex128")]
)
def test_a_python_number_has_the_dtype_that_numpy_gives_it_on_linux(value, dtype):
    assert leaf_of(value) == Leaf(dtype, ())
    column = column_of(leaf_of(value), [value, value])
    assert column.dtype == np.dtype(dtype)


@pytest.mark.parametrize("value", ["text", np.str_("text"), np.array("text"), ""])
def test_text_is_str(value):
    assert leaf_of(value) == Leaf("str", ())
    (stored,) = column_of(Leaf("str"), [value])
    assert type(stored) is str


def test_text_of_a_subclass_is_its_text_not_its_name():
    class Color(str, enum.Enum):  # noqa: UP042  (a StrEnum's str() is its value)
        RED = "red"

    assert leaf_of(Color.RED) == Leaf("str", ())
    (stored,) = column_of(Leaf("str"), [Color.RED])
    assert stored == "red"
    assert type(stored) is str


@pytest.mark.parametrize("value", [b"x", bytearray(b"x"), memoryview(b"x"), np.bytes_(b"x"), np.array(b"x")])
def test_anything_of_bytes_is_bytes(value):
    assert leaf_of(value) == Leaf("bytes", ())
    assert column_of(Leaf("bytes"), [value]) == [b"x"]
    assert type(column_of(Leaf("bytes"), [value])[0]) is bytes


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.array(["a", "bc"]), "str"),
        (np.array(["a", "bc"], object), "str"),
        (np.array([np.str_("a"), "bc"], object), "str"),
        (np.array([b"a", b"bc"]), "bytes"),
        (np.array([b"a", b"bc"], object), "bytes"),
    ],
)
def test_an_array_of_text_or_bytes_has_a_shape(array, dtype):
    assert leaf_of(array) == Leaf(dtype, (2,))


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="numpy 2 has it")
def test_an_array_of_numpys_own_strings_is_text():
    array = np.array(["a", "bc"], np.dtypes.StringDType())
    assert leaf_of(array) == Leaf("str", (2,))
    assert column_of(Leaf("str", (2,)), [array])[0].tolist() == ["a", "bc"]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (None, "is None; leave the field out"),
        (object(), "is a builtins.object; make it an array"),
        (
            type("Image", (), {"__module__": "PIL.Image"})(),
            "is a PIL.Image.Image; store the bytes of its file, and decode them in ref.map: give ImageFolder "
            "loader=read_bytes, where read_bytes = lambda path: pathlib.Path(path).read_bytes(); or",
        ),
        ({1, 2}, "is a builtins.set"),
        (np.array([1, "a", None], object), r"of NoneType, int, str"),
        (np.array([], object), "is an object array"),
        (np.longdouble(1), "has dtype float128, which has no stored form"),
        (np.zeros(1, [("a", "i4")]), "which has no stored form"),
        (type("csr_matrix", (), {"__module__": "scipy.sparse"})(), "is sparse"),
        (np.ma.array([1, 2], mask=[0, 1]), "mask would be lost"),
        (np.ma.masked, "mask would be lost"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_has_no_stored_form_is_refused_with_a_way_out(value, says):
    with pytest.raises(BadValueError) as caught:
        leaf_of(value)
    assert says in caught.value.problem


@pytest.mark.parametrize("value", [None, {1}, np.array([1, None], object)], ids=type)
def test_an_object_is_pickled_only_by_wish(value):
    assert leaf_of(value, allow_pickle=True) == Leaf("object", ())


def test_a_column_of_equal_shapes_is_one_new_writable_array():
    values = [np.arange(3, dtype=np.int16) + i for i in range(4)]
    column = column_of(Leaf("int16", (3,)), values)
    assert column.shape == (4, 3)
    assert column.flags.writeable
    assert column.flags.c_contiguous
    column[0] = 9
    assert values[0].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6).reshape(2, 3).T,
        np.asfortranarray(np.arange(24).reshape(2, 3, 4)),
        np.arange(20)[::2],
        np.arange(5)[::-1],
        np.broadcast_to(np.int64(7), (3, 2)),
        np.array(5),
        np.zeros((0, 3)),
        np.zeros((3, 0)),
        np.arange(6, dtype=">i4").reshape(2, 3),
        np.arange(6, dtype="<i4").reshape(2, 3)[:, ::-1],
        np.array(["2020-01-01", "NaT"], "M8[D]")[::-1],
        np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3).T,
    ],
    ids=lambda value: f"{value.dtype}{value.shape}{value.strides}",
)
def test_memory_of_any_layout_and_byte_order_becomes_c_order_and_little_endian(value):
    leaf = leaf_of(value)
    column = column_of(leaf, [value, value])
    assert column.dtype == leaf.numpy_dtype
    assert column.flags.c_contiguous
    np.testing.assert_array_equal(column, np.stack([value, value]).astype(leaf.numpy_dtype))


def test_a_column_of_different_shapes_is_a_list_of_contiguous_arrays():
    values = [np.arange(6.0).reshape(2, 3).T, np.arange(2.0).reshape(1, 2), np.array(1.0)]
    column = column_of(Leaf("float64", (3, 2)), values)
    assert [array.shape for array in column] == [(3, 2), (1, 2), ()]
    assert all(array.flags.c_contiguous for array in column)


@pytest.mark.parametrize(
    ("leaf", "bad", "says"),
    [
        (Leaf("int64"), 1.5, "has dtype float64, but the records before have int64"),
        (Leaf("int64"), True, "has dtype bool"),
        (Leaf("int64"), np.int32(1), "has dtype int32"),
        (Leaf("int64"), "a", "has dtype str"),
        (Leaf("int64"), 2**63, "does not fit into int64"),
        (Leaf("int64"), -(2**63) - 1, "does not fit into int64"),
        (Leaf("float32", (2,)), np.zeros(2), "has dtype float64"),
        (Leaf("str"), b"a", "has dtype bytes"),
        (Leaf("bytes"), "a", "has dtype str"),
        (Leaf("str"), None, "is None"),
        (Leaf("datetime64[D]"), np.datetime64("2020-01-01T12:30", "m"), r"has dtype datetime64[m]"),
        (Leaf("datetime64[D]"), np.timedelta64(1, "D"), r"has dtype timedelta64[D]"),
    ],
    ids=str,
)
def test_a_value_of_another_dtype_is_blamed_by_position_and_never_converted(leaf, bad, says):
    good = {
        **{"int64": 1, "float32": np.zeros(2, np.float32), "str": "a", "bytes": b"a"},
        "datetime64[D]": np.datetime64("2020-01-01", "D"),
    }[leaf.dtype]
    with pytest.raises(BadValueError) as caught:
        column_of(leaf, [good, good, bad])
    assert caught.value.position == 2
    assert says in caught.value.problem


def test_no_advice_to_pickle_where_the_records_before_settled_the_dtype():
    with pytest.raises(BadValueError) as caught:
        column_of(Leaf("int64"), [1, None])
    assert "pickle" not in caught.value.problem


def test_an_empty_object_array_is_text_among_text_and_bytes_among_bytes():
    for name, item in (("str", "a"), ("bytes", b"a")):
        column = column_of(Leaf(name, (1,)), [np.array([item], object), np.array([], object)])
        assert [value.tolist() for value in column] == [[item], []]


def test_widening_admits_shapes_whatever_their_order():
    shapes = [(2, 3), (2, 4), (2, 3)]
    for order in (shapes, shapes[::-1]):
        leaf = Leaf("int8", order[0])
        for shape in order[1:]:
            leaf = widen(leaf, shape)
        assert leaf == Leaf("int8", (2, None))
    assert widen(leaf, (2, 9)) == leaf
    assert widen(leaf, (2,)) == Leaf("int8", None)
    assert widen(widen(leaf, (2,)), (2, 3)) == Leaf("int8", None)


def test_widening_keeps_what_ragged_tensors_need():
    leaf = Leaf("int8", (2,), ragged_rank=1, row_splits="int32")
    assert widen(leaf, (3,)) == Leaf("int8", (None,), 1, "int32")
    assert widen(leaf, (3, 1)) == Leaf("int8", None, 1, "int32")


@pytest.mark.parametrize(
    "leaf",
    [
        Leaf("int8"),
        Leaf("str", None),
        Leaf("bfloat16", (2, None)),
        Leaf("int8", (None,), 1, "int64"),
        Leaf("object"),
    ],
    ids=str,
)
def test_a_leaf_survives_json_and_pickle(leaf):
    assert Leaf.from_json(json.loads(json.dumps(leaf.to_json()))) == leaf
    assert pickle.loads(pickle.dumps(leaf)) == leaf


@pytest.mark.parametrize(
    "document",
    [
        *[None, 3, [], {}, {"dtype": "int8"}, {"shape": []}, {"dtype": "int8", "shape": 3}],
        *[
            {"dtype": "int8", "shape": [-1]},
            {"dtype": "int8", "shape": ["3"]},
            {"dtype": "int8", "shape": [1.5]},
        ],
        *[{"dtype": "int9", "shape": []}, {"dtype": "float128", "shape": []}, {"dtype": "V8", "shape": []}],
        *[{"dtype": "datetime64[parsec]", "shape": []}, {"dtype": "float8_e99", "shape": []}],
        *[{"dtype": "os.system", "shape": []}, {"dtype": "O", "shape": []}, {"dtype": 3, "shape": []}],
        *[{"dtype": "int8", "shape": [True]}, {"dtype": ["int8"], "shape": []}],
    ],
    ids=str,
)
def test_what_is_no_description_of_a_field_is_refused(document):
    with pytest.raises(CacheFormatError):
        Leaf.from_json(document)


def test_row_bytes_are_those_of_one_value():
    assert Leaf("float32", (2, 3)).row_bytes == 24
    assert Leaf("float32").row_bytes == 4
    assert Leaf("float32", (0, 3)).row_bytes == 0
    assert not Leaf("float32", (None,)).is_fixed
    assert not Leaf("str").is_fixed


def test_a_batch_column_is_an_array_just_where_the_shape_is_fixed():
    same = [np.zeros(2, np.int8)] * 3
    assert batch_column(Leaf("int8", (2,)), same).shape == (3, 2)
    assert isinstance(batch_column(Leaf("int8", (None,)), same), list)
    assert batch_column(Leaf("int8", (2,)), []).shape == (0, 2)
    assert batch_column(Leaf("str"), []) == []
    with pytest.raises(BadValueError) as caught:
        batch_column(Leaf("int8", (2,)), [*same, np.zeros(3, np.int8)])
    assert caught.value.position == 3


def test_scalars_of_an_unknown_rank_are_scalars():
    column = batch_column(Leaf("int8", None), [np.int8(1), np.zeros(2, np.int8), np.array(3, np.int8)])
    assert [type(value) for value in column] == [np.int8, np.ndarray, np.int8]
