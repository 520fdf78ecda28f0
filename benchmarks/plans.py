"""Measure how well `stream.plan()` says what a stream reads from a bucket, of streams of all kinds.

Run ``python benchmarks/plans.py``; needs boto3 and obstore. What is read is counted by the server, from the
first batch on, and compared with the plan of the same stream. It justifies `RangePolicy` of
`yogadl.storage._remote.planning`, which reads and plans share.
"""

import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _measure import Settings, at_most, clear, drain, main, say
from afar import BUCKET, counted, opened, serving

import yogadl

RECORDS = 3_000
BLOCKS = yogadl.Blocks(records=40, window=5, lanes=4)

ORDERS: dict[str, Callable[[Any], Any]] = {
    "in order": lambda ref: ref.stream().batch(64),
    "shuffled": lambda ref: ref.stream(shuffle=True).batch(64),
    "a shard of three": lambda ref: ref.stream(shuffle=True, shard_rank=1, num_shards=3).batch(64),
    "blocks": lambda ref: ref.stream(shuffle=BLOCKS).batch(64),
    "records": lambda ref: ref.stream(shuffle=True),
    "two threads": lambda ref: ref.stream(shuffle=True).batch(64).prefetch(4, threads=2),
}
VIEWS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "every third": ("mixed", lambda ref: ref[::3].stream(shuffle=True).batch(64)),
    "two fields": ("mixed", lambda ref: ref.fields("image", "name").stream(shuffle=True).batch(64)),
    "mapped": ("mixed", lambda ref: ref.map(lambda one: len(one["name"])).stream(shuffle=True).batch(64)),
    "drawn by weights": (
        "mixed",
        lambda ref: ref.sampled(np.arange(1, len(ref) + 1) ** 3.0).stream(shuffle=True).batch(64),
    ),
    "some twice": ("mixed", lambda ref: yogadl.concat([ref, ref[:500]]).stream(shuffle=True).batch(64)),
    "a mix": (
        "mixed",
        lambda ref: yogadl.mix({"a": (ref[::2], 3.0), "b": (ref[1::2], 1.0)}).stream(shuffle=True).batch(64),
    ),
    "packed": ("documents", lambda ref: ref.packed(2048, fields="x").stream(shuffle=True).batch(16)),
    "packed, in order": ("documents", lambda ref: ref.packed(512, fields="x").stream().batch(16)),
    "packed, compressed": (
        "compressed",
        lambda ref: ref.packed(2048, fields="x").stream(shuffle=True).batch(16),
    ),
    "bucketed": ("documents", lambda ref: ref.bucketed("x", tokens=4096).stream(shuffle=True)),
}  # fmt: skip


def measure(settings: Settings) -> None:
    """Compare plans of streams over caches of all kinds with what the server has sent."""
    root = settings.path("store")
    make(root, settings.scaled(RECORDS))
    found: list[tuple[str, int, int, int, int]] = []
    with serving(root) as url:
        lake = {"s3://lake": {"endpoint_url": url, **BUCKET}}
        yogadl.open_storage(settings.path("adopted"), foreign=lake).adopt("s3://lake/*.tar", "tars", "1")
        for name, ref, stream in streams(settings, root, url):
            plan = stream.plan()
            way = plan.way(plan.chosen)
            before = counted(url)
            drain(iter(stream))
            requests, size_bytes = (now - then for now, then in zip(counted(url), before, strict=True))
            found.append((name, way.requests, requests, way.bytes, size_bytes))
            if ref.locality().ranges == 0:
                say(f"{name}: nothing was read")
    for name, *numbers in found:
        say("{}: planned {:,} requests, sent {:,}; {:,} bytes, {:,}".format(name, *numbers))
    for what, chosen in (
        ("one thread", [each for each in found if "two threads" not in each[0]]),
        ("two threads, planned for one", [each for each in found if "two threads" in each[0]]),
    ):
        for noun, bar, column in (("bytes", at_most(2, " %"), 3), ("requests", None, 1)):
            off = [100 * abs(each[column] - each[column + 1]) / each[column + 1] for each in chosen]
            worst = chosen[int(np.argmax(off))][0]
            settings.row(
                f"the {noun} of a plan against those that the server has sent: the worst of "
                f"{len(chosen)} streams, {what}",
                bar,
                [max(off)],
                f"{worst}; median {np.median(off):.2f} %",
                " %",
            )
    clear(root)


def streams(settings: Settings, root: Path, url: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield streams, each over a reference that has read nothing."""
    kinds = ("mixed", "fixed", "documents", "compressed")
    for verify in (None, "block"):
        for kind in kinds:
            for order, make_stream in ORDERS.items():
                ref = opened(url, kind, kind, mirror=None, verify=verify)
                yield f"{kind}, {order}" + ", verified" * (verify is not None), ref, make_stream(ref)
    for order, make_stream in ORDERS.items():
        lake = {"s3://lake": {"endpoint_url": url, **BUCKET}}
        ref = yogadl.open_storage(settings.path("adopted"), foreign=lake).fetch("tars", "1")
        yield f"adopted tars, {order}", ref, make_stream(ref)
    for view, (kind, make_stream) in VIEWS.items():
        ref = opened(url, kind, kind, mirror=None)
        yield view, ref, make_stream(ref)


def make(root: Path, count: int) -> None:
    """Build caches of records of all kinds, and tar files."""
    random = np.random.default_rng(0)
    lengths = random.integers(10, 1500, count)
    sources: dict[str, tuple[Callable[[int], Any], str | None]] = {
        "mixed": (
            lambda n: {
                "id": n,
                "image": random.integers(0, 255, 1500, np.uint8),
                "tokens": np.arange(n % 700, dtype=np.int32),
                "name": f"a{n}" * (n % 5),
                "file": random.bytes(n * 37 % 9000),
            },
            None,
        ),
        "fixed": (lambda n: {"x": np.full(700, n, np.int64)}, None),
        "documents": (lambda n: {"x": random.integers(0, 2**31, lengths[n]).astype(np.int32)}, None),
        # Long ones: how large a dictionary is can't be known without a request, so no plan has it.
        "compressed": (lambda n: {"x": random.integers(0, 300, 8 * lengths[n]).astype(np.int32)}, "zstd"),
    }
    for name, (record, codec) in sources.items():
        storage = yogadl.open_storage(root / name)
        storage.submit(
            map(record, range(count)), name, "1", codec=codec, build=yogadl.BuildOptions(part_bytes=4_000_000)
        )
    for kind, make_stream in VIEWS.values():  # keeps the plans of rows and batches beside the cache
        make_stream(yogadl.open_storage(root / kind).fetch(kind, "1"))
    (root / "lake").mkdir()
    for number in range(4):
        with tarfile.open(root / "lake" / f"{number}.tar", "w") as file:
            for sample in range(number * count // 4, (number + 1) * count // 4):
                for suffix, size_bytes in (("jpg", 3000 + sample % 4000), ("txt", sample % 300 + 1)):
                    member = tarfile.TarInfo(f"{sample:06}.{suffix}")
                    member.size = size_bytes
                    file.addfile(member, io.BytesIO(random.integers(65, 90, size_bytes, np.uint8).tobytes()))


if __name__ == "__main__":
    main(__file__, measure)
