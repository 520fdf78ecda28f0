"""A version that shares parts with another is brought here without them, and loses none of them with it."""

import numpy as np
import pytest
from inside import LocalBucket, MirrorOpener
from mirrors import rows

import yogadl
from yogadl.errors import DatasetNotFoundError, StorageError

PART_BYTES = 20_000


@pytest.fixture
def bucket(tmp_path):
    """A storage in a bucket, whose mirror another machine has."""
    storage = yogadl.open_storage(f"file://{tmp_path}/bucket", mirror=tmp_path / "builder")
    storage.submit(rows(), "a", "1", build=yogadl.BuildOptions(part_bytes=PART_BYTES))
    storage.append(rows(1, 100), "a", "2", base_version="1")
    return storage


@pytest.fixture
def downloads(monkeypatch):
    """The names of the parts of which something is downloaded."""
    names = []
    get = LocalBucket.get

    def getting(self, name, *args, **more):
        if name.endswith(".mdb"):
            names.append(name)
        return get(self, name, *args, **more)

    monkeypatch.setattr(LocalBucket, "get", getting)
    return names


def opened(tmp_path, **options):
    return yogadl.open_storage(f"file://{tmp_path}/bucket", mirror=tmp_path / "mirror", **options)


def check(storage, version="2"):
    found = storage.fetch("a", version).gather(range(2_100))
    assert np.array_equal(found["row"], np.concatenate([rows()["row"], rows(1, 100)["row"]]))


def test_parts_that_are_here_are_not_downloaded_again(bucket, tmp_path, downloads):
    reader = opened(tmp_path)
    reader.fetch("a", "1")
    assert len(set(downloads)) == bucket.info("a", "1").parts
    downloads.clear()
    check(reader)
    assert len(set(downloads)) == 1


def test_an_append_downloads_no_part(bucket, tmp_path, downloads):
    opened(tmp_path).append(rows(2, 50), "a", "3", base_version="2")
    assert downloads == []
    assert len(bucket.fetch("a", "3")) == 2_150


def test_a_base_that_is_gone_takes_nothing_from_the_mirror(bucket, tmp_path):
    reader = opened(tmp_path)
    reader.fetch("a", "1")
    check(reader)
    bucket.delete("a", "1")
    bucket.prune(grace_s=0)
    check(opened(tmp_path, offline=True))
    assert reader.verify("a", "2").mirrored > 1


def test_what_is_filled_has_all_of_a_grown_version(bucket, tmp_path):
    reader = opened(tmp_path)
    catalogue = reader._backend.catalogue
    assert isinstance(catalogue.opener, MirrorOpener)
    reader.fetch("a", "1")
    from inside import DatasetKey

    catalogue.opener.fill(catalogue.published(DatasetKey("a", "2")))
    check(opened(tmp_path, offline=True))


def test_a_version_is_compacted_from_the_bucket(bucket, tmp_path, downloads):
    opened(tmp_path).compact("a", "2", "2c", build=yogadl.BuildOptions(part_bytes=10**6))
    assert bucket.info("a", "2c").parts == 1
    assert bucket.info("a", "2c").fingerprint == bucket.info("a", "2").fingerprint
    check(bucket, "2c")


def test_a_tag_is_what_it_was_last_known_to_be_without_the_store(bucket, tmp_path):
    bucket.tag("a", "stable", "2")
    check(opened(tmp_path), "stable")
    check(opened(tmp_path, offline=True), "stable")
    bucket.tag("a", "stable", "1")
    check(opened(tmp_path, offline=True), "stable")
    assert len(opened(tmp_path).fetch("a", "stable")) == 2_000
    assert len(opened(tmp_path, offline=True).fetch("a", "stable")) == 2_000
    bucket.untag("a", "stable")
    with pytest.raises(DatasetNotFoundError):
        opened(tmp_path).fetch("a", "stable")
    with pytest.raises(StorageError, match="offline=True"):
        opened(tmp_path, offline=True).fetch("a", "stable")


def test_a_mirror_of_two_buckets_keeps_their_tags_apart(bucket, tmp_path):
    other = yogadl.open_storage(f"file://{tmp_path}/other", mirror=tmp_path / "mirror")
    other.submit([1], "a", "9")
    other.tag("a", "stable", "9")
    bucket.tag("a", "stable", "2")
    check(opened(tmp_path), "stable")
    assert other.fetch("a", "stable")[0] == 1
    check(opened(tmp_path, offline=True), "stable")


def test_any_store_shares_parts(either_place, tmp_path):
    storage = either_place.storage(mirror=tmp_path / "mirror")
    storage.submit(rows(), "a", "1", build=yogadl.BuildOptions(part_bytes=PART_BYTES))
    storage.append(rows(1, 100), "a", "2", base_version="1")
    storage.delete("a", "1")
    storage.prune(grace_s=0)
    reader = either_place.storage(mirror=tmp_path / "other")
    check(reader)
    reader.verify("a", "2")
