"""The mirror when networks break, disks fill up, processes are killed or stopped, and folders vanish."""

import contextlib
import errno
import os
import shutil
import signal
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from inside import Body, LocalBucket, LocalMirror, RetryPolicy, eviction, mirrored_cache, set_constants
from mirrors import (
    Watched,
    bucket_with,
    is_whole,
    last_used,
    litter_in,
    manifest_of,
    mount,
    needs_mount,
    on_a_small_disk,
    open_cache,
    parts_in,
    rows,
)
from processes import Process, processes, wait_until
from store_proxy import cuts, refuses, resets, stalls
from turns import by_turns

import yogadl
from yogadl.errors import StorageError

RECORDS = 2_000


@pytest.fixture
def bucket(tmp_path):
    return bucket_with(tmp_path / "bucket", "a", "b")


# Networks.


@pytest.fixture
def proxied(broken, tmp_path):
    """A cache in a real store, and a proxy before it."""
    place, proxy = broken
    storage = place.storage(mirror=tmp_path / "builder")
    storage.submit(rows(), "a", "1", build=yogadl.BuildOptions(part_bytes=20_000))
    return proxy, place


def is_part(request):
    return request.is_of_bytes and ".mdb" in request.name


PASSING = {
    "reset": resets(),
    "reset amid a body": resets(5_000),
    "cut body": cuts(5_000),
    "silence amid a body": stalls(5_000),
    "silence": stalls(),
    "503": refuses(503, "SlowDown"),
}


@pytest.mark.parametrize(("broken", "breaks"), by_turns(PASSING), indirect=["broken"])
def test_a_download_comes_through_whatever_breaks_on_the_way(proxied, tmp_path, breaks):
    proxy, place = proxied
    proxy.breaks(is_part, breaks, times=9)
    ref = place.storage(patience=RetryPolicy(0.5, 60), mirror=tmp_path / "mirror").fetch("a", "1")
    assert np.array_equal(ref.gather(range(RECORDS))["row"], rows()["row"])


@pytest.mark.parametrize(
    ("broken", "breaks", "message"),
    [
        ("s3", refuses(403, "ExpiredToken"), "expired|not allowed"),
        ("gcs", refuses(403, "ExpiredToken"), "expired|not allowed"),
        ("gcs", stalls(5_000), "tried"),
        ("s3", refuses(503, "SlowDown"), "tried"),
    ],
    indirect=["broken"],
    ids=["s3-credentials expire", "gcs-credentials expire", "gcs-silence for ever", "s3-503 for ever"],
)
def test_a_network_that_stays_broken_is_one_error_in_time_and_what_came_is_kept(
    proxied, tmp_path, breaks, message
):
    proxy, place = proxied
    passed = []

    def is_late_part(request):
        if is_part(request):
            passed.append(request)
        return is_part(request) and len(passed) > 4

    proxy.breaks(is_late_part, breaks)
    storage = place.storage(patience=RetryPolicy(0.3, 1.5), mirror=tmp_path / "mirror")
    started = time.monotonic()
    with pytest.raises(StorageError, match=message):
        storage.fetch("a", "1")
    assert time.monotonic() - started < 30
    mirror = storage._backend.catalogue.opener.mirror
    assert litter_in(mirror) == []
    kept = parts_in(mirror, "a")
    assert kept > 0
    proxy.rules.clear()
    proxy.requests.clear()
    patient = place.storage(mirror=tmp_path / "mirror")
    assert np.array_equal(patient.fetch("a", "1").gather(range(RECORDS))["row"], rows()["row"])
    asked = {request.name for request in proxy.requests if is_part(request)}
    assert len(asked) == storage.info("a", "1").parts - kept


# Processes.


class Slow(LocalBucket):
    """A bucket that stops before the second half of each part, until a file is there. Picklable."""

    def __init__(self, folder, flag):
        super().__init__(folder)
        self._flag = flag

    def __reduce__(self):
        return Slow, (Path(self.url.removeprefix("file://")), self._flag)

    @contextmanager
    def get(self, name, start=0, stop=None, **more):
        with super().get(name, start, stop, **more) as body:
            if body is None or not name.endswith(".mdb"):
                yield body
                return
            content = b"".join(body.chunks)
            half = len(content) // 2

            def chunks():
                yield content[:half]
                wait_until(self._flag.exists, "the test's flag")
                yield content[half:]

            yield Body(body.object, chunks())


def hold(mirror, manifest, ready, go_on):
    """Bring a cache, say so, and hold it until told."""
    held = open_cache(mirror, manifest)
    ready.touch()
    wait_until(go_on.exists, "the test to go on")
    held.close()


@contextmanager
def holding(mirror, manifest, folder):
    """Run a process that brings a cache; give it, the file that says so, and the one that lets it end."""
    ready, go_on = folder / "ready", folder / "go_on"
    with Process(hold, mirror, manifest, ready, go_on) as child:
        yield child, ready, go_on


def unfinished(folder):
    return len(list(folder.rglob(".*.tmp")))


