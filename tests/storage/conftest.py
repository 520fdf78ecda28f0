"""Caches of any source."""

import pytest


@pytest.fixture
def built(storage):
    """Build a cache from any source and return a reference to it."""
    versions = iter(range(1, 10_000))

    def build(source, **options):
        version = str(next(versions))
        storage.submit(source, "data", version, **options)
        return storage.fetch("data", version, allow_pickle=options.get("allow_pickle", False))

    return build
