"""Sizes around the constants of the readers of foreign files, and of what is written of them."""

import io

import numpy as np
import pytest
from foreign.test_arrow import stream_of
from foreign.test_mds import SIZES, shard
from foreign_files import (
    bytes_feature,
    entry,
    example_of,
    float_feature,
    int64_feature,
    records_of,
    tfrecord_of,
)
from indexed_files import records_of as records_of_index
from inside import Arrow, Npy, TFRecord, set_constants

import yogadl


def saved(array):
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


@pytest.mark.parametrize("width", [1, 15, 16, 17, 160])
def test_rows_that_are_copied_and_rows_that_are_not(tmp_path, monkeypatch, width):
    rows = np.arange(97 * width, dtype=np.uint8).reshape(97, width)
    (tmp_path / "a.npy").write_bytes(saved(rows))
    monkeypatch.setitem(SIZES, f"ndarray:uint8:{width}", width)
    samples = [[row.tobytes()] for row in rows]
    (tmp_path / "a.mds").write_bytes(shard({"a": f"ndarray:uint8:{width}"}, samples))
    storage = yogadl.open_storage(tmp_path / "caches")
    for form, name in (("npy", "a.npy"), ("mds", "a.mds")):
        for read in (True, False):
            storage.adopt(tmp_path / name, form, f"{read}", format=form, read=read)
            found = storage.fetch(form, f"{read}").gather(np.arange(97))
            np.testing.assert_array_equal(found if form == "npy" else found["a"], rows)
        storage.submit(storage.fetch(form, "False"), form, "copied")
        assert storage.info(form, "copied").fingerprint == storage.info(form, "True").fingerprint


@pytest.mark.parametrize("count", [3, 4, 5])
@pytest.mark.parametrize("size", [2**14 - 100, 2**14, 2**14 + 100])
def test_features_that_are_copied_and_features_that_are_not(count, size):
    numbers = [float(number) for number in range(count)]
    values = [
        example_of(entry(b"f", float_feature(numbers)), entry(b"b", bytes_feature(bytes([k]) * (size - 60))))
        for k in range(5)
    ]
    form = TFRecord({"f": ("float32", (count,)), "b": "bytes"})
    for k, record in enumerate(records_of(form, tfrecord_of(values))):
        assert record["b"] == bytes([k]) * (size - 60)
        assert record["f"].tolist() == numbers


@pytest.mark.parametrize("count", [31, 32, 33, 63, 64, 65, 200])
@pytest.mark.parametrize("number", [5, 300])  # one byte each, or two
def test_integers_in_few_bytes_and_in_many(count, number):
    values = [example_of(entry(b"n", int64_feature([number] * count)))]
    (record,) = records_of(TFRecord({"n": ("int64", (None,))}), tfrecord_of(values))
    assert record["n"].tolist() == [number] * count


@pytest.mark.parametrize("most", [1, 4, 5, 6, 100])
def test_batches_of_any_number_of_records(monkeypatch, most):
    for module in ("npy", "arrow"):
        monkeypatch.setattr(f"yogadl._foreign.{module}._BATCH_RECORDS", most)
    rows = np.arange(5 * 40, dtype=np.uint8).reshape(5, 40)
    np.testing.assert_array_equal(records_of_index(Npy(), saved(rows))[1], rows)
    found = records_of_index(Arrow(("n",)), stream_of(5, 5))[1]
    assert [record["n"] for record in found] == list(range(5))


@pytest.mark.parametrize("records", [1023, 1024, 1025])
@pytest.mark.parametrize("size", [63, 64, 65])  # 2**16 bytes in 1,024 of them
def test_few_records_have_the_hash_of_many(tmp_path, monkeypatch, records, size):
    storage = yogadl.open_storage(tmp_path)
    values = np.random.default_rng(0).integers(0, 256, (records, size), np.uint8)
    storage.submit(values, "d", "1")
    set_constants(monkeypatch, FEW_RECORDS=0)
    storage.submit(values, "d", "2")
    assert storage.info("d", "1").fingerprint == storage.info("d", "2").fingerprint
    storage.verify("d", "1")
