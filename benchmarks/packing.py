"""Measure packs and batches by tokens: padding, planning, finding the pieces of rows, and reading rows.

Run ``python benchmarks/packing.py``. The lengths are those of 10,000 Python files of the packages that are
installed beside yogadl, four bytes a token, and lognormal ones. Padding is compared with Grain's if that is
installed; it gets the pieces cut, in a random order. It justifies the flat code of `yogadl._order.packs`.
"""

import importlib.util
import mmap
import sysconfig
import time
from bisect import bisect_left, insort
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _measure import (
    Settings,
    at_least,
    at_most,
    check_equal,
    drain,
    in_child,
    interleave,
    main,
    peak_bytes,
    rate,
    ratios,
    say,
)

import yogadl
from yogadl._order.buckets import BucketPlan
from yogadl._order.packs import PackPlan

FILES = 10_000
RECORDS = 10_000_000
BINS = 1024
BUDGET = 65_536
ROWS = 16_384
EPOCHS = 3
PLANNING_S = {2_048: 1.5, 32_768: 3.0}
PLANNING_MB = 400
OPENING_S = 0.2
PADDING = 3.0  # %
SHORTFALL = 5.0  # %
READ_DOCUMENTS, READ_CAPACITY, READ_BATCH = 80_000, 2_048, 64
AGAINST_FIXED, WITH_WORKERS = 0.35, 1.0


def measure(settings: Settings) -> None:
    """Measure the padding of packs and of buckets, then planning, opening, and finding pieces."""
    lengths = lengths_of_files()
    say(f"{len(lengths):,} files, {lengths.sum():,} tokens")
    for capacity in (2_048, 8_192):
        compare_padding(settings, lengths, capacity)
    measure_buckets(settings, lengths)
    for capacity, most_s in PLANNING_S.items():
        measure_planning(settings, capacity, most_s)
    measure_reading(settings)


