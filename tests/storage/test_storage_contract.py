"""The contract of storages, kept by those that need no store: a folder, a shared one, one as a bucket."""

from pathlib import Path

import pytest

import yogadl
from yogadl.storage import CacheStorage
from yogadl.testing import StorageContract


class TestFolder(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> CacheStorage:
        return yogadl.open_storage(tmp_path / "caches")


class TestSharedFolder(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> CacheStorage:
        return yogadl.open_storage(tmp_path / "caches", shared=True)


class TestFolderAsABucket(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> CacheStorage:
        return yogadl.open_storage((tmp_path / "caches").as_uri(), mirror=tmp_path / "mirror")
