"""Memory that batches are gathered into, and that is used again."""

import gc
import mmap
import os
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from inside import BatchMemory, bytes_of
from processes import fork, wait

import yogadl
from yogadl.errors import ConfigurationError

LARGE = (100, 1024)
BYTE = np.dtype(np.uint8)


def address(array):
    return array.ctypes.data


@pytest.mark.parametrize("shape", [(65_536,), (70_001,), (3, 5, 7001), (1, 2**20)])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "complex128"])
def test_an_array_is_writable_aligned_and_of_the_shape_and_dtype_asked_for(shape, dtype):
    array = BatchMemory().array(shape, np.dtype(dtype))
    assert (array.shape, array.dtype) == (shape, np.dtype(dtype))
    assert address(array) % 64 == 0
    assert array.flags.c_contiguous
    array[...] = 7
    assert (array == 7).all()


@pytest.mark.parametrize("shape", [(), (0,), (0, 10), (5, 0), (3,)])
def test_small_arrays_are_numpys(shape):
    array = BatchMemory().array(shape, BYTE)
    assert (array.shape, array.base) == (shape, None)


def test_memory_that_nobody_holds_is_used_again():
    memory = BatchMemory()
    array = memory.array(LARGE, BYTE)
    where = address(array)
    del array
    assert address(memory.array((50, 2048), BYTE)) == where


@pytest.mark.parametrize(
    "held",
    [
        lambda array: array,
        lambda array: array[3:],
        lambda array: array.reshape(-1)[::2].view("u1"),
        lambda array: array[5, 6:].T,
        memoryview,
        lambda array: memoryview(array[1:])[2:],
        lambda array: np.asarray(memoryview(array)),
        lambda array: np.frombuffer(array, np.uint16),
        np.from_dlpack,
        lambda array: [array[0]],
    ],
)
def test_memory_that_somebody_sees_is_not_used_again(held):
    memory = BatchMemory()
    array = memory.array(LARGE, BYTE)
    where, view = address(array), held(array)
    del array
    gc.collect()
    others = [memory.array(LARGE, BYTE) for _ in range(3)]
    assert where not in map(address, others)
    del view, others
    gc.collect()
    assert where in map(address, [memory.array(LARGE, BYTE) for _ in range(4)])


def test_arrays_of_other_sizes_do_not_meet():
    memory = BatchMemory()
    arrays = [memory.array((size,), BYTE) for size in range(65_536, 90_000, 500)]
    for number, array in enumerate(arrays):
        array[:] = number
    assert all((array == number).all() for number, array in enumerate(arrays))
    del arrays, array
    for size in range(90_000, 65_536, -500):
        assert len(memory.array((size,), BYTE)) == size


def test_only_so_much_is_kept():
    memory = BatchMemory()
    arrays = [memory.array(LARGE, BYTE) for _ in range(50)]
    del arrays
    assert sum(map(len, memory._idle.values())) < 10


def test_an_aligned_copy_is_made_only_of_what_is_large_and_is_not_aligned():
    memory = BatchMemory()
    room = memory.array((200_064,), BYTE)
    aligned, odd, small = room[:200_000], room[1:200_001], room[1:100]
    objects = np.full(20_000, None)[1:]
    for array in (aligned, small, objects):
        assert memory.aligned(array) is array
    room[:] = np.arange(len(room)) % 251
    copy = memory.aligned(odd)
    assert address(copy) % 64 == 0
    assert not np.shares_memory(copy, odd)
    assert (copy == odd).all()
    assert memory.aligned(odd.view("<u4")[::2]).tolist() == odd.view("<u4")[::2].tolist()


def test_threads_never_get_memory_that_another_holds():
    memory = BatchMemory()

    def work(number):
        random = np.random.default_rng(number)
        held = []
        for turn in range(300):
            array = memory.array(LARGE, BYTE)
            array[:] = mark = (number * 7 + turn) % 251
            held.append((array, mark))
            if len(held) > 3:
                array, mark = held.pop(int(random.integers(len(held))))
                assert (array == mark).all(), (number, turn)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_writes_into_memory_of_its_own():
    memory = BatchMemory()
    idle = memory.array(LARGE, BYTE)
    held = memory.array(LARGE, BYTE)
    held[:] = idle[:] = 1
    del idle

    def child():
        held[:] = 2
        memory.array(LARGE, BYTE)[:] = 2

    assert wait(fork(child)) == 0
    assert (held == 1).all()
    assert (memory.array(LARGE, BYTE) == 1).all()


def test_blocks_are_whole_pages():
    memory = BatchMemory()
    memory.array((65_537,), BYTE)
    (size,) = memory._idle
    assert size % mmap.PAGESIZE == 0


class Endless:
    """As many records as one says, none of which takes any memory."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return {"tokens": np.arange(5), "label": index % 3}


@pytest.mark.parametrize(
    ("view", "record_bytes"),
    [
        (lambda ref: ref.split(0.5), 40),
        (lambda ref: ref.split(0.5, grows=True), 40),
        (lambda ref: ref.split(0.5, by="label"), 96),
        (lambda ref: ref.filter(lambda record: record["label"] == 1), 24),
        (lambda ref: len(ref.chunks("tokens", 4)), 16),
        (lambda ref: ref.chunks("tokens", 4)[0], 16),
        (lambda ref: ref.packed(8, fields="tokens"), 40),
        (lambda ref: ref.bucketed("tokens", tokens=8), 40),
        (lambda ref: ref.grouped("label", records=8), 40),
        (lambda ref: ref.flat_map(lambda record: record["tokens"]), 40),
        (lambda ref: ref.sampled(by="label"), 40),
        (lambda ref: ref.split(0.5, key="label"), 40),
        (lambda ref: ref.map(dict, on_error="skip"), 24),
    ],
)
def test_a_view_that_needs_more_than_half_of_the_memory_says_so_at_once(view, record_bytes, monkeypatch):
    ref = yogadl.from_source(Endless(2**40), fingerprint="endless")
    with pytest.raises(
        ConfigurationError, match=f"of 1099511627776 records .* {record_bytes} bytes a record"
    ):
        view(ref)
    pages = {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": 2 * 1000 * record_bytes}
    monkeypatch.setattr(os, "sysconf", pages.__getitem__)
    with pytest.raises(ConfigurationError, match=re.escape("ref[:1000]")):
        view(ref[:1001])
    view(ref[:1000])


def test_other_views_need_none():
    ref = yogadl.from_source(Endless(2**40), fingerprint="endless")
    some = ref[::2].fields("tokens").map(dict).select([5, 2**38])
    assert some[1]["tokens"].tolist() == [0, 1, 2, 3, 4]
    assert len(yogadl.concat([ref, ref])) == 2**41
    assert len(next(iter(ref.stream(shuffle=True).batch(3)))["tokens"]) == 3


@pytest.mark.parametrize(
    ("size", "found"),
    [
        (7, 7), ("7", 7), ("7 b", 7), ("2k", 2_000), ("2KB", 2_000), ("1.5 MB", 1_500_000), ("3M", 3_000_000),
        ("2GB", 2_000_000_000), ("2g", 2_000_000_000), ("4TB", 4 * 10**12), ("4T", 4 * 10**12),
        ("1KiB", 1024), ("1MiB", 1024**2), ("1GiB", 1024**3), ("1tib", 1024**4),
    ],
)  # fmt: skip
def test_a_size_has_any_unit(size, found):
    assert bytes_of(size) == found
