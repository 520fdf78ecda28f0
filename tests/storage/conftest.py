"""Caches of any source."""

import pytest
from inside import LocalBucket


@pytest.fixture
def built(storage):
    """Build a cache from any source and return a reference to it."""
    versions = iter(range(1, 10_000))

    def build(source, **options):
        version = str(next(versions))
        storage.submit(source, "data", version, **options)
        records = options.get("records")
        return storage.fetch("data", version, allow_pickle=records is not None and records.allow_pickle)

    return build


@pytest.fixture
def served(monkeypatch):
    """Return a list that gets the name and the bytes of each read of a bucket in a folder."""
    found, chunks = [], LocalBucket._chunks

    def counted(bucket, file, one, start, end):
        found.append((one.name, end - start))
        return chunks(bucket, file, one, start, end)

    monkeypatch.setattr(LocalBucket, "_chunks", counted)
    return found
