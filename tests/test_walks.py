"""The ways of data through the library are as short as docs/architecture.md says."""

import io
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from walks import LIBRARY, Walk, documented, of_a_batch

import yogadl
from yogadl import open_storage


def records(count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {"values": np.full(100, number, np.int32), "text": b"y" * (number % 50)}


@pytest.mark.parametrize("part_bytes", [None, 200_000])
def test_a_batch_goes_the_documented_way(tmp_path, monkeypatch, part_bytes):
    """From its indices to the gather; also where it takes several parts, and they are uneven."""
    storage = open_storage(tmp_path)
    storage.submit(records(5000), "squares", "1", build=yogadl.BuildOptions(part_bytes=part_bytes))
    walk = of_a_batch(monkeypatch, storage.fetch("squares", "1").stream(shuffle=True).batch(32))
    assert list(walk.modules) == documented("A batch, from its indices to the gather")
    assert len(walk.modules) <= 5, str(walk)


def test_a_value_of_an_adopted_tar_in_a_bucket_goes_the_documented_way(tmp_path: Path):
    with tarfile.open(tmp_path / "0.tar", "w") as file:
        for number in range(400):
            member = tarfile.TarInfo(f"{number:05}.jpg")
            member.size = 3000
            file.addfile(member, io.BytesIO(bytes([number % 250]) * 3000))
    lake = tmp_path.as_uri()
    storage = open_storage(f"{lake}/caches", mirror=None, foreign={lake: {}})
    assert storage.adopt(f"{lake}/0.tar", "tars", "1")[0] is not None  # what is loaded or made once
    ref = storage.fetch("tars", "1")
    assert (
        ref.locality().parts_here == 0
    )  # opens it; the threads of requests are to begin while it is watched
    walk = Walk()
    walk.is_on = True
    with walk.watching():
        assert bytes(ref[300]["jpg"]) == bytes([50]) * 3000
    assert set(walk.modules) == set(documented("A value of an adopted tar, in a bucket")), str(walk)


def test_a_packed_row_goes_the_documented_way_in_a_worker(tmp_path: Path):
    storage, begun, noted = open_storage(tmp_path), tmp_path / "begun", tmp_path / "noted"
    storage.submit(({"tokens": np.arange(n % 90 + 10, dtype=np.int32)} for n in range(6000)), "set", "1")

    def watch(_: int) -> None:
        seen: set[str] = set()

        def note(frame: FrameType, event: str, _: object) -> None:
            name = frame.f_code.co_filename
            if event == "call" and name not in seen and name.startswith(f"{LIBRARY}/") and begun.exists():
                seen.add(name)
                with noted.open("a") as file:
                    file.write(f"{Path(name).relative_to(LIBRARY)}\n")

        sys.setprofile(note)

    rows = storage.fetch("set", "1").packed(256, fields="tokens").stream(shuffle=True).batch(8)
    batches = iter(rows.prefetch(2, workers=1, worker_init=watch))
    next(batches)
    begun.touch()
    assert sum(1 for _ in batches) > 100
    found = set(noted.read_text().split())
    assert set(documented("A packed row, in a worker")) <= found, sorted(found)


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
