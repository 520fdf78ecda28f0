"""version="auto": arguments and the values that code uses count by their content."""

import collections
import datetime
import decimal
import enum
import functools
import os
import random
import re
import sys
import threading
import types
from pathlib import Path

import numpy as np
import pytest
from inside import sha256_of_data
from versioned_project import auto, grown, squares

import yogadl
from yogadl.errors import ConfigurationError


def test_arguments_count_by_their_parameters(storage):
    build = storage.cacheable("d", "auto")(squares)
    for call in (
        lambda: build(3),
        lambda: build(n=3),
        lambda: build(3, 0),
        lambda: build(3, start=0, scale=1),
        storage.cacheable("d", "auto")(functools.partial(squares, 3)),
        lambda: storage.cacheable("d", "auto")(functools.partial(squares, start=0))(3),
    ):
        call()
        assert len(storage.versions("d")) == 1
    build(3, a=1, b=2)
    build(3, b=2, a=1)
    assert len(storage.versions("d")) == 2
    for count, call in enumerate(
        (lambda: build(4), lambda: build(3, 1), lambda: build(3, 0, 7), lambda: build(3, scale=2)), 3
    ):
        call()
        assert len(storage.versions("d")) == count


def test_a_call_that_makes_no_sense_is_the_functions_own_error(storage):
    with pytest.raises(TypeError, match="squares"):
        storage.cacheable("d", "auto")(squares)()


def test_how_it_is_built_has_no_part_in_it(storage):
    for options in (
        {},
        {"workers": 2},
        {"build": yogadl.BuildOptions(part_bytes=100, progress=lambda *_: None)},
        {"records": yogadl.RecordOptions(allow_pickle=True)},
    ):
        storage.cacheable("d", "auto", **options)(squares)(5)
    assert len(storage.versions("d")) == 1


def test_the_object_of_a_method_counts_with_its_state(storage):
    class Project:
        def __init__(self, count):
            self.count = count
            self.lock = None

        @functools.cached_property
        def records(self):
            return list(range(self.count))

        def build(self):
            return self.records

    used = Project(3)
    used.build()  # what is worked out from the rest adds nothing
    projects = Project(3), Project(3), used, Project(4)
    assert grown(storage, (project.build for project in projects)) == [1, 1, 1, 2]


def test_an_object_with_call_counts_with_its_state_and_its_code(storage):
    class Build:
        def __init__(self, count):
            self.count = count

        def __call__(self):
            return list(range(self.count))

    class Other(Build):
        def __call__(self):
            return list(range(self.count, 0, -1))

    assert grown(storage, (Build(3), Build(3), Build(4), Other(3))) == [1, 1, 2, 3]


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (threading.Lock, "_thread.lock"),
        (lambda: open(os.devnull), "_io.TextIOWrapper"),  # noqa: SIM115
        (lambda: (i for i in range(3)), "builtins.generator"),
        (lambda: {"deep": [threading.RLock()]}, "_thread.RLock"),
        (sys._getframe, "builtins.frame"),
    ],
)
def test_what_has_no_content_is_refused_by_name_with_what_to_do(storage, make, kind):
    held = make()

    def build():
        return [1] if held else [2]

    def takes(value):
        return [1]

    for function, args, name in (
        (build, (), "closure variable 'held' of"),
        (takes, (held,), "argument 'value'"),
    ):
        with pytest.raises(ConfigurationError) as caught:
            auto(storage, function, *args)
        text = str(caught.value)
        assert name in text
        assert f"({kind})" in text
        assert "__yogadl_version__" in text
        assert "name the version yourself" in text
    assert storage.datasets() == []
    assert len(storage.cacheable("fixed", "1")(build)()) == 1
    if hasattr(held, "close"):
        held.close()


def test_the_hook_stands_for_an_object_or_a_function(storage):
    class Connection:
        def __init__(self, url):
            self.lock, self.url = threading.Lock(), url

        @property
        def __yogadl_version__(self):
            return self.url

    def build(connection):
        return [1]

    for count, url in ((1, "db/1"), (1, "db/1"), (2, "db/2")):
        assert len(auto(storage, build, Connection(url))) == count

    def calls(decode):
        def build():
            return [decode(1)]

        return auto(storage, build)

    one, two, three = (lambda v: v), (lambda v: v + 1), (lambda v: v)
    one.__yogadl_version__ = two.__yogadl_version__ = "1"
    three.__yogadl_version__ = "2"
    assert [len(calls(function)) for function in (one, two, three)] == [3, 3, 4]


