"""Measure foreign files that are adopted: the index, building it, and reading by it; also afar and exactly.

Run ``python benchmarks/adopt.py``; needs google-crc32c for the row of TFRecord, boto3 and obstore for the
row of a bucket. The rows of other libraries need these in this Python, in one that ``compare.py`` made, or in
one of the Pythons that the variable YOGADL_BENCH_PYTHONS lists as PATH does; the others are left out. Files
of up to 9 GB are written.
"""

import importlib.util
import itertools
import json
import os
import random
import shlex
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _measure import (
    Settings,
    at_least,
    at_most,
    batches_of,
    clear,
    drain,
    in_child,
    interleave,
    main,
    rate,
    ratios,
    say,
)
from _shard_readers import LIBRARIES, digest
from _shards import (
    blobs,
    write_lines,
    write_mds,
    write_megatron,
    write_npy,
    write_tars,
    write_tfrecords,
)
from afar import BUCKET, opened, serving

import yogadl

LARGE, LARGE_RECORDS, MORE_RECORDS = 100_000, 20_000, 60_000
SMALL, SMALL_RECORDS = 4096, 50_000
SHARDS, BATCH, WINDOW = 16, 256, 2048
UNREAD_SHARDS, DOCUMENTS = 1000, 40_000
INDEX, READ, UNREAD_S, LOCAL, OTHERS, CHUNKS, FAR = 1, 0.5, 1, 0.95, 10, 0.9, 0.95
DELAY_S, FAR_SECONDS = 0.02, 5
CHAINS, CHAINED = 100, 500
COMPARED = 10_000


def measure(settings: Settings) -> None:
    """Measure large records, then small ones, many shards, a bucket; then count what is the same."""
    measure_large(settings)
    measure_small(settings)
    measure_unread(settings)
    measure_chunks(settings)
    if importlib.util.find_spec("boto3") and importlib.util.find_spec("obstore"):
        measure_afar(settings)
    count_chains(settings)
    compare_readers(settings)


