"""Builds that fail or are killed: what nobody can go on with goes at once; the rest is told, and freed."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inside import BucketRoot
from kinds import KINDS, open_kind
from processes import fork, in_child, until, wait, wait_until

import yogadl
from yogadl.storage import CacheStorage

RECORDS = 400
PART_BYTES = 20_000  # some fifty records
STOPPED_AT = 300


def rows(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 255, (RECORDS, 400), np.uint8)


def records(seed: int, then: Callable[[], None]) -> Iterator[dict[str, Any]]:
    """Yield records that differ by seed, and end badly."""
    for number, row in enumerate(rows(seed)):
        if number == STOPPED_AT:
            then()
        yield {"row": row}


class Items:
    """A source that a build can go on with, which ends badly."""

    def __init__(self, seed: int, then: Callable[[], None]) -> None:
        self.rows, self.then = rows(seed), then

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == STOPPED_AT:
            self.then()
        return {"row": self.rows[index]}


def fail() -> None:
    raise ConnectionResetError("gone")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_once_noted(kind: str, root: Path, version: str) -> None:
    """Die when most of what was read before is noted, which other threads do, and these have no more to do.

    In the middle of a write they would leave that, too, which nobody takes for a day.
    """
    storage, before, since = open_kind(kind, root), 0, time.monotonic()
    for _ in until(60, "the parts of what was read"):
        left = {left.version: left.size_bytes for left in storage.unfinished()}
        if left.get(version, 0) != before:
            before, since = left[version], time.monotonic()
        if before > STOPPED_AT // 2 * 400 and time.monotonic() - since > 0.5:
            die()


def nothing() -> None:
    pass


def fail_to_build(storage: CacheStorage, source: Any, version: str = "1", **options: Any) -> None:
    with pytest.raises(ConnectionResetError):
        storage.submit(source, "data", version, build=yogadl.BuildOptions(part_bytes=PART_BYTES), **options)


def build_and_die(kind: str, root: Path, source: type | None, version: str, workers: int) -> None:
    end = die if workers > 1 else partial(die_once_noted, kind, root, version)
    made = (Items if source is Items else records)(0, end)
    open_kind(kind, root).submit(
        made, "data", version, build=yogadl.BuildOptions(part_bytes=PART_BYTES), workers=workers
    )


def wait_for_death(*args: Any) -> None:
    assert wait(fork(build_and_die, *args)) != 0


def kill_a_build(
    kind: str, root: Path, source: type | None = None, version: str = "1", workers: int = 1
) -> None:
    in_child(wait_for_death, kind, root, source, version, workers)
    storage = open_kind(kind, root)
    for _ in until(200, "the right to build to go with its holder"):
        if not storage._backend.coordinator.has_builder("data"):
            return


def a_day_goes_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BucketRoot, "now", lambda _: time.time() + 86_401)


def held(root: Path) -> int:
    """Return how many bytes a storage holds below it, and its mirror but for what is for readers."""
    found = (path for path in root.rglob("*") if path.is_file())
    names = {path: path.relative_to(root).parts for path in found}
    return sum(
        path.stat().st_size
        for path, folders in names.items()
        if {"parts", "tables", "builds"} & set(folders) and folders[:2] != ("mirror", "caches")
    )


@pytest.mark.parametrize("kind", KINDS)
def test_an_iterator_that_fails_again_and_again_leaves_nothing(tmp_path: Path, kind: str) -> None:
    storage = open_kind(kind, tmp_path)
    for seed in range(3):
        fail_to_build(storage, records(seed, fail))
        assert held(tmp_path) == 0
    assert storage.unfinished() == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("forked_workers")
def test_what_workers_wrote_of_other_data_goes_with_the_next_build_that_is_published(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = open_kind(kind, tmp_path)
    for seed in range(2 if kind == "folder" else 1):
        fail_to_build(storage, Items(seed, fail), workers=2)
        assert [left.version for left in storage.unfinished()] == ["1"]
    if kind != "folder":  # who was taken for dead may wake up
        a_day_goes_by(monkeypatch)
    storage.submit(Items(2, nothing), "data", "1", workers=2)
    assert storage.unfinished() == []
    parts = [path for path in tmp_path.rglob("data/parts/*.mdb") if "mirror" not in path.parts]
    assert len(parts) == storage.info("data", "1").parts
    assert np.array_equal(storage.fetch("data", "1").gather(range(RECORDS))["row"], rows(2))


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_killed_iterators_build_held_goes_with_the_next_build_of_the_dataset(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_a_build(kind, tmp_path, version="old")
    assert held(tmp_path) > STOPPED_AT // 2 * 400
    storage = open_kind(kind, tmp_path)
    if kind != "folder":  # who was taken for dead may wake up
        fail_to_build(storage, records(1, fail))
        assert [left.version for left in storage.unfinished()] == ["old"]
        a_day_goes_by(monkeypatch)
    storage.submit(records(1, nothing), "data", "1", build=yogadl.BuildOptions(part_bytes=PART_BYTES))
    assert storage.unfinished() == []
    size_bytes = storage.info("data", "1").size_bytes
    assert size_bytes <= held(tmp_path) < size_bytes + RECORDS * 400 // 10
    storage.verify("data", "1")


def test_what_killed_workers_held_goes_with_the_next_build(tmp_path: Path) -> None:
    kill_a_build("folder", tmp_path, Items, workers=2)
    storage = open_kind("folder", tmp_path)
    storage.submit(rows(1), "data", "1")
    assert storage.unfinished() == []
    assert held(tmp_path) < 1.1 * storage.info("data", "1").size_bytes


@pytest.mark.parametrize("kind", KINDS)
def test_a_build_that_can_be_gone_on_with_is_gone_on_with_until_its_source_has_changed(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = open_kind(kind, tmp_path)
    with caplog.at_level("INFO", "yogadl"):
        for _ in range(2):
            fail_to_build(storage, Items(0, fail))
    assert "continuing at record" in caplog.text
    before = held(tmp_path)
    fail_to_build(storage, Items(1, fail))
    if kind == "folder":
        assert held(tmp_path) < 1.1 * before  # and not twice as much
    else:
        a_day_goes_by(monkeypatch)
    storage.submit(Items(1, nothing), "data", "1", build=yogadl.BuildOptions(part_bytes=PART_BYTES))
    assert held(tmp_path) < 1.1 * storage.info("data", "1").size_bytes
    assert np.array_equal(storage.fetch("data", "1").gather(range(RECORDS))["row"], rows(1))


@pytest.mark.parametrize("kind", KINDS)
def test_a_build_that_fails_leaves_the_parts_that_others_have_of_the_same_bytes(
    tmp_path: Path, kind: str
) -> None:
    storage = open_kind(kind, tmp_path)
    storage.submit(records(0, nothing), "data", "1", build=yogadl.BuildOptions(part_bytes=PART_BYTES))
    storage.submit(records(1, nothing), "data", "deleted", build=yogadl.BuildOptions(part_bytes=PART_BYTES))
    storage.delete("data", "deleted")
    fail_to_build(storage, Items(2, fail), "to be gone on with")
    for seed in range(3):
        fail_to_build(storage, records(seed, fail), "2")
    storage.verify("data", "1")
    storage.undelete("data", "deleted")
    storage.verify("data", "deleted")
    (left,) = storage.unfinished()
    assert left.version == "to be gone on with"
    assert left.size_bytes > STOPPED_AT // 2 * 400


def test_a_build_that_fails_while_another_version_is_built_leaves_its_parts_to_that_build(
    tmp_path: Path,
) -> None:
    storage = open_kind("folder", tmp_path)

    def fail_beside() -> None:
        fail_to_build(storage, records(0, fail), "2")
        assert [left.version for left in storage.unfinished()] == ["1", "2"]

    storage.submit(records(0, fail_beside), "data", "1", build=yogadl.BuildOptions(part_bytes=PART_BYTES))
    storage.verify("data", "1")
    assert storage.unfinished() == []
    assert held(tmp_path) < 1.1 * storage.info("data", "1").size_bytes


@pytest.mark.parametrize("kind", KINDS)
def test_prune_of_what_is_unfinished_takes_just_that(tmp_path: Path, kind: str) -> None:
    storage = open_kind(kind, tmp_path)
    storage.submit(records(1, nothing), "data", "1", build=yogadl.BuildOptions(part_bytes=PART_BYTES))
    storage.submit(records(2, nothing), "data", "1", build=yogadl.BuildOptions(part_bytes=PART_BYTES))
    tasks = storage.begin("data", "3", partitions=2, run="job")
    tasks.write(0, records(3, nothing), part_bytes=PART_BYTES)
    before = held(tmp_path)
    kill_a_build(kind, tmp_path, Items, "2")
    fail_to_build(storage, Items(4, fail), "4")
    two, three, four = sorted(storage.unfinished(), key=lambda left: left.version or "")
    assert (two.version, three.version, four.version) == ("2", "3", "4")
    assert two.size_bytes + four.size_bytes <= held(tmp_path) - before
    pruned = storage.prune(unfinished=True, dry_run=True)
    assert storage.prune(unfinished=True) == pruned
    assert two.size_bytes + four.size_bytes == pruned.size_bytes

    def is_gone() -> bool:
        storage.prune(unfinished=True)
        return held(tmp_path) <= before

    # What beside the killed build said that it lives may write once more.
    wait_until(is_gone, "nothing to be left of either")
    tasks.write(1, records(5, nothing), part_bytes=PART_BYTES)
    tasks.commit()
    storage.undelete("data", "1")
    for version in "1", "3":
        storage.verify("data", version)


@pytest.mark.parametrize("kind", KINDS)
def test_prune_of_what_is_unfinished_leaves_a_build_alone_that_runs(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    storage = open_kind(kind, tmp_path)

    def prune() -> None:
        assert storage.prune(unfinished=True, dry_run=True).files == ()
        assert storage.prune(unfinished=True).files == ()

    storage.submit(records(0, prune), "data", "1", build=yogadl.BuildOptions(part_bytes=PART_BYTES))
    assert "another process builds or prunes it" in caplog.text
    storage.verify("data", "1")


@pytest.mark.parametrize("do", ["build", "prune"])
def test_what_a_killed_build_for_a_bucket_left_in_the_mirror_goes(tmp_path: Path, do: str) -> None:
    kill_a_build("bucket", tmp_path)
    assert len([path for path in (tmp_path / "mirror" / "builds").iterdir() if path.is_dir()]) == 1
    storage = open_kind("bucket", tmp_path)
    if do == "prune":
        storage.prune(unfinished=True)
    else:
        storage.submit([1], "other", "1")
    assert list((tmp_path / "mirror" / "builds").iterdir()) == []


def test_prune_leaves_what_builds_in_the_mirror_while_its_process_lives(tmp_path: Path) -> None:
    storage = open_kind("bucket", tmp_path)
    storage.submit(
        records(0, lambda: storage.prune() and None),
        "data",
        "1",
        build=yogadl.BuildOptions(part_bytes=PART_BYTES),
    )
    storage.verify("data", "1")
