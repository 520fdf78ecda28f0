"""yogadl through tf.data."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import tensorflow as tf
from data import Data
from readers import SEED
from readers.tf_data import Pipeline
from readers.yogadl_core import Core

import yogadl
from yogadl.adapters.tensorflow import make_tf_dataset


class ThroughTfData(Pipeline):
    """The caches of yogadl's own row, read as a `tf.data.Dataset`.

    `make_tf_dataset(ref.stream(shuffle=True), batch_size=n)` and `prefetch(AUTOTUNE)`: a true shuffle,
    and each batch is gathered by one call in tf.data's threads; there are no worker processes. Batches
    are dicts of tensors, of byte strings `tf.string`. It is stopped by a cursor,
    `stream.cursor(delivered=...)`, of what the program counted.
    """

    def __init__(self, data: Data, folder: Path, workers: int) -> None:
        if workers:
            raise NotImplementedError("has threads of its own, no workers")
        self._cursor: Any = None
        self._delivered = 0
        super().__init__(data, folder, workers)

    @classmethod
    def build(cls, data: Data, folder: Path) -> None:
        Core.build(data, folder)

    def _made(self) -> tf.data.Dataset:
        ref = yogadl.open_storage(self.folder).fetch("set", "1")
        self._stream = ref.stream(shuffle=True, shuffle_seed=SEED, cursor=self._cursor)
        return make_tf_dataset(self._stream, batch_size=self.data.batch).prefetch(tf.data.AUTOTUNE)

    def epoch(self) -> Iterator[Any]:
        for batch in super().epoch():
            self._delivered += self.size(batch)
            yield batch

    def state(self) -> Any:
        return self._stream.cursor(delivered=self._delivered)

    def resume(self, state: Any, batches: int) -> Iterator[Any]:
        self._cursor = state
        self._batches = self._made()
        return self.epoch()
