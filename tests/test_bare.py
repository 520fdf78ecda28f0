"""With no extra at all, and with every extra: yogadl builds a cache and reads it."""

import importlib.metadata
import re

import numpy as np
import pytest

import yogadl


def test_a_small_cache_is_built_and_read(tmp_path):
    storage = yogadl.open_storage(tmp_path / "caches")
    images = np.arange(101 * 4, dtype=np.uint8).reshape(101, 2, 2)
    storage.submit({"image": images, "label": np.arange(101)}, "squares", "1")

    batches = list(storage.fetch("squares", "1").stream(shuffle=True, shuffle_seed=7).batch(10))

    labels = np.concatenate([batch["label"] for batch in batches])
    assert sorted(labels) == list(range(101))
    np.testing.assert_array_equal(np.concatenate([batch["image"] for batch in batches]), images[labels])


def test_no_optional_package_is_installed(pytestconfig):
    if not pytestconfig.getoption("--bare"):
        pytest.skip("only promised by tox's environment `bare`")
    requirements = importlib.metadata.requires("yogadl")
    optional = {re.match(r"[\w-]+", line)[0] for line in requirements if "extra ==" in line}
    installed = {distribution.name.lower() for distribution in importlib.metadata.distributions()}
    assert optional & installed <= {"pytest", "pytest-xdist", "yogadl"}  # what runs the tests
