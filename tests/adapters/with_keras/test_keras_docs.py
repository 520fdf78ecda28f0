"""The examples of the page about Keras, of the adapter's docstrings, and of the sources beside it, run."""

import functools
import subprocess

import numpy as np
import pages
import public_api
import pytest
from inside import keras_loader as _loader
from programs import programs

import yogadl

# Of NumPy, about how Keras makes arrays of its tensors.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def test_the_examples_of_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pages.run("howto/keras.md", pages.blocks("howto/keras.md"), __name__=__name__)


def test_the_story_of_an_image_folder_runs_to_its_end(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "run", functools.partial(pages.run_by, programs("keras on torch")))
    pages.run("stories/images.md", pages.blocks("stories/images.md"))


@pytest.mark.parametrize(
    ("section", "package"), [("TensorFlow Datasets", "tensorflow_datasets"), ("DataFlow", "tensorpack")]
)
def test_the_examples_of_other_sources_run(section, package, tmp_path, monkeypatch):
    package = pytest.importorskip(package)
    if section == "TensorFlow Datasets":  # or it would ask the network whether it knows the dataset
        monkeypatch.setattr(package.core.utils.gcs_utils, "_is_gcs_disabled", True)
    monkeypatch.chdir(tmp_path)
    code = pages.blocks("howto/sources.md", f"\n## {section}\n")
    pages.run("howto/sources.md", code, __name__=__name__, storage=yogadl.open_storage("caches"), np=np)


def test_the_examples_of_the_docstrings_run():
    assert pages.run_docstrings(_loader)


def test_it_offers_what_is_written_down():
    public_api.check("yogadl.adapters.keras")
