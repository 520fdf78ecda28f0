"""The loader chain of the package `loadax` runs over a `DataRef`, as over any list."""

import jax
import numpy as np
import pytest
from loadax import Batcher, DataloaderBuilder, InMemoryDataset, MappedDataset, ShuffledDataset

import yogadl

N = 53


@pytest.fixture(scope="module")
def ref(tmp_path_factory):
    storage = yogadl.open_storage(tmp_path_factory.mktemp("caches"))
    storage.submit({"id": np.arange(N, dtype=np.int32), "x": np.arange(3 * N).reshape(N, 3) / 2}, "d", "1")
    return storage.fetch("d", "1")


def stacked(records):
    return {name: np.stack([record[name] for record in records]) for name in records[0]}


def batches(dataset, size):
    loader = DataloaderBuilder(Batcher(stacked)).batch_size(size).workers(2).prefetch(3).build(dataset)
    return list(iter(loader))


def ids_of(found):
    return [int(index) for batch in found for index in batch["id"]]


def test_its_loader_reads_every_record_in_order(ref):
    found = batches(InMemoryDataset(ref), 8)
    assert [len(batch["id"]) for batch in found] == [8] * 6 + [5]
    assert ids_of(found) == list(range(N))
    np.testing.assert_array_equal(np.concatenate([batch["x"] for batch in found]), ref.gather(range(N))["x"])


def test_its_loader_reads_our_order_through_a_selection(ref):
    order = ref.stream(shuffle=True, shuffle_seed=4, shard_rank=1, num_shards=3).indices(epoch=2)
    assert ids_of(batches(InMemoryDataset(ref.select(order)), 8)) == order.tolist()


def test_its_shuffle_and_map_run_over_the_records(ref):
    shuffled = ShuffledDataset(InMemoryDataset(ref), jax.random.key(1))
    found = batches(MappedDataset(shuffled, lambda record: record | {"x": record["x"] * 2}), 8)
    assert sorted(ids_of(found)) == list(range(N)) != ids_of(found)
    assert all((batch["x"][:, 0] == 3 * batch["id"]).all() for batch in found)
