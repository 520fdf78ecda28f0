"""Make the data that the bars of `benchmarks/README.md` speak of: always the same, with numpy alone."""

import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

Columns = dict[str, Any]


@dataclass(frozen=True)
class DataSet:
    """One set of the bars.

    Args:
        name: What the table calls it.
        records: How many records.
        batch: Records in a batch.
        make: Returns the columns for so many records.
        bar: The least share of the limit's speed.
    """

    name: str
    records: int
    batch: int
    make: Callable[[int], Columns]
    bar: float


def vectors(records: int) -> Columns:
    """Make {float32[16], int64}: 72 bytes a record."""
    random = np.random.default_rng(1)
    return {"x": random.random((records, 16), np.float32), "id": np.arange(records)}


def small_images(records: int) -> Columns:
    """Make {uint8[32,32,3], int64}: 3 KB a record."""
    random = np.random.default_rng(2)
    return {"image": random.integers(0, 256, (records, 32, 32, 3), np.uint8), "id": np.arange(records)}


def tokens(records: int) -> Columns:
    """Make {int32[2048]}: 8 KB a record."""
    random = np.random.default_rng(3)
    return {"tokens": random.integers(0, 50_000, (records, 2048), np.int32)}


def large_images(records: int) -> Columns:
    """Make {uint8[224,224,3], int64}: 150 KB a record."""
    random = np.random.default_rng(4)
    return {"image": random.integers(0, 256, (records, 224, 224, 3), np.uint8), "id": np.arange(records)}


def jpegs(records: int) -> Columns:
    """Make {bytes: a JPEG of 375 x 500, int64}."""
    from _compare.jpegs import pictures

    return {"data": pictures(records), "id": np.arange(records)}


def sources(most: int) -> list[bytes]:
    """Return source files of 0.5 to 50 KB of this Python's library and packages, in the order of their paths.

    Every n-th, if there are too many.
    """
    folders = {sysconfig.get_paths()[name] for name in ("stdlib", "purelib")}
    paths = sorted({path for folder in folders for path in Path(folder).rglob("*.py") if path.is_file()})
    found = [content for path in paths if 500 <= len(content := path.read_bytes()) <= 50_000]
    return found[:: max(1, len(found) // most)][:most]


def text(records: int) -> Columns:
    """Make {bytes: a source file, int64}, of `records` files at most."""
    files = sources(records)
    return {"data": files, "id": np.arange(len(files))}


def _blobs(size: int, records: int) -> Columns:
    random = np.random.default_rng(6)
    return {"data": random.integers(0, 256, (records, size), np.uint8), "id": np.arange(records)}


# Records as large as those of workloads of MLPerf Storage.
resnet50, unet3d, cosmoflow, retinanet, flux = (
    partial(_blobs, size) for size in (115_000, 146_000_000, 2_800_000, 323_000, 2_200_000)
)


def varying(records: int) -> Columns:
    """Make {bytes of 40-160 KB, int64}."""
    random = np.random.default_rng(5)
    lengths = random.integers(40_000, 160_001, records).tolist()
    return {"data": [random.bytes(length) for length in lengths], "id": np.arange(records)}


tars = varying  # in shards, in a bucket


VECTORS: Final = DataSet("{float32[16], int64} x 1 M", 1_000_000, 256, vectors, 1.35)
SMALL_IMAGES: Final = DataSet("{uint8[32,32,3], int64} x 100 k", 100_000, 256, small_images, 1.0)
TOKENS: Final = DataSet("{int32[2048]} x 50 k", 50_000, 256, tokens, 1.0)
LARGE_IMAGES: Final = DataSet("{uint8[224,224,3], int64} x 4 k", 4_000, 64, large_images, 1.2)
VARYING: Final = DataSet("{bytes 40-160 KB, int64} x 10 k", 10_000, 256, varying, 0.8)
ALL: Final = (VECTORS, SMALL_IMAGES, TOKENS, LARGE_IMAGES, VARYING)
