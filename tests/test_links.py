"""What pages, docstrings and messages send a reader to is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
PLACES = ("yogadl", "tests", "benchmarks", "docs")
TEXTS = [
    path
    for place in PLACES
    for path in (ROOT / place).rglob("*")
    if path.suffix in (".py", ".md", ".rst") and ".venvs" not in path.parts  # what is installed there
]
TEXTS += [path for path in ROOT.iterdir() if path.suffix in (".md", ".toml", ".ini", ".in")]


def name(path):
    return str(path.relative_to(ROOT))


def without_code(page):
    """Return a page's text without its blocks and its comments, which may look like links and headings."""
    text = re.sub(r"^ *(```|~~~).*?^ *\1", "", page.read_text("utf-8"), flags=re.M | re.S)
    return re.sub(r"<!--.*?-->", "", text, flags=re.S)


def anchors(page):
    """Return the anchors that a page's headings have, where it is read as a file and on the site."""
    headings = re.findall(r"^#+ +(.*)", without_code(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_each_link_of_a_page_leads_to_a_file_and_a_heading(page):
    targets = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", without_code(page)))
    for target in targets:
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), target


def test_each_page_that_is_named_is_there():
    named = {
        (found, name(path))
        for path in TEXTS
        for found in re.findall(r"\bdocs/[\w/-]+\.md\b", path.read_text())
    }
    assert len(named) > 20
    assert {(page, where) for page, where in named if not (ROOT / page).is_file()} == set()


def test_each_test_that_a_page_names_is_there():
    named = {
        (found, name(page))
        for page in PAGES
        for found in re.findall(r"`(tests/[\w/.-]+)`", page.read_text("utf-8"))
    }
    assert len(named) > 20
    assert {(path, page) for path, page in named if not (ROOT / path).exists()} == set()


def named_tests(page):
    """Yield each test that a page names with the file that it is in: the last one that was named before."""
    file = None
    for found in re.findall(r"`([^`\n]+)`", without_code(page)):
        if re.fullmatch(r"tests/[\w/.-]+\.py", found):
            file = found
        elif re.fullmatch(r"test_\w+", found):
            yield file, found


def test_each_test_that_a_page_names_after_a_file_is_in_that_file():
    named = {(page, file, test) for page in PAGES for file, test in named_tests(page)}
    assert len(named) > 50
    lost = [
        f"{name(page)}: {file}::{test}"
        for page, file, test in named
        if not file or not re.search(rf"^def {test}\(", (ROOT / file).read_text("utf-8"), re.M)
    ]
    assert lost == []
