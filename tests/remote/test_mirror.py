"""The mirror: what is brought, once; what stays as long as it is read; what goes when room is needed."""

import errno
import gc
import logging
import os
import pickle
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from command import Terminal
from inside import (
    Claim,
    LocalBucket,
    LocalMirror,
    MirroredCache,
    Reader,
    is_free,
    location,
    locked,
    set_constants,
    transfer,
)
from mirrors import (
    Watched,
    at_once,
    bucket_with,
    is_whole,
    last_used,
    litter_in,
    manifest_of,
    open_cache,
    parts_in,
    rows,
)

import yogadl
from yogadl.errors import CacheFormatError, ConfigurationError, StorageError


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    return bucket_with(tmp_path_factory.mktemp("bucket"), "a", "b", "c")


@pytest.fixture
def bucket(filled, tmp_path):
    """A copy of the caches, which a test may damage."""
    shutil.copytree(filled.url.removeprefix("file://"), tmp_path / "bucket")
    return LocalBucket(tmp_path / "bucket")


@pytest.fixture
def mirror(bucket, tmp_path):
    return LocalMirror(bucket, tmp_path / "mirror")


def size_of(bucket, name):
    """Return how many bytes a mirror needs for a dataset."""
    return sum(
        found.size_bytes for found in bucket.list(f"{name}/") if found.name.endswith((".mdb", ".parts"))
    )


# Bringing.


def test_a_cache_is_brought_whole_and_reads_as_it_was_built(bucket, mirror):
    manifest = manifest_of(bucket, "a")
    brought = open_cache(mirror, manifest)
    reader = Reader(manifest.spec, brought.table, brought)
    assert is_whole(mirror, bucket, manifest)
    found = reader.columns(rows()["i"][::-1].copy())
    assert (found[1] == rows()["row"][::-1]).all()
    assert litter_in(mirror) == []


def test_a_second_bring_asks_nothing_of_the_bucket(bucket, tmp_path):
    watched = Watched(bucket)
    mirror = LocalMirror(watched, tmp_path / "mirror")
    open_cache(mirror, manifest_of(bucket, "a")).close()
    assert set(watched.gets.values()) == {1}
    watched.gets.clear()
    open_cache(LocalMirror(watched, tmp_path / "mirror"), manifest_of(bucket, "a"))
    assert watched.gets == {}


def test_parts_that_are_wanted_first_are_brought_first(bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(transfer, "connection_count", lambda: 1)
    watched, manifest = Watched(bucket), manifest_of(bucket, "a")
    brought = MirroredCache(watched, LocalMirror(watched, tmp_path / "mirror").location, manifest)
    order = [5, 2, 7, 0, 1, 3, 4, 6, *range(8, len(brought.table))]
    brought.complete(order)
    begun = [name.rpartition("/")[2].removesuffix(".mdb") for name in watched.gets if name.endswith(".mdb")]
    assert begun == [brought.table.sha256[number] for number in order]


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [
        (".mdb", "truncated"),
        (".mdb", "removed"),
        (".parts", "truncated"),
        (".parts", "flipped"),
        (".parts", "removed"),
    ],
)
def test_a_file_damaged_on_this_machine_is_brought_again(suffix, damage, bucket, mirror):
    manifest = manifest_of(bucket, "a")
    open_cache(mirror, manifest).close()
    path = mirror.folder.path(mirror.folder.names("a", suffix)[-1])
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.unlink()
    if damage != "removed":
        path.write_bytes(content if damage == "flipped" else content[:100])
    open_cache(mirror, manifest)
    assert is_whole(mirror, bucket, manifest)


