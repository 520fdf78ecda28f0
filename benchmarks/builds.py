"""Measure builds by many processes: their speed, their memory, what a kill costs, and many partitions.

Run ``python benchmarks/builds.py``. What starts and warms processes is excluded where a row says so. It
justifies `yogadl.storage._builds.executors` and `yogadl._workers.processes`.
"""

import functools
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _measure import Settings, at_least, at_most, clear, in_child, main, say

import yogadl

BUSY_S = 0.005
BUSY_RECORDS = 3_000
LARGE_FILES = 32
LARGE_ROWS = 1_000  # a file, of 128 KB each: 4.2 GB in all
KILLED_RECORDS = 1_500
PARTITIONS = 1_000
EACH = 1_000  # records of a partition, of 1 KB


def measure(settings: Settings) -> None:
    """Measure builds by many processes."""
    two_workers(settings)
    memory(settings)
    killed(settings)
    many_partitions(settings)


# A source that computes.


class Busy:
    """Records that take 5 ms of the processor each; the first of each process says that it has begun."""

    def __init__(self, records: int, log: Path | None = None) -> None:
        self._records = records
        self._log = log

    def __len__(self) -> int:
        return self._records

    def __getitem__(self, index: int) -> dict[str, Any]:
        end = time.thread_time() + BUSY_S
        while time.thread_time() < end:
            pass
        if self._log is not None:
            with self._log.open("a") as file:
                os.write(file.fileno(), f"{time.monotonic()}\n".encode())  # in one piece
        return {"x": np.full(256, index, np.float32), "n": index}


def two_workers(settings: Settings) -> None:
    """Print the row of a busy loop, with one process and with two."""
    records = settings.scaled(BUSY_RECORDS)
    say(f"{records:,} records of 5 ms of the processor each, {min(settings.rounds, 3)} rounds")
    seen: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(min(settings.rounds, 3)):
        for workers, times in seen.items():
            times.append(timed_from_the_first_record(settings, records, workers))
    both = [one / two for one, two in zip(seen[1], seen[2], strict=True)]
    details = "; ".join(f"{workers}: {np.median(times):.2f} s" for workers, times in seen.items())
    settings.row(
        "busy loop of 5 ms a record, workers=2 against 1, start excluded", at_least(1.85), both, details
    )


def timed_from_the_first_record(settings: Settings, records: int, workers: int) -> float:
    """Return how long a build takes from when a worker has read its first record."""
    log, root = settings.path("log"), settings.path("cache")
    log.unlink(missing_ok=True)
    yogadl.open_storage(root).submit(Busy(records, log), "set", "1", workers=workers)
    ended = time.monotonic()
    check_numbers(root, records)
    clear(root)
    said = list(map(float, log.read_text().split()))
    return ended - said[1]  # the first was read to see what records are like


def check_numbers(root: Path, records: int) -> None:
    """Stop unless the cache has each record once, in order."""
    found = yogadl.open_storage(root).fetch("set", "1").gather(range(records))["n"]
    if not np.array_equal(found, np.arange(records)):
        sys.exit("a build has not each record once, in order")


# Memory.


def memory(settings: Settings) -> None:
    """Print the rows of memory maps, and of files in partitions."""
    rows = settings.scaled(LARGE_ROWS)
    folder = settings.path("files")
    folder.mkdir()
    paths = []
    rng = np.random.default_rng(0)
    for number in range(LARGE_FILES):
        paths.append(folder / f"{number:03d}.npy")
        np.save(paths[-1], rng.integers(0, 255, (rows, 131_072), np.uint8))
    whole = folder / "whole.npy"
    target = np.lib.format.open_memmap(whole, "w+", np.uint8, (rows * LARGE_FILES, 131_072))
    for number, path in enumerate(paths):
        target[number * rows : (number + 1) * rows] = np.load(path, mmap_mode="r")
    del target
    os.sync()  # a page that is not on the disk yet counts as private and dirty
    size = f"{whole.stat().st_size / 1e9:.1f} GB"
    say(f"{size} of files are there")
    for kind, workers in (("memmap", 1), ("memmap", 2), ("partitions", 1), ("partitions", 2)):
        found = in_child(
            __file__,
            "build_large",
            root=str(settings.path("cache")),
            kind=kind,
            workers=workers,
            folder=str(folder),
        )
        what = "a .npy memmap" if kind == "memmap" else f"{LARGE_FILES} .npy files in partitions"
        details = f"{found['seconds']:.1f} s"
        settings.row(
            f"private memory over all processes, {size} of {what}, workers={workers}",
            at_most(500, " MB"), [found["MB"]], details,
        )  # fmt: skip
        clear(settings.path("cache"))
    clear(folder)


