"""A storage whose folder is not there: reading makes nothing, and says which folder is missing."""

import os

import pytest

import yogadl
from yogadl.errors import ConfigurationError, DatasetNotFoundError, StorageError


def opened(folder, how):
    if how == "bucket":
        return yogadl.open_storage(folder.as_uri(), mirror=folder.parent / "mirror")
    return yogadl.open_storage(folder, shared=how == "shared")


@pytest.mark.parametrize("how", ["folder", "shared", "bucket"])
def test_reading_makes_no_folder_and_names_the_one_that_is_missing(tmp_path, how):
    folder = tmp_path / "a typo" / "caches"
    storage = opened(folder, how)
    assert storage.datasets() == storage.versions("d") == storage.unfinished() == []
    assert storage.tags("d") == {}
    assert storage.prune().files == storage.prune(dry_run=True).files == ()
    for read in (storage.fetch, storage.info):
        with pytest.raises(DatasetNotFoundError, match=r"a( |%20)typo/caches: that folder does not exist"):
            read("d", "1")
    assert not folder.parent.exists()


@pytest.mark.parametrize("how", ["folder", "shared", "bucket"])
def test_the_first_write_makes_the_folder(tmp_path, how):
    storage = opened(tmp_path / "new" / "caches", how)
    storage.submit([1, 2, 3], "d", "1")
    assert storage.fetch("d", "1").gather([2, 0]).tolist() == [3, 1]


def test_tags_and_begun_builds_make_the_folder_when_they_write(tmp_path):
    storage = yogadl.open_storage(tmp_path / "new")
    with pytest.raises(DatasetNotFoundError, match="that folder does not exist"):
        storage.tag("d", "good", "1")
    with pytest.raises(DatasetNotFoundError, match="that folder does not exist"):
        storage.delete("d", "1")
    build = storage.begin("d", "1", partitions=1)
    assert not (tmp_path / "new").exists()
    build.write(0, [1, 2])
    build.commit()
    assert len(storage.fetch("d", "1")) == 2


@pytest.mark.parametrize("shared", [False, True])
def test_what_can_be_no_folder_is_refused_when_it_is_opened(tmp_path, shared):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(ConfigurationError, match="is a file; give the path of a folder"):
        yogadl.open_storage(tmp_path / "file", shared=shared)
    with pytest.raises(StorageError, match="can't open the folder"):
        yogadl.open_storage(tmp_path / "file" / "below", shared=shared)
    with pytest.raises(ConfigurationError, match="a link to a folder that is not there"):
        yogadl.open_storage(tmp_path / "link", shared=shared)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_made_is_an_error_of_the_first_write(tmp_path):
    tmp_path.chmod(0o500)
    storage = yogadl.open_storage(tmp_path / "caches")
    with pytest.raises(StorageError):
        storage.submit([1], "d", "1")
