"""Streams as Grain's MapDataset: its transformations over our order, with epochs that we know of."""

import grain
import numpy as np
import pytest
from grain_stages import NO_THREADS, Double, Noise, OddOnly, Twice, golden, ids, numbered

import yogadl
from yogadl.adapters import grain as yogadl_grain
from yogadl.errors import ConfigurationError

RECORDS = 103
REF = numbered(RECORDS)


def shuffled(**options):
    return REF.stream(shuffle=True, shuffle_seed=5, **options)


def test_records_come_in_the_order_of_the_stream():
    dataset = yogadl_grain.map_dataset(shuffled())
    assert isinstance(dataset, grain.MapDataset)
    assert len(dataset) == RECORDS
    assert ids(dataset) == golden(shuffled())
    assert int(dataset[40]["id"]) == golden(shuffled())[40]
    assert int(dataset[RECORDS + 5]["id"]) == shuffled().indices(1)[5]  # as of Grain's own shuffles


@pytest.mark.parametrize("size", [None, 16])
def test_each_repetition_is_the_next_epoch(size):
    assert ids(yogadl_grain.map_dataset(shuffled(), size).repeat(3)) == golden(shuffled(), 3)
    assert ids(yogadl_grain.map_dataset(shuffled(), size, epochs=3)) == golden(shuffled(), 3)
    endless = (
        yogadl_grain.map_dataset(shuffled(), size, epochs=None),
        yogadl_grain.map_dataset(shuffled(), size).repeat(),
    )
    for dataset in endless:
        iterator = iter(dataset.to_iter_dataset(NO_THREADS))
        assert ids(next(iterator) for _ in range(21 if size else 3 * RECORDS)) == golden(shuffled(), 3)


def test_a_stream_that_starts_within_an_epoch_gives_its_rest_first():
    stream = shuffled(start_offset=60)
    wanted = golden(shuffled())[60:] + [int(i) for i in shuffled().indices(1)]
    assert ids(yogadl_grain.map_dataset(stream)) == wanted[: RECORDS - 60]
    assert ids(yogadl_grain.map_dataset(stream, 16, epochs=2)) == wanted
    iterator = iter(yogadl_grain.map_dataset(stream).repeat().to_iter_dataset(NO_THREADS))
    assert ids(next(iterator) for _ in wanted) == wanted


@pytest.mark.parametrize("threads", [(0, 0), (4, 16), (16, 500)])
def test_grains_transformations_apply(threads):
    dataset = yogadl_grain.map_dataset(shuffled()).seed(3).map(Double()).random_map(Noise())
    dataset = dataset.map_with_index(lambda index, record: {**record, "index": index}).batch(10)
    batches = list(dataset.to_iter_dataset(grain.ReadOptions(*threads)))
    assert ids(batches) == golden(shuffled())
    assert np.concatenate([batch["index"] for batch in batches]).tolist() == list(range(RECORDS))
    np.testing.assert_array_equal(batches[3]["x"], 2 * REF.gather(golden(shuffled())[30:40])["x"])


def test_filters_flat_maps_and_slices_apply():
    dataset = yogadl_grain.map_dataset(shuffled())
    odd = [number for number in golden(shuffled()) if number % 2]
    assert ids(dataset.filter(OddOnly())) == odd
    assert ids(dataset.to_iter_dataset(NO_THREADS).filter(OddOnly()).batch(5)) == odd
    assert ids(dataset.apply(Twice())) == [number for number in golden(shuffled()) for _ in range(2)]
    assert ids(dataset[10:90:2]) == golden(shuffled())[10:90:2]
    assert ids(dataset.shuffle(seed=1)) != golden(shuffled())
    assert sorted(ids(dataset.shuffle(seed=1))) == list(range(RECORDS))


def test_datasets_are_mixed_and_concatenated():
    small, large = yogadl_grain.map_dataset(numbered(3).stream()), yogadl_grain.map_dataset(shuffled())
    first, second, third = golden(shuffled())[:3]
    assert ids(grain.MapDataset.mix([small, large])) == [0, first, 1, second, 2, third]
    assert ids(grain.MapDataset.concatenate([small, large])) == [0, 1, 2, *golden(shuffled())]


