"""The contract of storages, kept by those that need no store: a folder, a shared one, one as a bucket."""

import pytest

import yogadl
from yogadl.testing import StorageContract


class TestFolder(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path):
        return yogadl.open_storage(tmp_path / "caches")


class TestSharedFolder(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path):
        return yogadl.open_storage(tmp_path / "caches", shared=True)


class TestFolderAsABucket(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path):
        return yogadl.open_storage((tmp_path / "caches").as_uri(), mirror=tmp_path / "mirror")
