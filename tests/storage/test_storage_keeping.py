"""What a storage has, and how it is kept in order: list, replace, delete, undelete, prune."""

import os
import pickle
import re
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from inside import BucketRoot, DatasetKey, FolderOpener, Partitions, _names, set_constants

import yogadl
from yogadl.errors import ConfigurationError, DatasetNotFoundError, StorageError
from yogadl.storage import PartitionedBuild, copy

DAY_S = 86_400


def files(storage):
    return {
        str(path.relative_to(Path(storage.location)))
        for path in Path(storage.location).rglob("*")
        if path.is_file()
    }


def content(storage):
    return {name for name in files(storage) if "/locks/" not in name}


# Listing.


def test_versions_are_in_order_of_their_names(storage):
    for version in ("1-a", "1", "10", "1.5", "2", "1/2"):
        storage.submit([1], "d", version)
    assert storage.versions("d") == sorted(["1-a", "1", "10", "1.5", "2", "1/2"])


def test_folders_of_others_below_the_root_are_no_datasets(storage, days_go_by):
    storage.submit([1], "d", "1")
    root = Path(storage.location)
    for name in (
        ".snapshot/d/versions/1.json",
        "versions/1.json",
        "notes/versions/readme.txt",
        "x/parts/wheel.stl",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("not ours")
    assert storage.datasets() == ["d"]
    assert storage.versions("d") == ["1"]
    days_go_by(100)
    assert storage.prune(dry_run=True).files == ()


def test_info_says_what_is_known(storage):
    before = time.time()
    storage.submit({"x": np.zeros((100, 3))}, "team/d", "1", build=yogadl.BuildOptions(part_bytes=800))
    info = storage.info("team/d", "1")
    assert (info.id, info.version, info.records, info.parts) == ("team/d", "1", 100, 4)
    assert info.spec == storage.fetch("team/d", "1").spec
    assert info.fingerprint == storage.fetch("team/d", "1").fingerprint
    assert before - 1 <= info.created <= time.time() + 1
    parts = Path(storage.location) / "team" / "d" / "parts"
    assert info.size_bytes == 4 * next(parts.glob("*.mdb")).stat().st_size
    assert info.builder["numpy"] == np.__version__
    assert info.builder["yogadl"] == yogadl.__version__
    assert storage.verify("team/d", "1").size_bytes == info.size_bytes


@pytest.mark.parametrize("method", ["fetch", "info", "verify", "delete", "undelete"])
def test_what_is_not_there_is_named_with_what_is(storage, method):
    storage.submit([1], "cats", "1")
    storage.submit([1], "cats", "2")
    with pytest.raises(DatasetNotFoundError, match="'dogs' version '1'") as caught:
        getattr(storage, method)("dogs", "1")
    if method != "undelete":
        assert "['cats']" in str(caught.value)
    with pytest.raises(LookupError, match="'cats' version '3'") as caught:
        getattr(storage, method)("cats", "3")
    if method != "undelete":
        assert "['1', '2']" in str(caught.value)


# Replacing.


def test_a_replaced_version_is_read_anew_and_old_references_keep_what_they_opened(storage):
    storage.submit(np.arange(10), "d", "1", build=yogadl.BuildOptions(part_bytes=16))
    old = storage.fetch("d", "1")
    pickled = pickle.dumps(old)
    untouched = pickle.loads(pickled)
    storage.submit(np.arange(100, 120), "d", "1", build=yogadl.BuildOptions(part_bytes=16))

    assert storage.fetch("d", "1").gather(range(20)).tolist() == list(range(100, 120))
    for ref in (old, untouched, pickle.loads(pickled), pickle.loads(pickle.dumps(old))):
        assert ref.gather(range(10)).tolist() == list(range(10))
    storage.delete("d", "1")
    assert pickle.loads(pickled).gather([3]).tolist() == [3]
    storage.prune(grace_s=0)
    with pytest.raises(DatasetNotFoundError, match="was replaced or deleted"):
        pickle.loads(pickled).gather([3])


def test_a_replacing_build_that_fails_leaves_the_old_version(storage):
    storage.submit([1, 2], "d", "1")
    digest = storage.info("d", "1").digest
    with pytest.raises(ZeroDivisionError):
        storage.submit((1 // (30 - n) for n in range(50)), "d", "1", build=yogadl.BuildOptions(part_bytes=8))
    assert storage.info("d", "1").digest == digest
    assert list(storage.fetch("d", "1")) == [1, 2]


# The trash.


def test_undelete_brings_back_what_was_deleted_last(storage):
    for value in (1, 2, 3):
        storage.submit([value], "d", "1")
        storage.delete("d", "1")
    storage.undelete("d", "1")
    assert storage.fetch("d", "1")[0] == 3


def test_the_trash_of_one_version_is_not_that_of_another(storage):
    for version in ("1", "1/2", "1@3"):
        storage.submit([version], "d", version)
        storage.delete("d", version)
    storage.undelete("d", "1")
    assert storage.versions("d") == ["1"]
    assert storage.fetch("d", "1")[0] == "1"


def test_a_deleted_version_can_be_built_anew(storage):
    storage.submit([1], "d", "1")
    storage.delete("d", "1")
    assert storage.cacheable("d", "1")(lambda: [2])()[0] == 2


# Pruning.


def test_prune_keeps_what_is_named_however_old(storage, days_go_by):
    storage.submit(np.arange(100), "a", "1", build=yogadl.BuildOptions(part_bytes=80))
    storage.submit(np.arange(100), "a/b", "1/2", build=yogadl.BuildOptions(part_bytes=80))
    days_go_by(1000)
    before = files(storage)
    assert storage.prune().files == ()
    assert storage.prune(grace_s=0).files == ()
    assert files(storage) == before
    storage.verify("a", "1")
    storage.verify("a/b", "1/2")


def test_prune_keeps_what_is_trashed_until_the_grace_is_over(storage, days_go_by):
    storage.submit(np.arange(100), "d", "1", build=yogadl.BuildOptions(part_bytes=80))
    days_go_by(1000)
    storage.delete("d", "1")
    assert storage.prune().files == ()
    storage.undelete("d", "1")
    storage.verify("d", "1")
    storage.delete("d", "1")

    pruned = storage.prune(grace_s=0)
    assert content(storage) == set()
    assert len(pruned.files) == 1 + 2 * 10 + 1 + 2  # with the version's locks
    assert pruned.size_bytes > 10 * 4096
    with pytest.raises(DatasetNotFoundError):
        storage.undelete("d", "1")


def test_the_grace_of_a_deleted_version_counts_from_its_deletion(storage, days_go_by):
    storage.submit([1], "d", "1")
    days_go_by(50)
    storage.delete("d", "1")
    days_go_by(29)
    assert storage.prune().files == ()
    days_go_by(2)
    assert any("trash" in name for name in storage.prune().files)
    assert content(storage) == set()


def test_prune_removes_what_no_manifest_names_once_it_is_old(storage, days_go_by):
    storage.submit(np.arange(100), "d", "1", build=yogadl.BuildOptions(part_bytes=400))
    kept = content(storage)

    class Broken:
        """A source that a build can go on with, so that nothing goes by itself."""

        def __len__(self):
            return 100

        def __getitem__(self, number):
            return 1.0 // (90 - number)

    with pytest.raises(ZeroDivisionError):
        storage.submit(Broken(), "d", "2", build=yogadl.BuildOptions(part_bytes=80))
    left = content(storage) - kept
    assert any(name.endswith(".mdb") for name in left)
    assert storage.prune().files == ()

    days_go_by(31)
    would = storage.prune(dry_run=True)
    assert {name for name in would.files if "/locks/" not in name} == left
    assert content(storage) == kept | left
    assert storage.prune() == would
    assert content(storage) == kept
    storage.verify("d", "1")


@pytest.mark.parametrize("shared", [False, True])
def test_parts_that_arrive_before_their_manifest_are_kept_whatever_time_they_bring(tmp_path, shared):
    there = yogadl.open_storage(tmp_path / "there")
    there.submit(np.arange(100), "d", "1", build=yogadl.BuildOptions(part_bytes=400))
    then = time.time() - 1000 * DAY_S
    for path in (tmp_path / "there").rglob("*"):
        os.utime(path, (then, then))
    here = yogadl.open_storage(tmp_path / "here", shared=shared)
    for below in ("parts", "tables"):  # in this order, as rsync -a does
        shutil.copytree(tmp_path / "there/d" / below, tmp_path / "here/d" / below)
        assert here.prune().files == ()
    shutil.copytree(tmp_path / "there/d/versions", tmp_path / "here/d/versions")
    here.verify("d", "1")


HALF = ".0123456789abcdef.tmp"


@pytest.fixture(params=["bucket", "shared"])
def leased(request, tmp_path):
    if request.param == "shared":
        return yogadl.open_storage(tmp_path / "bucket", shared=True)
    return yogadl.open_storage((tmp_path / "bucket").as_uri(), mirror=tmp_path / "mirror")


def half_written(root, *below):
    for folder in below:
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / HALF).write_bytes(b"half")


def test_what_was_half_put_into_an_attempt_counts_and_goes_with_it(leased, tmp_path):
    half_written(tmp_path / "bucket/d", "builds/0123456789abcdef01234567/many-1")
    assert [(one.id, one.size_bytes) for one in leased.unfinished()] == [("d", 4)]
    assert leased.prune(unfinished=True).size_bytes == 4
    assert not list((tmp_path / "bucket").rglob("*.tmp"))
    assert leased.unfinished() == []


def test_what_was_half_put_anywhere_is_pruned_once_it_is_a_day_old(leased, tmp_path, monkeypatch):
    leased.submit(np.arange(10), "d", "1")
    leased.delete("d", "1")
    below = ("parts", "tables", "trash", "versions", "tags/x", "builds/0123456789abcdef01234567/many-1")
    half_written(tmp_path / "bucket/d", *below)
    half_written(tmp_path / "bucket/gone", "parts")
    leases = {path.parent for path in (tmp_path / "bucket/d/leases").rglob("*") if path.is_file()}
    half_written(tmp_path, *leases)
    monkeypatch.setattr(BucketRoot, "now", lambda _: time.time() + 3600)
    assert not any(HALF in name for name in leased.prune(grace_s=0).files)
    monkeypatch.setattr(BucketRoot, "now", lambda _: time.time() + DAY_S + 3600)
    assert sum(HALF in name for name in leased.prune(grace_s=0).files) == len(below) + len(leases) + 1
    assert not list((tmp_path / "bucket").rglob("*.tmp"))


def test_prune_keeps_parts_that_another_version_shares(storage):
    storage.submit(np.arange(100), "d", "1", build=yogadl.BuildOptions(part_bytes=80))
    storage.submit(np.arange(110), "d", "2", build=yogadl.BuildOptions(part_bytes=80))
    storage.delete("d", "2")
    pruned = storage.prune(grace_s=0)
    assert sum(name.endswith(".mdb") for name in pruned.files) == 1
    storage.verify("d", "1")


def test_prune_keeps_files_that_are_not_ours(storage, days_go_by):
    storage.submit([1], "d", "1")
    root = Path(storage.location) / "d"
    for name in ("parts/notes.txt", "parts/old.mdb", "tables/readme.md", "builds/mine/x", "trash/keep.json"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("not ours")
    days_go_by(1000)
    assert storage.prune(grace_s=0).files == ()


def test_prune_removes_nothing_of_a_dataset_that_is_being_built_and_says_so(storage, caplog):
    storage.submit([1], "d", "0")
    storage.delete("d", "0")
    kept = []

    def source():
        for n in range(100):
            if n == 90:
                assert storage.prune(grace_s=0, dry_run=True).files == ()
                assert storage.prune(grace_s=0).files == ()
                kept.append(n)
            yield n

    storage.submit(source, "d", "1", build=yogadl.BuildOptions(part_bytes=80))
    assert kept == [90]
    storage.verify("d", "1")
    assert caplog.messages == ["yogadl: skipped 'd': another process builds or prunes it"]


def test_a_prune_that_finds_nothing_does_not_ask_who_builds(storage, caplog):
    def source():
        assert storage.prune().files == ()
        yield 1

    storage.submit(source, "d", "1")
    assert caplog.messages == []


def test_a_builder_who_can_not_be_named_is_an_error_that_says_where(storage):
    holder = Path(storage.location, _names.holder(DatasetKey("d", "1")))
    holder.mkdir(parents=True)
    with pytest.raises(StorageError, match=re.escape(str(holder))):
        storage.submit([1], "d", "1")
    assert storage.versions("d") == []


def test_a_build_waits_for_who_prunes_and_says_so(storage, caplog, monkeypatch):
    set_constants(monkeypatch, LOCK_LOG_AFTER_S=0.01)
    building = threading.Thread(target=storage.submit, args=([1], "d", "1"))
    with storage._backend.coordinator.pruning("d") as exclusion:
        assert exclusion is not None
        with storage._backend.coordinator.pruning("d") as second:
            assert second is None
        building.start()
        building.join(0.3)
        assert storage.versions("d") == []
    building.join()
    storage.verify("d", "1")
    assert caplog.messages[0] == "yogadl: waiting for dataset 'd', which is being pruned"


def commit_another(storage, other):
    build = storage.begin("d", "1", partitions=1)
    build.write(0, [2])
    build.commit()


def copy_another(storage, other):
    copy(other, storage, "d", "1")


def delete_it(storage, other):
    storage.delete("d", "1")


@pytest.mark.parametrize("change", [commit_another, copy_another, delete_it])
def test_a_builder_that_changes_what_it_builds_by_another_way_is_told_so(storage, tmp_path, change):
    other = yogadl.open_storage(tmp_path / "other")
    other.submit([2], "d", "1")
    if change is delete_it:
        storage.submit([1], "d", "1")
    before = storage.versions("d")

    def source():
        change(storage, other)
        yield 1

    with pytest.raises(ConfigurationError, match="by this very call"):
        storage.submit(source, "d", "1")
    assert storage.versions("d") == before
    assert not before or storage.fetch("d", "1")[0] == 1


def test_a_version_that_was_pruned_while_it_was_fetched_is_not_called_damaged(storage, monkeypatch):
    storage.submit([1], "d", "1")
    reader = FolderOpener.reader

    def late(opener, published, **options):
        storage.delete("d", "1")
        storage.prune(grace_s=0)
        return reader(opener, published, **options)

    monkeypatch.setattr(FolderOpener, "reader", late)
    with pytest.raises(DatasetNotFoundError, match="was replaced or deleted"):
        storage.fetch("d", "1")


@pytest.mark.parametrize("state", ["live", "trashed"])
def test_prune_removes_nothing_of_a_dataset_with_a_manifest_that_cant_be_read(
    storage, state, days_go_by, caplog
):
    storage.submit([1], "d", "1")
    storage.submit([2], "d", "2")
    days_go_by(1000)
    if state == "trashed":
        storage.delete("d", "1")
        (manifest,) = (Path(storage.location) / "d" / "trash").iterdir()
    else:
        manifest = Path(storage.location) / "d" / "versions" / "1.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"format": 1', b'"format": 2'))
    before = files(storage)
    assert storage.prune(grace_s=60).files == ()
    assert re.search(r"skipped 'd': .*upgrade yogadl", caplog.text)
    assert files(storage) == before


def test_prune_goes_on_with_the_other_datasets_if_one_cant_be_read(storage, days_go_by, caplog):
    for dataset_id in ("a", "b", "c"):
        storage.submit([1], dataset_id, "1")
        storage.submit([2], dataset_id, "2")
        storage.delete(dataset_id, "2")
    days_go_by(31)
    (Path(storage.location) / "b/versions/1.json").write_text("{")
    assert len(storage.prune().files) == 2 * (4 + 2)  # with the version's locks
    assert "skipped 'b': " in caplog.text
    left = {name.partition("/")[0] for name in files(storage) if "/trash/" in name}
    assert left == {"b"}


@pytest.mark.parametrize("shared", [False, True])
def test_files_of_others_with_names_that_no_cache_has_stop_nothing(tmp_path, shared):
    storage = yogadl.open_storage(tmp_path / "root", shared=shared)
    storage.submit([1], "d", "1")
    storage.submit([2], "d", "2")
    storage.delete("d", "2")
    foreign = []
    for folder in ("", "d", "d/versions", "d/parts", "d/trash", "d/builds", "d/leases", "notes/versions"):
        (Path(storage.location) / folder).mkdir(parents=True, exist_ok=True)
        for name in (b"Icon\r", b"caf\xe9.json", b"back\\slash", b"caf\xe9.mdb"):
            path = os.path.join(os.fsencode(Path(storage.location) / folder), name)
            with open(path, "wb"):
                foreign.append(path)
    assert storage.datasets() == ["d"]
    assert storage.versions("d") == ["1"]
    with pytest.raises(DatasetNotFoundError, match="there are the versions"):
        storage.fetch("d", "3")
    with pytest.raises(DatasetNotFoundError):
        storage.fetch("e", "1")
    assert len(storage.prune(grace_s=0).files) >= 3
    assert all(map(os.path.exists, foreign))
    assert storage.fetch("d", "1")[0] == 1
    storage.submit([2], "d", "2")
    storage.verify("d", "2")


# Names never leave the root.


def test_a_version_whose_name_has_what_is_not_seen_is_read_and_deleted_but_not_built(storage):
    name = "1\u202e2"
    # As earlier releases let it be.
    key = DatasetKey("data", name)
    folder = _names.partitioned(key, "run", 1)
    earlier = PartitionedBuild(Partitions(storage._backend, key, 1, "run", folder))
    earlier.write(0, [1, 2, 3])
    earlier.commit()
    assert storage.versions("data") == [name]
    assert len(storage.fetch("data", name)) == 3
    assert len(storage.cacheable("data", name)(lambda: [1])()) == 3
    storage.delete("data", name)
    for build in (
        lambda: storage.submit([1], "data", name),
        lambda: storage.begin("data", name, partitions=1),
        storage.cacheable("data", name)(lambda: [1]),
    ):
        with pytest.raises(ConfigurationError, match="an invisible character"):
            build()
    storage.undelete("data", name)
    assert len(storage.fetch("data", name)) == 3


@pytest.mark.parametrize("grace_s", [-1, -0.001, float("nan"), "30", None, True, [3]])
def test_a_grace_that_makes_no_sense_prunes_nothing(tmp_path, grace_s):
    storage = yogadl.open_storage(tmp_path)
    storage.submit([1, 2, 3], "data", "1")
    storage.delete("data", "1")
    with pytest.raises(ConfigurationError, match="grace_s must be a number of seconds, at least 0, not"):
        storage.prune(grace_s=grace_s)
    storage.undelete("data", "1")
    assert len(storage.fetch("data", "1")) == 3