def test_who_waits_for_a_killed_downloader_downloads_itself(bucket, tmp_path):
    manifest, slow = manifest_of(bucket, "a"), Slow(tmp_path / "bucket", tmp_path / "flag")
    waiting, done = LocalMirror(bucket, tmp_path / "mirror"), []
    with holding(LocalMirror(slow, tmp_path / "mirror"), manifest, tmp_path) as (child, _, _):
        wait_until(lambda: unfinished(tmp_path / "mirror") >= 2, "parts on their way")
        thread = threading.Thread(target=lambda: done.append(open_cache(waiting, manifest)))
        thread.start()
        child.kill()
        thread.join(60)
    assert len(done) == 1
    assert is_whole(waiting, bucket, manifest)


def test_who_waits_for_a_stopped_downloader_does_not_wait_for_ever(bucket, tmp_path, monkeypatch):
    manifest, slow = manifest_of(bucket, "a"), Slow(tmp_path / "bucket", tmp_path / "flag")
    mirror = LocalMirror(bucket, tmp_path / "mirror")
    set_constants(monkeypatch, STALL_S=0.2)
    with holding(LocalMirror(slow, tmp_path / "mirror"), manifest, tmp_path) as (child, ready, go_on):
        wait_until(lambda: unfinished(tmp_path / "mirror") >= 2, "parts on their way")
        os.kill(child.pid, signal.SIGSTOP)
        open_cache(mirror, manifest).close()
        assert is_whole(mirror, bucket, manifest)
        (tmp_path / "flag").touch()
        os.kill(child.pid, signal.SIGCONT)
        wait_until(ready.exists, "the one that was stopped, which finishes, too, with the same bytes")
        go_on.touch()
        child.result()
    assert is_whole(mirror, bucket, manifest)
    assert litter_in(mirror) == []


def test_a_killed_reader_lets_its_cache_go(bucket, tmp_path):
    mirror = LocalMirror(bucket, tmp_path / "mirror", manifest_of(bucket, "a").size_bytes + 20_000)
    with holding(mirror, manifest_of(bucket, "a"), tmp_path) as (child, ready, _):
        wait_until(ready.exists, "the reader")
        with pytest.raises(StorageError, match="are in use"):
            open_cache(mirror, manifest_of(bucket, "b"))
        child.kill()
    open_cache(mirror, manifest_of(bucket, "b"))
    assert is_whole(mirror, bucket, manifest_of(bucket, "b"))


def test_a_forked_reader_keeps_its_cache_when_its_parent_lets_go(bucket, tmp_path):
    mirror = LocalMirror(bucket, tmp_path / "mirror", manifest_of(bucket, "a").size_bytes + 20_000)
    held = open_cache(mirror, manifest_of(bucket, "a"))
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(reading, 1)
        os._exit(0)
    held.close()
    with pytest.raises(StorageError, match="are in use"):
        open_cache(mirror, manifest_of(bucket, "b"))
    os.write(writing, b"x")
    os.waitpid(pid, 0)
    os.close(reading)
    os.close(writing)
    open_cache(mirror, manifest_of(bucket, "b"))


def bring_again_and_again(mirror, manifests, rounds):
    """Bring one of several caches, each time another, and check it; return how often it fitted."""
    brought = 0
    for number in range(rounds):
        manifest = manifests[(os.getpid() + number) % len(manifests)]
        try:
            held = open_cache(mirror, manifest)
        except StorageError as error:
            if error.errno != errno.ENOSPC:
                raise
            continue  # it does not fit beside what the others read just now
        assert is_whole(mirror, mirror._bucket, manifest)
        held.close()
        brought += 1
    return brought


def test_processes_that_crowd_a_mirror_too_small_for_them_always_read_right(tmp_path):
    bucket = bucket_with(tmp_path / "bucket", "a", "b", "c")
    manifests = [manifest_of(bucket, name) for name in "abc"]
    limit = int(2.2 * manifests[0].size_bytes)
    mirror = LocalMirror(bucket, tmp_path / "mirror", limit)
    with processes(bring_again_and_again, [(mirror, manifests, 12)] * 4) as crowd:
        brought = sum(child.result() for child in crowd)
    assert brought >= 12
    open_cache(mirror, manifests[0])
    assert sum(path.stat().st_size for path in mirror.folder.root.rglob("*.mdb")) <= limit
    assert litter_in(mirror) == []


