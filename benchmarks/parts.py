"""Measure what many parts cost: 64 beside one, and 5,000 with few descriptors.

Run ``python benchmarks/parts.py``. It justifies `yogadl._format.rows`.
"""

import resource
from itertools import islice
from typing import Any

import _sets
import numpy as np
from _measure import (
    Settings,
    anonymous_bytes,
    at_least,
    at_most,
    batches_of,
    check_equal,
    clear,
    drain,
    in_child,
    interleave,
    main,
    page_table_bytes,
    private_bytes,
    rate,
    ratios,
    say,
)

import yogadl

DATA = _sets.SMALL_IMAGES
PARTS = 64
MANY_PARTS = 5_000
MANY_PART_RECORDS = 20
DESCRIPTORS = 1_024


def measure(settings: Settings) -> None:
    """Measure what many parts cost."""
    compare_with_one(settings)
    read_many(settings)


def compare_with_one(settings: Settings) -> None:
    """Print the row of 64 parts against one."""
    records = settings.scaled(DATA.records)
    say(f"{DATA.name}: {records:,} records in one part and in {PARTS}")
    columns = DATA.make(records)
    root = settings.path("cache")
    storage = yogadl.open_storage(root)
    row_bytes = _sets.payload_bytes(columns) // records
    storage.submit(columns, "set", "one", build=yogadl.BuildOptions(part_bytes=2 * row_bytes * records))
    # A part ends with a block, so which limit makes just so many parts has to be tried.
    for part_records in range(-(-records // (PARTS - 1)) - 1, records // (PARTS + 2), -8):
        storage.submit(columns, "set", "many", build=yogadl.BuildOptions(part_bytes=row_bytes * part_records))
        parts = storage.info("set", "many").parts
        if parts >= PARTS:
            break
    if storage.info("set", "one").parts != 1:
        raise SystemExit("the cache that should have one part has more")
    loaders = {
        version: storage.fetch("set", version).stream(shuffle=True, shuffle_seed=1).batch(DATA.batch)
        for version in ("one", "many")
    }
    wanted = batches_of(loaders["many"].stream.indices(), DATA.batch)
    for ours, chosen in zip(loaders["many"].at(epoch=0), wanted, strict=True):
        check_equal(ours, _sets.take(columns, chosen), "many parts")
    del ours
    works = {version: lambda loader=loader: drain(iter(loader)) for version, loader in loaders.items()}
    times = interleave(works, settings.rounds)
    clear(root)
    details = f"{rate(records, times['many'])}; one part {rate(records, times['one'])}"
    settings.row(
        f"{parts} parts against one, {DATA.name}",
        at_least(0.75),
        ratios(times["one"], times["many"]),
        details,
    )


def read_many(settings: Settings) -> None:
    """Print the row of 5,000 parts under a limit of 1,024 descriptors."""
    parts = settings.scaled(MANY_PARTS)
    records = parts * MANY_PART_RECORDS
    say(f"{parts:,} parts of {MANY_PART_RECORDS} records: building them takes a while")
    columns = DATA.make(records)
    root = settings.path("cache")
    storage = yogadl.open_storage(root)
    row_bytes = _sets.payload_bytes(columns) // records
    storage.submit(columns, "set", "1", build=yogadl.BuildOptions(part_bytes=row_bytes * MANY_PART_RECORDS))
    parts = storage.info("set", "1").parts
    if parts < settings.scaled(MANY_PARTS):
        raise SystemExit(f"the cache has only {parts} parts")
    # Mapped and touched here too, so that the child's pages of files are no private memory of its own.
    ref = storage.fetch("set", "1")
    drain(iter(ref.stream(shuffle=True).batch(DATA.batch)))
    seen = [in_child(__file__, "read_shuffled", root=str(root), records=records) for _ in range(3)]
    del ref
    clear(root)
    details = "; ".join(
        f"{name} {np.median([one[name] for one in seen]):.1f}"
        for name in ("private MB", "of that anonymous MB", "VmPTE MB", "records/s")
    )
    what = f"{parts:,} parts, ulimit -n {DESCRIPTORS:,}: VmPTE + private memory of a shuffled epoch"
    total = [one["private MB"] + one["VmPTE MB"] for one in seen]
    settings.row(what, at_most(64, " MB"), total, details)


def read_shuffled(root: str, records: int) -> dict[str, float]:
    """Read a shuffled epoch in a fresh process with few descriptors; return the most that it took."""
    import time

    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    before = (private_bytes(), anonymous_bytes(), page_table_bytes())
    most = before
    started = time.perf_counter()
    ref = yogadl.open_storage(root).fetch("set", "1")
    seen = np.zeros(records, np.int64)
    loader = ref.stream(shuffle=True, shuffle_seed=1).batch(DATA.batch)
    for number, batch in enumerate(loader):
        seen[batch["id"]] += 1
        if number % 16 == 0:
            now = (private_bytes(), anonymous_bytes(), page_table_bytes())
            most = tuple(map(max, most, now))  # type: ignore[assignment]
    elapsed_s = time.perf_counter() - started
    now = (private_bytes(), anonymous_bytes(), page_table_bytes())
    most = tuple(map(max, most, now))  # type: ignore[assignment]
    if not (seen == 1).all():
        raise SystemExit("an epoch has not each record once")
    columns = DATA.make(records)
    for chosen, ours in zip(
        batches_of(loader.stream.indices(), DATA.batch), islice(loader.at(0), 8), strict=False
    ):
        check_equal(ours, _sets.take(columns, chosen), "many parts")
    private, anonymous, tables = ((after - start) / 1e6 for after, start in zip(most, before, strict=True))
    result: dict[str, Any] = {"private MB": private, "of that anonymous MB": anonymous}
    return result | {"VmPTE MB": tables, "records/s": records / elapsed_s}


if __name__ == "__main__":
    main(__file__, measure, {"read_shuffled": read_shuffled})
