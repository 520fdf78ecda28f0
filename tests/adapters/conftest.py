"""What tests of adapters start from, and what they leave as they found it."""

import os
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def nothing_waits_for_the_disk() -> Iterator[None]:
    """Leave it to the kernel when files are written: these tests are not about machines that lose power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True)
def no_seed_of_tensorflow_stays() -> Iterator[None]:
    """Take back a seed that a test set: it would be in the graph of every pipeline that another makes."""
    yield
    context = sys.modules.get("tensorflow.python.eager.context")
    if context is not None and context.global_seed() is not None:
        sys.modules["tensorflow"].random.set_seed(None)


@pytest.fixture
def cached(storage):
    """Return a function that caches a source and returns its DataRef."""

    def cached(source, **options):
        storage.submit(source, "set", "1", **options)
        return storage.fetch("set", "1")

    return cached
