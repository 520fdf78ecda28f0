"""Streams as Grain's DataLoader: its operations, options and states over our order."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import grain
import numpy as np
import pytest
from failing import check_error, failing
from grain_stages import Double, Noise, OddOnly, Twice, golden, ids, numbered, sizes
from near_misses import check_refusals
from placed import PADDED, check_places, placed
from trees import JSON_VALUES, same_json

import yogadl
from yogadl.adapters import grain as yogadl_grain
from yogadl.errors import ConfigurationError

RECORDS = 103
REF = numbered(RECORDS)


def shuffled(**options):
    return REF.stream(shuffle=True, shuffle_seed=5, **options)


def by_hand(stream, epochs=1, **options):
    sampler = yogadl_grain.IndexSampler(stream, epochs)
    return grain.DataLoader(data_source=yogadl_grain.DataSource(REF), sampler=sampler, **options)


@pytest.mark.parametrize(
    "make",
    [
        lambda epochs: yogadl_grain.make_dataloader(shuffled(), epochs=epochs),
        lambda epochs: yogadl_grain.make_dataloader(shuffled(), batch_size=16, epochs=epochs),
        lambda epochs: by_hand(shuffled(), epochs),
    ],
    ids=["records", "batches", "by hand"],
)
def test_epochs_have_orders_of_their_own_and_may_have_no_end(make):
    assert isinstance(make(3), grain.DataLoader)
    assert ids(make(3)) == golden(shuffled(), 3)
    found, iterator = [], iter(make(None))
    while len(found) < 3 * RECORDS:
        found += ids([next(iterator)])
    assert found == golden(shuffled(), 3)


def test_each_iteration_begins_where_the_stream_does():
    loader = yogadl_grain.make_dataloader(shuffled(start_offset=40))
    assert ids(loader) == ids(loader) == golden(shuffled())[40:]


@pytest.mark.parametrize("threads", [(0, 0), (1, 1), (4, 16), (16, 500)])
def test_any_read_options_give_the_same(threads):
    options = grain.ReadOptions(*threads)
    for operations, size in (([grain.transforms.Batch(8)], None), ([], 8)):
        loader = yogadl_grain.make_dataloader(shuffled(), operations, batch_size=size, read_options=options)
        assert ids(loader) == golden(shuffled())


def test_operations_apply_to_each_record_and_batch_stacks_them():
    operations = [Double(), grain.transforms.Batch(10)]
    batches = list(yogadl_grain.make_dataloader(shuffled(), operations))
    assert sizes(batches) == [10] * 10 + [3]
    assert ids(batches) == golden(shuffled())
    np.testing.assert_array_equal(batches[3]["x"], 2 * REF.gather(golden(shuffled())[30:40])["x"])


def test_a_filter_leaves_out_records():
    found = ids(yogadl_grain.make_dataloader(shuffled(), [OddOnly(), grain.transforms.Batch(7)]))
    assert found == [number for number in golden(shuffled()) if number % 2]


def test_a_flat_map_makes_more_of_them():
    found = ids(yogadl_grain.make_dataloader(shuffled(), [Twice()]))
    assert found == [number for number in golden(shuffled()) for _ in range(2)]


def test_operations_apply_to_whole_batches():
    batches = list(yogadl_grain.make_dataloader(shuffled(), [Double()], batch_size=16, drop_remainder=True))
    assert sizes(batches) == [16] * 6
    np.testing.assert_array_equal(batches[0]["x"], 2 * REF.gather(golden(shuffled())[:16])["x"])


def test_whole_batches_belong_to_their_receiver():
    loader = yogadl_grain.make_dataloader(shuffled(), batch_size=16)
    for batch in loader:
        batch["x"][:] = -1
    assert next(iter(loader))["x"].min() >= 0


def test_a_changed_record_is_read_anew_when_it_comes_again():
    loader = yogadl_grain.make_dataloader(shuffled(), epochs=2)
    iterator = iter(loader)
    states = []
    for _ in range(60):
        states.append(iterator.get_state())
        next(iterator)["x"][:] = -1
    iterator.set_state(states[20])
    assert next(iterator)["x"].min() >= 0


def test_leaves_of_varying_length_are_lists_in_whole_batches():
    ref = yogadl.from_source([{"text": "x" * i, "row": np.arange(i)} for i in range(7)])
    stream = ref.stream(shuffle=True)
    for ours, core in zip(yogadl_grain.make_dataloader(stream, batch_size=3), stream.batch(3), strict=True):
        assert ours["text"] == core["text"]
        assert [row.tolist() for row in ours["row"]] == [row.tolist() for row in core["row"]]
    texts = [str(record["text"]) for record in yogadl_grain.make_dataloader(stream)]
    assert texts == ["x" * i for i in stream.indices().tolist()]


def test_random_maps_depend_on_seed_epoch_and_position_alone():
    def noise(stream, **options):
        return {int(e["id"]): e["noise"] for e in yogadl_grain.make_dataloader(stream, [Noise()], **options)}

    whole = noise(shuffled())
    assert len(set(whole.values())) == RECORDS
    shards = [noise(shuffled(shard_rank=rank, num_shards=3)) for rank in range(3)]
    assert {**shards[0], **shards[1], **shards[2]} == whole
    rest = noise(shuffled(start_offset=50))
    assert rest == {number: whole[number] for number in golden(shuffled())[50:]}
    other = noise(REF.stream(shuffle=True, shuffle_seed=6))
    assert not set(other.values()) & set(whole.values())
    both = [e["noise"] for e in yogadl_grain.make_dataloader(REF.stream(), [Noise()], epochs=2)]
    assert len(set(both)) == 2 * RECORDS


def test_shard_options_that_say_the_same_are_accepted():
    shards = grain.sharding.ShardOptions(1, 3, drop_remainder=True)
    stream = shuffled(shard_rank=1, num_shards=3, drop_shard_remainder=True)
    assert len(ids(yogadl_grain.make_dataloader(stream, shard_options=shards))) == RECORDS // 3
    for same in (grain.sharding.NoSharding(), grain.sharding.ShardByJaxProcess()):
        assert ids(yogadl_grain.make_dataloader(shuffled(), shard_options=same)) == golden(shuffled())


SHARDS = grain.sharding.ShardOptions
REFUSED = [
    ({}, {"shard_options": SHARDS(1, 3)}, "shard_rank=1, num_shards=3"),
    ({}, {"shard_options": SHARDS(0, 2)}, "shard 0 of 2, the stream is shard 0 of 1"),
    ({"num_shards": 2}, {"shard_options": SHARDS(0, 2, drop_remainder=True)}, "drop_shard_remainder=True"),
    ({}, {"drop_remainder": True}, "needs batch_size"),
]


@pytest.mark.parametrize(("of_stream", "options", "problem"), REFUSED)
def test_options_that_say_otherwise_than_the_stream_are_refused(of_stream, options, problem):
    with pytest.raises(ConfigurationError, match=problem):
        yogadl_grain.make_dataloader(shuffled(**of_stream), **options)


def test_samplers_and_sources_refuse_what_they_can_not_read():
    check_refusals(yogadl_grain.IndexSampler, [("num_epochs", "epochs=")])
    functions = REF.stream().map(str)
    with pytest.raises(ConfigurationError, match=r"map\(str\) would not be called"):
        yogadl_grain.IndexSampler(functions)
    with pytest.raises(ConfigurationError, match="a RecordStream has no random access"):
        yogadl_grain.DataSource(REF.stream())


def test_uneven_shards_may_not_drift_into_different_epochs():
    for make in (yogadl_grain.make_dataloader, yogadl_grain.IndexSampler):
        with pytest.raises(ConfigurationError, match="drift into different epochs"):
            make(shuffled(num_shards=2), epochs=2)


@pytest.mark.parametrize(
    ("operations", "count"),
    [([], 206), ([Noise(), grain.transforms.Batch(4)], 52), ([Twice()], 412), ([OddOnly()], 102)],
)
def test_a_state_goes_on_where_it_was_taken(operations, count):
    loader = yogadl_grain.make_dataloader(shuffled(), operations, epochs=2)
    iterator = iter(loader)
    for _ in range(15):
        next(iterator)
    state = iterator.get_state()
    rest = list(iterator)
    assert len(rest) == count - 15
    again = iter(yogadl_grain.make_dataloader(shuffled(), operations, epochs=2))
    again.set_state(state)
    for one, other in zip(rest, again, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


# Sampler and DataSource, for a DataLoader made by hand.


def test_the_sampler_says_index_record_and_generator():
    sampler = yogadl_grain.IndexSampler(shuffled(), epochs=2)
    assert len(sampler) == 2 * RECORDS
    metadata = sampler[RECORDS + 7]
    assert metadata.index == RECORDS + 7
    assert metadata.record_key == golden(shuffled(), 2)[RECORDS + 7]
    assert metadata.rng.random() == sampler[RECORDS + 7].rng.random() != sampler[RECORDS + 8].rng.random()


@pytest.mark.parametrize("index", [-1, RECORDS])
def test_the_sampler_has_no_more_than_its_epochs(index):
    with pytest.raises(IndexError):
        yogadl_grain.IndexSampler(shuffled())[index]


def test_the_sampler_and_make_dataloader_give_the_same():
    operations = [Noise(), grain.transforms.Batch(8)]
    for stream in (shuffled(), shuffled(shard_rank=1, num_shards=3)):
        ours = list(yogadl_grain.make_dataloader(stream, operations))
        for one, other in zip(ours, by_hand(stream, operations=operations), strict=True):
            np.testing.assert_array_equal(one["id"], other["id"])
            np.testing.assert_array_equal(one["noise"], other["noise"])


def test_grain_may_shard_a_stream_that_is_not():
    options = [grain.sharding.ShardOptions(rank, 3) for rank in range(3)]
    found = [ids(by_hand(shuffled(), shard_options=shards)) for shards in options]
    assert found == [golden(shuffled())[rank:102:3] for rank in range(3)]


def test_grain_may_not_shard_a_shard_again():
    loader = by_hand(shuffled(num_shards=2), shard_options=grain.sharding.NoSharding())
    with pytest.raises(ConfigurationError, match="the stream is shard 0"):
        list(loader)


def test_samplers_of_grain_read_our_source():
    sampler = grain.samplers.IndexSampler(
        RECORDS, grain.sharding.ShardOptions(0, 2), shuffle=True, num_epochs=1, seed=3
    )
    loader = grain.DataLoader(data_source=yogadl_grain.DataSource(REF), sampler=sampler)
    assert len(set(ids(loader))) == RECORDS // 2


def test_grains_load_reads_our_source():
    loader = grain.load(yogadl_grain.DataSource(REF), num_epochs=1, batch_size=10, transformations=[Double()])
    assert ids(loader) == list(range(RECORDS))


def test_the_source_is_one_of_grains():
    source = yogadl_grain.DataSource(REF)
    assert isinstance(source, grain.sources.RandomAccessDataSource)
    assert (len(source), int(source[5]["id"])) == (RECORDS, 5)
    assert ids(grain.MapDataset.source(source)) == list(range(RECORDS))


def test_names_in_checkpoints_are_the_same_in_another_process(tmp_path):
    storage = yogadl.open_storage(tmp_path)
    storage.submit({"id": np.arange(7)}, "seven", "1")
    ref = storage.fetch("seven", "1")
    for made in (yogadl_grain.DataSource(ref), yogadl_grain.IndexSampler(ref.stream())):
        name = repr(made)
        assert ref.fingerprint in name
        assert " at 0x" not in name
        assert repr(pickle.loads(pickle.dumps(made))) == name


def test_sources_and_samplers_serve_many_threads():
    sampler, source = yogadl_grain.IndexSampler(shuffled(), epochs=3), yogadl_grain.DataSource(REF)

    def read(index):
        return int(source[sampler[index].record_key]["id"])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(read, range(3 * RECORDS))) == golden(shuffled(), 3)


def test_records_are_read_with_their_places():
    stream = placed(1_003, **PADDED, start_offset=5)
    loader = yogadl_grain.make_dataloader(stream, epochs=2, padding_field="p")
    check_places(stream, list(loader), (0, 1), "p")


def test_a_function_that_fails_in_a_worker_is_an_error_after_the_batches_before_it():
    check_error(yogadl_grain.make_dataloader(failing(), batch_size=16, worker_count=2), 16)


@pytest.mark.parametrize("workers", [0, 1])
def test_json_values_are_lists_of_python_objects_in_batches(cached, workers):
    values = [JSON_VALUES[number % len(JSON_VALUES)] for number in range(23)]
    ref = cached({"tree": values}, json="tree")
    for size in (None, 10):
        loader = yogadl_grain.make_dataloader(ref.stream(), batch_size=size, worker_count=workers)
        items = [item["tree"] for item in loader]
        found = items if size is None else [value for batch in items for value in batch]
        assert found == values  # Grain's workers sort the keys of dicts
        assert workers or same_json(found, values)
