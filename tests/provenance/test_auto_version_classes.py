"""version="auto": classes count with all that is in them, is set on them later, or made them."""

import dataclasses
from textwrap import indent

import pytest
from versioned_project import auto, grown

# What lies in a class and is neither plain nor code: the file is the same, the object another.
HELD = {
    "an object": "Resize(SIZE)",
    "a method of an object": "Resize(SIZE).apply",
    "a function called with it": "functools.partial(apply, SIZE)",
    "an object in a list": "[Resize(SIZE)]",
    "an object in a dict": "{'first': [1, Resize(SIZE)]}",
}


@pytest.mark.parametrize("owner", ["Config", "Base"])
@pytest.mark.parametrize("held", HELD.values(), ids=HELD)
def test_an_object_in_the_body_of_a_class_counts(storage, load, monkeypatch, held, owner):
    bodies = {"Base": "pass", "Config": "pass", owner: f"transform = {held}"}
    code = f"""
import abc
import functools
import os

SIZE = int(os.environ["SIZE"])


def apply(size):
    return size


class Resize:
    def __init__(self, size):
        self.size = size

    def apply(self):
        return self.size


class Base(abc.ABC):
    {bodies["Base"]}


class Config(Base):
    {bodies["Config"]}


def build():
    return [Config is not None]
"""
    for size, count in ((1, 1), (1, 1), (2, 2)):
        monkeypatch.setenv("SIZE", str(size))
        assert len(auto(storage, load(data=code).build)) == count


@pytest.mark.parametrize("held", ["step", "[step]", "{'first': [1, step]}", "(1, {step})"])
def test_functions_in_an_attribute_of_the_builder_count(storage, load, held):
    for added, count in ((1, 1), (1, 1), (2, 2)):
        code = f"""
def step(n):
    return n + {added}


def build():
    return [1]


build.steps = {held}
"""
        assert len(auto(storage, load(data=code).build)) == count


@pytest.mark.parametrize("version", ["auto", "1"])
def test_the_environment_is_no_part_of_a_version_and_in_no_manifest(storage, load, monkeypatch, version):
    code = """
import os
from os import environ


class Config:
    env = os.environ
    inside = [os.environ]


def build(given=os.environ, more=(os.environ, [{"all": os.environ}])):
    return [len(given.get("HOME", "")), len(environ.get("HOME", "")), len(Config.env), len(Config.inside)]
"""
    monkeypatch.setenv("SOME_KEY", "s3cr3t")
    for job in ("1", "2"):
        monkeypatch.setenv("JOB", job)
        storage.cacheable("d", version)(load(data=code).build)()  # warnings are errors
    assert len(storage.versions("d")) == 1
    assert "s3cr3t" not in str(storage.info("d", storage.versions("d")[0]).builder)


# What a class or a function is given after its own text.
LATER = {
    "a method": "def label(self): return 1\nRecords.label = label",
    "a method, by setattr": "setattr(Records, 'label', lambda self: 1)",
    "a method of a base class": "def label(self): return 1\nBase.label = label",
    "a wrapped method": (
        "def wrapped(function):\n    return lambda self: function(self) + 1\n"
        "Records.label = wrapped(Records.label)"
    ),
    "a property": "Records.label = property(lambda self: lambda: 1)",
    "a static method": "Records.label = staticmethod(lambda: 1)",
    "a class method": "Records.label = classmethod(lambda cls: 1)",
    "an operator": (
        "def add(self, other): return 1\nRecords.__add__ = add\nRecords.label = lambda self: self + 1"
    ),
    "a dict of the class": "Records.known['label'] = lambda self: 1",
    "a list of the class": "Records.steps.append(lambda: 1)",
    "a function of a function": "call.inner = lambda: 1",
    "a method of a dataclass": "Data.label = lambda self: 1",
    "a method of a named tuple": "Row.label = lambda self: 1",
}


@pytest.mark.parametrize("later", LATER.values(), ids=LATER)
def test_what_is_set_on_a_class_or_a_function_later_counts(storage, load, later):
    code = f"""
import collections
import dataclasses


class Base:
    def label(self):
        return 0


class Records(Base):
    known = {{"label": lambda self: 0}}
    steps = []


@dataclasses.dataclass
class Data:
    size: int = 3

    def label(self):
        return 0


Row = collections.namedtuple("Row", "size")
Row.label = lambda self: 0


def call():
    return call.inner()


call.inner = lambda: 0
{later}


def build():
    made = Records()
    return [made.label(), made.known["label"](made), *(step() for step in made.steps), call(),
            Data().label(), Row(3).label()]
"""
    codes = code, code, code.replace(later, later.replace("1", "2"))
    assert grown(storage, (load(data=each).build for each in codes)) == [1, 1, 2]


