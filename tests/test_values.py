"""Values of records: what comes back is what was given, whichever way it is stored; what decides, and what is refused."""

import functools
import itertools
import pickle
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from inside import CHUNK_BYTES, set_constants
from record_cases import FURTHER, Case, all_cases, are_same, cases_of_the_page, plain, said_of, said_of_batch

import yogadl
from yogadl.errors import ConfigurationError, UnsupportedDataError

RECORDS = 7
CASES = all_cases()
NAMES = [case.name for case in CASES]


def taken(values: list[Any], count: int = RECORDS) -> list[Any]:
    """Return so many of the values, which begin anew when they end."""
    return list(itertools.islice(itertools.cycle(values), count))


class Costly:
    """Records with random access."""

    def __init__(self, records):
        self.records = records

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        return self.records[index]


def by_tasks(storage, records, numbers, **options):
    build = storage.begin("d", "1", partitions=3, run="r", **options)
    for number in numbers:
        pickle.loads(pickle.dumps(build)).write(number, records[3 * number : 3 * number + 3])
    build.commit()
    return storage.fetch("d", "1")


def of_parts(records, parts=2):
    size = -(-len(records) // parts)
    return yogadl.partitioned([functools.partial(_part, records, size, number) for number in range(parts)])


def _part(records, size, number):
    return iter(records[number * size : (number + 1) * size])


WAYS: dict[str, Callable[..., Any]] = {
    "list": lambda storage, records, **options: storage.submit(records, "d", "1", **options),
    "generator": lambda storage, records, **options: storage.submit(lambda: iter(records), "d", "1", **options),
    "random access": lambda storage, records, **options: storage.submit(Costly(records), "d", "1", **options),
    "partitions": lambda storage, records, **options: storage.submit(of_parts(records), "d", "1", **options),
    "tasks": functools.partial(by_tasks, numbers=(0, 1, 2)),
    "tasks in another order": functools.partial(by_tasks, numbers=(1, 2, 0)),
    "without a cache": lambda storage, records, **options: yogadl.from_source(records, **options),
    "cached": lambda storage, records, **options: storage.cached(records, "d", **options),
    "small parts": lambda storage, records, **options: storage.submit(records, "d", "1", part_bytes=1, **options),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_what_comes_back_is_what_was_given(storage, case, way):
    if way == "random access" and case.name == "integers beside floats":
        pytest.skip("only the first record of such an object decides what a number is")
    ref = WAYS[way](storage, taken(case.records), **case.options)
    found = [plain(record) for record in ref]
    assert are_same_records(found, taken(case.expected)), found


def are_same_records(found, expected):
    """Return whether records are the same; a namedtuple comes back with its names, but of another class."""
    if hasattr(expected[0], "_fields"):
        assert all(one._fields == other._fields for one, other in zip(found, expected, strict=True))
    return are_same([tuple_of(one) for one in found], [tuple_of(one) for one in expected])


def tuple_of(record):
    return tuple(record) if isinstance(record, tuple) else record


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_batches_have_what_records_have(storage, case):
    records = taken(case.records)
    for ref in (storage.submit(records, "d", "1", **case.options), yogadl.from_source(records, **case.options)):
        (batch,) = ref.stream().batch(RECORDS)
        for number, record in enumerate(ref):
            assert repr(plain(row_of(ref.spec.tree, batch, number))) == repr(plain(record))


def row_of(node, batch, number):
    """Return a row of a batch: of the column at each leaf."""
    if isinstance(node, yogadl.Leaf):
        return batch[number]
    if isinstance(batch, dict):
        return {key: row_of(child, batch[key], number) for key, child in zip(node.keys, node.children, strict=True)}
    rows = [row_of(child, column, number) for child, column in zip(node.children, batch, strict=True)]
    return type(batch)(*rows) if hasattr(batch, "_fields") else type(batch)(rows)


@pytest.mark.parametrize("case", [case for case in CASES if case.stored], ids=lambda case: case.name)
def test_what_is_stored_is_what_the_page_says(storage, case):
    records = taken(case.records, max(2, len(case.records)))
    for ref in (
        storage.submit(lambda: iter(records), "d", "1", **case.options),
        yogadl.from_source(records, **case.options),
    ):
        assert said_of(ref.spec) == case.stored
        if case.batch:
            assert said_of_batch(ref.gather([0, 1])) == case.batch
