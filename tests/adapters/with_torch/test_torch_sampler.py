"""Samplers: the stream's order in any DataLoader, and exact stops under torchdata's StatefulDataLoader."""

import functools
import itertools
import json
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from near_misses import VALUES, check_no_batch, check_refusals, check_values
from torch.utils.data import DataLoader
from torch_ids import gold, ids
from torchdata.stateful_dataloader import StatefulDataLoader

import yogadl
from yogadl.adapters import torch as adapter
from yogadl.errors import ConfigurationError, CursorError

# torchdata 0.11 calls what torch 2.13 no longer wants called.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")

RECORDS = 101
REF = yogadl.from_source({"id": np.arange(RECORDS)}, fingerprint="numbers")


def stream_of(**options):
    return REF.stream(shuffle=True, shuffle_seed=3, **options)


def by_records(stream, size, drop_last=False):
    return {"sampler": adapter.Sampler(stream), "batch_size": size, "drop_last": drop_last}


def by_batches(stream, size, drop_last=False):
    return {"batch_sampler": adapter.BatchSampler(stream, size, drop_last)}


@pytest.mark.parametrize("order", [by_records, by_batches])
@pytest.mark.parametrize("workers", [0, 2])
def test_each_iteration_of_a_dataloader_reads_the_next_epoch(order, workers):
    stream = stream_of()
    loader = DataLoader(adapter.Dataset(REF), num_workers=workers, **order(stream, 8))
    assert len(loader) == 13
    assert [ids(loader) for _ in range(3)] == [gold(stream, epoch) for epoch in range(3)]


def test_a_sampler_yields_its_shard_alone():
    found = [list(adapter.Sampler(stream_of(shard_rank=rank, num_shards=3))) for rank in range(3)]
    assert sorted(itertools.chain(*found)) == list(range(RECORDS))
    assert [len(one) for one in found] == [34, 34, 33]


def test_the_last_batch_can_be_left_out():
    sampler = adapter.BatchSampler(stream_of(), 10, drop_last=True)
    assert [len(batch) for batch in sampler] == [10] * 10
    assert len(sampler) == 10


def test_indices_are_plain_numbers():
    assert type(next(iter(adapter.Sampler(stream_of())))) is int
    assert type(next(iter(adapter.BatchSampler(stream_of(), 2)))[0]) is int


@given(st.integers(1, 40), st.integers(0, 120), st.integers(1, 40))
def test_a_sampler_goes_on_from_its_state_with_another_batch_size(size, taken, other):
    stream = stream_of()
    batches = iter(adapter.BatchSampler(stream, size))
    first = list(itertools.chain.from_iterable(itertools.islice(batches, taken)))
    resumed = adapter.BatchSampler(stream_of(), other)
    resumed.load_state_dict(batches.state_dict())
    rest = list(itertools.chain.from_iterable(resumed))
    assert first + rest == gold(stream, 0)


def test_a_finished_sampler_stands_at_the_next_epoch():
    sampler = adapter.Sampler(stream_of())
    list(sampler)
    assert (sampler.state_dict()["epoch"], sampler.state_dict()["position"]) == (1, 0)


def test_samplers_pickle_with_their_place():
    sampler = adapter.Sampler(stream_of())
    list(sampler)
    assert list(pickle.loads(pickle.dumps(sampler))) == gold(sampler.stream, 1)


def test_the_state_of_other_data_is_refused():
    other = yogadl.from_source({"id": np.arange(RECORDS)}, fingerprint="others").stream(shuffle=True)
    with pytest.raises(CursorError, match="fingerprint"):
        adapter.Sampler(stream_of()).load_state_dict(other.cursor(3))


OF_BATCHES = [(options, says) for options, says in VALUES if "batch_size" in options]


@pytest.mark.parametrize(
    ("make", "full", "names", "values"),
    [
        (adapter.Sampler, {}, [], []),
        (
            functools.partial(adapter.BatchSampler, batch_size=2),
            {"drop_last": True},
            [("drop_remainder", "drop_last=")],
            OF_BATCHES,
        ),
        (
            functools.partial(adapter.IterableDataset, batch_size=2),
            {"drop_remainder": True},
            [("drop_last", "drop_remainder=")],
            [
                *(one for one in VALUES if "skip_finished_epoch" not in one[0]),
                ({"batch_size": None, "drop_remainder": True}, "drop_remainder needs batch_size"),
                ({"transform": 3}, "transform must be a function, not 3"),
            ],
        ),
    ],
    ids=["Sampler", "BatchSampler", "IterableDataset"],
)
def test_what_makes_no_sense_is_refused(make, full, names, values):
    check_refusals(make, names)
    check_values(make, values)
    if full:
        check_no_batch(functools.partial(make, **full))


@pytest.mark.parametrize("make", [adapter.Sampler, lambda stream: adapter.BatchSampler(stream, 2)])
def test_a_sampler_of_a_stream_with_functions_is_refused(make):
    stream = REF.stream().map(str)
    with pytest.raises(ConfigurationError, match=r"map\(str\) would not be called"):
        make(stream)


# torchdata's StatefulDataLoader.


