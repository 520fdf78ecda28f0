"""version="auto": it changes with whatever decides what is built, and with nothing else."""

import dataclasses
import functools
import importlib
import itertools
import logging
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from textwrap import dedent, indent

import cloudpickle
import numpy as np
import pytest

import yogadl
from yogadl._provenance.difference import Difference
from yogadl.errors import ConfigurationError, DatasetNotFoundError

# A project of three modules, in which everything that may have a part in a version has one.
DATA = '''\
"""Build the flowers."""

import functools
import logging
from pathlib import Path

import numpy as np

import settings
from work import Augment, Color, decode, load, repeat as again

log = logging.getLogger(__name__)
SCALE = 2
UNUSED = 1
NAMES = {"rose", "lily", "iris"}
FIELDS = {"x": 1, "y": 2}
MEANS = np.array([0.5, 0.25])
FOLDER = Path("raw") / "flowers"
HERE = Path(__file__).parent
AUGMENT = Augment(3, note="none")
HALVE = functools.partial(decode, shift=1)
ADD, TAKE = (lambda v: v + 1), (lambda v: v - 1)


def counter(step):
    def count(v):
        return v * step

    return count


COUNT = counter(5)


def unused(v):
    return v + UNUSED


def build(n=3, scale=SCALE, *, color=Color.RED, **options):
    """Return the records."""
    import json

    from work import late

    log.info("building in %s", HERE.name)
    load_all = [load(i) for i in range(n)]  # as they come
    values = np.array(load_all) * scale + late(1)
    shown = json.dumps(sorted(NAMES))

    def inner(v: float) -> float:
        unused = v
        return unused * settings.SIZE + settings.config.depth

    total: float = inner(1) + ADD(1) + COUNT(2) + HALVE(4) + again(2) + AUGMENT.apply(1) + color.value
    if len(shown) > 10_000:
        raise ValueError("too long: " + str(FOLDER))
    return {name: values + total + MEANS[0] * k for name, k in FIELDS.items()}
'''
WORK = '''\
import enum
from dataclasses import dataclass, field

DEPTH = 4


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Base:
    bias = 7

    def shift(self, v):
        return v + self.bias


@dataclass
class Augment(Base):
    amount: int
    note: str = ""
    seen: list = field(default_factory=list)

    def apply(self, v):
        """Apply it."""
        return self.shift(v) * self.amount


def decode(v, shift=0):
    return helper(v) >> shift


def helper(v):
    return v * 2


def load(i, depth=DEPTH):
    return decode(i) * depth if i < 10 else load(i - 10)


def repeat(n):
    return n if n < 1 else twice(n - 1)


def twice(n):
    return 2 * repeat(n)


def late(v):
    return v


def nobody_calls(v):
    return v
'''
SETTINGS = """\
from types import SimpleNamespace

SIZE = 32
RATE = 0.1
config = SimpleNamespace(depth=3, rate=0.1)
"""
PROJECT = {"data": DATA, "work": WORK, "settings": SETTINGS}


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Return what imports the project, with edits, afresh and from a folder of its own."""
    numbers = itertools.count()

    def load(*edits, **modules):
        folder = tmp_path / f"project{next(numbers)}"
        folder.mkdir()
        texts = {**PROJECT, **{name: dedent(text) for name, text in modules.items()}}
        for module, old, new in edits:
            assert texts[module].count(old) == 1, f"{old!r} is not once in {module}"
            texts[module] = texts[module].replace(old, new)
        for name, text in texts.items():
            (folder / f"{name}.py").write_text(text)
            sys.modules.pop(name, None)
        with monkeypatch.context() as patched:
            patched.syspath_prepend(str(folder))
            return importlib.import_module("data")

    yield load
    for name in PROJECT:
        sys.modules.pop(name, None)


def auto(storage, function, *args, **kwargs):
    """Build, and return the versions that there are now."""
    storage.cacheable("d", "auto")(function)(*args, **kwargs)
    return storage.versions("d")


CHANGES = {
    "an operator of the builder": ("data", "np.array(load_all) * scale", "np.array(load_all) + scale"),
    "a number in it": ("data", "len(shown) > 10_000", "len(shown) > 10_001"),
    "a statement taken out": ("data", "    log.info(", "    print('', end='') if False else log.info("),
    "a message of an error": ("data", '"too long: "', '"far too long: "'),
    "a default that is used": ("data", "def build(n=3,", "def build(n=4,"),
    "a default by way of a global": ("data", "SCALE = 2", "SCALE = 3"),
    "a default of a keyword": ("data", "color=Color.RED", "color=Color.BLUE"),
    "a function that it calls": ("work", "return decode(i) * depth", "return decode(i) + depth"),
    "a function that that calls": ("work", "return v * 2", "return v * 3"),
    "a default of a function": ("work", "def decode(v, shift=0)", "def decode(v, shift=1)"),
    "a default of a function, by a global": ("work", "DEPTH = 4", "DEPTH = 5"),
    "a function imported by another name": ("work", "n if n < 1", "n if n < 2"),
    "a function that calls back": ("work", "2 * repeat(n)", "3 * repeat(n)"),
    "a function imported when it runs": ("work", "def late(v):\n    return v", "def late(v):\n    return -v"),
    "a method": ("work", "self.shift(v) * self.amount", "self.shift(v) - self.amount"),
    "a method of a base class": ("work", "return v + self.bias", "return v - self.bias"),
    "an attribute of a base class": ("work", "bias = 7", "bias = 8"),
    "a field of a dataclass": ("work", "amount: int", "amount: int = 0\n    more: int = 0"),
    "a decorator of a class": ("work", "@dataclass\n", "@dataclass(order=True)\n"),
    "the state of an object": ("data", "Augment(3,", "Augment(4,"),
    "a set": ("data", '"lily", "iris"', '"lily", "tulip"'),
    "a dict's value": ("data", '"y": 2', '"y": 3'),
    "the order of a dict, which may be that of fields": ("data", '"x": 1, "y": 2', '"y": 2, "x": 1'),
    "an array's content": ("data", "[0.5, 0.25]", "[0.5, 0.125]"),
    "an array's dtype": ("data", "0.25])", "0.25], np.float32)"),
    "a path": ("data", 'Path("raw")', 'Path("cooked")'),
    "a partial's argument": ("data", "decode, shift=1", "decode, shift=2"),
    "a partial's function": ("data", "partial(decode, shift=1)", "partial(load, depth=1)"),
    "a lambda": ("data", "lambda v: v + 1)", "lambda v: v + 2)"),
    "which of two lambdas": ("data", "ADD, TAKE =", "TAKE, ADD ="),
    "a closure's variable": ("data", "counter(5)", "counter(6)"),
    "a closure's code": ("data", "return v * step", "return v / step"),
    "a nested function": ("data", "return unused * settings.SIZE", "return unused + settings.SIZE"),
    "a constant of another module": ("settings", "SIZE = 32", "SIZE = 64"),
    "a setting that is read": ("settings", "depth=3", "depth=4"),
    "an enum's value": ("work", "RED = 1", "RED = 3"),
    "a global bound to another function": ("data", "decode, load, rep", "decode, decode as load, rep"),
    "a library's other function": ("data", "sorted(NAMES)", "list(NAMES)"),
    "int for float": ("settings", "SIZE = 32", "SIZE = 32.0"),
    "an assertion": ("work", "def helper(v):\n", "def helper(v):\n    assert v >= 0\n"),
}  # fmt: skip


@pytest.mark.parametrize("edit", CHANGES.values(), ids=CHANGES)
def test_an_edit_that_may_change_the_records_changes_the_version(storage, load, edit):
    assert len(auto(storage, load().build)) == 1
    assert len(auto(storage, load(edit).build)) == 2


REPEAT = "def repeat(n):\n    return n if n < 1 else twice(n - 1)\n\n\n"
TWICE = "def twice(n):\n    return 2 * repeat(n)\n\n\n"
STAYS = {
    "nothing but the folder": (),
    "a comment": ("data", "# as they come", "# one by one"),
    "the docstring": ("data", '"""Return the records."""', '"""Return all\n    of the records."""'),
    "the docstring of the module": ("data", '"""Build the flowers."""', ""),
    "a docstring of a method": ("work", '        """Apply it."""\n', ""),
    "a docstring where none was": ("work", "def helper(v):\n", 'def helper(v):\n    "Help."\n'),
    "layout": ("data", "[load(i) for i in range(n)]", "[\n  load(i)\n  for i in range( n )]"),
    "lines added above": ("work", "import enum\n", "import enum\n\n\n# Some colours.\n\n"),
    "quotes": ("data", '"too long: "', "'too long: '"),
    "a number's spelling": ("data", "10_000", "10000"),
    "an annotation of an argument": ("data", "def inner(v: float) -> float", "def inner(v: int) -> int"),
    "an annotation of a result": ("work", "def load(i, depth=DEPTH):", "def load(i, depth=DEPTH) -> int:"),
    "an annotation of a variable": ("data", "total: float =", "total ="),
    "a variable that is only annotated": ("work", "def twice(n):\n", "def twice(n):\n    m: int\n"),
    "a pass": ("work", "def twice(n):\n", "def twice(n):\n    pass\n"),
    "a global that nothing reads": ("data", "UNUSED = 1", "UNUSED = 2"),
    "a function not called": ("work", "nobody_calls(v):\n    return v", "nobody_calls(v):\n    return 0"),
    "a function whose name is shadowed": ("data", "return v + UNUSED", "return v - UNUSED"),
    "a lambda beside": ("data", "lambda v: v - 1", "lambda v: v - 2"),
    "a setting that is not read": ("settings", "depth=3, rate=0.1", "depth=3, rate=0.2"),
    "a constant beside": ("settings", "RATE = 0.1\n", "RATE = 0.2\n"),
    "the order of a set": ("data", '{"rose", "lily", "iris"}', '{"iris", "rose", "lily"}'),
    "a value worked out in another way": ("data", "SCALE = 2", "SCALE = 1 + 1"),
    "a path spelt in another way": ("data", 'Path("raw") / "flowers"', 'Path("raw/flowers")'),
    "an array made in another way": ("data", "([0.5, 0.25])", "([2.0, 1.0]) / 4"),
    "a logger's name": ("data", "logging.getLogger(__name__)", 'logging.getLogger("flowers")'),
    "a default spelt in another way": ("work", "def decode(v, shift=0)", "def decode(v, shift=1 - 1)"),
    "functions in another order": ("work", REPEAT + TWICE, TWICE + REPEAT),
    "a cache around a function": ("work", "def helper(", "import functools\n@functools.cache\ndef helper("),
    "an import that nothing uses": ("data", "import functools\n", "import functools\nimport decimal\n"),
    "the builder's own name": ("data", "def build(", "def build(): ...\n\n\ndef make("),
}  # fmt: skip


@pytest.mark.parametrize("edit", STAYS.values(), ids=STAYS)
def test_an_edit_that_changes_no_record_does_not_change_the_version(storage, load, edit):
    assert len(auto(storage, load().build)) == 1
    module = load(*([edit] if edit else []))
    versions = auto(storage, getattr(module, "make", module.build))
    assert len(versions) == 1, str(storage.explain("d", *versions))


def test_there_are_at_least_twenty_of_each():
    assert len(CHANGES) >= 20
    assert len(STAYS) >= 20


def test_the_version_is_the_same_for_ever(storage, load):
    """On every machine, with every version of Python and numpy: else everybody would build anew."""
    assert auto(storage, load().build) == ["auto-2474aa96a01d86ed"]


SCRIPT = """\
import sys
import yogadl

