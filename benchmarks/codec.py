"""Measure compressed fields: sizes, gathers, builds, a bucket that is far away; and what shrinks at all.

Run ``python benchmarks/codec.py``; needs zstandard, and boto3 and obstore for rows of a bucket. The text is
the source files of 0.5 to 50 KB of this Python's library and packages, up to 6,000 of them.
"""

import importlib.util
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _data import sources
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
from afar import opened, sent_bytes, serving

import yogadl

RECORDS, BATCH = 6_000, 256
GROUP = 256
SIZE, DECODING, FAR, BUILD = 1.15, 0.8, 2.5, 120
BUILT_TIMES, TIMES = 12, 16  # so often all files are built, and read from afar
DELAY_S, BYTES_PER_S = 0.02, 100e6


def measure(settings: Settings) -> None:
    """Measure text, then what else shrinks."""
    files = sources(settings.scaled(RECORDS))
    size_bytes = sum(map(len, files))
    say(f"{len(files):,} source files of {size_bytes / 1e6:.1f} MB")
    root = settings.path("store")
    storage = yogadl.open_storage(root / "set")
    codecs = {
        "raw": None,
        "zstd": "zstd",
        "zstd 9": yogadl.Zstd(level=9),
        "alone": yogadl.Zstd(dictionary=False),
    }
    for version, codec in codecs.items():
        storage.submit({"text": files}, "text", version, codec=codec)
    measure_sizes(settings, storage, files)
    measure_gathers(settings, storage, files)
    measure_builds(settings, files)
    if importlib.util.find_spec("boto3") and importlib.util.find_spec("obstore"):
        for version, codec in (("raw", None), ("zstd", "zstd")):
            storage.submit(
                {"text": files * TIMES},
                "many",
                version,
                codec=codec,
                build=yogadl.BuildOptions(part_bytes=2**28),
            )
        measure_afar(settings, root)
    measure_kinds(settings)
    clear(root)


def measure_sizes(settings: Settings, storage: Any, files: list[bytes]) -> None:
    """Print the rows of bytes on the disk."""
    import zstandard

    grouped = sum(
        len(zstandard.ZstdCompressor(level=3).compress(b"".join(files[first : first + GROUP])))
        for first in range(0, len(files), GROUP)
    )
    sizes = {
        version: storage.info("text", version).size_bytes for version in ("raw", "zstd", "zstd 9", "alone")
    }
    details = "; ".join(f"{name} {sizes['raw'] / size:.3g} x smaller" for name, size in sizes.items())
    for version in ("zstd", "zstd 9"):
        what = f"bytes on disk of text, {version}, against a zstd-3 frame over each {GROUP} documents"
        settings.row(what, at_most(SIZE), [sizes[version] / grouped], details)


def measure_gathers(settings: Settings, storage: Any, files: list[bytes]) -> None:
    """Print the row of decoding gathers."""
    import zstandard

    ref = storage.fetch("text", "zstd")
    order = np.random.default_rng(0).permutation(len(files))
    batches = batches_of(order, BATCH)
    name = ref._records.table.dictionaries[0]
    dictionary = zstandard.ZstdCompressionDict(
        (Path(storage.location) / "text" / "parts" / f"{name}.dict").read_bytes()
    )
    compressor = zstandard.ZstdCompressor(level=3, dict_data=dictionary, write_dict_id=False)
    frames = [compressor.compress(file) for file in files]
    lengths = np.fromiter(map(len, files), np.uint64, len(files))
    decompressor = zstandard.ZstdDecompressor(dict_data=dictionary)

    def bare() -> None:
        for chosen in batches:
            picked = [frames[number] for number in chosen.tolist()]
            decompressor.multi_decompress_to_buffer(
                picked, decompressed_sizes=lengths[chosen].tobytes(), threads=1
            )

    stream = ref.stream(shuffle=True, shuffle_seed=0).batch(BATCH)
    works: dict[str, Callable[[], object]] = {
        "bare": bare,
        "gather": partial(gather_all, ref, batches),
        "raw": partial(gather_all, storage.fetch("text", "raw"), batches),
        "stream": lambda: drain(iter(stream)),
        "threads=2": lambda: drain(iter(stream.prefetch(4, threads=2))),
        "workers=2": lambda: drain(iter(stream.prefetch(4, workers=2))),
    }
    times = interleave(works, settings.rounds)
    settings.row(
        f"gather of compressed text, batch {BATCH}, against multi_decompress_to_buffer of the frames in RAM",
        at_least(DECODING),
        ratios(times["bare"], times["gather"]),
        "; ".join(f"{name} {rate(len(files), spent)}" for name, spent in times.items()),
    )


def measure_builds(settings: Settings, files: list[bytes]) -> None:
    """Print the row of builds by two workers."""
    many = files * BUILT_TIMES
    size_bytes = sum(map(len, many))
    storage = yogadl.open_storage(settings.path("builds"))
    works = {
        name: partial(storage.submit, {"text": many}, "text", name, codec=codec, workers=workers)
        for name, codec, workers in [
            ("2 workers", "zstd", 2),
            ("alone", "zstd", 0),
            ("raw, 2 workers", None, 2),
        ]
    }
    times = interleave(works, min(3, settings.rounds), uncounted=0)
    rates = {name: [size_bytes / 1e6 / spent for spent in each] for name, each in times.items()}
    details = "; ".join(f"{name} {np.median(each):.0f} MB/s" for name, each in rates.items())
    settings.row("build of text with zstd, 2 workers", at_least(BUILD, " MB/s"), rates["2 workers"], details)
    clear(settings.path("builds"))


