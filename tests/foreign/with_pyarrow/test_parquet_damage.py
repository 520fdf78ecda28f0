"""Damaged Parquet files are an error that names them, or have the records that they had; no process ends."""

import multiprocessing
import os
import random
import resource
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import yogadl
from yogadl.errors import YogaError

ROWS = 400
MOST_BYTES = 3 * 2**30  # of address space beyond what the process has


def write(path, seed=0, **options):
    dice = np.random.default_rng(seed)
    rows = pa.table({
        "n": np.arange(ROWS), "x": dice.normal(size=ROWS),
        "text": [f"text {k}" * (k % 4) for k in range(ROWS)],
        "tokens": pa.array([list(range(k % 6)) for k in range(ROWS)], pa.list_(pa.int32())),
        "inner": pa.array([{"a": k, "b": str(k)} for k in range(ROWS)]),
    })  # fmt: skip
    pq.write_table(rows, path, row_group_size=64, **options)


def mutated(content, dice):
    """Return the content of a file after a random damage."""
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    damaged = bytearray(content)
    kind = dice.randrange(6)
    if kind == 0:  # cut
        return bytes(damaged[: dice.randrange(len(damaged))])
    if kind == 1:  # some bytes are missing in between
        start = dice.randrange(len(damaged))
        del damaged[start : start + dice.randrange(1, 64)]
        return bytes(damaged)
    first, end = ((4, footer), (footer, len(damaged)), (len(damaged) - 8, len(damaged)))[kind % 3]
    for _ in range(dice.randrange(1, 6)):
        damaged[dice.randrange(first, end)] = dice.randrange(256)
    return bytes(damaged)


def adopt_and_read(folder, seeds):
    """Adopt mutations of a file, and read all that can be read; an error must be one of the library."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_BYTES, used + MOST_BYTES))
    content = (folder / "sound.parquet").read_bytes()
    storage = yogadl.open_storage(folder / f"caches-{seeds[0]}")
    path = folder / f"{seeds[0]}.parquet"
    errors = []
    for seed in seeds:
        path.write_bytes(mutated(content, random.Random(seed)))
        try:
            ref = storage.adopt(path, "rows", str(seed))
            for index in range(0, len(ref), 50):
                ref.gather([index])
        except YogaError as error:
            errors.append(str(error))
    assert all(path.name in error for error in errors)
    return len(errors)


def run(work, *arguments):
    """Return what a function returns in a forked process, which must not be ended by a signal."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply_async(work, arguments).get(timeout=240)


@pytest.mark.parametrize("options", [{}, {"compression": "NONE", "use_dictionary": False}])
def test_mutations(tmp_path, options, pytestconfig):
    write(tmp_path / "sound.parquet", **options)
    count = 5_000 if pytestconfig.getoption("--soak") else 250
    each = 50
    for first in range(0, count, each):
        errors = run(adopt_and_read, tmp_path, range(first, first + each))
        assert errors > each // 3


def read_swapped(folder, seeds):
    """Read a version whose file was damaged after it was adopted, and given its old time."""
    content, path = (folder / "sound.parquet").read_bytes(), folder / "data.parquet"
    expected = [record["text"] for record in yogadl.open_storage(folder / "caches").fetch("rows", "1")]
    errors = []
    for seed in seeds:
        dice = random.Random(seed)
        damaged = mutated(content, dice)
        path.write_bytes((damaged + bytes(len(content)))[: len(content)])
        os.utime(path, ns=(10**18, 10**18))
        storage = yogadl.open_storage(folder / "caches")
        try:
            found = storage.fetch("rows", "1", check=True).gather(range(ROWS))["text"]
        except YogaError as error:
            errors.append(str(error))
        else:
            assert found == expected
    assert all("data.parquet" in error for error in errors)
    return len(errors)


def test_checked_rows_are_right_or_an_error(tmp_path):
    write(tmp_path / "data.parquet", compression="NONE")
    os.utime(tmp_path / "data.parquet", ns=(10**18, 10**18))
    content = (tmp_path / "data.parquet").read_bytes()
    (tmp_path / "sound.parquet").write_bytes(content)
    storage = yogadl.open_storage(tmp_path / "caches")
    storage.adopt(tmp_path / "data.parquet", "rows", "1", files=yogadl.FileOptions(read=True))
    errors = run(read_swapped, tmp_path, range(60))
    assert errors > 20
    (tmp_path / "data.parquet").write_bytes(content)
    os.utime(tmp_path / "data.parquet", ns=(10**18, 10**18))
    assert storage.fetch("rows", "1", check=True)[7]["n"] == 7


def test_pages_with_checksums_are_compared(tmp_path):
    write(tmp_path / "data.parquet", compression="NONE", write_page_checksum=True, use_dictionary=False)
    os.utime(tmp_path / "data.parquet", ns=(10**18, 10**18))
    content = bytearray((tmp_path / "data.parquet").read_bytes())
    storage = yogadl.open_storage(tmp_path / "caches")
    storage.adopt(tmp_path / "data.parquet", "rows", "1")
    place = content.index(b"text 39text 39")
    content[place] ^= 1
    (tmp_path / "data.parquet").write_bytes(content)
    os.utime(tmp_path / "data.parquet", ns=(10**18, 10**18))
    ref = storage.fetch("rows", "1")
    assert ref[399]["text"] == "text 399" * 3
    with pytest.raises(YogaError, match=r"data.parquet: row group 0 can't be decoded"):
        ref.gather([39])