def build_large(root: str, kind: str, workers: int, folder: str) -> dict[str, float]:
    """Build in a fresh process, and return the most private memory that it and its workers had together."""
    source: Any
    if kind == "memmap":
        source = np.load(f"{folder}/whole.npy", mmap_mode="r")
    else:
        paths = sorted(path for path in Path(folder).glob("*.npy") if path.stem != "whole")
        source = yogadl.partitioned.of(paths, functools.partial(np.load, mmap_mode="r"))
    most, is_over = [0.0], threading.Event()

    def watch() -> None:
        while not is_over.wait(0.05):
            most[0] = max(most[0], sum(map(private_bytes_of, family(os.getpid()))))

    thread = threading.Thread(target=watch)
    thread.start()
    started = time.perf_counter()
    yogadl.open_storage(root).submit(source, "set", "1", workers=workers)
    elapsed_s = time.perf_counter() - started
    is_over.set()
    thread.join()
    return {"MB": most[0] / 1e6, "seconds": elapsed_s}


def family(pid: int) -> Iterator[int]:
    """Yield a process and all that it has started."""
    yield pid
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [child for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return  # it has ended
    for child in children:
        yield from family(int(child))


def private_bytes_of(pid: int) -> int:
    """Return the memory of a process that is no file's, and its page tables.

    Clean pages of files are the kernel's, which takes them back whenever it needs them.
    """
    names = {"smaps_rollup": ("Private_Dirty:",), "status": ("VmPTE:",)}
    found = 0
    for file, wanted in names.items():
        try:
            lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
        except OSError:
            return 0  # it has ended
        found += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(wanted))
    return found


# A kill.


def killed(settings: Settings, build: str = "builds.build_busy") -> None:
    """Print the row of a build that was killed half way, and gone on with.

    Args:
        settings: As for all.
        build: The function that builds, by module and name.
    """
    records = settings.scaled(KILLED_RECORDS * 4)
    log, root = settings.path("log"), settings.path("cache")
    log.unlink(missing_ok=True)
    say(f"a build of {records * BUSY_S / 2:.0f} s with two workers, killed half way")
    module, name = build.split(".")
    code = f"import {module}; {build}({str(root)!r}, {records}, {str(log)!r})"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    script = settings.path("driver.py")
    script.write_text(f'if __name__ == "__main__":\n    {code}\n')
    driver = subprocess.Popen([sys.executable, str(script)], env=environment)
    while not log.exists() or log.read_text().count("\n") < records // 2:
        if driver.poll() is not None:
            sys.exit("the build that was to be killed has ended")
        time.sleep(0.01)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    time.sleep(2)  # its workers end, too
    getattr(importlib.import_module(module), name)(str(root), records, str(log))
    check_numbers(root, records)
    read = log.read_text().count("\n")
    settings.row(
        f"{name}: killed at 50 % and continued, records read over both runs / records",
        at_most(1.1), [read / records], f"{read:,} for {records:,}",
    )  # fmt: skip
    clear(root)


def build_busy(root: str, records: int, log: str) -> None:
    """Build with two workers; say in a file what was read."""
    yogadl.open_storage(root).submit(Busy(records, Path(log)), "set", "1", workers=2)


# Many partitions.


def many_partitions(settings: Settings) -> None:
    """Print the rows of a thousand partitions of a megabyte."""
    partitions = settings.scaled(PARTITIONS)
    say(f"{partitions:,} partitions of {EACH:,} records of 1 KB")
    root = settings.path("cache")
    storage = yogadl.open_storage(root)

    def rows(number: int) -> dict[str, np.ndarray]:
        return {"x": np.random.default_rng(number).integers(0, 255, (EACH, 1024), np.uint8)}

    build = storage.begin("set", "1", partitions=partitions)
    for number in range(partitions):
        build.write(number, rows(number))
    elapsed_s = timed(build.commit)
    settings.row(f"commit of {partitions:,} partitions", at_most(3, " s"), [elapsed_s])
    many = disk_bytes(root)
    fingerprint = storage.info("set", "1").fingerprint
    clear(root)
    one = (record for number in range(partitions) for record in ({"x": x} for x in rows(number)["x"]))
    storage.submit(one, "set", "1")
    if storage.info("set", "1").fingerprint != fingerprint:
        sys.exit("the cache of many partitions is not that of one build")
    settings.row(
        f"bytes of {partitions:,} partitions of 1 MB / those of one build",
        at_most(1.1), [many / disk_bytes(root)], f"{many / 1e6:,.1f} MB",
    )  # fmt: skip
    clear(root)


def disk_bytes(root: Path) -> int:
    """Return how many bytes the files below a folder take on the disk, or have, whichever is more."""
    stats = [path.stat() for path in root.rglob("*") if path.is_file()]
    return max(sum(one.st_blocks * 512 for one in stats), sum(one.st_size for one in stats))


def timed(work: Callable[[], object]) -> float:
    """Return how many seconds it takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main(__file__, measure, {"build_large": build_large})
