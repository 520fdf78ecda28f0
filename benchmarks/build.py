"""Compare builds with writing the same bytes to a file, and count the bytes on disk.

Run ``python benchmarks/build.py``. Both sides end with fsync; each round makes new files, and the
disk is done with the last ones before the clock starts. It justifies `yogadl._format.writer` and
`yogadl._sources.sources`.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import _sets
import numpy as np
from _measure import (
    Settings,
    at_least,
    at_most,
    batches_of,
    check_equal,
    clear,
    interleave,
    main,
    rate,
    ratios,
    say,
)
from _sets import Columns, DataSet

import yogadl

ITERATED_RECORDS = 500_000
WAITED_RECORDS = 3_000
WAITED_S = 0.001
DISK_BARS = {_sets.VECTORS: at_most(1.03)}  # rows of 72 bytes; those of 1 KB and more:
DISK_BAR = at_most(1.02)


def measure(settings: Settings) -> None:
    """Measure builds from arrays and from iterators, and the bytes on disk."""
    for data in _sets.ALL:
        from_arrays(settings, data)
    from_iterator(settings)
    beside_reading(settings)


def from_arrays(settings: Settings, data: DataSet) -> None:
    """Print the rows of one set: the speed of its build, and its bytes on disk."""
    records = settings.scaled(data.records)
    say(f"{data.name}: {records:,} records")
    columns = data.make(records)
    size = _sets.payload_bytes(columns)
    root, file = settings.path("cache"), settings.path("file")
    times: dict[str, list[float]] = {"file": [], "build": []}
    on_disk = 0
    for number in range(settings.rounds + 1):
        times["file"].append(timed(lambda: write_file(file, columns)))
        file.unlink()
        os.sync()
        times["build"].append(timed(lambda: yogadl.open_storage(root).submit(columns, "set", "1")))
        on_disk = disk_bytes(root)
        if number == 0:
            check_cache(root, columns, data)
        clear(root)
    counted = {name: seen[1:] for name, seen in times.items()}
    speeds = {name: f"{size / np.median(seen) / 1e6:,.0f} MB/s" for name, seen in counted.items()}
    details = f"{speeds['build']}; file with fsync {speeds['file']}; {size / 1e6:,.0f} MB"
    what = f"build from arrays against writing a file, {data.name}"
    settings.row(what, at_least(0.5), ratios(counted["file"], counted["build"]), details)
    details = f"{on_disk:,} bytes in all files, for {size:,}"
    settings.row(
        f"bytes on disk / payload, {data.name}", DISK_BARS.get(data, DISK_BAR), [on_disk / size], details
    )


def timed(work: Any) -> float:
    """Return how many seconds it takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def write_file(path: Path, columns: Columns) -> None:
    """Write the bytes of all columns, one after the other, and wait until they are on the disk."""
    with path.open("wb", buffering=0) as file:
        for column in columns.values():
            if isinstance(column, np.ndarray):
                write_all(file, column.reshape(-1).view(np.uint8).data)
            else:
                for first in range(0, len(column), 64):
                    write_all(file, memoryview(b"".join(column[first : first + 64])))
        os.fsync(file.fileno())


def write_all(file: Any, view: memoryview) -> None:
    """Write everything: one call of the kernel's takes 2 GiB at most."""
    while view:
        view = view[file.write(view) :]


def disk_bytes(root: Path) -> int:
    """Return how many bytes the files below a folder take on the disk, or have, whichever is more."""
    stats = [path.stat() for path in root.rglob("*") if path.is_file()]
    return max(sum(one.st_blocks * 512 for one in stats), sum(one.st_size for one in stats))


def check_cache(root: Path, columns: Columns, data: DataSet) -> None:
    """Compare the whole cache with its source, in order."""
    ref = yogadl.open_storage(root).fetch("set", "1")
    for chosen in batches_of(np.arange(len(ref)), data.batch):
        check_equal(ref.gather(chosen), _sets.take(columns, chosen), data.name)


def from_iterator(settings: Settings) -> None:
    """Print the row of an iterator of dicts of small arrays."""
    records = settings.scaled(ITERATED_RECORDS)
    say(f"an iterator of {records:,} dicts of small arrays")
    columns = _sets.vectors(records)
    root = settings.path("cache")

    def dicts() -> Iterator[dict[str, Any]]:
        for x, number in zip(columns["x"], columns["id"], strict=True):
            yield {"x": x, "id": number}

    speeds = []
    for number in range(settings.rounds + 1):
        elapsed_s = timed(lambda: yogadl.open_storage(root).submit(dicts, "set", "1"))
        if number:
            speeds.append(records / elapsed_s)
        else:
            check_cache(root, columns, _sets.VECTORS)
        clear(root)
    bare_s = [timed(lambda: sum(1 for _ in dicts())) for _ in range(3)]
    details = f"{records:,} records; the iterator alone {rate(records, bare_s)}"
    settings.row(
        "build from an iterator of {float32[16], int64}", at_least(150_000, " records/s"), speeds, details
    )


def beside_reading(settings: Settings) -> None:
    """Print the row of an iterator that waits for each record, as one does that downloads them."""
    records = settings.scaled(WAITED_RECORDS)
    say(f"an iterator of {records:,} images that come after {WAITED_S * 1000:g} ms each")
    images = _sets.LARGE_IMAGES.make(64)["image"]
    root = settings.path("cache")

    def dicts() -> Iterator[dict[str, Any]]:
        for number in range(records):
            time.sleep(WAITED_S)
            yield {"x": images[number % len(images)], "id": number}

    def build() -> None:
        yogadl.open_storage(root).submit(dicts, "set", "1")
        clear(root)

    times = interleave({"read": lambda: sum(1 for _ in dicts()), "build": build}, min(settings.rounds, 5), 1)
    both = "; ".join(f"{name}: {np.median(seen):.2f} s" for name, seen in times.items())
    settings.row(
        "build from an iterator of images that wait 1 ms each, against reading alone",
        None, ratios(times["build"], times["read"]), both, " x",
    )  # fmt: skip


if __name__ == "__main__":
    main(__file__, measure)