@pytest.mark.parametrize("suffix", [".mdb", ".parts"])
def test_a_file_altered_in_the_bucket_is_named(suffix, bucket, mirror):
    found = next(known.name for known in bucket.list("a/") if known.name.endswith(suffix))
    content = bytearray(Path(bucket.url.removeprefix("file://"), found).read_bytes())
    content[len(content) // 2] ^= 1
    manifest = manifest_of(bucket, "a")
    bucket.put(found, bytes(content))
    with pytest.raises(CacheFormatError, match=f"{found} in .* has other bytes"):
        open_cache(mirror, manifest)
    assert litter_in(mirror) == []
    assert is_free(mirror.location.reader_lock(f"a/tables/{manifest.table_sha256}.parts"))


@pytest.mark.parametrize("suffix", [".mdb", ".parts"])
def test_a_file_deleted_in_the_bucket_is_named(suffix, bucket, mirror):
    manifest = manifest_of(bucket, "a")
    found = next(known.name for known in bucket.list("a/") if known.name.endswith(suffix))
    bucket.delete(found)
    with pytest.raises(CacheFormatError, match=f"{found} is missing in"):
        open_cache(mirror, manifest)


def test_what_is_in_the_mirror_is_read_though_the_bucket_has_lost_it(bucket, mirror):
    manifest = manifest_of(bucket, "a")
    open_cache(mirror, manifest).close()
    for known in list(bucket.list("a/")):
        bucket.delete(known.name)
    assert len(open_cache(mirror, manifest).table) == manifest.parts


@pytest.mark.parametrize(("delay_s", "is_shown"), [(0.0, True), (3600.0, False)])
def test_on_a_terminal_a_bar_shows_how_far_it_is_if_it_takes_long(
    bucket, mirror, monkeypatch, delay_s, is_shown
):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    set_constants(monkeypatch, PROGRESS_DELAY_S=delay_s)
    open_cache(mirror, manifest_of(bucket, "a"))
    assert ("fetching 'a' version '1': 100%" in terminal.getvalue()) == is_shown
    assert bool(terminal.getvalue()) == is_shown


# Sharing.


def test_threads_that_want_the_same_bring_each_part_once(bucket, tmp_path):
    watched, manifest = Watched(bucket, lambda name: time.sleep(0.001)), manifest_of(bucket, "a")
    assert len(at_once(6, lambda: open_cache(LocalMirror(watched, tmp_path / "mirror"), manifest))) == 6
    assert set(watched.gets.values()) == {1}
    assert litter_in(LocalMirror(watched, tmp_path / "mirror")) == []


def test_a_mirror_is_shared_by_buckets_of_equal_parts(bucket, tmp_path):
    shutil.copytree(tmp_path / "bucket", tmp_path / "another")
    open_cache(LocalMirror(bucket, tmp_path / "mirror"), manifest_of(bucket, "a"))
    watched = Watched(LocalBucket(tmp_path / "another"))
    open_cache(LocalMirror(watched, tmp_path / "mirror"), manifest_of(bucket, "a"))
    assert watched.gets == {}


def test_a_mirror_pickles_without_being_opened(bucket, tmp_path):
    mirror = pickle.loads(pickle.dumps(LocalMirror(bucket, tmp_path / "mirror", "1GB")))
    assert not (tmp_path / "mirror").exists()
    open_cache(mirror, manifest_of(bucket, "a"))
    assert mirror.location.limit_bytes() == 10**9


def test_what_is_held_for_a_process_does_not_pickle(bucket, mirror):
    with pytest.raises(TypeError, match="fetch the dataset again in the other process"):
        pickle.dumps(open_cache(mirror, manifest_of(bucket, "a")))


def test_many_parts_take_one_descriptor(bucket, mirror):
    before = len(os.listdir("/proc/self/fd"))
    held = [open_cache(mirror, manifest_of(bucket, name)) for name in "abc"]
    assert len(os.listdir("/proc/self/fd")) <= before + len(held)  # a lock each
    for one in held:
        one.close()


# Making room.


@pytest.mark.parametrize("is_held", [False, True])
def test_with_a_limit_the_least_recently_used_cache_that_nobody_reads_goes(is_held, bucket, tmp_path):
    limit = size_of(bucket, "a") + size_of(bucket, "b") + 1000
    mirror = LocalMirror(bucket, tmp_path / "mirror", limit)
    manifests = {name: manifest_of(bucket, name) for name in "abc"}
    held = open_cache(mirror, manifests["a"])
    if not is_held:
        held.close()
    open_cache(mirror, manifests["b"]).close()
    last_used(mirror, manifests["a" if is_held else "b"], 1_000)
    open_cache(mirror, manifests["c"]).close()
    assert is_whole(mirror, bucket, manifests["a"])
    assert is_whole(mirror, bucket, manifests["c"])
    assert parts_in(mirror, "b") == 0
    assert sum(path.stat().st_size for path in mirror.folder.root.rglob("*") if path.is_file()) <= limit
    held.close()


def test_only_as_many_parts_go_as_must(bucket, tmp_path):
    limit = size_of(bucket, "a") + size_of(bucket, "b") - 1
    mirror = LocalMirror(bucket, tmp_path / "mirror", limit)
    open_cache(mirror, manifest_of(bucket, "a")).close()
    open_cache(mirror, manifest_of(bucket, "b")).close()
    assert parts_in(mirror, "a") == parts_in(mirror, "b") - 1


@pytest.mark.parametrize("others", [0, 1])
def test_what_does_not_fit_is_refused_with_the_sizes_and_nothing_goes(others, bucket, tmp_path):
    mirror = LocalMirror(bucket, tmp_path / "mirror", size_of(bucket, "a") + 1000 if others else 10_000)
    held = [open_cache(mirror, manifest_of(bucket, "a")) for _ in range(others)]
    with pytest.raises(
        StorageError, match=r"'b' version '1' does not fit.*its limit is .* kB.*Raise it, Mirror\(limit="
    ):
        open_cache(mirror, manifest_of(bucket, "b"))
    assert parts_in(mirror, "b") == 0
    assert len(held) == 0 or is_whole(mirror, bucket, manifest_of(bucket, "a"))


def test_what_is_promised_to_a_reader_is_not_given_to_another(bucket, tmp_path):
    """While `a` is on its way, `b`, which would fit beside what has come so far, is refused."""
    manifests = {name: manifest_of(bucket, name) for name in "ab"}
    outcome = []

    def on_get(name):
        if name.endswith(".mdb") and not outcome:
            outcome.append("asked")
            try:
                open_cache(LocalMirror(bucket, tmp_path / "mirror"), manifests["b"])
            except StorageError as error:
                outcome.append(error)

    mirror = LocalMirror(Watched(bucket, on_get), tmp_path / "mirror", size_of(bucket, "a") + 10_000)
    open_cache(mirror, manifests["a"])
    assert "does not fit" in str(outcome[1])
    assert is_whole(mirror, bucket, manifests["a"])


def test_a_reader_that_is_collected_lets_its_cache_go(bucket, tmp_path):
    mirror = LocalMirror(bucket, tmp_path / "mirror", size_of(bucket, "a") + 1000)
    held = open_cache(mirror, manifest_of(bucket, "a"))
    with pytest.raises(StorageError):
        open_cache(mirror, manifest_of(bucket, "b"))
    del held
    gc.collect()
    open_cache(mirror, manifest_of(bucket, "b"))


def test_the_limit_is_kept_in_the_folder_and_the_last_to_give_one_decides(bucket, tmp_path):
    LocalMirror(bucket, tmp_path / "mirror", "20kB").location  # noqa: B018
    with pytest.raises(StorageError, match="its limit is 20"):
        open_cache(LocalMirror(bucket, tmp_path / "mirror"), manifest_of(bucket, "a"))
    open_cache(LocalMirror(bucket, tmp_path / "mirror", "1GiB"), manifest_of(bucket, "a"))
    assert LocalMirror(bucket, tmp_path / "mirror").location.limit_bytes() == 2**30


@pytest.mark.parametrize("limit", [0, -1, "", "many", "1XB", 1.5, True])
def test_a_limit_that_is_no_size_is_refused(limit, bucket, tmp_path):
    with pytest.raises(ConfigurationError, match="give a size"):
        LocalMirror(bucket, tmp_path / "mirror", limit)


def test_what_a_killed_process_left_goes_when_room_is_made(bucket, mirror, monkeypatch):
    set_constants(monkeypatch, ABANDONED_S=-1.0)
    open_cache(mirror, manifest_of(bucket, "a")).close()
    parts = mirror.folder.path("a/parts")
    (parts / ".0123456789abcdef.tmp").write_bytes(b"half of a part")
    (parts / ".some.mdb.lock").touch()
    open_cache(mirror, manifest_of(bucket, "b"))
    assert litter_in(mirror) == []


def test_what_is_being_written_stays_when_room_is_made(bucket, mirror, monkeypatch):
    set_constants(monkeypatch, ABANDONED_S=-1.0)
    path = mirror.folder.path("b/parts/x.mdb")
    claim = Claim(path)
    claim.take(lambda: False, 1.0)
    open_cache(mirror, manifest_of(bucket, "a"))
    assert litter_in(mirror) == ["caches/b/parts/.x.mdb.lock"]
    claim.release()
    assert litter_in(mirror) == []


# Adopting.


def test_an_adopted_part_is_not_downloaded(bucket, tmp_path):
    watched, manifest = Watched(bucket), manifest_of(bucket, "a")
    mirror = LocalMirror(watched, tmp_path / "mirror")
    folder = tmp_path / "bucket/a/parts"
    for part in folder.glob("*.mdb"):
        assert mirror.adopt({f"a/parts/{part.name}": part})
        assert part.exists()
    open_cache(mirror, manifest)
    assert list(watched.gets) == [f"a/tables/{manifest.table_sha256}.parts"]
    assert is_whole(mirror, bucket, manifest)


def test_a_part_from_another_file_system_is_adopted_as_a_copy(bucket, mirror, tmp_path, monkeypatch):
    def link(source, target):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", link)
    part = next((tmp_path / "bucket/a/parts").glob("*.mdb"))
    assert mirror.adopt({f"a/parts/{part.name}": part})
    found = mirror.folder.path(f"a/parts/{part.name}")
    assert found.read_bytes() == part.read_bytes()
    assert found.stat().st_nlink == 1


def test_a_part_that_does_not_fit_is_not_adopted(bucket, tmp_path):
    mirror = LocalMirror(bucket, tmp_path / "mirror", 10)
    part = next((tmp_path / "bucket/a/parts").glob("*.mdb"))
    assert not mirror.adopt({f"a/parts/{part.name}": part})
    assert parts_in(mirror, "a") == 0
    assert litter_in(mirror) == []


# Under the reader.


def test_a_mirror_deleted_underneath_a_reader_leaves_what_is_mapped_and_comes_again(bucket, mirror):
    manifest = manifest_of(bucket, "a")
    brought = open_cache(mirror, manifest)
    reader = Reader(manifest.spec, brought.table, brought)
    every = rows()["i"]
    assert (reader.columns(every)[1] == rows()["row"]).all()
    shutil.rmtree(mirror.location.root)
    assert (reader.columns(every)[1] == rows()["row"]).all()
    again = open_cache(LocalMirror(bucket, mirror.location.root), manifest)
    assert (Reader(manifest.spec, again.table, again).columns(every)[1] == rows()["row"]).all()
    assert is_whole(mirror, bucket, manifest)


def test_a_reader_that_had_not_mapped_anything_brings_what_vanished(bucket, mirror):
    manifest = manifest_of(bucket, "a")
    brought = open_cache(mirror, manifest)
    reader = Reader(manifest.spec, brought.table, brought, maps=False)
    shutil.rmtree(mirror.location.root)
    assert (reader.columns(rows()["i"])[1] == rows()["row"]).all()
    assert parts_in(mirror, "a") == len(brought.table)
    assert not is_free(mirror.location.reader_lock(f"a/tables/{manifest.table_sha256}.parts"))


# The place.


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("full", r"'thesis.tex'.*place/yogadl-mirror"),
        ("storage", "is no mirror"),  # or what it has, and no bucket, would be evicted
        ("file", "is a file, not a folder"),
    ],
)
def test_a_place_of_something_else_is_refused_and_left_as_it_is(kind, says, bucket, tmp_path):
    place = tmp_path / "place"
    if kind == "storage":
        yogadl.open_storage(place).submit(rows(), "mine", "1")
    elif kind == "full":
        place.mkdir()
    (place / "thesis.tex" if kind == "full" else place if kind == "file" else tmp_path / "x").touch()
    before = sorted(place.rglob("*"))
    with pytest.raises(ConfigurationError, match=says):
        open_cache(LocalMirror(bucket, place), manifest_of(bucket, "a"))
    assert sorted(place.rglob("*")) == before


