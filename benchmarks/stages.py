"""Compare work that yogadl does on records as they are read with the same by hand, or as they are stored.

Run ``python benchmarks/stages.py``. It justifies the loops of `Spec`, the flat code of `yogadl._views.chosen`
and `yogadl._views.views`, and how `yogadl._views.views` reads several parents.
"""

import sys
from collections.abc import Callable
from itertools import count
from typing import Any

import _sets
import numpy as np
from _measure import Settings, at_least, clear, drain, interleave, main, rate, ratios, say

import yogadl

FILTER_BAR = at_least(0.5)
CHUNKS_BAR = at_least(0.3)
CHUNK = 2048
MIX_BAR = at_least(0.85)


def measure(settings: Settings) -> None:
    """Measure a filter against its function alone, chunks against a fixed field, a mix against a parent."""
    measure_filter(settings)
    measure_chunks(settings)
    measure_mix(settings)


def measure_filter(settings: Settings) -> None:
    """Measure `filter` of a million records by one field of two, each time with a function that is new to it.

    Ours describes the function, reads the field, makes each record, calls the function, writes what was
    selected beside the cache, and hashes that for the view's fingerprint; half of the records are selected.
    The limit calls the function in a list comprehension with records that were made before: dicts of a numpy
    integer, as ours gives them.
    """
    columns, storage = _sets.built(settings, _sets.VECTORS)
    ref = storage.fetch("set", "1")
    records = [{"id": number} for number in columns["id"]]
    numbers = count()

    def another() -> Callable[[Any], Any]:
        wanted = set(range(next(numbers), 1000, 2))
        return lambda record: record["id"] % 1000 in wanted

    def ours(function: Callable[[Any], Any]) -> yogadl.RecordsRef:
        return ref.filter(function, fields=("id",))

    def limit(function: Callable[[Any], Any]) -> list[Any]:
        return [function(record) for record in records]

    function = another()
    if ours(function).fingerprint != ref.select(np.array(limit(function))).fingerprint:
        sys.exit("filter: it selected other records than its function does")
    works = {"limit": lambda: limit(another()), "ours": lambda: ours(another())}
    times = interleave(works, settings.rounds)
    clear(settings.path("cache"))
    details = f"{rate(len(ref), times['ours'])}; the function alone {rate(len(ref), times['limit'])}"
    what = f"`filter`, one field of {_sets.VECTORS.name}"
    settings.row(what, FILTER_BAR, ratios(times["limit"], times["ours"]), details)


def measure_chunks(settings: Settings) -> None:
    """Print the row of chunks of documents, against a fixed field of the same rows."""
    lengths = np.random.default_rng(6).integers(100, 5001, settings.scaled(40_000))
    say(f"documents of 100 - 5,000 int32: {len(lengths):,}")
    random = np.random.default_rng(7)
    documents = [random.integers(0, 50_000, length, np.int32) for length in lengths]
    rows = np.concatenate(documents)
    rows = rows[: len(rows) // CHUNK * CHUNK].reshape(-1, CHUNK)
    storage = yogadl.open_storage(settings.path("cache"))
    storage.submit([{"tokens": document} for document in documents], "documents", "1")
    storage.submit({"tokens": rows}, "rows", "1")
    del documents
    fixed = storage.fetch("rows", "1").stream(shuffle=True, shuffle_seed=1).batch(256)
    cut = storage.fetch("documents", "1").chunks("tokens", CHUNK)
    loader = cut.stream(shuffle=True, shuffle_seed=1).batch(256)
    data = _sets.DataSet("chunks", len(rows), 256, _sets.tokens, 0.3)
    _sets.check_epoch(loader, {"tokens": rows}, data)
    marked = storage.fetch("documents", "1").chunks("tokens", CHUNK, segments="segment")
    works = {
        "fixed": fixed,
        "chunks": loader,
        "segments": marked.stream(shuffle=True, shuffle_seed=1).batch(256),
    }
    times = interleave(
        {name: lambda each=each: drain(iter(each)) for name, each in works.items()}, settings.rounds
    )
    what = (
        f"chunks of {CHUNK:,} of documents of 100 - 5,000 int32, shuffled, batch 256, against a fixed field"
    )
    for name, bar, note in (("chunks", CHUNKS_BAR, ""), ("segments", None, ", with segments=")):
        details = f"{rate(len(rows), times[name])}; fixed {rate(len(rows), times['fixed'])}"
        settings.row(what + note, bar, ratios(times["fixed"], times[name]), details, " x")
    clear(settings.path("cache"))


def measure_mix(settings: Settings) -> None:
    """Print the row of a mix of three, against one of them."""
    data = _sets.SMALL_IMAGES
    storage = yogadl.open_storage(settings.path("cache"))
    refs = []
    for number in range(3):
        records = settings.scaled(data.records)
        say(f"{data.name}, {number + 1} of 3: {records:,} records")
        storage.submit(data.make(records), f"mixed-{number}", "1")
        refs.append(storage.fetch(f"mixed-{number}", "1"))
    weights = (0.5, 0.3, 0.2)
    mixed = yogadl.mix(
        {str(number): pair for number, pair in enumerate(zip(refs, weights, strict=True))}, seed=1
    )
    works = {
        "one": refs[0].stream(shuffle=True, shuffle_seed=1).batch(256),
        "mix": mixed.stream(shuffle=True, shuffle_seed=1).batch(256),
    }
    times = interleave(
        {name: lambda loader=loader: drain(iter(loader)) for name, loader in works.items()}, settings.rounds
    )
    per_record = {
        "one": [seconds / len(refs[0]) for seconds in times["one"]],
        "mix": [seconds / len(mixed) for seconds in times["mix"]],
    }
    details = f"{rate(len(mixed), times['mix'])}; one of them {rate(len(refs[0]), times['one'])}"
    what = f"a mix of three {data.name}, shuffled, batch 256, against one of them"
    clear(settings.path("cache"))
    settings.row(what, MIX_BAR, ratios(per_record["one"], per_record["mix"]), details)


if __name__ == "__main__":
    main(__file__, measure)
