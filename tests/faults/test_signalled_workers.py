"""Signals that clusters send to all processes of a job: workers go on, and their owner decides."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inside import Workers
from processes import in_child, wait_until

import yogadl

COUNT = 60
METHODS = ["forkserver", "spawn", "fork"]
SENT = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2]


def alone(on_signal: Callable[[int, Any], object]) -> None:
    """Have a handler of one's own, for signals to all of this session."""
    for number in SENT:
        signal.signal(number, on_signal)


def send_all(*_: Any) -> None:
    for number in SENT:
        os.killpg(0, number)


def stream() -> Any:
    return yogadl.from_source({"id": np.arange(COUNT)}).stream(shuffle=True, shuffle_seed=5)


def read_under_signals(method: str) -> None:
    """Read an epoch, while workers that begin and workers that work send signals to all."""

    def signalled(batch: dict[str, Any]) -> dict[str, Any]:
        send_all()
        return {**batch, "pid": os.getpid()}

    heard = []
    alone(lambda number, _: heard.append(number))
    loader = stream().batch(5).map(signalled)
    batches = list(loader.prefetch(4, workers=2, worker_init=send_all, start_method=method))
    assert {*heard} == {*SENT}
    assert np.concatenate([batch["id"] for batch in batches]).tolist() == stream().indices().tolist()
    assert len({batch["pid"] for batch in batches}) <= 2  # none was replaced


@pytest.mark.parametrize("method", METHODS)
def test_workers_go_on_until_their_owner_has_decided(method: str) -> None:
    in_child(read_under_signals, method)


def answer(connection: socket.socket, _: int) -> None:
    connection.sendall(b"here")


def start_under_signals(method: str) -> None:
    alone(lambda *_: None)
    workers = Workers(answer, method)
    send_all()  # there is hardly more of it than its process
    with workers.start(1) as connection:
        send_all()
        assert connection.recv(4, socket.MSG_WAITALL) == b"here"
    workers.end()


@pytest.mark.parametrize("method", METHODS)
def test_workers_that_are_being_started_go_on(method: str) -> None:
    in_child(start_under_signals, method)


def start_and_terminate(record: dict[str, Any]) -> dict[str, Any]:
    command = subprocess.Popen(["sleep", "1000"])
    command.terminate()
    child = os.fork()
    if not child:
        time.sleep(1000)
    os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    return {"codes": [command.wait(), os.waitstatus_to_exitcode(status)], **record}


@pytest.mark.parametrize("method", METHODS)
def test_what_a_worker_starts_can_be_terminated(method: str) -> None:
    stream = yogadl.from_source({"id": np.arange(4)}).stream()
    loader = stream.map(start_and_terminate).batch(4).prefetch(1, workers=1, start_method=method)
    (batch,) = loader
    assert (np.stack(batch["codes"]) == -signal.SIGTERM).all()


class Signalled:
    """A source whose readers send signals to all, once three of them read."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.owner = folder, os.getpid()

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict[str, int]:
        if os.getpid() != self.owner:
            (self.folder / str(os.getpid())).touch()
            wait_until(lambda: len(os.listdir(self.folder)) >= 3, "three readers", 30)
            send_all()
        return {"id": index}


def build_under_signals(folder: Path) -> None:
    alone(lambda *_: None)
    storage = yogadl.open_storage(folder / "caches")
    readers = folder / "readers"
    readers.mkdir()
    storage.submit(Signalled(readers), "set", "1", workers=3)
    assert [record["id"] for record in storage.fetch("set", "1")] == list(range(COUNT))
    assert len(os.listdir(readers)) == 3  # none was replaced


def test_workers_of_a_build_go_on(tmp_path: Path) -> None:
    in_child(build_under_signals, tmp_path)
