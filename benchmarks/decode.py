"""Measure functions that write into the batch: against the bare function over RAM, and JPEGs against torch.

Run ``python benchmarks/decode.py``, where simplejpeg or OpenCV is installed (both: simplejpeg decodes). The
pictures are 375 x 500, of smooth noise, about as large as photos at quality 90; the work is decode,
RandomResizedCrop(224) and a flip, to uint8.
"""

import importlib.util
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from _compare import jpegs
from _compare.jpegs import SIZE
from _measure import Settings, at_least, at_most, drain, interleave, main, rate, ratios, say

import yogadl

RECORDS, BATCH = 4_000, 64
OUT = {"image": yogadl.Leaf("uint8", (SIZE, SIZE, 3))}
PROCESSOR, THREADS, TORCH = 1.05, 0.95, 1.5


def measure(settings: Settings) -> None:
    """Measure a function that fills, alone and in threads, then JPEGs."""
    if importlib.util.find_spec("cv2") is None or importlib.util.find_spec("simplejpeg") is None:
        raise SystemExit("this needs simplejpeg and OpenCV: pip install simplejpeg opencv-python-headless")
    count = settings.scaled(RECORDS)
    files = jpegs.pictures(count)
    say(f"{count:,} JPEGs of {sum(map(len, files)) / count / 1e3:.0f} KB")
    storage = yogadl.open_storage(settings.path("storage"))
    storage.submit({"jpeg": files, "label": np.arange(count)}, "pictures", "1")
    stream = storage.fetch("pictures", "1").stream(shuffle=True, shuffle_seed=0)
    filling = stream.random_map(decode_into, out=OUT, keep="label")
    returning = stream.random_map(decoded)
    bare = partial(read_bare, files, stream.indices(0), 1)
    works: dict[str, Callable[[], object]] = {
        "bare": bare,
        "out=": lambda: drain(filling.batch(BATCH).at(0)),
        "returned": lambda: drain(returning.batch(BATCH).at(0)),
    }
    times = interleave({name: partial(processor_time, work) for name, work in works.items()}, settings.rounds)
    spent = {name: _SPENT[id(work)][-settings.rounds :] for name, work in works.items()}
    settings.row(
        "map(out=), decode and crop, one thread: processor time against the bare function over RAM",
        at_most(PROCESSOR),
        ratios(spent["out="], spent["bare"]),
        f"images/s: {rates(times, count)}; with a returned array "
        f"{np.median(ratios(spent['returned'], spent['bare'])):.3g} x",
    )
    two = {
        "two bare threads": partial(read_bare, files, stream.indices(0), 2),
        "threads=2": lambda: drain(iter(filling.batch(BATCH).prefetch(4, threads=2))),
    }
    times = interleave(two, settings.rounds)
    settings.row(
        "map(out=), decode and crop, threads=2 against two bare threads",
        at_least(THREADS),
        ratios(times["two bare threads"], times["threads=2"]),
        f"images/s: {rates(times, count)}",
    )
    measure_torch(settings, files, filling)


def measure_torch(settings: Settings, files: list[bytes], filling: Any) -> None:
    """Print the row against torch's DataLoader with two workers and the same decoder."""
    if importlib.util.find_spec("torch") is None:
        return
    import torch

    class Pictures(torch.utils.data.Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return len(files)

        def __getitem__(self, index: int) -> Any:
            rng = np.random.default_rng(index)
            return torch.from_numpy(decoded({"jpeg": files[index], "label": index}, rng)["image"]), index

    theirs = torch.utils.data.DataLoader(
        Pictures(),
        BATCH,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
        multiprocessing_context="fork",
    )
    works = {
        "threads=2": lambda: drain(iter(filling.batch(BATCH).prefetch(4, threads=2))),
        "torch, 2 workers": lambda: drain(iter(theirs)),
    }
    times = interleave(works, settings.rounds)
    settings.row(
        "JPEG: decode, RandomResizedCrop(224), flip; 2 threads against torch's DataLoader with 2 workers",
        at_least(TORCH),
        ratios(times["torch, 2 workers"], times["threads=2"]),
        f"images/s: {rates(times, len(files))}; simplejpeg and OpenCV for both",
    )


_SPENT: dict[int, list[float]] = {}


def processor_time(work: Callable[[], object]) -> None:
    """Do a work, and note the processor time that it takes."""
    started = time.process_time()
    work()
    _SPENT.setdefault(id(work), []).append(time.process_time() - started)


def rates(times: dict[str, list[float]], count: int) -> str:
    """Return how many images a second each work made, as text."""
    return "; ".join(f"{name} {rate(count, spent)}" for name, spent in times.items())


def decode_into(record: dict[str, Any], rng: np.random.Generator, out: dict[str, Any]) -> None:
    """Decode, crop and flip into a row of the batch."""
    jpegs.decode_into(record["jpeg"], rng, out["image"])


def decoded(record: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Return what `decode_into` fills, in an array of its own."""
    image = np.empty((SIZE, SIZE, 3), np.uint8)
    decode_into(record, rng, {"image": image})
    return {"image": image, "label": record["label"]}


def read_bare(files: list[bytes], order: np.ndarray, threads: int) -> None:
    """Call the function in a loop over RAM, with batches and nothing else."""

    def batch(first: int) -> np.ndarray:
        images = np.zeros((BATCH, SIZE, SIZE, 3), np.uint8)
        rng = np.random.default_rng(first)
        for row, index in enumerate(order[first : first + BATCH].tolist()):
            decode_into({"jpeg": files[index]}, rng, {"image": images[row]})
        return images

    firsts = range(0, len(order), BATCH)
    if threads == 1:
        for first in firsts:
            batch(first)
        return
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(batch, firsts):
            pass


if __name__ == "__main__":
    main(__file__, measure)
