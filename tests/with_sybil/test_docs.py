"""Every Python example of the README, of docs/ and of docstrings runs, in an empty folder of its own."""

import re
from collections import Counter
from pathlib import Path
from unittest import SkipTest

import pytest
from pages import ROOT
from sybil import Sybil
from sybil.document import PythonDocStringDocument
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser
from sybil.parsers.rest import DocTestParser
from sybil.parsers.rest import PythonCodeBlockParser as DocstringCodeBlockParser

import yogadl

PACKAGE = Path(yogadl.__file__).parent

SKIPPER = SkipParser()
PAGES = Sybil(parsers=[PythonCodeBlockParser(), SKIPPER], path=str(ROOT))
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
    """Run the examples of a file; return how many ran. Some may say that they can't run here, and why."""
    ran, reasons = 0, []
    for example in sybil.parse(path).examples():
        try:
            example.evaluate()
            ran += example.region.evaluator is not SKIPPER.skipper
        except SkipTest as skipped:
            reasons.append(str(skipped))
    if reasons and not ran:
        pytest.skip(reasons[0])
    return ran


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


# An example that does not run here says why, and where it does. What no environment runs is no example.
SKIP = re.compile(r"<!--+ *skip: *(\w+) *(.*?) *--+>")


def skips():
    return [(path, *found) for path in pages() for found in SKIP.findall(path.read_text("utf-8"))]


def test_an_example_is_skipped_where_a_package_lacks_or_if_another_test_runs_it():
    for path, action, reason in skips():
        if reason.startswith("if("):
            assert re.search(r'reason="needs [\w ,]+"\)$', reason), f"{path}: {reason}"
        else:
            place = re.fullmatch(r'"runs in (tests/\S+\.py)(, [\w ]+)?"', reason)
            assert action == "next", path
            assert place, f"{path}: {reason!r} does not say in which test the example runs"
            assert path.name in (ROOT / place[1]).read_text("utf-8")


def test_a_page_that_needs_a_framework_runs_in_that_frameworks_tests():
    tests = "".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("with_*/**/test_*_docs.py"))
    needy = {path.name for path, action, _ in skips() if action == "start"}
    names = ("clusters", "grain", "jax", "keras", "migrating", "pytorch", "ray", "tensorflow")
    assert needy == {f"{name}.md" for name in names}
    assert all(f'"{name}"' in tests for name in needy)


def test_so_many_examples_are_skipped_and_no_more():
    kinds = Counter((action, reason.startswith("if(")) for _, action, reason in skips())
    assert kinds == {("start", True): 8, ("next", True): 6, ("next", False): 3}


def test_the_languages_of_the_blocks_are_those_that_the_tests_look_for():
    for path in pages():
        fences = re.findall(r"^ *(?:```|~~~)(.*)$", path.read_text("utf-8"), re.M)
        assert set(fences) <= {"", "console", "json", "python", "sh"}, path
