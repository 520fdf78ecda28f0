"""Gathering from parts that are mapped, not mapped, or only some of them."""

import gc
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from inside import (
    MAX_DIMENSIONS,
    BatchMemory,
    DatasetKey,
    PartPaths,
    Reader,
    are_readable,
    open_table,
    set_constants,
)
from trees import assert_same

import yogadl


def source(count):
    rng = np.random.default_rng(2)
    return {
        "n": np.arange(count),
        "odd": rng.integers(0, 255, (count, 3), np.uint8),
        "ragged": [np.arange(k % 4, dtype=np.int32) for k in range(count)],
        "rank": [np.float32(k) if k < count // 2 else np.full(2, k, np.float32) for k in range(count)],
        "text": [f"text {k}" for k in range(count)],
        "nothing": np.zeros((count, 0)),
    }


@pytest.fixture
def open_reader(tmp_path):
    storage = yogadl.open_storage(tmp_path)
    storage.submit(source(200), "d", "1", build=yogadl.BuildOptions(part_bytes=300))
    manifest = storage._backend.catalogue.published(DatasetKey("d", "1")).manifest
    assert manifest.parts > 10

    def open_(**options):
        table = open_table(storage._backend.root, manifest)
        return Reader(manifest.spec, table, PartPaths(storage._backend.root, "d", table), **options)

    return open_


def check(reader):
    expected = source(200)
    rng = np.random.default_rng(3)
    for count in (1, 2, 50, 200):
        indices = rng.integers(0, 200, count)
        columns = reader.columns(indices)
        for name, column in zip(expected, columns, strict=True):
            assert len(column) == count
            for found, index in zip(column, indices, strict=True):
                assert_same(found, expected[name][index])


@pytest.mark.parametrize(("maps", "most_mapped"), [(True, 1000), (False, 1000), (True, 5)])
def test_parts_are_read_mapped_or_not_as_on_a_network_file_system_or_some_of_them(
    open_reader, monkeypatch, maps, most_mapped
):
    set_constants(monkeypatch, MAX_MAPPED_PARTS=most_mapped)
    check(open_reader(maps=maps))


def test_a_window_that_is_renewed_under_way(open_reader, monkeypatch):
    set_constants(monkeypatch, REMAP_AFTER_PAGES=1, REMAP_CACHE_BYTES=0)
    reader = open_reader()
    held = reader.columns(np.arange(200))
    for _ in range(5):
        check(reader)
        gc.collect()
    assert held[0].tolist() == list(range(200))


LARGE = 300


@pytest.fixture(scope="module", params=[400_000, 3_000_000, None])
def large(tmp_path_factory, request):
    """Return rows of sizes that are gathered in different ways, and a function that opens them."""
    rng = np.random.default_rng(4)
    arrays = {
        "pages": rng.integers(0, 2**31, (LARGE, 2048), np.int32),
        "pieces": rng.integers(0, 256, (LARGE, 9, 1024), np.uint8),
        "many": rng.random((LARGE, 192), np.float32),
        "odd": rng.integers(0, 256, (LARGE, 5001), np.uint8),
        "single": rng.random((LARGE, 1, 512)),
        "flags": rng.integers(0, 2, (LARGE, 640)).astype(bool),
        "id": np.arange(LARGE),
    }
    storage = yogadl.open_storage(tmp_path_factory.mktemp("caches"))
    storage.submit(arrays, "d", "1", build=yogadl.BuildOptions(part_bytes=request.param))
    manifest = storage._backend.catalogue.published(DatasetKey("d", "1")).manifest

    def open_():
        table = open_table(storage._backend.root, manifest)
        return Reader(manifest.spec, table, PartPaths(storage._backend.root, "d", table))

    return arrays, open_


@pytest.mark.parametrize("most_mapped", [0, 5, 1000])
@pytest.mark.parametrize("memory", [None, BatchMemory()])
@pytest.mark.parametrize("count", [1, 2, 97, 600])
def test_large_rows_are_gathered_whole(large, monkeypatch, most_mapped, memory, count):
    set_constants(monkeypatch, MAX_MAPPED_PARTS=most_mapped)
    arrays, open_ = large
    reader = open_()
    rng = np.random.default_rng(count)
    for _ in range(3):  # the second time, memory is used again
        indices = rng.integers(0, LARGE, count)
        columns = reader.columns(indices, None, memory)
        for (name, array), column in zip(arrays.items(), columns, strict=True):
            assert column.dtype == array.dtype
            assert column.flags.c_contiguous
            assert column.flags.writeable
            assert np.array_equal(column, array[indices]), name


def test_what_is_gathered_stays_as_it_is_for_as_long_as_it_is_held(large):
    arrays, open_ = large
    reader, memory = open_(), BatchMemory()
    rng = np.random.default_rng(5)
    held = []
    for _ in range(20):
        indices = rng.integers(0, LARGE, 64)
        pages, pieces = reader.columns(indices, [0, 1], memory)
        held.append((indices, pages[:, 5:], pieces.reshape(-1)))
    for indices, pages, pieces in held:
        assert np.array_equal(pages, arrays["pages"][indices, 5:])
        assert np.array_equal(pieces, arrays["pieces"][indices].reshape(-1))


def test_rows_that_can_be_filled_in_place_are_made_by_the_memory_given(large):
    class Memory:
        made = 0
        joins = False

        def array(self, shape, dtype):
            self.made += 1
            return np.empty(shape, dtype)

    memory = Memory()
    reader = large[1]()
    assert len(reader.columns(np.arange(64), None, memory)) == 7
    # pages, pieces and single; the others don't come in pieces that are large enough, nor do those of many
    # parts, cut anywhere
    assert memory.made == (3 if len(reader.parts.table) < 10 else 0)


def test_no_indices_give_empty_columns_of_the_right_kind(open_reader):
    n, odd, ragged, rank, text, nothing = open_reader().columns(np.zeros(0, np.int64))
    assert (n.shape, n.dtype) == ((0,), np.int64)
    assert (odd.shape, odd.dtype) == ((0, 3), np.uint8)
    assert nothing.shape == (0, 0)
    assert ragged == rank == text == []


def test_gathered_memory_outlives_the_reader(open_reader):
    reader = open_reader()
    n, odd, ragged, *_ = reader.columns(np.arange(50))
    del reader
    gc.collect()
    assert n.sum() == sum(range(50))
    assert odd.shape == (50, 3)
    assert ragged[3].tolist() == [0, 1, 2]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks at Linux's list of mappings")
def test_a_reader_that_nobody_holds_lets_go_of_its_mapping_at_once(tmp_path):
    storage = yogadl.open_storage(tmp_path)
    storage.submit({"x": np.arange(9)}, "d", "1")
    gc.disable()
    try:
        ref = storage.fetch("d", "1")
        list(ref.stream().batch(4))
        part = next(tmp_path.rglob("*.mdb")).name
        assert part in Path("/proc/self/maps").read_text()
        del ref
        assert part not in Path("/proc/self/maps").read_text()
    finally:
        gc.enable()


CROWDED = """
import mmap
import sys
from pathlib import Path
import yogadl

storage = yogadl.open_storage(sys.argv[1], mapped=sys.argv[2] == "mapped")
ref = storage.fetch("d", "1")
held, left = [], int(Path("/proc/sys/vm/max_map_count").read_text())
while left > 0:  # two that lie side by side are one, unless they may be used in different ways
    try:
        held.append(mmap.mmap(-1, 4096, prot=mmap.PROT_READ | (len(held) % 2 and mmap.PROT_WRITE)))
    except OSError:
        break
    left -= 1
try:
    print(ref.gather(range(9))["x"].tolist())
except yogadl.errors.StorageError as error:
    held.clear()
    print(error)
"""


@pytest.mark.skipif(not Path("/proc/sys/vm/max_map_count").exists(), reason="the limit is Linux's")
def test_with_more_mappings_than_a_process_may_have_the_error_says_what_to_raise(tmp_path):
    yogadl.open_storage(tmp_path).submit(
        {"x": np.arange(9)}, "d", "1", build=yogadl.BuildOptions(part_bytes=20)
    )

    def read(how):
        command = [sys.executable, "-c", CROWDED, str(tmp_path), how]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert "vm.max_map_count" in read("mapped")
    assert read("not") == f"{list(range(9))}\n"


@pytest.mark.parametrize("codec", [0, 1])
@pytest.mark.parametrize("leaf", [yogadl.Leaf("float32", (None,)), yogadl.Leaf("str")])
def test_an_entry_has_its_three_words_and_those_of_a_shape(leaf, codec):
    sizes = [size for size in range(500) if are_readable(leaf, np.array([[codec, 0, 1, size, 0]]))]
    words = range(3 + leaf.is_numeric, 3 + 2 + MAX_DIMENSIONS)
    assert sizes == [4 * (count + codec) for count in words]
