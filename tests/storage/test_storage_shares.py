"""However a source is cut, whoever writes the pieces, and however often: the cache is that of one build."""

import functools
import itertools
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inside import _engines, _shares, cut, set_constants
from partitioned_sources import Rows, partitions, row
from sizes import constant

import yogadl

SHARES = constant("storage._builds.shares._SHARES")
SHARE_BYTES = constant("storage._builds.shares._SHARE_BYTES")

# How a source is cut.


@given(st.integers(1, 10**12), st.integers(0, 10**6))
def test_shares_are_many_and_none_is_large(length, record_bytes):
    records = cut(length, record_bytes)
    count = -(-length // records)
    assert records >= 1
    assert count >= min(length, 0.8 * SHARES)  # enough of them for a killed one to cost little
    if length * record_bytes <= SHARES * SHARE_BYTES:
        assert count <= 2 * SHARES
    if record_bytes <= SHARE_BYTES:
        assert records * record_bytes <= 1.2 * SHARE_BYTES + record_bytes


@pytest.mark.parametrize("times", [0.9, 1, 1.25, 3])
def test_a_source_is_cut_further_where_its_shares_would_be_larger_than_a_constant(times):
    length, record_bytes = SHARES * 1024, SHARE_BYTES // 1024
    count = -(-length // cut(length, int(record_bytes * times)))
    assert (count > SHARES) == (times > 1)


def test_shares_begin_where_a_source_begins_best(storage):
    class Groups(Rows):
        pass

    source = yogadl._sources.sources.open_source(Groups(1000, Path("/dev/null")))
    source.starts = [0, 3, 300, 301, 990]
    assert _shares.shares_of(source).terms() == [0, 300, 990, 1000]


# Whoever writes them.


@functools.cache
def fingerprint_of_one_build(folder, records):
    storage = yogadl.open_storage(folder / "whole")
    storage.submit([row(index) for index in range(records)], "whole", str(records))
    return storage.fetch("whole", str(records)).fingerprint


versions = itertools.count()


@pytest.fixture
def same(tmp_path):
    """Check that a version is what one build makes of so many records."""

    def check(storage, version, records):
        ref = storage.fetch("d", version)
        assert ref.fingerprint == fingerprint_of_one_build(tmp_path, records)
        assert ref.gather(range(records))["n"].tolist() == list(range(records))

    return check


SETTINGS = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=7, deadline=None
)
BOUNDS = st.lists(st.integers(0, 40), min_size=1, max_size=7).map(lambda ends: sorted([*ends, 41]))
PART_BYTES = st.sampled_from([None, 1, 500, 5_000])


@SETTINGS
@given(bounds=BOUNDS, part_bytes=PART_BYTES, is_shared=st.booleans())
def test_partitions_make_the_same_cache_however_they_are_cut(tmp_path, same, bounds, part_bytes, is_shared):
    storage, version = yogadl.open_storage(tmp_path / "caches"), str(next(versions))
    source = partitions(tmp_path / "log", *bounds)
    with ThreadPoolExecutor(2) as engine:
        storage.submit(
            source,
            "d",
            version,
            build=yogadl.BuildOptions(part_bytes=part_bytes, engine=engine if is_shared else None),
        )
    same(storage, version, 41)


@SETTINGS
@given(
    records=st.sampled_from([1, 2, 7, 63, 64, 65, 150]),
    part_bytes=PART_BYTES,
    share_bytes=st.sampled_from([1, 50, 10**6]),
)
def test_random_access_makes_the_same_cache_however_it_is_cut(
    tmp_path, same, records, part_bytes, share_bytes
):
    storage, version = yogadl.open_storage(tmp_path / "caches"), str(next(versions))
    with pytest.MonkeyPatch.context() as patched, ThreadPoolExecutor(2) as engine:
        set_constants(patched, SHARE_BYTES=share_bytes)
        storage.submit(
            Rows(records, tmp_path / "log"),
            "d",
            version,
            build=yogadl.BuildOptions(part_bytes=part_bytes, engine=engine),
        )
    same(storage, version, records)


@SETTINGS
@given(
    count=st.integers(1, 12) | st.sampled_from([41, 50]),
    order=st.randoms(use_true_random=False),
    twins=st.lists(st.integers(0, 11), max_size=8),
    part_bytes=PART_BYTES,
)
def test_tasks_make_the_same_cache_in_any_order_and_with_any_twins(
    tmp_path, same, count, order, twins, part_bytes
):
    storage, version = yogadl.open_storage(tmp_path / "caches"), str(next(versions))

    def begin():
        return storage.begin("d", version, source=Rows(41, tmp_path / "log"), partitions=count)

    tasks = [*range(count), *(twin % count for twin in twins)]
    order.shuffle(tasks)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda task: begin().write(task, part_bytes=part_bytes), tasks))
    begin().commit()
    same(storage, version, 41)


