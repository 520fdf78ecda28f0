"""Measure how long it takes until something comes: a first batch, a first index, an import.

Run ``python benchmarks/start.py``. Each number is from processes of its own; the median of several.
"""

import json
import subprocess
import sys
import time
import tracemalloc

import _sets
import numpy as np
from _measure import Settings, at_most, check_equal, clear, in_child, main

import yogadl

DATA = _sets.VECTORS
STARTS = (0.0, 0.99)
HUGE = 10**10
PROCESSES = 15


def measure(settings: Settings) -> None:
    """Measure the time to a first batch, to a first index, and to import."""
    processes = 3 if settings.is_quick else PROCESSES
    first_batch(settings, processes)
    first_index(settings, processes)
    importing(settings, processes)


def first_batch(settings: Settings, processes: int) -> None:
    """Print the rows of the first batch after opening, from the epoch's start and from near its end."""
    columns, storage = _sets.built(settings, DATA)
    records = settings.scaled(DATA.records)
    stream = storage.fetch("set", "1").stream(shuffle=True, shuffle_seed=1)
    for share in STARTS:
        delivered = int(records * share)
        cursor = stream.cursor(delivered=delivered)
        chosen = stream.indices(0, delivered, delivered + DATA.batch)
        expected = {name: array.tolist() for name, array in _sets.take(columns, chosen).items()}
        settings.path("expected.json").write_text(json.dumps(expected))
        seen = [
            in_child(
                __file__,
                "read_first",
                root=str(settings.path("cache")),
                cursor=cursor if share else None,
                expected=str(settings.path("expected.json")),
            )
            for _ in range(processes)
        ]
        after = [one["batch_ms"] for one in seen]
        everything = [one["open_ms"] + one["batch_ms"] for one in seen]
        details = f"fetch {np.median([one['open_ms'] for one in seen]):.1f} ms before that"
        settings.row(
            f"first batch after open, from {share:.0%} of {DATA.name}", at_most(30, " ms"), after, details
        )
        details = "with open_storage, fetch, and the modules that they import"
        settings.row(f"the same with opening, from {share:.0%}", at_most(45, " ms"), everything, details)
    clear(settings.path("cache"))


def read_first(root: str, cursor: dict[str, object] | None, expected: str) -> dict[str, float]:
    """Open a cache and read one batch; return how long both took."""
    started = time.perf_counter()
    ref = yogadl.open_storage(root).fetch("set", "1")
    opened = time.perf_counter()
    batch = next(iter(ref.stream(shuffle=True, shuffle_seed=1, cursor=cursor).batch(DATA.batch)))
    done = time.perf_counter()
    with open(expected) as file:
        columns = {name: np.array(column, batch[name].dtype) for name, column in json.load(file).items()}
    check_equal(batch, columns, "the first batch")
    return {"open_ms": 1e3 * (opened - started), "batch_ms": 1e3 * (done - opened)}


class Huge:
    """Stand for a dataset that nobody has: the records are their own numbers."""

    def __len__(self) -> int:
        return HUGE

    def __getitem__(self, index: int) -> int:
        return index


def first_index(settings: Settings, processes: int) -> None:
    """Print the rows of the first shuffled index of 10 billion."""
    seen = [in_child(__file__, "find_first", is_traced=False) for _ in range(processes)]
    settings.row(f"first shuffled index at n = {HUGE:.0e}", at_most(5, " ms"), [one["ms"] for one in seen])
    traced = [in_child(__file__, "find_first", is_traced=True) for _ in range(3)]
    details = "tracemalloc's peak, from stream() on"
    settings.row(f"its memory at n = {HUGE:.0e}", at_most(1, " MB"), [one["MB"] for one in traced], details)


def find_first(is_traced: bool) -> dict[str, float]:
    """Find the first index of a shuffled epoch; return time and memory."""
    ref = yogadl.from_source(Huge(), fingerprint="huge")
    if is_traced:
        tracemalloc.start()
    started = time.perf_counter()
    found = ref.stream(shuffle=True, shuffle_seed=7).indices(0, 0, 1)
    elapsed_s = time.perf_counter() - started
    peak = tracemalloc.get_traced_memory()[1] if is_traced else 0
    if not 0 <= int(found[0]) < HUGE:
        raise SystemExit("that is no index")
    return {"ms": 1e3 * elapsed_s, "MB": peak / 1e6}


def importing(settings: Settings, processes: int) -> None:
    """Print the row of `import yogadl`, less `import numpy`."""
    times: dict[str, list[float]] = {"numpy": [], "yogadl": []}
    for number in range(processes + 1):
        for name, seen in times.items():
            code = f"import time; t = time.perf_counter(); import {name}; print(time.perf_counter() - t)"
            done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
            if number:  # the first one may have to compile
                seen.append(1e3 * float(done.stdout))
    medians = {name: float(np.median(seen)) for name, seen in times.items()}
    more = [ours - medians["numpy"] for ours in times["yogadl"]]
    details = f"{medians['yogadl']:.0f} ms, numpy {medians['numpy']:.0f} ms"
    settings.row("import yogadl, more than import numpy", at_most(60, " ms"), more, details)


if __name__ == "__main__":
    main(__file__, measure, {"read_first": read_first, "find_first": find_first})
