"""Let the worker processes of one DataLoader agree on the epoch that each iterator of a dataset reads.

DataLoader copies an iterable dataset into its workers each time it is iterated over, and calls `iter` only
there: the copy in the training loop gets no notice of a new epoch. The workers therefore record the epoch in
a small file, whose path all copies have.
"""

import fcntl
import json
import multiprocessing
import os
import tempfile
import uuid
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from yogadl._stream import Point

_REMEMBERED: Final = 64  # the number of iterators to remember, as their workers may still start


@dataclass(frozen=True)
class WorkerId:
    """The identity of a worker process: its number, and the iterator of a DataLoader that it serves."""

    worker: int = 0
    workers: int = 1
    seed: int = 0  # DataLoader's random number for the iterator; two iterators seldom have the same
    # The ordinal of the process among all that the parent has started, less the worker's number: the same for
    # all workers of one iterator, which are started one after another. If another thread starts fewer than
    # `workers` processes in between, the value differs by less than between two iterators.
    started: int = 0
    parent: int = 0  # the process that iterates over the DataLoader

    @staticmethod
    def here() -> "WorkerId | None":
        """Return the identity of this process, or ``None`` if it is no worker."""
        info = torch.utils.data.get_worker_info()
        parent = multiprocessing.parent_process()
        if info is None or parent is None or parent.pid is None:
            return None
        ordinal = multiprocessing.current_process()._identity[-1]
        return WorkerId(info.id, info.num_workers, info.seed - info.id, ordinal - info.id, parent.pid)


class SharedEpochs:
    """Give each iterator of a dataset the next epoch; copies made by pickling or forking count together.

    A copy in another training process counts separately. The file is removed with the original.
    """

    def __init__(self, first: Point) -> None:
        self._first = first
        self._begun = 0  # the number of iterators of this process
        self._path = os.path.join(tempfile.gettempdir(), f"yogadl-epochs-{uuid.uuid4().hex}")
        weakref.finalize(self, _remove, self._path, os.getpid())

    def begin(self) -> int:
        """Count an iterator of this process: a persistent worker has several, one after another."""
        self._begun += 1
        return self._begun

    def claim(self, worker: WorkerId | None, number: int) -> Point:
        """Return the start of the iterator for which `begin` returned `number`; its workers get the same."""
        with self._notes(worker) as notes:
            if worker is not None:
                for seed, started, begun, epoch, position in notes["claims"]:
                    is_same = (seed, begun) == (worker.seed, number)
                    if is_same and abs(started - worker.started) < worker.workers:
                        return Point(epoch, position)
            point = Point(*notes["next"])
            notes["next"] = [point.epoch + 1, 0]
            if worker is not None:
                notes["claims"].append([worker.seed, worker.started, number, *point])
                del notes["claims"][:-_REMEMBERED]
        return point

    def move(self, worker: WorkerId | None, point: Point) -> None:
        """Note that an iterator was moved to `point`: the next claim is the epoch after it."""
        with self._notes(worker) as notes:
            notes["next"] = [point.epoch + 1, 0]

    @contextmanager
    def _notes(self, worker: WorkerId | None) -> Iterator[dict[str, Any]]:
        """Read the notes of this training process, and write them back; one process at a time."""
        parent = os.getpid() if worker is None else worker.parent
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "r+") as file:
            # The lock is released with the descriptor, also if the process is killed.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            text = file.read()
            everything = json.loads(text) if text else {}
            yield everything.setdefault(str(parent), {"next": list(self._first), "claims": []})
            written = json.dumps(everything)
            if written != text:
                file.seek(0)
                file.write(written)
                file.truncate()


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner:
        Path(path).unlink(missing_ok=True)
