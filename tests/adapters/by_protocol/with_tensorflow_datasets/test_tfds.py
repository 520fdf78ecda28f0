"""TFDS's data sources, which have random access: read as any object with ``__len__`` and ``__getitems__``."""

import numpy as np
import pytest
import tensorflow_datasets as tfds

import yogadl
from yogadl.errors import UnsupportedDataError

RECORDS = 23


class Digits(tfds.core.GeneratorBasedBuilder):
    """A tiny dataset, of the kinds of features that are common."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = tfds.features.FeaturesDict(
            {
                "image": tfds.features.Image(shape=(4, 4, 3)),
                "label": tfds.features.ClassLabel(num_classes=10),
                "name": tfds.features.Text(),
                "boxes": tfds.features.Sequence({"box": tfds.features.BBoxFeature(), "kind": np.int64}),
                "tokens": tfds.features.Sequence(np.int32),
                "words": tfds.features.Sequence(tfds.features.Text()),
                "score": tfds.features.Scalar(np.float32),
            }
        )
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for number in range(RECORDS):
            yield number, example(number)


def example(number):
    box = tfds.features.BBox(0.0, 0.25, 0.5, 1.0)
    return {
        "image": np.full((4, 4, 3), number, np.uint8),
        "label": number % 10,
        "name": f"no. {number}",
        "boxes": [{"box": box, "kind": kind} for kind in range(number % 3)],
        "tokens": np.arange(number % 4, dtype=np.int32),
        "words": ["word"] * (number % 3),
        "score": number / 2,
    }


@pytest.fixture(autouse=True, scope="module")
def offline():
    """Keep TFDS from asking the network whether it knows the dataset."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tfds.core.utils.gcs_utils, "_is_gcs_disabled", True)
        yield


@pytest.fixture(scope="module")
def data_source(tmp_path_factory):
    builder = Digits(data_dir=tmp_path_factory.mktemp("tfds"), file_format="array_record")
    builder.download_and_prepare()
    return builder.as_data_source(split="train")


def check(records, data_source):
    """TFDS shuffles when it writes: compare with what it reads itself, and with what was put in."""
    assert len(records) == RECORDS
    numbers = []
    for index in range(RECORDS):
        found, theirs = records[index], data_source[index]
        number = int(found["score"] * 2)
        numbers.append(number)
        wanted = example(number)
        assert found["label"] == wanted["label"]
        assert found["name"] == theirs["name"] == wanted["name"].encode()
        np.testing.assert_array_equal(found["image"], wanted["image"])
        np.testing.assert_array_equal(found["tokens"], wanted["tokens"])
        assert (found["tokens"].dtype, found["score"].dtype) == (np.int32, np.float32)
        assert found["words"].tolist() == [b"word"] * (number % 3)
        np.testing.assert_array_equal(found["boxes"]["kind"], theirs["boxes"]["kind"])
        np.testing.assert_array_equal(found["boxes"]["box"], np.reshape(theirs["boxes"]["box"], (-1, 4)))
    assert sorted(numbers) == list(range(RECORDS))


def test_a_data_source_is_a_source(tmp_path, data_source):
    storage = yogadl.open_storage(tmp_path)
    storage.submit(data_source, "digits", "1")
    check(storage.fetch("digits", "1"), data_source)


def test_a_data_source_is_read_at_random_without_a_cache(data_source):
    ref = yogadl.from_source(data_source, fingerprint="digits-1.0.0")
    check(ref, data_source)
    labels = [
        int(label) for batch in ref.fields("label").stream(shuffle=True).batch(5) for label in batch["label"]
    ]
    assert sorted(labels) == sorted(number % 10 for number in range(RECORDS))


def test_undecoded_images_stay_the_bytes_that_they_are(tmp_path, data_source):
    source = data_source.dataset_info  # the same files, read another way
    builder = Digits(data_dir=source.data_dir.rsplit("/digits/", 1)[0], file_format="array_record")
    raw = builder.as_data_source(split="train", decoders={"image": tfds.decode.SkipDecoding()})
    storage = yogadl.open_storage(tmp_path)
    storage.submit(raw, "raw", "1")
    assert storage.fetch("raw", "1")[3]["image"] == raw[3]["image"]
    assert raw[3]["image"].startswith(b"\x89PNG")


class Ragged(Digits):
    """Sequences of different lengths within a sequence."""

    def _info(self):
        features = tfds.features.FeaturesDict({"r": tfds.features.Sequence(tfds.features.Sequence(np.int64))})
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _generate_examples(self):
        for number in range(3):
            yield number, {"r": [[1], [2, 3]]}


def test_sequences_of_sequences_are_refused_and_cached_as_a_pipeline(tmp_path, data_source):
    builders = [Ragged(data_dir=tmp_path / kind, file_format=kind) for kind in ("array_record", "tfrecord")]
    for builder in builders:
        builder.download_and_prepare()
    storage = yogadl.open_storage(tmp_path / "caches")
    with pytest.raises(UnsupportedDataError, match=r"feature 'r' has sequences.*as_dataset"):
        storage.submit(builders[0].as_data_source(split="train"), "ragged", "1")
    storage.submit(builders[1].as_dataset(split="train"), "ragged", "1")
    assert storage.fetch("ragged", "1")[0]["r"].flat_values.tolist() == [1, 2, 3]
