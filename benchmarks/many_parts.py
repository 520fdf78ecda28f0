"""Measure opening a cache of 100,000 parts: in a bucket, with and without a mirror, and in a folder.

Run ``python benchmarks/many_parts.py``; needs boto3 and obstore. Manifest and part table are real, and so are
the few parts that are read; in mirrors and folders the others are holes of their size.
"""

import hashlib
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
from _measure import Settings, at_most, clear, in_child, main, private_bytes, say
from afar import processor_s, serving

import yogadl
from yogadl._core.key import DatasetKey
from yogadl._format.layout import SealedPart, join_parts
from yogadl._format.manifest import read_manifest
from yogadl.storage import _names
from yogadl.storage._catalogue.cached import open_table, read_sealed
from yogadl.storage._files.folder import Folder

PARTS = 100_000
PART_RECORDS = 64
WIDTH = 8192
BATCH = 256
REAL = 5  # parts that are there, spread over all
THERE = "there.json"  # which records these have, and their labels


def measure(settings: Settings) -> None:
    """Measure opening a cache of 100,000 parts."""
    root, parts = settings.path("store"), settings.scaled(PARTS)
    say(f"{parts:,} parts of {PART_RECORDS} records")
    make(root / "bucket", parts)
    there = str(root / THERE)
    with serving(root) as url:
        measure_afar(settings, url, there, "mirror=None", None)
        measure_afar(settings, url, there, "cold mirror", settings.path("cold"), is_cold=True)
        for what, share in (("mirror with its table and half of the parts", 0.5), ("full mirror", 1.0)):
            mirror = settings.path("mirror")
            in_child(__file__, "open_it", there=there, url=url, mirror=str(mirror))
            fill(root / "bucket", mirror / "caches", share)
            measure_afar(settings, url, there, what, mirror)
            clear(mirror)
    fill(root / "bucket", root / "bucket", 1.0)
    each = [
        in_child(__file__, "open_it", there=there, root=str(root / "bucket")) for _ in range(settings.rounds)
    ]
    print_rows(settings, f"opening a cache of {parts:,} parts in a folder", each, has_bars=False)
    clear(root)


def make(folder: Path, parts: int) -> None:
    """Make a cache of so many parts, of which few are there, and a small one beside it."""
    records = PART_RECORDS * (REAL + 2)
    columns: dict[str, Any] = {"image": [image(number) for number in range(records)]}
    columns["label"] = np.arange(records)
    storage, key = yogadl.open_storage(folder), DatasetKey("set", "1")
    storage.submit(columns, "set", "1", build=yogadl.BuildOptions(part_bytes=PART_RECORDS * (WIDTH + 64)))
    storage.submit({name: column[:3] for name, column in columns.items()}, "small", "1")
    files = Folder(folder)
    content = files.read(_names.manifest(key))
    assert content is not None
    manifest = read_manifest(content, key, "the model")
    table = open_table(files, manifest)
    model = [read_sealed(files, "set", *sums) for sums in zip(table.sha256, table.index_sha256, strict=True)][
        :REAL
    ]
    if len(model) < REAL:
        raise SystemExit("the cache has not the parts that it should")
    found, labels, chosen, first = [], [], [], 0
    for number in range(parts):
        which = number * REAL // parts
        one = model[which]
        if number * REAL % parts:
            name = hashlib.sha256(str(number).encode()).hexdigest()
            one = SealedPart(name, name[::-1], one.index)
        else:
            chosen += range(first, first + one.index.records)
            labels += range(*table.first_record[which : which + 2].tolist())
        found.append(one)
        first += one.index.records
    (folder.parent / THERE).write_text(json.dumps([chosen, labels]))
    joined = join_parts(found)
    content = joined.to_file().to_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    files.write(_names.table("set", sha256), content)
    manifest = replace(
        manifest,
        records=joined.records,
        table_sha256=sha256,
        table_bytes=len(content),
        size_bytes=joined.total_bytes,
        parts=parts,
    )
    files.write(_names.manifest(key), manifest.to_bytes())


def image(number: int) -> bytes:
    """Return the bytes of a record, in number like those of a small picture."""
    return bytes([number % 256]) * (WIDTH - number)


def fill(store: Path, folder: Path, share: float) -> None:
    """Put so many parts into a folder: holes, where the store has none."""
    files, key = Folder(store), DatasetKey("set", "1")
    content = files.read(_names.manifest(key))
    assert content is not None
    table = open_table(files, read_manifest(content, key, "the manifest"))
    (folder / "set" / "parts").mkdir(parents=True, exist_ok=True)
    for sha256, size_bytes in list(zip(table.sha256, table.size_bytes.tolist(), strict=True))[
        : int(share * len(table))
    ]:
        name = _names.part("set", sha256)
        if (store / name).exists():
            if store != folder:
                (folder / name).write_bytes((store / name).read_bytes())
            continue
        descriptor = os.open(folder / name, os.O_CREAT | os.O_WRONLY)
        os.ftruncate(descriptor, size_bytes)
        os.close(descriptor)


