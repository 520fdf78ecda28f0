"""A mirror whose disk is full: what is not here is read by range, and that is said once."""

import errno
import gc
import logging
import os

import numpy as np
import pytest
from inside import DatasetKey, LocalBucket, LocalMirror, mirrored_cache, set_constants
from mirrors import mount, needs_mount, on_a_small_disk

import yogadl
from yogadl.errors import CredentialsError, StorageError

RECORDS = 400


@pytest.fixture
def url(tmp_path):
    storage = yogadl.open_storage(tmp_path / "bucket")
    columns = {"x": np.arange(RECORDS), "row": np.zeros((RECORDS, 500), np.uint8)}
    storage.submit(columns, "set", "1", build=yogadl.BuildOptions(part_bytes=20_000))
    assert storage.info("set", "1").parts > 5
    return (tmp_path / "bucket").as_uri()


def fill(folder):
    found = os.statvfs(folder)
    with open(folder / "ballast", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, found.f_bavail * found.f_frsize)


class Messages(logging.Handler):
    """Keeps what is logged."""

    def __init__(self):
        super().__init__()
        self.texts = []
        logging.getLogger("yogadl").addHandler(self)

    def emit(self, record):
        self.texts.append(record.getMessage())


def read_from_a_full_disk(url, folder, when, check):
    """Read all records, the mirror's disk being full from then on; return what was said, parts and ranges."""
    mount(folder, 2**16 if when == "before" else 2**22)
    options = {"mirror": folder / "mirror"}
    if when == "before":
        fill(folder)
    if when == "with a table":
        yogadl.open_storage(url, mirror=yogadl.Mirror(folder / "mirror", fill="never")).fetch("set", "1")
    if when == "with all":
        yogadl.open_storage(url, **options).fetch("set", "1")
    if when in ("with a mirror", "with a table", "with all"):
        yogadl.open_storage(url, **options)._backend.catalogue.opener.mirror.location.prepare()
        fill(folder)
    messages = Messages()
    for _ in range(2):  # a process says it once, however many storages it opens with this mirror
        storage = yogadl.open_storage(url, **options)
        ref = storage.fetch("set", "1", check=check)
        batches = list(ref.stream(shuffle=True).batch(16))
        assert sorted(int(x) for batch in batches for x in batch["x"]) == list(range(RECORDS))
    found = ref.locality()
    return messages.texts, found.parts_here, found.ranges


@needs_mount
@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("when", ["before", "with a mirror", "with a table", "with all"])
def test_a_full_disk_is_read_past(url, tmp_path, when, check):
    said, here, ranges = on_a_small_disk(read_from_a_full_disk, url, tmp_path / "disk", when, check)
    told = [text for text in said if "read by range" in text]
    assert (here > 5, ranges > 0) == ((True, False) if when == "with all" else (False, True))
    assert len(told) == (0 if when == "with all" and not check else 1), said


def read_beside_another(url, other, folder):
    """Read a cache, the disk being full of one that nothing reads and of what is none of the mirror's."""
    mount(folder, 2**22)
    yogadl.open_storage(other, mirror=folder / "mirror").fetch("set", "1")
    gc.collect()
    fill(folder)
    messages = Messages()
    ref = yogadl.open_storage(url, mirror=yogadl.Mirror(folder / "mirror", fill="never")).fetch("set", "1")
    assert ref[3]["x"] == 3
    tables = len(list((folder / "mirror").rglob("*.parts")))
    return messages.texts, tables


@needs_mount
def test_on_a_full_disk_what_nothing_reads_goes_first(url, tmp_path):
    other = tmp_path / "other"
    yogadl.open_storage(other).submit(
        {"x": np.arange(99_999)}, "set", "1", build=yogadl.BuildOptions(part_bytes=100_000)
    )
    said, tables = on_a_small_disk(read_beside_another, url, other.as_uri(), tmp_path / "disk")
    assert not [text for text in said if "read by range" in text]
    assert tables >= 1


def test_an_error_of_another_kind_is_raised_at_once(url, tmp_path, monkeypatch):
    tried = []

    def hold(mirror, *_, **__):
        tried.append(mirror)
        raise StorageError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(LocalMirror, "hold", hold)
    with pytest.raises(StorageError, match="the disk is broken"):
        yogadl.open_storage(url, mirror=tmp_path / "mirror").fetch("set", "1")
    assert len(tried) == 1


@pytest.mark.parametrize(("limit", "words"), [("30kB", "Raise it, Mirror"), (None, "Make room")])
def test_what_does_not_fit_says_which_of_the_two_is_too_small(url, tmp_path, monkeypatch, limit, words):
    if limit is None:
        monkeypatch.setattr("yogadl.storage._remote.eviction.MirrorLocation.free_bytes", lambda _: 2**20)
        monkeypatch.setattr(
            os, "statvfs", lambda _: os.statvfs_result((4096, 4096, 2**30, 256, 256, 9, 9, 9, 0, 255))
        )
        set_constants(monkeypatch, SPARE_BYTES=2**20)
    opener = yogadl.open_storage(
        url, mirror=yogadl.Mirror(tmp_path / "mirror", limit=limit)
    )._backend.catalogue
    published = opener.published(DatasetKey("set", "1"))
    with pytest.raises(StorageError, match=words) as caught:
        opener.opener.mirror.fill(published.manifest)
    assert ("limit=" in str(caught.value)) == (limit is not None)
    (table,) = (tmp_path / "mirror").rglob("*.parts")
    assert f"and {table.stat().st_size / 1000:.1f} kB are in use" in str(caught.value)


def test_a_mirror_is_not_listed_for_every_part_that_is_filled_in(url, tmp_path, monkeypatch):
    looked = []
    before = mirrored_cache.evict_for
    monkeypatch.setattr(mirrored_cache, "evict_for", lambda *all: looked.append(all) or before(*all))
    set_constants(monkeypatch, REMOTE_OPENING_AT_ONCE_BYTES=0)
    ref = yogadl.open_storage(url, mirror=yogadl.Mirror(tmp_path / "mirror", fill="always")).fetch("set", "1")
    while ref.locality().parts_here < ref.locality().parts:
        list(ref.stream().batch(16))
    assert len(looked) == 1


@pytest.mark.parametrize("is_whole", [True, False])
def test_with_wrong_credentials_what_is_here_is_named(url, tmp_path, monkeypatch, is_whole):
    yogadl.open_storage(url, mirror=tmp_path / "mirror").fetch("set", "1")
    if not is_whole:
        next(iter((tmp_path / "mirror").rglob("*.mdb"))).unlink()

    def refuse(self, name, *_, **__):
        raise CredentialsError(13, f"can't read {name}: the credentials are wrong")

    monkeypatch.setattr(LocalBucket, "get", refuse)
    with pytest.raises(StorageError, match="the credentials are wrong") as caught:
        yogadl.open_storage(url, mirror=tmp_path / "mirror").fetch("set", "1")
    assert ("offline=True" in str(caught.value)) == is_whole
    if is_whole:
        ref = yogadl.open_storage(url, mirror=tmp_path / "mirror", offline=True).fetch("set", "1")
        assert ref[7]["x"] == 7
