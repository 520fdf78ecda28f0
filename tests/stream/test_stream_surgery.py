"""After a loss spike: which records were it, the same batch again, and without them."""

import itertools
import json
import operator
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inside import Cut, NumberedBatches
from memory_source import MemorySource, open_stream, stream_of

import yogadl
from yogadl.errors import ConfigurationError, CursorError

SHUFFLED = {"shuffle": True, "shuffle_seed": 5}


def ids(batches):
    return [batch["id"].tolist() for batch in batches]


def flat(batches):
    return [int(i) for batch in batches for i in batch["id"]]


def noisy(record, rng):
    return {"id": record["id"], "noise": rng.random()}


def noises(batches):
    return {int(i): float(x) for batch in batches for i, x in zip(batch["id"], batch["noise"], strict=True)}


# The last batch


@pytest.mark.parametrize("depth", [0, 3])
def test_the_last_batch_says_its_epoch_positions_and_records(depth):
    loader = stream_of(24, **SHUFFLED, shard_rank=1, num_shards=2).batch(5, epochs=2)
    batches = iter(loader.prefetch(depth) if depth else loader)
    assert batches.last is None
    order = stream_of(24, **SHUFFLED).indices
    for batch in batches:
        last = batches.last
        assert last.indices.tolist() == batch["id"].tolist()
        assert order(last.epoch)[last.positions].tolist() == batch["id"].tolist()
    assert (last.epoch, last.positions.tolist()) == (1, [21, 23])


def test_nothing_is_last_where_an_iterator_was_moved_to():
    batches = iter(stream_of(10).batch(4))
    next(batches)
    batches.load_state_dict(batches.state_dict())
    assert batches.last is None
    assert next(batches)["id"].tolist() == batches.last.positions.tolist() == [4, 5, 6, 7]
    batches.close()
    assert batches.last.positions.tolist() == [4, 5, 6, 7]


def test_a_batch_across_epochs_says_where_the_next_epoch_begins():
    batches = iter(stream_of(5).batch(3, epochs=2, across_epochs=True))
    places = [(batches.last.epoch, batches.last.positions.tolist()) for _ in batches]
    assert places == [(0, [0, 1, 2]), (0, [3, 4, 0]), (1, [1, 2, 3]), (1, [4])]


def test_epochs_may_be_shorter_than_a_batch():
    batches = iter(stream_of(2).batch(5, epochs=4, across_epochs=True))
    assert [batches.last.positions.tolist() for _ in batches] == [[0, 1, 0, 1, 0], [1, 0, 1]]


def test_padding_is_past_the_records():
    stream = stream_of(5, shard_rank=1, num_shards=2, pad_shard_remainder=True)
    batches = iter(stream.batch(2))
    assert [batches.last.positions.tolist() for _ in batches] == [[1, 3], [5]]
    assert batches.last.indices.tolist() == [0]


def test_of_single_records_the_last_is_one():
    records = iter(stream_of(5).prefetch(3))
    found = [(records.last.indices.tolist(), int(record["id"])) for record in itertools.islice(records, 3)]
    assert found == [([0], 0), ([1], 1), ([2], 2)]


# The same batch again


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("start", [0, 7, 23, 24])
@pytest.mark.parametrize(
    "cut", [{}, {"drop_remainder": True}, {"epochs": 3}, {"epochs": None}, {"across_epochs": True}]
)
def test_a_batch_is_replayed_by_its_number(cut, start, depth):
    def loader_of(offset):
        stream = stream_of(24, **SHUFFLED, cursor=stream_of(24, **SHUFFLED).cursor(offset, epoch=0))
        mapped = (
            stream.random_map(noisy).batch(5, **cut).random_map(lambda b, rng: {**b, "more": rng.random()})
        )
        return mapped.prefetch(depth) if depth else mapped

    loader = loader_of(start)
    delivered = itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), 14)
    again = loader_of(start)
    for step, batch in enumerate(delivered):
        replayed = again.batch_at(step)
        assert replayed["id"].tolist() == batch["id"].tolist()
        assert replayed["noise"].tolist() == batch["noise"].tolist()
        assert replayed["more"] == batch["more"]
    assert again.state_dict() == loader_of(start).state_dict()  # nothing was claimed


