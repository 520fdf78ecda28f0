"""Tensors with values and counts around each size constant come back, with and without worker processes."""

import itertools

import numpy as np
import pytest
import torch
from inside import open_source
from sizes import (
    SCALED,
    around,
    arrangements,
    check_reads,
    constant,
    made_small,
    records_of,
    shuffled,
    value,
)

from yogadl.adapters import torch as adapter

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

SMALLER = SCALED | {
    "adapters.torch._iterable._READ_BYTES": 2**13,
    "adapters.torch._iterable._READ_RECORDS": 30,
    "adapters.torch._source._MOST_BYTES": 2**14,
    "adapters.torch._source._MOST_RECORDS": 70,
    "_stream.workers._CHUNK_BYTES": 2**13,
}
OF_VALUES = [
    "adapters.torch._iterable._READ_BYTES",
    "adapters.torch._source._MOST_BYTES",
    "_stream.worker._PAGES",
    "_stream.worker._SMALL_BYTES",
    "_stream.workers._CHUNK_BYTES",
]
OF_RECORDS = ["adapters.torch._iterable._READ_RECORDS", "adapters.torch._source._MOST_RECORDS"]


small = made_small(SMALLER)


def plain(column):
    return column.numpy() if isinstance(column, torch.Tensor) else column


def check_batches(ref, records, workers):
    """Fail unless loader and dataset give exactly these records, read by forked workers or none."""
    stream, expected = shuffled(ref, records)
    options = {"multiprocessing_context": "fork"} if workers else {}  # with the constants as they are here
    loader = adapter.make_dataloader(stream, 3, num_workers=workers, **options)
    first = 0
    for batch in loader:
        for name, column in batch.items():
            wanted = [record[name] for record in expected[first : first + 3]]
            assert all(np.array_equal(plain(x), y) for x, y in zip(column, wanted, strict=True)), name
        first += len(batch["number"])
    assert first == len(expected)
    dataset = adapter.IterableDataset(ref.stream(shuffle=True, shuffle_seed=1))
    found = list(torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=workers, **options))
    for item, record in zip(found, expected, strict=True):
        for name, wanted in record.items():
            assert np.array_equal(plain(item[name]), wanted), name


@pytest.mark.parametrize(("kind", "workers"), [("bytes", 0), ("array", 2)])
@pytest.mark.parametrize("name", OF_VALUES)
def test_values_of_sizes_around_a_constant_come_back(storage, name, kind, workers):
    sizes = list(itertools.chain.from_iterable(arrangements(around(constant(name))).values()))
    records = records_of(kind, sizes)
    storage.submit(records, "d", "1")
    check_batches(storage.fetch("d", "1"), records, workers)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", OF_VALUES)
def test_tensors_of_sizes_around_a_constant_come_back(storage, name, workers):
    limit = constant(name)
    records = [
        {str(size): value("fixed", size, seed) for size in around(limit)} | {"number": seed}
        for seed in range(17)
    ]
    columns = {name: torch.from_numpy(np.stack([r[name] for r in records])) for name in records[0]}
    whole = torch.utils.data.StackDataset(**columns)
    order = np.random.default_rng(1).permutation(17).tolist()
    for number, (source, wanted) in enumerate(
        [(whole, records), (torch.utils.data.Subset(whole, order), [records[i] for i in order])]
    ):
        assert open_source(source).has_final_spec
        storage.submit(source, "d", str(number))
        ref = storage.fetch("d", str(number))
        check_reads(ref, wanted)
        check_batches(ref, wanted, workers)


@pytest.mark.parametrize("name", OF_RECORDS)
def test_counts_around_a_constant_come_back(storage, name):
    for count in around(constant(name)):
        numbers = torch.arange(count)
        order = np.random.default_rng(1).permutation(count)
        dataset = torch.utils.data.Subset(torch.utils.data.TensorDataset(numbers), order.tolist())
        storage.submit(dataset, "d", str(count))
        ref = storage.fetch("d", str(count))
        assert np.array_equal(ref.gather(range(count))[0], order)
        found = [int(item[0]) for item in adapter.IterableDataset(ref.stream())]
        assert found == order.tolist()
        loader = adapter.make_dataloader(ref.stream(), 7)
        assert torch.cat([batch[0] for batch in loader]).tolist() == order.tolist()
