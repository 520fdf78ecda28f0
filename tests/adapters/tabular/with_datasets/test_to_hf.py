"""A Dataset over a reference does what a plain Dataset of the same rows does, method by method."""

import copy
import json
import pickle
import sqlite3

import datasets
import numpy as np
import pytest
import torch
from inside import set_constants

import yogadl
from yogadl.adapters.datasets import to_hf
from yogadl.errors import ConfigurationError

ROWS = [
    {
        "n": n,
        "text": f"t{n % 7}é",
        "tokens": list(range(n % 5)),
        "x": [n / 2, 1.0],
        "chat": [{"role": "user", "content": f"c{n}"}, {"role": "tool", "content": None}][: n % 3],
        "meta": {"a": n, "b": [str(n)]},
        "raw": bytes([n]),
    }
    for n in range(50)
]


@pytest.fixture(scope="module")
def ref(tmp_path_factory):
    return yogadl.open_storage(tmp_path_factory.mktemp("caches")).submit(ROWS, "d", "1")


@pytest.fixture
def ours(ref):
    return ref.to_hf()


@pytest.fixture
def plain(ours):
    return datasets.Dataset.from_list(ROWS, features=ours.features)


def double(row):
    return {"m": row["n"] * 2}


def saved(dataset, folder):
    dataset.save_to_disk(folder / "saved", num_shards=2)
    return list(datasets.load_from_disk(folder / "saved"))


def written(dataset, folder, how):
    getattr(dataset, f"to_{how}")(folder / how)
    return (folder / how).read_bytes()


def in_database(dataset, folder):
    with sqlite3.connect(folder / "sql") as database:
        dataset.select_columns(["n", "text"]).to_sql("rows", database)
        return database.execute("SELECT n, text FROM rows").fetchall()


def format_of(kind):
    def read(dataset, _):
        found = dataset.select_columns(["n", "text", "tokens", "x"]).with_format(kind)
        return repr(found[3]), repr(found[:4]), repr(found[[1, 0]]), [repr(row) for row in found]

    return read


def stratified(dataset, _):
    parts = dataset.class_encode_column("text").train_test_split(14, seed=1, stratify_by_column="text")
    return [list(part) for part in parts.values()]


def as_parquet(dataset, folder):
    return written(dataset, folder, "parquet"), list(datasets.Dataset.from_parquet(str(folder / "parquet")))


def mapped_in_batches(dataset, _):
    names = dataset.column_names
    return list(dataset.map(lambda rows: {"m": rows["n"] * 2}, batched=True, remove_columns=names))


