"""A storage of its own for each test."""

import pytest

import yogadl


@pytest.fixture
def storage(tmp_path):
    return yogadl.open_storage(tmp_path / "caches")


@pytest.fixture
def built(storage):
    """Build a cache from any source and return a reference to it."""
    versions = iter(range(1, 10_000))

    def build(source, **options):
        version = str(next(versions))
        storage.submit(source, "data", version, **options)
        return storage.fetch("data", version, allow_pickle=options.get("allow_pickle", False))

    return build
