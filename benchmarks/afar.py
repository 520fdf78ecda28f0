"""Measure reading by range from a bucket: from the first batch on, and while a mirror is filled.

Run ``python benchmarks/afar.py``; needs boto3 and obstore, and nginx on the path for the rows of many
requests a second (`_object_server.py` answers some thousands, and would be what is measured). It justifies
the threads of `yogadl.storage._remote.ranges`, the gap and the pages of `yogadl.storage._remote.planning`.
"""

import contextlib
import getpass
import json
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
from _measure import Settings, at_least, at_most, clear, drain, in_child, interleave, main, ratios, say

import yogadl

SMALL, SMALL_RECORDS, SMALL_BATCH = 8192, 250_000, 256
LARGE, LARGE_RECORDS, LARGE_BATCH = (224, 224, 3), 8_000, 64
DELAY_S = 0.02
BUCKET: dict[str, Any] = {"anonymous": True, "client_options": {"region_name": "us-east-1"}}
SHARE = 0.25
READ = 20_000
AWAY_S = 30.0
DOCUMENTS, DOCUMENT_TOKENS, CHUNK = 200_000, 700, 2048
CHUNK_ORDER = yogadl.Blocks(records=256, window=8, lanes=4)


def measure(settings: Settings) -> None:
    """Measure the first batch, two sizes of records, a mirror for some of the data, and one that is full."""
    root = settings.path("store")
    make(root / "small", SMALL, settings.scaled(SMALL_RECORDS))
    make(root / "large", LARGE, settings.scaled(LARGE_RECORDS))
    measure_first(settings, root)
    if shutil.which("nginx") is None:
        say("nginx is not there: no row of many requests a second")
    else:
        measure_rates(settings, root)
    measure_mirrors(settings, root)
    measure_blocks(settings, root)
    measure_away(settings, root)
    clear(root)
    measure_views(settings)


def make(folder: Path, shape: Any, records: int) -> None:
    """Build a dataset in parts of the size that buckets have."""
    random = np.random.default_rng(0)
    source = ({"x": random.integers(0, 255, shape, np.uint8), "y": number} for number in range(records))
    yogadl.open_storage(folder).submit(source, "set", "1", build=yogadl.BuildOptions(part_bytes=256 * 2**20))


def opened(url: str, bucket: str, dataset: str = "set", version: str = "1", **options: Any) -> Any:
    """Return a reference to the dataset in a bucket of the server there."""
    storage = yogadl.open_storage(
        f"s3://{bucket}",
        endpoint_url=url,
        **BUCKET,
        **options,
    )
    return storage.fetch(dataset, version)


def measure_first(settings: Settings, root: Path) -> None:
    """Print the rows of the first batch of a cold machine, from a store that takes its time."""
    with serving(root, DELAY_S) as url:
        each = [
            in_child(__file__, "first_batch", url=url, mirror=str(settings.path(f"first-{number}")))
            for number in range(max(3, settings.rounds))
        ]
    what = (
        f"first batch of a global shuffle of {SMALL / 1000:.0f} KB records, {DELAY_S * 1000:.0f} ms a request"
    )
    settings.row(f"{what}, cold mirror", at_most(1.0, " s"), [one["seconds"] for one in each])
    settings.row(
        "share of the bytes that the server had sent by then",
        at_most(2, " %"),
        [100 * one["share"] for one in each],
        f"of {each[0]['bytes'] / 1e6:,.0f} MB",
    )


def first_batch(url: str, mirror: str) -> dict[str, float]:
    """Read one batch, of a cache of which this machine has nothing."""
    sent_before, began = sent_bytes(url), time.perf_counter()
    ref = opened(url, "small", mirror=mirror)
    next(iter(ref.stream(shuffle=True).batch(SMALL_BATCH)))
    seconds, sent = time.perf_counter() - began, sent_bytes(url) - sent_before
    size_bytes = ref.locality().bytes
    return {"seconds": seconds, "bytes": size_bytes, "share": sent / size_bytes}


def counted(url: str) -> tuple[int, int]:
    """Return how many requests the server has answered, and how many bytes it has begun to send."""
    with urlopen(f"{url}/-/counted") as answer:
        requests, size_bytes = json.load(answer)
    return requests, size_bytes


