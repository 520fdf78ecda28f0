"""The cache that all frameworks read here, and the processes that they run in."""

import numpy as np
import pytest
from job import SIZES
from trainers import FRAMEWORKS, Trainers

import yogadl


@pytest.fixture(scope="session")
def storage(tmp_path_factory):
    """Return a storage with a cache of each size, in several parts."""
    root = tmp_path_factory.mktemp("caches")
    storage = yogadl.open_storage(root)
    for size in SIZES:
        records = {"id": np.arange(size), "x": np.random.default_rng(size).random((size, 3), np.float32)}
        storage.submit(records, "together", str(size))
    return root


@pytest.fixture(scope="session")
def trainers(tmp_path_factory):
    """Return processes of every framework that is installed, which are starting already."""
    trainers = Trainers(tmp_path_factory.mktemp("trainers"))
    for framework in FRAMEWORKS:
        trainers.start(framework)
    yield trainers
    trainers.close()
