"""Datasets of images that HF datasets saves are adopted as they lie, and read as HF reads them."""

import io
import json

import numpy as np
import pyarrow as pa
import pytest

import yogadl
from yogadl.errors import UnsupportedDataError

datasets = pytest.importorskip("datasets")
image = pytest.importorskip("PIL.Image")


def png(k):
    sink = io.BytesIO()
    image.new("RGB", (1 + k % 3, 2), (k % 256, k // 256, 7)).save(sink, "PNG")
    return sink.getvalue()


def saved(folder, values, label=None):
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    labels = [k % 2 for k in range(len(values))]
    dataset = datasets.Dataset.from_dict({"image": values, "label": labels}, features=features)
    dataset.save_to_disk(folder, num_shards=3)
    return datasets.load_from_disk(folder)


def adopted(tmp_path, **options):
    storage = yogadl.open_storage(tmp_path / "caches")
    storage.adopt(tmp_path / "hf" / "*.arrow", "images", "1", format="arrow", **options)
    return storage.fetch("images", "1")


@pytest.mark.parametrize("read", [True, False])
def test_images_of_datasets(tmp_path, read):
    # Given as bytes, with a path, as an image, and not at all: only the second has a path.
    values = [
        [png(k), {"bytes": png(k), "path": f"é{k}.png"}, image.open(io.BytesIO(png(k))), None][k % 4]
        for k in range(50)
    ]
    dataset = saved(tmp_path / "hf", values)
    ref = adopted(tmp_path, missing="empty", files=yogadl.FileOptions(read=read))
    assert len(ref) == 50
    empty = {"bytes": None, "path": None}
    for k, row in enumerate(dataset.with_format("arrow")):
        (row,) = row.to_pylist()
        stored = {
            key: value or type(ref[k]["image"][key])() for key, value in (row["image"] or empty).items()
        }
        assert ref[k] == {"image": stored, "label": row["label"]}
        if k % 4 < 3:
            pixels = np.asarray(image.open(io.BytesIO(ref[k]["image"]["bytes"])))
            np.testing.assert_array_equal(pixels, np.asarray(dataset[k]["image"]))
        assert ref[k]["image"]["path"] == (f"é{k}.png" if k % 4 == 1 else "")
    batches = list(ref.stream(shuffle=True, shuffle_seed=1).batch(8))
    assert sum(map(len, (batch["image"]["bytes"] for batch in batches))) == 50


def test_images_without_paths_need_their_bytes_alone(tmp_path):
    saved(tmp_path / "hf", [png(k) for k in range(9)])
    with pytest.raises(UnsupportedDataError, match=r"column 'image/path' has nulls.*missing"):
        adopted(tmp_path)
    ref = adopted(tmp_path, fields=["image/bytes", "label"])
    assert list(ref) == [{"image": {"bytes": png(k)}, "label": k % 2} for k in range(9)]


def test_a_copy_and_a_refresh_keep_structs_and_options(tmp_path):
    saved(tmp_path / "hf", [png(k) for k in range(9)])
    ref = adopted(tmp_path, missing="empty")
    storage = yogadl.open_storage(tmp_path / "caches")
    storage.submit(ref, "images", "copied")
    copied = storage.fetch("images", "copied")
    assert list(copied) == list(ref)
    assert copied.fingerprint == ref.fingerprint
    more = pa.ipc.open_stream(sorted((tmp_path / "hf").glob("*.arrow"))[0]).read_all()
    with pa.ipc.new_stream(tmp_path / "hf" / "z.arrow", more.schema) as writer:
        writer.write_table(more)
    assert storage.refresh("images", "1", "2").lineage.version == "2"
    grown = storage.fetch("images", "2")
    assert list(grown) == list(ref) + list(ref[: len(more)])


def test_ten_thousand_records_are_those_that_datasets_reads(tmp_path):
    values = [
        {"bytes": png(k) + b"\0" * (k % 17), "path": f"{k}.png" if k % 5 else None} if k % 7 else None
        for k in range(10_000)
    ]
    dataset = saved(tmp_path / "hf", values).with_format("arrow")
    ref = adopted(tmp_path, missing="empty")
    assert len(ref) == len(dataset) == 10_000
    expected = dataset[:].to_pylist()
    for found, row, value in zip(ref, expected, values, strict=True):
        bytes_, path = (row["image"] or {"bytes": b"", "path": ""}).values()
        assert found == {"image": {"bytes": bytes_, "path": path or ""}, "label": row["label"]}
        assert bytes_ == (value or {"bytes": b""})["bytes"]


def text(number):
    return f"{number:06d} " * 9


@pytest.mark.parametrize(
    "where", ["hf", "hf/", "hf/state.json", "hf/*.arrow", "*/*.arrow", "**/*.arrow", "."]
)
def test_what_datasets_computed_beside_its_data_is_left_out(tmp_path, where, caplog):
    dataset = datasets.Dataset.from_dict({"text": list(map(text, range(1_000)))})
    dataset.save_to_disk(tmp_path / "in/hf", num_shards=11)
    loaded = datasets.load_from_disk(tmp_path / "in/hf")
    loaded.map(lambda row: {"text": row["text"].upper() + "!"})
    loaded.filter(lambda row: "7" in row["text"])
    assert len(list((tmp_path / "in/hf").glob("cache-*.arrow"))) == 2
    storage = yogadl.open_storage(tmp_path / "caches")
    place = tmp_path / "in" / where if where != "hf/" else f"{tmp_path}/in/hf/"
    storage.adopt(place, "numbers", "1", format="arrow")
    assert [row["text"] for row in storage.fetch("numbers", "1")] == list(map(text, range(1_000)))
    assert "2 files are left out" in caplog.text
    assert storage.refresh("numbers", "1", "2").lineage.version == "1"


def test_the_order_of_the_files_is_that_of_the_list(tmp_path):
    dataset = datasets.Dataset.from_dict({"number": range(99)})
    dataset.save_to_disk(tmp_path / "hf", num_shards=2)
    document = json.loads((tmp_path / "hf/state.json").read_text())
    document["_data_files"].reverse()
    (tmp_path / "hf/state.json").write_text(json.dumps(document))
    storage = yogadl.open_storage(tmp_path / "caches")
    storage.adopt(tmp_path / "hf", "numbers", "1")
    expected = datasets.load_from_disk(tmp_path / "hf")["number"][:]
    assert expected[0] == 50
    assert [row["number"] for row in storage.fetch("numbers", "1")] == expected


def test_a_cache_that_a_pattern_names_is_taken(tmp_path):
    datasets.Dataset.from_dict({"number": range(99)}).save_to_disk(tmp_path / "hf")
    datasets.load_from_disk(tmp_path / "hf").map(lambda row: {"number": -row["number"]})
    storage = yogadl.open_storage(tmp_path / "caches")
    storage.adopt(tmp_path / "hf/cache-*.arrow", "numbers", "1")
    assert storage.fetch("numbers", "1")[98] == {"number": -98}
