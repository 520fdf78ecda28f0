"""Measure the private memory of a stream that reads a cache of 2 GB.

Run ``python benchmarks/memory.py``. The cache is mapped, so its pages belong to the kernel and all processes
share them; what is measured is what a process has for itself alone, page tables included, at its highest.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from _measure import (
    Settings,
    anonymous_bytes,
    at_most,
    clear,
    drain,
    in_child,
    main,
    page_table_bytes,
    private_bytes,
    say,
)

import yogadl

WIDTH = 2048
RECORDS = 250_000  # of 8 KB: 2.05 GB
BATCH = 256
DEPTHS = (0, 2)  # batches read ahead
LIMIT_MB = round(64 + 3 * BATCH * WIDTH * 4 / 1e6, 1)


def measure(settings: Settings) -> None:
    """Measure the private memory of a stream that reads a cache of 2 GB."""
    records = settings.scaled(RECORDS)
    say(f"{records:,} records of 8 KB: building them takes a while")
    root = settings.path("cache")
    storage = yogadl.open_storage(root)
    storage.submit(Rows(records), "set", "1")
    # Mapped and touched here too, so that the child's pages of files are no private memory of its own.
    ref = storage.fetch("set", "1")
    drain(iter(ref.stream(shuffle=True).batch(BATCH)))
    for depth in DEPTHS:
        seen = [in_child(__file__, "read_shuffled", root=str(root), depth=depth) for _ in range(3)]
        details = "; ".join(f"{name} {np.median([one[name] for one in seen]):.1f}" for name in seen[0])
        stage = f".prefetch({depth})" if depth else ""
        size = f"{4 * WIDTH * records / 1e9:.1f} GB"
        what = f"private memory of a stream over {size}, .batch({BATCH}){stage}"
        total = [one["private MB"] + one["VmPTE MB"] for one in seen]
        settings.row(what, at_most(LIMIT_MB, " MB"), total, details)
    del ref
    clear(root)


class Rows:
    """Give records that can be told from their number, a chunk of them at a time."""

    def __init__(self, records: int) -> None:
        self._records = records

    def __len__(self) -> int:
        return self._records

    def __getitem__(self, index: int) -> np.ndarray:
        row: np.ndarray = expected(np.array([index]))[0]
        return row

    def __getitems__(self, indices: list[int]) -> Iterator[Any]:
        return iter(expected(np.array(indices)))


def expected(indices: np.ndarray) -> np.ndarray:
    """Return the records that have these numbers."""
    return (indices[:, None] * 7 + np.arange(WIDTH)).astype(np.int32)


def read_shuffled(root: str, depth: int) -> dict[str, float]:
    """Read a shuffled epoch in a fresh process; return the most that it took, in MB."""
    np.random.default_rng(0).random((BATCH, WIDTH)).astype(np.int32)  # numpy itself is warm
    before = (private_bytes(), anonymous_bytes(), page_table_bytes())
    most = list(before)
    ref = yogadl.open_storage(root).fetch("set", "1")
    loader = ref.stream(shuffle=True, shuffle_seed=1).batch(BATCH)
    wanted = loader.stream
    first = 0
    for number, batch in enumerate(loader.prefetch(depth) if depth else loader):
        if number % 16 == 0:
            now = (private_bytes(), anonymous_bytes(), page_table_bytes())
            most = [max(pair) for pair in zip(most, now, strict=True)]
        if number % 64 == 0 and not np.array_equal(
            batch, expected(wanted.indices(0, first, first + len(batch)))
        ):
            raise SystemExit("a batch is not what the source has")
        first += len(batch)
    if first != len(ref):
        raise SystemExit("an epoch has not each record once")
    names = ("private MB", "of that anonymous MB", "VmPTE MB")
    return {name: (m - b) / 1e6 for name, m, b in zip(names, most, before, strict=True)}


if __name__ == "__main__":
    main(__file__, measure, {"read_shuffled": read_shuffled})
