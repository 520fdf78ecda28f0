"""Agree on which epoch each iterator of a dataset reads, among the worker processes of one DataLoader.

DataLoader copies an iterable dataset into its workers each time it is iterated over, and calls `iter` only
there: the copy in the training loop never learns that an epoch began. So the workers note it in a small file
that all copies know of.
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
from typing import Any, Final

import torch

from yogadl._stream import Point

_REMEMBERED: Final = 64  # iterators whose workers may still be starting

Turns = list[list[int]]


@dataclass(frozen=True)
class Seat:
    """Say which worker of how many this process is, and of which iterator.

    Args:
        worker: Its number.
        workers: How many there are.
        seed: What DataLoader drew for the iterator; seldom the same for two.
        place: The ordinal of its process among all that the parent has started, less its number. It is
            the same for the workers of one iterator, which are started one after another; if another
            thread starts fewer than `workers` processes in between, it differs by less than between two
            iterators.
        parent: The process that iterates over the DataLoader.
    """

    worker: int = 0
    workers: int = 1
    seed: int = 0
    place: int = 0
    parent: int = 0

    @staticmethod
    def here() -> "Seat | None":
        """Return the seat of this process, or ``None`` if it is no worker."""
        info = torch.utils.data.get_worker_info()
        parent = multiprocessing.parent_process()
        if info is None or parent is None or parent.pid is None:
            return None
        ordinal = multiprocessing.current_process()._identity[-1]
        return Seat(info.id, info.num_workers, info.seed - info.id, ordinal - info.id, parent.pid)


class Epochs:
    """Give each iterator of a dataset the next epoch. Copies made by pickling or forking stay in step.

    A copy in another training process counts for itself. The file is removed with the original.

    Args:
        first: Where the first iterator starts.
    """

    def __init__(self, first: Point) -> None:
        self._first = first
        self._begun = 0  # iterators of this process
        self._path = os.path.join(tempfile.gettempdir(), f"yogadl-epochs-{uuid.uuid4().hex}")
        weakref.finalize(self, _remove, self._path, os.getpid())

    def begin(self) -> int:
        """Count an iterator of this process: persistent workers have several, one after another."""
        self._begun += 1
        return self._begun

    def claim(self, seat: Seat | None, number: int) -> Point:
        """Return where an iterator starts; all workers of one DataLoader iterator get the same.

        Args:
            seat: Which worker this is, if any.
            number: What `begin` returned for the iterator.
        """
        with self._notes(seat) as notes:
            if seat is not None:
                for seed, place, begun, epoch, position in notes["turns"]:
                    if (seed, begun) == (seat.seed, number) and abs(place - seat.place) < seat.workers:
                        return Point(epoch, position)
            point = Point(*notes["next"])
            notes["next"] = [point.epoch + 1, 0]
            if seat is not None:
                notes["turns"].append([seat.seed, seat.place, number, *point])
                del notes["turns"][:-_REMEMBERED]
        return point

    def move(self, seat: Seat | None, point: Point) -> None:
        """Note that an iterator was moved to `point`: the next claim comes after it."""
        with self._notes(seat) as notes:
            notes["next"] = [point.epoch + 1, 0]

    @contextmanager
    def _notes(self, seat: Seat | None) -> Iterator[dict[str, Any]]:
        """Read what is noted for this training process, and write it back; one process at a time."""
        parent = os.getpid() if seat is None else seat.parent
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "r+") as file:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # let go of with the descriptor, by a killed process too
            text = file.read()
            everything = json.loads(text) if text else {}
            yield everything.setdefault(str(parent), {"next": list(self._first), "turns": []})
            written = json.dumps(everything)
            if written != text:
                file.seek(0)
                file.write(written)
                file.truncate()


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
