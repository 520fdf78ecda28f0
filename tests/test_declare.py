"""What a caller says of the records' fields: in any form of the tree, in part, or wrongly."""

import pickle
import re
from collections import namedtuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inside import declaration_text, declare, spec_of

import yogadl
from yogadl import Leaf
from yogadl.errors import CacheFormatError, ConfigurationError, UnsupportedDataError

Pair = namedtuple("Pair", "left right")
RECORDS = {
    "leaf": np.zeros((4, 3), np.uint8),
    "dict": {"image": np.zeros((4, 3), np.uint8), "label": 1, "text": "a"},
    "tuple": (np.zeros((4, 3), np.uint8), 1),
    "list": [np.zeros((4, 3), np.uint8), "a"],
    "namedtuple": Pair(np.zeros((4, 3), np.uint8), 1.0),
    "deep": {"a": [{"b": (1, np.zeros((4, 3), np.uint8))}, 2], 7: 3},
}
IMAGE = Leaf("uint8", (None, 3))


def odd(record):
    """The same record with its image one row longer."""
    if isinstance(record, dict):
        return {key: odd(value) for key, value in record.items()}
    if isinstance(record, Pair):
        return Pair(*map(odd, record))
    if isinstance(record, list | tuple):
        return type(record)(map(odd, record))
    return np.zeros((5, 3), np.uint8) if isinstance(record, np.ndarray) else record


def pasted(error):
    """Evaluate what the message says to pass."""
    return eval(re.search(r"from_source\(\.\.\., spec=(.*)\)$", str(error)).group(1), {"yogadl": yogadl})


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_a_shape_outside_of_the_sample_comes_with_what_to_declare_and_that_does(record):
    data = [record] * 1000
    data[123] = odd(record)
    with pytest.raises(
        UnsupportedDataError, match=r"record 123: .* has shape \(5, 3\), not \(4, 3\)"
    ) as caught:
        for _ in yogadl.from_source(data).stream().batch(10):
            pass
    ref = yogadl.from_source(data, spec=pasted(caught.value))
    assert [field.leaf for field in ref.spec.fields if field.leaf.shape != ()] == [IMAGE]
    assert sum(1 for _ in ref.stream().batch(10)) == 100


def test_each_field_that_varies_is_asked_for_and_those_before_stay_declared():
    data = [{"a": np.zeros(3), "b": np.zeros((2, 2)), "c": ["x"]} for _ in range(1000)]
    data[100] = data[100] | {"a": np.zeros(4)}
    data[200] = data[200] | {"b": np.zeros(2)}
    data[300] = data[300] | {"c": [np.array(["x", "y"])]}
    spec = None
    for _ in range(3):
        with pytest.raises(UnsupportedDataError) as caught:
            yogadl.from_source(data, spec=spec).gather(range(1000))
        spec = pasted(caught.value)
    yogadl.from_source(data, spec=spec).gather(range(1000))
    assert spec == {"a": Leaf("float64", (None,)), "b": Leaf("float64", None), "c": {0: Leaf("str", None)}}


def test_a_declared_shape_is_what_is_checked():
    data = [np.zeros((2, 3))] * 100
    data[40] = np.zeros((7, 4))
    ref = yogadl.from_source(data, spec=Leaf("float64", (None, 3)))
    with pytest.raises(UnsupportedDataError, match=r"\(7, 4\), not \(None, 3\) as spec= declares") as caught:
        ref.gather([40])
    assert pasted(caught.value) == Leaf("float64", (None, None))


def test_a_shape_that_varied_in_the_sample_is_checked_where_it_did_not():
    data = [np.zeros((n % 2, 3)) for n in range(100)]
    data[40] = np.zeros((1, 4))
    with pytest.raises(UnsupportedDataError, match=r"record 40: .* \(1, 4\), not \(None, 3\)"):
        yogadl.from_source(data).gather([40])


def test_columns_and_views_of_them_are_declared_like_records():
    columns = {"n": np.arange(100), "x": [np.zeros(3)] * 100}
    columns["x"][41] = np.zeros(5)
    with pytest.raises(UnsupportedDataError, match="record 41: field 'x'") as caught:
        yogadl.from_source(columns)[40:].fields("x").gather([1])
    ref = pickle.loads(pickle.dumps(yogadl.from_source(columns, spec=pasted(caught.value))))
    assert [len(x) for x in ref[40:].fields("x").gather([0, 1])["x"]] == [3, 5]


