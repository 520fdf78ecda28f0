"""Compare work that yogadl does on records, where it calls functions of the user's, with the same by hand.

Run ``python benchmarks/stages.py``. It justifies the loops of `Spec` and the flat code of `yogadl._filter`.
"""

import sys
from collections.abc import Callable
from itertools import count
from typing import Any

import _sets
import numpy as np
from _measure import Settings, at_least, clear, interleave, main, rate, ratios

import yogadl

FILTER_BAR = at_least(0.5)


def measure(settings: Settings) -> None:
    """Measure a filter of one field against its function alone."""
    measure_filter(settings)


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


if __name__ == "__main__":
    main(__file__, measure)
