"""The sequences of Megatron-LM's files are found; an index that does not fit is refused."""

import struct

import numpy as np
import pytest
from foreign_files import CODES, WINDOWS, megatron_index, megatron_of, read, records_of, refusal
from inside import Megatron

from yogadl import Leaf


def sequences_of(count):
    return [np.arange(k * 7 % 23) for k in range(count)]


@pytest.mark.parametrize("dtype", CODES)
def test_sequences_come_back(dtype):
    for count in (0, 1, 2, 131):
        data, index = megatron_of(sequences_of(count), dtype)
        for window_bytes in WINDOWS:
            siblings = {"data.idx": index}
            kind, records = read(Megatron(), data, window_bytes, name="data.bin", siblings=siblings)
            assert kind.spec.tree == Leaf(dtype, (None,))
            assert [record.tolist() for record in records] == [one.tolist() for one in sequences_of(count)]


def test_the_modes_of_a_multimodal_dataset_are_no_part_of_the_records():
    data, index = megatron_of(sequences_of(3), modes=b"\0\1\0")
    assert len(records_of(Megatron(), data, name="data.bin", siblings={"data.idx": index})) == 3


GOOD = ([1, 2, 3], [0, 4, 12], [0, 3])


@pytest.mark.parametrize(
    ("index", "problem"),
    [
        (megatron_index(*GOOD, magic=b"TNTIDX\0\0\0"), "TNTIDX"),
        (megatron_index(*GOOD, magic=b"something"), "MMIDIDX"),
        (b"", "MMIDIDX"),
        (megatron_index(*GOOD, version=2), "version 2"),
        (megatron_index(*GOOD, code=9), "dtype 9"),
        (megatron_index(*GOOD)[:-1], "cut or damaged"),
        (megatron_index(*GOOD) + b"1", "cut or damaged"),
        (megatron_index([1, 2, 4], [0, 4, 12], [0]), "ends behind"),
        (megatron_index([1, 2, 3], [0, 4, 2**63 - 1], [0]), "ends behind"),
        (megatron_index([1, 2, 3], [-1, 4, 12], [0]), "ends behind"),
        (megatron_index([1, -2, 3], [0, 4, 12], [0]), "negative"),
        (megatron_index([1, 2, 3], [4, 0, 12], [0]), "another order"),
        (megatron_index([6] * 3, [0] * 3, [0]), "more bytes together"),
        (megatron_index([2**31 - 1], [0], [0]), "more than"),
        (megatron_index([1, 2], [0, 4], [0]), "the sequences end at 12, data.bin at 24"),
        (megatron_index([], [], [0]), "the sequences end at 0, data.bin at 24"),
        (b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, 2**63, 2**64 - 1), "cut or damaged"),
    ],
)
def test_what_is_refused(index, problem):
    assert problem in refusal(Megatron(), bytes(24), name="data.bin", siblings={"data.idx": index})


def test_the_order_is_checked_across_batches(monkeypatch):
    monkeypatch.setattr("yogadl._foreign.megatron._BATCH_RECORDS", 1)
    index = {"data.idx": megatron_index([1, 2, 3], [4, 0, 12], [0])}
    assert "another order" in refusal(Megatron(), bytes(24), name="data.bin", siblings=index)


def test_a_missing_index_is_named():
    assert "data.idx is missing" in refusal(Megatron(), bytes(24), name="data.bin")
