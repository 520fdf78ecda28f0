"""Stopping at any batch: both a loop that counts its own epochs and a trainer that begins the next go on."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inside import Cut, NumberedBatches
from memory_source import batch_ids, flat, stream_of

from yogadl.errors import ConfigurationError

EPOCHS = 3
SHUFFLE = {"shuffle": True, "shuffle_seed": 7}
STREAMS = {
    "whole": {},
    "pad": {"num_shards": 2, "shard_rank": 1, "pad_shard_remainder": True},
    "drop": {"num_shards": 2, "shard_rank": 1, "drop_shard_remainder": True},
    "uneven": {"num_shards": 2, "shard_rank": 1},
}
CUTS = {"short": {}, "dropped": {"drop_remainder": True}, "across": {"across_epochs": True}}


def loaders(stream, cut, **options):
    """Return what makes one loader after another, as processes that are started again do."""
    options = CUTS[cut] | options
    return [
        lambda: stream_of(11, **SHUFFLE, **STREAMS[stream]).batch(2, **options),
        lambda: stream_of(11, **SHUFFLE, **STREAMS[stream]).batch(2, **options).prefetch(2),
        lambda: stream_of(11, **SHUFFLE, **STREAMS[stream]).batch(2, **options).prefetch(2, threads=3),
    ]


def of_own_epochs(loader):
    """Yield each batch of a loop that counts its epochs, and the state that it could be stopped with."""
    for _ in range(loader.state_dict()["epoch"], EPOCHS):
        for batch in loader:
            yield batch["id"].tolist(), loader.state_dict()
        yield None, loader.state_dict()


def of_next_epochs(loader, done=0):
    """Do the same as a trainer, which counts batches and begins an epoch wherever the loader stands."""
    count = len(loader)
    for _ in range(done // count, EPOCHS):
        for batch in itertools.islice(loader, count):
            yield batch["id"].tolist(), loader.state_dict()


def delivered(steps):
    return [ids for ids, _ in steps if ids is not None]


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("stream", STREAMS)
def test_a_loop_that_counts_its_epochs_gets_the_rest_of_one_first(stream, cut):
    for make in loaders(stream, cut):
        steps = [(None, make().state_dict()), *of_own_epochs(make())]
        assert len(delivered(steps)) >= 2 * EPOCHS
        for number, (_, state) in enumerate(steps):
            again = make()
            again.load_state_dict(json.loads(json.dumps(state)))
            assert delivered(of_own_epochs(again)) == delivered(steps[number + 1 :])


@pytest.mark.parametrize("cut", ["short", "dropped"])
@pytest.mark.parametrize("stream", ["whole", "pad", "drop"])
def test_a_trainer_that_begins_its_next_epoch_gets_one(stream, cut):
    for make in loaders(stream, cut, skip_finished_epoch=True):
        steps = [(None, make().state_dict()), *of_next_epochs(make())]
        assert len(steps) == 1 + EPOCHS * len(make())
        for number, (_, state) in enumerate(steps):
            again = make()
            again.load_state_dict(json.loads(json.dumps(state)))
            assert delivered(of_next_epochs(again, number)) == delivered(steps[number + 1 :])


def test_what_remains_to_be_dropped_is_an_empty_epoch_unless_it_is_skipped():
    state = stream_of(1000).cursor(960)
    loader = stream_of(1000).batch(64, drop_remainder=True)
    loader.load_state_dict(state)
    assert len(list(loader)) == 0
    assert len(list(loader)) == 15
    loader = stream_of(1000).batch(64, drop_remainder=True, skip_finished_epoch=True)
    loader.load_state_dict(state)
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (1, 0)
    assert len(list(loader)) == 15


def test_an_empty_rest_of_an_epoch_is_told_once_and_names_the_option(caplog):
    at_the_end = stream_of(10).cursor(10)
    for make in (
        lambda: stream_of(10, cursor=at_the_end),
        lambda: stream_of(10, cursor=at_the_end).batch(3),
        lambda: stream_of(10, cursor=at_the_end).batch(3, across_epochs=True),
        lambda: stream_of(10, cursor=stream_of(10).cursor(9)).batch(3, drop_remainder=True),
        lambda: stream_of(10, cursor=at_the_end).batch(3).prefetch(2, threads=2),
    ):
        caplog.clear()
        loader = make()
        assert not caplog.records  # nothing was read yet
        assert [len(list(loader)) > 0 for _ in range(3)] == [False, True, True]
        (told,) = caplog.records
        assert (told.levelname, told.name) == ("WARNING", "yogadl")
        assert "of epoch 0" in told.message
        assert "skip_finished_epoch=True" in told.message
    caplog.clear()
    iterator = iter(stream_of(10).batch(3))
    iterator.load_state_dict(at_the_end)
    assert list(iterator) == []
    assert "skip_finished_epoch=True" in caplog.text


def test_where_something_is_left_nothing_is_told(caplog):
    at_the_end = stream_of(10).cursor(10)
    for loader in (
        stream_of(10).batch(3),
        stream_of(10, cursor=stream_of(10).cursor(9)).batch(3),
        stream_of(10, cursor=at_the_end).batch(3, skip_finished_epoch=True),
        stream_of(10, cursor=at_the_end).batch(3, epochs=2),
        stream_of(10, cursor=stream_of(10).cursor(0, epoch=1)).batch(3),
    ):
        assert all(len(list(loader)) for _ in range(2))
    assert list(stream_of(0).batch(3)) == []
    assert not caplog.records


def first_iteration(loader):
    return flat(batch_ids(loader))


@pytest.mark.filterwarnings("ignore:there is no batch to read")
@given(st.data())
def test_a_finished_epoch_is_one_of_which_this_loader_has_no_batch(data):
    records, ranks = data.draw(st.integers(0, 20)), data.draw(st.integers(1, 3))
    position = data.draw(st.integers(0, records))
    remainder = data.draw(st.sampled_from(["drop_shard_remainder", "pad_shard_remainder", "rebind"]))
    size, drop = data.draw(st.integers(1, 9)), data.draw(st.booleans())
    state = stream_of(records, **SHUFFLE).cursor(position, epoch=5)
    found = []
    for rank in range(ranks):
        options = {"num_shards": ranks, "shard_rank": rank, remainder: True, **SHUFFLE}
        plain = stream_of(records, **options, cursor=state).batch(size, drop)
        rest, following = first_iteration(plain), first_iteration(plain)
        opened = stream_of(records, **options, cursor=state).batch(size, drop, skip_finished_epoch=True)
        loaded = stream_of(records, **options).batch(size, drop, skip_finished_epoch=True)
        loaded.load_state_dict(state)
        moved = iter(stream_of(records, **options).batch(size, drop, skip_finished_epoch=True))
        moved.load_state_dict(state)
        read = first_iteration(opened)
        assert first_iteration(loaded) == first_iteration(moved) == read
        assert read in (rest, following)
        cut = Cut(size, drop, skip_finished_epoch=True)
        numbered = NumberedBatches(stream_of(records, **options, cursor=state), cut)
        epoch = numbered.stream.start.epoch
        assert flat(numbered.batch(epoch, i)["id"].tolist() for i in range(numbered.count(epoch))) == read
        found.append((rest, following, read))
    # Together or not at all: what one shard has left, no other skips.
    if remainder == "rebind" and not drop:
        assert sum(len(following) for _, following, _ in found) == records
    is_left = any(rest for rest, _, _ in found)
    assert all(read == (rest if is_left else following) for rest, following, read in found)


def test_an_iterator_of_several_epochs_ends_where_it_would_have_without_a_stop():
    for epochs, position, wanted in [(3, 4, [1, 2]), (3, 0, [0, 1, 2]), (1, 4, [1])]:
        stream = stream_of(4, **SHUFFLE, cursor=stream_of(4, **SHUFFLE).cursor(position))
        found = first_iteration(stream.batch(3, epochs=epochs, skip_finished_epoch=True))
        assert found == [int(i) for epoch in wanted for i in stream_of(4, **SHUFFLE).indices(epoch)]


def test_a_batch_that_spans_epochs_is_left_as_long_as_one_comes():
    stream = stream_of(10, cursor=stream_of(10).cursor(8))
    options = {"drop_remainder": True, "across_epochs": True, "skip_finished_epoch": True}
    assert batch_ids(stream.batch(4, epochs=2, **options)) == [[8, 9, 0, 1], [2, 3, 4, 5], [6, 7, 8, 9]]
    assert batch_ids(stream.batch(4, epochs=1, **options)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    endless = iter(stream.batch(4, epochs=None, **options))
    assert next(endless)["id"].tolist() == [8, 9, 0, 1]


def test_an_iteration_that_was_left_is_gone_on_with_where_finished_epochs_are_skipped():
    loader = stream_of(10).batch(3, skip_finished_epoch=True)
    assert batch_ids(itertools.islice(loader, 1)) == [[0, 1, 2]]
    iter(loader), iter(loader)  # nobody asks these for anything
    assert batch_ids(itertools.islice(loader, 2)) == [[3, 4, 5], [6, 7, 8]]
    assert batch_ids(itertools.islice(loader, 1)) == [[9]]
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (0, 10)
    assert batch_ids(itertools.islice(loader, 1)) == [[0, 1, 2]]
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (1, 3)


def test_an_iteration_of_several_epochs_that_was_left_ends_where_it_would_have():
    loader = stream_of(4, **SHUFFLE).batch(3, epochs=2, skip_finished_epoch=True)
    order = [int(i) for epoch in range(4) for i in stream_of(4, **SHUFFLE).indices(epoch)]
    found = flat(batch_ids(itertools.islice(loader, 3)))  # an epoch and a bit
    assert found + first_iteration(loader) == order[:8]
    assert first_iteration(loader) == order[8:]


def test_an_endless_iteration_that_was_left_is_gone_on_with():
    loader = stream_of(10).batch(3, epochs=None, skip_finished_epoch=True)
    assert batch_ids(itertools.islice(loader, 5))[-1] == [0, 1, 2]
    assert batch_ids(itertools.islice(loader, 1)) == [[3, 4, 5]]


@pytest.mark.parametrize("count", [9, 10, 11])
def test_what_uneven_shards_have_counted_epoch_after_epoch_is_never_read_twice(count):
    """Each rank counts its own records: those of whole epochs, and two more."""
    for epochs in range(3):
        seen, cursors = [], []
        for rank in range(3):
            stream = stream_of(count, **SHUFFLE, num_shards=3, shard_rank=rank)
            delivered = sum(len(list(stream)) for _ in range(epochs))
            if epochs:
                ended = stream.cursor(delivered)
                assert (ended["epoch"], ended["position"]) == (epochs - 1, count)
            seen += [record["id"] for record in itertools.islice(stream, 2)]
            cursors.append(stream.cursor(delivered + 2))
        assert cursors[0] == cursors[1] == cursors[2]
        seen += [record["id"] for record in stream_of(count, **SHUFFLE, cursor=cursors[0])]
        assert sorted(seen) == list(range(count))


def test_no_shard_has_delivered_more_of_an_epoch_than_the_longest_has():
    for rank, own in ((0, 4), (1, 3), (2, 3)):
        stream = stream_of(10, num_shards=3, shard_rank=rank)
        for count in {own, 4}:
            cursor = stream.cursor(count, epoch=5)
            assert (cursor["epoch"], cursor["position"]) == (5, 10)
        with pytest.raises(ConfigurationError, match="epoch 5 has 4 records"):
            stream.cursor(5, epoch=5)
