"""Run one task for one reader in the reader's own virtual environment, and leave what it found as JSON.

``python child.py REQUEST ANSWER``: the names of two files of JSON.
"""

import contextlib
import importlib
import json
import math
import os
import pickle
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from data import Data, write

MIB: Final = 2**20
_FED: Final = 0.9  # of the time
# The batches of a trial. Readers keep four ready, so the first of them tell of the trial before.
_UNCOUNTED: Final = 8
_COUNTED: Final = 32


def make(name: str, records: int, batch: int, maker: str, folder: str) -> dict[str, Any]:
    """Make a data set: how many records it has, which may be fewer than asked for, and their bytes."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    columns = getattr(importlib.import_module("_data"), maker)(records)
    made = len(next(iter(columns.values())))
    write(name, made, batch, columns, Path(folder))
    sizes = (
        column.nbytes if isinstance(column, np.ndarray) else sum(map(len, column))
        for column in columns.values()
    )
    return {"records": made, "bytes": sum(sizes)}


def build(reader: str, data: str, folder: str) -> dict[str, Any]:
    """Build the peer's form of a set: how long that took until the disk had it, and how many bytes it is."""
    source, made = Data(Path(data)), Path(folder)
    for column in source.fixed.values():
        column.max()  # the pages are in memory before anything is timed
    peer = _class(reader)
    made.mkdir(parents=True)
    begun = time.monotonic()
    peer.build(source, made)
    os.sync()
    seconds = time.monotonic() - begun
    files = [path for path in made.rglob("*") if path.is_file()]
    return {"build_s": seconds, "bytes": sum(path.stat().st_size for path in files)}


def read(reader: str, data: str, folder: str, workers: int, begun: float, seconds: float) -> dict[str, Any]:
    """Read shuffled batches: when the first came, records a second after it, and memory then."""
    opened = _open(reader, data, folder, workers)
    batches = opened.epoch()
    first = next(batches)
    first_s = time.monotonic() - begun
    opened.data.check(opened.columns(first))
    count, started = 0, time.monotonic()
    until = started + seconds
    while (now := time.monotonic()) < until:
        batch = next(batches, None)
        if batch is None:
            batches = opened.epoch()
        else:
            count += opened.size(batch)
    if not count:
        raise ValueError(f"no batch came in {seconds} s")
    memory = memory_bytes()
    if batch is not None:
        opened.data.check(opened.columns(batch))
    opened.close()
    return {"first_s": first_s, "records_per_s": count / (now - started), "memory_mib": memory / MIB}


def stop(reader: str, data: str, folder: str, workers: int, saved: str, ids: bool) -> dict[str, Any]:
    """Read half of the first epoch and keep the checkpoint, then what follows it."""
    opened = _open(reader, data, folder, workers)
    batches = opened.epoch()
    half = opened.data.records // opened.data.batch // 2
    seen = [_ids(opened, next(batches)) if ids else next(batches) is None for _ in range(half)]
    state = opened.state()
    Path(saved).write_bytes(pickle.dumps(state))
    if ids:
        rest = [_ids(opened, batch) for batch in batches]
        np.savez(f"{saved}.npz", seen=np.concatenate(seen), rest=np.concatenate(rest))
    opened.close()
    return {"is_checkpoint": state is not None, "state_bytes": Path(saved).stat().st_size}


def resume(
    reader: str, data: str, folder: str, workers: int, begun: float, saved: str, ids: bool
) -> dict[str, Any]:
    """Go on from a checkpoint: when the first batch came, and whether all are what would have come."""
    opened = _open(reader, data, folder, workers)
    half = opened.data.records // opened.data.batch // 2
    batches = opened.resume(pickle.loads(Path(saved).read_bytes()), half)
    first = next(batches)
    found: dict[str, Any] = {"resume_s": time.monotonic() - begun}
    opened.data.check(opened.columns(first))
    if ids:
        kept = np.load(f"{saved}.npz")
        rest = np.concatenate([_ids(opened, first), *(_ids(opened, batch) for batch in batches)])
        found["is_same_order"] = np.array_equal(rest, kept["rest"])
        found["is_exact"] = _is_once(np.concatenate([kept["seen"], rest]), opened.data.records)
    opened.close()
    return found


def shuffle(reader: str, data: str, folder: str) -> dict[str, Any]:
    """Read two epochs: whether each record came once, whether they differ, and how far records moved.

    In a true shuffle the mean of a batch's source positions has a known spread, and a record moves a third of
    the set on the mean: `clumping` and `reach` are what was seen over these.
    """
    opened = _open(reader, data, folder, 0)
    epochs = [[_ids(opened, batch) for batch in opened.epoch()] for _ in range(2)]
    records, batch = opened.data.records, opened.data.batch
    whole = [ids for ids in epochs[0] if len(ids) == batch]
    order, other = (np.concatenate(epoch) for epoch in epochs)
    spread = np.std([ids.mean() for ids in whole]) / (records / np.sqrt(12 * batch))
    moved = np.abs(order - np.linspace(0, records, len(order))).mean() / (records / 3)
    opened.close()
    return {
        "is_once": _is_once(order, records) and _is_once(other, records),
        "is_fresh": not np.array_equal(order, other),
        "clumping": float(spread),
        "reach": float(moved),
        # An estimate from so few batches is as far off as this at most, but for bad luck.
        "is_even": bool(spread < 1 + 4 / np.sqrt(2 * len(whole)) and 0.95 < moved < 1.05),
    }


