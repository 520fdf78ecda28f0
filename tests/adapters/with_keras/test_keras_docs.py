"""The examples of the page about Keras, of the adapter's docstrings, and of the sources beside it, run."""

import doctest
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

import yogadl
from yogadl.adapters.keras import _loader

DOCS = Path(__file__).parents[2] / "docs"


def run(name, text, **names):
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    assert blocks
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        # Of NumPy, about how Keras makes arrays of its tensors.
        warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
        exec(compile("\n".join(blocks), name, "exec"), {"__name__": __name__, **names})


def test_the_examples_of_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("keras.md", (DOCS / "keras.md").read_text("utf-8"))


@pytest.mark.parametrize(
    ("section", "package"), [("TensorFlow Datasets", "tensorflow_datasets"), ("DataFlow", "tensorpack")]
)
def test_the_examples_of_other_sources_run(section, package, tmp_path, monkeypatch):
    package = pytest.importorskip(package)
    if section == "TensorFlow Datasets":  # or it would ask the network whether it knows the dataset
        monkeypatch.setattr(package.core.utils.gcs_utils, "_is_gcs_disabled", True)
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "sources.md").read_text("utf-8")
    found = re.search(rf"^## {section}\n(.*?)(?=^## )", text, re.M | re.S)
    run("sources.md", found[1], storage=yogadl.open_storage("caches"), np=np)


def test_the_examples_of_the_docstrings_run():
    failed, tried = doctest.testmod(_loader)
    assert tried
    assert not failed
