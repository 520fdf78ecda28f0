"""Opening a stream: every argument checked, and what follows from them."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_source import MemorySource, batch_ids, open_stream, record_ids, stream_of

from yogadl import Stream
from yogadl.errors import ConfigurationError


def test_an_offset_and_a_cursor_are_refused_together():
    with pytest.raises(ConfigurationError, match="start_offset and cursor"):
        stream_of(10, start_offset=1, cursor=stream_of(10).cursor(2))


def test_a_shuffle_without_a_seed_is_the_one_of_seed_0():
    assert record_ids(stream_of(50, shuffle=True)) == record_ids(stream_of(50, shuffle=True, shuffle_seed=0))


def test_skipping_the_shuffle_keeps_the_first_order():
    stream = stream_of(60, shuffle=True, shuffle_seed=1, skip_shuffle_at_epoch_end=True)
    first = record_ids(stream)
    assert record_ids(stream) == first == stream_of(60, shuffle=True, shuffle_seed=1).indices().tolist()


@given(st.integers(0, 30), st.integers(1, 4), st.integers(0, 40), st.booleans())
def test_skipping_equals_the_tail(count, ranks, offset, shuffle):
    options = {"shuffle": shuffle, "num_shards": ranks, "shard_rank": ranks - 1, "pad_shard_remainder": True}
    if not count and offset:
        with pytest.raises(ConfigurationError, match="yields none"):
            stream_of(count, start_offset=offset, **options)
        return
    whole = stream_of(count, **options)
    rows = [*record_ids(whole), *record_ids(whole), *record_ids(whole)]
    assert len(rows) == 3 * -(-count // ranks)
    skipped = stream_of(count, start_offset=min(offset, len(rows)), **options)
    tail = []
    for _ in range(3 - skipped.start.epoch):
        tail += record_ids(skipped)
    assert tail == rows[offset:]


def test_a_stream_has_the_length_of_a_whole_epoch():
    assert len(stream_of(10, start_offset=7)) == 10
    assert [len(stream_of(11, num_shards=3, shard_rank=rank)) for rank in range(3)] == [4, 4, 3]
    assert len(stream_of(11, num_shards=3, shard_rank=2, pad_shard_remainder=True)) == 4
    assert len(stream_of(11, num_shards=3, drop_shard_remainder=True)) == 3


def test_one_record_is_shuffled_for_ever():
    batches = iter(stream_of(1, shuffle=True).batch(2, epochs=None))
    assert [next(batches)["id"].tolist() for _ in range(3)] == [[0]] * 3


def test_a_stream_is_what_0_1_4_called_one():
    stream = stream_of(3)
    assert isinstance(stream, Stream)
    assert stream.length == 3
    assert record_ids(stream.iterator_fn()) == [0, 1, 2]
    assert stream.output_types is stream.output_shapes is None


def test_a_record_is_memory_of_its_own():
    first, second = list(stream_of(2))
    first["pair"][:] = 9
    assert second["pair"].tolist() == [1, -1]
    assert isinstance(first["id"], np.int64)
    assert first["name"] == "r0"


def test_records_are_read_in_few_large_reads():
    source = MemorySource(5000)
    calls = []
    source.columns = lambda indices: calls.append(len(indices)) or MemorySource.columns(source, indices)
    assert record_ids(open_stream(source)) == list(range(5000))
    assert len(calls) < 15


def test_large_records_are_read_one_by_one():
    source = MemorySource(50, record_bytes=10_000_000)
    next(iter(open_stream(source)))
    assert len(source.read) == 1


def test_a_plan_says_what_an_epoch_reads():
    plan = stream_of(10, num_shards=3, start_offset=2).plan()
    assert (plan.records, plan.bytes, plan.ways) == (4, 128, ())


def test_a_stream_pickles_with_its_count_of_epochs():
    stream = stream_of(20, shuffle=True)
    first = record_ids(stream)
    copy = pickle.loads(pickle.dumps(stream))
    assert copy.state_dict() == stream.state_dict()
    assert record_ids(copy) == record_ids(stream) != first
    assert batch_ids(copy.batch(3)) == batch_ids(stream.batch(3))


def test_a_stream_says_what_it_is():
    assert (
        repr(stream_of(20, shuffle=True, num_shards=2))
        == "<RecordStream of 20 records, order global, shard 0 of 2>"
    )
