"""The tree of a record: every structure, its names, its JSON, and what does not fit it."""

import json
import pickle
from collections import namedtuple
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inside import MAX_FIELDS, DictNode, SequenceNode, Spec, set_constants, spec_of
from inside import columns_split as split
from trees import assert_same

from yogadl import Leaf
from yogadl.errors import CacheFormatError, ConfigurationError, UnsupportedDataError


class Point(NamedTuple):
    x: int
    y: float


Renamed = namedtuple("Renamed", ["good", "class", "good"], rename=True)

RECORDS = {
    "dict": {"a": 1, "b": np.zeros(2)},
    "nested": {"a": {"b": {"c": 1}}, "d": [1, (2.0, "x")]},
    "list": [1, 2.0],
    "tuple": (1, b"x"),
    "single": (1,),
    "namedtuple": Point(1, 2.0),
    "renamed": Renamed(1, 2, 3),
    "leaf": np.arange(3),
    "scalar": 3,
    "int keys": {0: 1, 7: 2, -1: 3},
    "mixed keys": {0: 1, "0": 2},
    "odd keys": {"a/b": 1, "": 2, "\ud800": 3, "ü": 4},
    "holes": {"a": {}, "b": 1, "c": [], "d": ()},
}


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_a_record_comes_back_from_its_columns_and_a_spec_survives_json_and_pickle(record):
    spec = spec_of(record)
    columns = split(spec, [record, record])
    assert len(columns) == len(spec.fields)
    first, second = spec.records(columns, 2)
    assert repr(first) == repr(second) == repr(record)
    assert Spec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    _ = spec.assemble, spec.fields
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_fields_are_named_by_their_path():
    spec = spec_of({"a": {"b": 1, "c": (1, 2)}, "p": Point(1, 2.0), 3: 1})
    assert [field.name for field in spec.fields] == ["a/b", "a/c/0", "a/c/1", "p/x", "p/y", "3"]
    assert [field.name for field in spec_of(1).fields] == [""]


def test_a_namedtuple_that_comes_back_pickles():
    found = spec_of(Point(1, 2.0)).assemble([1, 2.0])
    assert found == (1, 2.0)
    assert repr(found) == "Point(x=1, y=2.0)"
    copy = pickle.loads(pickle.dumps(found))
    assert copy == found
    assert copy._fields == ("x", "y")


def test_keys_may_come_in_another_order_in_later_records():
    spec = spec_of({"a": 1, "b": 2})
    assert split(spec, [{"a": 1, "b": 2}, {"b": 20, "a": 10}]) == [[1, 10], [2, 20]]


@pytest.mark.parametrize(
    ("first", "bad", "says"),
    [
        (
            {"a": 1},
            {"b": 1},
            r"record 7: the record itself should be a dict with the keys \['a'\].*one with \['b'\]",
        ),
        ({"a": 1}, {"a": 1, "b": 1}, r"one with \['a', 'b'\]"),
        ({"a": 1}, {}, r"one with \[\]"),
        ({"a": 1}, [1], "is a list"),
        ({"a": 1}, None, "is a NoneType"),
        ({"a": {"b": 1}}, {"a": 3}, "record 7: field 'a' should be a dict"),
        ([1, 2], [1, 2, 3], "a list of 2, .* a list of 3; if the length varies, make it an array"),
        ((1, 2), [1, 2], "a tuple of 2, .* is a list of 2"),
        ([1, 2], (1, 2), "a list of 2, .* is a tuple of 2"),
        ({"a": (1, 2)}, {"a": (1,)}, "field 'a' should be a tuple of 2"),
        (Point(1, 2.0), (1,), "a namedtuple of 2"),
    ],
    ids=str,
)
def test_a_record_of_another_structure_is_named(first, bad, says):
    with pytest.raises(UnsupportedDataError, match=says):
        split(spec_of(first), [first, first, bad], first_record=5)


@pytest.mark.parametrize(
    ("record", "says"),
    [
        *[(record, r"record 3: the record itself is .* which has no fields")
          for record in ({}, [], (), {"a": {}, "b": ()})],
        *[({"a": {key: 1}}, "field 'a' has the dict key") for key in (None, 1.5, b"a", ("a",), True)],
        ({"a": (1, None)}, "record 3: field 'a/1' is None"),
        ([0] * (MAX_FIELDS + 1), "make lists of numbers arrays"),
    ],
    ids=lambda value: repr(value)[:20],
)  # fmt: skip
def test_a_record_that_cant_be_stored_is_refused_by_name(record, says):
    with pytest.raises(UnsupportedDataError, match=says):
        spec_of(record, 3)