def temporary(monkeypatch, folder):
    monkeypatch.setattr(location.tempfile, "gettempdir", lambda: str(folder))
    set_constants(monkeypatch, OTHER_TEMPORARY=str(folder / "none"))


def test_the_default_place_is_in_temporary_storage_and_of_this_user_alone(
    bucket, tmp_path, monkeypatch, caplog
):
    temporary(monkeypatch, tmp_path)
    with caplog.at_level(logging.INFO, "yogadl"):
        mirror = LocalMirror(bucket)
        open_cache(mirror, manifest_of(bucket, "a"))
    assert mirror.location.root == tmp_path / f"yogadl-mirror-{os.getuid()}"
    assert mirror.location.root.stat().st_mode & 0o777 == 0o700
    assert [record.getMessage() for record in caplog.records if "are kept in" in record.getMessage()] != []
    again = LocalMirror(bucket)
    assert again.location == mirror.location


@pytest.mark.parametrize(
    ("kind", "reason"), [("tmpfs", "is in memory"), ("nfs4", r"network file system \(nfs4\)")]
)
def test_the_default_place_is_never_in_memory_nor_on_a_network(kind, reason, bucket, tmp_path, monkeypatch):
    temporary(monkeypatch, tmp_path)
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 1 0:1 / / rw - {kind} x rw\n")
    set_constants(monkeypatch, MOUNTINFO=mounts)
    with pytest.raises(StorageError, match=f"{reason}.*mirror=FOLDER"):
        LocalMirror(bucket).location  # noqa: B018


