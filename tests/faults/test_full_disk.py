"""A disk that is full while a cache is built: an error that says so, nothing half-done, and no crash."""

import contextlib
import gc
import os
import resource
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inside import Lease, LocalBucket, LocalMirror, Source, _build, open_source, remote_backend
from processes import in_child, mounting

import yogadl
from yogadl.cli import main
from yogadl.errors import DatasetNotFoundError, StorageError
from yogadl.storage import CacheStorage

DISK_BYTES = 8 * 2**20


def mount(folder: Path, size_bytes: int = DISK_BYTES) -> None:
    """Put a small file system over a folder, seen by this process and its children alone."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)], check=True)


def free_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def fill(folder: Path, left_bytes: int) -> Path:
    """Fill the disk but for so much."""
    ballast = folder / "ballast"
    descriptor = os.open(ballast, os.O_CREAT | os.O_WRONLY)
    os.posix_fallocate(descriptor, 0, max(1, free_bytes(folder) - left_bytes))
    os.close(descriptor)
    return ballast


def rows(megabytes: int) -> np.ndarray:
    return np.arange(megabytes * 2**18, dtype=np.int32).reshape(-1, 256)


def texts(megabytes: int) -> Iterator[Any]:
    return ({"text": bytes([i % 256]) * (5000 + i % 7), "i": i} for i in range(megabytes * 200))


SOURCES = {
    "arrays in one part": lambda megabytes: (rows(megabytes), None),
    "arrays in parts": lambda megabytes: (rows(megabytes), 2**20),
    "an iterator in one part": lambda megabytes: (texts(megabytes), None),
    "an iterator in parts": lambda megabytes: (texts(megabytes), 2**20),
    "items": lambda megabytes: (list(rows(megabytes)), 2**20),
}


def unfinished(folder: Path) -> list[str]:
    """Return what a failed build left but for what is sealed and the notes of that."""
    notes = ("ballast", "version")
    below = (path for path in folder.rglob("*") if path.is_file() and path.name not in notes)
    return [str(path) for path in below if path.parent.name not in ("parts", "tables", "one", "locks")] + [
        str(path) for path in folder.rglob("*") if path.suffix == ".tmp" or path.name.startswith("part-")
    ]


def check_refused(
    folder: Path, source: Any, part_bytes: int | None, match: str | None = "disk is full"
) -> None:
    storage = yogadl.open_storage(folder)
    with pytest.raises(StorageError, match=match):
        storage.submit(
            source, "data", "1", build=yogadl.BuildOptions(part_bytes=part_bytes, check_space=False)
        )
    assert storage.versions("data") == []
    with pytest.raises(DatasetNotFoundError):
        storage.fetch("data", "1")
    assert unfinished(folder) == []


def check_built(folder: Path, source: Any, part_bytes: int | None, records: int) -> None:
    storage = yogadl.open_storage(folder)
    storage.submit(source, "data", "1", build=yogadl.BuildOptions(part_bytes=part_bytes))
    assert storage.verify("data", "1").records == records


def build_larger_than_the_disk(folder: Path, name: str) -> None:
    mount(folder)
    make = SOURCES[name]
    check_refused(folder, *make(12))
    check_refused(folder, *make(12))
    subprocess.run(["mount", "-o", f"remount,size={4 * DISK_BYTES}", str(folder)], check=True)
    source, part_bytes = make(12)
    check_built(folder, source, part_bytes, 2400 if "iterator" in name else 12 * 1024)


def build_with_less_and_less_room(folder: Path, steps: int) -> int:
    """Build a small cache with room for ever more of it, so that the disk is full at every step in turn."""
    mount(folder)
    storage = yogadl.open_storage(folder)
    page_bytes = os.statvfs(folder).f_frsize
    data = rows(1)[:200]
    failed = 0
    for pages in range(steps):
        ballast = fill(folder, pages * page_bytes)
        try:
            storage.submit(data, "data", "1", build=yogadl.BuildOptions(part_bytes=50_000, check_space=False))
        except StorageError as error:
            assert "disk is full" in str(error), (pages, error)  # noqa: PT017
            assert storage.versions("data") == [], pages
            assert unfinished(folder) == [], pages
            failed += 1
        else:
            storage.verify("data", "1")
            storage.delete("data", "1")
        ballast.unlink()
        if pages % 8 == 0:
            check_built(folder, data, 50_000, 200)
            storage.delete("data", "1")
        storage.prune(grace_s=0)
        left = [path for path in folder.rglob("*") if path.is_file() and path.parent.name != "locks"]
        assert left == [], left
    return failed


def replace_on_a_full_disk(folder: Path) -> None:
    mount(folder)
    check_built(folder, rows(4), None, 4096)
    storage = yogadl.open_storage(folder)
    before = storage.fetch("data", "1")
    for part_bytes in (None, 2**20):
        with pytest.raises(StorageError, match="disk is full"):
            storage.submit(rows(5), "data", "1", build=yogadl.BuildOptions(part_bytes=part_bytes))
        assert storage.fetch("data", "1").fingerprint == before.fingerprint
        storage.verify("data", "1")
    assert before[4095].tolist() == rows(4)[4095].tolist()


def build_with_small_files_only(folder: Path, part_bytes: int | None, limit_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, resource.RLIM_INFINITY))
    check_refused(folder, rows(6), part_bytes, None)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    check_built(folder, rows(6), part_bytes, 6 * 1024)


class Watched(Source):
    """Columns, and whether any record of them was read."""

    can_start_anywhere = True
    has_final_spec = True

    def __init__(self, columns: Any) -> None:
        self._source = open_source(columns)
        self.spec, self.length = self._source.spec, self._source.length
        self.is_read = False

    def chunks(self, start: int = 0) -> Iterator[Any]:
        self.is_read = True
        return self._source.chunks(start)


def build_too_large_to_fit(folder: Path, workers: int) -> str:
    mount(folder)
    storage = yogadl.open_storage(folder)
    count = 1_000_000
    source = Watched({"row": np.broadcast_to(np.arange(256), (count, 256)), "text": ["varies"] * count})
    with pytest.raises(StorageError) as caught:
        storage.submit(source, "data", "1", build=yogadl.BuildOptions(part_bytes=2**20), workers=workers)
    assert not source.is_read
    assert unfinished(folder) == []
    assert storage.versions("data") == []
    return str(caught.value)


def build_with_large_records_first(folder: Path) -> None:
    mount(folder)
    _build._LOG_AFTER_S = 0.0
    sizes = [500_000] * 8 + [10] * 2000
    sources: list[Any] = [
        [{"image": bytes(size), "label": number} for number, size in enumerate(sizes)],
        [np.zeros(size, np.uint8) for size in sizes],
        {"image": [np.zeros(size, np.uint8) for size in sizes], "label": np.arange(len(sizes))},
    ]
    for source in sources:
        check_built(folder, source, None, len(sizes))
        yogadl.open_storage(folder).delete("data", "1")
        yogadl.open_storage(folder).prune(grace_s=0)


def build_what_fits_nevertheless(folder: Path) -> None:
    mount(folder)
    storage = yogadl.open_storage(folder)
    # Equal parts are stored once, which nobody knows beforehand.
    equal = np.zeros((20 * 1024, 1024), np.uint8)
    with pytest.raises(StorageError, match="check_space=False"):
        storage.submit(equal, "data", "1", build=yogadl.BuildOptions(part_bytes=2**19))
    storage.submit(equal, "data", "1", build=yogadl.BuildOptions(part_bytes=2**19, check_space=False))
    cached = storage.cacheable("data", "2", build=yogadl.BuildOptions(part_bytes=2**19, check_space=False))(
        lambda: equal
    )
    assert cached().fingerprint == storage.fetch("data", "1").fingerprint
    script = folder / "data.py"
    script.write_text("import numpy\ndef equal():\n    return numpy.zeros((20 * 1024, 1024), 'uint8')\n")
    command = ["build", f"{script}:equal", "other", "1", "-s", str(folder), "--part-bytes", "500KB"]
    assert main(command) == 1
    assert main([*command, "--no-space-check"]) == 0
    assert storage.verify("other", "1").records == len(equal)


def build_the_same_again(folder: Path) -> None:
    mount(folder)
    storage = yogadl.open_storage(folder)
    for _ in range(2):
        storage.submit(rows(5), "data", "1", build=yogadl.BuildOptions(part_bytes=2**19))
    assert storage.verify("data", "1").records == 5 * 1024


def build_into_a_bucket_by_a_small_disk(folder: Path) -> None:
    _build._LOG_AFTER_S = 0.0
    disk = folder / "disk"
    disk.mkdir()
    mount(disk)
    bucket = LocalBucket(folder / "bucket")
    storage = CacheStorage(remote_backend(bucket, LocalMirror(bucket, disk / "mirror", "2MB"), Lease()))
    storage.submit(rows(24), "data", "1", build=yogadl.BuildOptions(part_bytes=2**20))
    assert sum(entry.size_bytes for entry in bucket.list("data/parts/")) > 24 * 2**20


def mirrored(folder: Path) -> tuple[CacheStorage, LocalMirror]:
    """Open a storage in a bucket with a mirror on a small disk that a cache in it all but fills."""
    disk = folder / "disk"
    disk.mkdir()
    mount(disk, 4 * DISK_BYTES)
    bucket = LocalBucket(folder / "bucket")
    mirror = LocalMirror(bucket, disk / "mirror")
    storage = CacheStorage(remote_backend(bucket, mirror, Lease()))
    storage.submit(rows(24), "old", "1", build=yogadl.BuildOptions(part_bytes=2**20))
    storage.fetch("old", "1")
    gc.collect()
    fill(disk, 2**18)
    return storage, mirror


def build_where_the_mirror_fills_the_disk(folder: Path, name: str) -> None:
    storage, mirror = mirrored(folder)
    source, part_bytes = SOURCES[name](40)
    storage.submit(source, "new", "1", build=yogadl.BuildOptions(part_bytes=part_bytes or 2**22))
    assert storage.verify("new", "1").parts > 8
    assert len(mirror.folder.names("old", ".mdb")) < 24


def build_where_all_of_the_mirror_is_read(folder: Path) -> str:
    storage, mirror = mirrored(folder)
    ref = storage.fetch("old", "1")
    with pytest.raises(StorageError) as caught:
        storage.submit(rows(8), "new", "1", build=yogadl.BuildOptions(part_bytes=2**20))
    assert ref[24 * 1024 - 1].tolist() == rows(24)[-1].tolist()
    assert len(mirror.folder.names("old", ".mdb")) >= 24
    assert not list((mirror.location.builds).iterdir())
    del ref
    gc.collect()
    storage.submit(rows(8), "new", "1", build=yogadl.BuildOptions(part_bytes=2**20))
    assert storage.verify("new", "1").records == 8 * 1024
    return str(caught.value)


def use_up(folder: Path, of: str) -> None:
    """Leave no room on the disk: of bytes, or of files."""
    if of == "bytes":
        while free_bytes(folder):
            with (folder / "ballast").open("ab") as ballast, contextlib.suppress(OSError):
                os.posix_fallocate(ballast.fileno(), ballast.tell(), free_bytes(folder))
    else:
        for _ in range(os.statvfs(folder).f_favail):
            (folder / f"ballast-{secrets.token_hex(8)}").touch()


def free_a_full_disk(folder: Path, shared: bool, of: str) -> None:
    """Delete and prune where nothing can be written, and build again."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,nr_inodes=300", "tmpfs", str(folder)], check=True)
    storage = yogadl.open_storage(folder / "caches", shared=shared)
    storage.submit(rows(3), "data", "1", build=yogadl.BuildOptions(part_bytes=2**18))
    storage.submit(rows(2)[::-1].copy(), "data", "2", build=yogadl.BuildOptions(part_bytes=2**20))
    use_up(folder, of)
    with pytest.raises(OSError, match="No space left"), (folder / "more").open("wb") as file:
        file.write(bytes(4096))
    storage = yogadl.open_storage(folder / "caches", shared=shared)
    storage.delete("data", "1")
    storage.undelete("data", "1")
    assert storage.verify("data", "1").records == 3 * 1024
    storage.delete("data", "1")
    before = os.statvfs(folder)
    pruned = storage.prune(grace_s=0)
    after = os.statvfs(folder)
    assert pruned.size_bytes > 3 * 2**20
    assert after.f_bavail > before.f_bavail
    assert after.f_favail > before.f_favail
    assert storage.versions("data") == ["2"]
    assert storage.verify("data", "2").records == 2 * 1024
    storage.submit(rows(1), "data", "3")
    assert storage.verify("data", "3").records == 1024


