"""The numbers of `docs/decisions.md` are in the page or the table that each names as its source."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "decisions.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^## (.+)\n\n((?:(?!## ).*\n)+)", PAGE, re.M))
SOURCES = r"\(\[measured\]\(([^)#]+)[^)]*\)|\(`(benchmarks/README\.md)`\)"


@pytest.mark.parametrize("fork", SECTIONS)
def test_each_fork_has_a_number_that_its_source_has(fork):
    numbers = re.finditer(rf"\*\*([^*]+)\*\*.*?(?:{SOURCES})", SECTIONS[fork], re.S)
    found = [(number[1], number[2] or f"../{number[3]}") for number in numbers]
    assert found
    for number, source in found:
        text = (DOCS / source).read_text("utf-8").replace("\N{NO-BREAK SPACE}", " ")
        assert re.search(rf"(?<![\d.]){re.escape(number)}(?![\d.])", text), f"{number} is not in {source}"


def test_the_table_has_each_fork_of_the_page():
    assert len(SECTIONS) == len(re.findall(r"^\| \[", PAGE, re.M)) >= 8


def test_the_readme_has_the_requests_of_its_page():
    readme = (DOCS.parent / "README.md").read_text("utf-8")
    quoted = r"takes ([\d.]+) requests a record, \[`Blocks`\]\([^)]*\) ([\d.]+)\."
    [(every, blocks)] = re.findall(quoted, readme)
    table = (DOCS / "howto" / "bigger-than-disk.md").read_text("utf-8")
    assert re.search(rf"^\| `shuffle=True` .* {re.escape(every)} a record \|$", table, re.M)
    assert re.search(rf"^\| `Blocks.* {re.escape(blocks)} a record \|$", table, re.M)
