"""The contract of storages, kept by buckets in real stores."""

from pathlib import Path

import pytest
from places import Place

import yogadl
from yogadl.storage import CacheStorage
from yogadl.testing import StorageContract


class TestBucket(StorageContract):
    @pytest.fixture
    def storage(self, either_place: Place, tmp_path: Path) -> CacheStorage:
        return yogadl.open_storage(either_place.url, **either_place.options, mirror=tmp_path / "mirror")
