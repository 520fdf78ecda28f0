"""Records with values and counts around each size constant come through Grain as they were."""

import itertools

import grain
import numpy as np
import pytest
from sizes import SCALED, around, arrangements, constant, made_small, records_of, shuffled

from yogadl.adapters import grain as adapter

SMALLER = SCALED | {
    "adapters.grain._items._AHEAD_BYTES": 2**13,
    "adapters.grain._items._MOST_RECORDS_AHEAD": 40,
}


small = made_small(SMALLER)


def check_dataset(ref, records):
    """Fail unless Grain gives exactly these records: all of them, and every third."""
    stream, expected = shuffled(ref, records)
    dataset = adapter.map_dataset(stream)
    for some, wanted in ((dataset, expected), (dataset[1::3], expected[1::3])):
        found = [some[number] for number in range(len(wanted))]
        for item, record in zip(found, wanted, strict=True):
            for name, value in record.items():
                assert np.array_equal(item[name], value), name


@pytest.mark.parametrize("kind", ["bytes", "array"])
@pytest.mark.parametrize("name", ["_format.layout.HEAP_BLOCK_BYTES", "adapters.grain._items._AHEAD_BYTES"])
def test_values_of_sizes_around_a_constant_come_back(storage, name, kind):
    sizes = list(itertools.chain.from_iterable(arrangements(around(constant(name))).values()))
    records = records_of(kind, sizes)
    storage.submit(grain.MapDataset.source(records), "d", "1")
    check_dataset(storage.fetch("d", "1"), records)


@pytest.mark.parametrize(
    "name", ["adapters.grain._items._LEAST_RECORDS_AHEAD", "adapters.grain._items._MOST_RECORDS_AHEAD"]
)
def test_counts_around_a_constant_come_back(storage, name):
    for count in around(constant(name)):
        records = [{"number": number} for number in range(count)]
        storage.submit(records, "d", str(count))
        check_dataset(storage.fetch("d", str(count)), records)
