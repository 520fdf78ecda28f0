"""Batches: how rows are cut, stacked, padded and collated, over one epoch or many."""

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_source import BareSource, MemorySource, batch_ids, flat, open_stream, stream_of

from yogadl.errors import ConfigurationError


def test_a_batch_is_the_records_tree_with_stacked_leaves():
    batch = next(iter(stream_of(5).batch(3)))
    assert list(batch) == ["id", "pair", "name"]
    np.testing.assert_array_equal(batch["pair"], [[0, 0], [1, -1], [2, -2]])
    assert batch["name"] == ["r0", "r1", "r2"]


@pytest.mark.parametrize("count", [1, 7, 300, 40_000])
def test_batches_are_writable_contiguous_and_apart(count):
    batches = list(stream_of(count, shuffle=True).batch(64))
    assert len(batches) == -(-count // 64)
    for number, batch in enumerate(batches):
        for leaf in (batch["id"], batch["pair"]):
            assert leaf.flags.c_contiguous
            assert leaf.flags.writeable
            leaf[:] = number
    assert all((batch["pair"] == number).all() for number, batch in enumerate(batches))
    assert not any(np.shares_memory(a["id"], b["id"]) for a, b in itertools.pairwise(batches))


@pytest.mark.filterwarnings("ignore:there is no batch to read")
@given(st.integers(0, 40), st.integers(1, 12), st.booleans())
def test_an_epochs_last_batch_is_short_unless_dropped(count, size, drop):
    loader = stream_of(count).batch(size, drop_remainder=drop)
    whole = [list(range(a, a + size)) for a in range(0, count - size + 1, size)]
    short = [] if drop or not count % size else [list(range(count - count % size, count))]
    assert batch_ids(loader) == whole + short
    assert len(loader) == len(whole + short)


@pytest.mark.parametrize(
    "options", [{}, {"epochs": 3}, {"across_epochs": True}, {"epochs": 2, "across_epochs": True}], ids=str
)
def test_dropping_every_record_there_is_gets_a_warning(options):
    with pytest.warns(UserWarning, match=r"no batch to read: (5|10) records make none of 11"):
        loader = stream_of(5).batch(11, drop_remainder=True, **options)
    assert list(loader) == []


def test_little_left_of_an_epoch_and_nothing_at_all_get_none():
    late = stream_of(10, start_offset=8)
    assert [len(batch) for batch in batch_ids(late.batch(4, drop_remainder=True, epochs=2))] == [4, 4]
    assert list(stream_of(0).batch(4, drop_remainder=True)) == []
    assert list(stream_of(2, shard_rank=2, num_shards=3).batch(4, drop_remainder=True)) == []
    loader = stream_of(5).batch(12, drop_remainder=True, epochs=3, across_epochs=True)
    assert [len(batch) for batch in batch_ids(loader)] == [12]


def test_an_epoch_of_many_chunks_is_whole():
    stream = stream_of(50_000, shuffle=True, num_shards=2, shard_rank=1)
    assert flat(batch_ids(stream.batch(7))) == stream.indices().tolist()


def test_large_records_are_read_batch_by_batch():
    source = MemorySource(1000, record_bytes=130_000)
    batches = iter(open_stream(source).batch(8))
    for number in range(1, 20):
        next(batches)
        assert len(source.read) == 8 * number


def test_batches_below_a_megabyte_are_read_a_few_at_a_time():
    source = MemorySource(1000, record_bytes=100_000)
    batches = iter(open_stream(source).batch(8))
    for read in (1, 3, 3, 7, 7, 7, 7, 11, 11):
        next(batches)
        assert len(source.read) == 8 * read


def test_the_first_batch_reads_little():
    source = MemorySource(100_000)
    batches = iter(open_stream(source).batch(8))
    next(batches)
    assert len(source.read) == 8


def test_a_batch_may_be_larger_than_a_chunk():
    assert [len(ids) for ids in batch_ids(stream_of(70_000).batch(30_000))] == [30_000, 30_000, 10_000]


def test_an_endless_loader_has_no_length():
    with pytest.raises(TypeError, match="endless"):
        len(stream_of(10).batch(4, epochs=None))


@pytest.mark.filterwarnings("ignore:there is no batch to read")
@given(st.integers(1, 20), st.integers(1, 30), st.integers(1, 4), st.booleans())
def test_across_epochs_only_the_very_last_batch_is_short(count, size, epochs, drop):
    stream = stream_of(count, shuffle=True)
    loader = stream.batch(size, drop_remainder=drop, epochs=epochs, across_epochs=True)
    records = flat(stream.indices(epoch).tolist() for epoch in range(epochs))
    batches = [records[a : a + size] for a in range(0, len(records), size)]
    if drop and len(records) % size:
        batches.pop()
    assert batch_ids(loader) == batches
    assert len(loader) == len(batches)


def test_an_endless_batch_may_span_several_epochs():
    batches = itertools.islice(stream_of(3).batch(8, epochs=None, across_epochs=True), 2)
    assert batch_ids(batches) == [[0, 1, 2, 0, 1, 2, 0, 1], [2, 0, 1, 2, 0, 1, 2, 0]]


def test_collate_gets_the_records():
    batches = list(stream_of(5).batch(2, collate=lambda records: [record["name"] for record in records]))
    assert batches == [["r0", "r1"], ["r2", "r3"], ["r4"]]


def test_records_that_are_no_dict_are_batched():
    assert [batch.tolist() for batch in open_stream(BareSource(5)).batch(2)] == [[0, 1], [2, 3], [4]]
    assert list(open_stream(BareSource(3))) == [0, 1, 2]


def test_with_collate_each_record_has_the_padding_field():
    stream = stream_of(3, num_shards=2, shard_rank=1, pad_shard_remainder=True)
    ((first, second),) = stream.batch(2, collate=tuple, padding_field="p")
    assert (bool(first["p"]), bool(second["p"])) == (False, True)


def test_a_padding_field_needs_a_dict():
    with pytest.raises(ConfigurationError, match="make the records dicts"):
        open_stream(BareSource(5)).batch(2, padding_field="p")


@pytest.mark.parametrize(
    ("count", "options"),
    [(0, {}), (0, {"pad_shard_remainder": True}), (2, {"num_shards": 3, "drop_shard_remainder": True})],
)
@pytest.mark.parametrize("across", [False, True])
def test_endless_nothing_is_refused(count, options, across):
    with pytest.raises(ConfigurationError, match="never yield anything"):
        stream_of(count, **options).batch(2, epochs=None, across_epochs=across)


@pytest.mark.parametrize("epochs", [2, None])
def test_shards_that_would_drift_apart_are_refused(epochs):
    with pytest.raises(ConfigurationError, match="drift"):
        stream_of(11, num_shards=2).batch(2, epochs=epochs)
    with pytest.raises(ConfigurationError, match="drift"):
        stream_of(12, num_shards=2, cursor=stream_of(12).cursor(3)).batch(2, epochs=epochs)
    assert len(stream_of(11, num_shards=2, drop_shard_remainder=True).batch(5, epochs=2)) == 2


def test_a_loader_pickles_with_its_count_of_epochs():
    loader = stream_of(20, shuffle=True).batch(6)
    list(loader)
    next(iter(loader))
    copy = pickle.loads(pickle.dumps(loader))
    assert copy.state_dict() == loader.state_dict()
    assert batch_ids(copy) == batch_ids(loader)


def test_a_loader_says_what_it_is():
    loader = stream_of(20).batch(6, epochs=None)
    assert (loader.batch_size, loader.epochs) == (6, None)
    assert (
        repr(loader)
        == "<Loader of <RecordStream of 20 records, order source, shard 0 of 1>, batch 6, epochs None>"
    )
