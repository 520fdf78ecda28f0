"""The examples of the pages about TensorFlow, and of the adapter's docstrings, run."""

import pages
import pytest
from inside import _cache as cache
from inside import tensorflow_loader as dataset


def test_the_example_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pages.run("../README.md", pages.blocks("../README.md", "## Use it", "### tf.data"))


@pytest.mark.parametrize("name", ["howto/tensorflow.md", "howto/migrating.md"])
def test_the_examples_of_a_page_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pages.run(name, pages.blocks(name))


@pytest.mark.parametrize("module", [cache, dataset], ids=lambda module: module.__name__)
def test_the_examples_of_the_docstrings_run(module):
    assert pages.run_docstrings(module)
