"""Measure Parquet files that are read where they lie: adopting them, an epoch of `Blocks`, and a bucket.

Run ``python benchmarks/parquet.py``; needs pyarrow, boto3 and obstore.
"""

import itertools
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _measure import Settings, at_least, at_most, clear, in_child, interleave, main, rate, ratios, say
from afar import BUCKET, sent_bytes, serving

import yogadl

FILES, GROUPS = 1_000, 10  # that are adopted
LOCAL_S, FAR_S = 2.0, 5.0
READ_FILES, READ_GROUPS, GROUP_ROWS, BATCH = 6, 8, 16_384, 256  # groups of about 8 MB
DELAY_S = 0.02
SHUFFLE = yogadl.Blocks("groups", window=4)


def measure(settings: Settings) -> None:
    """Print all rows."""
    root = settings.path("lake")
    many, large = root / "many", root / "large"
    write_many(many, settings.scaled(FILES))
    write_large(large, READ_FILES)
    measure_adopting(settings, root, many)
    measure_epoch(settings, large)
    measure_bucket(settings, root, large)
    clear(root)


def write_many(folder: Path, count: int) -> None:
    """Write small files of ten groups each."""
    folder.mkdir(parents=True)
    for number in range(count):
        first = number * GROUPS * 16
        values = np.arange(first, first + GROUPS * 16)
        table = pa.table({"x": values, "y": values / 3, "name": [f"record {each}" for each in values]})
        pq.write_table(table, folder / f"{number:05d}.parquet", row_group_size=16)


def write_large(folder: Path, count: int) -> None:
    """Write files of groups of about 8 MB."""
    folder.mkdir(parents=True)
    dice = np.random.default_rng(0)
    rows = READ_GROUPS * GROUP_ROWS
    words = np.array([dice.bytes(int(size)).hex() for size in dice.integers(1, 6, 5_000)])
    for number in range(count):
        texts = [" ".join(words[chosen]) for chosen in dice.integers(0, len(words), (rows, 30))]
        values = dice.normal(size=(rows, 64)).astype(np.float32)
        table = pa.table(
            {
                "number": np.arange(number * rows, (number + 1) * rows),
                "values": pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), 64),
                "text": texts,
            }
        )
        pq.write_table(table, folder / f"{number:05d}.parquet", row_group_size=GROUP_ROWS)


def measure_adopting(settings: Settings, root: Path, many: Path) -> None:
    """Print the rows of adopting files."""
    numbers = itertools.count()
    count = len(list(many.iterdir()))

    def adopt(storage: Any, paths: str) -> None:
        storage.adopt(paths, "many", str(next(numbers)))

    local = yogadl.open_storage(settings.path("caches"))
    with serving(root, DELAY_S) as url:
        far = yogadl.open_storage(
            settings.path("caches"), foreign={"s3://many": BUCKET | {"endpoint_url": url}}
        )
        times = interleave({"local": partial(adopt, local, f"{many}/*.parquet")}, settings.rounds)
        far_times = interleave({"far": partial(adopt, far, "s3://many/*.parquet")}, min(3, settings.rounds))
    what = f"adopting {count:,} files of {GROUPS} groups"
    settings.row(f"{what}, local", at_most(LOCAL_S, " s"), times["local"])
    settings.row(f"{what}, from a bucket behind 20 ms", at_most(FAR_S, " s"), far_times["far"])


