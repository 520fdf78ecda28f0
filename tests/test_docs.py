"""Every Python example of the README, of docs/ and of docstrings runs, in an empty folder of its own."""

from pathlib import Path

import pytest
from sybil import Sybil
from sybil.document import PythonDocStringDocument
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser
from sybil.parsers.rest import DocTestParser
from sybil.parsers.rest import PythonCodeBlockParser as DocstringCodeBlockParser

import yogadl

ROOT = Path(__file__).parents[1]
PACKAGE = Path(yogadl.__file__).parent

PAGES = Sybil(parsers=[PythonCodeBlockParser(), SkipParser()], path=str(ROOT))
DOCSTRINGS = Sybil(
    parsers=[DocTestParser(), DocstringCodeBlockParser()],
    path=str(PACKAGE),
    document_types={".py": PythonDocStringDocument},
)


def pages():
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def modules():
    """The core's modules: an adapter's examples run in its own environment."""
    return [path for path in sorted(PACKAGE.rglob("*.py")) if "adapters" not in path.parts]


def run_all(sybil, path):
    document = sybil.parse(path)
    examples = list(document.examples())
    for example in examples:
        example.evaluate()
    return len(examples)


@pytest.mark.parametrize("path", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_examples_of_a_page_run(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_all(PAGES, path)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_examples_of_docstrings_run(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_all(DOCSTRINGS, path)


def test_the_readme_has_an_example(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_all(PAGES, ROOT / "README.md") > 0
