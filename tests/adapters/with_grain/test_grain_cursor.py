"""The cursor behind what Grain delivered: exact, in any other place, or refused."""

import json

import grain
import pytest
from grain_stages import NO_THREADS, Double, Noise, OddOnly, Twice, ids, numbered
from hypothesis import given
from hypothesis import strategies as st

from yogadl.adapters import grain as yogadl_grain
from yogadl.errors import CursorError

RECORDS = 53
REF = numbered(RECORDS)


def shuffled(**options):
    return REF.stream(shuffle=True, shuffle_seed=5, **options)


def advanced(iterable, count):
    iterator = iter(iterable)
    for _ in range(count):
        next(iterator)
    return iterator


def through_json(value):
    return json.loads(json.dumps(value))


def by_hand(stream, operations=(), **options):
    source, sampler = yogadl_grain.DataSource(REF), yogadl_grain.IndexSampler(stream)
    return grain.DataLoader(data_source=source, sampler=sampler, operations=operations, **options)


def make_loader(stream):
    return yogadl_grain.make_dataloader(stream, [Double(), Noise(), grain.transforms.Batch(4)])


def make_whole_batches(stream):
    return yogadl_grain.make_dataloader(stream, batch_size=4)


def make_by_hand(stream):
    return by_hand(stream, [grain.transforms.Batch(4)])


def make_dataset(stream):
    return yogadl_grain.map_dataset(stream, 4).map(Double()).to_iter_dataset(NO_THREADS).map(Double())


def make_batched_dataset(stream):
    return yogadl_grain.map_dataset(stream).seed(1).random_map(Noise()).batch(4).to_iter_dataset()


def make_batched_later(stream):
    return yogadl_grain.map_dataset(stream).to_iter_dataset().batch(4)


MAKERS = [
    make_loader,
    make_whole_batches,
    make_by_hand,
    make_dataset,
    make_batched_dataset,
    make_batched_later,
]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("count", [0, 1, 5, 13, 14])
def test_it_counts_what_was_delivered(make, count):
    cursor = yogadl_grain.cursor(advanced(make(shuffled()), count))
    assert cursor == through_json(cursor) == shuffled().cursor(min(RECORDS, 4 * count))


@given(
    ranks=st.integers(1, 4),
    steps=st.integers(0, 6),
    next_ranks=st.integers(1, 4),
    maker=st.sampled_from(MAKERS),
)
def test_it_resumes_on_any_number_of_shards(ranks, steps, next_ranks, maker):
    loaders = [maker(shuffled(shard_rank=rank, num_shards=ranks)) for rank in range(ranks)]
    steps = min(steps, len(list(loaders[-1])))
    iterators = [advanced(loader, steps) for loader in loaders]
    cursors = [yogadl_grain.cursor(iterator) for iterator in iterators]
    assert cursors == cursors[:1] * ranks
    rest = [
        number
        for rank in range(next_ranks)
        for number in ids(make_loader(shuffled(shard_rank=rank, num_shards=next_ranks, cursor=cursors[0])))
    ]
    assert sorted(rest) == sorted(shuffled(cursor=cursors[0]).indices().tolist())
    assert len(rest) == max(0, RECORDS - 4 * steps * ranks)


def test_a_state_is_as_good_as_the_iterator():
    iterator = advanced(make_loader(shuffled(num_shards=2)), 3)
    state = iterator.get_state()
    for form in (state, state.decode(), json.loads(state)):
        assert yogadl_grain.cursor(form) == yogadl_grain.cursor(iterator)


def test_an_iterator_that_was_set_to_a_state_has_its_cursor():
    for make in MAKERS:
        state = advanced(make(shuffled()), 5).get_state()
        iterator = iter(make(shuffled()))
        iterator.set_state(state)
        assert yogadl_grain.cursor(iterator) == shuffled().cursor(20)


def test_it_is_counted_from_where_the_stream_starts():
    first = yogadl_grain.cursor(advanced(make_loader(shuffled(num_shards=2)), 3))
    for make in MAKERS:
        second = yogadl_grain.cursor(advanced(make(shuffled(cursor=first)), 2))
        assert (second["epoch"], second["position"]) == (0, 24 + 8)


@pytest.mark.parametrize("make", [
    lambda stream: yogadl_grain.make_dataloader(stream, [grain.transforms.Batch(4)], epochs=3),
    lambda stream: yogadl_grain.make_dataloader(stream, [grain.transforms.Batch(4)], epochs=None),
    lambda stream: yogadl_grain.map_dataset(stream).repeat().batch(4).to_iter_dataset(NO_THREADS),
])  # fmt: skip
def test_batches_across_epochs_count_records(make):
    cursor = yogadl_grain.cursor(advanced(make(shuffled()), 15))
    assert (cursor["epoch"], cursor["position"]) == (1, 60 - RECORDS)


