"""The examples of the pages about TensorFlow, and of the adapter's docstrings, run."""

import doctest
import re
import warnings
from pathlib import Path

import pytest

from yogadl.adapters.tensorflow import _cache as cache
from yogadl.adapters.tensorflow import _loader as dataset

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", ["tensorflow.md", "migrating.md"])
def test_the_examples_of_a_page_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / name).read_text("utf-8"), re.M | re.S)
    assert blocks
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        exec(compile("\n".join(blocks), name, "exec"), {"__name__": name})


@pytest.mark.parametrize("module", [cache, dataset], ids=lambda module: module.__name__)
def test_the_examples_of_the_docstrings_run(module):
    failed, tried = doctest.testmod(module)
    assert tried
    assert not failed
