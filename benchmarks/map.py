"""Compare functions of records with Grain's, and functions of batches with the same in the loop.

Run ``python benchmarks/map.py``; needs Grain. It justifies the loops of `yogadl._views.functions`.
"""

from typing import Any

import _sets
import grain
import numpy as np
from _measure import Settings, at_least, check_equal, clear, drain, interleave, main, rate, ratios
from _sets import Columns

import yogadl

RECORDS = 60_000
BATCH = 256
NAME = "{uint8[32,32,3], int64} x 60 k"


class InRam:
    """Arrays of numpy as Grain's source of records."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns["id"])

    def __getitem__(self, index: int) -> Columns:
        return {name: column[index] for name, column in self.columns.items()}


def identity(record: Any) -> Any:
    """Return what was given."""
    return record


def as_floats(batch: Columns) -> Columns:
    """Scale a batch of images, as training loops do."""
    return {**batch, "image": batch["image"].astype(np.float32) / 255}


def measure(settings: Settings) -> None:
    """Measure shuffled epochs through functions of records and of batches."""
    columns = _sets.small_images(settings.scaled(RECORDS))
    root = settings.path("cache")
    storage = yogadl.open_storage(root)
    storage.submit(columns, "set", "1")
    stream = storage.fetch("set", "1").stream(shuffle=True, shuffle_seed=1)
    of_records(settings, stream, columns)
    of_batches(settings, stream, columns)
    clear(root)


def of_records(settings: Settings, stream: Any, columns: Columns) -> None:
    """Measure a function that returns each record as it is, against Grain over the same arrays."""
    loader = stream.map(identity).batch(BATCH)
    theirs = grain.MapDataset.source(InRam(columns)).shuffle(seed=1).map(identity).batch(BATCH)
    check_equal(loader.batch_at(0), _sets.take(columns, stream.indices(0, 0, BATCH)), "map")
    works = {"ours": lambda: drain(iter(loader)), "grain": lambda: drain(iter(theirs))}
    times = interleave(works, settings.rounds)
    records = len(stream)
    details = f"{rate(records, times['ours'])}; Grain {rate(records, times['grain'])}"
    what = f"map(identity), batch {BATCH}, {NAME}, against Grain's MapDataset in RAM"
    settings.row(what, at_least(5), ratios(times["grain"], times["ours"]), details)


def of_batches(settings: Settings, stream: Any, columns: Columns) -> None:
    """Measure `loader.map` against the same function called by the loop."""
    loader = stream.batch(BATCH)
    mapped = loader.map(as_floats)
    check_equal(mapped.batch_at(0), as_floats(_sets.take(columns, stream.indices(0, 0, BATCH))), "map")
    works = {
        "ours": lambda: drain(iter(mapped)),
        "by hand": lambda: drain(as_floats(batch) for batch in loader),
    }
    times = interleave(works, settings.rounds)
    records = len(stream)
    details = f"{rate(records, times['ours'])}; by hand {rate(records, times['by hand'])}"
    what = f"batches of {BATCH} mapped to float32, {NAME}, against the same in the loop"
    settings.row(what, at_least(0.95), ratios(times["by hand"], times["ours"]), details)


if __name__ == "__main__":
    main(__file__, measure)
