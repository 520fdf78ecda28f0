"""Blocks that are compared with their checksums when they are first read from."""

import threading
from contextlib import contextmanager

import numpy as np
import pytest
from damage import Altered
from inside import (
    HEAP_BLOCK_BYTES,
    REMEDY,
    CheckedReader,
    Checksums,
    DatasetKey,
    PartPaths,
    checks,
    open_table,
    read_index,
    set_constants,
)
from trees import assert_same

import yogadl
from yogadl.errors import CacheFormatError

COUNT = 23
MIB = 2**20
RNG = np.random.default_rng(5)


def values(sizes):
    return [RNG.bytes(size) for size in sizes]


# By name: what a field has for each record. Rows and values are just below, at and above a block's size, and
# the last block of most parts is a short one.
SOURCES = {
    "rows of a few bytes": {
        "n": np.arange(COUNT),
        "odd": RNG.integers(0, 256, (COUNT, 3), np.uint8),
        "nothing": np.zeros((COUNT, 0)),
    },
    "half a block less a byte": {"x": RNG.integers(0, 256, (7, MIB // 2 - 1), np.uint8)},
    "half a block": {"x": RNG.integers(0, 256, (7, MIB // 2), np.uint8)},
    "half a block and a byte": {"x": RNG.integers(0, 256, (7, MIB // 2 + 1), np.uint8)},
    "more than a block": {"x": RNG.integers(0, 256, (3, MIB + 3), np.uint8)},
    "values": {
        "raw": values([0, 1, HEAP_BLOCK_BYTES - 1, 0, HEAP_BLOCK_BYTES, 5, 0, 7, HEAP_BLOCK_BYTES + 1])
    },
    "values of no bytes": {"raw": [b""] * COUNT, "n": np.arange(COUNT)},
    "short values": {
        "text": [f"text {k}" * (k % 3) for k in range(COUNT)],
        "ragged": [np.arange(k % 4, dtype=np.int32) for k in range(COUNT)],
        # Of fixed shape in the first parts, varying in size in the middle, in rank at the end.
        "rank": [
            np.full((2, 3) if k < 9 else k % 3 if k < 16 else (k % 3,) * (k % 4), k) for k in range(COUNT)
        ],
    },
}
PART_BYTES = {
    "rows of a few bytes": 100,
    "short values": 200,
    "values of no bytes": 100,
    "half a block": 2 * MIB,
}
WAYS = {"mapped": {}, "read": {"maps": False}, "the first parts mapped": {"most": 1}}


class Cache:
    """A cache in a folder, and readers of it."""

    def __init__(self, root, source, part_bytes, way):
        self.source = source
        self.records = len(next(iter(source.values())))
        self.storage = yogadl.open_storage(root)
        self.storage.submit(source, "d", "1", build=yogadl.BuildOptions(part_bytes=part_bytes))
        self.key = DatasetKey("d", "1")
        self.manifest = self.storage._backend.catalogue.published(self.key).manifest
        self.table = open_table(self.storage._backend.root, self.manifest)
        self.maps = WAYS[way].get("maps", True)

    def index(self, part):
        return read_index(self.storage._backend.root, self.key, self.table, part)

    def reader(self, index=None):
        files = PartPaths(self.storage._backend.root, "d", self.table)
        sums = Checksums(self.table, list(self.source), index or self.index, str(self.key), REMEDY)
        return CheckedReader(sums, self.manifest.spec, files, maps=self.maps)

    def blocks(self):
        """Yield path, position, length and records of every block."""
        for part, sha256 in enumerate(self.table.sha256):
            path = self.storage._backend.root.path(f"d/parts/{sha256}.mdb")
            first, index = int(self.table.first_record[part]), self.index(part)
            for field in index.fields:
                for kind, blocks in (("rows", field.rows), ("heap", field.heap)):
                    for block, (position, length) in enumerate(
                        zip(blocks.position.tolist(), blocks.length.tolist(), strict=True)
                    ):
                        found = field.records_of(kind, block, index.records)
                        yield path, position, length, [first + record for record in found]

    def check(self, columns, indices):
        for expected, column in zip(self.source.values(), columns, strict=True):
            assert len(column) == len(indices)
            for found, index in zip(column, indices, strict=True):
                assert_same(found, expected[index])


@contextmanager
def flipped(path, position):
    """Flip a bit in place: whoever has the file mapped sees it."""
    with Altered(path) as file:
        file.flip(position, 4)
        yield


@pytest.fixture
def open_cache(tmp_path, monkeypatch):
    def open_(source, way="mapped", part_bytes=None):
        if "most" in WAYS[way]:
            set_constants(monkeypatch, MAX_MAPPED_PARTS=WAYS[way]["most"])
        return Cache(tmp_path, SOURCES[source], part_bytes or PART_BYTES.get(source), way)

    return open_


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("source", SOURCES)
def test_a_flipped_bit_in_any_block_is_an_error_for_its_records_and_for_no_others(open_cache, source, way):
    cache = open_cache(source, way)
    every, flips = np.arange(cache.records), 0
    for path, position, length, records in cache.blocks():
        for offset in sorted({0, length - 1}) if length else ():
            with flipped(path, position + offset):
                with pytest.raises(CacheFormatError) as verified:
                    cache.storage.verify("d", "1")
                reader = cache.reader()
                others = np.setdiff1d(every, records)
                cache.check(reader.columns(others), others)
                for record in {records[0], records[-1]}:
                    with pytest.raises(CacheFormatError) as read:
                        reader.columns(np.array([*others, record]))
                    assert str(read.value) == str(verified.value)
            cache.check(reader.columns(every), every)
            flips += 1
    assert flips >= len(cache.table)


def test_the_cache_of_short_values_has_a_field_that_is_fixed_in_some_parts_and_varying_in_others(open_cache):
    varying = open_cache("short values").table.fields[2].varying.tolist()
    assert varying[0] is False
    assert varying[-1] is True


@pytest.fixture
def hashed(monkeypatch):
    """Return a list that gets the length of every block that is hashed."""
    lengths, hash_of = [], checks.xxh3_64_intdigest

    def counted(content):
        lengths.append(len(content))
        return hash_of(content)

    monkeypatch.setattr(checks, "xxh3_64_intdigest", counted)
    return lengths


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("source", ["short values", "rows of a few bytes", "half a block"])
def test_each_block_is_hashed_once(open_cache, hashed, source, way):
    cache = open_cache(source, way)
    reader = cache.reader()
    for _ in range(2):
        for indices in np.array_split(RNG.permutation(cache.records), 5):
            cache.check(reader.columns(indices), indices)
    assert sorted(hashed) == sorted(length for _, _, length, _ in cache.blocks())


def test_blocks_that_a_batch_does_not_need_are_not_hashed(open_cache, hashed):
    cache = open_cache("short values")
    parts = []

    def index(part):
        parts.append(part)
        return cache.index(part)

    reader = cache.reader(index)
    reader.columns(np.arange(COUNT), [0])
    text = len(hashed)
    assert set(parts) == {*range(len(cache.table))}
    reader.columns(np.array([0, 1]), [1])
    assert 1 <= len(hashed) - text <= 2
    reader.columns(np.empty(0, np.int64))
    reader.columns(np.arange(COUNT), [0])
    assert len(hashed) - text <= 2
    assert len(parts) == len(cache.table)


def test_what_was_checked_once_is_not_looked_at_again(open_cache):
    cache = open_cache("half a block")
    reader = cache.reader()
    reader.columns(np.arange(cache.records))
    path, position, _, records = next(cache.blocks())
    with flipped(path, position):
        found = reader.columns(np.array(records[:1]))
    assert not np.array_equal(found[0][0], cache.source["x"][records[0]])


def test_an_index_that_contradicts_the_part_table_is_refused(open_cache):
    cache = open_cache("short values")
    reader = cache.reader(lambda part: cache.index(part + 1))
    with pytest.raises(CacheFormatError, match=r"'d' version '1': the index of part \w{64} does not agree"):
        reader.columns(np.array([0]))


def test_blocks_are_checked_while_windows_are_renewed(open_cache, monkeypatch):
    set_constants(monkeypatch, REMAP_AFTER_PAGES=1, REMAP_CACHE_BYTES=0)
    cache = open_cache("half a block")
    reader = cache.reader()
    for indices in np.array_split(RNG.permutation(cache.records), 7):
        cache.check(reader.columns(indices), indices)


@pytest.mark.parametrize("way", WAYS)
def test_threads_check_side_by_side(open_cache, way):
    cache = open_cache("half a block less a byte", way)
    *_, (path, position, _, records) = cache.blocks()
    reader, outcomes = cache.reader(), []

    def read(seed):
        for index in np.random.default_rng(seed).permutation(cache.records):
            try:
                found = reader.columns(np.array([index]))[0]
                outcomes.append((int(index), bool((found[0] == cache.source["x"][index]).all())))
            except CacheFormatError:
                outcomes.append((int(index), None))

    with flipped(path, position):
        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(outcomes) == 6 * cache.records
    assert all(outcome is (None if index in records else True) for index, outcome in outcomes)
