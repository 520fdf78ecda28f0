"""The contract of storages, kept by those that need no store: a folder, a shared one, one as a bucket."""

from pathlib import Path

import pytest

import yogadl
from yogadl.errors import CacheFormatError
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


def with_one_more(submit):
    def of_workers(storage, data, *names, workers=0, **options):
        return submit(storage, range(len(data) + 1) if workers > 1 else data, *names, **options)

    return of_workers


def of_all_parts(prune):
    def of_no_grace(storage, **options):
        for path in Path(storage.location).rglob("*.mdb") if options.get("grace_s") == 0 else ():
            path.unlink()
        return prune(storage, **options)

    return of_no_grace


@pytest.mark.parametrize(
    ("verb", "broken", "test"),
    [
        ("submit", with_one_more, "test_several_workers_build_the_same_records_as_one"),
        ("prune", of_all_parts, "test_the_base_of_an_append_can_be_deleted"),
    ],
)
def test_a_storage_that_does_not_keep_it_is_found_out(tmp_path, monkeypatch, verb, broken, test):
    storage = yogadl.open_storage(tmp_path)
    monkeypatch.setattr(type(storage), verb, broken(getattr(type(storage), verb)))
    with pytest.raises((AssertionError, CacheFormatError)):
        getattr(StorageContract(), test)(storage)
