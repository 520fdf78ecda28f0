"""Measure `prefetch(n, workers=k)`: against none, and against Grain's and PyTorch's on the same function.

Run ``python benchmarks/workers.py``; needs Grain, PyTorch and Pillow. It justifies the memory that is used
again in `yogadl._stream.worker`, and that PyTorch's `make_dataloader` stands on the same workers.
"""

import functools
import io
import itertools
import pickle
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import _sets
import numpy as np
import psutil
from _measure import (
    Settings,
    at_least,
    at_most,
    check_equal,
    clear,
    drain,
    in_child,
    interleave,
    main,
    rate,
    ratios,
    say,
)
from PIL import Image

import yogadl

WORKERS = 2
BATCH = 32
LARGE_BATCH = 64
AHEAD = 4
EPOCHS = 3  # of which the first does not count: workers come into their stride
MANY = 1_000_000
BUSY_S = 0.002
SHAPE = (224, 224, 3)

Function = Callable[[dict[str, Any]], dict[str, Any]]


def measure(settings: Settings) -> None:
    """Measure functions of several costs, the way back, the start, and memory."""
    measure_busy(settings)
    against(settings, "JPEG by Pillow", jpegs(settings.scaled(2_000)), decoded, 1.0)
    against(settings, "zlib of 100 KB", compressed(settings.scaled(4_000)), inflated, 1.0)
    against(settings, "nearly free, records of 150 KB", _sets.large_images(settings.scaled(3_000)), kept, 1.5)
    measure_way_back(settings)
    measure_strings(settings)
    measure_start(settings)
    measure_memory(settings)


def busy(loops: int, record: dict[str, Any]) -> dict[str, Any]:
    """Keep the processor busy for so many loops."""
    for _ in range(loops):
        pass
    return record


def decoded(record: dict[str, Any]) -> dict[str, Any]:
    """Decode a JPEG."""
    return {"image": np.asarray(Image.open(io.BytesIO(record["data"]))), "id": record["id"]}


def inflated(record: dict[str, Any]) -> dict[str, Any]:
    """Inflate what zlib has deflated."""
    return {"data": np.frombuffer(zlib.decompress(record["data"]), np.uint8), "id": record["id"]}


def kept(record: dict[str, Any]) -> dict[str, Any]:
    """Do next to nothing."""
    return {"image": record["image"], "id": record["id"]}


def jpegs(records: int) -> _sets.Columns:
    """Make {bytes, int64}: pictures of 224 x 224, some 20 KB each."""
    random = np.random.default_rng(6)
    data = []
    for _ in range(records):
        small = Image.fromarray(random.integers(0, 256, (28, 28, 3), np.uint8))
        file = io.BytesIO()
        small.resize(SHAPE[:2]).save(file, "JPEG", quality=90)
        data.append(file.getvalue())
    return {"data": data, "id": np.arange(records)}


def compressed(records: int) -> _sets.Columns:
    """Make {bytes, int64}: 100 KB each once inflated."""
    random = np.random.default_rng(7)
    data = [zlib.compress(random.integers(0, 16, 100_000, np.uint8).tobytes(), 1) for _ in range(records)]
    return {"data": data, "id": np.arange(records)}


class InRam:
    """Records in RAM, passed through a function: a dataset for PyTorch; without one, a source for Grain."""

    def __init__(self, columns: _sets.Columns, function: Function | None = None) -> None:
        self.columns, self.function = columns, function

    def __len__(self) -> int:
        return len(self.columns["id"])

    def __getitem__(self, index: int) -> Any:
        record = {name: column[index] for name, column in self.columns.items()}
        return record if self.function is None else self.function(record)


# The other two are imported only where they are measured: no worker imports what it does not need.


def grain_loader(columns: _sets.Columns, function: Function) -> Iterable[Any]:
    """Return Grain's loader of shuffled epochs."""
    import grain
    from absl import flags

    flags.FLAGS.mark_as_parsed()  # which Grain's workers ask for

    class Mapped(grain.transforms.Map):  # type: ignore[misc]  # Grain may not be there to check
        def map(self, element: Any) -> Any:
            return function(element)

    sampler = grain.samplers.IndexSampler(len(columns["id"]), shuffle=True, seed=1, num_epochs=EPOCHS)
    return grain.DataLoader(  # type: ignore[no-any-return]
        data_source=InRam(columns),
        sampler=sampler,
        operations=[Mapped(), grain.transforms.Batch(BATCH)],
        worker_count=WORKERS,
    )


