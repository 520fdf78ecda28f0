"""Streams in Grain's worker processes: the same elements, in the same order, as without."""

import itertools
import subprocess
import sys

import grain
import numpy as np
import pytest
from grain_stages import NO_THREADS, Double, Noise, OddOnly, Twice, ids, numbered, sizes
from placed import PADDED, check_places, placed

from yogadl.adapters import grain as yogadl_grain
from yogadl.errors import ConfigurationError, CursorError

RECORDS = 53
REF = numbered(RECORDS)
WORKERS = grain.MultiprocessingOptions(2)


def stream(**options):
    return REF.stream(shuffle=True, shuffle_seed=5, **options)


@pytest.fixture
def drain():
    """Return a function that takes elements of a loader or dataset; its workers are stopped afterwards."""
    opened = []

    def drain(iterable, count=None, state=None):
        iterator = iter(iterable)
        opened.append(getattr(iterator, "_iterator", iterator))
        if state is not None:
            iterator.set_state(state)
        found = list(iterator) if count is None else [next(iterator) for _ in range(count)]
        # Copies: the workers' shared memory goes with their arrays.
        return [{name: np.array(leaf) for name, leaf in element.items()} for element in found], iterator

    yield drain
    for iterator in opened:
        iterator.close()


def assert_same(found, wanted):
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize(
    ("operations", "options"),
    [
        ([Double(), Noise(), grain.transforms.Batch(6)], {}),
        ([grain.transforms.Batch(6, drop_remainder=True)], {"read_options": grain.ReadOptions(4, 8)}),
        ([Noise()], {"batch_size": 6, "epochs": 2}),
        ([Noise(), Twice()], {}),
    ],
    ids=["batch", "threads and drop", "whole batches", "flat map"],
)
def test_two_workers_give_what_none_gives(drain, operations, options):
    wanted = list(yogadl_grain.make_dataloader(stream(), operations, 0, **options))
    found, _ = drain(yogadl_grain.make_dataloader(stream(), operations, 2, **options))
    if isinstance(operations[-1], Twice):  # a worker's element is one of the two: they alternate
        assert sorted(ids(found)) == sorted(ids(wanted))
    else:
        assert_same(found, wanted)


def test_a_filter_in_the_workers_leaves_out_the_same_records(drain):
    found, iterator = drain(yogadl_grain.make_dataloader(stream(), [OddOnly(), grain.transforms.Batch(6)], 2))
    assert sorted(ids(found)) == list(range(1, RECORDS, 2))
    left = stream(cursor=yogadl_grain.cursor(iterator)).indices().tolist()
    assert [number for number in left if number % 2] == []


