"""The ways of data through the library are as short as docs/architecture.md says."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inside import Run
from walks import Walk, documented

from yogadl import open_storage


def records(count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {"values": np.full(100, number, np.int32), "text": b"y" * (number % 50)}


@pytest.mark.parametrize("part_bytes", [None, 200_000])
def test_a_batch_goes_the_documented_way(tmp_path, monkeypatch, part_bytes):
    """From its indices to the gather; also where it takes several parts, and they are uneven."""
    storage = open_storage(tmp_path)
    storage.submit(records(5000), "squares", "1", part_bytes=part_bytes)
    walk, read = Walk(), Run.read

    def reading(run: Run, *arguments: Any) -> Any:
        walk.is_on = True
        try:
            return read(run, *arguments)
        finally:
            walk.is_on = False

    monkeypatch.setattr(Run, "read", reading)
    batches = iter(storage.fetch("squares", "1").stream(shuffle=True).batch(32))
    next(batches)  # what is loaded or made once
    walk.modules.clear()
    with walk.watching():
        next(batches)
    assert list(walk.modules) == documented("A batch, from its indices to the gather")
    assert len(walk.modules) <= 5, str(walk)


def test_a_record_goes_the_documented_way_to_disk(tmp_path: Path):
    """From the source that gives it to LMDB, many times, while one part is filled."""
    storage = open_storage(tmp_path)
    storage.submit(records(10), "first", "1")
    walk = Walk()

    def watched() -> Iterator[dict[str, Any]]:
        for number, record in enumerate(records(5000)):
            walk.is_on = number >= 200
            yield record
        walk.is_on = False

    with walk.watching():
        storage.submit(watched(), "second", "1")
    assert set(walk.modules) == set(documented("A record, from its source to disk")), str(walk)
    assert len(walk.modules) <= 6