storage = yogadl.open_storage(sys.argv[1])
{import_line}

if __name__ == "__main__":
    storage.cacheable("d", "auto")({function})()
"""


def run(folder, *arguments, seed="0", **environment):
    path = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(path), **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_it_is_the_same_in_every_process_however_it_was_started(storage, load, tmp_path):
    module = load()
    folder, root = Path(module.__file__).parent, Path(storage.location)
    auto(storage, module.build)
    (folder / "imports.py").write_text(SCRIPT.format(import_line="import data", function="data.build"))
    # The very same function, but of __main__.
    (folder / "runs.py").write_text(DATA + SCRIPT.format(import_line="", function="build"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for path in folder.glob("*.py"):
        (elsewhere / path.name).write_text(path.read_text())
    run(folder, "imports.py", root, seed="1")
    run(folder, "runs.py", root, seed="2")
    run(folder, "-O", "-m", "runs", root, seed="3")
    run(elsewhere, "imports.py", root, PYTHONDONTWRITEBYTECODE="1")
    assert len(storage.versions("d")) == 1


KINDS = {
    "data": """\
import contextlib
import functools
import typing

import work
from work import Config, Table


def traced(tag):
    def decorate(function):
        @functools.wraps(function)
        def call(*args):
            return [*function(*args), tag]

        return call

    return decorate