def measure_afar(settings: Settings, root: Path) -> None:
    """Print the rows of a bucket that is far away, of which this machine has nothing."""
    for shuffle in ("blocks", "global"):
        each: dict[str, list[dict[str, float]]] = {"raw": [], "zstd": []}
        for number in range(min(3, settings.rounds)):
            for version in ("raw", "zstd"):
                with serving(root, DELAY_S, bytes_per_s=BYTES_PER_S) as url:
                    found = in_child(
                        __file__, "read_afar", url=url, version=version, shuffle=shuffle, seed=number
                    )
                each[version].append(found)
        rates = {version: [one["per_s"] for one in found] for version, found in each.items()}
        details = "; ".join(
            f"{version} {np.median(rates[version]):,.0f} /s, "
            f"{np.median([one['bytes'] for one in found]):,.0f} bytes sent a record"
            for version, found in each.items()
        )
        settings.row(
            f"text from a bucket behind 100 MB/s and 20 ms, mirror=None, {shuffle}: zstd against raw",
            at_least(FAR) if shuffle == "blocks" else None,
            ratios(rates["zstd"], rates["raw"]),
            details,
            " x",
        )


def read_afar(url: str, version: str, shuffle: str, seed: int) -> dict[str, float]:
    """Read an epoch, or some of it."""
    import time

    ref = opened(url, "set", mirror=None, dataset="many", version=version)
    how: Any = yogadl.Blocks(256, window=8, lanes=1) if shuffle == "blocks" else True
    before, began, count = sent_bytes(url), time.perf_counter(), 0
    for batch in ref.stream(shuffle=how, shuffle_seed=seed).batch(BATCH).prefetch(4, threads=1):
        count += len(batch["text"])
        if time.perf_counter() - began > 6:
            break
    seconds = time.perf_counter() - began
    return {"per_s": count / seconds, "bytes": (sent_bytes(url) - before) / count}


def measure_kinds(settings: Settings) -> None:
    """Print a row for each kind of field: how far it shrinks, and what reading it costs."""
    storage = yogadl.open_storage(settings.path("kinds"))
    for name, values in kinds(settings).items():
        batches = batches_of(np.random.default_rng(0).permutation(len(values)), BATCH)
        for version, codec in (("raw", None), ("zstd", "zstd")):
            storage.submit({"x": values}, name, version, codec=codec)
        sizes = [storage.field_sizes(name, version)["x"].stored_bytes for version in ("raw", "zstd")]
        works = {
            version: partial(gather_all, storage.fetch(name, version), batches) for version in ("raw", "zstd")
        }
        times = interleave(works, settings.rounds)
        settings.row(
            f"{name}: raw bytes against zstd's", None, [sizes[0] / sizes[1]],
            "; ".join(f"{version} {rate(len(values), spent)}" for version, spent in times.items()), " x",
        )  # fmt: skip
    clear(settings.path("kinds"))


def gather_all(ref: Any, batches: list[np.ndarray]) -> None:
    """Read all batches."""
    for chosen in batches:
        ref.gather(chosen)


def kinds(settings: Settings) -> dict[str, Any]:
    """Return values of each kind of field, of which users ask whether it shrinks."""
    rng, count = np.random.default_rng(0), settings.scaled(4_000)
    files = sources(count)
    tokens = [np.frombuffer(file, np.uint8).astype(np.uint16) for file in files]
    words = np.array(sorted({word for file in files for word in file.split()}), object)
    ids = {word: number for number, word in enumerate(words.tolist())}
    by_word = [np.array([ids[word] for word in file.split()], np.int32) for file in files]
    made: dict[str, Any] = {
        "source text": files,
        "tokens, uint16, of characters": tokens,
        "tokens, int32, of words": by_word,
        "tokens, uint16, drawn evenly from 32,000": rng.integers(0, 32_000, (count, 2048)).astype(np.uint16),
        "uint8 images of noise": rng.integers(0, 256, (count, 32, 32, 3), np.uint8),
        "uint8 masks of 64 x 64, 5 classes": np.kron(
            rng.integers(0, 5, (count, 8, 8), np.uint8), np.ones((1, 8, 8), np.uint8)
        ),
        "float32 features, normal": rng.normal(size=(count, 512)).astype(np.float32),
        "float32 features, nine of ten are 0": np.where(
            rng.random((count, 512)) < 0.9, 0, rng.normal(size=(count, 512))
        ).astype(np.float32),
        "int64 labels": rng.integers(0, 1000, count),
    }
    if importlib.util.find_spec("cv2") and importlib.util.find_spec("simplejpeg"):
        from _compare import jpegs

        made["JPEGs"] = jpegs.pictures(min(count, 1000))
    return made


if __name__ == "__main__":
    main(__file__, measure, {"read_afar": read_afar})
