"""Any chain of stops and resumes, on any number of shards, yields each record exactly once."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_source import MemorySource, open_stream

REMAINDERS = {"uneven": {}, "drop": {"drop_shard_remainder": True}, "pad": {"pad_shard_remainder": True}}

# Four times the usual: this is the promise that everything else here serves.
MANY = settings(max_examples=4 * settings.default.max_examples)

counts = st.integers(0, 30)
legs = st.lists(
    st.tuples(
        st.integers(1, 5),  # shards
        st.integers(1, 8),  # batch size
        st.integers(0, 4),  # batches until the stop
        st.integers(0, 4),  # whose state is taken
        st.booleans(),  # by a cursor given to the stream, or loaded into an iterator
    ),
    max_size=6,
)


def start(count, ranks, size, cursor, loads, remainder, threads=0, **batch_options):
    """Return an iterator for each shard, all started at the cursor."""
    iterators = []
    for rank in range(ranks):
        options = {"shuffle": True, "shuffle_seed": 5, "shard_rank": rank, "num_shards": ranks}
        options |= REMAINDERS[remainder]
        stream = open_stream(MemorySource(count), **options, cursor=None if loads else cursor)
        loader = stream.batch(size, padding_field="is_padding", **batch_options)
        iterators.append(iter(loader.prefetch(2, threads=threads) if threads else loader))
        if loads and cursor is not None:
            iterators[-1].load_state_dict(cursor)
    return iterators


def take(iterators, batches):
    """Take so many batches from each shard in step; return the real records, row by row, in order."""
    taken = []
    for _ in range(batches):
        step = [next(iterator, None) for iterator in iterators]
        columns = [
            []
            if batch is None
            else list(zip(batch["id"].tolist(), batch["is_padding"].tolist(), strict=True))
            for batch in step
        ]
        for row in itertools.zip_longest(*columns):
            taken += [pair[0] for pair in row if pair is not None and not pair[1]]
    return taken


def order_of(count, epochs=1):
    stream = open_stream(MemorySource(count), shuffle=True, shuffle_seed=5)
    return [index for epoch in range(epochs) for index in stream.indices(epoch).tolist()]


def through_json(cursor):
    return json.loads(json.dumps(cursor))


@MANY
@given(counts, legs, st.sampled_from(["uneven", "pad"]), st.integers(1, 5))
def test_a_chain_within_an_epoch_reads_each_record_once(count, legs, remainder, last_ranks):
    seen, cursor = [], None
    for ranks, size, batches, taker, loads in legs:
        iterators = start(count, ranks, size, cursor, loads, remainder)
        seen += take(iterators, batches)
        cursor = through_json(iterators[taker % ranks].state_dict())
        if cursor["epoch"]:
            break
    else:
        seen += take(start(count, last_ranks, 3, cursor, False, remainder), count + 1)
    assert seen == order_of(count)


@MANY
@given(counts, legs, st.integers(1, 5))
def test_a_chain_that_drops_loses_exactly_the_last_remainder(count, legs, last_ranks):
    seen, cursor = [], None
    for ranks, size, batches, taker, loads in legs:
        before = cursor
        iterators = start(count, ranks, size, cursor, loads, "drop")
        seen += take(iterators, batches)
        cursor = through_json(iterators[taker % ranks].state_dict())
        if cursor["epoch"]:
            lost = (count - (before["position"] if before else 0)) % ranks
            break
    else:
        seen += take(start(count, last_ranks, 3, cursor, False, "drop"), count + 1)
        lost = (count - (cursor["position"] if cursor else 0)) % last_ranks
    assert seen == order_of(count)[: count - lost]


@MANY
@given(counts.filter(bool), legs, st.booleans(), st.sampled_from([0, 0, 1, 2, 3]))
def test_an_endless_chain_reads_each_epoch_in_its_order(count, legs, across, threads):
    seen, cursor = [], None
    for ranks, size, batches, taker, loads in legs:
        options = {"epochs": None, "across_epochs": across}
        iterators = start(count, ranks, size, cursor, loads, "pad", threads, **options)
        seen += take(iterators, batches)
        cursor = through_json(iterators[taker % ranks].state_dict())
    assert len(seen) >= sum(batches for _, _, batches, _, _ in legs)
    assert seen == order_of(count, len(seen) // count + 1)[: len(seen)]


@given(counts, st.sampled_from(list(REMAINDERS)), st.integers(1, 5), st.integers(1, 8), st.integers(0, 9))
def test_shards_in_step_save_the_same_cursor(count, remainder, ranks, size, batches):
    iterators = start(count, ranks, size, None, False, remainder)
    states = []
    for iterator in iterators:
        delivered = sum(1 for _ in itertools.islice(iterator, batches))
        if delivered == batches:
            states.append(iterator.state_dict())
    assert all(state == states[0] for state in states)


@pytest.mark.filterwarnings("ignore:there is no batch to read")
@given(counts, st.integers(1, 5), st.integers(1, 8), st.booleans(), st.integers(0, 9))
def test_a_cursor_is_what_arithmetic_says(count, ranks, size, drop, batches):
    for rank in range(ranks):
        stream = open_stream(MemorySource(count), shard_rank=rank, num_shards=ranks, pad_shard_remainder=True)
        iterator = iter(stream.batch(size, drop_remainder=drop))
        delivered = sum(len(batch["id"]) for batch in itertools.islice(iterator, batches))
        if iterator.state_dict()["epoch"] == 0:
            assert iterator.state_dict() == stream.cursor(delivered) == stream.cursor(delivered, epoch=0)
        else:
            own = -(-count // ranks)
            assert delivered == own - (own % size if drop else 0)
            assert iterator.state_dict() == stream.cursor(0, epoch=1)