def stateful(order, workers, size=8, stream=None, drop_last=False, **options):
    made = order(stream or stream_of(), size, drop_last)
    return StatefulDataLoader(adapter.Dataset(REF), num_workers=workers, **made, **options)


@pytest.mark.parametrize("order", [by_records, by_batches])
@pytest.mark.parametrize(
    ("workers", "taken"),
    [(0, 0), (0, 1), (0, 5), (0, 12), (0, 13), (0, 14), (2, 0), (2, 5), (2, 13), (2, 14)],
)
def test_a_stateful_dataloader_goes_on_exactly(order, workers, taken):
    """Within an epoch a place is as good as another; after 13 batches the epoch is read, but not its end."""
    loader, stream = stateful(order, workers), stream_of()
    ids(loader)
    first = ids(itertools.islice(loader, taken))
    state = loader.state_dict()
    resumed = stateful(order, workers)
    resumed.load_state_dict(state)
    assert first + ids(resumed) + ids(resumed) == gold(stream, *range(1, 3 + taken // 14))
    cursor = adapter.cursor(state)
    wanted = stream.cursor(min(RECORDS, 8 * taken), epoch=1) if taken < 14 else stream.cursor(0, epoch=2)
    assert json.loads(json.dumps(cursor)) == wanted
    assert first + ids(stream_of(cursor=cursor).batch(7)) == gold(stream, *range(1, 2 + taken // 14))


@pytest.mark.parametrize("order", [by_records, by_batches])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_cursor_after_an_epoch_whose_rest_is_dropped_is_at_the_next(order, workers):
    loader = stateful(order, workers, drop_last=True)
    ids(loader)
    assert adapter.cursor(loader.state_dict()) == stream_of().cursor(0, epoch=1)
    iter(loader)
    assert adapter.cursor(loader.state_dict()) == stream_of().cursor(0, epoch=1)


def test_persistent_workers_go_on_exactly():
    loader = stateful(by_batches, 2, persistent_workers=True)
    ids(loader)
    batches = iter(loader)
    first = ids(next(batches) for _ in range(3))
    state = loader.state_dict()
    resumed = stateful(by_batches, 2, persistent_workers=True)
    resumed.load_state_dict(state)
    assert first + ids(resumed) == gold(stream_of(), 1)
    assert ids(resumed) == gold(stream_of(), 2)


def test_between_snapshots_there_is_no_cursor():
    loader = stateful(by_batches, 2, snapshot_every_n_steps=3)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    assert adapter.cursor(loader.state_dict())["position"] == 24
    next(batches)
    with pytest.raises(CursorError, match="snapshot_every_n_steps"):
        adapter.cursor(loader.state_dict())


def test_a_state_without_our_sampler_has_no_cursor():
    loader = StatefulDataLoader(adapter.Dataset(REF), batch_size=4)
    next(iter(loader))
    with pytest.raises(CursorError, match="no yogadl cursor"):
        adapter.cursor(loader.state_dict())


@settings(max_examples=15)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 30), st.integers(1, 4)), max_size=4),
    st.sampled_from([by_records, by_batches]),
)
def test_a_chain_of_stops_reads_each_record_once(stops, order):
    """Every stop changes the batch size and the number of ranks."""
    found, cursor = [], None
    for taken, size, ranks in stops:
        cursors = []
        for rank in range(ranks):
            stream = stream_of(shard_rank=rank, num_shards=ranks, cursor=cursor)
            loader = stateful(order, 0, size, stream)
            found += ids(itertools.islice(iter(loader), taken))
            cursors.append(within_epoch(adapter.cursor(loader.state_dict())))
        assert all(one == cursors[0] for one in cursors)
        cursor = cursors[0]
    found += ids(stateful(order, 0, 9, stream_of(cursor=cursor)))
    assert sorted(found) == list(range(RECORDS))


def within_epoch(cursor):
    """Some ranks come to the end of an epoch a batch before others, and know."""
    return cursor if not cursor["epoch"] else {**cursor, "epoch": 0, "position": RECORDS}


def test_a_sampler_of_sequences_gives_the_lanes_but_no_marks():
    plain = REF.stream(shuffle=yogadl.Sequences(4, "id", first=None))
    assert ids(DataLoader(adapter.Dataset(REF), **by_batches(plain, 4))) == plain.indices().tolist()
    with pytest.raises(ConfigurationError, match="its size must be 4, not 5"):
        adapter.BatchSampler(plain, 5)
    marked = REF.stream(shuffle=yogadl.Sequences(4, "id"))
    for make in (adapter.Sampler, lambda stream: adapter.BatchSampler(stream, 4)):
        with pytest.raises(ConfigurationError, match="marks first steps would be missing"):
            make(marked)


def test_the_state_survives_torch_save(tmp_path):
    loader = stateful(by_batches, 2)
    batches = iter(loader)
    first = ids(next(batches) for _ in range(4))
    torch.save(loader.state_dict(), tmp_path / "state")
    cursor = adapter.cursor(torch.load(tmp_path / "state", weights_only=True))
    assert first + ids(stream_of(cursor=cursor).batch(7)) == gold(stream_of(), 0)