def decode(reader: str, data: str, folder: str, workers: int, seconds: float) -> dict[str, Any]:
    """Read batches of pictures, decoded and cropped: how many a second after the first batch."""
    opened = _open(reader, data, folder, workers)
    batches = _endless(opened)
    first = np.asarray(next(batches)["image"])
    if first.shape[1:] not in ((224, 224, 3), (3, 224, 224)) or first.dtype != np.uint8:
        raise ValueError(f"a batch has pictures of {first.shape[1:]} and {first.dtype}")
    count, started = 0, time.monotonic()
    while (now := time.monotonic()) < started + seconds:
        count += len(next(batches)["image"])
    opened.close()
    return {"images_per_s": count / (now - started)}


def feed(reader: str, data: str, folder: str, workers: int, rate: float, seconds: float) -> dict[str, Any]:
    """Find how many accelerators are fed, each of which takes records at a rate: it sleeps as it computes.

    They are fed if they compute during nine tenths of the time. The search begins at what comes when none
    sleeps.
    """
    opened = _open(reader, data, folder, workers)
    with contextlib.closing(_handed(_endless(opened))) as batches:
        opened.data.check(opened.columns(next(batches)))

        def take(pace: float) -> int:
            size: int = opened.size(next(batches))
            time.sleep(size / pace)
            return size

        def rate_at(pace: float) -> float:
            """Return the rate that comes of a pace: both are records a second."""
            for _ in range(_UNCOUNTED):
                take(pace)
            records, number, started = 0, 0, time.monotonic()
            while number < _COUNTED or time.monotonic() < started + seconds:
                records, number = records + take(pace), number + 1
            return records / (time.monotonic() - started)

        def is_fed(count: int) -> bool:
            return rate_at(count * rate) >= _FED * count * rate

        drained = rate_at(math.inf)
        least, most = 0, max(1, round(drained / (_FED * rate)))
        while is_fed(most):
            least, most = most, most + max(1, most // 8)
        while most - least > max(1, least // 16):
            middle = (least + most) // 2
            least, most = (middle, most) if is_fed(middle) else (least, middle)
    opened.close()
    return {"accelerators": least, "drained": drained}


def _handed(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield batches that a thread has taken two ahead.

    A training has such a thread, which pins batches or sends them on. So it does not matter whether a reader
    works while its caller waits.
    """
    ready: queue.Queue[Any] = queue.Queue(1)
    ended = threading.Event()

    def take() -> None:
        try:
            for batch in batches:
                ready.put(batch)
                if ended.is_set():
                    return
        except BaseException as error:  # noqa: BLE001  (the other thread raises it)
            ready.put(error)

    thread = threading.Thread(target=take)
    thread.start()
    try:
        while True:
            batch = ready.get()
            if isinstance(batch, BaseException):
                raise batch
            yield batch
    finally:
        ended.set()
        while thread.is_alive():
            with contextlib.suppress(queue.Empty):
                ready.get(timeout=0.1)


def _endless(opened: Any) -> Iterator[Any]:
    while True:
        batches = opened.epoch()
        first = next(batches, None)
        if first is None:
            raise ValueError("an epoch has no batch")
        yield first
        yield from batches


def versions(packages: list[str]) -> dict[str, Any]:
    """Return which versions are installed."""
    from importlib.metadata import version

    return {package: version(package) for package in packages}


def memory_bytes() -> int:
    """Return the memory of this process and all below it that is of no file: what can't be given back.

    Pages that processes share are counted once; the page cache is not counted.
    """
    kib = 0
    for process in _family(os.getpid()):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                kib += int(line.split()[1])
    return kib * 1024


def _family(process: int) -> Iterator[int]:
    yield process
    for thread in Path(f"/proc/{process}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the thread has ended since
            for child in (thread / "children").read_text().split():
                yield from _family(int(child))


def _class(reader: str) -> Any:
    module, name = reader.split(":")
    return getattr(importlib.import_module(f"readers.{module}"), name)


def _open(reader: str, data: str, folder: str, workers: int) -> Any:
    return _class(reader)(Data(Path(data)), Path(folder), workers)


def _ids(opened: Any, batch: Any) -> np.ndarray:
    return opened.data.ids(opened.columns(batch))


def _is_once(ids: np.ndarray, records: int) -> bool:
    return len(ids) == records and np.array_equal(np.sort(ids), np.arange(records))


TASKS: Final[dict[str, Callable[..., dict[str, Any]]]] = {
    task.__name__: task for task in (make, build, read, stop, resume, shuffle, decode, feed, versions)
}


def main() -> None:
    """Do what the request says."""
    request = json.loads(Path(sys.argv[1]).read_text())
    try:
        answer = TASKS[request.pop("task")](**request)
    except NotImplementedError as error:  # the peer has no such thing, and its reader says so
        answer = {"why": str(error)}
    Path(sys.argv[2]).write_text(json.dumps(answer))


if __name__ == "__main__":  # workers that are spawned import this file, too
    main()