@contextlib.contextmanager
def opened(n):
    yield n + 1


@functools.singledispatch
def size(v):
    return 0


@size.register
def _(v: int):
    return v + 2


class Pair(typing.NamedTuple):
    a: int = 3

    def total(self):
        return self.a + 4


class Made:
    class Inner:
        def get(self):
            return 5

    @staticmethod
    def still():
        return 6

    @classmethod
    def of(cls):
        return cls.Inner().get() + 7

    @property
    def value(self):
        return 8

    @functools.cached_property
    def slow(self):
        return 9


def factory():
    limit = 10

    class Local:
        def get(self):
            return limit

    return Local


Local = factory()
total = 11
rows = Table()
fill = rows.fill


@traced(12)
def build():
    global total
    with opened(1) as n:
        made = [n, size(1), Pair().total(), Made.still(), Made.of(), Made().value, Made().slow, Local().get()]
    made += [Config.SIZE, Config().DEPTH, fill(), *work.Numbers()]
    made += [make(1) for make in (lambda v: v + 13, abs)] if len(made) else []
    total += 0
    return made
""",
    "work": """\
class Config:
    SIZE = 14
    DEPTH = 15


class Table:
    __slots__ = ("rows",)

    def __init__(self):
        self.rows = 16

    def fill(self):
        return self.rows


