"""export: whole or not at all, to files that other programs read."""

import importlib.util
import json
import os

import ml_dtypes
import numpy as np
import pytest
from inside import _export, file_names, set_constants

import yogadl
from yogadl.errors import (
    ConfigurationError,
    DatasetNotFoundError,
    MissingDependencyError,
    StorageError,
    UnsupportedDataError,
)

RNG = np.random.default_rng(7)
FIXED = {
    "image": RNG.integers(0, 255, (37, 4, 3), np.uint8),
    "label": np.arange(37),
    "flag": RNG.random(37) < 0.5,
    "half": RNG.random((37, 2)).astype(np.float16),
    "wave": RNG.random(37) + 1j,
    "day": np.arange(37).astype("M8[D]"),
    "took": np.arange(37).astype("m8[h]"),
    "nothing": np.zeros((37, 0)),
    "nested": {"a": RNG.random(37), "b": (np.arange(37, dtype=np.int8), np.ones((37, 1)))},
}


def loaded(exported):
    document = json.loads((exported.folder / "spec.json").read_text())
    return {field["name"]: np.load(exported.folder / field["file"]) for field in document["fields"]}


@pytest.mark.parametrize("chunk_bytes", [1, 1000, 2**25])
def test_fixed_fields_are_one_npy_file_each(storage, tmp_path, monkeypatch, chunk_bytes):
    set_constants(monkeypatch, EXPORT_CHUNK_BYTES=chunk_bytes)
    storage.submit(FIXED, "d", "1", build=yogadl.BuildOptions(part_bytes=900))
    exported = storage.export("d", "1", tmp_path / "out")
    found = loaded(exported)
    for field in storage.info("d", "1").spec.fields:
        expected = FIXED
        for key in field.name.split("/"):
            expected = expected[int(key) if isinstance(expected, tuple) else key]
        assert found[field.name].dtype == expected.dtype
        assert np.array_equal(found[field.name], expected)
    assert exported.records == 37
    assert set(exported.files) == {path.name for path in (tmp_path / "out").iterdir()}
    assert exported.size_bytes == sum(path.stat().st_size for path in (tmp_path / "out").iterdir())


def test_what_numpy_has_no_dtype_for_is_there_by_its_bits(built, tmp_path):
    values = np.linspace(-2, 2, 11)
    ref = built({"b": values.astype(ml_dtypes.bfloat16), "f": values.astype(ml_dtypes.float8_e4m3fn)})
    exported = yogadl.storage.export(ref, tmp_path / "out")
    found = loaded(exported)
    assert found["b"].dtype == np.uint16
    assert np.array_equal(found["b"].view(ml_dtypes.bfloat16), ref.gather(range(11))["b"])
    assert np.array_equal(found["f"].view(ml_dtypes.float8_e4m3fn), ref.gather(range(11))["f"])
    described = json.loads((exported.folder / "spec.json").read_text())["fields"][0]
    assert described == {"name": "b", "file": "b.npy", "dtype": "bfloat16", "stored": "the bits, as uint16"}


def test_the_spec_is_there_and_says_whose_it_is(built, tmp_path):
    ref = built({"x": np.arange(3)})
    document = json.loads((yogadl.storage.export(ref, tmp_path / "o").folder / "spec.json").read_text())
    assert document["spec"] == ref.spec.to_json()
    assert document["fingerprint"] == ref.fingerprint
    assert document["records"] == 3


def test_views_and_records_that_are_one_value_are_exported(built, tmp_path):
    ref = built({"x": np.arange(10), "text": ["a"] * 10})
    exported = yogadl.storage.export(ref.fields("x")[8:2:-2], tmp_path / "view")
    assert np.load(exported.folder / "x.npy").tolist() == [8, 6, 4]
    exported = yogadl.storage.export(built(np.arange(3)), tmp_path / "single")
    assert exported.files == ("records.npy", "spec.json")
    assert len(np.load(yogadl.storage.export(ref.fields("x")[:0], tmp_path / "none").folder / "x.npy")) == 0
    exported = yogadl.storage.export(yogadl.from_source([{"x": 1}, {"x": 2}]), tmp_path / "source")
    assert np.load(exported.folder / "x.npy").tolist() == [1, 2]


def test_fields_that_vary_are_refused_by_name_with_what_to_use(storage, tmp_path):
    storage.submit([{"n": 1, "text": "a", "r": [np.zeros(i)]} for i in range(2)], "d", "1")
    with pytest.raises(UnsupportedDataError) as caught:
        storage.export("d", "1", tmp_path / "out")
    text = str(caught.value)
    assert "['text', 'r/0'] vary in length" in text
    assert "'parquet' or 'arrow'" in text
    assert "ref.fields" in text
    assert list(tmp_path.glob("*")) == [tmp_path / "caches"]


