"""Show in a few seconds what a cache does: build one, shuffle, shard, resume, compare."""

import argparse
import itertools
import json
import os
import statistics
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from yogadl._dataref import RecordsRef
from yogadl.cli._arguments import Answer, declared, plain_command, typed
from yogadl.cli._output import Bar, ago, counted
from yogadl.storage import CacheStorage, open_storage
from yogadl.storage._builds.options import BuildOptions
from yogadl.storage._local import user_cache_folder

DATASET: Final = "demo-images"
EDITION: Final = "1"  # raise it when the images change
RECORDS: Final = 50_021  # a prime: no number of shards or batch size divides it
LEAST_RECORDS: Final = 1_000
MOST_RECORDS: Final = 500_000

_SEED: Final = 7
_BATCH: Final = 256
_ROUNDS: Final = 9
_WIDTH: Final = 76


class GeneratedImages:
    """A source of small generated images of stripes, with labels: like a user's source, without a download.

    The images are the same on every machine and with every numpy, because integer arithmetic makes them.
    """

    def __init__(self, records: int) -> None:
        self._records = records
        rows, columns = np.mgrid[0:32, 0:32].astype(np.uint8)
        # The label is the direction of the stripes.
        self._stripes = [
            8 * rows * np.uint8(label % 5) + 8 * columns * np.uint8(label // 5 + 1) for label in range(10)
        ]

    def __len__(self) -> int:
        return self._records

    def __getitem__(self, index: int) -> dict[str, Any]:
        mixed = (index + 1) * 0x9E3779B97F4A7C15 % 2**64
        label = (mixed >> 32) % 10
        color = np.array([mixed >> shift & 255 | 64 for shift in (40, 48, 56)], np.uint16)
        wave = self._stripes[label] + np.uint8(mixed >> 24 & 255)
        image = (wave[:, :, None] * color >> 8).astype(np.uint8)
        return {"id": index, "image": image, "label": label}


def _record_count(text: str) -> int:
    try:
        count = int(text.replace(",", "").replace("_", ""))
    except ValueError:
        count = 0
    if not LEAST_RECORDS <= count <= MOST_RECORDS:
        raise argparse.ArgumentTypeError(
            f"give a number from {LEAST_RECORDS:,} to {MOST_RECORDS:,}, not {text!r}"
        )
    return count


@plain_command(
    *declared(
        f"""
        --dir DIR  where to keep the cache (default: a folder in your cache folder)
        --records RECORDS  how many images, {LEAST_RECORDS:,} to {MOST_RECORDS:,} (default: {RECORDS:,})
        """,
        dir=typed(Path),
        records=typed(_record_count, RECORDS),
    ),
    has_bar=True,
)
def demo(arguments: argparse.Namespace) -> Answer:
    """Show in a few seconds what a cache does: build, shuffle, shard, stop, resume, and how fast it is."""
    started = time.perf_counter()
    folder = (arguments.dir or _default_folder()).expanduser().absolute()
    _say(f"yogadl demo: {arguments.records:,} generated images of 32 x 32 pixels, with labels")
    storage = open_storage(folder)
    source = GeneratedImages(arguments.records)
    ref = _show_build(storage, source)
    held = [_show_shuffle(ref, source), _show_shards(ref), _show_resume(ref), _show_speed(ref)]
    _show_next(folder, _version(len(ref)))
    _say()
    if not all(held):
        _say("FAILED: not all of the above held; please report it, with this output.")
        return Answer(code=1)
    _say(f"All of the above held. It took {time.perf_counter() - started:.1f} s.")
    return Answer()


def _show_build(storage: CacheStorage, source: GeneratedImages) -> RecordsRef:
    _title("1. Build a cache, once")
    built: list[str] = []
    started = time.perf_counter()
    version = _version(len(source))

    with Bar("building", len(source), " records", stays=True) as bar:

        @storage.cacheable(
            DATASET, version, build=BuildOptions(progress=lambda records, *_: bar.show(records))
        )
        def demo_images(records: int) -> GeneratedImages:
            built.append("now")
            return GeneratedImages(records)

        ref = demo_images(len(source))
    elapsed_s = time.perf_counter() - started
    info = storage.info(DATASET, version)
    if built:
        _say(f"Built in {elapsed_s:.1f} s, {len(ref) / elapsed_s:,.0f} records/s; the next run will find it.")
    else:
        _say(f"It was there already, built {ago(info.created)}; opened in {elapsed_s * 1e3:.0f} ms.")
    _say(f"{info.records:,} records, {info.size_bytes / 1e6:.1f} MB in {counted(info.parts, 'file')}.")
    _say(f"Fingerprint, the same on every machine: {ref.fingerprint}")
    return ref


def _show_shuffle(ref: RecordsRef, source: GeneratedImages) -> bool:
    _title("2. Read it shuffled, by the batch")
    stream = ref.stream(shuffle=True, shuffle_seed=_SEED)
    for epoch in range(2):
        first = " ".join(str(index) for index in stream.indices(epoch, 0, 9).tolist())
        _say(f"Epoch {epoch} begins with records {first}")
    batches = list(ref.fields("id").stream(shuffle=True, shuffle_seed=_SEED).batch(_BATCH))
    sample = next(iter(stream.batch(_BATCH)))
    described = ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in sample.items())
    _say(f"A batch: {described}")
    equal = sum(
        all(np.array_equal(sample[name][row], value) for name, value in source[index].items())
        for row, index in enumerate(sample["id"].tolist())
    )
    _say(f"Its images, labels and ids made again and compared: {equal} of {len(sample['id'])} are equal.")
    is_exact = _say_exact("The epoch's batches", [batch["id"] for batch in batches], len(ref))
    return is_exact and equal == len(sample["id"])