def test_across_epochs_each_iterators_last_batch_is_replayed_short():
    loader = stream_of(5).batch(3, epochs=2, across_epochs=True)
    assert ids(map(loader.batch_at, range(5))) == [[0, 1, 2], [3, 4, 0], [1, 2, 3], [4], [0, 1, 2]]


def test_where_there_is_no_batch_that_is_said():
    with pytest.warns(UserWarning, match="no batch"):
        loader = stream_of(5).batch(9, drop_remainder=True)
    with pytest.raises(IndexError, match="no batch 3"):
        loader.batch_at(3)
    with pytest.raises(IndexError):
        stream_of(0).batch(2).batch_at(0)


# Without some positions


def without(order, ranges):
    """Return what is left of an epoch's order."""
    return [index for at, index in enumerate(order) if not any(a <= at < b for a, b in ranges)]


@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize(
    "ranges",
    [[(0, 1)], [(3, 9)], [(20, 23)], [(0, 22)], [(5, 6), (1, 3), (6, 8)], [(2, 9), (4, 6), (8, 12)], []],
)
def test_the_ranges_are_left_out_and_all_else_comes_in_order(ranges, ranks):
    for epoch in range(2):
        order = stream_of(23, **SHUFFLED).indices(epoch).tolist()
        shards = [
            stream_of(23, **SHUFFLED, shard_rank=rank, num_shards=ranks).skip_ranges(ranges)
            for rank in range(ranks)
        ]
        left = without(order, ranges)
        assert [shard.indices(epoch).tolist() for shard in shards] == [
            left[rank::ranks] for rank in range(ranks)
        ]
        assert sum(map(len, shards)) == len(left)
        assert [flat(shard.batch(4).at(epoch)) for shard in shards] == [
            left[rank::ranks] for rank in range(ranks)
        ]


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), max_size=4),
    st.integers(0, 40),
    st.integers(1, 4),
    st.integers(1, 7),
)
def test_a_stop_anywhere_goes_on_with_other_shards(spans, stop, ranks, size):
    ranges = [(a, min(40, a + length)) for a, length in spans]
    stream = stream_of(40, **SHUFFLED).skip_ranges(ranges)
    whole = stream.indices(0).tolist()
    batches = iter(stream.batch(size))
    read = flat(itertools.islice(batches, stop))
    cursor = json.loads(json.dumps(batches.state_dict()))
    seen = {}
    for rank in range(ranks):
        shard = stream_of(40, **SHUFFLED, shard_rank=rank, num_shards=ranks, cursor=cursor)
        assert shard.run.skipped == stream.run.skipped
        if cursor["epoch"] == 0:
            seen.update(zip(range(rank, 99, ranks), flat(shard.batch(3)), strict=False))
    assert read + [seen[at] for at in sorted(seen)] == whole


def test_positions_in_cursors_count_what_is_left_out():
    stream = stream_of(20).skip_ranges([(4, 10)])
    assert stream.cursor(4) == stream_of(20).cursor(10) | {"skip_ranges": [[4, 10]]}
    assert stream.cursor(3)["position"] == 3
    assert stream_of(20, cursor=stream.cursor(4)).start == (0, 10)
    assert stream.cursor(14)["position"] == 20
    assert flat(stream.batch(5).at(0, 10)) == flat(stream.batch(5).at(0, 6)) == list(range(10, 20))
    batches = iter(stream.batch(3))
    assert [batches.last.positions.tolist() for _ in batches][:2] == [[0, 1, 2], [3, 10, 11]]


def test_a_cursor_of_another_epoch_has_them_too():
    stream = stream_of(20, **SHUFFLED).skip_ranges([(4, 10)])
    loader = stream.batch(5)
    loader.load_state_dict(stream.cursor(14 + 3))
    order = without(stream_of(20, **SHUFFLED).indices(1).tolist(), [(4, 10)])
    assert flat(loader) == order[3:]


def test_a_cursor_from_before_fits_and_nothing_comes_twice():
    batches = iter(stream_of(20, **SHUFFLED).batch(6))
    read = flat(itertools.islice(batches, 1))
    mended = stream_of(20, **SHUFFLED, cursor=batches.state_dict()).skip_ranges([(8, 14)])
    read += flat(mended.batch(6))
    assert read == without(stream_of(20, **SHUFFLED).indices(0).tolist(), [(8, 14)])
    assert "skip_ranges" in mended.state_dict()


