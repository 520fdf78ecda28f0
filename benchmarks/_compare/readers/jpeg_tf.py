"""JPEGs decoded by tf.data."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import tensorflow as tf
from data import Data
from jpegs import SIZE
from readers import SEED, Reader


def _decoded(jpeg: Any, number: Any) -> Any:
    whole = tf.constant([0.0, 0.0, 1.0, 1.0], shape=[1, 1, 4])
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.io.extract_jpeg_shape(jpeg), whole, min_object_covered=0.0, aspect_ratio_range=(3 / 4, 4 / 3),
        area_range=(0.08, 1.0), max_attempts=10,
    )  # fmt: skip
    window = tf.concat([begin[:2], size[:2]], 0)
    image = tf.image.decode_and_crop_jpeg(jpeg, window, channels=3)
    image = tf.image.random_flip_left_right(tf.image.resize(image, (SIZE, SIZE)))
    return {"image": tf.cast(image, tf.uint8), "id": number}


class Decoding(Reader):
    """TFRecords, `shuffle(1000)`, `map(num_parallel_calls=2)`, `batch`, `prefetch(2)`, a pool of 2 threads.

    The function is `decode_and_crop_jpeg`, which decodes the crop alone, `resize` and a flip.
    """

    def __init__(self, data: Data, folder: Path, workers: int) -> None:
        super().__init__(data, folder, workers)
        described = {"data": tf.io.FixedLenFeature([], tf.string), "id": tf.io.FixedLenFeature([], tf.int64)}

        def parsed(record: Any) -> Any:
            found = tf.io.parse_single_example(record, described)
            return _decoded(found["data"], found["id"])

        records = tf.data.TFRecordDataset(str(folder / "set.tfrecord")).shuffle(1000, seed=SEED)
        batches = records.map(parsed, num_parallel_calls=workers).batch(data.batch)
        options = tf.data.Options()
        options.threading.private_threadpool_size = workers
        self._batches = batches.prefetch(2).with_options(options)

    @classmethod
    def build(cls, data: Data, folder: Path) -> None:
        with tf.io.TFRecordWriter(str(folder / "set.tfrecord")) as writer:
            for index, jpeg in enumerate(data.columns["data"]):
                features = {
                    "data": tf.train.Feature(bytes_list=tf.train.BytesList(value=[jpeg])),
                    "id": tf.train.Feature(int64_list=tf.train.Int64List(value=[index])),
                }
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())

    def epoch(self) -> Iterator[Any]:
        return iter(self._batches)
