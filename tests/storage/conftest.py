"""Caches of any source, and a clock that can be set forward."""

import time

import pytest

from yogadl.storage._folder import Folder

DAY_S = 86_400


@pytest.fixture
def built(storage):
    """Build a cache from any source and return a reference to it."""
    versions = iter(range(1, 10_000))

    def build(source, **options):
        version = str(next(versions))
        storage.submit(source, "data", version, **options)
        return storage.fetch("data", version, allow_pickle=options.get("allow_pickle", False))

    return build


@pytest.fixture
def days_go_by(monkeypatch):
    """Let days go by: nobody can set back both times of a file, so the clock goes on."""
    gone = []

    def go(days):
        gone.append(days)
        monkeypatch.setattr(Folder, "now", lambda _: time.time() + sum(gone) * DAY_S)

    return go