def test_the_same_ranges_may_be_given_again_and_none_takes_them_back():
    cursor = stream_of(20).skip_ranges([(4, 10)]).cursor(6)
    again = stream_of(20, cursor=cursor).skip_ranges([(4, 10)])
    assert flat(again.batch(5)) == list(range(12, 20))
    back = stream_of(20, cursor=cursor).skip_ranges([])
    assert flat(back.batch(20)) == list(range(12, 20))
    assert flat(back.batch(20).at(1)) == list(range(20))
    assert "skip_ranges" not in back.state_dict()


def test_a_stream_that_does_not_know_the_ranges_refuses_them():
    cursor = stream_of(20).skip_ranges([(4, 10)]).cursor(6)
    loader = stream_of(20).batch(2)
    with pytest.raises(CursorError, match=r"call stream.skip_ranges\(\[\(4, 10\)\]\)"):
        loader.load_state_dict(cursor)
    with pytest.raises(CursorError, match=r"skip_ranges"):
        stream_of(20).skip_ranges([(5, 10)]).batch(2).load_state_dict(cursor)
    more = stream_of(20).skip_ranges([(4, 14)]).batch(20)
    more.load_state_dict(cursor)
    assert flat(more) == list(range(14, 20))
    with pytest.raises(CursorError, match="other data"):
        stream_of(21, cursor=cursor)


@pytest.mark.parametrize(
    "ranges",
    [5, "ab", [5], [(1,)], [(1, 2, 3)], [(2, 2)], [(3, 2)], [(-1, 2)], [(0, 21)], [(0, 20)],
     [(0, 10), (10, 20)], [(0.5, 2)], [("0", 2)], [(True, 2)], None, {1: 2}],
)  # fmt: skip
def test_what_are_no_ranges_is_refused(ranges):
    with pytest.raises(ConfigurationError):
        stream_of(20).skip_ranges(ranges)
    cursor = stream_of(20).cursor(0)
    with pytest.raises(CursorError):
        stream_of(20, cursor=cursor | {"skip_ranges": ranges})


def test_functions_see_the_same_randomness_as_without():
    stream = stream_of(30, **SHUFFLED).random_map(noisy)
    expected = noises(stream.batch(7))
    for skipping in (
        stream.skip_ranges([(3, 12)]),
        stream_of(30, **SHUFFLED).skip_ranges([(3, 12)]).random_map(noisy),
    ):
        found = noises(skipping.batch(4))
        assert len(found) == 21
        assert found.items() <= expected.items()


def test_padding_repeats_a_record_that_is_left():
    shards = [
        stream_of(10, shard_rank=rank, num_shards=4, pad_shard_remainder=True).skip_ranges([(0, 1), (5, 8)])
        for rank in range(4)
    ]
    batches = [next(iter(shard.batch(9, padding_field="pads"))) for shard in shards]
    assert ids(batches) == [[1, 8], [2, 9], [3, 1], [4, 2]]
    assert [batch["pads"].tolist() for batch in batches] == [
        [False, False],
        [False, False],
        [False, True],
        [False, True],
    ]


def test_shards_of_unequal_length_are_noticed_by_what_is_left():
    shard = stream_of(10, num_shards=2)
    shard.batch(2, epochs=2)
    with pytest.raises(ConfigurationError, match="uneven"):
        iter(shard.skip_ranges([(0, 1)]).batch(2, epochs=2)).__next__()


def test_batches_by_number_and_pickled_streams_leave_them_out_too():
    stream = pickle.loads(pickle.dumps(open_stream(MemorySource(12), **SHUFFLED).skip_ranges([(2, 5)])))
    numbered = NumberedBatches(stream, Cut(4))
    assert ids(map(numbered.batch, [0, 0, 0], range(3))) == ids(stream.batch(4))
    assert repr(stream) == "<RecordStream of 9 records, order global, shard 0 of 1, skips [(2, 5)]>"


def test_what_is_left_is_mapped_by_index():
    ref = yogadl.from_source(np.arange(10) * 3)
    found = list(ref.stream().skip_ranges([(1, 9)]).map(operator.neg))
    assert found == [0, -27]