def measure_epoch(settings: Settings, large: Path) -> None:
    """Print the row of an epoch in blocks of groups, against pyarrow in order."""
    storage = yogadl.open_storage(settings.path("caches"))
    ref = storage.adopt(f"{large}/*.parquet", "large", "1")
    seen = np.concatenate([batch["number"] for batch in ref.stream(shuffle=SHUFFLE).batch(BATCH).at(0)])
    if not np.array_equal(np.sort(seen), np.arange(len(ref))):
        raise SystemExit("parquet.py: an epoch has not each row once")

    def of_yogadl(shuffle: Any) -> None:
        fresh = storage.fetch("large", "1")  # which holds nothing decoded
        for _ in fresh.stream(shuffle=shuffle).batch(BATCH).at(0):
            pass

    def of_pyarrow() -> None:
        for path in sorted(large.iterdir()):
            for batch in pq.ParquetFile(path).iter_batches(BATCH, use_threads=True):
                converted(batch)

    works = {
        "yogadl": partial(of_yogadl, SHUFFLE), "in order": partial(of_yogadl, False), "pyarrow": of_pyarrow
    }  # fmt: skip
    times = interleave(works, settings.rounds)
    details = "; ".join(f"{name} {rate(len(ref), spent)}" for name, spent in times.items())
    what = f"epoch of Parquet in Blocks of groups, batch {BATCH}, against iter_batches({BATCH})"
    settings.row(what, at_least(0.8), ratios(times["pyarrow"], times["yogadl"]), details)


def converted(batch: Any) -> dict[str, Any]:
    """Return the values of a batch of pyarrow, as yogadl has them."""
    rows = batch.num_rows
    return {
        "number": batch.column("number").to_numpy(zero_copy_only=False).copy(),
        "values": batch.column("values").flatten().to_numpy().reshape(rows, 64).copy(),
        "text": batch.column("text").to_pylist(),
    }


def measure_bucket(settings: Settings, root: Path, large: Path) -> None:
    """Print the rows of reading from a bucket."""
    metadata = [pq.ParquetFile(path).metadata for path in large.iterdir()]
    groups = [each.row_group(number) for each in metadata for number in range(each.num_row_groups)]
    columns = sum(
        group.column(number).total_compressed_size for group in groups for number in range(group.num_columns)
    )
    say(f"{len(groups)} groups of {columns / len(groups) / 1e6:.1f} MB")
    with serving(root, DELAY_S) as url:
        far = yogadl.open_storage(root / "caches", foreign={"s3://large": BUCKET | {"endpoint_url": url}})
        far.adopt("s3://large/*.parquet", "large", "1")
        first = [in_child(__file__, "first_batch", url=url) for _ in range(max(3, settings.rounds))]
        epoch = in_child(__file__, "far_epoch", url=url)
    what = "groups of 8 MB in a bucket behind 20 ms, mirror=None"
    settings.row(f"first batch of Blocks, {what}", at_most(1.0, " s"), first)
    settings.row(
        f"bytes of an epoch of Blocks, {what}, against the columns'",
        at_most(1.02),
        [epoch["bytes"] / columns],
        f"plan {epoch['planned'] / columns:.3f} x; {epoch['rows'] / epoch['seconds']:,.0f} rows/s",
    )


def opened(url: str) -> Any:
    """Return the version in the bucket."""
    return yogadl.open_storage(
        "s3://caches", endpoint_url=url, **BUCKET, mirror=None,
        foreign={"s3://large": BUCKET | {"endpoint_url": url}},
    ).fetch("large", "1")  # fmt: skip


def first_batch(url: str) -> float:
    """Return the seconds until the first batch, with opening."""
    began = time.perf_counter()
    next(iter(opened(url).stream(shuffle=SHUFFLE).batch(BATCH)))
    return time.perf_counter() - began


def far_epoch(url: str) -> dict[str, float]:
    """Read an epoch in blocks."""
    before, began = sent_bytes(url), time.perf_counter()
    ref = opened(url)
    rows = sum(len(batch["number"]) for batch in ref.stream(shuffle=SHUFFLE).batch(BATCH).at(0))
    seconds, sent = time.perf_counter() - began, sent_bytes(url) - before
    planned = ref.stream(shuffle=SHUFFLE).batch(BATCH).plan().way("ranges").bytes
    return {"bytes": sent, "rows": rows, "seconds": seconds, "planned": planned}


if __name__ == "__main__":
    main(__file__, measure, {"first_batch": first_batch, "far_epoch": far_epoch})