def measure_large(settings: Settings) -> None:
    """Print the rows of records of 100 KB: index, indexing, shuffled reading."""
    count = settings.scaled(LARGE_RECORDS)
    root = settings.path("large")
    for form, write in (("webdataset", write_tars), ("tfrecord", write_tfrecords)):
        folder = root / form
        folder.mkdir(parents=True)
        paths = write(folder, blobs(count, LARGE), -(-count // SHARDS))
        storage = yogadl.open_storage(root / f"store-{form}")
        storage.adopt(folder, "set", "1", format=form)
        print_index(settings, f"{form}, records of {LARGE // 1000} KB", root / f"store-{form}", paths)
        if form == "tfrecord" and importlib.util.find_spec("google_crc32c") is None:
            say("google-crc32c is not there: checksums are computed by numpy")
        measure_indexing(settings, storage, form, paths)
        if form == "webdataset":
            measure_shuffled(settings, storage.fetch("set", "1"), paths)
        (folder / "more").mkdir()
        more = write(folder / "more", blobs(settings.scaled(MORE_RECORDS), LARGE), -(-count // SHARDS))
        measure_indexing(settings, storage, form, [*paths, *more])
        clear(folder)
    clear(root)


def print_index(settings: Settings, what: str, store: Path, paths: list[Path]) -> None:
    """Print the row of an index's bytes: all that lies in the folder of the storage."""
    found = sum(path.stat().st_size for path in store.rglob("*") if path.is_file())
    total = sum(path.stat().st_size for path in paths)
    details = f"{found:,} bytes for {total / 1e6:,.0f} MB"
    settings.row(f"bytes of the index: {what}", at_most(INDEX, " %"), [100 * found / total], details)


def measure_indexing(settings: Settings, storage: Any, form: str, paths: list[Path]) -> None:
    """Print the row of indexing files whose pages are in memory."""
    numbers = itertools.count()
    total_bytes = sum(path.stat().st_size for path in paths)
    files = " ".join(shlex.quote(str(path)) for path in paths)

    def adopt(**how: Any) -> None:
        storage.adopt(list(paths), "timed", f"{form} {len(paths)} {next(numbers)}", format=form, **how)

    works: dict[str, Callable[[], object]] = {
        "cat": partial(subprocess.run, f"cat {files} > /dev/null", shell=True, check=True),
        "2 workers": partial(adopt, workers=2),
        "alone": adopt,
        "read=False": partial(adopt, files=yogadl.FileOptions(read=False)),
    }
    times = interleave(works, settings.rounds, uncounted=1)
    settings.row(
        f"indexing {form}, {total_bytes / 1e9:.0f} GB in records of {LARGE // 1000} KB, 2 workers, "
        "against cat > /dev/null",
        at_least(READ),
        ratios(times["cat"], times["2 workers"]),
        "; ".join(f"{name} {np.median(spent):.2f} s" for name, spent in times.items()),
    )


def measure_shuffled(settings: Settings, ref: Any, paths: list[Path]) -> None:
    """Print the rows of a shuffled epoch of tar files."""
    stream = ref.stream(shuffle=True, shuffle_seed=1)
    order = stream.indices(0, 0, len(ref))
    descriptors = [os.open(path, os.O_RDONLY) for path in paths]
    places = [place for path, own in zip(paths, descriptors, strict=True) for place in places_in(path, own)]
    if len(places) != len(ref):
        sys.exit(f"{len(places)} members became {len(ref)} records")
    batches = [[places[number] for number in chosen] for chosen in batches_of(order, BATCH)]
    for batch, found in zip(batches, stream.batch(BATCH), strict=True):
        if [os.pread(*place) for place in batch] != list(found["bin"]):
            sys.exit("records are not what the files have")

    def bare() -> None:
        for batch in batches:
            [os.pread(*place) for place in batch]

    def held() -> None:
        before: list[bytes] = []
        for batch in batches:
            before = [os.pread(*place) for place in batch]
        before.clear()

    works = {"pread": bare, "pread, one held": held, "adopted": lambda: drain(iter(stream.batch(BATCH)))}
    times = interleave(works, settings.rounds)
    what = f"shuffled, tar of records of {LARGE // 1000} KB, batch {BATCH}"
    details = "; ".join(f"{name} {rate(len(ref), spent)}" for name, spent in times.items())
    settings.row(f"{what}, against pread", at_least(LOCAL), ratios(times["pread"], times["adopted"]), details)
    settings.row(
        f"{what}, against pread that holds a batch while it reads the next",
        at_least(LOCAL), ratios(times["pread, one held"], times["adopted"]), details,
    )  # fmt: skip
    for descriptor in descriptors:
        os.close(descriptor)
    python = python_with("webdataset")
    if python is None:
        say("webdataset is not there: no row against it")
        return
    command = ["epoch", str(len(ref)), str(BATCH), json.dumps(list(map(str, paths)))]
    own, theirs = [], []
    for _ in range(min(3, settings.rounds)):
        theirs.append(float(by_reader(python, *command)))
        began = time.perf_counter()
        drain(iter(stream.batch(BATCH)))
        own.append(time.perf_counter() - began)
    details = f"webdataset {rate(len(ref), theirs)}; adopted {rate(len(ref), own)}"
    settings.row(
        f"{what}, against webdataset with all samples in its buffer",
        at_least(OTHERS), ratios(theirs, own), details,
    )  # fmt: skip


def places_in(path: Path, descriptor: int) -> Iterator[tuple[int, int, int]]:
    """Yield the arguments of `os.pread` for each member of a tar file."""
    with tarfile.open(path) as tar:
        for member in tar:
            yield descriptor, member.size, member.offset_data


def measure_small(settings: Settings) -> None:
    """Print the rows of the index of records of 4 KB."""
    root, count = settings.path("small"), settings.scaled(SMALL_RECORDS)
    for form, write in (("webdataset", write_tars), ("tfrecord", write_tfrecords)):
        folder = root / form
        folder.mkdir(parents=True)
        paths = write(folder, blobs(count, SMALL), -(-count // 4))
        for read in (True, False):
            store = root / f"store-{form}-{read}"
            yogadl.open_storage(store).adopt(
                folder, "set", "1", format=form, files=yogadl.FileOptions(read=read)
            )
            print_index(settings, f"{form}, records of {SMALL:,} bytes, read={read}", store, paths)
    clear(root)


def measure_unread(settings: Settings) -> None:
    """Print the rows of many shards whose own indexes are trusted."""
    root, count = settings.path("unread"), settings.scaled(UNREAD_SHARDS)
    rng = np.random.default_rng(0)
    for form in ("megatron", "npy", "mds"):
        (root / form).mkdir(parents=True)
    sequences = [rng.integers(0, 50_000, int(size), np.uint16) for size in rng.integers(50, 500, 250)]
    for number in range(count):
        write_megatron(root / "megatron" / f"{number:04d}", sequences)
    write_npy(root / "npy", rng.random((256 * count, 16), np.float32), 256)
    write_mds(root / "mds", enumerate(blobs(64 * count, 1000)), 64)
    storage, numbers = yogadl.open_storage(root / "store"), itertools.count()

    def adopt(form: str) -> None:
        storage.adopt(
            root / form, form, str(next(numbers)), format=form, files=yogadl.FileOptions(read=False)
        )

    times = interleave({form: partial(adopt, form) for form in ("megatron", "npy", "mds")}, settings.rounds)
    for form, spent in times.items():
        settings.row(f"read=False of {count:,} shards of {form}", at_most(UNREAD_S, " s"), spent)
    clear(root)


def measure_chunks(settings: Settings) -> None:
    """Print the row of windows of tokens."""
    root, count = settings.path("chunks"), settings.scaled(DOCUMENTS)
    (root / "raw").mkdir(parents=True)
    rng = np.random.default_rng(1)
    for number in range(4):
        lengths = rng.integers(10, 4000, count // 4).tolist()
        write_megatron(root / "raw" / str(number), [rng.integers(0, 50_000, n, np.uint16) for n in lengths])
    storage = yogadl.open_storage(root / "store")
    storage.adopt(root / "raw", "set", "adopted", format="megatron")
    storage.submit(storage.fetch("set", "adopted"), "set", "copied")
    chunks = {
        version: storage.fetch("set", version).chunks(None, WINDOW) for version in ("adopted", "copied")
    }
    streams = {name: each.stream(shuffle=True, shuffle_seed=1).batch(BATCH) for name, each in chunks.items()}
    for ours, copied in zip(streams["adopted"], streams["copied"], strict=True):
        if not np.array_equal(ours, copied):
            sys.exit("windows of tokens differ")
    times = interleave(
        {name: lambda one=one: drain(iter(one)) for name, one in streams.items()}, settings.rounds
    )
    settings.row(
        f"shuffled windows of {WINDOW:,} tokens of Megatron's .bin, against a cache of the same",
        at_least(CHUNKS),
        ratios(times["copied"], times["adopted"]),
        "; ".join(f"{name} {rate(len(chunks[name]), spent)}" for name, spent in times.items()),
    )
    clear(root)


def measure_afar(settings: Settings) -> None:
    """Print the row of a bucket that is far away, of which this machine has nothing."""
    root, count = settings.path("afar"), settings.scaled(LARGE_RECORDS)
    (root / "raw").mkdir(parents=True)
    paths = write_tars(root / "raw", blobs(count, LARGE), -(-count // SHARDS))
    with serving(root) as url:  # the server only reads, so the versions are built in its folder
        foreign = {"s3://raw": {"endpoint_url": url, **BUCKET}}
        storage = yogadl.open_storage(root / "set", foreign=foreign)
        urls = [f"s3://raw/{path.name}" for path in paths]
        storage.adopt(urls, "set", "adopted", format="webdataset")
        storage.submit(
            storage.fetch("set", "adopted"), "set", "copied", build=yogadl.BuildOptions(part_bytes=2**28)
        )
    each: dict[str, list[float]] = {"adopted": [], "copied": []}
    names = list(each)
    for number in range(settings.rounds):
        for version in names:
            with serving(root, DELAY_S) as url:
                each[version].append(in_child(__file__, "read_afar", url=url, version=version, seed=number))
        names.reverse()
    settings.row(
        f"records of {LARGE // 1000} KB from tar files in a bucket behind {DELAY_S * 1000:.0f} ms, shuffled, "
        "mirror=None, against a cache of the same there",
        at_least(FAR),
        ratios(each["adopted"], each["copied"]),
        "; ".join(f"{version} {np.median(found):,.0f} /s" for version, found in each.items()),
    )
    clear(root)


def read_afar(url: str, version: str, seed: int) -> float:
    """Read some seconds long; return records per second."""
    foreign = {"s3://raw": {"endpoint_url": url, **BUCKET}}
    ref = opened(url, "set", dataset="set", version=version, mirror=None, foreign=foreign)
    began, count = time.perf_counter(), 0
    for batch in ref.stream(shuffle=True, shuffle_seed=seed).batch(BATCH).prefetch(4, threads=1):
        count += len(batch["bin"])
        if time.perf_counter() - began > FAR_SECONDS:
            break
    return count / (time.perf_counter() - began)


def count_chains(settings: Settings) -> None:
    """Print how many chains of views and stops give the same records and cursors after `submit(ref)`."""
    root = settings.path("chains")
    (root / "raw").mkdir(parents=True)
    write_tars(root / "raw", blobs(CHAINED, 200), 70)
    storage = yogadl.open_storage(root / "store")
    storage.adopt(root / "raw", "set", "adopted", format="webdataset")
    storage.submit(storage.fetch("set", "adopted"), "set", "copied")
    refs = [storage.fetch("set", version) for version in ("adopted", "copied")]
    whole = [chained(refs[0], refs[0], seed) for seed in range(CHAINS)]
    same = sum(
        chained(*pair, seed) == whole[seed]
        for pair in ((refs[0], refs[1]), (refs[1], refs[0]))
        for seed in range(CHAINS)
    )
    others = len({repr(each) for each in whole})
    settings.row(
        "chains of views, stops and cursors that are the same before and after submit(ref), both ways",
        at_least(2 * CHAINS, ""),
        [same],
        f"{others} different chains",
    )
    clear(root)


def chained(before: Any, after: Any, seed: int) -> list[Any]:
    """Read keys by a view of one reference up to a stop, and on by the same view of the other one."""
    dice = random.Random(seed)
    steps = [dice.choice(("select", "split", "filter", "map", "sampled")) for _ in range(dice.randint(0, 3))]
    shuffle: Any = dice.choice((False, True, True, yogadl.Blocks(4, window=4, lanes=2)))
    if "sampled" in steps:
        steps, shuffle = [*(step for step in steps if step != "sampled"), "sampled"], True
    how = {"shuffle": shuffle, "shuffle_seed": dice.randint(0, 99), "num_shards": dice.randint(1, 3)}
    batch, stop = dice.randint(1, 12), dice.randint(1, 3)
    first, second = (viewed(ref, steps, seed) for ref in (before, after))
    found: list[Any] = [steps]
    batches = iter(first.stream(**how).batch(batch))
    found += [list(one["__key__"]) for one in itertools.islice(batches, stop)]
    cursor = batches.state_dict()
    found.append(json.dumps(cursor, sort_keys=True))
    rest = iter(second.stream(**how, cursor=cursor).batch(batch))
    found += [list(one["__key__"]) for one in rest]
    found.append(json.dumps(rest.state_dict(), sort_keys=True))
    return found


def viewed(ref: Any, steps: list[str], seed: int) -> Any:
    """Return a view of a reference."""
    for number, step in enumerate(steps):
        if step == "select":
            ref = ref.select(np.random.default_rng(seed + number).permutation(len(ref))[: len(ref) * 3 // 4])
        elif step == "split":
            ref = ref.split(0.7, seed=seed + number)[0]
        elif step == "filter":
            ref = ref.filter(is_kept, fields=["__key__"])
        elif step == "map":
            ref = ref.map(only_key)
        else:
            ref = ref.sampled()
    return ref


def is_kept(record: Any) -> bool:
    """Choose most records by their key."""
    return int(record["__key__"]) % 7 != 3


def only_key(record: Any) -> Any:
    """Keep the key."""
    return {"__key__": record["__key__"]}


def compare_readers(settings: Settings) -> None:
    """Print for each format how many records are, byte for byte, those of its own library."""
    root, count = settings.path("formats"), settings.scaled(COMPARED)
    storage = yogadl.open_storage(root / "store")
    for form, library in LIBRARIES.items():
        python = python_with(library)
        if python is None:
            say(f"{library} is not there: {form} is not compared")
            continue
        folder = root / form
        folder.mkdir(parents=True)
        paths = written(form, folder, count, python)
        storage.adopt(paths, form, "1", format=form)
        by_reader(python, "digests", form, json.dumps(list(map(str, paths))), str(folder / "digests"))
        content = (folder / "digests").read_bytes()
        theirs = [content[first : first + 32] for first in range(0, len(content), 32)]
        ref = storage.fetch(form, "1")
        ours = [digest(comparable(form, ref[number])) for number in range(len(ref))]
        same = sum(map(bytes.__eq__, ours, theirs)) if len(ours) == len(theirs) else 0
        settings.row(f"records of {form} that are those of {library}", at_least(count, ""), [same])
    clear(root)


def written(form: str, folder: Path, count: int, python: str) -> list[Path]:
    """Write the files of a format, those of Arrow by another Python; return the paths to adopt."""
    rng = np.random.default_rng(7)
    pool = rng.bytes(2**16)
    values = [pool[start : start + size] for start, size in rng.integers(0, 2000, (count, 2)).tolist()]
    shard = -(-count // 4)
    if form == "webdataset":
        return write_tars(folder, values, shard)
    if form == "tfrecord":
        return write_tfrecords(folder, values, shard)
    if form == "megatron":
        sequences = [np.frombuffer(value[: len(value) // 4 * 4], np.int32) for value in values]
        return [
            write_megatron(folder / str(first), sequences[first : first + shard])
            for first in range(0, count, shard)
        ]
    if form == "mds":
        return [write_mds(folder, enumerate(values), shard)]
    if form == "npy":
        return write_npy(folder, rng.random((count, 3, 5)), shard)
    if form == "jsonl":
        documents = ({"n": row, "text": "ü" * (row % 50), "list": [row / 3]} for row in range(count))
        return [write_lines(folder / "lines.jsonl", documents)]
    (folder / "values").write_bytes(b"".join(values))
    (folder / "sizes").write_text(json.dumps(list(map(len, values))))
    by_reader(python, "arrow", str(folder / "values"), str(folder / "sizes"), str(folder / "table.arrow"))
    return [folder / "table.arrow"]


def comparable(form: str, record: Any) -> Any:
    """Return a record as the readers of `_shard_readers.py` give it."""
    return json.dumps(json.loads(record), sort_keys=True) if form == "jsonl" else record


def python_with(library: str) -> str | None:
    """Return a Python that has a library, or None."""
    given = os.environ.get("YOGADL_BENCH_PYTHONS", "").split(os.pathsep)
    made = sorted(map(str, Path(__file__).with_name(".venvs").glob("*/bin/python")))
    find = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({library!r}) is None)"
    for python in (sys.executable, *filter(None, given), *made):
        if subprocess.run([python, "-c", find], capture_output=True, check=False).returncode == 0:
            return python
    return None


def by_reader(python: str, *arguments: str) -> str:
    """Run `_shard_readers.py` in another Python; return what it printed."""
    script = str(Path(__file__).with_name("_shard_readers.py"))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, script, *arguments],
        capture_output=True,
        text=True,
        env={**environment, "TF_CPP_MIN_LOG_LEVEL": "3"},
        check=False,
    )
    if done.returncode:
        sys.exit(f"a reader of {arguments[1]} ended with {done.returncode}: {done.stderr[-1000:]}")
    return done.stdout


if __name__ == "__main__":
    main(__file__, measure, {"read_afar": read_afar})
