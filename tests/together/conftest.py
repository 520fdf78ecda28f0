"""The cache that all frameworks read here, and the processes that they run in."""

import sys
from pathlib import Path

import pytest
from job import SIZES, documents_of, records_of
from trainers import FRAMEWORKS, Trainers

import yogadl

sys.path.append(str(Path(__file__).parents[1] / "remote"))  # its stores


@pytest.fixture(scope="session")
def storage(tmp_path_factory):
    """Return a storage with a cache of each size, in several parts."""
    root = tmp_path_factory.mktemp("caches")
    storage = yogadl.open_storage(root)
    for size in SIZES:
        storage.submit(records_of(size), "together", str(size))
        spec = {"tokens": yogadl.Leaf("int64", (None,))}
        storage.submit(yogadl.from_source(documents_of(size), spec=spec), "documents", str(size))
    return root


@pytest.fixture(scope="session")
def trainers(tmp_path_factory):
    """Return processes of every framework that is installed, which are starting already."""
    trainers = Trainers(tmp_path_factory.mktemp("trainers"))
    for framework in FRAMEWORKS:
        trainers.start(framework)
    yield trainers
    trainers.close()
