"""The site that `tox -e site` has made: its reference has each public name, called as it really is."""

import ast
import importlib.util
import re
import sys
from pathlib import Path

import public_api
import pytest
from pages import ROOT
from sphinx.ext.autodoc.mock import mock
from sphinx.util.inventory import InventoryFile

SITE = Path(sys.prefix) / "html"  # where sphinx-build was told to put it
MODULES = sorted(path.stem for path in public_api.WRITTEN.glob("*.txt"))


@pytest.fixture(scope="module")
def conf():
    spec = importlib.util.spec_from_file_location("conf", ROOT / "docs" / "conf.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def described():
    """Return the names that the site describes, as a reader writes them, and what kind of thing each is."""
    kinds = InventoryFile.loads((SITE / "objects.inv").read_bytes(), uri="").data
    return {name for kind in kinds if kind.startswith("py:") for name in kinds[kind]}


def places(module):
    """Yield, for each name of `tests/public_names/` but plain values, the places that may describe it."""
    holders = []
    for line in (public_api.WRITTEN / f"{module}.txt").read_text("utf-8").splitlines():
        name, _, rest = line.strip().removeprefix("class ").partition("(")
        name, is_property = name.removesuffix(": property"), line.endswith(": property")
        if line.startswith("class "):
            # What a class has of a base is described there.
            holders = [f"{module}.{holder}" for holder in (name, *rest.rstrip(")").split(", "))]
            holders += ["yogadl.RecordsRef"] * (name == "LMDBDataRef")  # which is the name of 0.1.4
        if name != "__init__" and (rest or is_property):
            yield [f"{holder}.{name}" for holder in holders] if line[0] == " " else [f"{module}.{name}"]


@pytest.mark.parametrize("module", MODULES)
def test_each_public_name_is_in_the_reference(module, described):
    every = list(places(module))
    assert every
    assert [found[0] for found in every if described.isdisjoint(found)] == []


@pytest.mark.parametrize("module", MODULES)
def test_signatures_are_read_right_without_the_frameworks(module, conf):
    with mock(conf.autodoc_mock_imports):
        public_api.check(module)


def arguments_shown():
    """Return the names of the arguments that the site shows for each function and class."""
    found = {}
    for page in (SITE / "reference").glob("*.html"):
        for path, text in re.findall(
            r'<dt class="sig[^>]* id="(yogadl[\w.]+)">(.*?)</dt>', page.read_text(), re.S
        ):
            arguments = re.findall(r'<em class="sig-param">(.*?)</em>', text, re.S)
            names = [re.search(r'<span class="n"><span class="pre">(\w+)<', one) for one in arguments]
            found[path] = [name[1] for name in names if name]  # not `*` and `/`
    return found


def arguments_written(module):
    """Yield the names of the arguments of each function and class that `tests/public_names/` has."""
    for line in (public_api.WRITTEN / f"{module}.txt").read_text("utf-8").splitlines():
        name, opened, rest = line.strip().removeprefix("class ").partition("(")
        if line.startswith("class "):
            holder = name
        elif opened:
            given = ast.parse(f"def f({rest}: ...").body[0].args
            every = [*given.posonlyargs, *given.args, given.vararg, *given.kwonlyargs, given.kwarg]
            path = ".".join(
                [module, *([holder] if line[0] == " " else []), *([name] if name != "__init__" else [])]
            )
            yield path, [one.arg for one in every if one and one.arg not in ("self", "cls")]


def test_the_arguments_that_the_site_shows_are_those_that_there_are(conf):
    shown, seen = arguments_shown(), 0
    for module in sorted({*MODULES} - {"yogadl.dataref", "yogadl.tensorflow"}):  # names of 0.1.4, without any
        for path, written in arguments_written(module):
            if path in shown and path.rpartition(".")[2] not in conf.NOT_MADE_BY_USERS:
                assert shown[path] == written, path
                seen += 1
    assert seen > 150
