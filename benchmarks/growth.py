"""Measure what it costs to append one percent to a cache, in a folder and in a bucket.

Run ``python benchmarks/growth.py``. What is written are the bytes of all files that are new or changed:
parts, indexes, the part table, the manifest, and what locks and leases leave.
"""

from pathlib import Path
from typing import Any

import numpy as np
from _measure import Settings, at_most, clear, drain, interleave, main, rate, ratios, say

import yogadl
from yogadl.storage import CacheStorage

BYTES = 10**9
ROW = 2_048  # numbers of 4 bytes: a row of tokens
SHARE = 0.01
MOST = 0.012


def measure(settings: Settings) -> None:
    """Print a row for each kind of storage, and one for reading what was appended."""
    records = settings.scaled(BYTES // (4 * ROW))
    tokens = np.random.default_rng(0).integers(0, 50_000, (records, ROW), np.int32)
    new = tokens[: int(records * SHARE)] + 1
    for where in ("a folder", "a bucket"):
        root = settings.path("caches")
        storage = opened(where, root, settings)
        say(f"{tokens.nbytes / 1e9:.2f} GB in {where}")
        storage.submit({"tokens": tokens}, "set", "0")
        compare(settings, storage, root, where, (tokens, new))
        if where == "a folder":
            read(settings, storage)
        clear(root)


def compare(
    settings: Settings, storage: CacheStorage, root: Path, where: str, parts: tuple[np.ndarray, np.ndarray]
) -> None:
    """Print the row of one kind of storage."""
    tokens, new = parts
    shares = []
    for number in range(settings.rounds):
        before = files_of(root)
        storage.append({"tokens": new}, "set", f"0-{number}", base_version="0")
        written = sum(size for name, size in files_of(root).items() if name not in before)
        shares.append(100 * written / tokens.nbytes)
    whole = {"tokens": np.concatenate([tokens, new])}
    works = {
        "append": lambda: storage.append({"tokens": new}, "set", "1", base_version="0"),
        "build": lambda: storage.submit(whole, "set", "2"),
    }
    times = interleave(works, 1, uncounted=0)
    if storage.info("set", "1").fingerprint != storage.info("set", "2").fingerprint:
        raise SystemExit("what was appended is not what was built at once")
    settings.row(
        f"append of {SHARE:.0%} to {tokens.nbytes / 1e9:.1f} GB in {where}: written of its bytes",
        at_most(100 * MOST, " %"),
        shares,
        f"{times['append'][0]:.2f} s; all built at once {times['build'][0]:.2f} s",
    )


def opened(where: str, root: Path, settings: Settings) -> CacheStorage:
    """Open a storage; the mirror of a bucket is not among what is written to the bucket."""
    if where == "a folder":
        return yogadl.open_storage(root)
    return yogadl.open_storage(f"file://{root}", mirror=yogadl.Mirror(settings.path("mirror"), limit="1GB"))


def files_of(root: Path) -> dict[Any, int]:
    """Return the size of each file, by what tells it from one that was there before."""
    files = (path for path in root.rglob("*") if path.is_file())
    return {(path, (found := path.stat()).st_ino, found.st_mtime_ns): found.st_size for path in files}


def read(settings: Settings, storage: CacheStorage) -> None:
    """Print a row of reading the version that was appended to beside that which was built at once."""
    loaders = {
        version: storage.fetch("set", version).stream(shuffle=True, shuffle_seed=1).batch(256)
        for version in ("1", "2")
    }
    works = {version: lambda loader=loader: drain(iter(loader)) for version, loader in loaders.items()}
    times = interleave(works, settings.rounds)
    records = len(storage.fetch("set", "1"))
    settings.row(
        "shuffled, one percent appended against all built at once, {int32[2048]}",
        None,
        ratios(times["2"], times["1"]),
        f"{rate(records, times['1'])}; at once {rate(records, times['2'])}",
        " x",
    )


if __name__ == "__main__":
    main(__file__, measure)