def test_the_default_place_is_never_at_home(bucket, tmp_path, monkeypatch):
    temporary(monkeypatch, tmp_path / "tmp")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(StorageError, match="is in the home folder"):
        LocalMirror(bucket).location  # noqa: B018


@pytest.mark.parametrize("trap", ["link", "open to all", "file"])
def test_a_default_place_that_others_may_have_laid_out_is_not_used(trap, bucket, tmp_path, monkeypatch):
    temporary(monkeypatch, tmp_path)
    root = tmp_path / f"yogadl-mirror-{os.getuid()}"
    (tmp_path / "elsewhere").mkdir()
    if trap == "link":
        root.symlink_to(tmp_path / "elsewhere")
    elif trap == "file":
        root.touch()
    else:
        root.mkdir()
        root.chmod(0o777)
    with pytest.raises(StorageError, match="mirror=FOLDER"):
        LocalMirror(bucket).location  # noqa: B018
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_on_a_network_file_system_each_host_has_a_folder_of_its_own(bucket, tmp_path, monkeypatch, caplog):
    mounts = tmp_path / "mountinfo"
    mounts.write_text("1 1 0:1 / / rw - nfs4 server:/ rw\n")
    set_constants(monkeypatch, MOUNTINFO=mounts)
    manifest, roots = manifest_of_quietly(bucket, monkeypatch), []
    for host in ("one", "two"):
        monkeypatch.setattr(location.socket, "gethostname", lambda host=host: host)
        mirror = LocalMirror(bucket, tmp_path / "nfs")
        open_cache(mirror, manifest).close()
        assert is_whole(mirror, bucket, manifest)
        roots.append(mirror.location.root)
    assert roots[0] != roots[1]
    assert {root.parent for root in roots} == {tmp_path / "nfs/hosts"}
    assert "uses its own subfolder" in caplog.text