def torch_loader(columns: _sets.Columns, function: Function) -> Iterable[Any]:
    """Return PyTorch's loader of shuffled epochs."""
    import torch

    data: Any = InRam(columns, function)
    sampler = torch.utils.data.RandomSampler(data, num_samples=EPOCHS * len(data))
    return torch.utils.data.DataLoader(data, BATCH, sampler=sampler, num_workers=WORKERS)


def cached(settings: Settings, columns: _sets.Columns) -> yogadl.RecordsRef:
    """Build a cache of these."""
    storage = yogadl.open_storage(settings.path("cache"))
    storage.submit(columns, "set", "1")
    return storage.fetch("set", "1")


def steady(batches: Iterator[Any], records: int, batch: int) -> float:
    """Return how many batches a second come after the first of the epochs."""
    drain(itertools.islice(batches, records // batch))
    started = time.perf_counter()
    count = sum(1 for _ in batches)
    return count / (time.perf_counter() - started)


def speed(which: str, function: str, folder: str) -> float:
    """Return how many batches a second one of the three gives, in a process where the others never were."""
    called: Function = globals()[function]
    if which == "ours":
        stream = yogadl.open_storage(f"{folder}/cache").fetch("set", "1").stream(shuffle=True)
        loader = stream.map(called).batch(BATCH, epochs=EPOCHS).prefetch(AHEAD, workers=WORKERS)
        return steady(iter(loader), len(stream), BATCH)
    columns = pickle.loads(Path(folder, "columns").read_bytes())
    theirs = {"Grain": grain_loader, "torch": torch_loader}[which](columns, called)
    return steady(iter(theirs), len(columns["id"]), BATCH)


def measure_busy(settings: Settings) -> None:
    """Measure a function that does nothing but take time of the processor, with workers and without."""
    started = time.perf_counter()
    busy(2_000_000, {})
    loops = int(BUSY_S * 2_000_000 / (time.perf_counter() - started))
    ref = yogadl.from_source({"id": np.arange(settings.scaled(800))})
    loader = ref.stream().map(functools.partial(busy, loops)).batch(8)
    ahead = loader.prefetch(AHEAD, workers=WORKERS)
    times = interleave(
        {"none": lambda: drain(iter(loader)), "ours": lambda: drain(iter(ahead))}, settings.rounds
    )
    what = f"map of {BUSY_S * 1000:.0f} ms a record, prefetch({AHEAD}, workers={WORKERS}), against none"
    settings.row(what, at_least(1.85), ratios(times["none"], times["ours"]))  # fmt: skip


def against(settings: Settings, what: str, columns: _sets.Columns, function: Function, bar: float) -> None:
    """Measure a function of records against the other two."""
    say(what)
    stream = cached(settings, columns).stream(shuffle=True).map(function)
    first = stream.batch(BATCH).prefetch(AHEAD, workers=WORKERS).batch_at(0)
    for number, index in enumerate(stream.indices(0, 0, BATCH).tolist()):
        wanted = function({name: column[index] for name, column in columns.items()})
        check_equal({name: column[number] for name, column in first.items()}, wanted, what)
    settings.path("columns").write_bytes(pickle.dumps(columns))
    names = ["ours", "Grain", "torch"]
    found: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(settings.rounds):
        for name in names:
            arguments = {"which": name, "function": function.__name__, "folder": str(settings.folder)}
            found[name].append(in_child(__file__, "speed", **arguments))
        names.append(names.pop(0))
    best = max(("Grain", "torch"), key=lambda name: float(np.median(found[name])))
    details = "; ".join(f"{name} {BATCH * np.median(one) / 1e3:.2f} k/s" for name, one in found.items())
    what = f"{what}, batch {BATCH}, {WORKERS} workers, against the better of Grain and PyTorch ({best})"
    settings.row(what, at_least(bar), ratios(found["ours"], found[best]), details)
    clear(settings.path("cache"))


def measure_way_back(settings: Settings) -> None:
    """Measure how many bytes come from one worker, where no function is called."""
    records = settings.scaled(3_000)
    stream = cached(settings, _sets.large_images(records)).stream(shuffle=True)
    for workers in (1, WORKERS):
        loader = stream.batch(LARGE_BATCH, epochs=EPOCHS).prefetch(AHEAD, workers=workers)
        found = [steady(iter(loader), records, LARGE_BATCH) for _ in range(settings.rounds)]
        what = f"batches of 64 x uint8[224,224,3] from {workers} worker{'s' * (workers > 1)}"
        settings.row(
            what, at_least(2.5, " GB/s"), [LARGE_BATCH * np.prod(SHAPE) * one / 1e9 for one in found]
        )
    clear(settings.path("cache"))


def measure_strings(settings: Settings) -> None:
    """Print the rows of long strings from workers, against none: nobody computes, so all are copied twice."""
    columns, storage = _sets.built(settings, _sets.VARYING)
    for batch in (LARGE_BATCH, _sets.VARYING.batch):
        stream = storage.fetch("set", "1").stream(shuffle=True)
        loaders = {"none": stream.batch(batch), "ours": stream.batch(batch).prefetch(AHEAD, workers=WORKERS)}
        works = {name: lambda loader=loader: drain(iter(loader)) for name, loader in loaders.items()}
        times = interleave(works, settings.rounds)
        records = len(columns["id"])
        details = "; ".join(f"{name} {rate(records, seconds)}" for name, seconds in times.items())
        what = f"{WORKERS} workers, {_sets.VARYING.name}, batch {batch}, against none"
        settings.row(what, at_least(0.5), ratios(times["none"], times["ours"]), details)
    clear(settings.path("cache"))


def measure_start(settings: Settings) -> None:
    """Measure from a loader that nobody has iterated over to its first batch."""
    columns = _sets.small_images(settings.scaled(2_000))
    cached(settings, columns)
    settings.path("columns").write_bytes(pickle.dumps(columns))
    names = ["ours", "Grain"]
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(settings.rounds):
        for name in names:
            times[name].append(in_child(__file__, "start", which=name, folder=str(settings.folder)))
        names.reverse()
    details = "; ".join(f"{name} {1000 * np.median(one):.0f} ms" for name, one in times.items())
    settings.row(f"{WORKERS} workers, from the start until the first batch, against Grain's", at_most(0.8),
                 ratios(times["ours"], times["Grain"]), details)  # fmt: skip
    clear(settings.path("cache"))


def start(which: str, folder: str) -> float:
    """Return how long the first batch takes in a fresh process, once all is imported."""
    if which == "ours":
        stream = yogadl.open_storage(f"{folder}/cache").fetch("set", "1").stream(shuffle=True)
        loader: Iterable[Any] = stream.map(kept).batch(BATCH).prefetch(AHEAD, workers=WORKERS)
    else:
        loader = grain_loader(pickle.loads(Path(folder, "columns").read_bytes()), kept)
    started = time.perf_counter()
    batches = iter(loader)
    next(batches)
    elapsed_s = time.perf_counter() - started
    drain(batches)  # Grain's workers would not end otherwise
    return elapsed_s


def measure_memory(settings: Settings) -> None:
    """Measure what a worker has for itself beside its batches."""
    root = settings.path("cache")
    # Mapped and touched here, too, as by a second process of the machine.
    drain(iter(cached(settings, _sets.vectors(settings.scaled(MANY))).stream(shuffle=True).batch(256)))
    seen = [in_child(__file__, "worker_memory", root=str(root)) for _ in range(3)]
    details = "; ".join(f"{name} {np.median([one[name] for one in seen]):.1f}" for name in seen[0])
    settings.row("private memory that a worker adds, cache of 1 M records", at_most(10, " MB"),
                 [one["private MB"] for one in seen], details)  # fmt: skip
    clear(root)


def worker_memory(root: str) -> dict[str, float]:
    """Read a shuffled epoch by workers; return what each has for itself on average, in MB."""
    loader = yogadl.open_storage(root).fetch("set", "1").stream(shuffle=True).batch(256)
    batches = iter(loader.prefetch(AHEAD, workers=WORKERS))
    drain(batches)
    [server] = psutil.Process().children()
    workers = [worker.pid for worker in server.children()]
    found = {"private MB": 0.0, "batches MB": 0.0, "page tables MB": 0.0}
    for pid in workers:
        for text in Path(f"/proc/{pid}/smaps").read_text().split("VmFlags"):
            is_batch = "yogadl-batches" in text
            sizes = {
                line.split(":")[0]: line.split()[1] for line in text.splitlines() if line.endswith(" kB")
            }
            anonymous = int(sizes.get("Private_Dirty", 0)) / len(workers) / 1000
            shared = int(sizes.get("Rss", 0)) / len(workers) / 1000
            found["batches MB" if is_batch else "private MB"] += shared if is_batch else anonymous
        status = Path(f"/proc/{pid}/status").read_text().split("VmPTE:")[1]
        found["page tables MB"] += int(status.split()[0]) / len(workers) / 1000
    return found


if __name__ == "__main__":
    main(__file__, measure, {"speed": speed, "start": start, "worker_memory": worker_memory})