def _show_shards(ref: RecordsRef) -> bool:
    _title("3. Four shards cover the epoch exactly")
    read = []
    for rank in range(4):
        read.append(_ids(_shard(ref, rank, 4)))
        first = " ".join(str(index) for index in read[-1][:6].tolist())
        _say(f"shard {rank} of 4   {len(read[-1]):>8,} records   {first} ...")
    return _say_exact("Together", read, len(ref))


def _show_resume(ref: RecordsRef) -> bool:
    _title("4. Stop in the middle of an epoch; go on with another number of shards")
    size = 32
    steps = len(ref) // 4 // 2 // size
    read, cursors = [], []
    for rank in range(4):
        batches = _shard(ref, rank, 4, size)
        read += [batch["id"] for batch in itertools.islice(batches, steps)]
        cursors.append(json.dumps(batches.state_dict()))
    before = sum(map(len, read))
    share = f"{before / len(ref):.1%} of the epoch"
    _say(f"4 shards read {steps} batches of {size} each: {before:,} records, {share}.")
    is_same = len(set(cursors)) == 1
    verdict = "the same" if is_same else "NOT the same"
    _say(f"The cursors that the 4 shards saved are {verdict}, {len(cursors[0])} bytes of JSON:")
    _say(textwrap.fill(cursors[0], _WIDTH, initial_indent="    ", subsequent_indent="    "))
    counts = []
    for rank in range(3):
        read.append(_ids(_shard(ref, rank, 3, size, cursor=_load_cursor(cursors[0]))))
        counts.append(f"{len(read[-1]):,}")
    _say(f"3 shards went on from there, and read {', '.join(counts[:-1])} and {counts[-1]} records.")
    return _say_exact("Before and after", read, len(ref)) and is_same


