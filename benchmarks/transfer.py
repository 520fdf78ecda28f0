"""Measure downloads and ranges beside boto3's own, and reading from a mirror beside reading a local cache.

Run ``python benchmarks/transfer.py``; needs boto3 and obstore. Both sides of a download ask the same server,
`_object_server.py` on this machine, and write to the same folder. Ours also hashes what it receives and waits
until it is on the disk, which `download_file` does not: so one row has `download_file` followed by both, and
one has it alone. It justifies the sizes of ranges and the
connections of `yogadl.storage._remote.download` and `transfer`.
"""

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import _sets
import numpy as np
from _measure import Settings, at_least, at_most, check_equal, clear, drain, interleave, main, ratios, say

import yogadl
from yogadl.storage._objects.s3 import S3Bucket
from yogadl.storage._remote.download import Download, download_all

SIZE = 10**9
PARTS = 8
# boto3's own settings: connections and bytes in a range. The fastest of them here is what is compared with.
THEIRS = ((10, 8), (4, 16), (10, 32), (4, 64), (2, 64), (16, 64))
TRIALS = 2
# Ranges: their lengths, how many a round, by how many threads, out of an object of this size.
LENGTHS = (8_192, 150_000)
GETS = 1_000
THREADS = 16
OBJECT = 2 * 10**8
DATA = _sets.SMALL_IMAGES


def measure(settings: Settings) -> None:
    """Measure ranges, downloads of a whole cache in one part and in several, and a mirror that is filled."""
    measure_ranges(settings)
    measure_downloads(settings)
    measure_mirror(settings)


def measure_ranges(settings: Settings) -> None:
    """Print the rows of small ranges out of one object, by many threads: the processor time of a get."""
    import boto3
    from botocore.config import Config

    root, size = settings.path("store"), settings.scaled(OBJECT)
    make_objects(root / "bucket", settings.path("here"), 1, size)
    with serving(root) as url:
        bucket = S3Bucket("bucket", endpoint_url=url, client_options={"region_name": "us-east-1"})
        client = boto3.client(
            "s3", endpoint_url=url, region_name="us-east-1", config=Config(max_pool_connections=THREADS)
        )
        found = bucket.head("part-0")
        assert found is not None
        tag = found.tag

        def ours(start: int, stop: int) -> bytes | memoryview:
            fetched = bucket.fetch_range("part-0", start, stop, tag=tag)
            assert fetched is not None
            return fetched.content

        def theirs(start: int, stop: int) -> bytes | memoryview:
            span = f"bytes={start}-{stop - 1}"
            body = client.get_object(Bucket="bucket", Key="part-0", Range=span, IfMatch=tag)["Body"]
            content: bytes = body.read()
            return content

        for length in LENGTHS:
            if bytes(ours(7, 7 + length)) != bytes(theirs(7, 7 + length)):
                sys.exit("a range came with other bytes")
            say(f"ranges of {length:,} bytes, by {THREADS} threads")
            print_ranges(settings, length, size, {"ours": ours, "boto3": theirs})
    clear(root)
    clear(settings.path("here"))


def print_ranges(
    settings: Settings, length: int, size: int, gets: dict[str, Callable[[int, int], bytes | memoryview]]
) -> None:
    """Print the row of one length. The server takes turns with the reader, so no time but its own counts."""
    starts = np.random.default_rng(2).integers(0, size - length, settings.scaled(GETS))
    spent: dict[str, list[float]] = {name: [] for name in gets}

    def timed(name: str) -> Callable[[], None]:
        def run() -> None:
            began = time.process_time()
            list(pool.map(lambda start: gets[name](int(start), int(start) + length), starts))
            spent[name].append((time.process_time() - began) / len(starts) * 1e6)

        return run

    with ThreadPoolExecutor(THREADS) as pool:
        interleave({name: timed(name) for name in gets}, settings.rounds)
    counted = {name: times[-settings.rounds :] for name, times in spent.items()}
    what = f"processor time of a range of {length:,} bytes against boto3's get_object, {THREADS} threads"
    details = "; ".join(f"{name} {np.median(times):,.0f} us" for name, times in counted.items())
    settings.row(what, at_most(0.25), ratios(counted["ours"], counted["boto3"]), details)