@pytest.mark.parametrize(("workers", "kind"), [(2, "arrays"), (3, "memmap"), (7, "list")])
def test_any_number_of_workers_makes_the_same_cache(storage, tmp_path, workers, kind):
    numbers = np.arange(500 * 30).reshape(500, 30)
    np.save(tmp_path / "numbers.npy", numbers)
    mapped = np.load(tmp_path / "numbers.npy", mmap_mode="r")
    source = {"list": list(numbers), "arrays": numbers, "memmap": mapped}[kind]
    storage.submit(source, "d", "1", workers=workers)
    storage.submit(numbers, "d", "whole")
    assert storage.fetch("d", "1").fingerprint == storage.fetch("d", "whole").fingerprint
    assert np.array_equal(storage.fetch("d", "1").gather(range(500)), numbers)


@pytest.mark.parametrize("times", [0.1, 0.9, 1, 1.1, 10])
def test_a_share_is_one_file_unless_it_is_larger_than_a_constant(storage, monkeypatch, times):
    set_constants(monkeypatch, SHARES=7)
    data = np.arange(3_200 * 100).reshape(3_200, 100)
    share_bytes = cut(3_200, data[0].nbytes) * data[0].nbytes
    set_constants(monkeypatch, PART_BYTES=int(share_bytes * times))
    with ThreadPoolExecutor(1) as engine:
        storage.submit(data, "d", "1", build=yogadl.BuildOptions(engine=engine))
    assert np.array_equal(storage.fetch("d", "1").gather(range(3_200)), data)
    assert (storage.info("d", "1").parts > -(-data.nbytes // share_bytes)) == (times < 1)


class Counting:
    """An executor that knows how many tasks wait in it, and in whose futures that may be seen or not."""

    def __init__(self, tells):
        self.pool, self.tells = ThreadPoolExecutor(1), tells
        self.unfinished, self.most, self.sent, self.counting = 0, 0, [], threading.Lock()

    def submit(self, function, given):
        with self.counting:
            self.unfinished += 1
            self.most = max(self.most, self.unfinished)
        self.sent.append(len(given))
        future = Future()

        def run():
            if self.tells:
                future.set_running_or_notify_cancel()
            with self.counting:
                self.unfinished -= 1  # before the result is set, after which the next is submitted
            future.set_result(function(given))

        self.pool.submit(run)
        return future


@pytest.mark.parametrize("tells", [True, False])
def test_so_many_tasks_wait_in_an_executor_as_constants_say(storage, monkeypatch, tells):
    set_constants(monkeypatch, SHARES=16)
    data = np.arange(3_200 * 100).reshape(3_200, 100)
    engine = Counting(tells)
    storage.submit(data, "d", "1", build=yogadl.BuildOptions(engine=engine))
    for tasks, waiting in ((0.5, 3), (3, 3), (4, 4), (4.5, 5), (1000, 8)):
        set_constants(
            monkeypatch,
            WAITING_BYTES=int(max(engine.sent) * tasks),
            LEAST_WAITING=2,
            LEAST_WAITING_IF_UNKNOWN=3,
            MOST_WAITING=8,
        )
        counted = Counting(tells)
        storage.submit(data, "d", str(tasks), build=yogadl.BuildOptions(engine=counted))
        assert len(counted.sent) == len(engine.sent)
        assert counted.most <= waiting + tells  # one runs
        assert storage.info("d", "1").fingerprint == storage.info("d", str(tasks)).fingerprint


@pytest.mark.parametrize(
    ("count", "size_bytes", "least", "has_room"),
    [
        (3, 2**30, 4, True),
        (4, 2**28 - 1, 4, True),
        (4, 2**28, 4, False),
        (31, 2**30, 32, True),
        (32, 2**25 - 1, 32, True),
        (32, 2**25, 32, False),
        (4095, 1, 4, True),
        (4096, 1, 4, False),
    ],
)
def test_there_is_room_for_one_more_task(count, size_bytes, least, has_room):
    assert _engines._has_room([size_bytes] * count, least) is has_room


MET = threading.Barrier(8)


def meets(number):
    MET.wait(100)
    return [number]


def test_all_slots_of_an_executor_that_tells_what_runs_are_filled(storage, monkeypatch):
    set_constants(monkeypatch, WAITING_BYTES=0, LEAST_WAITING=2, LEAST_WAITING_IF_UNKNOWN=2)
    with ThreadPoolExecutor(8) as engine:
        storage.submit(
            yogadl.partitioned.of(range(16), meets), "d", "1", build=yogadl.BuildOptions(engine=engine)
        )
    assert list(storage.fetch("d", "1")) == list(range(16))


def test_the_first_error_ends_a_build_whose_tasks_are_not_all_submitted(storage, monkeypatch):
    def fails(number):
        if number == 5:
            raise ConnectionResetError("gone")
        return [number]

    set_constants(monkeypatch, MOST_WAITING=2, LEAST_WAITING=2, LEAST_WAITING_IF_UNKNOWN=2)
    with ThreadPoolExecutor(1) as engine:
        with pytest.raises(ConnectionResetError):
            storage.submit(
                yogadl.partitioned.of(range(100), fails), "d", "1", build=yogadl.BuildOptions(engine=engine)
            )
        assert engine.submit(len, "abc").result() == 3
    assert storage.versions("d") == []
