"""Measure what the named order `yogadl.Blocks` costs beside an epoch's reading, and that it is exact.

Run ``python benchmarks/blocks.py``. It justifies the flat code of `yogadl._order.orders`.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import _sets
import numpy as np
from _measure import (
    Settings,
    at_least,
    at_most,
    clear,
    drain,
    interleave,
    main,
    rate,
)
from _sets import DataSet

import yogadl
from yogadl._order.orders import BlocksOrder

RECORDS = 2_000_003
# The bar is for 8 KB records, of which 128 are a block of 1 MB; of smaller ones there are more in a block.
CASES = (
    (_sets.TOKENS, yogadl.Blocks(records=128, window=4, lanes=16), at_most(5, " %")),
    (_sets.SMALL_IMAGES, yogadl.Blocks(records=256, window=4, lanes=16), at_most(5, " %")),
    (_sets.LARGE_IMAGES, yogadl.Blocks(records=8, window=4, lanes=16), at_most(5, " %")),
    (_sets.VECTORS, yogadl.Blocks(records=1024, window=4, lanes=16), None),
)
ODD = (yogadl.Blocks(records=127, window=5, lanes=101), yogadl.Blocks(records=977, window=3, lanes=7))


def measure(settings: Settings) -> None:
    """Measure the share of an epoch's time spent on the Blocks order, and that it is a bijection."""
    for data, order, bar in CASES:
        measure_share(settings, data, order, bar)
    for order in ODD:
        check_exact(settings, order)


class Clock:
    """Add up the time that the order takes inside of an epoch."""

    def __init__(self) -> None:
        self.elapsed_s = 0.0
        self.indices = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Time each call of the order's `indices`, of which there is one for many batches."""
        original = BlocksOrder.indices

        def timed(order: BlocksOrder, positions: Any, epoch: int) -> Any:
            started = time.perf_counter()
            found = original(order, positions, epoch)
            self.elapsed_s += time.perf_counter() - started
            self.indices += len(found)
            return found

        with mock.patch.object(BlocksOrder, "indices", timed):
            yield


def measure_share(settings: Settings, data: DataSet, order: yogadl.Blocks, bar: Any) -> None:
    """Print the row of one set."""
    columns, storage = _sets.built(settings, data)
    records = settings.scaled(data.records)
    loader = storage.fetch("set", "1").stream(shuffle=order, shuffle_seed=1).batch(data.batch)
    _sets.check_epoch(loader, columns, data)
    shares, nanoseconds = [], []

    def epoch() -> None:
        clock, started = Clock(), time.perf_counter()
        with clock.running():
            drain(iter(loader))
        shares.append(100 * clock.elapsed_s / (time.perf_counter() - started))
        nanoseconds.append(1e9 * clock.elapsed_s / clock.indices)

    times = interleave({"ours": epoch}, settings.rounds)
    shares, nanoseconds = shares[-settings.rounds :], nanoseconds[-settings.rounds :]
    clear(settings.path("cache"))
    details = f"{rate(records, times['ours'])}; {np.median(nanoseconds):.0f} ns an index; {order}"
    settings.row(f"Blocks order, share of an epoch's time, {data.name}", bar, shares, details, unit=" %")


def check_exact(settings: Settings, order: yogadl.Blocks) -> None:
    """Print how many records of an epoch came exactly once, read in batches over three shards."""
    ref = yogadl.from_source(np.arange(RECORDS), fingerprint="numbers")
    seen = np.zeros(RECORDS, np.int64)
    for rank in range(3):
        stream = ref.stream(shuffle=order, shuffle_seed=7, shard_rank=rank, num_shards=3)
        for batch in stream.batch(4_099):
            np.add.at(seen, batch, 1)
    once = int((seen == 1).sum())
    what = f"Blocks order, records that came exactly once of {RECORDS:,}"
    settings.row(what, at_least(RECORDS, ""), [once], f"3 shards; {order}")


if __name__ == "__main__":
    main(__file__, measure)
