"""Print what an order costs: nanoseconds an index, chunks of 16,384 positions, best of several runs.

Run ``python benchmarks/order.py``; it takes some seconds. It justifies the flat code of `yogadl._order`.
"""

import time
import tracemalloc
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from yogadl._order import Blocks, Order, Sequences, SequencesOfEpisodes, make_order

CHUNK = 16384


def time_ns(work: Callable[[], object], repeats: int = 15) -> float:
    """Return the fastest of several runs."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter_ns()
        work()
        best = min(best, time.perf_counter_ns() - start)
    return best


def spread_chunks(records: int, chunk: int) -> list[NDArray[np.int64]]:
    """Return some runs of neighbouring positions, spread over the epoch."""
    starts = np.linspace(0, max(0, records - chunk), 24).astype(np.int64)
    return [np.arange(start, min(records, start + chunk), dtype=np.int64) for start in starts]


def measure(order: Order, chunk: int = CHUNK, inverse: bool = False) -> float:
    """Return nanoseconds an index, in steady state."""
    chunks = spread_chunks(order.records, chunk)
    compute = order.positions if inverse else order.indices

    def work() -> None:
        for positions in chunks:
            compute(positions, 0)

    work()
    return time_ns(work) / sum(map(len, chunks))


def measure_sequences() -> None:
    """Print the cost of 64 lanes of 100,000 episodes beside that of the global shuffle of as many records."""
    ends = np.cumsum(1 + np.random.default_rng(0).integers(0, 400, 100_000))
    records = int(ends[-1])
    order, shuffle = (
        make_order(records, SequencesOfEpisodes(Sequences(64), ends), 0),
        make_order(records, True, 0),
    )
    cost, beside = measure(order), measure(shuffle)
    epoch = iter(range(1, 1_000_000))
    laid_out = time_ns(lambda: order.indices(np.array([0]), next(epoch)))
    print(
        f"sequences, n = {records:.0e}, 100,000 episodes: {cost:.1f} ns an index, global {beside:.1f}; "
        f"a new epoch {laid_out / 1e6:.0f} ms, {laid_out / records:.1f} ns a record"
    )


def main() -> None:
    """Print the table."""
    # A process that has freed one big array, as any reader of batches has: before that glibc returns
    # memory to the system again and again, and `Blocks` may take twice as long.
    np.ones(1 << 24, np.uint8)
    epoch = iter(range(1_000_000))
    for records in (10_000, 32_768):
        order, everything = make_order(records, True, 0), np.arange(records)
        cost = time_ns(lambda o=order, p=everything: o.indices(p, next(epoch))) / records  # type: ignore[misc]
        print(f"global, n = {records:.0e}, a new epoch each time: {cost:.1f} ns a record")
    cases: list[tuple[str, Order]] = [
        (f"global, n = {records:.0e}", make_order(records, True, 0))
        for records in (20_000, 50_000, 10**6, 10**8, 10**9, 10**10)
    ]
    cases += [
        ("blocks, n = 2,000,003, odd", make_order(2_000_003, Blocks(records=127, window=5, lanes=101), 0)),
        ("blocks, n = 1e7, 7,680 lanes", make_order(10**7, Blocks(records=128, window=8), 0)),
        ("blocks, n = 2.4e9, 7,680 lanes", make_order(2_400_000_000, Blocks(records=128, window=8), 0)),
        ("blocks, n = 1e6, all is rest", make_order(10**6, Blocks(records=128, window=8), 0)),
    ]
    measure_sequences()
    for name, order in cases:
        forward, back = measure(order), measure(order, inverse=True)
        small = measure(order, chunk=256)
        print(f"{name}: {forward:.1f} ns an index, inverse {back:.1f}, in batches of 256 {small:.1f}")
    order = make_order(10**10, True, 123)
    tracemalloc.start()
    start = time.perf_counter_ns()
    order.indices(np.array([5]), 0)
    elapsed = time.perf_counter_ns() - start
    peak = tracemalloc.get_traced_memory()[1]
    print(f"first index at n = 1e10: {elapsed / 1e6:.2f} ms, {peak / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