def sent_bytes(url: str) -> int:
    """Return how many bytes the server has begun to send."""
    return counted(url)[1]


def measure_rates(settings: Settings, root: Path) -> None:
    """Print the rows of records a second without a mirror."""
    with nginx(settings.path("nginx"), root) as url:
        small = [
            in_child(__file__, "rates", url=url, bucket="small", batch=SMALL_BATCH, seed=n)
            for n in range(settings.rounds)
        ]
        large = [
            in_child(__file__, "rates", url=url, bucket="large", batch=LARGE_BATCH, seed=n)
            for n in range(settings.rounds)
        ]
    details = f"processor time {np.median([one['cpu_us'] for one in small]):.0f} us a record"
    what = f"records of {SMALL / 1000:.0f} KB, global shuffle, mirror=None, batch {SMALL_BATCH}"
    settings.row(what, at_least(5000, " /s"), [one["per_s"] for one in small], details)
    settings.row(f"{what}, processor time", at_most(200, " us"), [one["cpu_us"] for one in small])
    what = f"records of 150 KB, global shuffle, mirror=None, batch {LARGE_BATCH}"
    settings.row(what, at_least(600, " MB/s"), [one["mb_per_s"] for one in large])


def rates(url: str, bucket: str, batch: int, seed: int) -> dict[str, float]:
    """Read some thousand records, begun before they are counted."""
    ref = opened(url, bucket, mirror=None)
    batches = iter(ref.stream(shuffle=True, shuffle_seed=seed).batch(batch))
    next(batches)
    size_bytes, count, cpu_s, began = 0, 0, processor_s(), time.perf_counter()
    for found in batches:
        count += len(found["y"])
        size_bytes += found["x"].nbytes
        if count * found["x"].nbytes // len(found["x"]) >= READ * SMALL:
            break
    seconds, cpu_s = time.perf_counter() - began, processor_s() - cpu_s
    return {"per_s": count / seconds, "cpu_us": 1e6 * cpu_s / count, "mb_per_s": size_bytes / seconds / 1e6}


def processor_s() -> float:
    """Return how long this process's threads have run."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure_mirrors(settings: Settings, root: Path) -> None:
    """Print the rows of a mirror with room for some of the data, and of one that has all of it."""
    with serving(root) as url:
        each = [
            in_child(__file__, "small_mirror", url=url, mirror=str(settings.path(f"mirror-{number}")))
            for number in range(3)
        ]
        what = f"bytes of 2 epochs with a mirror of {SHARE:.0%}, against one fill and the records not in it"
        settings.row(what, at_most(1.05), [one["ratio"] for one in each])
        full = settings.path("full")
        mirrored = opened(url, "large", mirror=yogadl.Mirror(full, fill="always"))
        while mirrored.locality().parts_here < mirrored.locality().parts:
            drain(iter(mirrored.stream(shuffle=True).batch(LARGE_BATCH)))
    local = yogadl.open_storage(root / "large").fetch("set", "1")
    streams = {
        "mirror": mirrored.stream(shuffle=True).batch(LARGE_BATCH),
        "local": local.stream(shuffle=True).batch(LARGE_BATCH),
    }
    times = interleave(
        {name: lambda one=one: drain(iter(one)) for name, one in streams.items()}, settings.rounds
    )
    settings.row(
        "a mirror that was filled while it was read, against a local cache",
        at_least(0.97),
        ratios(times["local"], times["mirror"]),
    )


def small_mirror(url: str, mirror: str) -> dict[str, float]:
    """Read two epochs with a mirror that has room for some of the parts."""
    here = opened(url, "large", mirror=None).locality()
    ref = opened(
        url, "large", mirror=yogadl.Mirror(mirror, limit=int(SHARE * here.bytes) + 10**7, fill="always")
    )
    stream = ref.stream(shuffle=True).batch(LARGE_BATCH)
    for _ in range(2):
        drain(iter(stream))
    found = ref.locality()
    fetched = found.range_bytes + found.bytes_here
    least = found.bytes_here + 2 * (found.bytes - found.bytes_here)
    return {"ratio": fetched / least}


def measure_blocks(settings: Settings, root: Path) -> None:
    """Print the rows of an order of blocks, with a mirror of two windows on each of some machines."""
    with serving(root) as url:
        for machines in (1, 4):
            shares = []
            for number in range(3):
                found = [
                    in_child(
                        __file__,
                        "blocks",
                        url=url,
                        mirror=str(settings.path(f"blocks-{number}-{machines}-{rank}")),
                        rank=rank,
                        machines=machines,
                    )
                    for rank in range(machines)
                ]
                shares.append(sum(one["range_bytes"] for one in found) / found[0]["bytes"])
            each = found[0]
            what = f"bytes of an epoch of Blocks over {machines} machines, each with a mirror of 2 windows"
            details = f"{each['per_request']:.1f} records a request, {each['mb_per_s']:.0f} MB/s"
            settings.row(f"{what}, against the data", at_most(1.05), shares, details)


def blocks(url: str, mirror: str, rank: int, machines: int) -> dict[str, float]:
    """Read an epoch of one machine's shard."""
    order = yogadl.Blocks(records=8, window=16, lanes=8)
    window_bytes = 8 * 16 * 8 * int(np.prod(LARGE))
    ref = opened(url, "large", mirror=yogadl.Mirror(mirror, limit=2 * window_bytes + 10**7))
    stream = ref.stream(shuffle=order, shuffle_seed=7, shard_rank=rank, num_shards=machines)
    began = time.perf_counter()
    count = sum(len(batch["y"]) for batch in stream.batch(LARGE_BATCH))
    seconds, found = time.perf_counter() - began, ref.locality()
    assert found.bytes_here == 0
    return {
        "bytes": found.bytes,
        "range_bytes": found.range_bytes,
        "per_request": count / found.ranges,
        "mb_per_s": found.range_bytes / seconds / 1e6,
    }


