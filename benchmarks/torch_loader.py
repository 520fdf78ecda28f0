"""Compare `make_dataloader` with PyTorch's DataLoader over tensors in RAM.

Run ``python benchmarks/torch_loader.py``; needs PyTorch. (Not called torch.py: a script's own folder is the
first place where it looks for imports.) What a worker adds in memory is in workers.py.
"""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import _sets
import numpy as np
import torch
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
from yogadl.adapters import torch as adapter

RECORDS = 60_000
BATCH = 256
WORKERS = 2
MANY = 1_000_000
BEGUN = 20  # batches of an epoch before workers are in their stride


def measure(settings: Settings) -> None:
    """Measure shuffled epochs with and without workers, and a resume."""
    measure_epochs(settings)
    measure_resume(settings)


class WholeBatches(torch.utils.data.Dataset):  # type: ignore[misc]  # torch may not be there to check
    """Index arrays in RAM a whole batch at a time: the best that a DataLoader can do."""

    def __init__(self, columns: _sets.Columns) -> None:
        self._columns = columns

    def __getitem__(self, chosen: np.ndarray) -> dict[str, Any]:
        return {name: torch.from_numpy(column[chosen]) for name, column in self._columns.items()}


class Batches:
    """Shuffle and cut into batches: a sampler for `WholeBatches`."""

    def __init__(self, records: int) -> None:
        self._records = records

    def __iter__(self) -> Iterator[np.ndarray]:
        order = np.random.default_rng().permutation(self._records)
        return iter([order[first : first + BATCH] for first in range(0, self._records, BATCH)])


def measure_epochs(settings: Settings) -> None:
    """Measure the rows that the bars speak of."""
    records = settings.scaled(RECORDS)
    say(f"{{uint8[32,32,3], int64}} x {records:,}")
    columns = _sets.small_images(records)
    root = settings.path("cache")
    storage = yogadl.open_storage(root)
    storage.submit(columns, "set", "1")
    stream = storage.fetch("set", "1").stream(shuffle=True, shuffle_seed=1)
    check(stream, columns)
    tensors = torch.utils.data.TensorDataset(*map(torch.from_numpy, columns.values()))
    core, ours = stream.batch(BATCH), adapter.make_dataloader(stream, BATCH)
    alone = torch.utils.data.DataLoader(tensors, batch_size=BATCH, shuffle=True)
    whole = torch.utils.data.DataLoader(WholeBatches(columns), batch_size=None, sampler=Batches(records))
    loaders = {"core": core, "ours": ours, "one by one": alone, "whole": whole}
    times = interleave({name: draining(loader) for name, loader in loaders.items()}, settings.rounds)
    name = "{uint8[32,32,3], int64} x 60 k, batch 256, shuffled"
    seen = f"{rate(records, times['ours'])}; "
    for other, bar, what in (
        ("core", 0.8, "stream.batch()"),
        ("one by one", 6, "DataLoader(TensorDataset in RAM)"),
        ("whole", 0.8, "a DataLoader that indexes whole batches in RAM"),
    ):
        settings.row(f"torch make_dataloader, {name}, against {what}", at_least(bar),
                     ratios(times[other], times["ours"]), seen + rate(records, times[other]))  # fmt: skip
    measure_workers(settings, stream, tensors, name)
    clear(root)


def measure_workers(settings: Settings, stream: Any, tensors: Any, name: str) -> None:
    """Measure epochs read by workers, from when they are in their stride."""
    options: dict[str, Any] = {"num_workers": WORKERS, "persistent_workers": True}
    loaders = {
        "ours": adapter.make_dataloader(stream, BATCH, WORKERS, persistent_workers=True),
        "theirs": torch.utils.data.DataLoader(tensors, batch_size=BATCH, shuffle=True, **options),
    }
    times: dict[str, list[float]] = {"ours": [], "theirs": []}
    batches = 0
    for number in range(settings.rounds + 1):
        for which, loader in loaders.items():
            batches, taken_s = steady(iter(loader))
            if number:
                times[which].append(taken_s)
    theirs = f"DataLoader(TensorDataset, num_workers={WORKERS})"
    settings.row(
        f"torch make_dataloader, {WORKERS} workers, {name}, against {theirs}",
        at_least(3),
        ratios(times["theirs"], times["ours"]),
        f"{rate(batches * BATCH, times['ours'])}; {rate(batches * BATCH, times['theirs'])}",
    )


def steady(batches: Iterator[Any]) -> tuple[int, float]:
    """Return how many batches came after the first few, and in how many seconds."""
    drain(itertools.islice(batches, BEGUN))
    started = time.perf_counter()
    count = sum(1 for _ in batches)
    return count, time.perf_counter() - started


def draining(loader: Iterable[Any]) -> Callable[[], object]:
    """Return a function that reads the loader's next epoch."""
    return lambda: drain(iter(loader))


def check(stream: Any, columns: _sets.Columns) -> None:
    """Compare an epoch, read with and without workers."""
    wanted = stream.indices()
    for workers in (0, WORKERS):
        for number, batch in enumerate(adapter.make_dataloader(stream, BATCH, workers)):
            chosen = wanted[number * BATCH : (number + 1) * BATCH]
            check_equal(
                {k: v.numpy() for k, v in batch.items()}, _sets.take(columns, chosen), "make_dataloader"
            )


def measure_resume(settings: Settings) -> None:
    """Measure from a cursor at half of an epoch to the first batch."""
    records = settings.scaled(MANY)
    root = settings.path("cache")
    storage = yogadl.open_storage(root)
    storage.submit(_sets.vectors(records), "set", "1")
    ref = storage.fetch("set", "1")
    wanted = ref.stream(shuffle=True).indices(0, records // 2, records // 2 + BATCH)
    cursor = ref.stream(shuffle=True).cursor(delivered=records // 2)
    for workers, bar in ((0, at_most(200, " ms")), (WORKERS, None)):
        found = []
        for number in range(settings.rounds + 1):
            started = time.perf_counter()
            loader = adapter.make_dataloader(ref.stream(shuffle=True), BATCH, workers)
            loader.load_state_dict(cursor)
            batch = next(iter(loader))
            if number:
                found.append(1000 * (time.perf_counter() - started))
            check_equal({"id": batch["id"].numpy()}, {"id": wanted}, "resumed")
        what = f"torch resume at 50 % of 1 M records, until the first batch, {workers} workers"
        settings.row(what, bar, found, unit=" ms")
    clear(root)


if __name__ == "__main__":
    main(__file__, measure)
