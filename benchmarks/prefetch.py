"""Measure reading ahead: drained, beside a consumer that computes, and from a cold page cache.

Run ``python benchmarks/prefetch.py``. It justifies that whole reads are handed over and that the allocator is
settled in `yogadl._stream.recipe`, what several threads read at a time in `yogadl._stream.items`, and the
hints to the kernel in `yogadl._format`.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import _sets
import numpy as np
from _measure import (
    Settings,
    at_least,
    at_most,
    batches_of,
    clear,
    drain,
    interleave,
    main,
    rate,
    ratios,
    say,
)

import yogadl

# With what two threads have to reach.
FIXED = ((_sets.VECTORS, 1.5), (_sets.SMALL_IMAGES, 1.2), (_sets.TOKENS, 1.2), (_sets.LARGE_IMAGES, 1.2))
DEPTH = 2
THREADS = 2
COLD_RECORDS = 250_000


def measure(settings: Settings) -> None:
    """Measure `prefetch(2)` in a thread and in two, and reading ahead of a cold page cache."""
    for data, bar in FIXED:
        columns, storage = _sets.built(settings, data)
        ref = storage.fetch("set", "1")
        against_memory(settings, data, columns, ref, bar)
        clear(settings.path("cache"))
    cold(settings)


def against_memory(
    settings: Settings, data: _sets.DataSet, columns: _sets.Columns, ref: yogadl.RecordsRef, bar: float
) -> None:
    """Print the rows of one set: drained by a loop that does nothing, and beside one that computes."""
    stream = ref.stream(shuffle=True, shuffle_seed=1)
    wanted = batches_of(stream.indices(), data.batch)
    loader = stream.batch(data.batch).prefetch(DEPTH)
    threaded = stream.batch(data.batch).prefetch(DEPTH, threads=THREADS)
    _sets.check_epoch(threaded, columns, data)
    times = interleave(
        {
            "limit": lambda: drain(_sets.take(columns, chosen) for chosen in wanted),
            "ours": lambda: drain(iter(loader)),
            "threaded": lambda: drain(iter(threaded)),
        },
        settings.rounds,
    )
    details = f"{rate(len(ref), times['ours'])}; RAM {rate(len(ref), times['limit'])}"
    share = ratios(times["limit"], times["ours"])
    settings.row(
        f"prefetch({DEPTH}) drained, {data.name}, batch {data.batch}", at_least(0.75), share, details
    )
    settings.row(
        f"prefetch({DEPTH}, threads={THREADS}) drained, {data.name}, batch {data.batch}",
        at_least(bar),
        ratios(times["limit"], times["threaded"]),
        f"{rate(len(ref), times['threaded'])}; RAM {rate(len(ref), times['limit'])}",
    )
    compute_s = 3 * statistics.median(times["limit"]) / len(wanted)
    waits = [waiting_share(iter(loader), compute_s) for _ in range(settings.rounds)]
    settings.row(
        f"waiting beside a consumer that computes for 3 gathers, {data.name}",
        at_most(5, " %"),
        [100 * share for share in waits],
        f"{compute_s * 1e6:.0f} us a batch",
    )


def waiting_share(batches: Iterator[Any], compute_s: float) -> float:
    """Return which share of an epoch a consumer spends in `next`, if it computes so long on each batch."""
    work = Work(compute_s)
    waited_s = 0.0
    next(batches)
    started = time.perf_counter()
    while True:
        asked = time.perf_counter()
        try:
            next(batches)
        except StopIteration:
            break
        waited_s += time.perf_counter() - asked
        work.run()
    return waited_s / (time.perf_counter() - started)


class Work:
    """Compute for a while without the interpreter's lock, as a training step does."""

    def __init__(self, seconds: float) -> None:
        self._values = np.random.default_rng(0).random(4096)
        self._out = np.empty_like(self._values)
        self._times = 1
        while self._measured() < seconds:
            self._times += max(1, self._times // 8)

    def run(self) -> None:
        """Compute."""
        for _ in range(self._times):
            np.sin(self._values, out=self._out)

    def _measured(self) -> float:
        times = []
        for _ in range(5):
            started = time.perf_counter()
            self.run()
            times.append(time.perf_counter() - started)
        return min(times)


def cold(settings: Settings) -> None:
    """Print the row of a cold page cache: 8 KB records, shuffled, with the hint and without."""
    records = settings.scaled(COLD_RECORDS)
    say(f"cold page cache: {records:,} records of 8 KB")
    root = settings.path("cold")
    storage = yogadl.open_storage(root)
    storage.submit(_sets.tokens(records), "set", "1")
    some = min(records, 8_192)  # a plain read of all of them would take minutes
    order = np.random.default_rng(3).permutation(records)[:some]

    def hinted(ref: yogadl.RecordsRef) -> None:
        drain(iter(ref.select(order).stream().batch(256)))

    def plain(ref: yogadl.RecordsRef) -> None:
        for batch in batches_of(order, 256):
            ref.gather(batch)

    works = {"plain": lambda: timed_cold(root, plain), "hinted": lambda: timed_cold(root, hinted)}
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(settings.rounds):
        for name, work in works.items():
            times[name].append(work())
    details = f"{rate(some, times['hinted'])}; without the hint {rate(some, times['plain'])}"
    settings.row(
        "cold page cache, 8 KB records shuffled",
        at_least(4),
        ratios(times["plain"], times["hinted"]),
        details,
    )
    clear(root)


def timed_cold(root: Path, read: Callable[[yogadl.RecordsRef], None]) -> float:
    """Return the seconds that reading takes once the parts are out of the page cache.

    Pages that are mapped stay, so the cache is opened afterwards, anew.
    """
    for part in root.rglob("*.mdb"):
        descriptor = os.open(part, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    ref = yogadl.open_storage(root).fetch("set", "1")
    started = time.perf_counter()
    read(ref)
    return time.perf_counter() - started


if __name__ == "__main__":
    main(__file__, measure)
