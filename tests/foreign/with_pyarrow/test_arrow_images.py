"""Datasets of images that HF datasets saves are adopted as they lie, and read as HF reads them."""

import io

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
    ref = adopted(tmp_path, missing="empty", read=read)
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
    assert storage.refresh("images", "1", "2")
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
