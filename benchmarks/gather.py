"""Compare shuffled epochs of a cache with numpy arrays in RAM, and with LMDB that has one key a record.

Run ``python benchmarks/gather.py``. The limit is ``{k: a[idx] for k, a in arrays.items()}`` with the indices
made before; ours pays for its order, too. It justifies the flat code of `yogadl._format.reader` and
`yogadl._stream`.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import _sets
import lmdb
import numpy as np
from _measure import (
    Settings,
    at_least,
    batches_of,
    check_equal,
    clear,
    drain,
    interleave,
    main,
    rate,
    ratios,
)
from _sets import Columns, DataSet

import yogadl

LMDB_BAR = at_least(3)
LMDB_SETS = (_sets.VECTORS, _sets.SMALL_IMAGES, _sets.TOKENS)  # rows up to 8 KB


def measure(settings: Settings) -> None:
    """Measure shuffled epochs against numpy arrays in RAM and against one-key-a-record LMDB."""
    for data in _sets.ALL:
        measure_set(settings, data)


def measure_set(settings: Settings, data: DataSet) -> None:
    """Measure one set: in the batch size of its bar, and where "64 for images" might mean it, too, in 64."""
    columns, storage = _sets.built(settings, data)
    ref = storage.fetch("set", "1")
    against_memory(settings, data, columns, ref)
    if data in (_sets.SMALL_IMAGES, _sets.VARYING):
        against_memory(settings, replace(data, batch=64), columns, ref)
    if data in LMDB_SETS:
        against_lmdb(settings, data, columns, ref)
    clear(settings.path("cache"))


def epochs(ref: yogadl.RecordsRef, size: int) -> Callable[[], Iterator[Any]]:
    """Return a function that starts the next epoch each time it is called."""
    loader = ref.stream(shuffle=True, shuffle_seed=1).batch(size)
    return lambda: iter(loader)


def against_memory(settings: Settings, data: DataSet, columns: Columns, ref: yogadl.RecordsRef) -> None:
    """Print the row of the bar."""
    stream = ref.stream(shuffle=True, shuffle_seed=1)
    wanted = batches_of(stream.indices(), data.batch)
    loader = stream.batch(data.batch)
    _sets.check_epoch(loader, columns, data)
    next_epoch = epochs(ref, data.batch)
    times = interleave(
        {
            "limit": lambda: drain(_sets.take(columns, chosen) for chosen in wanted),
            "ours": lambda: drain(next_epoch()),
        },
        settings.rounds,
    )
    details = f"{rate(len(ref), times['ours'])}; RAM {rate(len(ref), times['limit'])}"
    settings.row(
        f"shuffled, {data.name}, batch {data.batch}",
        at_least(data.bar),
        ratios(times["limit"], times["ours"]),
        details,
    )


def against_lmdb(settings: Settings, data: DataSet, columns: Columns, ref: yogadl.RecordsRef) -> None:
    """Print the rows against one key a record: as `txn.get` is by default, and without its copy."""
    path = settings.path("one-key-a-record")
    wanted = batches_of(ref.stream(shuffle=True, shuffle_seed=1).indices(), data.batch)
    next_epoch = epochs(ref, data.batch)
    with write_lmdb(path, columns) as environment:
        plain = partial(read_lmdb, environment, columns, wanted, is_copying=True)
        lean = partial(read_lmdb, environment, columns, wanted, is_copying=False)
        for read in (plain, lean):
            check_equal(next(read()), _sets.take(columns, wanted[0]), "LMDB")
        works = {
            "plain": lambda: drain(plain()),
            "lean": lambda: drain(lean()),
            "ours": lambda: drain(next_epoch()),
        }
        times = interleave(works, settings.rounds, uncounted=1)
    clear(path)
    for name, note in (("plain", ""), ("lean", ", buffers=True")):
        details = f"{rate(len(ref), times['ours'])}; LMDB {rate(len(ref), times[name])}"
        what = f"against one-key-a-record LMDB{note}, {data.name}"
        settings.row(what, LMDB_BAR, ratios(times[name], times["ours"]), details)


def write_lmdb(path: Path, columns: Columns) -> lmdb.Environment:
    """Write one key a record, its fields back to back, as many data loaders do."""
    size = _sets.payload_bytes(columns)
    environment = lmdb.open(str(path), map_size=4 * size + 2**28, sync=False, readahead=False)
    count = len(next(iter(columns.values())))
    with environment.begin(write=True) as txn:
        for index in range(count):
            value = b"".join(column[index].tobytes() for column in columns.values())
            txn.put(index.to_bytes(8, "big"), value, append=True)
    environment.sync(True)
    return environment


def read_lmdb(
    environment: lmdb.Environment, columns: Columns, wanted: list[np.ndarray], is_copying: bool
) -> Iterator[dict[str, Any]]:
    """Read one key a record: `txn.get`, `np.frombuffer`, `np.stack`."""
    fields, offset = [], 0
    for name, column in columns.items():
        shape = column.shape[1:]
        count = int(np.prod(shape, dtype=int))
        fields.append((name, column.dtype, shape, count, offset))
        offset += column.dtype.itemsize * count
    options: Any = {"buffers": not is_copying}  # its type hints know literals only
    with environment.begin(**options) as txn:
        for chosen in wanted:
            values: list[Any] = [txn.get(index.to_bytes(8, "big")) for index in chosen.tolist()]
            yield {
                name: np.stack([np.frombuffer(value, dtype, count, start) for value in values]).reshape(
                    -1, *shape
                )
                for name, dtype, shape, count, start in fields
            }


if __name__ == "__main__":
    main(__file__, measure)