def free_a_disk_that_others_fill_again(folder: Path, of: str) -> None:
    """Delete, undelete and prune, with no build in between, and each time without any room left."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,nr_inodes=300", "tmpfs", str(folder)], check=True)
    storage = yogadl.open_storage(folder / "caches", shared=True)
    for version in range(1, 5):
        storage.submit(rows(1) + version, "data", str(version), build=yogadl.BuildOptions(part_bytes=2**16))
    reserve = folder / "caches" / ".yogadl" / "reserve"
    for first, second in ("12", "34"):
        use_up(folder, of)
        storage.prune(grace_s=0, dry_run=True)
        assert len(list(reserve.iterdir())) >= 30
        use_up(folder, of)
        storage.delete("data", first)
        use_up(folder, of)
        storage.undelete("data", first)
        storage.delete("data", first)
        storage.delete("data", second)
        assert len(storage.prune(grace_s=0, dry_run=True).files) > 2 * 32
        assert storage.prune(grace_s=0).size_bytes > 2 * 2**20
        assert len(list(reserve.iterdir())) == 32
    assert storage.versions("data") == []


needs_mount = pytest.mark.skipif(mounting() is None, reason="this user may not mount a small disk")


@needs_mount
@pytest.mark.parametrize("name", SOURCES)
def test_a_build_larger_than_the_disk_says_so_and_works_once_there_is_room(tmp_path: Path, name: str) -> None:
    in_child(build_larger_than_the_disk, tmp_path, name, prefix=mounting())


@needs_mount
def test_a_disk_that_fills_up_at_any_step_of_a_build_leaves_nothing_half_done(tmp_path: Path) -> None:
    failed = in_child(build_with_less_and_less_room, tmp_path, 120, prefix=mounting())
    assert 60 < failed < 118


@needs_mount
def test_a_version_stays_when_there_is_no_room_for_its_replacement(tmp_path: Path) -> None:
    in_child(replace_on_a_full_disk, tmp_path, prefix=mounting())


@pytest.mark.parametrize(("part_bytes", "limit_bytes"), [(None, 2**20), (2**20, 2**19), (2**20, 2**12)])
def test_a_limit_on_the_size_of_files_is_an_error_of_the_storage(
    tmp_path: Path, part_bytes: int | None, limit_bytes: int
) -> None:
    in_child(build_with_small_files_only, tmp_path, part_bytes, limit_bytes)


@needs_mount
@pytest.mark.parametrize("workers", [1, 2])
def test_a_build_that_cant_fit_is_refused_at_once_with_the_sizes_and_the_way_out_in_the_message(
    tmp_path: Path, workers: int
) -> None:
    message = in_child(build_too_large_to_fit, tmp_path, workers, prefix=mounting())
    assert "can't fit" in message
    assert "2.0 GB at least" in message
    assert "MB free" in message
    assert "check_space=False" in message
    assert "--no-space-check" in message


@needs_mount
def test_a_build_that_fits_is_not_stopped_because_its_first_records_are_large(tmp_path: Path) -> None:
    in_child(build_with_large_records_first, tmp_path, prefix=mounting())


@needs_mount
def test_a_build_that_seems_too_large_is_done_if_the_user_says_so(tmp_path: Path) -> None:
    in_child(build_what_fits_nevertheless, tmp_path, prefix=mounting())


@needs_mount
def test_a_version_is_built_again_with_no_room_for_a_second_one(tmp_path: Path) -> None:
    in_child(build_the_same_again, tmp_path, prefix=mounting())


@needs_mount
@pytest.mark.parametrize("shared", [False, True], ids=["folder", "shared folder"])
@pytest.mark.parametrize("of", ["bytes", "files"])
def test_a_disk_that_is_full_to_the_last_byte_or_file_is_freed_by_delete_undelete_and_prune(
    tmp_path: Path, shared: bool, of: str
) -> None:
    in_child(free_a_full_disk, tmp_path, shared, of, prefix=mounting())


@needs_mount
@pytest.mark.parametrize("of", ["bytes", "files"])
def test_a_disk_that_others_fill_again_is_freed_though_nobody_builds_in_between(
    tmp_path: Path, of: str
) -> None:
    in_child(free_a_disk_that_others_fill_again, tmp_path, of, prefix=mounting())


@needs_mount
def test_a_build_into_a_bucket_may_be_larger_than_the_disk(tmp_path: Path) -> None:
    in_child(build_into_a_bucket_by_a_small_disk, tmp_path, prefix=mounting())


@needs_mount
@pytest.mark.parametrize("name", SOURCES)
def test_a_build_into_a_bucket_has_the_room_that_caches_in_the_mirror_take(tmp_path: Path, name: str) -> None:
    in_child(build_where_the_mirror_fills_the_disk, tmp_path, name, prefix=mounting())


@needs_mount
def test_a_build_into_a_bucket_takes_no_room_from_readers_and_says_so(tmp_path: Path) -> None:
    message = in_child(build_where_all_of_the_mirror_is_read, tmp_path, prefix=mounting())
    assert "the disk is full" in message
    assert "MB are being read" in message
    assert "mirror=" in message
