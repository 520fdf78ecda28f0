"""The examples of the page about Grain, and of the adapter's docstrings, run."""

import pages
import public_api
import pytest
from inside import _items
from inside import grain_loader as _loader


def test_the_example_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pages.run("../README.md", pages.blocks("../README.md", "## Use it", "### Grain"))


def test_the_examples_of_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pages.run("howto/grain.md", pages.blocks("howto/grain.md"))


@pytest.mark.parametrize("module", [_items, _loader])
def test_the_examples_of_the_docstrings_run(module):
    assert pages.run_docstrings(module)


def test_it_offers_what_is_written_down():
    public_api.check("yogadl.adapters.grain")
