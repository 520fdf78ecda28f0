"""yogadl 0.1.4, of 2020."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import tensorflow as tf
from data import Data
from readers import SEED
from readers.tf_data import Pipeline, rows

import yogadl.dataref
import yogadl.storage
import yogadl.tensorflow

tf.get_logger().setLevel("ERROR")  # it calls from_generator as one did in 2020


class Old(Pipeline):
    """As its documentation says, with the TensorFlow of today.

    A tf.data pipeline (a generator of 256 records at once and `unbatch`) is stored by
    `LFSStorage.cacheable`: one LMDB key a record, pickled. `stream(shuffle=True, shuffle_seed=...)` is a
    true shuffle; `make_tf_dataset` of it is a `from_generator`, then `batch` and `prefetch(AUTOTUNE)`.
    It has no workers. It is stopped by a count of records, which is the next stream's `start_offset`.
    """

    def __init__(self, data: Data, folder: Path, workers: int) -> None:
        if workers:
            raise NotImplementedError("has no workers")
        self._start = 0
        super().__init__(data, folder, workers)

    @staticmethod
    def _ref(folder: Path, data: Data) -> Any:
        storage = yogadl.storage.LFSStorage(yogadl.storage.LFSConfigurations(str(folder)))
        return storage.cacheable("set", "1")(lambda: rows(data, 256))()

    @classmethod
    def build(cls, data: Data, folder: Path) -> None:
        cls._ref(folder, data)

    def _made(self) -> tf.data.Dataset:
        ref = self._ref(self.folder, self.data)
        stream = ref.stream(start_offset=self._start, shuffle=True, shuffle_seed=SEED)
        records = yogadl.tensorflow.make_tf_dataset(stream)
        return records.batch(self.data.batch).prefetch(tf.data.AUTOTUNE)

    def epoch(self) -> Iterator[Any]:
        for batch in super().epoch():
            self._start += self.size(batch)
            yield batch

    def state(self) -> Any:
        return self._start

    def resume(self, state: Any, batches: int) -> Iterator[Any]:
        self._start = state
        self._batches = self._made()
        return self.epoch()