def manifest_of_quietly(bucket, monkeypatch):
    with monkeypatch.context() as patch:
        set_constants(patch, MOUNTINFO=Path("/proc/self/mountinfo"))
        return manifest_of(bucket, "a")


# Locks.


def test_a_claim_is_taken_over_from_who_does_not_get_on(tmp_path):
    path = tmp_path / "file"
    stalled, waiting = Claim(path), Claim(path)
    assert stalled.take(lambda: False, 60.0)
    assert waiting.take(lambda: False, stall_s=0.05)
    waiting.release()
    stalled.release()
    assert list(tmp_path.iterdir()) == []


def test_a_claim_whose_lock_another_process_removes_meanwhile_is_released(tmp_path):
    class Swept(type(tmp_path)):  # the class of this system's paths
        def unlink(self, missing_ok=False):
            os.unlink(self)
            super().unlink(missing_ok)

    claim = Claim(tmp_path / "file")
    claim.lock_path = Swept(claim.lock_path)
    assert claim.take(lambda: False, 60.0)
    claim.release()
    assert list(tmp_path.iterdir()) == []


def test_a_claim_waits_for_who_gets_on_until_the_file_is_made(tmp_path):
    path, made = tmp_path / "file", threading.Event()
    first, second = Claim(path), Claim(path)
    assert first.take(made.is_set, 60.0)
    asked = threading.Event()

    def is_made():
        if asked.is_set():
            made.set()
        asked.set()
        return made.is_set()

    assert not second.take(is_made, stall_s=60.0)
    first.release()


def test_a_lock_that_is_never_given_back_is_an_error_that_names_it(tmp_path):
    path = tmp_path / "lock"
    with (
        locked(path, exclusive=True, limit_s=1),
        pytest.raises(StorageError, match=f"has held the lock {path}"),
        locked(path, exclusive=False, limit_s=0.01),
    ):
        pass


# In real stores.


def test_what_is_built_in_the_mirrors_scratch_is_never_evicted(bucket, tmp_path):
    mirror = LocalMirror(bucket, tmp_path / "mirror", size_of(bucket, "a") + 1000)
    part = mirror.scratch() / "part.mdb"
    part.write_bytes(b"no bucket has it yet")
    open_cache(mirror, manifest_of(bucket, "a")).close()
    open_cache(mirror, manifest_of(bucket, "b")).close()
    assert part.exists()


def test_a_limit_that_is_lowered_meanwhile_is_kept_by_who_fills_the_mirror(bucket, mirror):
    cache = mirror.hold(manifest_of(bucket, "a"))
    lock = cache.try_to_fill()
    assert lock is not None
    try:
        with ThreadPoolExecutor(2) as pool:
            assert cache.fill_in(0, pool, transfer.Total(0, None), lock)
            mirror.location.set_limit(1)
            with pytest.raises(StorageError, match="its limit is 1 B"):
                cache.fill_in(1, pool, transfer.Total(0, None), lock)
            mirror.location.set_limit(2**30)
            assert cache.fill_in(1, pool, transfer.Total(0, None), lock)
    finally:
        os.close(lock)
        cache.close()
