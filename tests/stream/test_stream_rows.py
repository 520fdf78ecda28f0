"""Rows: which positions are whose, and where a reader stands."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inside import Cut, Point, Shard, Span, walk
from memory_source import record_ids, stream_of

from yogadl.errors import ConfigurationError

REMAINDERS = ["uneven", "drop", "pad"]
shards = st.builds(
    lambda records, ranks, rank, remainder: Shard(records, rank % ranks, ranks, remainder),
    st.integers(0, 40),
    st.integers(1, 6),
    st.integers(0, 5),
    st.sampled_from(REMAINDERS),
)


def share(stream_options, count, rank, ranks, start):
    stream = stream_of(count, shard_rank=rank, num_shards=ranks, **stream_options)
    return record_ids(stream.at(0, start))


@given(st.integers(0, 40), st.integers(1, 6), st.integers(0, 40))
def test_uneven_shards_partition_the_rest_of_the_epoch(count, ranks, start):
    start = min(start, count)
    shares = [share({}, count, rank, ranks, start) for rank in range(ranks)]
    rows = itertools.zip_longest(*shares)
    assert [i for row in rows for i in row if i is not None] == list(range(start, count))


@given(st.integers(0, 40), st.integers(1, 6), st.integers(0, 40))
def test_dropping_loses_exactly_the_last_positions(count, ranks, start):
    start = min(start, count)
    shares = [share({"drop_shard_remainder": True}, count, rank, ranks, start) for rank in range(ranks)]
    assert [i for row in zip(*shares, strict=True) for i in row] == list(
        range(start, count - (count - start) % ranks)
    )


@given(st.integers(0, 40), st.integers(1, 6), st.integers(0, 40))
def test_padding_repeats_from_the_epochs_start(count, ranks, start):
    start = min(start, count)
    shares = [share({"pad_shard_remainder": True}, count, rank, ranks, start) for rank in range(ranks)]
    positions = range(start, start + -(-(count - start) // ranks) * ranks)
    assert [i for row in zip(*shares, strict=True) for i in row] == [p % count for p in positions]


@given(shards, st.integers(0, 40))
def test_a_shard_has_as_many_rows_as_the_others_or_one_less(shard, position):
    position = min(position, shard.records)
    assert shard.rows(position) - 1 <= shard.own(position) <= shard.rows(position)


@given(shards, st.integers(0, 3), st.integers(0, 40), st.integers(0, 60))
def test_forward_is_one_step_many_times(shard, epoch, position, rows):
    start = point = Point(epoch, min(position, shard.records))
    if rows > shard.rows(point.position) and not shard.rows(0):
        return  # nowhere to go
    origin, row = point, 0
    for _ in range(rows):
        while row == shard.rows(origin.position):
            origin, row = Point(origin.epoch + 1, 0), 0
        row += 1
        point = Point(origin.epoch, min(shard.records, origin.position + row * shard.ranks))
    assert shard.forward(start, rows) == point


@given(shards, st.integers(0, 3), st.integers(0, 40), st.integers(0, 60))
def test_a_shards_own_records_lead_to_where_it_has_got_them(shard, epoch, position, records):
    start = Point(epoch, min(position, shard.records))
    if records > shard.own(start.position) and not shard.rows(0):
        with pytest.raises(ConfigurationError, match="yields none"):
            shard.delivered(start, records)
        return
    if records and not shard.own(0):
        assert shard.delivered(start, records) == shard.forward(start, records)
        return
    origin, left = start, records
    while left > shard.own(origin.position):
        left -= shard.own(origin.position)
        origin = Point(origin.epoch + 1, 0)
    is_all = left > 0 and left == shard.own(origin.position)
    rows = shard.rows(origin.position) if is_all else left
    expected = Point(origin.epoch, shard.after(origin.position, rows))
    assert shard.delivered(start, records) == expected


@given(st.integers(0, 9), st.integers(1, 9), st.integers(0, 50))
def test_walk_stays_in_an_epoch_after_its_last_step(first, full, count):
    onward, steps = walk(first, full, count)
    assert count == steps + (first + (onward - 1) * full if onward else 0)
    assert 0 <= steps <= (full if onward else first)
    assert steps or not onward


@given(shards, st.integers(1, 8), st.booleans(), st.integers(0, 40), st.integers(0, 30))
def test_a_reader_across_epochs_reaches_what_its_rows_reach(shard, size, drop, position, items):
    start = Point(2, min(position, shard.records))
    if not shard.rows(0):
        return
    cut = Cut(size, drop, epochs=None, across_epochs=True)
    assert cut.reach(shard, Span(start, 2, None), items) == shard.forward(start, items * size)


def test_a_row_past_the_end_is_asked_for_in_step():
    # 5 records over 2 shards: shard 1 has no record in the last row, but stands where shard 0 does.
    shards = [Shard(5, rank, 2, "uneven") for rank in (0, 1)]
    assert [shard.own(0) for shard in shards] == [3, 2]
    assert [shard.after(0, 3) for shard in shards] == [5, 5]


def test_indices_say_what_will_be_read():
    stream = stream_of(50, shuffle=True, shuffle_seed=3, shard_rank=1, num_shards=4, pad_shard_remainder=True)
    for epoch in range(3):
        indices = stream.indices(epoch)
        assert indices.dtype == np.int64
        assert indices.tolist() == record_ids(stream.at(epoch))


def test_indices_read_nothing():
    stream = stream_of(50, shuffle=True)
    stream.indices()
    assert stream.source.read == []


@given(st.integers(0, 20), st.integers(0, 20))
def test_indices_take_a_range_of_rows(start, stop):
    stream = stream_of(30, shuffle=True, shard_rank=1, num_shards=2)
    assert stream.indices(1, start, stop).tolist() == stream.indices(1).tolist()[start:stop]


def test_indices_count_from_the_start_of_the_run_in_its_first_epoch():
    stream = stream_of(10, num_shards=2, start_offset=2)
    assert stream.indices(0).tolist() == [4, 6, 8]
    assert stream.indices(1).tolist() == [0, 2, 4, 6, 8]