# A class that no text of the project defines.
MADE = """
import abc
import dataclasses
import enum
import types


def fill(body):
    body["size"] = 3


Point = dataclasses.make_dataclass(
    "Point",
    [
        ("x", int), ("y", float, 2),
        ("z", list, dataclasses.field(default_factory=list, metadata={"unit": "m"})),
    ],
    frozen=True,
    namespace={"norm": lambda self: self.x, "scale": property(lambda self: 7)},
)
Filled = types.new_class("Filled", (), {}, fill)
Made = abc.ABCMeta("Made", (), {"depth": 4})
Flag = enum.IntFlag("Flag", "SOME MORE")  # as a class of the module enum is called


def build():
    return [str(made) for made in (Point(1), Filled.size, Made.depth, len(Flag))]
"""
MADE_CHANGES = {
    "the order of fields": ('("x", int), ("y", float, 2)', '("y", float), ("x", int, 2)'),
    "the name of a field": ('("x", int)', '("w", int)'),
    "the type of a field": ('("x", int)', '("x", bool)'),
    "a default": ('("y", float, 2)', '("y", float, 3)'),
    "a default's factory": ("default_factory=list", "default_factory=tuple"),
    "a note of a field": ('{"unit": "m"}', '{"unit": "km"}'),
    "how a field is shown": ("(default_factory=list,", "(default_factory=list, repr=False,"),
    "an option": ("frozen=True", "frozen=False"),
    "a method": ("self.x,", "-self.x,"),
    "a property": ("lambda self: 7", "lambda self: 8"),
    "a base class": ("    frozen=True", "    bases=(abc.ABC,), frozen=True"),
    "what types.new_class made": ('["size"] = 3', '["size"] = 5'),
    "what a metaclass made": ('"depth": 4', '"depth": 5'),
    "a member of an enum": ("SOME MORE", "SOME LESS"),
}


@pytest.mark.parametrize("change", MADE_CHANGES.values(), ids=MADE_CHANGES)
def test_a_class_that_a_call_made_counts_with_its_fields_and_all_else(storage, load, change):
    assert MADE.count(change[0]) == 1
    codes = MADE, MADE, MADE.replace(*change)
    assert grown(storage, (load(data=each).build for each in codes)) == [1, 1, 2]


def test_an_argument_of_a_class_that_make_dataclass_made_counts_with_its_fields(storage):
    def takes(config):
        return [1]

    def config(*names):
        return dataclasses.make_dataclass("Config", [(name, int) for name in names])(1, 2)

    for names, count in (("xy", 1), ("xy", 1), ("yx", 2)):
        assert len(auto(storage, takes, config(*names))) == count


# A class in each of two branches, under one name: of neither does Python say from which it is.
BRANCHES = {
    "fields": (
        "@dataclass\nclass C:\n    x: int = 1\n    y: int = 1",
        "@dataclass\nclass C:\n    y: int = 1\n    x: int = 1",
    ),
    "a decorator": ("@dataclass(order=True)\nclass C:\n    x: int", "@dataclass\nclass C:\n    x: int"),
    "attributes": ("class C:\n    x = 1\n    y = 1", "class C:\n    y = 1\n    x = 1"),
    "annotations": ("class C:\n    x: int", "class C:\n    x: float"),
    "a named tuple": (
        "class C(NamedTuple):\n    x: int = 1\n    y: int = 1",
        "class C(NamedTuple):\n    y: int = 1\n    x: int = 1",
    ),
    "an enum": ("class C(enum.Enum):\n    X = 1\n    Y = 2", "class C(enum.Enum):\n    Y = 2\n    X = 1"),
    "a base class": ("class C(Base):\n    x = 1", "class C(abc.ABC):\n    x = 1"),
    "a metaclass": ("class C:\n    x = 1", "class C(metaclass=abc.ABCMeta):\n    x = 1"),
    "a descriptor": ("class C:\n    x = Field(1)", "class C:\n    x = Field(2)"),
    "a property": (
        "class C:\n    @property\n    def x(self): return 1",
        "class C:\n    @property\n    def x(self): return 2",
    ),
    "a method": ("class C:\n    def x(self): return 1", "class C:\n    def x(self): return 2"),
    "a method in one": ("class C:\n    def x(self): return 1", "class C:\n    x = 1"),
    "a call in one": ("class C:\n    x = 1\n    y = 1", "C = type('C', (), {'y': 1, 'x': 1})"),
    "make_dataclass in one": (
        "@dataclass\nclass C:\n    x: int\n    y: int",
        "C = make_dataclass('C', ['y', 'x'])",
    ),
}
BRANCHED = """
import abc
import enum
from dataclasses import dataclass, make_dataclass
from typing import NamedTuple

IS_FIRST = {}


class Base:
    pass


class Field:
    def __init__(self, size):
        self.size = size

    def __get__(self, instance, owner=None):
        return self.size


if IS_FIRST:
{}
else:
{}


def build():
    return [C.__name__]
"""


@pytest.mark.parametrize(("first", "second"), BRANCHES.values(), ids=BRANCHES)
def test_which_of_two_classes_of_one_name_there_is_counts(storage, load, first, second):
    cases = [(True, first, second)] * 2 + [(False, first, second), (True, f"{first}\n    more = 5", second)]
    if second.startswith(("class", "@")):
        cases.append((False, first, f"{second}\n    more = 5"))
    codes = (BRANCHED.format(is_first, *(indent(each, "    ") for each in both)) for is_first, *both in cases)
    assert grown(storage, (load(data=code).build for code in codes)) == [1, 1, 2, 3, 4][: len(cases)]