def test_a_cursor_stays_valid_where_a_spec_is_given_later():
    data = [np.zeros(3)] * 100
    data[50] = np.zeros(4)
    before = yogadl.from_source(data)
    after = yogadl.from_source(data, spec=Leaf("float64", (None,)))
    assert before.fingerprint == after.fingerprint
    cursor = before.stream().cursor(delivered=49)
    assert [x.shape for x in next(iter(after.stream(cursor=cursor).batch(2)))] == [(3,), (4,)]


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ("leaf", IMAGE),
        ("dict", {"image": IMAGE}),
        ("dict", {"image": IMAGE, "label": None, "text": Leaf(str)}),
        ("tuple", (IMAGE, Leaf("int64"))),
        ("tuple", [IMAGE, None]),
        ("tuple", {0: IMAGE}),
        ("list", [IMAGE, Leaf("str")]),
        ("namedtuple", Pair(IMAGE, None)),
        ("namedtuple", {"left": IMAGE}),
        ("deep", {"a": [{"b": (Leaf(int), IMAGE)}, Leaf(int)], 7: Leaf(int)}),
        ("deep", {"a": {0: {"b": {1: Leaf(np.dtype("u1"), (None, 3))}}}}),
    ],
)
def test_a_spec_is_a_tree_like_the_record_and_may_leave_fields_out(record, said):
    sampled = spec_of(RECORDS[record])
    found, _ = declare(sampled, said)
    assert [f.leaf for f in found.fields] == [
        IMAGE if f.leaf.shape == (4, 3) else f.leaf for f in sampled.fields
    ]


def test_the_spec_of_another_reference_is_a_spec():
    short = yogadl.from_source([{"x": np.zeros(n), "y": n} for n in (1, 2)])
    long = yogadl.from_source([{"x": np.zeros(3), "y": n} for n in range(100)], spec=short.spec)
    assert long.spec == short.spec


@pytest.mark.parametrize(
    ("record", "said", "says"),
    [
        ("dict", {"imgae": IMAGE}, r"'imgae' in the record, which has only \['image', 'label', 'text'\]"),
        ("dict", (IMAGE,), "must declare the record with a dict of some of its keys"),
        ("dict", IMAGE, "must declare the record with a dict"),
        ("dict", {"image": (None, 3)}, r"declare field 'image' with a leaf, .*not with \(None, 3\)"),
        ("dict", {"image": Leaf("float32", (None, 3))}, "field 'image' as float32, but .* have uint8"),
        ("dict", {"image": Leaf("uint8", (None, 4))}, r'\(4, 3\): declare yogadl\.Leaf\("uint8", \(None, N'),
        ("dict", {"image": Leaf("uint8", (None,))}, r'declare yogadl\.Leaf\("uint8", None\)'),
        ("tuple", (IMAGE,), r"keys, which are \[0, 1\]"),
        ("leaf", {"image": IMAGE}, "must declare the record with a leaf, such as yogadl"),
        ("leaf", "uint8", "not with 'uint8'"),
        ("deep", {"a": [{"b": {2: IMAGE}}, None]}, "names 2 in field 'a/0/b'"),
    ],
)  # fmt: skip
def test_a_wrong_spec_is_refused_by_name(record, said, says):
    with pytest.raises(ConfigurationError, match=says):
        yogadl.from_source([RECORDS[record]] * 20, spec=said)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((3,), ConfigurationError),
        ((None,), ConfigurationError),
        (("float23",), CacheFormatError),
        (("float32", 3), ConfigurationError),
        (("float32", (-1,)), CacheFormatError),
    ],
)
def test_a_leaf_that_can_not_be_is_refused(arguments, error):
    with pytest.raises(error):
        Leaf(*arguments)


def test_a_leaf_takes_dtypes_of_numpy_and_python():
    assert Leaf(np.float32) == Leaf(np.dtype(">f4")) == Leaf("float32")
    assert [Leaf(kind).dtype for kind in (int, bytes, str)] == ["int64", "bytes", "str"]


trees = st.recursive(
    st.sampled_from([np.zeros(2), 1, "a", [1, "a"]]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3),
        st.lists(inner, min_size=1, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from(["a", "b/c", "'", 3]), inner, min_size=1, max_size=3),
        st.tuples(inner, inner).map(lambda pair: Pair(*pair)),
    ),
    max_leaves=6,
)


@given(trees, st.data())
def test_what_is_written_declares_just_those_fields(record, data):
    spec = spec_of(record)
    chosen = data.draw(st.sets(st.integers(0, len(spec.fields) - 1), min_size=1))
    leaves = [field.leaf for field in spec.fields]
    for number in chosen:
        if leaves[number].dtype != "json":  # which has no shape
            leaves[number] = Leaf(leaves[number].dtype, None)
    wide = spec.with_leaves(leaves)
    assert declare(spec, eval(declaration_text(wide, chosen), {"yogadl": yogadl})) == (wide, chosen)
