"""The notebooks of docs/ run, and show what they showed when they were written."""

import runpy
from pathlib import Path

import nbformat
import pytest

RUN = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "notebooks" / "run.py"))


def test_there_is_a_notebook_for_each_of_three_tasks():
    assert [path.stem for path in RUN["NOTEBOOKS"]] == ["images", "language_model", "tensorflow"]


@pytest.mark.timeout(900)  # a cell has a limit of its own, whose error names it
@pytest.mark.parametrize("path", RUN["NOTEBOOKS"], ids=lambda path: path.stem)
def test_a_notebook_shows_what_it_showed(path):
    kept = list(RUN["shown"](nbformat.read(path, as_version=4)))
    assert sum(bool(text) for _, text in kept) > 5
    assert list(RUN["shown"](RUN["run"](path))) == kept
