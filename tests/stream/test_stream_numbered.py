"""Batches by number: the same as a loader's, in any order, from threads, and with the same cursor."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inside import BatchMemory, Cut, NumberedBatches
from memory_source import MemorySource, batch_ids, open_stream, stream_of


@st.composite
def streams(draw):
    records = draw(st.integers(1, 60))
    ranks = draw(st.integers(1, min(4, records)))
    remainder = draw(st.sampled_from([{}, {"drop_shard_remainder": True}, {"pad_shard_remainder": True}]))
    options = {
        "shuffle": True,
        "shard_rank": draw(st.integers(0, ranks - 1)),
        "num_shards": ranks,
        **remainder,
    }
    return stream_of(records, **options), draw(st.integers(0, records)), options, records


def cursor_after(numbered, delivered):
    return numbered.numbering.cursor(delivered)


@pytest.mark.filterwarnings("ignore:there is no batch to read")
@given(streams(), st.integers(1, 9), st.booleans())
def test_the_batches_of_an_epoch_are_those_of_a_loader(made, size, drop):
    stream = made[0]
    numbered = NumberedBatches(stream, Cut(size, drop))
    found = [numbered.batch(1, number) for number in range(numbered.count(1))]
    assert batch_ids(found) == batch_ids(stream.batch(size, drop).at(1))


@pytest.mark.filterwarnings("ignore:there is no batch to read")
@given(streams(), st.integers(1, 9), st.booleans())
def test_the_first_epoch_begins_where_the_stream_starts_and_cursors_are_the_loaders(made, size, drop):
    stream, position, options, records = made
    cursor = {**stream.cursor(0), "epoch": 2, "position": position}
    stream = stream_of(records, **options, cursor=cursor)
    numbered = NumberedBatches(stream, Cut(size, drop))
    batches = iter(stream.batch(size, drop))
    assert cursor_after(numbered, 0) == batches.state_dict()
    for number in range(numbered.count(2)):
        epoch, item = numbered.numbering.locate(number)
        assert batch_ids([numbered.batch(epoch, item)]) == batch_ids([next(batches)])
        assert cursor_after(numbered, number + 1) == batches.state_dict()
    assert next(batches, None) is None


def test_a_batch_that_is_not_there_is_refused():
    numbered = NumberedBatches(stream_of(5), Cut(2, True))
    with pytest.raises(IndexError, match="epoch 3 has no batch 2: it has 2"):
        numbered.batch(3, 2)
    with pytest.raises(IndexError, match="no batch -1"):
        numbered.batch(3, -1)


def test_epochs_without_a_batch_locate_nothing():
    with pytest.warns(UserWarning, match="no batch to read: 5 records make none of 6"):
        numbered = NumberedBatches(stream_of(5), Cut(6, True))
    with pytest.raises(IndexError, match="an epoch of this shard has none"):
        numbered.numbering.locate(0)


def test_many_threads_read_the_same():
    numbered = NumberedBatches(stream_of(1_000, shuffle=True), Cut(7))
    numbers = [(epoch, number) for epoch in range(6) for number in range(numbered.count(epoch))]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda place: numbered.batch(*place)["id"].tolist(), numbers))
    assert found == [numbered.batch(*place)["id"].tolist() for place in numbers]


def test_it_pickles_without_what_it_holds_ready():
    numbered = NumberedBatches(stream_of(1_000, shuffle=True), Cut(7, True))
    before = len(pickle.dumps(numbered))
    expected = numbered.batch(1, 3)["id"].tolist()
    again = pickle.loads(pickle.dumps(numbered))
    assert again.batch(1, 3)["id"].tolist() == expected
    assert len(pickle.dumps(NumberedBatches(stream_of(1_000, shuffle=True), Cut(7, True)))) == before


def test_batches_are_gathered_into_the_memory_that_is_given():
    given = []

    class Gathering(MemorySource):
        def columns(self, indices, fields=None, memory=None):
            given.append(memory)
            return super().columns(indices)

    numbered, memory = NumberedBatches(open_stream(Gathering(5)), Cut(2)), BatchMemory()
    numbered.read(0, 0, memory), numbered.read(0, 1)
    assert given == [memory, None]
