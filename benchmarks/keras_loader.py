"""Compare Keras's `PyDataset` over a stream with the stream itself, and see how soon it goes on after a stop.

Run ``python benchmarks/keras_loader.py``; needs Keras and a backend. (Not called keras.py: a script's own
folder is the first place where it looks for imports.) It justifies reading ahead behind Keras's one worker.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import _sets
from _measure import (
    Settings,
    at_least,
    at_most,
    check_equal,
    clear,
    drain,
    interleave,
    main,
    rate,
    ratios,
    say,
)

import yogadl
from yogadl.adapters import keras as adapter

RECORDS = 60_000
BATCH = 256
MANY = 1_000_000


def measure(settings: Settings) -> None:
    """Measure shuffled epochs, asked for batch by batch as Keras does, and a resume."""
    measure_epochs(settings)
    measure_resume(settings)


def measure_epochs(settings: Settings) -> None:
    """Measure whole epochs, with and without reading ahead."""
    records = settings.scaled(RECORDS)
    say(f"{{uint8[32,32,3], int64}} x {records:,}")
    columns = _sets.small_images(records)
    root = settings.path("cache")
    storage = yogadl.open_storage(root)
    storage.submit(columns, "set", "1")
    stream = storage.fetch("set", "1").stream(shuffle=True, shuffle_seed=1)
    core = stream.batch(BATCH)
    works: dict[str, Callable[[], object]] = {"core": lambda: drain(iter(core))}
    for name, prefetch in (("ours", 2), ("unhurried", 0)):
        dataset = adapter.PyDataset(stream, BATCH, fields=("image", "id"), prefetch=prefetch, epochs=None)
        check(dataset, stream, columns)
        epochs = epochs_of(dataset)
        works[name] = lambda epochs=epochs: drain(next(epochs))
    times = interleave(works, settings.rounds)
    data = f"{{uint8[32,32,3], int64}} x 60 k, batch {BATCH}"
    for name, bar, what in (("ours", at_least(0.7), ""), ("unhurried", None, ", prefetch=0")):
        settings.row(
            f"Keras PyDataset by hand{what}, {data}, against stream.batch()",
            bar,
            ratios(times["core"], times[name]),
            f"{rate(records, times[name])}; {rate(records, times['core'])}",
            unit=" x",
        )
    clear(root)


def epochs_of(dataset: Any) -> Iterator[Iterator[Any]]:
    """Yield the batches of one epoch after another, asked for as Keras does: one number after the other."""
    steps = dataset.steps_per_epoch
    number = 0
    while True:
        yield map(dataset.__getitem__, range(number, number + steps))
        number += steps


def check(dataset: Any, stream: Any, columns: _sets.Columns) -> None:
    """Compare an epoch."""
    wanted = stream.indices()
    for number, (image, ids) in enumerate(next(epochs_of(dataset))):
        chosen = wanted[number * BATCH : (number + 1) * BATCH]
        check_equal({"image": image, "id": ids}, _sets.take(columns, chosen), "PyDataset")


def measure_resume(settings: Settings) -> None:
    """Measure from a cursor at half of an epoch to the first batch."""
    records = settings.scaled(MANY)
    root = settings.path("cache")
    storage = yogadl.open_storage(root)
    columns = _sets.vectors(records)
    storage.submit(columns, "set", "1")
    ref = storage.fetch("set", "1")
    cursor = ref.stream(shuffle=True).cursor(delivered=records // 2)
    wanted = ref.stream(shuffle=True).indices(0, records // 2, records // 2 + BATCH)
    found = []
    for number in range(settings.rounds + 1):
        started = time.perf_counter()
        ref = storage.fetch("set", "1")
        dataset = adapter.PyDataset(ref.stream(shuffle=True, cursor=cursor), BATCH, epochs=None)
        batch = dataset[0]
        if number:
            found.append(1000 * (time.perf_counter() - started))
        check_equal(batch, _sets.take(columns, wanted), "resumed")
    settings.row("Keras, resume at 50 % of 1 M records until the first batch", at_most(200, " ms"), found,
                 "with fetch")  # fmt: skip
    clear(root)


if __name__ == "__main__":
    main(__file__, measure)
