"""version="auto": code of every kind counts, that without source and that of others, too."""

import importlib
import re
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from inside import modules_of_packages
from versioned_project import WORK, auto, grown

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
    module = "data" if number < 14 else "work"
    (old,) = re.findall(rf".*\b{number}\b.*", KINDS[module])[-1:]
    edited = KINDS[module].replace(old, re.sub(rf"\b{number}\b", "99", old))
    projects = KINDS, KINDS, {**KINDS, module: edited}
    assert grown(storage, (load(**each).build for each in projects)) == [1, 1, 2]


@pytest.mark.parametrize("name", ["SIZE", "DEPTH"])
def test_a_class_that_a_script_changes_counts_as_it_is(storage, load, monkeypatch, name):
    project = load(**KINDS)
    assert len(auto(storage, project.build)) == 1
    monkeypatch.setattr(project.Config, name, 99)
    assert len(auto(storage, project.build)) == 2


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
        ("[s", "[-s"),
        ("size = 3", "size = 4"),
        ("return self", "return -self"),
        ("lambda: 1", "lambda: 2"),
    )
    texts = text, text, *(text.replace(*edit) for edit in edits)
    assert grown(storage, map(made, texts)) == [1, 1, 2, 3, 4, 5]
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
            f"__version__ = '{version}'", f"SIZE = {factor}", f"def twice(v): return v * {factor}",
            f"class A: x = {factor}",
        )  # fmt: skip
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


def test_what_is_installed_among_the_users_own_files_counts_by_its_name(storage, load, tmp_path, monkeypatch):
    """As by `pip install --target`, which writes a distribution's folder beside the package."""
    data = """
        from theirs.inner import twice

        def build():
            return [twice(2)]
    """
    for factor in (2, 3):
        folder = tmp_path / str(factor)
        (folder / "theirs" / "inner").mkdir(parents=True)
        (folder / "theirs" / "__init__.py").write_text("__version__ = '1.0'")
        (folder / "theirs" / "inner" / "__init__.py").write_text(f"def twice(v): return v * {factor}")
        (folder / "theirs-1.0.dist-info").mkdir()
        (folder / "theirs-1.0.dist-info" / "METADATA").write_text("Name: theirs\nVersion: 1.0\n")
        (folder / "theirs-1.0.dist-info" / "top_level.txt").write_text("theirs\n")
        with monkeypatch.context() as patched:
            patched.syspath_prepend(str(folder))
            modules_of_packages.cache_clear()
            versions = auto(storage, load(data=data).build)
        for name in [name for name in sys.modules if name.partition(".")[0] == "theirs"]:
            del sys.modules[name]
        modules_of_packages.cache_clear()
        assert len(versions) == 1


@pytest.fixture
def packaged(tmp_path, monkeypatch):
    """Return what imports the builder of a package `mine` afresh, from a folder of its own."""

    def forget():
        for name in [name for name in sys.modules if name.partition(".")[0] == "mine"]:
            del sys.modules[name]

    def packaged(folder, **modules):
        forget()
        package = tmp_path / folder / "mine"
        package.mkdir(parents=True)
        for name, text in {"__init__": "", **modules}.items():
            (package / f"{name}.py").write_text(text)
        with monkeypatch.context() as patched:
            patched.syspath_prepend(str(package.parent))
            return importlib.import_module("mine.data").build

    yield packaged
    forget()


def test_the_builders_own_package_is_no_library_even_where_it_is_installed(storage, packaged):
    data = "from . import work\ndef build():\n    return [work.twice(2)]\n"
    for number, factor in enumerate((2, 3), 1):
        work = f"def twice(v):\n    return v * {factor}\n"
        assert len(auto(storage, packaged(f"{number}/site-packages", work=work, data=data))) == number


def test_what_a_module_has_counts_that_is_imported_only_when_the_builder_runs(storage, packaged):
    data = "import importlib, mine\ndef build():\n"
    data += "    importlib.import_module('mine.late')\n    return [mine.late.SIZE]\n"
    for number in (1, 2):
        assert len(auto(storage, packaged(str(number), late=f"SIZE = {number}\n", data=data))) == number


@pytest.mark.parametrize(("level", "versions"), [(0, 1), (1, 1), (2, 1), (3, 1), (4, 2)])
def test_folders_of_the_project_and_two_above_it_are_the_same_wherever_it_lies(
    storage, packaged, level, versions
):
    data = f"import pathlib\nHERE = pathlib.Path(__file__).parents[{level}]\n"
    data += "def build():\n    return [HERE.name]\n"
    for folder in ("1/a/b/c", "2/a/b/c"):
        found = auto(storage, packaged(folder, data=data))
    assert len(found) == versions