def test_endless_epochs_go_on_in_the_workers(drain):
    loader = yogadl_grain.make_dataloader(stream(), [grain.transforms.Batch(6)], 2, epochs=None)
    found, _ = drain(loader, 2 * RECORDS // 6)
    wanted = [int(i) for epoch in range(2) for i in stream().indices(epoch)]
    assert ids(found) == wanted[: len(ids(found))]


@pytest.mark.parametrize(
    ("operations", "options"), [([grain.transforms.Batch(6)], {}), ([], {"batch_size": 6}), ([], {})]
)
def test_the_cursor_goes_on_where_the_workers_stopped(drain, operations, options):
    loader = yogadl_grain.make_dataloader(stream(num_shards=2), operations, 2, **options)
    found, iterator = drain(loader, 3)
    cursor = yogadl_grain.cursor(iterator)
    assert cursor == yogadl_grain.cursor(iterator.get_state())
    assert cursor == stream(num_shards=2).cursor(len(ids(found)))
    assert ids(found) == stream(num_shards=2).indices(0, 0, len(ids(found))).tolist()


def test_a_state_goes_on_in_new_workers(drain):
    loader = yogadl_grain.make_dataloader(stream(), [Noise(), grain.transforms.Batch(6)], 2)
    wanted = list(yogadl_grain.make_dataloader(stream(), [Noise(), grain.transforms.Batch(6)]))
    _, iterator = drain(loader, 3)
    found, _ = drain(loader, None, iterator.get_state())
    assert_same(found, wanted[3:])


def test_batches_that_workers_make_of_every_second_record_have_no_cursor_but_at_a_common_end(drain):
    loader = grain.DataLoader(
        data_source=yogadl_grain.DataSource(REF),
        sampler=yogadl_grain.IndexSampler(stream()),
        operations=[grain.transforms.Batch(6)],
        worker_count=2,
    )
    _, iterator = drain(loader, 3)
    with pytest.raises(CursorError, match="no prefix"):
        yogadl_grain.cursor(iterator)
    next(iterator)
    assert yogadl_grain.cursor(iterator) == stream().cursor(24)


@pytest.mark.parametrize("size", [None, 6])
def test_a_dataset_repeats_in_workers(drain, size):
    dataset = yogadl_grain.map_dataset(stream(), size).repeat(2)
    dataset = dataset.map(Double()) if size else dataset.batch(6)
    found, iterator = drain(dataset.to_iter_dataset(NO_THREADS).mp_prefetch(WORKERS), 11)
    wanted = [int(i) for epoch in range(2) for i in stream().indices(epoch)]
    assert ids(found) == wanted[: len(ids(found))]
    assert sizes(found)[8] == (5 if size else 6)  # our epochs end in a short batch; repeat, then batch don't
    assert yogadl_grain.cursor(iterator) == stream().cursor(len(ids(found)))


def test_batches_made_before_mp_prefetch_by_each_worker_have_no_cursor(drain):
    dataset = yogadl_grain.map_dataset(stream()).to_iter_dataset(NO_THREADS).batch(6).mp_prefetch(WORKERS)
    _, iterator = drain(dataset, 3)
    with pytest.raises(CursorError, match="no prefix"):
        yogadl_grain.cursor(iterator)


def test_workers_start_in_a_program_that_parsed_no_flags(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        """
import grain, yogadl
from yogadl.adapters import grain as yogadl_grain

if __name__ == "__main__":
    stream = yogadl.from_source(list(range(5))).stream()
    print([int(x) for x in yogadl_grain.make_dataloader(stream, worker_count=1)])
    dataset = yogadl_grain.map_dataset(stream).to_iter_dataset(grain.ReadOptions(0, 0))
    print([int(x) for x in dataset.mp_prefetch(grain.MultiprocessingOptions(1))])
"""
    )
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[0, 1, 2, 3, 4]\n" * 2


@pytest.mark.parametrize("size", [None, 8])
def test_records_are_read_with_their_places(drain, size):
    stream = placed(103, **PADDED)
    loader = yogadl_grain.make_dataloader(
        stream, batch_size=size, epochs=2, padding_field="p", worker_count=2
    )
    check_places(stream, drain(loader)[0], (0, 1), "p")


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize(
    "options", [{}, {"batch_size": 6}, {"epochs": 3}], ids=["records", "batches", "epochs"]
)
def test_workers_read_consecutive_parts_if_asked_for(options, workers, drain):
    whole = list(yogadl_grain.map_dataset(stream(start_offset=5), **options))
    dataset = yogadl_grain.map_dataset(stream(start_offset=5), **options).map(dict).to_iter_dataset()
    read = dataset.mp_prefetch(grain.MultiprocessingOptions(workers), sequential_slice=True)
    found, iterator = drain(read)
    size, more = divmod(len(whole), workers)
    starts = [number * size + min(number, more) for number in range(workers + 1)]
    parts = [whole[first:last] for first, last in itertools.pairwise(starts)]
    turns = [part[turn] for turn in range(size + 1) for part in parts if turn < len(part)]
    assert_same(found, turns)
    if workers > 1:
        with pytest.raises(CursorError, match="sequential_slice"):
            yogadl_grain.cursor(iterator)


def test_consecutive_parts_are_never_read_twice(drain):
    endless = yogadl_grain.map_dataset(stream(), epochs=None).to_iter_dataset()
    with pytest.raises(ConfigurationError, match="without end"):
        drain(endless.mp_prefetch(WORKERS, sequential_slice=True))
    repeated = yogadl_grain.map_dataset(stream()).repeat(2).to_iter_dataset()
    with pytest.raises(Exception, match="Pass epochs= to map_dataset instead"):
        drain(repeated.mp_prefetch(WORKERS, sequential_slice=True))
