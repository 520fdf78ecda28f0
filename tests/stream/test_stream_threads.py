"""Several threads read ahead: batches, cursors and errors are those of one thread, and of none."""

import itertools
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_source import MemorySource, batch_ids, open_stream, stream_of

import yogadl
from yogadl.errors import ConfigurationError

TIMEOUT_S = 30
THREADS = (1, 2, 4)
# Read one by one, two at a time, copied out of reads of more, and each record by itself.
RECORD_BYTES = (10_000_000, 300_000, 32)

shards = st.sampled_from(
    [
        {},
        {"num_shards": 3, "shard_rank": 2},
        {"num_shards": 3, "shard_rank": 2, "pad_shard_remainder": True},
        {"num_shards": 3, "shard_rank": 2, "drop_shard_remainder": True},
    ]
)
cuts = st.sampled_from([{}, {"drop_remainder": True}, {"across_epochs": True}, {"skip_finished_epoch": True}])


def steps(iterator, most=60):
    """Return what an iterator delivers, as lists, with the cursor before and after each, up to its end."""
    found = [iterator.state_dict()]
    for item in itertools.islice(iterator, most):
        found += [as_lists(item), iterator.state_dict(), iterator.last.indices.tolist()]
    return [*found, iterator.state_dict()]


def as_lists(item):
    if isinstance(item, dict):
        return {name: as_lists(column) for name, column in item.items()}
    return item.tolist() if isinstance(item, np.ndarray) else item


def check(make, most=60):
    """Fail unless a loader delivers the same with any number of threads, epoch by epoch."""
    loader = make()
    expected = [steps(iter(loader), most) for _ in range(3)]
    for threads in THREADS:
        ahead = make().prefetch(2, threads=threads)
        for wanted in expected:
            batches = iter(ahead)
            assert steps(batches, most) == wanted
            batches.close()


@pytest.mark.filterwarnings("ignore:there is no batch to read")
@given(
    st.integers(0, 50),
    st.integers(1, 9),
    st.sampled_from([1, 2, None]),
    shards,
    cuts,
    st.sampled_from(RECORD_BYTES),
    st.integers(0, 20),
)
def test_batches_and_cursors_are_the_same(count, size, epochs, shard, cut, record_bytes, offset):
    source = MemorySource(count, record_bytes=record_bytes)
    options = shard | {"start_offset": min(offset, count // 3)}

    def make():
        stream = open_stream(source, shuffle=True, shuffle_seed=3, **options)
        return stream.batch(size, epochs=epochs, **cut)

    try:
        make()
    except ConfigurationError:  # of shards that would drift apart, or what is endless and empty
        assert epochs != 1
        return
    check(make)


def noisy(record, rng):
    return record | {"noise": rng.random()}


def of_batch(batch, rng):
    return batch | {"shift": float(rng.random())}


MADE = {
    "functions of records": lambda s: s.map(dict).random_map(noisy).batch(7),
    "functions of batches": lambda s: s.batch(7).map(dict).random_map(of_batch),
    "both": lambda s: s.random_map(noisy).batch(7).random_map(of_batch),
    "a function of a prefetched loader": lambda s: s.batch(7).prefetch(1).random_map(of_batch),
    "collate": lambda s: s.batch(7, collate=lambda records: [int(record["id"]) for record in records]),
    "padding": lambda s: s.batch(7, padding_field="is_padding"),
    "padding of records": lambda s: s.batch(7, padding_field="p", collate=lambda r: [x["p"] for x in r]),
    "records": lambda s: s,
    "skipped ranges": lambda s: s.skip_ranges([(3, 17), (50, 51)]).batch(7),
}


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("record_bytes", RECORD_BYTES)
def test_whatever_is_made_of_records_is_the_same(made, record_bytes):
    source = MemorySource(200, record_bytes=record_bytes)
    options = {"num_shards": 3, "shard_rank": 1, "pad_shard_remainder": True}
    check(lambda: MADE[made](open_stream(source, shuffle=True, shuffle_seed=5, **options)))


def test_the_order_goes_on_behind_what_is_asked_for_at_a_time():
    stream = yogadl.from_source(np.arange(50_000)).stream(shuffle=True)
    for size in (1000, 7):
        found = np.concatenate(list(stream.batch(size).prefetch(2, threads=2).at(0)))
        assert np.array_equal(found, stream.indices())


# Errors


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("record_bytes", RECORD_BYTES)
@pytest.mark.parametrize("record", [0, 3, 4, 50, 99])
def test_what_a_source_raises_comes_where_its_batch_would_have(record, record_bytes, threads):
    source = MemorySource(100, record_bytes=record_bytes, fails_at=record)
    batches = iter(open_stream(source).batch(4).prefetch(3, threads=threads))
    before = list(range(record // 4 * 4))
    found = [number for ids in batch_ids(itertools.islice(batches, record // 4)) for number in ids]
    assert found == before
    for _ in range(2):
        with pytest.raises(KeyError, match="on fire"):
            next(batches)
        assert batches.state_dict()["position"] == len(before)
    source.fails_at = None
    assert [number for ids in batch_ids(batches) for number in ids] == list(range(len(before), 100))


@pytest.mark.parametrize("threads", THREADS)
def test_a_source_that_stops_iterating_does_not_end_the_epoch(threads):
    class Stops(MemorySource):
        def columns(self, indices, fields=None, memory=None):
            if 30 in indices:
                raise StopIteration
            return super().columns(indices)

    with pytest.raises(RuntimeError):
        list(open_stream(Stops(100)).batch(4).prefetch(3, threads=threads))


def test_after_an_error_no_more_is_read_than_the_threads_have_begun():
    source = MemorySource(1000, record_bytes=10_000_000, fails_at=8)
    batches = iter(open_stream(source).batch(4).prefetch(2, threads=3))
    with pytest.raises(KeyError):
        list(batches)
    assert len(source.read) <= (2 + 2 + 3) * 4


# In so many threads


@pytest.mark.parametrize("threads", [2, 4])
def test_functions_are_called_in_so_many_threads_at_once(threads):
    inside = threading.Barrier(threads, timeout=TIMEOUT_S)

    def function(batch):
        inside.wait()  # breaks, and raises, unless all of them come
        return threading.current_thread()

    loader = stream_of(16 * threads).batch(4).map(function).prefetch(2, threads=threads)
    assert len(set(loader)) == threads


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize(
    ("row", "size"), [(16, 256), (16, 1), (3072, 256), (3072, 64), (5000, 16), (5000, 300)]
)
def test_a_batch_that_is_kept_keeps_no_more_than_twice_its_bytes(row, size, threads):
    count = 12 * size + 3 if row * size < 1_000_000 else 3 * size + 3
    rows = np.random.default_rng(1).integers(0, 256, (count, row), np.uint8)
    stream = yogadl.from_source({"row": rows, "id": np.arange(count)}).stream(shuffle=True)
    found = list(stream.batch(size, padding_field="p").prefetch(2, threads=threads))
    order = stream.indices(0)
    assert np.array_equal(np.concatenate([batch["id"] for batch in found]), order)
    for batch in found:
        assert np.array_equal(batch["row"], rows[batch["id"]])
        for column in batch.values():
            assert column.flags.writeable
            assert column.flags.c_contiguous
            whole = column
            while isinstance(whole.base, np.ndarray):
                whole = whole.base
            assert whole.nbytes <= 2 * column.nbytes
        batch["row"][:] = 0
        batch["p"][:] = True  # which is nobody else's
    assert not any(np.shares_memory(a["row"], b["row"]) for a, b in itertools.pairwise(found))
