"""What `ref.filter` keeps beside a cache in a bucket: there, in each machine's mirror, and in copies."""

import errno

import numpy as np
import pytest
from inside import LocalBucket

import yogadl
from yogadl.errors import StorageError
from yogadl.storage import copy

RECORDS = 500


class Counted:
    """Select labels below a limit, and count the calls, which are no part of what it is."""

    def __init__(self, limit=4):
        self.limit, self.calls = limit, 0

    @property
    def __yogadl_version__(self):
        return f"below {self.limit}"

    def __call__(self, record):
        self.calls += 1
        return bool(record["label"] < self.limit)


def check(storage, *, is_found):
    """Check what is selected, and whether that was found or worked out."""
    choose = Counted()
    found = storage.fetch("d", "1").filter(choose)
    assert found.gather(range(len(found)))["label"].tolist() == [0, 1, 2, 3] * (RECORDS // 10)
    assert choose.calls == (0 if is_found else RECORDS)


def kept(folder):
    return sorted(folder.rglob("*.selection"))


def machine(tmp_path, name="mirror", **options):
    """Return the storage in the bucket as a machine of that mirror sees it."""
    return yogadl.open_storage(f"file://{tmp_path}/bucket", mirror=tmp_path / name, **options)


def submit(storage):
    storage.submit({"label": np.arange(RECORDS) % 10, "x": np.zeros((RECORDS, 40))}, "d", "1")


@pytest.fixture
def here(tmp_path):
    storage = machine(tmp_path)
    submit(storage)
    return storage


def test_every_store_keeps_it(either_place, tmp_path):
    first, second = (either_place.storage(mirror=tmp_path / name) for name in "ab")
    submit(first)
    check(first, is_found=False)
    check(second, is_found=True)
    assert first.prune(grace_s=0).files == ()
    first.delete("d", "1")
    assert [name for name in first.prune(grace_s=0).files if name.endswith(".selection")]
    assert first.prune(grace_s=0).files == ()


def test_another_machine_finds_it_and_then_needs_no_bucket(here, tmp_path):
    check(here, is_found=False)
    check(here, is_found=True)
    assert len(kept(tmp_path / "bucket")) == len(kept(tmp_path / "mirror")) == 1
    check(machine(tmp_path, "another"), is_found=True)
    assert len(kept(tmp_path / "another")) == 1
    kept(tmp_path / "bucket")[0].unlink()
    check(machine(tmp_path, "another", offline=True), is_found=True)


def test_without_the_bucket_it_is_kept_in_the_mirror(here, tmp_path):
    here.fetch("d", "1")
    check(machine(tmp_path, offline=True), is_found=False)
    check(machine(tmp_path, offline=True), is_found=True)
    assert kept(tmp_path / "bucket") == []


def test_a_bucket_that_may_only_be_read_is_no_hindrance(here, tmp_path, monkeypatch):
    def refuse(*_):
        raise StorageError(errno.EACCES, "not yours to write")

    monkeypatch.setattr(LocalBucket, "put", refuse)
    check(here, is_found=False)
    check(here, is_found=True)
    assert kept(tmp_path / "bucket") == []


def test_damage_in_the_mirror_and_in_the_bucket_is_worked_out_again(here, tmp_path):
    check(here, is_found=False)
    for folder, name in (("mirror", "mirror"), ("bucket", "another")):
        (file,) = kept(tmp_path / folder)
        content = file.read_bytes()
        for damaged in (b"", content[:-1], content + bytes(2**20)):
            file.write_bytes(damaged)
            check(machine(tmp_path, name), is_found=False)
            assert file.read_bytes() == content
            for copied in kept(tmp_path / "another"):
                copied.unlink()
    check(here, is_found=True)


def test_it_makes_room_in_the_mirror_as_all_else(here, tmp_path):
    ref = here.fetch("d", "1")
    for limit in range(5):
        ref.filter(Counted(limit))
    assert len(kept(tmp_path / "mirror")) == 5
    held = sum(path.stat().st_size for path in (tmp_path / "mirror" / "caches").rglob("*.[mps]*"))
    limited = yogadl.open_storage(here.location, mirror=yogadl.Mirror(tmp_path / "mirror", limit=held))
    other = limited.fetch("d", "1")
    other.filter(Counted(7))
    assert 1 <= len(kept(tmp_path / "mirror")) < 6
    assert len(kept(tmp_path / "bucket")) == 6
    choose = Counted(7)
    assert len(other.filter(choose)) == 350
    assert choose.calls == 0


def test_a_mirror_without_room_for_it_is_no_hindrance(here, tmp_path):
    ref = here.fetch("d", "1")
    held = sum(path.stat().st_size for path in (tmp_path / "mirror" / "caches").rglob("*.[mp]*"))
    limited = yogadl.open_storage(here.location, mirror=yogadl.Mirror(tmp_path / "mirror", limit=held + 1))
    assert len(ref) == RECORDS  # all of it is in use
    check(limited, is_found=False)
    assert kept(tmp_path / "mirror") == []
    check(limited, is_found=True)


def test_pull_brings_it_and_push_takes_it_along(here, tmp_path, yoga):
    check(here, is_found=False)
    pulled = yoga("pull", "d", "1", "--from", here.location, "--mirror", str(tmp_path / "pulled"))
    assert pulled.code == 0
    check(machine(tmp_path, "pulled", offline=True), is_found=True)
    target = yogadl.open_storage(tmp_path / "copies")
    assert copy(here, target, "d", "1")
    check(target, is_found=True)
    pushed = yoga("push", "d", "1", f"file://{tmp_path}/other", "-s", str(tmp_path / "copies"))
    assert pushed.code == 0
    check(yogadl.open_storage(f"file://{tmp_path}/other", mirror=tmp_path / "m"), is_found=True)
    # A damaged one is left behind.
    (file,) = kept(tmp_path / "bucket")
    file.write_bytes(b"damaged")
    damaged = yoga("pull", "d", "1", "--from", here.location, "--mirror", str(tmp_path / "again"))
    assert damaged.code == 0
    assert kept(tmp_path / "again") == []
