"""Numbered items: how many there are, which epoch each is of, and where whoever got so many stands."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inside import Cut
from memory_source import stream_of

import yogadl
from yogadl.errors import ConfigurationError


@st.composite
def numberings(draw):
    records, ranks = draw(st.integers(1, 60)), draw(st.integers(1, 4))
    remainder = draw(st.sampled_from(["drop_shard_remainder", "pad_shard_remainder"]))
    options = {"shard_rank": draw(st.integers(0, ranks - 1)), "num_shards": ranks, remainder: True}
    cursor = {**stream_of(records).cursor(0), "epoch": 3, "position": draw(st.integers(0, records))}
    cut = Cut(draw(st.integers(1, 9)), draw(st.booleans()), draw(st.integers(1, 4)))
    return stream_of(records, cursor=cursor, **options).run.numbering(cut)


@pytest.mark.filterwarnings("ignore:there is no batch to read")
@given(numberings())
def test_items_are_counted_through_the_epochs(numbering):
    epochs = range(3, 3 + numbering.cut.epochs)
    places = [(epoch, inside) for epoch in epochs for inside in range(numbering.count(epoch))]
    assert numbering.length == len(places)
    assert [numbering.locate(number) for number in range(len(places))] == places


@pytest.mark.filterwarnings("ignore:there is no batch to read")
@given(numberings())
def test_a_cursor_stands_behind_the_items_that_were_delivered(numbering):
    shard, size = numbering.shard, numbering.cut.size
    for number in range(numbering.length):
        epoch, inside = numbering.locate(number)
        first = numbering.position(epoch, inside) - shard.rank
        left = shard.records - first
        rows = left // shard.ranks if shard.remainder == "drop" else -(-left // shard.ranks)
        end = first + min(size, rows) * shard.ranks
        assert numbering.reach(number + 1) == (epoch, min(shard.records, end))


def test_the_last_epoch_ends_alike_for_all_shards():
    for rank in (0, 1):
        run = stream_of(5, shard_rank=rank, num_shards=2).run
        assert run.numbering(Cut(2)).end() == (0, 5)
        assert run.numbering(Cut(2)).count(0) == 2 - rank


def test_a_numbering_is_small_wherever_it_is_sent():
    stream = yogadl.from_source({"x": np.arange(10_000)}).stream(shuffle=True)
    assert len(pickle.dumps(stream.run.numbering(Cut(2)))) < 10_000


def test_shards_of_unequal_length_are_not_counted_into_a_next_epoch():
    run = stream_of(5, shard_rank=1, num_shards=2).run
    with pytest.raises(ConfigurationError, match="drift into different epochs"):
        run.numbering(Cut(2, epochs=2))
    with pytest.raises(ConfigurationError, match="drift into different epochs"):
        run.numbering(Cut(2)).locate(1)
