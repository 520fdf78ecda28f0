"""A source may fill the same array, list or object again and again: each record is as it was when it came."""

import functools
from typing import NamedTuple

import numpy as np
import pytest
from inside import CHUNK_BYTES, CHUNK_RECORDS

import yogadl

COUNTS = 1, 2, 17, 18, 64, 65, CHUNK_RECORDS + 300, 3 * CHUNK_RECORDS


class Point(NamedTuple):
    x: np.ndarray
    y: list


class Reused:
    """One array, one list, one buffer, and one json value, filled anew for each record."""

    def __init__(self, values=4):
        self.row = np.zeros(values, np.int64)
        self.numbers = [0, 0]
        self.raw = bytearray(2)
        self.tree = [{"number": 0}]

    def record(self, number):
        self.row[:] = number
        self.numbers[0] = number
        self.raw[0] = number % 256
        self.tree[0]["number"] = number
        return {
            "row": self.row,
            "of varying length": self.row[: number % 3],
            "scalar": self.row[:1].reshape(()),
            "masked": np.ma.masked_array(self.row[:2], [False, False]).view(np.ndarray),
            "raw": self.raw,
            "view": memoryview(self.raw),
            "tree": self.tree,
            "point": Point(self.row[1:3], self.numbers),
            "pair": (self.numbers, {"a": self.row[::-1]}),
        }


def records(count):
    source = Reused()
    for number in range(count):
        yield source.record(number)


class Items(Reused):
    """The same, by position."""

    def __len__(self):
        return COUNTS[-2]

    def __getitem__(self, index):
        return self.record(index)


class ManyItems(Items):
    """The same, many at a time: in arrays that the next call fills."""

    def __getitems__(self, indices):
        rows = np.repeat(np.asarray(indices)[:, None], 4, axis=1)
        self.rows = getattr(self, "rows", np.zeros((2_000, 4), np.int64))
        self.rows[: len(rows)] = rows
        return [{"row": row} for row in self.rows[: len(rows)]]


def assert_each_is_its_own(ref, count):
    assert len(ref) == count
    for number, record in enumerate(ref):
        byte = number % 256
        assert record["row"].tolist() == [number] * 4
        assert record["of varying length"].tolist() == [number] * (number % 3)
        assert record["scalar"] == number
        assert record["masked"].tolist() == [number] * 2
        assert record["raw"] == record["view"] == bytes([byte, 0])
        assert record["tree"] == [{"number": number}]
        assert record["point"].x.tolist() == [number] * 2
        assert record["point"].y.tolist() == record["pair"][0].tolist() == [number, 0]
        assert record["pair"][1]["a"].tolist() == [number] * 4


@pytest.mark.parametrize("count", COUNTS)
def test_a_generator_may(built, count):
    assert_each_is_its_own(built(functools.partial(records, count)), count)


def test_what_is_read_by_position_may(built):
    assert_each_is_its_own(built(Items()), COUNTS[-2])
    assert_each_is_its_own(yogadl.from_source(Items()), COUNTS[-2])
    batch = yogadl.from_source(Items()).gather([7, 5, 900])
    assert batch["row"][:, 0].tolist() == [7, 5, 900]
    for ref in built(ManyItems()), yogadl.from_source(ManyItems()):
        assert ref.gather(range(len(ref)))["row"][:, 0].tolist() == list(range(len(ref)))


def test_partitions_and_appended_records_may(storage):
    data = yogadl.partitioned([functools.partial(records, 300), functools.partial(records, 20)])
    storage.submit(data, "d", "1")
    storage.append(functools.partial(records, 100), "d", "2", base_version="1")
    ref = storage.fetch("d", "2")
    assert ref.gather(range(420))["scalar"].tolist() == [*range(300), *range(20), *range(100)]


@pytest.mark.parametrize("values", [CHUNK_BYTES // 8 - 1, CHUNK_BYTES // 8 + 1, CHUNK_BYTES // 32])
def test_large_values_may(built, values):
    def large():
        row = np.zeros(values, np.int64)
        for number in range(9):
            row[:] = number
            yield {"row": row}

    assert [record["row"][[0, -1]].tolist() for record in built(large)] == [[n, n] for n in range(9)]


def test_objects_may(built):
    def objects():
        value, other = {0}, np.zeros(2)
        for number in range(300):
            value.add(number)
            other[:] = number
            yield {"o": value, "x": other}

    for number, record in zip(
        range(300), built(objects, records=yogadl.RecordOptions(allow_pickle=True)), strict=True
    ):
        assert record["o"] == set(range(number + 1))
        assert record["x"].tolist() == [number, number]
