"""cached knows a Dataset of HF datasets by its fingerprint, and tables in memory by their content."""

import os
import warnings

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from processes import in_child

import yogadl
from yogadl.adapters import arrays
from yogadl.errors import ConfigurationError, UnsupportedDataError


@pytest.fixture(autouse=True)
def nothing_was_refused_before(monkeypatch):
    """Let the process be one in which datasets could hash every transform, however many tests it has run."""
    monkeypatch.setattr(datasets.fingerprint, "fingerprint_warnings", {})


def dataset(rows=11):
    return datasets.Dataset.from_dict({"n": list(range(rows)), "text": [f"{n}" for n in range(rows)]})


def double(record):
    return {"n": 2 * record["n"]}


class Unhashable:
    """A function that neither pickle nor dill can store."""

    def __call__(self, record):
        return {"n": record["n"] + 1}

    def __reduce__(self):
        raise TypeError("never")


def version_of(ref):
    return ref.lineage.version


def version_in(folder):
    return version_of(yogadl.open_storage(folder).cached(dataset().map(double), "d"))


def test_a_dataset_is_known_by_its_fingerprint_in_every_process(storage, tmp_path):
    mapped = dataset().map(double)
    first = storage.cached(mapped, "d")
    assert first.gather([10])["n"].tolist() == [20]
    assert version_of(storage.cached(dataset().map(double), "d")) == version_of(first)
    assert in_child(version_in, str(tmp_path / "caches")) == version_of(first)
    assert storage.versions("d") == [version_of(first)]


def test_another_choice_order_or_format_is_another_version(storage):
    base = dataset()
    others = [
        base, base.select([0, 1]), base.shuffle(seed=1), base.shuffle(seed=2), base.map(double),
        base.with_format("numpy", columns=["n"]), base.remove_columns("text"), base.with_transform(dict),
    ]  # fmt: skip
    versions = [version_of(storage.cached(other, "d")) for other in others]
    assert len(set(versions)) == len(others)
    assert storage.fetch("d", versions[5]).gather([3])["n"].tolist() == [3]
    assert [version_of(storage.cached(other, "d")) for other in others] == versions


@pytest.mark.parametrize("is_on_disk", [False, True])
def test_a_random_fingerprint_is_refused(storage, tmp_path, is_on_disk):
    base = dataset()
    if is_on_disk:
        base.save_to_disk(tmp_path / "saved")
        base = datasets.load_from_disk(tmp_path / "saved")
    mapped = base.map(Unhashable())
    assert mapped["n"][:2] == [1, 2]
    for data in (mapped, mapped.select([0])) if is_on_disk else (mapped,):
        with pytest.raises(
            ConfigurationError, match=r"is random: datasets could not hash.*cached\(source, 'd', '1'\)"
        ):
            storage.cached(data, "d")
    assert storage.datasets() == []
    assert len(storage.cached(mapped, "d", "1")) == 11


def test_what_may_be_made_from_a_random_fingerprint_is_warned_of(storage):
    mapped = dataset().map(Unhashable())
    with pytest.warns(UserWarning, match="datasets could not hash a transform in this process"):
        storage.cached(mapped.select([0]), "d")


def test_a_random_fingerprint_that_was_saved_names_its_content(storage, tmp_path, monkeypatch):
    """In another process, of which this one has the generator, and no warning."""
    dataset().map(Unhashable()).save_to_disk(tmp_path / "saved")
    monkeypatch.setattr(datasets.fingerprint, "fingerprint_rng", type(datasets.fingerprint.fingerprint_rng)())
    monkeypatch.setattr(datasets.fingerprint, "fingerprint_warnings", {})
    found = [version_of(storage.cached(datasets.load_from_disk(tmp_path / "saved"), "d")) for _ in range(2)]
    assert found[0] == found[1]


def test_a_dataset_whose_caching_is_disabled_is_known(storage):
    datasets.disable_caching()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = [version_of(storage.cached(dataset().map(double), "d")) for _ in range(2)]
    finally:
        datasets.enable_caching()
    assert found[0] == found[1]


def test_several_datasets_and_streams_are_refused(storage):
    with pytest.raises(UnsupportedDataError, match="several datasets"):
        storage.cached(datasets.DatasetDict({"train": dataset(), "test": dataset()}), "d")
    with pytest.raises(ConfigurationError, match=r"cached\(source, 'd', '1'\)"):
        storage.cached(dataset().to_iterable_dataset(), "d")
    with pytest.raises(ConfigurationError, match=r"cached\(source, 'd', '1'\)"):
        storage.cached(pa.table({"n": [1]}).to_reader(), "d")


