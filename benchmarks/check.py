"""Measure what comparing blocks with their checksums costs: `fetch(check=True)` beside `fetch()`.

Run ``python benchmarks/check.py``. The data lie in the page cache: from a cold disk a check costs what it
takes to read whole blocks. It justifies `yogadl._format.checks`.
"""

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import _sets
from _measure import (
    Settings,
    clear,
    drain,
    interleave,
    main,
    rate,
    ratios,
)
from _sets import DataSet

SETS = (_sets.VECTORS, _sets.SMALL_IMAGES, _sets.TOKENS, _sets.VARYING)


def measure(settings: Settings) -> None:
    """Measure what comparing blocks with their checksums costs."""
    for data in SETS:
        measure_set(settings, data)


def measure_set(settings: Settings, data: DataSet) -> None:
    """Print the rows of one set: the first batch, the first epoch, and those that come later."""
    columns, storage = _sets.built(settings, data)
    records = settings.scaled(data.records)

    def opened(check: bool) -> Any:  # a stream of batches
        return storage.fetch("set", "1", check=check).stream(shuffle=True, shuffle_seed=1).batch(data.batch)

    def beside(work: Callable[[bool], object]) -> dict[str, list[float]]:
        return interleave({"plain": partial(work, False), "check": partial(work, True)}, settings.rounds)

    batch = beside(lambda check: next(iter(opened(check))))
    first = beside(lambda check: drain(iter(opened(check))))
    loaders = {check: opened(check) for check in (False, True)}
    _sets.check_epoch(loaders[True], columns, data)
    later = beside(lambda check: drain(iter(loaders[check])))
    clear(settings.path("cache"))
    what = f"with a check, {data.name}, batch {data.batch}"
    plain_ms, checked_ms = (1e3 * statistics.median(batch[name]) for name in ("plain", "check"))
    more_ms = [1e3 * (ours - theirs) for ours, theirs in zip(batch["check"], batch["plain"], strict=True)]
    details = f"{checked_ms:.1f} ms with opening; without a check {plain_ms:.1f} ms"
    settings.row(f"what the first batch takes longer {what}", None, more_ms, details, " ms")
    for name, times in (("first epoch", first), ("later epochs", later)):
        details = f"{rate(records, times['check'])}; without {rate(records, times['plain'])}"
        settings.row(f"{name} {what}", None, ratios(times["plain"], times["check"]), details, " x")


if __name__ == "__main__":
    main(__file__, measure)
