"""A bucket in a folder, where it is more than the contract says."""

import errno
import os

import pytest
from inside import LocalBucket, read

from yogadl.errors import ConfigurationError, StorageError


def test_nothing_is_made_before_something_is_written(tmp_path):
    bucket = LocalBucket(tmp_path / "root")
    assert bucket.head("name") is None
    assert list(bucket.list()) == []
    assert not (tmp_path / "root").exists()


def test_an_unfinished_file_is_no_object(tmp_path):
    bucket = LocalBucket(tmp_path)
    bucket.put("folder/name", b"")
    (tmp_path / "folder" / ".0123456789abcdef.tmp").write_bytes(b"half")
    assert [found.name for found in bucket.list()] == ["folder/name"]
    with pytest.raises(ConfigurationError, match="unfinished"):
        bucket.put("folder/.0123456789abcdef.tmp", b"")


def test_nothing_unfinished_is_left_behind(tmp_path):
    bucket = LocalBucket(tmp_path)
    bucket.put("name", b"old")
    bucket.put("name", b"new")
    bucket.put_if_absent("name", b"other")
    bucket.put_if_absent("second", b"other")
    assert sorted(os.listdir(tmp_path)) == ["name", "second"]


def test_what_is_being_read_is_read_to_its_end_when_it_is_replaced(tmp_path):
    bucket = LocalBucket(tmp_path)
    bucket.put("name", b"a" * 3_000_000)
    with bucket.get("name") as body:
        first = next(body.chunks)
        bucket.put("name", b"b" * 3_000_000)
        assert first + b"".join(body.chunks) == b"a" * 3_000_000


def test_a_file_that_is_written_to_while_it_is_read_is_an_error(tmp_path, monkeypatch):
    bucket = LocalBucket(tmp_path)
    bucket.put("name", b"a" * 1000)
    pread = os.pread

    def overwrites(descriptor, size, at):
        with (tmp_path / "name").open("r+b") as file:
            file.write(b"b" * 1000)
        return pread(descriptor, size, at)

    with bucket.get("name") as body:
        monkeypatch.setattr(os, "pread", overwrites)
        with pytest.raises(StorageError, match="replaced or deleted while it was read"):
            list(body.chunks)


def test_a_file_that_is_cut_while_it_is_read_is_an_error(tmp_path):
    bucket = LocalBucket(tmp_path)
    bucket.put("name", b"a" * 3_000_000)
    with bucket.get("name") as body:
        next(body.chunks)
        os.truncate(tmp_path / "name", 5)
        with pytest.raises(StorageError, match=r"name ends at byte 1048576, before 3000000"):
            next(body.chunks)


def test_an_own_link_that_is_taken_for_anothers_counts(tmp_path, monkeypatch):
    link = os.link

    def links_twice(*args):
        # As a network file system does whose first answer was lost.
        link(*args)
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr(os, "link", links_twice)
    bucket = LocalBucket(tmp_path)
    assert bucket.put_if_absent("name", b"mine")
    assert read(bucket, "name") == b"mine"


def test_a_file_system_without_hard_links_is_said(tmp_path, monkeypatch):
    def refuses(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuses)
    with pytest.raises(StorageError, match=r"no hard links.*use a folder on another"):
        LocalBucket(tmp_path).put_if_absent("name", b"content")
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_can_be_read(tmp_path):
    bucket = LocalBucket(tmp_path)
    bucket.put("name", b"content")
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StorageError, match="not writable"):
            bucket.put("other", b"")
        assert read(bucket, "name") == b"content"
    finally:
        tmp_path.chmod(0o700)


def test_a_file_in_the_way_of_a_folder_is_an_error(tmp_path):
    bucket = LocalBucket(tmp_path)
    bucket.put("name", b"")
    assert bucket.head("name/below") is None
    with pytest.raises(StorageError, match="name"):
        bucket.put("name/below", b"")


def test_a_folder_is_no_object(tmp_path):
    bucket = LocalBucket(tmp_path)
    bucket.put("folder/name", b"")
    assert bucket.head("folder") is None
    assert read(bucket, "folder") is None
