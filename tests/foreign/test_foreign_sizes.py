"""Sizes around the constants of the readers of foreign files, and of what is written of them."""

import numpy as np
import pytest
from adopted_files import write
from foreign_files import (
    MDS_SIZES,
    bytes_feature,
    example_of,
    float_feature,
    int64_feature,
    mds_of,
    npy_of,
    records_of,
    tfrecord_of,
)
from inside import INTERLEAVED_GAP_BYTES, TFRecord, set_constants

import yogadl
from yogadl.errors import UnsupportedDataError


@pytest.mark.parametrize("width", [1, 15, 16, 17, 160])
def test_rows_that_are_copied_and_rows_that_are_not(tmp_path, monkeypatch, width):
    rows = np.arange(97 * width, dtype=np.uint8).reshape(97, width)
    (tmp_path / "a.npy").write_bytes(npy_of(rows))
    monkeypatch.setitem(MDS_SIZES, f"ndarray:uint8:{width}", width)
    samples = [[row.tobytes()] for row in rows]
    (tmp_path / "a.mds").write_bytes(mds_of({"a": f"ndarray:uint8:{width}"}, samples))
    storage = yogadl.open_storage(tmp_path / "caches")
    for form, name in (("npy", "a.npy"), ("mds", "a.mds")):
        for read in (True, False):
            storage.adopt(tmp_path / name, form, f"{read}", format=form, files=yogadl.FileOptions(read=read))
            found = storage.fetch(form, f"{read}").gather(np.arange(97))
            np.testing.assert_array_equal(found if form == "npy" else found["a"], rows)
        storage.submit(storage.fetch(form, "False"), form, "copied")
        assert storage.info(form, "copied").fingerprint == storage.info(form, "True").fingerprint


@pytest.mark.parametrize("read", [True, False])
def test_values_that_lie_in_files_are_as_large_as_values_can_be(tmp_path, monkeypatch, read):
    set_constants(monkeypatch, FOREIGN_MOST_VALUE_BYTES=10)
    storage = yogadl.open_storage(tmp_path / "caches")
    for size in (9, 10, 11):
        (tmp_path / "a.mds").write_bytes(mds_of({"b": "bytes"}, [[b"short"], [b"x" * size]]))
        if size <= 10:
            storage.adopt(
                tmp_path / "a.mds", "d", f"{size}", format="mds", files=yogadl.FileOptions(read=read)
            )
            assert storage.fetch("d", f"{size}")[1] == {"b": b"x" * size}
        else:
            with pytest.raises(UnsupportedDataError, match="there can't be a value of 11 bytes"):
                storage.adopt(
                    tmp_path / "a.mds", "d", f"{size}", format="mds", files=yogadl.FileOptions(read=read)
                )


@pytest.mark.parametrize("count", [3, 4, 5])
@pytest.mark.parametrize("size", [2**14 - 100, 2**14, 2**14 + 100])
def test_features_that_are_copied_and_features_that_are_not(count, size):
    numbers = [float(number) for number in range(count)]
    values = [
        example_of(f=float_feature(numbers), b=bytes_feature(bytes([k]) * (size - 60))) for k in range(5)
    ]
    form = TFRecord({"f": ("float32", (count,)), "b": "bytes"})
    for k, record in zip(range(5), records_of(form, tfrecord_of(values)), strict=True):
        assert record["b"] == bytes([k]) * (size - 60)
        assert record["f"].tolist() == numbers


@pytest.mark.parametrize("count", [31, 32, 33, 63, 64, 65, 200])
@pytest.mark.parametrize("number", [5, 300])  # one byte each, or two
def test_integers_in_few_bytes_and_in_many(count, number):
    values = [example_of(n=int64_feature([number] * count))]
    (record,) = records_of(TFRecord({"n": ("int64", (None,))}), tfrecord_of(values))
    assert record["n"].tolist() == [number] * count


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


def bucket_of(tmp_path, form):
    """Return a storage in a bucket that is a folder, with a version of the files in "raw" beside it."""
    (tmp_path / "raw").mkdir(exist_ok=True)
    raw = (tmp_path / "raw").as_uri()
    storage = yogadl.open_storage((tmp_path / "caches").as_uri(), foreign={raw: {}}, mirror=None)
    storage.adopt(f"{raw}/", "d", "1", format=form)
    return storage


@pytest.mark.parametrize(("over", "requests"), [(0, 1), (1, 2)])
def test_values_that_are_near_each_other_are_one_request(tmp_path, over, requests):
    (tmp_path / "raw").mkdir()
    lines = [b"a" * 5000, b"b" * 5000]
    between = b"\n" * (INTERLEAVED_GAP_BYTES + over)
    (tmp_path / "raw/a.jsonl").write_bytes(between.join(lines))
    ref = bucket_of(tmp_path, "jsonl").fetch("d", "1")
    assert ref.gather([0])[0] == lines[0]  # the entries are kept
    before = ref.locality().ranges
    assert list(ref.gather([1, 0])) == lines[::-1]
    assert ref.locality().ranges - before == requests


ORDERS = {
    "in order": {},
    "shuffled": {"shuffle": True, "shuffle_seed": 1},
    "blocks": {"shuffle": yogadl.Blocks(records=32, window=4, lanes=1)},
}


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("prefetched", [0, 2])
def test_the_fields_of_a_record_are_one_request_as_is_planned(tmp_path, name, prefetched):
    rng = np.random.default_rng(1)
    samples = [
        {
            "__key__": f"{number:06d}",
            "jpg": rng.bytes(int(rng.integers(20_000, 30_000))),
            "txt": b"t" * int(rng.integers(20, 400)),
            "cls": b"%d" % (number % 10),
        }
        for number in range(600)
    ]
    for first in range(0, 600, 150):
        write(tmp_path / "raw" / f"{first}.tar", "webdataset", samples[first : first + 150])
    ref = bucket_of(tmp_path, "webdataset").fetch("d", "1")
    stream = ref.stream(**ORDERS[name]).batch(32)
    plan = stream.plan()
    planned = plan.way(plan.chosen)
    before = ref.locality()
    batches = stream.prefetch(prefetched) if prefetched else stream
    found = {
        key: value for batch in batches for key, value in zip(batch["__key__"], batch["txt"], strict=True)
    }
    assert found == {sample["__key__"]: sample["txt"] for sample in samples}
    after = ref.locality()
    requests, size_bytes = after.ranges - before.ranges, after.range_bytes - before.range_bytes
    assert requests == pytest.approx(planned.requests, rel=0.05, abs=3)
    assert size_bytes == pytest.approx(planned.bytes, rel=0.01)
    assert requests < 610  # of 1,800 values
