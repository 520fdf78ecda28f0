"""Build the sets that the bars of `benchmarks/README.md` speak of, and check what is read of them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from _data import (  # noqa: F401 (the scripts find all about sets here)
    ALL,
    LARGE_IMAGES,
    SMALL_IMAGES,
    TOKENS,
    VARYING,
    VECTORS,
    Columns,
    DataSet,
    large_images,
    small_images,
    tokens,
    vectors,
)
from _measure import Settings, batches_of, check_equal, say

import yogadl


def take(columns: Mapping[str, Any], chosen: np.ndarray) -> Columns:
    """Gather one batch from memory; bytes are copied, as a reader would."""
    batch: Columns = {}
    for name, column in columns.items():
        if isinstance(column, np.ndarray):
            batch[name] = column[chosen]
        else:
            batch[name] = [bytes(memoryview(column[index])) for index in chosen.tolist()]
    return batch


def payload_bytes(columns: Mapping[str, Any]) -> int:
    """Return how many bytes the records themselves have."""
    return sum(
        column.nbytes if isinstance(column, np.ndarray) else sum(map(len, column))
        for column in columns.values()
    )


def built(settings: Settings, data: DataSet) -> tuple[Columns, yogadl.Storage]:
    """Make a set and build version 1 of "set" from it, in a storage in the benchmark's folder "cache"."""
    records = settings.scaled(data.records)
    say(f"{data.name}: {records:,} records")
    columns = data.make(records)
    storage = yogadl.open_storage(settings.path("cache"))
    storage.submit(columns, "set", "1")
    return columns, storage


def check_epoch(loader: Any, columns: Columns, data: DataSet) -> None:
    """End the benchmark unless a loader's first epoch is what its stream says."""
    wanted = batches_of(loader.stream.indices(), data.batch)
    for ours, chosen in zip(loader.at(epoch=0), wanted, strict=True):
        check_equal(ours, take(columns, chosen), data.name)