def test_a_download_that_ends_while_files_are_counted_is_counted(bucket, tmp_path, monkeypatch):
    a, b = manifest_of(bucket, "a"), manifest_of(bucket, "b")
    arrived, listed = threading.Event(), threading.Event()

    def on_get(name):
        if name.endswith(".mdb"):
            arrived.set()
            assert listed.wait(60)

    root, limit_bytes = tmp_path / "mirror", a.size_bytes + b.size_bytes // 2
    first = LocalMirror(Watched(bucket, on_get), root, limit_bytes)
    download = threading.Thread(target=lambda: open_cache(first, a).close())
    files = eviction._files

    def slowly(folder):
        yield from list(files(folder))
        listed.set()
        download.join()

    second = LocalMirror(bucket, root, limit_bytes)
    with second.location.gate(exclusive=True):
        pass  # the folder is made
    download.start()
    assert arrived.wait(60)
    monkeypatch.setattr(eviction, "_files", slowly)
    with pytest.raises(StorageError, match="does not fit"):
        open_cache(second, b)
    assert parts_in(second, "a") > 0
    assert parts_in(second, "b") == 0
    monkeypatch.undo()
    open_cache(second, b)
    assert parts_in(second, "a") < parts_in(second, "b")


def test_downloaders_killed_at_any_moment_never_leave_a_wrong_file(bucket, tmp_path):
    manifest, random = manifest_of(bucket, "a"), np.random.default_rng(1)
    mirror = LocalMirror(bucket, tmp_path / "mirror")
    for _ in range(6):
        with holding(mirror, manifest, tmp_path) as (child, _, _):
            wait_until((tmp_path / "mirror/locks").exists, "the first lock")
            time.sleep(float(random.random()) * 0.05)
            child.kill()
        for path in (tmp_path / "mirror").rglob("*.mdb"):
            assert path.read_bytes() == (tmp_path / "bucket/a/parts" / path.name).read_bytes()
        shutil.rmtree(tmp_path / "mirror")
    again = LocalMirror(bucket, tmp_path / "mirror")
    open_cache(again, manifest)
    assert is_whole(again, bucket, manifest)


# Folders.


def test_a_mirror_that_vanishes_while_it_is_filled_is_filled_or_one_error(bucket, tmp_path):
    manifest, removed = manifest_of(bucket, "a"), []

    def on_get(name):
        if name.endswith(".mdb") and not removed:
            removed.append(name)
            shutil.rmtree(tmp_path / "mirror", ignore_errors=True)

    mirror = LocalMirror(Watched(bucket, on_get), tmp_path / "mirror")
    with contextlib.suppress(StorageError):
        open_cache(mirror, manifest)
    assert removed
    again = LocalMirror(bucket, tmp_path / "mirror")
    open_cache(again, manifest)
    assert is_whole(again, bucket, manifest)


def test_a_training_run_goes_on_over_a_mirror_that_is_deleted(bucket, tmp_path):
    storage = yogadl.open_storage(bucket.url, mirror=tmp_path / "mirror")
    ref = storage.fetch("a", "1")
    found = []
    for number, batch in enumerate(ref.stream(shuffle=True, shuffle_seed=3).batch(100)):
        if number == 3:
            shutil.rmtree(tmp_path / "mirror")
        found += batch["i"].tolist()
        assert np.array_equal(batch["row"], rows()["row"][batch["i"]])
    assert sorted(found) == list(range(RECORDS))
    assert np.array_equal(storage.fetch("a", "1").gather(range(RECORDS))["row"], rows()["row"])


# Disks.


def fill_a_small_disk(bucket, folder, is_foreseen):
    """Bring a cache to a disk without room, then with; return what was said."""
    mount(folder, "100k")
    mirror, manifest = LocalMirror(bucket, folder / "mirror"), manifest_of(bucket, "a")
    if not is_foreseen:  # somebody else fills the disk while the cache is on its way
        mirrored_cache.evict_for = lambda *_: None
    with pytest.raises(StorageError) as caught:
        open_cache(mirror, manifest)
    assert litter_in(mirror) == []
    mount(folder, "64m")
    open_cache(mirror, manifest)
    assert is_whole(mirror, bucket, manifest)
    return str(caught.value)


def bring_three_where_two_fit(bucket, folder):
    """Bring caches one after the other; return how many parts of each are there in the end."""
    manifests = {name: manifest_of(bucket, name) for name in "abc"}
    mount(folder, int(2.6 * manifests["a"].size_bytes))
    mirror = LocalMirror(bucket, folder / "mirror")
    for number, manifest in enumerate(manifests.values()):
        open_cache(mirror, manifest).close()
        assert is_whole(mirror, bucket, manifest)
        last_used(mirror, manifest, 1000 + number)
    return parts_in(mirror, "a"), parts_in(mirror, "b"), parts_in(mirror, "c")


@needs_mount
@pytest.mark.parametrize(("is_foreseen", "message"), [(True, "the disk has"), (False, "the disk is full")])
def test_a_full_disk_is_one_error_and_with_room_all_is_well(bucket, tmp_path, is_foreseen, message):
    assert message in on_a_small_disk(fill_a_small_disk, bucket, tmp_path / "disk", is_foreseen)


@needs_mount
def test_without_a_limit_the_disk_is_the_limit_and_the_oldest_cache_goes(tmp_path):
    bucket = bucket_with(tmp_path / "bucket", "a", "b", "c")
    a, b, c = on_a_small_disk(bring_three_where_two_fit, bucket, tmp_path / "disk")
    assert a < b == c