def measure_afar(
    settings: Settings, url: str, there: str, how: str, mirror: Path | None, is_cold: bool = False
) -> None:
    """Print the rows of opening it in a bucket."""
    each = []
    for number in range(max(5, settings.rounds)):
        folder = mirror and (mirror.with_name(f"{mirror.name}-{number}") if is_cold else mirror)
        each.append(in_child(__file__, "open_it", there=there, url=url, mirror=folder and str(folder)))
        if is_cold and folder:
            clear(folder)
    print_rows(settings, f"opening a cache of {settings.scaled(PARTS):,} parts in a bucket, {how}", each)


def print_rows(settings: Settings, what: str, each: list[dict[str, Any]], has_bars: bool = True) -> None:
    """Print what opening took, and then the first batch."""

    def row(what: str, unit: str, name: str, limit: float | None = None, details: str = "") -> None:
        values = [one[name] for one in each]
        bar = at_most(limit, unit) if limit is not None and has_bars else None
        settings.row(what, bar, values, details, unit)

    if "requests" in each[0]:
        row(f"{what}: requests", "", "requests", 3, f"{each[0]['MB']:.1f} MB")
    middle = {name: np.median([one[name] for one in each]) for name in ("cpu_s", "highest_mb", "batch_s")}
    beside, details = " beside requests" if has_bars else "", f"processor {middle['cpu_s']:.2f} s"
    row(f"{what}: time{beside}", " s", "seconds", 0.3, details)
    details = f"at its highest {middle['highest_mb']:.0f} MB"
    row(f"{what}: private memory", " MB", "private_mb", 10, details)
    details = f"{1e3 * middle['batch_s']:.0f} ms after opening"
    row(f"the same with a first batch of {BATCH}: private memory", " MB", "batch_mb", None, details)


def open_it(
    there: str, url: str | None = None, mirror: str | None = None, root: str | None = None
) -> dict[str, float]:
    """Open the small cache, so that all modules are loaded; then open the large one, and read from it."""
    if url is None:
        storage = yogadl.open_storage(str(root))
    else:
        storage = yogadl.open_storage(
            "s3://bucket",
            endpoint_url=url,
            anonymous=True,
            client_options={"region_name": "us-east-1"},
            mirror=yogadl.Mirror(mirror, fill="never"),
        )
    _ = storage.fetch("small", "1")[0]
    _ = next(iter(storage.fetch("small", "1").stream(shuffle=True).batch(2)))
    requests, size_bytes = counted(url)
    Path("/proc/self/clear_refs").write_text("5")  # what is the highest is counted from here on
    highest = highest_bytes()
    before, cpu_s, began = private_bytes(), processor_s(), time.perf_counter()
    ref = storage.fetch("set", "1")
    seconds, cpu_s, after = time.perf_counter() - began, processor_s() - cpu_s, private_bytes()
    now = counted(url)
    found = {"cpu_s": cpu_s, "private_mb": (after - before) / 1e6}
    found["highest_mb"] = (highest_bytes() - highest) / 1e6
    if url is not None:
        found["requests"], found["MB"] = now[0] - requests, (now[1] - size_bytes) / 1e6
    chosen, labels = json.loads(Path(there).read_text())
    began = time.perf_counter()
    batch = next(iter(ref.select(chosen).stream(shuffle=True).batch(BATCH)))
    found["batch_s"], found["batch_mb"] = time.perf_counter() - began, (private_bytes() - before) / 1e6
    found["seconds"] = seconds - (0 if url is None else plainly(url))
    found_labels = batch["label"].tolist()
    is_right = len(set(found_labels)) == len(found_labels) and set(found_labels) <= set(labels)
    if not is_right or batch["image"] != [image(label) for label in found_labels]:
        raise SystemExit("the first batch is not what was stored")
    return found


def highest_bytes() -> int:
    """Return the most memory that this process has had."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
    return int(line.split()[1]) * 1024


def counted(url: str | None) -> tuple[int, int]:
    """Return how many requests the server answered, and with how many bytes."""
    if url is None:
        return 0, 0
    with urlopen(f"{url}/-/counted") as answer:
        requests, size_bytes = json.load(answer)
    return requests, size_bytes


def plainly(url: str) -> float:
    """Return how long the requests alone take: for the manifest and for the table."""
    began = time.perf_counter()
    with urlopen(f"{url}/bucket/{_names.manifest(DatasetKey('set', '1'))}") as answer:
        sha256 = json.load(answer)["table"]["sha256"]
    with urlopen(f"{url}/bucket/{_names.table('set', sha256)}") as answer:
        answer.read()
    return time.perf_counter() - began


if __name__ == "__main__":
    main(__file__, measure, {"open_it": open_it})