def test_values_of_many_kinds_count_by_their_content(storage):
    Point = collections.namedtuple("Point", "x y")
    Color = enum.Enum("Color", "RED GREEN")
    rings = own_list(1), own_list(2)
    dynamic = [type("Made", (), {"size": size, "get": lambda self: self.size}) for size in (1, 2)]

    def make():
        yield from (True, 1, 1.0, 1j, "1", b"1", None, ..., -0.0, 0.0, float("inf"))
        yield from ([1], (1,), {1}, frozenset({1}), {1: 2}, {2: 1}, [1, 2], [2, 1], [[1], 2], [1, [2]])
        yield from (np.float32(1), np.float64(1), np.zeros(2), np.zeros((2, 1)), np.array(["a"]))
        yield from (np.array([{1}]), np.random.default_rng(1), np.random.default_rng(2), "\ud800")
        yield from (np.ma.masked_array([1, 2], [0, 1]), np.ma.masked_array([1, 2], [0, 0]), np.dtype("f4"))
        yield from (Path("a"), Path("b"), Point(1, 2), Point(2, 1), Color.RED, Color.GREEN, Color, Point)
        yield from (datetime.date(2024, 1, 1), decimal.Decimal("1.0"), re.compile("a"), re.compile("a", re.I))
        yield from (range(3), range(4), slice(1), collections.OrderedDict(a=1), collections.Counter("a"))
        yield from (types.SimpleNamespace(a=1), types.MappingProxyType({1: 2}), random.Random(1), len, np.add)
        yield from (str.upper, "a".upper, "b".upper, int, list[int], int | None, np, np.linalg, object())
        yield from (*rings, *dynamic, *(made() for made in dynamic), "x" * 9999, b"x" * 9999)
        yield from (functools.partial(len), functools.partial(len, "a"), print)

    def build(value):
        return [1]

    function = storage.cacheable("d", "auto")(build)
    count = 0
    for count, value in enumerate(make(), 1):
        function(value)
        assert len(storage.versions("d")) == count, f"{value!r} is like another"
    for value in make():
        function(value)
        assert len(storage.versions("d")) == count, f"{value!r} is not like itself"


def own_list(content):
    made = [content]
    made.append(made)
    return made


def own_dict(content):
    made = {"content": content}
    made["self"] = made
    return made


def own_tuple(content):
    made = ([content],)
    made[0].append(made)
    return made


@pytest.mark.parametrize("make", [own_list, own_dict, own_tuple])
def test_what_holds_itself_counts_by_its_content(storage, make):
    def takes(value):
        return [1]

    def closes_over(value):
        return lambda: [1] if value else [2]

    for number, content in ((1, 1), (1, 1), (2, 2)):
        assert len(auto(storage, takes, make(content))) == number
    for number, content in ((3, 1), (3, 1), (4, 2)):
        assert len(auto(storage, closes_over(make(content)))) == number
    storage.cacheable("d", "1")(closes_over(make(1)))()
    storage.cacheable("d", "1")(closes_over(make(1)))()  # warnings are errors
    with pytest.warns(UserWarning, match="built by other code or arguments"):
        storage.cacheable("d", "1")(closes_over(make(2)))()


def test_which_of_two_that_hold_their_holders_counts(storage):
    def node(name):
        leaf = {"parent": {"name": name}}
        leaf["parent"]["leaf"] = leaf
        return leaf

    def takes(nodes, chosen):
        return [{"name": chosen["parent"]["name"]}]

    for number, chosen in ((1, 0), (1, 0), (2, 1)):
        nodes = node("a"), node("b")
        assert len(auto(storage, takes, [one["parent"] for one in nodes], nodes[chosen])) == number


def test_what_all_hold_each_other_is_described_in_no_time(storage):
    nodes = [{"number": number} for number in range(200)]
    for one in nodes:
        one["others"] = nodes

    def takes(nodes):
        return [1]

    assert len(auto(storage, takes, nodes)) == 1
    nodes[100]["number"] = 0
    assert len(auto(storage, takes, nodes)) == 2


def test_what_is_nested_too_deeply_is_refused_by_name(storage):
    deep = functools.reduce(lambda inner, _: [inner], range(100_000), 1)

    def takes(value):
        return [1]

    def closes_over():
        return [1] if deep else [2]

    with pytest.raises(ConfigurationError, match=r"argument 'value'.*nested too deeply"):
        auto(storage, takes, deep)
    with pytest.raises(ConfigurationError, match=r"closure variable 'deep'.*nested too deeply"):
        auto(storage, closes_over)
    storage.cacheable("d", "1")(takes)(deep)
    storage.cacheable("d", "2")(closes_over)()


def numbers(fingerprint="x"):
    return yogadl.from_source({"a": np.arange(30), "b": np.arange(30)}, fingerprint=fingerprint)


def rows():
    return yogadl.from_source({"a": np.zeros((9, 8))}, fingerprint="x")


@pytest.mark.parametrize(
    ("make", "form"),
    [
        (lambda: numbers().split(0.5), "1a55b4274f5ea071"),
        (lambda: numbers()[2:9].select([3, 1]), "bfdd7256730a084c"),
        (lambda: numbers().fields("a"), "95c91a7baf468341"),
        (lambda: rows().chunks("a", 4), "194319017b999e1e"),
        (lambda: numbers().map(abs), "acdc4b43e0cab647"),
        (lambda: yogadl.concat([numbers(), numbers("y")]), "620e102e40946cfe"),
        (lambda: yogadl.mix({"a": (numbers(), 2), "b": (numbers("y"), 1)}), "1ba0fe1bd65df7a3"),
        (lambda: yogadl.Leaf("uint8", (None, 3)), "6065ed0f2641c4bf"),
        (lambda: yogadl.partitioned.of(range(3), abs), "fd7254fe87576259"),
        (lambda: yogadl.Lease(ttl_s=60), "1e106cd7927105ea"),
    ],
)
def test_what_the_library_makes_keeps_its_form(make, form):
    """A new form would be a new version of all that was built with it: names of classes are in it."""
    assert sha256_of_data(make())[:16] == form