def measure_downloads(settings: Settings) -> None:
    """Print the rows of 1 GB in one part and in eight."""
    size = settings.scaled(SIZE)
    for parts in (1, PARTS):
        root = settings.path("store")
        say(f"{size / 1e9:g} GB in {parts} objects")
        wanted = make_objects(root / "bucket", settings.path("here"), parts, size // parts)
        with serving(root) as url:
            compare(settings, url, wanted)
        clear(root)
        clear(settings.path("here"))


def compare(settings: Settings, url: str, wanted: list[Download]) -> None:
    """Print the row of one set of objects."""
    bucket = S3Bucket("bucket", endpoint_url=url, client_options={"region_name": "us-east-1"})
    size = sum(one.size_bytes or 0 for one in wanted)

    def ours() -> None:
        download_all(bucket, wanted)

    def begin_anew() -> None:
        """Remove the files, as none is there at a first download, and have the host back this memory again.

        A virtual machine gives freed memory back to its host, in stretches of some MiB. To get it again costs
        more than to receive the bytes, and only files in large pages are written to such stretches.
        """
        for one in wanted:
            one.path.unlink(missing_ok=True)
        os.sync()
        np.ones(size + size // 2, np.uint8)

    ours()
    for one in wanted:
        if hashlib.sha256(one.path.read_bytes()).hexdigest() != one.sha256:
            sys.exit(f"{one.name} came with other bytes")
    settings_of_theirs = {
        f"{count} x {length} MiB": theirs(url, wanted, count, length) for count, length in THEIRS
    }
    tried = interleave(settings_of_theirs, TRIALS, uncounted=0, before=begin_anew)
    best = min(tried, key=lambda name: min(tried[name]))
    bare = settings_of_theirs[best]

    def checked() -> None:
        """Download, then hash and sync each file."""
        bare()
        for one in wanted:
            with one.path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != one.sha256:
                    sys.exit(f"{one.name} came with other bytes")
                os.fsync(file.fileno())

    times = interleave(
        {"ours": ours, "with both": checked, "boto3": bare}, settings.rounds, before=begin_anew
    )
    details = "; ".join(
        f"{name} {size / np.median(seconds) / 1e6:,.0f} MB/s" for name, seconds in times.items()
    )
    what = f"download of {size / 1e9:g} GB in {len(wanted)} parts against boto3's download_file"
    with_both = ratios(times["with both"], times["ours"])
    settings.row(f"{what}, then sha256 and fsync", at_least(1.0), with_both, f"{details} ({best})")
    settings.row(f"{what} alone", None, ratios(times["boto3"], times["ours"]), unit=" x")


def theirs(url: str, wanted: list[Download], connections: int, range_mib: int) -> Callable[[], None]:
    """Return boto3's download of the same objects with these settings, one after the other."""
    import boto3
    from boto3.s3.transfer import TransferConfig
    from botocore.config import Config

    client = boto3.client(
        "s3", endpoint_url=url, region_name="us-east-1", config=Config(max_pool_connections=64)
    )
    transfer = TransferConfig(max_concurrency=connections, multipart_chunksize=range_mib * 2**20)

    def download() -> None:
        for one in wanted:
            client.download_file("bucket", one.name, str(one.path), Config=transfer)

    return download


def make_objects(store: Path, here: Path, count: int, size: int) -> list[Download]:
    """Write objects of random bytes, and say what is wanted of them."""
    store.mkdir(parents=True)
    here.mkdir()
    random = np.random.default_rng(1)
    wanted = []
    for number in range(count):
        name, sha256 = f"part-{number}", hashlib.sha256()
        with (store / name).open("wb") as file:
            for first in range(0, size, 2**24):
                piece = random.bytes(min(2**24, size - first))
                file.write(piece)
                sha256.update(piece)
        wanted.append(Download(name, sha256.hexdigest(), size, here / name))
    return wanted


@contextmanager
def serving(root: Path) -> Iterator[str]:
    """Run the server of a folder's files; give its URL."""
    os.environ |= {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}  # it checks none
    script = str(Path(__file__).with_name("_object_server.py"))
    with subprocess.Popen([sys.executable, script, str(root)], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip()
        finally:
            server.kill()


def measure_mirror(settings: Settings) -> None:
    """Print the row of shuffled epochs out of a mirror against those of the same cache in a local storage."""
    records = settings.scaled(DATA.records)
    say(f"{DATA.name}: {records:,} records, in a local storage and in a bucket with a mirror")
    columns = DATA.make(records)
    local = yogadl.open_storage(settings.path("local"))
    local.submit(columns, "set", "1", build=yogadl.BuildOptions(part_bytes=64 * 2**20))
    # The local storage's folder, as a bucket: it is laid out the same.
    remote = yogadl.open_storage(f"file://{settings.path('local')}", mirror=settings.path("mirror"))
    loaders: dict[str, Any] = {}
    for name, storage in {"local": local, "mirror": remote}.items():
        loaders[name] = storage.fetch("set", "1").stream(shuffle=True, shuffle_seed=1).batch(DATA.batch)
    indices = loaders["mirror"].stream.indices()
    check_equal(
        next(iter(loaders["mirror"].at(epoch=0))), _sets.take(columns, indices[: DATA.batch]), "the mirror"
    )
    works = {name: lambda loader=loader: drain(iter(loader)) for name, loader in loaders.items()}
    times = interleave(works, settings.rounds)
    what = f"shuffled epochs out of a filled mirror against a local cache, {DATA.name}"
    details = "; ".join(
        f"{name} {records / np.median(seconds) / 1e3:,.0f} k/s" for name, seconds in times.items()
    )
    settings.row(what, at_least(0.95), ratios(times["local"], times["mirror"]), details)


if __name__ == "__main__":
    main(__file__, measure)