@pytest.mark.parametrize("format", ["npy", "parquet", "arrow"])
def test_pickled_fields_are_refused_unread(storage, tmp_path, format):
    storage.submit([{"n": 1, "o": {1}}], "d", "1", records=yogadl.RecordOptions(allow_pickle=True))
    with pytest.raises(UnsupportedDataError, match=r"\['o'\] are pickled objects"):
        storage.export("d", "1", tmp_path / "out", format)
    assert not (tmp_path / "out").exists()


def test_the_folder_must_be_new_or_empty(storage, tmp_path):
    storage.submit([1], "d", "1")
    (tmp_path / "empty").mkdir()
    storage.export("d", "1", tmp_path / "empty")
    assert storage.export("d", "1", tmp_path / "deep" / "er").records == 1
    before = (tmp_path / "empty" / "spec.json").stat().st_mtime_ns
    (tmp_path / "file").write_text("")
    for target in ("empty", "file", "file/below"):
        with pytest.raises(ConfigurationError, match=r"is not empty|is a file"):
            storage.export("d", "1", tmp_path / target)
    assert (tmp_path / "empty" / "spec.json").stat().st_mtime_ns == before


def test_what_is_not_there_is_said(storage, tmp_path):
    with pytest.raises(DatasetNotFoundError):
        storage.export("d", "1", tmp_path / "out")
    storage.submit([1], "d", "1")
    with pytest.raises(ConfigurationError, match="npy, parquet, arrow"):
        storage.export("d", "1", tmp_path / "out", "csv")


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is not None, reason="pyarrow is installed")
@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_without_pyarrow_the_line_that_installs_it_is_said(storage, tmp_path, format):
    storage.submit([1], "d", "1")
    with pytest.raises(MissingDependencyError, match="pip install pyarrow"):
        storage.export("d", "1", tmp_path / "out", format)
    assert list(tmp_path.glob("*")) == [tmp_path / "caches"]


def test_an_export_that_fails_under_way_leaves_nothing(storage, tmp_path, monkeypatch):
    set_constants(monkeypatch, EXPORT_CHUNK_BYTES=80)
    storage.submit(np.arange(100), "d", "1")

    def stop(done, total):
        assert total == 100
        if done > 50:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        storage.export("d", "1", tmp_path / "out", progress=stop)
    assert list(tmp_path.glob("*")) == [tmp_path / "caches"]
    assert list(tmp_path.glob(".*")) == []


def test_progress_is_reported_to_the_end(storage, tmp_path, monkeypatch):
    set_constants(monkeypatch, EXPORT_CHUNK_BYTES=80)
    storage.submit(np.arange(100), "d", "1")
    said = []
    storage.export("d", "1", tmp_path / "out", progress=lambda *args: said.append(args))
    assert said[-1] == (100, 100)
    assert len(said) > 5


def test_records_that_are_larger_than_most_come_in_small_chunks(storage, tmp_path, monkeypatch):
    set_constants(monkeypatch, EXPORT_CHUNK_BYTES=1000)
    sizes = []

    class Writer:
        def write(self, columns, first_record):
            sizes.append(sum(map(len, columns[0])))

        def close(self):
            pass

    monkeypatch.setattr(_export, "_open_writer", lambda *_: Writer())
    storage.submit([b"x" * (1 if i < 500 else 100) for i in range(600)], "d", "1")
    storage.export("d", "1", tmp_path / "out", "parquet")
    assert sum(sizes) == 500 + 100 * 100
    assert max(sizes[-5:]) <= 1100


def test_an_error_of_the_disk_is_one_of_the_storage(storage, tmp_path, monkeypatch):
    storage.submit([1], "d", "1")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=r"can't export to .*out.*disk is full"):
        storage.export("d", "1", tmp_path / "out")


def test_names_of_files_are_safe_and_unique():
    names = ["a/b", "a.b", "A.b", "", "..", "x:y*z", "ü", "spec", "/etc/passwd", "n" * 400, "n" * 300, "\0"]
    found = file_names(names)
    assert found[:4] == ["a.b", "a.b-2", "A.b-3", "records"]
    assert found[6:9] == ["ü", "spec-2", "etc.passwd"]
    assert len({name.lower() for name in found}) == len(found)
    for name in found:
        assert not set(name) & set("/\\\0:*")
        assert not name.startswith(".")
        assert 0 < len(name.encode()) < 120
