"""Workers of a builder that is killed end with it, whatever they are at, and hold nothing of it open."""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from inside import Workers
from processes import WARNINGS, until
from soak import few_or_many

import yogadl

# An interrupt is one whatever this process inherited: a shell's background jobs ignore it.
_MAIN = (
    "import signal, sys, test_killed_workers; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "getattr(test_killed_workers, sys.argv[1])(sys.argv[2])"
)
# Far longer than it takes; without an end, workers would read on for ever.
_LIMIT_S = 200


class Endless:
    """A source whose first records are read at once, and whose others never are."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index >= 10:
            os.write(1, f"reading in {os.getpid()}\n".encode())  # in one piece
            time.sleep(10_000)
        return {"i": index}


class Large(Endless):
    """The same, larger than any pipe."""

    def __init__(self) -> None:
        self.data = bytes(2**20)


class FailsInTheEnd(Endless):
    """The same, but that one of them can't be read, when three workers have one in hand."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 13:
            raise ConnectionResetError("gone")
        return super().__getitem__(index)


class Steady:
    """A source that takes some seconds, in many small parts."""

    def __len__(self) -> int:
        return 4_000

    def __getitem__(self, index: int) -> dict[str, Any]:
        time.sleep(0.001)
        return {"index": index, "row": bytes(8_000)}


def build(folder: str) -> None:
    yogadl.open_storage(folder).submit(Endless(), "data", "1", workers=4)


def build_and_fail(folder: str) -> None:
    yogadl.open_storage(folder).submit(FailsInTheEnd(), "data", "1", workers=4)


def build_steadily(folder: str) -> None:
    yogadl.open_storage(folder).submit(
        Steady(), "data", "1", workers=2, build=yogadl.BuildOptions(part_bytes=100_000)
    )


def build_and_die(folder: str) -> None:
    at_worker(3, lambda: os.kill(os.getpid(), signal.SIGKILL))
    yogadl.open_storage(folder).submit(Large(), "data", "1", workers=4)


def build_and_interrupt(folder: str) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    at_worker(2, interrupt)
    yogadl.open_storage(folder).submit(Large(), "data", "1", workers=4)


def build_and_interrupt_with_locks_held(folder: str) -> None:
    """As an interrupt does that comes while Python's own lines have taken the locks of futures."""
    enter, entries = threading.Condition.__enter__, itertools.count(1)

    def entered(condition: threading.Condition) -> bool:
        is_held = enter(condition)
        if threading.current_thread() is threading.main_thread():
            condition.acquire(blocking=False)  # a future's can be held twice, and so it stays
            if next(entries) == 50:  # now those of all futures are
                threading.Condition.__enter__ = enter
                raise KeyboardInterrupt
        return is_held

    def from_now_on(*_: Any) -> None:
        threading.Condition.__enter__ = entered

    signal.signal(signal.SIGINT, from_now_on)
    build(folder)


def at_worker(number: int, do: Callable[[], None]) -> None:
    """Do something while the process of the worker of that number is started, before it is known."""
    start = Workers.start

    def started(self: Workers, serial: int) -> Any:
        connection = start(self, serial)
        if serial == number:
            do()
        return connection

    Workers.start = started


def start(function: str, folder: Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, *WARNINGS, "-c", _MAIN, function, str(folder)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )


def check_that_nothing_stays(builder: "subprocess.Popen[bytes]") -> None:
    """Wait for the end of all that have the builder's output: its workers, and who tracks them."""
    try:
        builder.communicate(timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(builder.pid, signal.SIGKILL)
        pytest.fail("processes of the killed builder are still there")


def test_workers_end_when_their_builder_is_killed_while_it_hands_out_work(tmp_path: Path) -> None:
    builder = start("build_and_die", tmp_path)
    check_that_nothing_stays(builder)
    assert builder.returncode == -signal.SIGKILL


def test_an_interrupted_builder_ends_though_its_workers_have_much_in_hand(tmp_path: Path) -> None:
    builder = start("build_and_interrupt_with_locks_held", tmp_path)
    assert builder.stdout is not None
    for _ in range(3):  # then it waits for them
        builder.stdout.readline()
    builder.send_signal(signal.SIGINT)
    check_that_nothing_stays(builder)
    assert builder.returncode not in (0, -signal.SIGKILL)
    storage = yogadl.open_storage(tmp_path)
    (left,) = storage.unfinished()  # what was read is gone on with
    assert left.size_bytes > 0
    storage.prune(unfinished=True)
    assert not list((tmp_path / "data" / "parts").glob("*"))


def test_an_interrupt_while_a_worker_is_started_ends_the_builder(tmp_path: Path) -> None:
    builder = start("build_and_interrupt", tmp_path)
    check_that_nothing_stays(builder)
    assert builder.returncode not in (0, -signal.SIGKILL)
    assert yogadl.open_storage(tmp_path).unfinished() == []


def test_an_error_in_one_worker_is_told_though_the_others_have_much_in_hand(tmp_path: Path) -> None:
    builder = start("build_and_fail", tmp_path)
    check_that_nothing_stays(builder)
    assert builder.returncode == 1


@pytest.mark.parametrize("parts", few_or_many([1, 2, 5], [*range(1, 9)]))
def test_no_part_of_a_killed_build_with_workers_stays_when_it_is_pruned(tmp_path: Path, parts: int) -> None:
    builder = start("build_steadily", tmp_path)
    for _ in until(_LIMIT_S, f"{parts} parts", builder.kill):
        if len(list(tmp_path.glob("data/parts/*.mdb"))) >= parts:
            break
    os.killpg(builder.pid, signal.SIGKILL)  # workers and all, at that moment
    check_that_nothing_stays(builder)
    storage = yogadl.open_storage(tmp_path)
    (left,) = storage.unfinished()
    held = sum(path.stat().st_size for path in tmp_path.glob("data/parts/*"))
    assert left.size_bytes >= held > 0
    storage.prune(unfinished=True)
    assert not list(tmp_path.glob("data/parts/*"))
