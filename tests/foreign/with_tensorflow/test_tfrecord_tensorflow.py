"""TFRecord files that TensorFlow has written, against what TensorFlow reads of them."""

import numpy as np
import pytest
import tensorflow as tf
from foreign_files import (
    bytes_feature,
    damaged,
    example_of,
    float_feature,
    int64_feature,
    outcome_of,
    records_of,
    refusal,
    tfrecord_of,
)
from inside import TFRecord

COUNT = 10_000
FEATURES = {
    "image": "bytes",
    "name": "str",
    "label": "int64",
    "score": "float32",
    "vec": ("float32", (7,)),
    "boxes": ("float32", (None, 4)),
    "ids": ("int64", (None,)),
    "pair": ("int64", (2,)),
}


def feature_of(value):
    if isinstance(value, bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
    if np.asarray(value).dtype.kind == "f":
        return tf.train.Feature(float_list=tf.train.FloatList(value=np.ravel(value)))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=np.ravel(value)))


def example_by_tensorflow(**values):
    feature = {name: feature_of(value) for name, value in values.items()}
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def write(path, values, **options):
    with tf.io.TFRecordWriter(str(path), **options) as writer:
        for value in values:
            writer.write(value)


@pytest.fixture(scope="module")
def examples():
    rng = np.random.default_rng(9)
    return [
        example_by_tensorflow(
            image=rng.bytes(int(rng.integers(0, 400))),
            name=("ü" * (k % 9)).encode(),
            label=int(rng.integers(-(2**63), 2**63 - 1)) >> int(rng.integers(60)),
            score=np.float32(rng.normal()),
            vec=rng.normal(size=7).astype(np.float32),
            boxes=rng.normal(size=(k % 5, 4)).astype(np.float32),
            ids=rng.integers(-5, 2**40, k % 40),
            pair=rng.integers(-5, 5, 2),
            unused=k,
        )
        for k in range(COUNT)
    ]


def test_records_are_those_of_a_tfrecorddataset(tmp_path, examples):
    path = tmp_path / "a.tfrecord"
    write(path, examples)
    records = records_of(TFRecord(), path.read_bytes())
    assert records == list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())
    assert records == examples
    assert tfrecord_of(examples[:50]) == path.read_bytes()[: len(tfrecord_of(examples[:50]))]


def test_features_are_those_of_parse_example(tmp_path, examples):
    path = tmp_path / "a.tfrecord"
    write(path, examples)
    described = {
        "image": ((), tf.string), "name": ((), tf.string), "label": ((), tf.int64), "score": ((), tf.float32),
        "vec": ((7,), tf.float32), "pair": ((2,), tf.int64),
    }  # fmt: skip
    described = {name: tf.io.FixedLenFeature(*each) for name, each in described.items()}
    described |= {"boxes": tf.io.RaggedFeature(tf.float32), "ids": tf.io.RaggedFeature(tf.int64)}
    parsed = tf.io.parse_example(examples, described)
    records = records_of(TFRecord(FEATURES), path.read_bytes())
    assert len(records) == COUNT
    for name in FEATURES:
        values = [record[name] for record in records]
        if name in ("boxes", "ids"):
            np.testing.assert_array_equal(
                np.cumsum([np.size(v) for v in values]), parsed[name].row_splits[1:]
            )
            values, expected = np.concatenate([np.ravel(v) for v in values]), parsed[name].values.numpy()
        else:
            expected = parsed[name].numpy()
        if name in ("image", "name"):
            assert [v.encode() if name == "name" else v for v in values] == expected.tolist()
        else:
            np.testing.assert_array_equal(np.stack(values), expected, strict=True)
    assert all(record["boxes"].shape == (k % 5, 4) for k, record in enumerate(records))


def test_entries_with_one_key_are_read_as_tensorflow_reads_them():
    pieces = example_by_tensorflow(a=1, b=2), example_by_tensorflow(a=3), example_by_tensorflow(c=4)
    content = b"".join(pieces) + example_of()
    parsed = tf.io.parse_single_example(
        content, {name: tf.io.FixedLenFeature((), tf.int64) for name in "abc"}
    )
    (record,) = records_of(TFRecord(dict.fromkeys("abc", "int64")), tfrecord_of([content]))
    assert record == {name: value.numpy() for name, value in parsed.items()}
    assert record == {"a": 3, "b": 2, "c": 4}


@pytest.mark.parametrize("way", ["GZIP", "ZLIB"])
def test_compressed_files_are_refused(tmp_path, way, examples):
    path = tmp_path / "a.tfrecord"
    write(path, examples[:20], options=way)
    assert f"compressed by {way.lower()}" in refusal(TFRecord(), path.read_bytes())


def test_damaged_examples_are_read_as_tensorflow_reads_them_or_refused():
    content = example_of(
        i=bytes_feature(b"x" * 10),
        l=int64_feature([1]),
        v=float_feature([1.5, 2.5]),
        n=int64_feature([1, -1, 300]),
    )
    described = {
        "i": tf.io.FixedLenFeature((), tf.string),
        "l": tf.io.FixedLenFeature((), tf.int64),
        "v": tf.io.VarLenFeature(tf.float32),
        "n": tf.io.VarLenFeature(tf.int64),
    }
    form = TFRecord({"i": "bytes", "l": "int64", "v": ("float32", (None,)), "n": ("int64", (None,))})
    compared, only_ours = 0, 0
    for changed in damaged(content, 1000, seed=3):
        records = outcome_of(form, tfrecord_of([changed]))
        if records is None:
            continue
        try:
            parsed = tf.io.parse_single_example(changed, described)
        except tf.errors.InvalidArgumentError:
            only_ours += 1  # unknown fields, which protobuf skips and TensorFlow refuses
            continue
        compared += 1
        for name, value in parsed.items():
            expected = value.values if name in "vn" else value
            np.testing.assert_array_equal(records[0][name], expected.numpy())
    assert compared > 50
    assert only_ours < 10