def measure_views(settings: Settings) -> None:
    """Print the rows of views that are read in blocks: chunks beside the same rows stored, and a mix."""
    root = settings.path("views")
    random, documents = np.random.default_rng(0), settings.scaled(DOCUMENTS)
    lengths = random.geometric(1 / DOCUMENT_TOKENS, documents)
    tokens = random.integers(0, 2**16, int(lengths.sum()), np.uint16)
    source = ({"tokens": each} for each in np.split(tokens, np.cumsum(lengths)[:-1]))
    build = yogadl.BuildOptions(part_bytes=64 * 2**20)
    documents_here = yogadl.open_storage(root / "documents").submit(source, "set", "1", build=build)
    chunks = documents_here.chunks("tokens", CHUNK)
    yogadl.open_storage(root / "chunks").submit(iter(chunks), "set", "1", build=build)
    for where, delay_s, bytes_per_s in (("the loopback", 0.0, 0.0), ("100 MB/s and 20 ms", 0.02, 100e6)):
        with serving(root, delay_s, bytes_per_s=bytes_per_s) as url:
            read = {
                name: lambda name=name: in_child(__file__, "view_in_blocks", url=url, bucket=name)
                for name in ("documents", "chunks")
            }
            found = [{name: one() for name, one in read.items()} for _ in range(max(3, settings.rounds))]
            what = (
                f"chunks of {CHUNK} tokens with Blocks behind {where}, mirror=None, against these rows stored"
            )
            each = [(one["documents"], one["chunks"]) for one in found]
            settings.row(
                f"{what}: requests",
                at_most(1.3),
                [ours["requests"] / theirs["requests"] for ours, theirs in each],
            )
            details = (
                f"{np.median([ours['per_s'] for ours, _ in each]):,.0f} of {len(chunks):,} rows a second"
            )
            settings.row(
                f"{what}: records/s",
                at_least(0.7),
                [ours["per_s"] / theirs["per_s"] for ours, theirs in each],
                details,
            )
    with serving(root) as url:
        mixes = [in_child(__file__, "mix_in_blocks", url=url) for _ in range(max(3, settings.rounds))]
    what = "bytes of an epoch of a mix of three with Blocks, mirror=None, against the data that it reads"
    settings.row(
        what, at_most(1.05), [one["share"] for one in mixes], f"{mixes[0]['requests']:,.0f} requests"
    )
    clear(root)


