"""Locks of versions that are gone are removed, and never while a process takes or holds one."""

import contextlib
import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import Process, in_child, processes

import yogadl
from yogadl.errors import DatasetNotFoundError
from yogadl.storage import CacheStorage

KINDS = ["folder", "shared"]
BUILDERS = 3
ROUNDS = 25


def opened(root: Path, kind: str = "folder") -> CacheStorage:
    return yogadl.open_storage(root, shared=kind == "shared")


def lock_path(root: Path, version: str, ending: str = ".lock") -> Path:
    return root / "data/locks" / f"{hashlib.sha256(version.encode()).hexdigest()[:24]}{ending}"


def locks(root: Path) -> set[str]:
    """Return the names of the locks of versions; that of the whole dataset stays."""
    return {path.name for path in (root / "data/locks").iterdir()} - {lock_path(root, "").name}


def prune(root: Path) -> None:
    opened(root).prune(grace_s=0)


def is_held(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@pytest.mark.parametrize("kind", KINDS)
def test_locks_of_versions_that_are_gone_are_removed(tmp_path: Path, kind: str) -> None:
    storage = opened(tmp_path)
    for number in range(7):
        storage.submit([number], "data", f"v{number}")
        if number != 3:
            storage.delete("data", f"v{number}")
    assert len(locks(tmp_path)) == 14
    pruner = opened(tmp_path, kind)
    pruner.prune()  # all are young
    assert len(locks(tmp_path)) == 14
    foretold = pruner.prune(grace_s=0, dry_run=True).files
    assert sum("/locks/" in name for name in foretold) == 12
    assert sorted(pruner.prune(grace_s=0).files) == sorted(foretold)
    assert len(locks(tmp_path)) == 2  # by one call, with the manifests in the trash
    assert pruner.prune(grace_s=0).files == ()
    assert storage.fetch("data", "v3")[0] == 3
    storage.submit([5], "data", "v5")
    assert storage.fetch("data", "v5")[0] == 5


def test_locks_of_versions_in_the_trash_or_begun_stay(tmp_path: Path) -> None:
    storage = opened(tmp_path)
    for version in ("begun", "deleted", "gone"):
        storage.submit([1], "data", version)
    for version in ("begun", "gone"):
        storage.delete("data", version)
    storage.begin("data", "begun", partitions=2).write(0, [1])
    storage.delete("data", "deleted")
    os.utime(lock_path(tmp_path, "deleted"), (0, 0))
    storage.prune(grace_s=3600)  # the trash is younger than the lock, and stays
    assert lock_path(tmp_path, "deleted").exists()
    storage.undelete("data", "deleted")
    storage.delete("data", "deleted")
    storage.prune(grace_s=0)
    assert {Path(name).stem for name in locks(tmp_path)} == {lock_path(tmp_path, "begun").stem}


def test_what_a_killed_builder_said_of_itself_goes_with_its_lock(tmp_path: Path) -> None:
    program = (
        "import os, sys, yogadl\n"
        "def killed():\n"
        "    yield 1\n"
        "    os._exit(9)\n"
        "yogadl.open_storage(sys.argv[1]).submit(killed, 'data', 'killed')\n"
    )
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)], timeout=60).returncode == 9
    assert {name.partition(".")[2] for name in locks(tmp_path)} == {"lock", "turn", "holder"}
    storage = opened(tmp_path)
    storage.prune(unfinished=True)
    storage.prune(grace_s=0)
    assert not locks(tmp_path)


class _BreaksOff:
    """A source that a build can go on with."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, number: int) -> float:
        return 1.0 // (90 - number)


def test_the_locks_of_a_build_that_failed_go_with_its_files(tmp_path: Path) -> None:
    storage = opened(tmp_path)
    with pytest.raises(ZeroDivisionError):
        storage.submit(_BreaksOff(), "data", "1", build=yogadl.BuildOptions(part_bytes=80))
    path = lock_path(tmp_path, "1")
    os.utime(path, (0, 0))
    storage.prune(grace_s=3600)
    assert len(storage.unfinished()) == 1
    assert path.exists()
    storage.prune(grace_s=0)
    assert not storage.unfinished()
    assert not locks(tmp_path)


@pytest.mark.parametrize("ending", [".lock", ".turn"])
def test_a_lock_that_is_removed_while_it_is_taken_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    storage = opened(tmp_path)
    storage.submit([1], "data", "1")
    storage.delete("data", "1")
    path = lock_path(tmp_path, "1", ending)
    flock, removed = fcntl.flock, []

    def flock_late(descriptor: int, operation: int) -> None:
        if not removed and os.path.samestat(os.fstat(descriptor), path.stat()):
            removed.append(path)
            in_child(prune, tmp_path)
            assert not path.exists()
        flock(descriptor, operation)

    def source() -> Iterator[int]:
        assert is_held(lock_path(tmp_path, "1"))
        yield 2

    monkeypatch.setattr(fcntl, "flock", flock_late)
    storage.submit(source, "data", "1")
    assert removed
    assert storage.fetch("data", "1")[0] == 2


def build_and_delete(root: Path) -> None:
    """Build and delete versions again and again; fail if another process does so at the same time."""
    storage = opened(root / "caches")
    for number in range(ROUNDS):
        version = str(number % 2)
        at_work = root / f"at work on {version}"

        def source(version: str = version, at_work: Path = at_work) -> Iterator[int]:
            os.close(os.open(at_work, os.O_CREAT | os.O_EXCL))
            assert is_held(lock_path(root / "caches", version))
            yield 1
            assert is_held(lock_path(root / "caches", version))
            at_work.unlink()

        storage.submit(source, "data", version)
        with contextlib.suppress(DatasetNotFoundError):  # another builder has
            storage.delete("data", version)


def prune_until_told(root: Path) -> int:
    """Return how many locks were removed."""
    storage, removed = opened(root / "caches"), 0
    while not (root / "over").exists():
        removed += sum("/locks/" in name for name in storage.prune(grace_s=0).files)
    return removed


def test_builders_beside_prune_are_one_at_a_time(tmp_path: Path) -> None:
    with Process(prune_until_told, tmp_path) as pruner:
        with processes(build_and_delete, [(tmp_path,)] * BUILDERS) as builders:
            for builder in builders:
                builder.result()
        (tmp_path / "over").touch()
        assert pruner.result() > 0
