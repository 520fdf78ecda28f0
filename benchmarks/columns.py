"""Compare builds from tables with builds from the same arrays, and from Parquet files with reading those.

Run ``python benchmarks/columns.py``, with pyarrow, pandas, polars and datasets installed. Every round
builds anew, and the disk is done with the last files before the clock starts. It justifies
`yogadl.adapters.arrays`.
"""

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from _measure import Settings, at_least, batches_of, check_equal, clear, main, rate, ratios, say

import yogadl
from yogadl.adapters import arrays

RECORDS = 1_000_000
UNCOUNTED = 2
TABLE_BAR = at_least(0.5)
PARQUET_BAR = at_least(0.5)


def measure(settings: Settings) -> None:
    """Measure builds from tables against arrays, and from Parquet files against reading them."""
    records = settings.scaled(RECORDS)
    columns = numbers(records)
    from_tables(settings, columns)
    mixed = {name: columns[name] for name in list(columns)[:8]} | others(records)
    from_parquet(settings, "10 columns of numbers", columns, {})
    from_parquet(settings, "10 columns of numbers, zstd", columns, {"compression": "zstd"})
    from_parquet(settings, "8 of numbers, 1 of time, 1 of text", mixed, {})


def numbers(records: int) -> dict[str, np.ndarray]:
    """Make ten columns of numbers."""
    random = np.random.default_rng(1)
    return {
        **{f"float32_{i}": random.random(records, np.float32) for i in range(4)},
        **{f"float64_{i}": random.random(records) for i in range(2)},
        "small": random.integers(0, 1000, records).astype(np.int32),
        "label": random.integers(0, 10, records),
        "id": np.arange(records),
        "flag": random.integers(0, 2, records).astype(np.int8),
    }


def others(records: int) -> dict[str, Any]:
    """Make a column of timestamps and one of text, of a thousand words."""
    random = np.random.default_rng(2)
    words = np.array([f"word-{i}" for i in range(1000)])
    return {
        "time": np.datetime64("2026-01-01", "us") + random.integers(0, 10**12, records),
        "word": words[random.integers(0, 1000, records)],
    }


def from_tables(settings: Settings, columns: Mapping[str, np.ndarray]) -> None:
    """Print a row for each library: its build against that of the arrays."""
    records = len(columns["id"])
    table = pa.table(dict(columns))
    file = settings.path("table.parquet")
    pq.write_table(table, file)
    sources = {
        "pyarrow": table,
        "polars": pl.from_arrow(table),
        "pandas": table.to_pandas(),
        "HF": datasets.Dataset(table),
        "HF, from its files of 1,000 rows a batch": hugging_face(file, settings.path("hf")),
    }
    say(f"tables of {records:,} records, 10 columns of numbers")
    root = settings.path("cache")
    for name, source in sources.items():
        times = take_turns(
            settings, {"arrays": partial(build, root, columns), "table": partial(build, root, source)}, root
        )
        check(root, source, columns)
        details = f"{rate(records, times['table'])} records, arrays {rate(records, times['arrays'])}"
        settings.row(
            f"build from a table against arrays, {name}",
            TABLE_BAR,
            ratios(times["arrays"], times["table"]),
            details,
        )
    file.unlink()


def hugging_face(file: Path, cache: Path) -> Any:
    """Load a file as HF datasets do by default: into files of Arrow, mapped into memory."""
    datasets.disable_progress_bars()
    return datasets.Dataset.from_parquet(str(file), cache_dir=str(cache))


def from_parquet(
    settings: Settings, what: str, columns: Mapping[str, Any], options: Mapping[str, Any]
) -> None:
    """Print the row of a Parquet file: its build against `read_table`, and what arrays of it take."""
    file, root = settings.path("numbers.parquet"), settings.path("cache")
    table = pa.table(dict(columns))
    pq.write_table(table, file, **options)
    records = len(table)
    say(f"Parquet, {what}: {records:,} records, {file.stat().st_size / 1e6:.0f} MB")
    times = take_turns(
        settings,
        {
            "read_table": partial(pq.read_table, file),
            "build": lambda: build(root, arrays.parquet(file)),
            "build from the table": partial(build, root, table),
        },
        root,
    )
    check(root, arrays.parquet(file), columns)
    medians = {name: f"{np.median(seen) * 1e3:.0f} ms" for name, seen in times.items()}
    details = "; ".join(f"{name} {took}" for name, took in medians.items())
    settings.row(
        f"build from Parquet against read_table, {what}",
        PARQUET_BAR,
        ratios(times["read_table"], times["build"]),
        details,
    )
    file.unlink()


def build(root: Path, source: Any) -> None:
    """Build a cache."""
    yogadl.open_storage(root).submit(source, "set", "1")


def take_turns(
    settings: Settings, works: Mapping[str, Callable[[], object]], root: Path
) -> dict[str, list[float]]:
    """Return the seconds of each work in each round, the disk idle and the cache gone before each."""
    times: dict[str, list[float]] = {name: [] for name in works}
    names = list(works)
    for number in range(UNCOUNTED + settings.rounds):
        for name in names:
            clear(root)
            os.sync()
            started = time.perf_counter()
            works[name]()
            elapsed_s = time.perf_counter() - started
            if number >= UNCOUNTED:
                times[name].append(elapsed_s)
        names.append(names.pop(0))
    return times


def check(root: Path, source: Any, columns: Mapping[str, Any]) -> None:
    """Compare the whole cache with the arrays."""
    clear(root)
    build(root, source)
    ref = yogadl.open_storage(root).fetch("set", "1")
    for chosen in batches_of(np.arange(len(ref)), 100_000):
        expected = {
            name: column[chosen].tolist() if column.dtype.kind == "U" else column[chosen]
            for name, column in columns.items()
        }
        check_equal(ref.gather(chosen), expected, "a table")
    clear(root)


if __name__ == "__main__":
    main(__file__, measure)