def lengths_of_files() -> np.ndarray:
    """Return the lengths in tokens of Python files, in a random order."""
    paths = sorted(Path(sysconfig.get_paths()["purelib"]).rglob("*.py"))
    sizes = np.array([path.stat().st_size // 4 + 1 for path in paths], np.int64)
    return np.random.default_rng(0).permutation(sizes)[:FILES]


def compare_padding(settings: Settings, lengths: np.ndarray, capacity: int) -> None:
    """Print the row of one capacity."""
    plan = PackPlan.make(lengths, capacity)
    check_packs(plan, lengths)
    pieces = cut(lengths, capacity)
    rows = {
        "ours": plan.packs,
        "best fit, longest first": rows_of_best_fit(np.sort(pieces)[::-1], capacity),
        "first fit": rows_of_first_fit(pieces, capacity),
    }
    if importlib.util.find_spec("grain"):
        rows[f"Grain's best fit, {BINS:,} bins"] = rows_of_grain(pieces, capacity, "BestFitPackIterDataset")
        rows[f"Grain's first fit, {BINS:,} bins"] = rows_of_grain(pieces, capacity, "FirstFitPackIterDataset")
    padding = {name: 100 * (1 - pieces.sum() / (count * capacity)) for name, count in rows.items()}
    bar = at_most(round(padding[f"Grain's best fit, {BINS:,} bins"], 4), " %") if len(rows) > 3 else None
    settings.row(
        f"padding of rows of {capacity:,}, {len(lengths):,} Python files, cut",
        bar,
        [padding.pop("ours")],
        "; ".join(f"{name} {share:.3g} %" for name, share in padding.items()) + f"; {plan.packs:,} rows",
        " %",
    )
    wide = PackPlan.make(lengths, capacity, round_to=32)
    settings.row(
        f"the same, lengths rounded up to 32: rows of {capacity:,}", None, [100 * wide.padding], "", " %"
    )


def check_packs(plan: PackPlan, lengths: np.ndarray) -> None:
    """Stop unless each piece comes once."""
    found = plan.pieces(np.arange(plan.packs), 0, 0)
    values = np.bincount(found.records, found.stops - found.starts, minlength=len(lengths))
    distinct = len(np.unique(np.stack([found.records, found.starts]), axis=1).T)
    if not np.array_equal(values, lengths) or distinct != plan.pieces_per_epoch:
        raise SystemExit("a piece comes twice or not at all")


def cut(lengths: np.ndarray, capacity: int) -> np.ndarray:
    """Return the lengths of all pieces, in a random order."""
    whole, rests = np.divmod(lengths, capacity)
    pieces = np.concatenate([np.full(whole.sum(), capacity), rests[rests > 0]])
    return np.random.default_rng(1).permutation(pieces)


def rows_of_best_fit(pieces: np.ndarray, capacity: int) -> int:
    """Return how many rows best fit makes of pieces in their order."""
    spaces = list[int]()
    for size in pieces.tolist():
        at = bisect_left(spaces, size)
        insort(spaces, (capacity if at == len(spaces) else spaces.pop(at)) - size)
    return len(spaces)


def rows_of_first_fit(pieces: np.ndarray, capacity: int) -> int:
    """Return how many rows first fit makes of pieces in their order."""
    spaces = np.full(len(pieces), capacity)
    for size in pieces.tolist():
        spaces[np.argmax(spaces >= size)] -= size
    return int(np.count_nonzero(spaces < capacity))


def rows_of_grain(pieces: np.ndarray, capacity: int, name: str) -> int:
    """Return how many rows Grain makes of pieces in their order."""
    import grain

    items = [{"tokens": np.zeros(size, np.int8)} for size in pieces.tolist()]
    parent = grain.MapDataset.source(items).to_iter_dataset()
    kind: Any = getattr(grain.experimental, name)
    packed = kind(parent, length_struct={"tokens": capacity}, num_packing_bins=BINS, shuffle_bins=False)
    return sum(1 for _ in packed)


def measure_buckets(settings: Settings, lengths: np.ndarray) -> None:
    """Print the rows of batches by tokens."""
    for classes in (None, 24):
        plan = BucketPlan.make(lengths, BUDGET, classes=classes)
        shares, shortfalls, own = [], [], []
        for epoch in range(EPOCHS):
            found = plan.batches(np.arange(plan.batches_per_epoch), 0, epoch)
            if not np.array_equal(np.sort(found.records), np.arange(len(lengths))):
                raise SystemExit("a record comes twice or not at all")
            sizes = np.diff(found.offsets)
            longest = np.maximum.reduceat(lengths[found.records], found.offsets[:-1])
            shares.append(100 * (float((sizes * longest).sum()) / lengths.sum() - 1))
            full = sizes == np.maximum(1, BUDGET // found.longest)
            small = full & (found.longest <= BUDGET / 20)
            shortfalls.append(100 * (1 - float((sizes * found.longest)[small].min() / BUDGET)))
            own.append(100 * (1 - float((sizes * longest)[small].min() / BUDGET)))
        settings.row(
            f"bucketed, {BUDGET:,} tokens, {len(plan.longest)} classes: padding over tokens",
            None if classes else at_most(PADDING, " %"),
            shares,
            f"padded to the class's longest {100 * plan.padding:.3g} %; {plan.batches_per_epoch:,} batches",
            " %",
        )
        if classes is None:
            settings.row(
                "the emptiest full batch of classes up to budget / 20: of the budget unused",
                at_most(SHORTFALL, " %"),
                shortfalls,
                f"padded to the class's longest; to its own longest {max(own):.3g} %",
            )


def measure_planning(settings: Settings, capacity: int, most_s: float) -> None:
    """Print the rows of planning 10 million lognormal lengths."""
    found = in_child(
        __file__,
        "plan",
        records=settings.scaled(RECORDS),
        capacity=capacity,
        rounds=settings.rounds,
        path=str(settings.path("plan")),
    )
    what = f"{settings.scaled(RECORDS):,} lognormal lengths, rows of {capacity:,}"
    padding = f"padding {100 * found['padding']:.2g} %"
    details = f"{found['recipes']:,} recipes, {padding}, {found['bytes']:.3g} bytes a piece"
    settings.row(f"planning {what}", at_most(most_s, " s"), found["planning"], details)
    details = f"of it {found['before']:.0f} MB before planning, the lengths among them"
    settings.row("its process's most memory", at_most(PLANNING_MB, " MB"), [found["memory"]], details)
    settings.row("opening the kept plan, mapped", at_most(OPENING_S, " s"), found["opening"])
    rows = min(ROWS, found["packs"])
    details = f"{found['pieces']:,} pieces"
    settings.row(f"the pieces of {rows:,} of its rows", None, found["finding"], details, " s")
    settings.row("the same, shuffled within each row", None, found["within"], details, " s")


def measure_reading(settings: Settings) -> None:
    """Print the rows of reading packed rows, shuffled, against fixed fields that hold such rows."""
    generator = np.random.default_rng(0)
    lengths = np.minimum(generator.lognormal(5.5, 1.0, settings.scaled(READ_DOCUMENTS)), 1e5).astype(int) + 1
    ends = np.cumsum(lengths)
    tokens = generator.integers(0, 50_000, ends[-1], np.int32)
    storage = yogadl.open_storage(settings.path("storage"))
    documents = ({"tokens": tokens[end - length : end]} for end, length in zip(ends, lengths, strict=True))
    spec = {"tokens": yogadl.Leaf("int32", (None,))}
    storage.submit(yogadl.from_source(list(documents), spec=spec), "documents", "1")
    packed = storage.fetch("documents", "1").packed(READ_CAPACITY, fields="tokens")
    storage.submit(packed.at(0), "rows", "1")
    fixed = storage.fetch("rows", "1")
    check_equal(packed.at(0).gather(range(50)), fixed.gather(range(50)), "packed rows")
    loaders = {
        "packed": packed.stream(shuffle=True).batch(READ_BATCH),
        "fixed": fixed.stream(shuffle=True).batch(READ_BATCH),
        "packed, 2 workers": packed.stream(shuffle=True).batch(READ_BATCH).prefetch(4, workers=2),
        "fixed, 2 workers": fixed.stream(shuffle=True).batch(READ_BATCH).prefetch(4, workers=2),
    }
    times = interleave(
        {name: lambda loader=loader: drain(loader) for name, loader in loaders.items()}, settings.rounds
    )
    rates = "; ".join(f"{name} {rate(len(fixed), spent)}" for name, spent in times.items())
    settings.row(
        f"packed rows of {READ_CAPACITY:,} int32 with segments and positions, against fixed fields",
        at_least(AGAINST_FIXED),
        ratios(times["fixed"], times["packed"]),
        f"{len(fixed):,} rows of {len(lengths):,} documents, rows/s: {rates}",
    )
    for name, bar in (("packed", at_least(WITH_WORKERS)), ("fixed", None)):
        spent = ratios(times[name], times[f"{name}, 2 workers"])
        settings.row(f"the same rows {name}, with 2 workers against none", bar, spent, "", " x")


def plan(records: int, capacity: int, rounds: int, path: str) -> dict[str, Any]:
    """Plan in this process, and return what that took."""
    generator = np.random.default_rng(0)
    lengths = np.empty(records, np.int32)
    for chunk in np.array_split(lengths, 100):
        chunk[:] = np.minimum(generator.lognormal(np.log(capacity / 8), 1.0, chunk.size), 1e6) + 1
    before = peak_bytes()
    started = time.perf_counter()
    made = PackPlan.make(lengths, capacity)
    first_s = time.perf_counter() - started
    memory = peak_bytes()
    with Path(path).open("wb") as file:
        made.write(file)
    with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        opened = PackPlan.from_buffer(mapped)
        packs = generator.integers(0, made.packs, min(ROWS, made.packs))
        works = {
            "planning": partial(PackPlan.make, lengths, capacity),
            "opening": partial(PackPlan.from_buffer, mapped),
            "finding": partial(opened.pieces, packs, 0, 0),
            "within": partial(opened.pieces, packs, 0, 0, shuffle_within=True),
        }
        times = interleave(works, rounds)
        pieces = len(opened.pieces(packs, 0, 0).records)
        del works, opened
    return {
        **times,
        "planning": [first_s, *times["planning"]],
        "memory": memory / 1e6,
        "before": before / 1e6,
        "packs": made.packs,
        "pieces": pieces,
        "padding": made.padding,
        "recipes": int(made._arrays[2].size),
        "bytes": Path(path).stat().st_size / made.pieces_per_epoch,
    }


if __name__ == "__main__":
    main(__file__, measure, {"plan": plan})