def view_in_blocks(url: str, bucket: str) -> dict[str, float]:
    """Read an epoch of chunks in blocks: cut out of documents, or stored."""
    ref = opened(url, bucket, mirror=None)
    ref = ref.chunks("tokens", CHUNK) if bucket == "documents" else ref
    len(ref)  # of chunks, the lengths are read
    before, began = ref.locality(), time.perf_counter()
    count = sum(len(batch["tokens"]) for batch in ref.stream(shuffle=CHUNK_ORDER, shuffle_seed=7).batch(64))
    seconds, found = time.perf_counter() - began, ref.locality()
    assert count == len(ref)
    return {"requests": found.ranges - before.ranges, "per_s": count / seconds}


def mix_in_blocks(url: str) -> dict[str, float]:
    """Read an epoch of a mix of three shares of the stored chunks."""
    ref = opened(url, "chunks", mirror=None)
    first, second = int(len(ref) * 0.5), int(len(ref) * 0.8)
    mixed = yogadl.mix({"a": (ref[:first], 0.5), "b": (ref[first:second], 0.3), "c": (ref[second:], 0.2)})
    before = sent_bytes(url)
    count = sum(len(batch["tokens"]) for batch in mixed.stream(shuffle=CHUNK_ORDER, shuffle_seed=7).batch(64))
    found = ref.locality()
    return {"share": (sent_bytes(url) - before) / (count * 2 * CHUNK), "requests": found.ranges}


def measure_away(settings: Settings, root: Path) -> None:
    """Print the row of a store that is gone for a while in the middle of an epoch."""
    waits, seen = [], []
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        url = first.enter_context(serving(root))
        ref = opened(url, "large", mirror=None)
        batches = iter(ref.stream(shuffle=True).batch(LARGE_BATCH))
        seen += [next(batches)["y"] for _ in range(10)]
        first.close()
        port = int(url.rpartition(":")[2])
        threading.Timer(AWAY_S, lambda: second.enter_context(serving(root, port=port))).start()
        began = time.perf_counter()
        for found in batches:
            waits.append(time.perf_counter() - began)
            began = time.perf_counter()
            seen.append(found["y"])
    if sorted(np.concatenate(seen).tolist()) != list(range(len(ref))):
        sys.exit("records were lost or repeated while the store was away")
    what = f"longest wait for a batch where the store is away for {AWAY_S:.0f} s in the middle of an epoch"
    settings.row(what, at_most(60, " s"), [max(waits)], "each record once")


@contextmanager
def serving(root: Path, delay_s: float = 0.0, port: int = 0, bytes_per_s: float = 0.0) -> Iterator[str]:
    """Run the server of a folder's files; give its URL."""
    script = str(Path(__file__).with_name("_object_server.py"))
    command = [sys.executable, script, str(root), str(port), str(delay_s), str(bytes_per_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip()
        finally:
            server.kill()


@contextmanager
def nginx(folder: Path, root: Path) -> Iterator[str]:
    """Run nginx for a folder's files; give its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder.mkdir()
    (folder / "conf").write_text(
        f"user {getpass.getuser()}; worker_processes 1; daemon off;\n"
        f"pid {folder}/pid; error_log {folder}/errors;\n"
        "events { worker_connections 1024; }\n"
        "http { access_log off; sendfile on; keepalive_requests 100000000;\n"
        f"server {{ listen 127.0.0.1:{port}; root {root}; }} }}\n"
    )
    with subprocess.Popen(["nginx", "-c", str(folder / "conf"), "-p", str(folder)]) as server:
        try:
            while socket.socket().connect_ex(("127.0.0.1", port)):
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


if __name__ == "__main__":
    main(
        __file__,
        measure,
        {
            "blocks": blocks,
            "first_batch": first_batch,
            "mix_in_blocks": mix_in_blocks,
            "rates": rates,
            "small_mirror": small_mirror,
            "view_in_blocks": view_in_blocks,
        },
    )
