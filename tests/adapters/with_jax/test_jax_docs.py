"""The examples of the page about JAX, and of the adapter's docstrings, run."""

import pages
import public_api
import pytest

from yogadl.adapters import jax


def test_the_example_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pages.run("../README.md", pages.blocks("../README.md", "## Use it", "### JAX"))


def test_the_examples_of_the_page_run(tmp_path, monkeypatch):
    pytest.importorskip("orbax.checkpoint")
    monkeypatch.chdir(tmp_path)
    pages.run("howto/jax.md", pages.blocks("howto/jax.md"))


def test_the_examples_of_the_docstrings_run():
    assert pages.run_docstrings(jax)


def test_it_offers_what_is_written_down():
    public_api.check("yogadl.adapters.jax")
