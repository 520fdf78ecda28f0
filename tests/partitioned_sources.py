"""Sources that say what is read of them: each record, and each partition opened, is a line of a file."""

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import yogadl


def said(log: Path) -> list[str]:
    """Return what was read so far, by whichever process."""
    return log.read_text().split() if log.exists() else []


def say(log: Path, what: object) -> None:
    with log.open("a") as file:
        os.write(file.fileno(), f"{what}\n".encode())  # in one piece


class Rows:
    """Records with random access, which are told when they are read."""

    def __init__(self, records: int, log: Path, stop: Path | None = None) -> None:
        self.records, self.log, self.stop = records, log, stop

    def __len__(self) -> int:
        return self.records

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self.stop is not None and self.stop.exists() and index == self.records * 3 // 4:
            raise ConnectionResetError("gone")
        say(self.log, index)
        return row(index)


def row(index: int) -> dict[str, Any]:
    """Return a record that is like no other, with a value of each kind."""
    values = np.arange(index, index + 8, dtype=np.float32)
    return {"n": index, "x": values, "text": f"no. {index}" * (index % 3)}


def read(log: Path, bounds: tuple[int, int]) -> Iterator[dict[str, Any]]:
    """Read one partition: the records from one number to another."""
    say(log, f"partition-{bounds[0]}")
    for index in range(*bounds):
        say(log, index)
        yield row(index)


def partitions(log: Path, *bounds: int) -> Any:
    """Return a source in partitions that end at these numbers."""
    pairs = list(zip((0, *bounds), bounds, strict=False))
    return yogadl.partitioned.of(pairs, functools.partial(read, log))