def test_parquet_files_are_known_by_size_and_time(storage, tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": [1, 2], "m": [3, 4]}), path)
    first = storage.cached(arrays.parquet(path), "d")
    assert version_of(storage.cached(arrays.parquet([path]), "d")) == version_of(first)
    assert version_of(storage.cached(arrays.parquet(path, columns=["n"]), "d")) != version_of(first)
    os.utime(path, ns=(0, 0))
    assert version_of(storage.cached(arrays.parquet(path), "d")) != version_of(first)
    with pytest.raises(ConfigurationError, match=r"cached\(source, 'd', '1'\)"):
        storage.cached(pq.ParquetFile(path), "d")


@pytest.mark.parametrize("table_of", [pa.table, pd.DataFrame, pl.DataFrame])
def test_tables_in_memory_are_known_by_their_content(storage, table_of):
    def table(last):
        return table_of({"n": np.arange(1_009), "text": ["a"] * 1_008 + [last]})

    first = storage.cached(table("b"), "d")
    assert version_of(storage.cached(table("b"), "d")) == version_of(first)
    assert version_of(storage.cached(table("c"), "d")) != version_of(first)
    assert first[1_008] == {"n": 1_008, "text": "b"}


def write_with_nulls(folder):
    path = str(folder / "a.parquet")
    rows = pa.table({"x": pa.array([1, None]), "nothing": pa.array([None, None])})
    with pq.ParquetWriter(path, rows.schema) as writer:
        for part in (rows.slice(0, 0), rows):  # a row group without rows comes first
            writer.write_table(part)
    return path


@pytest.mark.parametrize("is_told_to", ["parquet", "build"])
def test_what_is_said_of_parquet_files_counts_wherever_it_is_said(storage, tmp_path, is_told_to):
    path = write_with_nulls(tmp_path)

    def told(call, **options):
        if is_told_to == "parquet":
            return call(arrays.parquet(path, columns=["x"], **options))
        return call(arrays.parquet(path, columns=["x"]), **options)

    def cached(data, **options):
        return storage.cached(data, "d", **options)

    def built(data, **options):
        return storage.submit(data, "e", "1", **options)

    for call in (cached, built):
        for options, expected in [
            ({"missing": {"x": -1}}, -1),
            ({"missing": {"x": -2}}, -2),
            ({"json": "x"}, None),
        ]:
            assert [record["x"] for record in told(call, **options)] == [1, expected]
    with pytest.raises(UnsupportedDataError, match=r"missing=\{'x': -1\}"):
        told(cached)
    with pytest.raises(ConfigurationError, match="spec= declares fields of records that are read one by one"):
        storage.submit(
            arrays.parquet(path, columns=["x"]),
            "e",
            "2",
            records=yogadl.RecordOptions(spec={"x": yogadl.Leaf("float64")}),
        )
    parts = yogadl.partitioned.of([path, path], lambda each: arrays.parquet(each, columns=["x"]))
    ref = storage.submit(parts, "f", "1", missing={"x": -3})
    assert ref.gather(range(4))["x"].tolist() == [1, -3, 1, -3]
    ref = storage.submit(arrays.parquet([path] * 3, columns=["x"]), "f", "2", missing={"x": -3}, workers=2)
    assert ref.gather(range(6))["x"].tolist() == [1, -3] * 3


@pytest.mark.parametrize("fill", [-1, 0.5, "empty", "text", True, np.int64(3)], ids=repr)
def test_a_column_of_nulls_alone_is_what_comes_in_their_place(storage, tmp_path, fill):
    path = write_with_nulls(tmp_path)
    missing = {"x": 0, "nothing": fill}
    expected = ["" if fill == "empty" else fill] * 2
    ref = storage.submit(arrays.parquet(path, missing=missing), "d", "1")
    assert [record["nothing"] for record in ref] == expected
    ref = storage.submit(pq.read_table(path), "d", "2", missing=missing)
    assert [record["nothing"] for record in ref] == expected


def test_columns_that_are_not_there_are_told(storage, tmp_path):
    path = write_with_nulls(tmp_path)
    fills = {"x": 1, "nothing": 1}
    for data in (arrays.parquet(path, missing=fills), pq.read_table(path), pd.read_parquet(path)):
        with pytest.raises(ConfigurationError, match="missing= names 'typo', and the columns are x, nothing"):
            storage.submit(data, "d", "1", missing={"typo": 1, "x": 1, "nothing": 1})
        with pytest.raises(ConfigurationError, match="json= names 'typo'"):
            storage.submit(data, "d", "1", missing={"x": 1, "nothing": 1}, json="typo")


def test_a_map_with_a_key_twice_is_refused(storage):
    pairs = pa.array([[("k", 1), ("k", 2)]], pa.map_(pa.string(), pa.int64()))
    with pytest.raises(UnsupportedDataError, match="field 'x' has a map with a key twice"):
        storage.submit(pa.table({"x": pairs}), "d", "1")