def test_project_keeps_whole_branches_in_the_order_asked_for():
    spec = spec_of({"a": {"x": 1, "y": 2}, "b": 3, "c": (4, 5)})
    some, numbers = spec.project(["c", "a"])
    assert [field.name for field in some.fields] == ["c/0", "c/1", "a/x", "a/y"]
    assert numbers == (3, 4, 0, 1)
    assert spec_of(Point(1, 2.0)).project(["y"])[0].fields[0].leaf == Leaf("float64")
    assert spec_of((1, 2.0, "a")).project([2, 0])[1] == (2, 0)


@pytest.mark.parametrize(
    ("record", "names"),
    [({"a": 1}, ["b"]), ({"a": 1}, []), ({"a": 1}, ["a", "a"]), (1, ["a"]), ((1, 2), ["0"])],
)
def test_project_refuses_names_that_are_not_there(record, names):
    with pytest.raises(ConfigurationError):
        spec_of(record).project(names)


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ({"a": 1}, {"a": 2}, True),
        ({"a": np.zeros(2)}, {"a": np.zeros((3, 3))}, True),
        ({"a": 1}, {"a": 1.0}, False),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ({"a": 1, "b": 2}, {"b": 1, "a": 2}, False),
        ([1], (1,), False),
        (1, [1], False),
    ],
    ids=str,
)
def test_two_specs_are_alike_if_only_shapes_differ(one, other, alike):
    assert spec_of(one).is_like(spec_of(other)) is alike


@pytest.mark.parametrize(
    "document",
    [
        *[None, [], "leaf", {}, {"leaf": 3}, {"set": []}, {"dict": 3, "keys": []}, {"dict": []}],
        *[{"dict": [], "keys": ["a"]}, {"list": [3]}, {"list": {}}],
        *[{"dict": [{"leaf": {"dtype": "int8", "shape": []}}], "keys": [["a"]]}],
        *[{"dict": [{"leaf": {"dtype": "int8", "shape": []}}], "keys": [None]}],
        *[{"namedtuple": [], "keys": [], "name": "a b"}, {"namedtuple": [], "keys": []}],
        *[{"namedtuple": [{"leaf": {"dtype": "int8", "shape": []}}], "keys": ["x; import os"], "name": "P"}],
    ],
    ids=str,
)
def test_what_describes_no_record_is_refused(document):
    with pytest.raises(CacheFormatError):
        Spec.from_json(document)


LEAVES = st.sampled_from([1, 2.0, "a", b"b", np.zeros(2, np.int8)])
TREES = st.recursive(
    LEAVES,
    lambda children: (
        st.lists(children, min_size=1, max_size=3)
        | st.lists(children, min_size=1, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(-9, 9), children, min_size=1, max_size=3)
    ),
    max_leaves=8,
)


@given(TREES)
def test_any_tree_is_split_and_assembled_again(record):
    spec = spec_of(record)
    (found,) = spec.records(split(spec, [record]), 1)
    assert repr(found) == repr(record)
    assert Spec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_a_batch_is_the_same_tree():
    batch = spec_of({"a": {"b": 1}, "c": (2, (3,))}).assemble(["B", "C0", "C1"])
    assert_same(batch, {"a": {"b": "B"}, "c": ("C0", ("C1",))})


def test_nodes_are_values():
    leaf = Leaf("int8")
    assert DictNode(("a",), (leaf,)) == DictNode(("a",), (leaf,))
    assert SequenceNode("list", (leaf,)) != SequenceNode("tuple", (leaf,))


def test_a_namedtuple_with_other_fields_is_another_structure():
    point, size = namedtuple("Point", "x y"), namedtuple("Size", "width height")
    spec = spec_of(point(1, 2))
    with pytest.raises(UnsupportedDataError, match=r"record 1: .*fields \['x', 'y'\].*width"):
        split(spec, [point(1, 2), size(1, 2)])


@pytest.mark.parametrize("most", [13, 14])
def test_the_names_of_all_fields_together_are_bounded(monkeypatch, most):
    set_constants(monkeypatch, MAX_NAME_CHARACTERS=most)
    inner = DictNode(("b", "cd"), (Leaf("int64", ()), Leaf("int64", ())))
    tree = DictNode(("aaa",), (inner,))  # the names aaa, aaa/b and aaa/cd have 14 characters
    if most == 14:
        assert [field.name for field in Spec(tree).fields] == ["aaa/b", "aaa/cd"]
    else:
        with pytest.raises(UnsupportedDataError, match="more than 13 characters together"):
            Spec(tree)