def _show_speed(ref: RecordsRef) -> bool:
    _title("5. How fast that is, beside numpy arrays in RAM")
    arrays = ref.gather(np.arange(len(ref)))
    loader = ref.stream(shuffle=True, shuffle_seed=_SEED).batch(_BATCH)
    order = loader.stream.indices()
    wanted = [order[first : first + _BATCH] for first in range(0, len(order), _BATCH)]

    def from_memory() -> Iterator[dict[str, NDArray[Any]]]:
        return ({name: array[chosen] for name, array in arrays.items()} for chosen in wanted)

    def from_cache() -> Iterator[dict[str, NDArray[Any]]]:
        return loader.at(epoch=0)

    pairs = zip(from_memory(), from_cache(), strict=True)
    is_equal = all(np.array_equal(ours[name], theirs[name]) for theirs, ours in pairs for name in arrays)
    memory_s, cache_s = _medians(from_memory, from_cache)
    size = sum(array.nbytes for array in arrays.values())
    _say(f"The same shuffled batches of {_BATCH}, {_ROUNDS} epochs each in turn, the median:")
    for name, elapsed_s in (("numpy, a[indices]", memory_s), ("this cache", cache_s)):
        _say(f"{name:<18} {len(ref) / elapsed_s / 1e6:6.2f} M records/s   {size / elapsed_s / 1e9:6.2f} GB/s")
    _say(f"So the cache runs at {memory_s / cache_s:.0%} of the speed of RAM, and holds none of it.")
    _say(f"All of its batches, compared with numpy's: {'equal' if is_equal else 'NOT equal'}.")
    return is_equal


def _show_next(folder: Path, version: str) -> None:
    _title("What to try next")
    _say(f"The cache lies in {folder}")
    _say("and stays there until you remove that folder. Read it yourself, in Python:")
    _say(f"""
    import yogadl
    storage = yogadl.open_storage({str(folder)!r})
    ref = storage.fetch({DATASET!r}, {version!r})
    batches = iter(ref.stream(shuffle=True, shuffle_seed={_SEED}).batch({_BATCH}))
    print(next(batches)["label"])
    print(batches.state_dict())""")
    _say()
    _say("For data of your own, write a function that returns it (arrays, an iterable,")
    _say("or anything with __len__ and __getitem__), and above it put the line")
    _say("    @storage.cacheable('name', '1')")


def _shard(
    ref: RecordsRef, rank: int, shards: int, size: int = _BATCH, cursor: dict[str, Any] | None = None
) -> Any:
    stream = ref.stream(shuffle=True, shuffle_seed=_SEED, shard_rank=rank, num_shards=shards, cursor=cursor)
    return iter(stream.batch(size))


def _load_cursor(text: str) -> dict[str, Any]:
    cursor: dict[str, Any] = json.loads(text)
    return cursor


def _ids(batches: Iterator[dict[str, NDArray[Any]]]) -> NDArray[np.int64]:
    return np.concatenate([batch["id"] for batch in batches])


def _say_exact(what: str, read: list[NDArray[np.int64]], records: int) -> bool:
    """Print how often each record was read, and return whether each was read exactly once."""
    seen = np.bincount(np.concatenate(read), minlength=records)
    missing, repeated = int((seen == 0).sum()), int((seen > 1).sum())
    is_exact = len(seen) == records and missing == repeated == 0
    verdict = "each exactly once" if is_exact else "NOT each exactly once"
    _say(f"{what}: {int(seen.sum()):,} records, {missing:,} missing, {repeated:,} repeated: {verdict}.")
    return is_exact


def _medians(*readers: Callable[[], Iterator[Any]]) -> list[float]:
    """Return for each reader the median seconds of an epoch; the readers take turns."""
    times: list[list[float]] = [[] for _ in readers]
    for _ in range(_ROUNDS):
        for reader, elapsed in zip(readers, times, strict=True):
            started = time.perf_counter()
            for _batch in reader():
                pass
            elapsed.append(time.perf_counter() - started)
    return [statistics.median(elapsed) for elapsed in times]


def _version(records: int) -> str:
    return f"{EDITION}-{records}"


def _default_folder() -> Path:
    """Return a folder in the user's cache folder, or in the temporary folder if that is not writable."""
    try:
        cache = user_cache_folder()
        cache.parent.mkdir(parents=True, exist_ok=True)
        if os.access(cache.parent, os.W_OK | os.X_OK):
            return cache / "demo"
    except (OSError, RuntimeError):  # a read-only home folder, or none
        pass
    return Path(tempfile.gettempdir()) / f"yogadl-demo-{os.getuid()}"


def _title(text: str) -> None:
    _say()
    _say(text)
    _say("-" * len(text))


def _say(text: str = "") -> None:
    # Flushed at once, so that the line keeps its place beside the progress bar, which is on stderr.
    print(text, flush=True)