def test_an_elastic_iterator_reads_it():
    dataset = yogadl_grain.map_dataset(shuffled())
    elastic = grain.experimental.ElasticIterator(dataset, 10, grain.sharding.NoSharding())
    assert ids(iter(elastic)) == golden(shuffled())[:100]


def test_it_reads_without_threads_unless_told():
    assert yogadl_grain.map_dataset(shuffled()).to_iter_dataset()._read_options == NO_THREADS


def test_uneven_shards_may_not_drift_into_different_epochs():
    stream = shuffled(num_shards=2)
    with pytest.raises(ConfigurationError, match="drift"):
        yogadl_grain.map_dataset(stream, epochs=2)
    repeated = iter(yogadl_grain.map_dataset(stream).repeat(2).to_iter_dataset(NO_THREADS))
    assert ids(next(repeated) for _ in range(52)) == golden(stream)
    with pytest.raises(ConfigurationError, match="drift"):
        next(repeated)


@pytest.mark.parametrize("options", [{}, {"start_offset": 40}, {"shard_rank": 1, "num_shards": 3}], ids=str)
@pytest.mark.parametrize("size", [None, 16])
def test_a_negative_index_counts_from_the_end_as_in_grains_own(size, options):
    dataset = yogadl_grain.map_dataset(shuffled(**options), size)
    grains = grain.MapDataset.source(list(dataset))
    count = len(dataset)
    for index in (-1, -2, -count, -count - 1, -3 * count, np.int64(-1)):
        assert ids([dataset[index]]) == ids([grains[index]])
    assert ids(dataset[-3:]) == ids(grains[-3:])
    assert ids([dataset.map(Double())[-1]]) == ids([grains[-1]])
    assert ids([dataset.repeat(1)[-1]]) == ids([grains[-1]])
    if size is None:
        assert ids([dataset.batch(10)[-1]]) == ids([grains.batch(10)[-1]])


def test_what_has_no_such_element_is_an_error():
    with pytest.raises(IndexError, match="without end has no element -1"):
        yogadl_grain.map_dataset(shuffled(), epochs=None)[-1]
    with pytest.raises(IndexError):
        yogadl_grain.map_dataset(REF[:0].stream())[-1]
    with pytest.raises(TypeError, match="integer"):
        yogadl_grain.map_dataset(shuffled())[1.5]


def test_grain_is_told_what_the_elements_are_without_reading():
    records = [
        {"image": np.zeros((4, n), np.uint8), "name": "a", "pair": (n, np.float32(n))} for n in (1, 2, 3)
    ]
    stream = yogadl.from_source(records).stream()
    make = yogadl_grain.map_dataset

    def spec_of(dataset):
        found = grain.experimental.get_element_spec(dataset)
        leaves = [found["image"], found["name"], *found["pair"]]
        return [(leaf.shape, np.dtype(leaf.dtype).name) for leaf in leaves]

    one = [((4, None), "uint8"), ((), "object"), ((), "int64"), ((), "float32")]
    assert spec_of(make(stream)) == one
    assert spec_of(make(stream).shuffle(seed=1).to_iter_dataset()) == one
    many = [((2,), "object"), ((2,), "object"), ((2,), "int64"), ((2,), "float32")]
    assert spec_of(make(stream, 2, drop_remainder=True)) == many
    assert [shape[0] for shape, _ in spec_of(make(stream, 2))] == [None] * 4
    padded = yogadl.from_source(np.zeros((3, 2))).stream()
    assert grain.experimental.get_element_spec(make(padded)).shape == (2,)
    batched = make(yogadl.from_source({"x": np.zeros((3, 2))}).stream(), padding_field="p").batch(2)
    found = grain.experimental.get_element_spec(batched)
    assert (found["x"].shape, found["p"].shape, found["p"].dtype) == ((None, 2), (None,), np.dtype(bool))
