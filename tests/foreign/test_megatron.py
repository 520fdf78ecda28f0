"""The sequences of Megatron-LM's files are found; an index that does not fit is refused."""

import struct

import numpy as np
import pytest
from indexed_files import WINDOWS, fuzz, reader_of, records_of, refusal
from inside import Megatron

from yogadl import Leaf

CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float64": 6, "float32": 7, "uint16": 8}


def index_of(lengths, pointers, documents, *, code=4, magic=b"MMIDIDX\0\0", version=1, modes=b""):
    return b"".join((
        magic, struct.pack("<QBQQ", version, code, len(lengths), len(documents)),
        np.array(lengths, "<i4").tobytes(), np.array(pointers, "<i8").tobytes(),
        np.array(documents, "<i8").tobytes(), modes,
    ))  # fmt: skip


def written(sequences, dtype="int32", **options):
    arrays = [np.asarray(sequence, dtype) for sequence in sequences]
    pointers = np.cumsum([0, *(array.nbytes for array in arrays)])[:-1]
    index = index_of(
        [len(array) for array in arrays], pointers, range(len(arrays) + 1), code=CODES[dtype], **options
    )
    return b"".join(array.tobytes() for array in arrays), {"data.idx": index}


def sequences_of(count):
    return [np.arange(k * 7 % 23) for k in range(count)]


@pytest.mark.parametrize("window_bytes", WINDOWS)
@pytest.mark.parametrize("count", [0, 1, 2, 131])
@pytest.mark.parametrize("dtype", CODES)
def test_sequences_come_back(dtype, count, window_bytes):
    data, siblings = written(sequences_of(count), dtype)
    kind, records = records_of(
        Megatron(), data, name="data.bin", siblings=siblings, window_bytes=window_bytes
    )
    assert kind.spec.tree == Leaf(dtype, (None,))
    assert [record.tolist() for record in records] == [one.tolist() for one in sequences_of(count)]


def test_several_batches_of_the_index(monkeypatch):
    monkeypatch.setattr("yogadl._foreign.megatron._BATCH_RECORDS", 5)
    data, siblings = written(sequences_of(23))
    records = records_of(Megatron(), data, name="data.bin", siblings=siblings)[1]
    assert [record.tolist() for record in records] == [one.tolist() for one in sequences_of(23)]


def test_the_modes_of_a_multimodal_dataset_are_no_part_of_the_records():
    data, siblings = written(sequences_of(3), modes=b"\0\1\0")
    assert len(records_of(Megatron(), data, name="data.bin", siblings=siblings)[1]) == 3


GOOD = ([1, 2, 3], [0, 4, 12], [0, 3])


@pytest.mark.parametrize(
    ("index", "problem"),
    [
        (index_of(*GOOD, magic=b"TNTIDX\0\0\0"), "TNTIDX"),
        (index_of(*GOOD, magic=b"something"), "MMIDIDX"),
        (b"", "MMIDIDX"),
        (index_of(*GOOD, version=2), "version 2"),
        (index_of(*GOOD, code=9), "dtype 9"),
        (index_of(*GOOD)[:-1], "cut or damaged"),
        (index_of(*GOOD) + b"1", "cut or damaged"),
        (index_of([1, 2, 4], [0, 4, 12], [0]), "ends behind"),
        (index_of([1, 2, 3], [0, 4, 2**63 - 1], [0]), "ends behind"),
        (index_of([1, 2, 3], [-1, 4, 12], [0]), "ends behind"),
        (index_of([1, -2, 3], [0, 4, 12], [0]), "negative"),
        (index_of([1, 2, 3], [4, 0, 12], [0]), "another order"),
        (index_of([6] * 3, [0] * 3, [0]), "more bytes together"),
        (index_of([2**31 - 1], [0], [0]), "more than"),
        (index_of([1, 2], [0, 4], [0]), "the sequences end at 12, data.bin at 24"),
        (index_of([], [], [0]), "the sequences end at 0, data.bin at 24"),
        (b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, 2**63, 2**64 - 1), "cut or damaged"),
    ],
)
def test_what_is_refused(index, problem):
    assert problem in refusal(Megatron(), bytes(24), name="data.bin", siblings={"data.idx": index})


def test_the_order_is_checked_across_batches(monkeypatch):
    monkeypatch.setattr("yogadl._foreign.megatron._BATCH_RECORDS", 1)
    index = {"data.idx": index_of([1, 2, 3], [4, 0, 12], [0])}
    assert "another order" in refusal(Megatron(), bytes(24), name="data.bin", siblings=index)


def test_a_missing_index_is_named():
    assert "data.idx is missing" in refusal(Megatron(), bytes(24), name="data.bin")


def test_another_dtype_than_the_first_file_is_refused():
    data, siblings = written([[1]])
    kind = Megatron().of_first_file(reader_of(data, name="data.bin", siblings=siblings))
    data, siblings = written([[1]], "int64")
    assert "first file" in refusal(kind, data, name="data.bin", siblings=siblings, kind_is_known=True)


def test_damaged_files():
    data, siblings = written(sequences_of(9))
    fuzz(Megatron(), data, name="data.bin", siblings=siblings)
