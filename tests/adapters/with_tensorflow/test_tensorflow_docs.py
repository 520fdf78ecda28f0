"""The examples of the pages about TensorFlow, and of the adapter's docstrings, run."""

import pages
import public_api
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


@pytest.mark.parametrize("name", ["yogadl.adapters.tensorflow", "yogadl.tensorflow"])
def test_it_offers_what_is_written_down(name):
    public_api.check(name)
