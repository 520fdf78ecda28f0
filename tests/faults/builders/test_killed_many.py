"""Builds by many processes, any of which is killed: what is written counts, and the cache is the same."""

import functools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kinds import KINDS, open_kind
from processes import Process, fork, wait, wait_until

import yogadl
from yogadl.storage import CacheStorage

RECORDS = 1280
PARTITIONS = 40
EACH = RECORDS // PARTITIONS


def say(folder: Path, what: object) -> None:
    with (folder / "read").open("a") as file:
        os.write(file.fileno(), f"{what}\n".encode())  # in one piece


def said(folder: Path) -> list[int]:
    path = folder / "read"
    return list(map(int, path.read_text().split())) if path.exists() else []


def row(index: int) -> np.ndarray:
    return np.arange(index, index + 64)


class Items:
    """Records with random access; while there is a file `stop`, none is read after half of them were."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> np.ndarray:
        wait_while_stopped(self.folder)
        say(self.folder, index)
        return row(index)


def read(folder: Path, number: int) -> Iterator[np.ndarray]:
    for index in range(number * EACH, (number + 1) * EACH):
        wait_while_stopped(folder)
        say(folder, index)
        yield row(index)


def wait_while_stopped(folder: Path) -> None:
    if (folder / "stop").exists() and len(said(folder)) >= RECORDS // 2:
        (folder / f"waiting-{os.getpid()}").touch()
        wait_until(lambda: not (folder / "stop").exists(), "the word to go on", 240)


def source_of(kind: str, folder: Path) -> Any:
    if kind == "partitions":
        return yogadl.partitioned.of(range(PARTITIONS), functools.partial(read, folder))
    return Items(folder)


def build(kind: str, folder: Path, source: str, workers: int) -> None:
    open_kind(kind, folder).submit(source_of(source, folder), "data", "1", workers=workers)


def check(storage: CacheStorage) -> None:
    storage.verify("data", "1")
    ref = storage.fetch("data", "1")
    assert np.array_equal(ref.gather(range(RECORDS)), [row(index) for index in range(RECORDS)])


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("folder", "partitions"),
        ("folder", "random access"),
        ("shared folder", "partitions"),
        ("bucket", "random access"),
    ],
)
def test_a_builder_that_is_killed_half_way_is_gone_on_with_by_the_next(
    tmp_path: Path, kind: str, source: str
) -> None:
    (tmp_path / "stop").touch()
    with Process(build, kind, tmp_path, source, 2) as builder:
        wait_until(lambda: len(list(tmp_path.glob("waiting-*"))) == 2, "both workers to be half way")
        builder.kill()
    (tmp_path / "stop").unlink()
    storage = open_kind(kind, tmp_path)
    storage.submit(source_of(source, tmp_path), "data", "1", workers=3)
    check(storage)
    assert len(said(tmp_path)) <= 1.1 * RECORDS
    assert storage.unfinished() == []


def test_a_builder_of_partitions_in_one_process_is_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / "stop").touch()
    with Process(build, "folder", tmp_path, "partitions", 1) as builder:
        wait_until(lambda: list(tmp_path.glob("waiting-*")), "it to be half way")
        builder.kill()
    (tmp_path / "stop").unlink()
    storage = open_kind("folder", tmp_path)
    storage.submit(source_of("partitions", tmp_path), "data", "1")
    check(storage)
    assert len(said(tmp_path)) <= RECORDS + EACH


@pytest.mark.parametrize("source", ["partitions", "random access"])
def test_a_worker_that_is_killed_costs_its_partition_alone(tmp_path: Path, source: str) -> None:
    (tmp_path / "stop").touch()
    with Process(build, "folder", tmp_path, source, 2) as builder:
        wait_until(lambda: len(list(tmp_path.glob("waiting-*"))) == 2, "both workers to be half way")
        victim = next(tmp_path.glob("waiting-*"))
        os.kill(int(victim.name.partition("-")[2]), signal.SIGKILL)
        wait_until(lambda: len(list(tmp_path.glob("waiting-*"))) == 3, "another to take its place")
        (tmp_path / "stop").unlink()
        builder.result()
    check(open_kind("folder", tmp_path))
    assert len(said(tmp_path)) <= RECORDS + 2 * EACH


# Tasks that know nothing of each other.


def write(kind: str, folder: Path, number: int) -> None:
    source = source_of("partitions", folder)
    open_kind(kind, folder).begin("data", "1", source=source).write(number)


@pytest.mark.parametrize("kind", KINDS)
def test_tasks_that_are_killed_repeated_or_twins_do_no_harm(tmp_path: Path, kind: str) -> None:
    storage = open_kind(kind, tmp_path)
    build = storage.begin("data", "1", source=source_of("partitions", tmp_path))
    (tmp_path / "stop").touch()
    for number in range(PARTITIONS // 2):
        build.write(number)
    killed = [fork(write, kind, tmp_path, PARTITIONS // 2) for _ in range(2)]
    wait_until(lambda: len(list(tmp_path.glob("waiting-*"))) == 2, "two twins to be in the middle")
    os.kill(killed[0], signal.SIGKILL)
    assert wait(killed[0]) == -signal.SIGKILL
    (tmp_path / "stop").unlink()
    write(kind, tmp_path, PARTITIONS // 2)  # while its twin is at work
    assert wait(killed[1]) == 0
    for number in reversed(range(PARTITIONS)):
        write(kind, tmp_path, number)
    committing = [fork(build.commit) for _ in range(2)]
    assert [wait(pid) for pid in committing] == [0, 0]
    check(storage)
    write(kind, tmp_path, 3)  # who comes too late
    storage.prune(grace_s=0)
    check(storage)