class Numbers:
    def __iter__(self):
        return iter([17])
""",
}


@pytest.mark.parametrize("number", range(1, 18))
def test_code_of_every_kind_counts(storage, load, number):
    project = load(**KINDS)
    assert len(auto(storage, project.build)) == 1
    assert len(auto(storage, load(**KINDS).build)) == 1
    module = "data" if number < 14 else "work"
    (old,) = re.findall(rf".*\b{number}\b.*", KINDS[module])[-1:]
    edited = KINDS[module].replace(old, re.sub(rf"\b{number}\b", "99", old))
    assert len(auto(storage, load(**{**KINDS, module: edited}).build)) == 2


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
    assert len(auto(storage, load(data=code).build)) == 1
    assert len(auto(storage, load(data=code).build)) == 1
    assert len(auto(storage, load(data=code.replace(later, later.replace("1", "2"))).build)) == 2


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
    assert len(auto(storage, load(data=MADE).build)) == 1
    assert len(auto(storage, load(data=MADE).build)) == 1
    assert len(auto(storage, load(data=MADE.replace(*change)).build)) == 2


def test_an_argument_of_a_class_that_make_dataclass_made_counts_with_its_fields(storage):
    def takes(config):
        return [1]

    def config(*names):
        return dataclasses.make_dataclass("Config", [(name, int) for name in names])(1, 2)

    assert len(auto(storage, takes, config("x", "y"))) == 1
    assert len(auto(storage, takes, config("x", "y"))) == 1
    assert len(auto(storage, takes, config("y", "x"))) == 2


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
    def versions(is_first, *branches):
        code = BRANCHED.format(is_first, *(indent(branch, "    ") for branch in branches))
        return len(auto(storage, load(data=code).build))

    assert versions(True, first, second) == 1
    assert versions(True, first, second) == 1
    assert versions(False, first, second) == 2
    assert versions(True, f"{first}\n    more = 5", second) == 3
    if second.startswith(("class", "@")):
        assert versions(False, first, f"{second}\n    more = 5") == 4


@pytest.mark.parametrize("name", ["SIZE", "DEPTH"])
def test_a_class_that_a_script_changes_counts_as_it_is(storage, load, monkeypatch, name):
    project = load(**KINDS)
    assert len(auto(storage, project.build)) == 1
    monkeypatch.setattr(project.Config, name, 99)
    assert len(auto(storage, project.build)) == 2


# Arguments.


def squares(n, start=0, *rest, scale=1, **options):
    return [{"n": i * scale} for i in range(start, start + n)]


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
        {}, {"workers": 2}, {"part_bytes": 100}, {"allow_pickle": True}, {"progress": lambda *_: None},
    ):  # fmt: skip
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

    assert len(auto(storage, Project(3).build)) == 1
    assert len(auto(storage, Project(3).build)) == 1
    used = Project(3)
    used.build()
    assert len(auto(storage, used.build)) == 1  # what is worked out from the rest adds nothing
    assert len(auto(storage, Project(4).build)) == 2


def test_an_object_with_call_counts_with_its_state_and_its_code(storage):
    class Build:
        def __init__(self, count):
            self.count = count

        def __call__(self):
            return list(range(self.count))

    class Other(Build):
        def __call__(self):
            return list(range(self.count, 0, -1))

    assert len(auto(storage, Build(3))) == 1
    assert len(auto(storage, Build(3))) == 1
    assert len(auto(storage, Build(4))) == 2
    assert len(auto(storage, Other(3))) == 3


# Other caches.


def test_a_cache_that_it_reads_counts_by_its_own_version(storage):
    def chain(raw_version, raw):
        raw = storage.cacheable("raw", raw_version)(raw)

        def build():
            return list(raw())

        return auto(storage, build)

    one, two = (lambda: [1]), (lambda: [2])
    assert len(chain("auto", one)) == 1
    assert len(chain("auto", one)) == 1
    assert len(chain("auto", two)) == 2
    assert len(chain("1", one)) == 3
    assert len(chain("1", two)) == 3  # and so it serves what `one` built
    assert len(chain("2", two)) == 4


def test_it_is_the_same_where_cloudpickle_brought_the_function(storage, load):
    module = load()
    before = auto(storage, module.build)
    cloudpickle.register_pickle_by_value(module)  # as the modules of a script and of a notebook are sent
    try:
        sent = cloudpickle.loads(cloudpickle.dumps(module.build))
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    assert sent is not module.build
    assert auto(storage, sent) == before


def test_a_decorator_around_such_a_cache_counts_too(storage):
    def chain(decorate):
        raw = decorate(storage.cacheable("raw", "1")(squares))

        def build():
            return list(raw(3))

        return auto(storage, build)

    def first(function):
        @functools.wraps(function)
        def call(*args):
            return function(*args)[:2]

        return call

    def second(function):
        @functools.wraps(function)
        def call(*args):
            return function(*args)[1:]

        return call

    assert len(chain(first)) == 1
    assert len(chain(second)) == 2


def double(record):
    return {"x": record["x"] * 2}


TOKENS = yogadl.Leaf("int64", (None,))


def twice(record):
    return {"x": np.repeat(record["x"], 2)}


def triple(record):
    return {"x": record["x"] * 3}


def test_what_becomes_of_a_references_records_counts_too(storage):
    one, two = (yogadl.from_source({"x": [n], "y": [n]}, fingerprint=f"records {n}") for n in range(2))

    def build(ref):
        return [1]

    texts = yogadl.from_source([{"x": np.arange(3)}] * 4, fingerprint="texts", spec={"x": TOKENS})

    def mixed(weight, seed=0):
        return yogadl.mix({"one": (one, weight), "two": (two, 1)}, seed=seed)

    refs = [
        one,
        one.map(double),
        one.map(triple),
        one.map(double).map(double),
        one.map(double)[:1],
        one.fields("x"),
        one.fields("y"),
        one.fields("x").map(double),
        yogadl.concat([one, two]),
        yogadl.concat([one.map(double), two.map(double)]),
        yogadl.concat([one.map(triple), two.map(double)]),
        texts.chunks("x", 2),
        texts.chunks("x", 2, segments="of"),
        texts.map(twice).chunks("x", 2),
        mixed(1),
        mixed(2),
        mixed(1, seed=1),
        mixed(1).map(double),
    ]
    assert [len(auto(storage, build, ref)) for ref in refs] == list(range(1, len(refs) + 1))
    assert len(auto(storage, build, one.map(double))) == len(refs)


def test_a_reference_counts_by_its_fingerprint(storage):
    def build(ref):
        return list(ref)

    storage.submit([1, 2, 3], "raw", "1", part_bytes=8)
    storage.submit([1, 2, 3], "raw", "2")
    storage.submit([1, 2, 4], "raw", "3")
    assert len(auto(storage, build, storage.fetch("raw", "1"))) == 1
    assert len(auto(storage, build, storage.fetch("raw", "2"))) == 1
    assert len(auto(storage, build, storage.fetch("raw", "3"))) == 2
    assert len(auto(storage, build, yogadl.from_source([1], fingerprint="mine"))) == 3
    sampled = yogadl.from_source([1])
    for ref in (sampled, sampled[:], sampled.select([0]), sampled.map(int), yogadl.concat([sampled])):
        with pytest.raises(ConfigurationError, match=r"argument 'ref'.*fingerprint of a sample"):
            auto(storage, build, ref)


def test_one_that_asks_for_its_own_result_is_told_so(storage):
    @storage.cacheable("d", "auto")
    def build():
        return build()

    with pytest.raises(ConfigurationError, match="a builder can't ask for its own result"):
        build()


def test_threads_that_call_at_once_build_once(storage, tmp_path):
    @storage.cacheable("d", "auto")
    def build():
        with (tmp_path / "calls").open("a") as file:
            file.write("x")
        return list(range(10))

    threads = [threading.Thread(target=build) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "calls").read_text() == "x"
    assert len(storage.versions("d")) == 1


def test_what_the_build_itself_changes_makes_no_new_version(storage):
    seen = {}

    @storage.cacheable("d", "auto")
    def build(n):
        seen[n] = True
        return list(range(n))

    for n in (3, 3, 4, 3, 4):
        build(n)
    assert len(storage.versions("d")) == 2
    seen["else"] = 1
    build(3)
    assert len(storage.versions("d")) == 3


# What can't be described.


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

    assert len(auto(storage, build, Connection("db/1"))) == 1
    assert len(auto(storage, build, Connection("db/1"))) == 1
    assert len(auto(storage, build, Connection("db/2"))) == 2

    def calls(decode):
        def build():
            return [decode(1)]

        return auto(storage, build)

    one, two, three = (lambda v: v), (lambda v: v + 1), (lambda v: v)
    one.__yogadl_version__ = two.__yogadl_version__ = "1"
    three.__yogadl_version__ = "2"
    assert [len(calls(function)) for function in (one, two, three)] == [3, 3, 4]


def test_values_of_many_kinds_count_by_their_content(storage):
    import collections
    import datetime
    import decimal
    import enum
    import random
    import re
    import types

    Point = collections.namedtuple("Point", "x y")
    Color = enum.Enum("Color", "RED GREEN")
    ring = [1]
    ring.append(ring)
    ring2 = [2]
    ring2.append(ring2)
    dynamic = [type("Made", (), {"size": size, "get": lambda self: self.size}) for size in (1, 2)]

    def make():
        yield from (True, 1, 1.0, 1j, "1", b"1", None, ..., -0.0, 0.0, float("inf"))
        yield from ([1], (1,), {1}, frozenset({1}), {1: 2}, {2: 1}, [1, 2], [2, 1], [[1], 2], [1, [2]])
        yield from (
            np.float32(1),
            np.float64(1),
            np.zeros(2),
            np.zeros((2, 1)),
            np.array(["a"]),
            np.array([{1}]),
        )
        yield from (np.ma.masked_array([1, 2], [0, 1]), np.ma.masked_array([1, 2], [0, 0]), np.dtype("f4"))
        yield from (Path("a"), Path("b"), Point(1, 2), Point(2, 1), Color.RED, Color.GREEN, Color, Point)
        yield from (datetime.date(2024, 1, 1), decimal.Decimal("1.0"), re.compile("a"), re.compile("a", re.I))
        yield from (range(3), range(4), slice(1), collections.OrderedDict(a=1), collections.Counter("a"))
        yield from (types.SimpleNamespace(a=1), types.MappingProxyType({1: 2}), random.Random(1), len, np.add)
        yield from (str.upper, "a".upper, "b".upper, int, list[int], int | None, np, np.linalg, object())
        yield from (
            np.random.default_rng(1),
            np.random.default_rng(2),
            ring,
            ring2,
            *dynamic,
            "x" * 9999,
            b"x" * 9999,
        )
        yield from (
            functools.partial(len),
            functools.partial(len, "a"),
            dynamic[0](),
            dynamic[1](),
            print,
            "\ud800",
        )

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


# Code without source, of others, and edited under way.


def test_code_without_source_counts_as_it_was_compiled(storage):
    def made(text):
        names = {"step": 2}
        exec(text, names)
        return names["build"]

    text = dedent("""
        class A:
            size = 3
            def get(self):
                return self.size
        def build():
            return [step, A().get(), (lambda: 1)()]
    """)
    edits = (
        ("[step,", "[-step,"),
        ("size = 3", "size = 4"),
        ("return self.size", "return -self.size"),
        ("lambda: 1", "lambda: 2"),
    )
    assert len(auto(storage, made(text))) == 1
    assert len(auto(storage, made(text))) == 1
    for count, (old, new) in enumerate(edits, 2):
        assert len(auto(storage, made(text.replace(old, new)))) == count
    function = made(text)
    function.__globals__["step"] = 5
    assert len(auto(storage, function)) == 6


def test_a_file_edited_since_it_was_imported_counts_as_what_runs(storage, load):
    module = load()
    assert len(auto(storage, module.build)) == 1
    edit = ("work", "return v * 2", "return v * 9")
    Path(sys.modules["work"].__file__).write_text(WORK.replace(*edit[1:]))
    assert len(auto(storage, module.build)) == 2
    assert len(auto(storage, load(edit).build)) == 3


def test_what_others_wrote_counts_by_its_name(storage, load, tmp_path):
    """Else an upgrade of numpy would build everything anew, on one machine sooner than on the other."""

    def library(version, factor):
        folder = tmp_path / version / "site-packages"
        (folder / "theirs").mkdir(parents=True)
        lines = (
            f"__version__ = '{version}'",
            f"SIZE = {factor}",
            f"def twice(v): return v * {factor}",
            f"class A: x = {factor}",
        )
        (folder / "theirs" / "__init__.py").write_text("\n".join(lines))
        return str(folder)

    data = """
        import theirs
        from theirs import A, twice as again

        def build():
            import theirs as inside
            return [again(2) + theirs.twice(3) + theirs.SIZE + inside.SIZE + A().x]
    """
    try:
        for version, factor in (("1.0", 2), ("2.0", 3)):
            sys.modules.pop("theirs", None)
            sys.path.insert(0, library(version, factor))
            versions = auto(storage, load(data=data).build)
            sys.path.pop(0)
            assert len(versions) == 1
    finally:
        sys.modules.pop("theirs", None)
    assert storage.info("d", versions[0]).builder["libraries"] == {"theirs": "1.0"}


def test_the_builders_own_package_is_no_library_even_where_it_is_installed(storage, tmp_path, monkeypatch):
    def forget():
        for name in [name for name in sys.modules if name.partition(".")[0] == "mine"]:
            del sys.modules[name]

    for number, factor in enumerate((2, 3), 1):
        package = tmp_path / str(number) / "site-packages" / "mine"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "work.py").write_text(f"def twice(v):\n    return v * {factor}\n")
        (package / "data.py").write_text("from . import work\ndef build():\n    return [work.twice(2)]\n")
        with monkeypatch.context() as patched:
            patched.syspath_prepend(str(package.parent))
            assert len(auto(storage, importlib.import_module("mine.data").build)) == number
        forget()


# Saying why.


def test_explain_names_lines_values_and_arguments(storage, load):
    one = storage.cacheable("d", "auto")(load().build)
    one(3)
    edits = (
        ("work", "return v * 2", "return v * 3"),
        ("data", "SCALE = 2", "SCALE = 5"),
        ("settings", "SIZE = 32", "SIZE = 64"),
        ("data", "counter(5)", "counter(6)"),
        ("data", "Augment(3,", "Augment(4,"),
        ("data", "+ late(1)", "+ late(2)"),
    )
    first = storage.versions("d")[0]
    storage.cacheable("d", "auto")(load(*edits).build)(4)
    (second,) = set(storage.versions("d")) - {first}
    explained = storage.explain("d", first, second)
    assert (explained.id, explained.version, explained.other) == ("d", first, second)
    found = {difference.what: (difference.before, difference.after) for difference in explained.differences}
    assert found.pop("function work.helper") == ("'return v * 2'", "'return v * 3'")
    before, after = found.pop("function data.build")
    assert "late(1)" in before
    assert "late(2)" in after
    assert found.pop("argument 'n'") == ("3", "4")
    assert found.pop("argument 'scale'") == ("2", "5")
    assert found.pop("global data.settings.SIZE") == ("32", "64")
    assert found.pop("closure variable 'step' of data.counter.<locals>.count") == ("5", "6")
    assert "amount=3" in found.pop("global data.AUGMENT")[0]
    assert found == {}
    lines = str(explained).splitlines()
    assert lines[0] == f"'d': version '{first}' -> '{second}'"
    assert "  global data.settings.SIZE: 32 -> 64" in lines
    assert "  (their records differ)" in lines


def test_explain_says_when_there_is_nothing_to_say(storage):
    storage.cacheable("d", "1")(squares)(3)
    storage.cacheable("d", "2")(squares)(3)
    storage.submit([1], "d", "3")
    assert "both were built by the same code with the same arguments" in str(storage.explain("d", "1", "2"))
    assert "their records are the same" in str(storage.explain("d", "1", "2"))
    explained = storage.explain("d", "1", "3")
    assert explained.differences == ()
    assert "version '3' was not built by storage.cacheable" in str(explained)
    with pytest.raises(DatasetNotFoundError):
        storage.explain("d", "1", "4")


@pytest.mark.parametrize("argument", [3, np.int64(3)])
def test_a_version_by_hand_and_one_worked_out_of_the_same_have_no_differences(storage, argument):
    for version in ("1", "auto"):
        storage.cacheable("d", version)(squares)(argument)
    assert storage.explain("d", *storage.versions("d")).differences == ()


def test_the_version_of_this_library_is_told_once_at_most(storage):
    storage.cacheable("d", "1")(lambda: [yogadl.__version__])()
    storage.cacheable("d", "2")(lambda: ["else"])()
    assert not any(note.startswith("yogadl") for note in storage.explain("d", "1", "2").notes)


def test_what_looks_the_same_differs_without_being_shown_twice():
    assert str(Difference("argument 'x'", "an array", "an array")) == "argument 'x': differs"


def test_the_log_says_why_another_version_is_built(storage, caplog):
    build = storage.cacheable("d", "auto")(squares)
    with caplog.at_level(logging.INFO, "yogadl"):
        build(3)
        assert caplog.messages == []
        build(4)
    (message,) = [message for message in caplog.messages if "is built, for" in message]
    assert "argument 'n': 3 -> 4" in message


def test_what_may_be_a_secret_is_not_kept(storage, load):
    data = """
        API_TOKEN = "abc123"

        def build(password="hunter2"):
            return [len(API_TOKEN + password)]
    """
    versions = auto(storage, load(data=data).build)
    assert "abc123" not in str(storage.info("d", versions[0]).builder["ingredients"])
    assert "hunter2" not in str(storage.info("d", versions[0]).builder["arguments"])
    assert len(auto(storage, load(data=data.replace("abc123", "abc124")).build)) == 2


# Versions given by hand.


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (("work", "return v * 2", "return v * 3"), "function work.helper: 'return v * 2' -> 'return v * 3'"),
        (("settings", "SIZE = 32", "SIZE = 64"), "global data.settings.SIZE: 32 -> 64"),
        (("data", '"y": 2', '"y": 3'), "global data.FIELDS: {'x': 1, 'y': 2} -> {'x': 1, 'y': 3}"),
        (
            ("work", "def decode(v, shift=0)", "def decode(v, shift=1)"),
            "default of 'shift' in work.decode: 0 -> 1",
        ),
    ],
)
def test_the_warning_of_a_given_version_sees_what_the_function_uses(storage, load, edit, says):
    storage.cacheable("d", "1")(load().build)()
    with pytest.warns(UserWarning, match="built by other code or arguments") as caught:
        storage.cacheable("d", "1")(load(edit).build)()
    (warning,) = caught
    assert says in str(warning.message)
    assert "use the version '2'" in str(warning.message)
    assert warning.filename == __file__


def test_the_warning_of_a_given_version_does_not_see_what_the_build_itself_changes(storage):
    seen, lock = [], threading.Lock()

    @storage.cacheable("d", "1")
    def build():
        with lock:
            seen.append(len(seen))
        return [1]

    build()
    seen.append("more")
    build()
    assert len(seen) == 2
