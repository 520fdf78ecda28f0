"""A file system without flock, where filelock falls back to files whose mere existence is the lock."""

import errno
import fcntl
import logging
import os
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from processes import fork, in_child, wait

import yogadl

_LIMIT_S = 200


def take_flock_away() -> None:
    """Let this process see what it would on a file system that has none."""

    def flock(*_: Any) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    fcntl.flock = flock
    warnings.filterwarnings("ignore", "flock not supported", UserWarning)


class Deadly:
    """A source whose process dies."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return index


def die_on_another_host(root: Path) -> None:
    take_flock_away()
    socket.gethostname = lambda: "node-9"
    yogadl.open_storage(root).submit(Deadly(), "data", "1")


def die_here(root: Path) -> None:
    take_flock_away()
    yogadl.open_storage(root).submit(Deadly(), "data", "1")


def build(root: Path) -> int:
    take_flock_away()
    yogadl.open_storage(root).submit([1, 2, 3], "data", "1")
    return len(yogadl.open_storage(root).fetch("data", "1"))


class Heard(logging.Handler):
    """Keep what is said."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        logging.getLogger("yogadl").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def build_once_the_lock_is_cleared(root: Path) -> tuple[list[str], int]:
    """Build, wait to be told how to clear the lock, and clear it."""
    take_flock_away()
    heard = Heard()
    storage = yogadl.open_storage(root)
    (lock,) = root.glob("data/locks/*.lock")
    builder = threading.Thread(target=storage.submit, args=([1, 2, 3], "data", "1"))
    builder.start()
    deadline = time.monotonic() + _LIMIT_S
    while not any("delete the file" in said for said in heard.said) and time.monotonic() < deadline:
        time.sleep(0.01)
    lock.unlink()
    builder.join()
    return [said.replace(str(lock), "LOCK") for said in heard.said], len(storage.fetch("data", "1"))


def prune(root: Path) -> list[str]:
    take_flock_away()
    heard = Heard()
    yogadl.open_storage(root).prune(grace_s=0)
    return heard.said


def die(function: Callable[[Path], None], root: Path) -> None:
    assert wait(fork(function, root)) == -signal.SIGKILL


def test_who_waits_for_the_lock_of_a_dead_builder_of_another_host_is_told_how_to_clear_it(
    tmp_path: Path,
) -> None:
    in_child(die, die_on_another_host, tmp_path)
    said, records = in_child(build_once_the_lock_is_cleared, tmp_path)
    assert "waiting for 'data' version '1', which process" in said[0]
    assert "the file LOCK is used as a lock" in said[1]
    assert "on node-9" in said[1]
    assert "make sure that no process builds, then delete the file" in said[1]
    assert records == 3


def test_the_lock_of_a_dead_builder_of_this_host_is_taken_over(tmp_path: Path) -> None:
    in_child(die, die_here, tmp_path)
    assert in_child(build, tmp_path) == 3


def test_who_prunes_is_told_of_the_lock_of_a_dead_builder_of_another_host(tmp_path: Path) -> None:
    assert in_child(build, tmp_path) == 3
    in_child(die, die_on_another_host, tmp_path)
    (lock,) = tmp_path.glob("data/locks/*.lock")
    yogadl.open_storage(tmp_path)
    (tmp_path / "data" / "parts" / f".{'0' * 16}.tmp").touch()
    said = in_child(prune, tmp_path)
    assert f"the file {lock} is used as a lock" in said[0]
    assert "another process builds or prunes it" in said[1]