# What each public method gives, of a Dataset and a folder for its files.
METHODS = {
    "__getitem__": lambda d, _: (d[3], d[-1], d[2:9:3], d[[4, 4]], d["n"][:], d[np.int64(3)]),
    "add_column": lambda d, _: list(d.add_column("q", list(range(50)))),
    "add_item": lambda d, _: list(d.remove_columns("chat").add_item(ROWS[3])),
    "batch": lambda d, _: d.batch(7)[1],
    "cast": lambda d, _: list(d.cast(datasets.Features(d.features | {"n": datasets.Value("int32")}))),
    "cast_column": lambda d, _: d.cast_column("n", datasets.Value("float32"))[:],
    "class_encode_column": lambda d, _: d.class_encode_column("text").features["text"].names,
    "column_names": lambda d, _: d.column_names,
    "copy": lambda d, _: (list(copy.copy(d)), list(copy.deepcopy(d)), list(pickle.loads(pickle.dumps(d)))),
    "concatenate_datasets": lambda d, _: list(datasets.concatenate_datasets([d, d.select([3])])),
    "features": lambda d, _: d.features,
    "filter": lambda d, _: list(d.filter(lambda row: row["n"] % 3 == 0)),
    "flatten": lambda d, _: list(d.flatten()),
    "flatten_indices": lambda d, _: list(d.select([5, 3]).flatten_indices()),
    "formatted_as": lambda d, _: d.format["type"],
    "interleave_datasets": lambda d, _: list(datasets.interleave_datasets([d, d.select(range(3))])),
    "iter": lambda d, _: list(d.iter(7)),
    "items of a loader": lambda d, _: d.__getitems__([3, 0, 3, 49]),
    "items of a loader, of parts": lambda d, _: [
        part.__getitems__([1, 3])
        for part in (d.shuffle(seed=1), d.select([4, 9, 2, 2]).rename_column("n", "k"), d.skip(9).take(11))
    ],
    "items of a loader, of some columns": lambda d, _: [
        part.__getitems__([1, 3])
        for part in (
            d.select_columns(["text", "n"]),
            d.with_format(columns=["x", "raw"]),
            d.with_format("numpy", columns=["n"]),
            d.with_transform(lambda rows: {"z": rows["n"]}),
            d.cast_column("n", datasets.Value("float32")).remove_columns("chat"),
            d.skip(3).take(20).shard(3, 1).flatten_indices(),
        )
    ],
    "map": lambda d, _: list(d.map(double)),
    "map in batches": mapped_in_batches,
    "map by processes": lambda d, _: list(d.map(double, num_proc=2)),
    "num_columns": lambda d, _: (d.num_columns, d.num_rows, d.shape, len(d)),
    "remove_columns": lambda d, _: list(d.remove_columns(["n", "chat"])),
    "rename_column": lambda d, _: list(d.rename_column("n", "k").remove_columns("text")),
    "rename_columns": lambda d, _: d.rename_columns({"n": "text", "text": "n"})[3],
    "repeat": lambda d, _: list(d.repeat(2)),
    "save_to_disk": saved,
    "select": lambda d, _: (list(d.select([3, 1, 4, 1])), list(d.select(range(9, 20)).select([1]))),
    "select_columns": lambda d, _: list(d.select_columns(["text", "n"])),
    "set_format": format_of(None),
    "set_transform": lambda d, _: d.with_transform(lambda rows: {"z": [n + 1 for n in rows["n"]]})[:3],
    "shard": lambda d, _: (list(d.shard(3, 1)), list(d.shard(4, 3, contiguous=False))),
    "shuffle": lambda d, _: list(d.shuffle(seed=3).shuffle(seed=4)),
    "skip": lambda d, _: list(d.skip(45)),
    "sort": lambda d, _: list(d.sort(["text", "n"], reverse=[True, False])),
    "split": lambda d, _: (d.split, d.version, d.description),
    "take": lambda d, _: list(d.take(3)),
    "to_csv": lambda d, folder: written(d.remove_columns("raw"), folder, "csv"),
    "to_dict": lambda d, _: d.to_dict(),
    "to_iterable_dataset": lambda d, _: list(d.to_iterable_dataset(3).shuffle(seed=1)),
    "to_json": lambda d, folder: written(d.remove_columns("raw"), folder, "json"),
    "to_list": lambda d, _: d.to_list(),
    "to_pandas": lambda d, _: repr(d.to_pandas()),
    "to_parquet": as_parquet,
    "to_polars": lambda d, _: repr(d.remove_columns("chat").to_polars()),
    "to_sql": in_database,
    "train_test_split": lambda d, _: [list(part) for part in d.train_test_split(0.2, seed=1).values()],
    "train_test_split by a class": stratified,
    "unique": lambda d, _: (d.unique("text"), d.unique("n")),
    "with_format numpy": format_of("numpy"),
    "with_format torch": format_of("torch"),
    "with_format pandas": format_of("pandas"),
    "with_format arrow": lambda d, _: d.with_format("arrow")[2:5].to_pylist(),
    "with_format polars": format_of("polars"),
}  # fmt: skip
# These make a Dataset of something else, look at the Hub or an index, or say what the others say.
OTHERS = {
    "from_buffer", "from_csv", "from_dict", "from_file", "from_generator", "from_json", "from_list",
    "from_pandas", "from_parquet", "from_polars", "from_spark", "from_sql", "from_text", "load_from_disk",
    "push_to_hub", "to_tf_dataset", "align_labels_with_mapping", "with_format", "with_transform",
    "reset_format", "format", "data", "cache_files", "cleanup_cache_files", "info", "shape", "num_rows",
    "builder_name", "citation", "config_name", "dataset_size", "description", "download_checksums",
    "download_size", "homepage", "license", "size_in_bytes", "supervised_keys", "version",
    *[name for name in dir(datasets.Dataset) if "index" in name or "search" in name or "nearest" in name],
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")  # of what the methods of Datasets warn themselves
@pytest.mark.parametrize("name", METHODS)
def test_a_method_gives_what_it_gives_of_a_plain_dataset(ours, plain, tmp_path, name):
    for folder in ("ours", "plain"):
        (tmp_path / folder).mkdir()
    assert METHODS[name](ours, tmp_path / "ours") == METHODS[name](plain, tmp_path / "plain")


def test_no_public_method_is_left_out():
    names = {name for name in dir(datasets.Dataset) if not name.startswith("_")}
    assert names - OTHERS <= set(METHODS)


def test_nothing_is_read_before_it_is_asked_for(ref, monkeypatch):
    read = []
    records = type(ref._records)
    columns = records.columns
    monkeypatch.setattr(
        records,
        "columns",
        lambda self, indices, *rest: read.extend(indices.tolist()) or columns(self, indices, *rest),
    )
    dataset = ref.to_hf()
    dataset = dataset.shuffle(seed=1).skip(5).shard(2, 0).remove_columns("chat").rename_column("n", "k")
    dataset = pickle.loads(pickle.dumps(dataset)).select(range(2, 9)).train_test_split(0.5, seed=1)["train"]
    assert read == []
    assert dataset[0]["k"] == read[0]
    assert len(read) == 1


@pytest.mark.parametrize("places", [[50], [-51], [1, 50]])
def test_a_place_that_is_none_is_refused_as_a_plain_dataset_does(ours, plain, places):
    for dataset in (plain, ours, plain.shuffle(seed=1), ours.shuffle(seed=1)):
        with pytest.raises(IndexError):
            dataset.__getitems__(places)
    assert ours.__getitems__([-1, 2]) == plain.__getitems__([-1, 2])


VALUES = {
    "scalars": [{name: np.dtype(name).type(n) for name in ("bool", *"bhilBHILefd")} for n in range(3)],
    "arrays": [{"a": np.full((2, n), n, "u1"), "b": np.full((2, 3), n / 3), "c": ["a"] * n} for n in (0, 1)],
    "times": [{"a": np.datetime64(n, "us"), "b": np.datetime64("NaT", "D"), "c": n * 1j} for n in range(3)],
    "nested": [{"a": {"b": n}, "c": n} for n in range(3)],
    "a single value": [np.float32(n / 3) for n in range(3)],
    "texts": [{"s": "\0ü" * n, "b": b"\0" * n, "j": {"ä": [None, -0.0, 2**53, {}]}} for n in range(3)],
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_items_of_a_loader_are_the_rows_one_by_one(name):
    ours = yogadl.from_source(VALUES[name]).to_hf()
    assert repr(ours.__getitems__([1, 0])) == repr([ours[1], ours[0]])
    assert repr(ours.select([1, 0]).__getitems__([0, 1])) == repr([ours[1], ours[0]])


@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_of_pytorch(ref, workers):
    dataset = ref.to_hf().select_columns(["n", "x"]).with_format("torch")
    loader = torch.utils.data.DataLoader(dataset, batch_size=8, num_workers=workers)
    batches = list(loader)
    assert torch.cat([batch["n"] for batch in batches]).tolist() == list(range(50))
    assert batches[0]["x"].dtype == torch.float32


def test_fingerprints_are_those_of_the_records(ref, tmp_path):
    dataset = ref.to_hf()
    assert dataset._fingerprint == ref.to_hf()._fingerprint
    assert dataset._fingerprint != ref.select([1]).to_hf()._fingerprint
    assert dataset.map(double)._fingerprint == ref.to_hf().map(double)._fingerprint
    name = yogadl.from_source(ROWS, "a name / of rows").to_hf()._fingerprint
    assert name != dataset._fingerprint


def test_views_and_single_values(ref):
    assert list(ref.select([3, 1]).map(double).to_hf()) == [{"m": 6}, {"m": 2}]
    assert list(ref.fields("n").to_hf())[:2] == [{"n": 0}, {"n": 1}]
    assert list(yogadl.from_source(np.arange(3)).to_hf()) == [{"record": n} for n in range(3)]
    assert list(yogadl.from_source([(1, "a"), (2, "b")]).to_hf().remove_columns("0")) == [
        {"1": "a"},
        {"1": "b"},
    ]
    packed = ref.fields("tokens").packed(16, fields="tokens")
    with pytest.raises(AttributeError, match=r"use packed\.at\(epoch\)\.to_hf"):
        packed.to_hf()
    with pytest.raises(ConfigurationError, match=r"\.at\(epoch\)"):
        to_hf(packed)
    assert packed.at(0).to_hf()[0]["tokens"] == packed.at(0)[0]["tokens"].tolist()


def test_rows_of_windows_of_time(ref):
    found = ref.windows({"n": [-0.5, 0], "raw": [0, 0.5]}, None, fps=2).fields("n", "raw", "n_is_pad").to_hf()
    assert found[0] == {"n": [0, 0], "raw": {"0": b"\0", "1": b"\1"}, "n_is_pad": [True, False]}
    assert found[7:9]["n"] == [[6, 7], [7, 8]]


def test_what_reads_all_rows_into_memory_is_refused_if_they_are_many(ours, monkeypatch):
    set_constants(monkeypatch, HF_MOST_BYTES=ours.data.nbytes - 1)
    with pytest.raises(ConfigurationError, match="this reads all records into memory"):
        ours.add_column("q", list(range(50)))
    assert json.loads(json.dumps(ours[3]["chat"])) == ROWS[3]["chat"]
    set_constants(monkeypatch, HF_MOST_BYTES=ours.data.nbytes)
    assert ours.add_column("q", list(range(50)))[3]["q"] == 3


@pytest.mark.parametrize("rows", [1, 49, 50, 51])
def test_all_rows_are_read_some_at_a_time(ours, monkeypatch, rows):
    set_constants(monkeypatch, HF_READ_ROWS=rows)
    sizes = [len(batch) for batch in ours.data.to_batches()]
    assert sizes == [rows] * (50 // rows) + [50 % rows] * (50 % rows > 0)
    assert [row for batch in ours.data.to_reader(7) for row in batch["n"].to_pylist()] == list(range(50))
    assert ours.to_list() == ROWS


def test_what_map_has_written_to_a_file_is_found_again(ref, tmp_path):
    calls = []

    def note(row):
        calls.append(row["n"])
        return {"m": row["n"]}

    name = str(tmp_path / "mapped" / "rows.arrow")
    for _ in range(2):
        mapped = ref.to_hf().map(note, cache_file_name=name)
        assert mapped["m"] == list(range(50))
        assert [file["filename"] for file in mapped.cache_files] == [name]
        assert calls == list(range(50))
