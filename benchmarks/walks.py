"""Count the files of the library that data passes on its way: fewer are easier to follow.

Run ``python benchmarks/walks.py``; with ``-v`` it names the files. A file counts if one of its functions is
called, in any thread or in a worker process, as `sys.setprofile` sees it.
"""

import os
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import yogadl

LIBRARY = f"{Path(yogadl.__file__).parent}{os.sep}"
RECORDS = 5000
BARS = {"a batch": 12, "a record to disk": 18, "a cold range": 16, "a batch of two workers": 18, "a hit": 16}


class Walk:
    """The files entered within the context, while `is_on`.

    In a worker, `noted` is a file that names are added to, as soon as it is there.
    """

    def __init__(self, noted: str | None = None) -> None:
        self.files: set[str] = set()
        self.is_on = True
        self._noted = noted

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and self.is_on and name.startswith(LIBRARY) and name not in self.files:
            if self._noted is None:
                self.files.add(name)
            elif os.path.exists(self._noted):
                self.files.add(name)
                with open(self._noted, "a") as file:
                    file.write(f"{name}\n")

    def __enter__(self) -> "Walk":
        threading.setprofile(self)
        sys.setprofile(self)
        return self

    def __exit__(self, *_: Any) -> None:
        sys.setprofile(None)
        threading.setprofile(None)


def records(walk: Walk | None = None) -> Any:
    """Yield records of fields of one size and of varying length; a walk is on between them."""
    for number in range(RECORDS):
        if walk is not None:
            walk.is_on = number > RECORDS // 10
        yield {"values": np.full(100, number, np.int32), "text": b"y" * (number % 50)}
    if walk is not None:
        walk.is_on = False


def begin(noted: str) -> Any:
    """Return a function that counts the files that a worker enters."""

    def begun(_: int) -> None:
        sys.setprofile(Walk(noted))

    return begun


def main() -> None:
    """Print each way with its files."""
    found: dict[str, set[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        storage = yogadl.open_storage(folder)
        storage.submit(records(), "set", "1")

        batches = iter(storage.fetch("set", "1").stream(shuffle=True).batch(32))
        next(batches)
        with Walk() as walk:
            next(batches)
        found["a batch"] = walk.files

        walk = Walk()
        walk.is_on = False
        with walk:
            storage.submit(
                records(walk), "set", "2", build=yogadl.BuildOptions(part_bytes=500_000, progress=False)
            )
        found["a record to disk"] = walk.files

        bucket = yogadl.open_storage(f"file://{folder}/bucket", mirror=None)
        yogadl.storage.copy(storage, bucket, "set", "1")
        bucket = yogadl.open_storage(f"file://{folder}/bucket", mirror=None)
        away = iter(bucket.fetch("set", "1").stream().batch(32))
        next(away)
        with Walk() as walk:
            for _ in range(RECORDS // 64):
                next(away)
        found["a cold range"] = walk.files

        noted = f"{folder}/files"
        loader = storage.fetch("set", "1").stream(shuffle=True).batch(32)
        batches = iter(loader.prefetch(2, workers=2, worker_init=begin(noted)))
        for _ in range(10):
            next(batches)
        Path(noted).touch()
        with Walk() as walk:
            for _ in range(60):
                next(batches)
        found["a batch of two workers"] = walk.files | set(Path(noted).read_text().split("\n")[:-1])

        build = storage.cacheable("set", "1")(records)
        build()
        with Walk() as walk:
            build()
        found["a hit"] = walk.files
    for way, files in found.items():
        print(f"| {way} | {len(files)} | <= {BARS[way]} |")
        if "-v" in sys.argv:
            print("\n".join(f"    {name.removeprefix(LIBRARY)}" for name in sorted(files)))


if __name__ == "__main__":
    main()
