"""Whoever calls the same builder at once: it runs once, and all read what it built."""

import os
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import fork, in_child, wait

import yogadl

PROCESSES = 8
THREADS = 8


class BrokenSourceError(Exception):
    """The builder's own error."""


def note(path: Path, line: str) -> None:
    """Append a line, atomically."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def many_processes(folder: Path) -> None:
    """Let 8 processes of 8 threads each call one builder at the same moment."""
    storage = yogadl.open_storage(folder)

    @storage.cacheable("data", "1", build=yogadl.BuildOptions(part_bytes=16_384))
    def build() -> Any:
        note(folder / "built", str(os.getpid()))
        return ({"x": np.full(100, i), "text": "a" * i} for i in range(500))

    waiting, released = os.pipe()

    def call() -> None:
        os.close(released)
        os.read(waiting, 1)  # until the other end is closed
        together = threading.Barrier(THREADS)

        def read(thread: int) -> None:
            together.wait()
            ref = build()
            assert ref[thread]["text"] == "a" * thread
            note(folder / "read", ref.fingerprint)

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(read, range(THREADS)))

    crowd = [fork(call) for _ in range(PROCESSES)]
    os.close(released)
    assert [wait(pid) for pid in crowd] == [0] * PROCESSES


def test_8_processes_of_8_threads_build_once_and_read_the_same(tmp_path: Path) -> None:
    in_child(many_processes, tmp_path)
    assert len(lines(tmp_path / "built")) == 1
    found = lines(tmp_path / "read")
    assert len(found) == PROCESSES * THREADS
    assert len(set(found)) == 1


def test_8_threads_with_storages_of_their_own_build_once(tmp_path: Path) -> None:
    together = threading.Barrier(THREADS)
    built = []

    def read(_: int) -> str:
        storage = yogadl.open_storage(tmp_path)

        @storage.cacheable("data", "1")
        def build() -> Any:
            built.append(1)
            return np.arange(1000)

        together.wait()
        return build().fingerprint

    with ThreadPoolExecutor(THREADS) as pool:
        found = set(pool.map(read, range(THREADS)))
    assert len(built) == 1
    assert len(found) == 1


@pytest.mark.filterwarnings("ignore:'data' version '1' was built by other code:UserWarning")
@pytest.mark.parametrize("good", [None, 3])
def test_when_builders_raise_the_waiters_try_in_turn_and_each_gets_the_error_of_its_own(
    tmp_path: Path, good: int | None
) -> None:
    storage = yogadl.open_storage(tmp_path)
    together = threading.Barrier(THREADS)
    at_once, turns = 0, 0

    def call(thread: int) -> Any:
        @storage.cacheable("data", "1")
        def build() -> Any:
            nonlocal at_once, turns
            at_once += 1
            turns += 1
            assert at_once == 1, "two builders at the same time"
            try:
                if turns - 1 != good:
                    raise BrokenSourceError(thread)
            finally:
                at_once -= 1
            return [1, 2, 3]

        together.wait()
        try:
            return len(build())
        except BrokenSourceError as error:
            assert error.args == (thread,)  # noqa: PT017
            return error

    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(call, range(THREADS)))
    failed = [result for result in found if isinstance(result, BrokenSourceError)]
    assert turns == len(failed) + (good is not None)
    assert len(failed) == (THREADS if good is None else good)
    assert all(result == 3 for result in found if result not in failed)


def test_a_builder_that_raised_leaves_the_way_free_for_the_next_call(tmp_path: Path) -> None:
    storage = yogadl.open_storage(tmp_path)
    calls = []

    @storage.cacheable("data", "1")
    def build() -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise BrokenSourceError
        return [1, 2]

    with pytest.raises(BrokenSourceError):
        build()
    assert storage.versions("data") == []
    assert build().gather([0, 1]).tolist() == [1, 2]
    assert build().gather([0, 1]).tolist() == [1, 2]
    assert len(calls) == 2


def raising_processes(folder: Path) -> None:
    """Let 8 processes call builders that raise, all but those of the last one."""
    waiting, released = os.pipe()

    def call(number: int) -> None:
        @yogadl.open_storage(folder).cacheable("data", "1")
        def build() -> Any:
            note(folder / "built", str(number))
            if len(lines(folder / "built")) < 4:
                raise BrokenSourceError(number)
            return [number]

        os.close(released)
        os.read(waiting, 1)
        # Each builder closes over a number of its own, as the warning rightly says.
        warnings.filterwarnings("ignore", "'data' version '1' was built by other code", UserWarning)
        try:
            found = build()[0]
        except BrokenSourceError as error:
            assert error.args == (number,)  # noqa: PT017
        else:
            assert lines(folder / "built")[-1] == str(found)

    crowd = [fork(call, number) for number in range(PROCESSES)]
    os.close(released)
    assert [wait(pid) for pid in crowd] == [0] * PROCESSES


def test_when_builders_of_other_processes_raise_the_waiters_try_in_turn(tmp_path: Path) -> None:
    in_child(raising_processes, tmp_path)
    assert len(lines(tmp_path / "built")) == 4