@pytest.mark.parametrize("make", [
    lambda stream: yogadl_grain.make_dataloader(stream, batch_size=4, epochs=None),
    lambda stream: yogadl_grain.map_dataset(stream, 4).repeat(3).to_iter_dataset(NO_THREADS),
    lambda stream: yogadl_grain.map_dataset(stream).batch(4).repeat().to_iter_dataset(NO_THREADS),
])  # fmt: skip
def test_batches_within_epochs_end_with_them(make):
    cursor = yogadl_grain.cursor(advanced(make(shuffled()), 15))
    assert (cursor["epoch"], cursor["position"]) == (1, 4)
    cursor = yogadl_grain.cursor(advanced(make(shuffled()), 14))
    assert (cursor["epoch"], cursor["position"]) == (0, RECORDS)


FILTERED = [
    lambda stream: yogadl_grain.make_dataloader(stream, [OddOnly(), grain.transforms.Batch(4)]),
    lambda stream: by_hand(stream, [OddOnly(), grain.transforms.Batch(4)]),
    lambda stream: yogadl_grain.map_dataset(stream).filter(OddOnly()).to_iter_dataset(NO_THREADS).batch(4),
    lambda stream: yogadl_grain.map_dataset(stream).to_iter_dataset(NO_THREADS).filter(OddOnly()).batch(4),
]


@pytest.mark.parametrize("make", FILTERED)
def test_behind_a_filter_it_is_exact_for_one_reader(make):
    iterator = iter(make(shuffled()))
    found = ids([next(iterator), next(iterator)])
    found += ids(make(shuffled(cursor=yogadl_grain.cursor(iterator))))
    assert found == [number for number in shuffled().indices() if number % 2]


@pytest.mark.parametrize("make", FILTERED)
def test_behind_a_filter_it_is_refused_for_several(make):
    with pytest.raises(CursorError, match="out of step"):
        yogadl_grain.cursor(advanced(make(shuffled(num_shards=2)), 1))


REFUSED = {
    "FlatMap": lambda stream: yogadl_grain.make_dataloader(stream, [Twice()]),
    "_FlatMapDatasetIterator": lambda stream: (
        yogadl_grain.map_dataset(stream).to_iter_dataset().apply(Twice())
    ),
    "FlatMapMapDataset": lambda stream: yogadl_grain.map_dataset(stream).apply(Twice()).to_iter_dataset(),
    "ShuffleMapDataset": lambda stream: yogadl_grain.map_dataset(stream).shuffle(1).to_iter_dataset(),
    "SliceMapDataset": lambda stream: yogadl_grain.map_dataset(stream)[::2].to_iter_dataset(),
    "RepeatMapDataset": lambda s: (
        yogadl_grain.map_dataset(s).repeat(2, reseed_each_epoch=False).to_iter_dataset()
    ),
    "MixedMapDataset": lambda s: grain.MapDataset.mix([yogadl_grain.map_dataset(s)] * 2).to_iter_dataset(),
    "RangeMapDataset": lambda _: grain.MapDataset.range(9).to_iter_dataset(),
    "IndexSampler": lambda _: grain.load(yogadl_grain.DataSource(REF)),
    "shard 1 of 3": lambda stream: by_hand(stream, shard_options=grain.sharding.ShardOptions(1, 3)),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_may_be_no_prefix_is_refused(reason):
    iterator = advanced(REFUSED[reason](shuffled()), 3)
    with pytest.raises(CursorError, match=reason):
        yogadl_grain.cursor(iterator)


def test_states_that_say_too_little_are_refused():
    with pytest.raises(CursorError, match="pass the iterator itself"):
        yogadl_grain.cursor(advanced(make_by_hand(shuffled()), 3).get_state())
    with pytest.raises(CursorError, match="pass the iterator itself"):
        yogadl_grain.cursor(advanced(make_dataset(shuffled()), 3).get_state())


def hold_back(records):
    """An operation of one's own, which takes a record more than it gives."""
    held = None
    for record in records:
        if held is not None:
            yield held
        held = record


def test_behind_an_operation_of_ones_own_it_is_refused():
    for loader in (yogadl_grain.make_dataloader(shuffled(), [hold_back]), by_hand(shuffled(), [hold_back])):
        with pytest.raises(CursorError, match="may keep records"):
            yogadl_grain.cursor(advanced(loader, 3))


@pytest.mark.parametrize("state", [b"no JSON", "[]", 7, None, {}, {"sampler": "yogadl.ItemSampler({})"}])
def test_what_is_no_state_is_refused(state):
    with pytest.raises(CursorError):
        yogadl_grain.cursor(state)


@pytest.mark.parametrize(("name", "value"), [
    ("worker_count", None), ("last_seen_indices", {}), ("last_seen_indices", {"0": "x"}),
    ("last_seen_indices", {"0": 4}), ("sampler", "yogadl.ItemSampler({"), ("sampler", None),
])  # fmt: skip
def test_a_damaged_state_is_refused(name, value):
    state = json.loads(advanced(make_loader(shuffled(num_shards=2)), 3).get_state())
    state[name] = {"0": 3} if value == {"0": 4} else value  # shard 0 of 2 reads even places only
    with pytest.raises(CursorError):
        yogadl_grain.cursor(state)
