"""tf.data by itself, in the three ways in which its users shuffle."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import numpy as np
import tensorflow as tf
from data import Data
from readers import SEED, Reader

BUFFER = 10_000


class Pipeline(Reader):
    """Reads batches of a `tf.data.Dataset`, a new iterator an epoch."""

    def __init__(self, data: Data, folder: Path, workers: int) -> None:
        super().__init__(data, folder, workers)
        self._batches = self._made()
        self._iterator: Any = None

    def _made(self) -> tf.data.Dataset:
        raise NotImplementedError

    def _shuffled(self, records: tf.data.Dataset, buffer: int) -> tf.data.Dataset:
        batches = records.shuffle(buffer, seed=SEED, reshuffle_each_iteration=True).batch(
            self.data.batch, num_parallel_calls=self.workers or None
        )
        return batches.prefetch(tf.data.AUTOTUNE)

    def epoch(self) -> Iterator[Any]:
        self._iterator = iter(self._batches)
        return self._iterator

    @staticmethod
    def columns(batch: Any) -> Mapping[str, Any]:
        return {
            name: column.numpy().tolist() if column.dtype == tf.string else column.numpy()
            for name, column in batch.items()
        }


class Checkpointed(Pipeline):
    """Is stopped and goes on by `tf.train.Checkpoint(iterator=...)`, whose files are the state."""

    def state(self) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            tf.train.Checkpoint(iterator=self._iterator).write(f"{folder}/state")
            return {path.name: path.read_bytes() for path in Path(folder).iterdir()}

    def resume(self, state: Any, batches: int) -> Iterator[Any]:
        found = self.epoch()
        with tempfile.TemporaryDirectory() as folder:
            for name, held in state.items():
                (Path(folder) / name).write_bytes(held)
            tf.train.Checkpoint(iterator=self._iterator).read(f"{folder}/state")
        return found


class InMemory(Checkpointed):
    """A true shuffle, of records that tf.data has in memory.

    The arrays are loaded from `.npy` files, byte strings as a tensor of `tf.string`.
    `from_tensor_slices`, `shuffle` with a buffer of all records, `batch`, and `prefetch(AUTOTUNE)`. Each
    epoch is a new iterator, which fills the buffer anew. "Workers" are threads:
    `batch(num_parallel_calls=2)`; without, a batch is copied by one, and read ahead by another. It is
    stopped by `tf.train.Checkpoint` of the iterator, in which tf.data stores the whole shuffle buffer.
    """

    @classmethod
    def build(cls, data: Data, folder: Path) -> None:
        for name, column in data.fixed.items():
            np.save(folder / f"{name}.npy", column)
        if data.varying:
            strings = tf.constant(list(data.columns[data.varying]))
            tf.io.write_file(f"{folder}/{data.varying}.tensor", tf.io.serialize_tensor(strings))

    def _made(self) -> tf.data.Dataset:
        columns: dict[str, Any] = {name: np.load(self.folder / f"{name}.npy") for name in self.data.fixed}
        if name := self.data.varying:
            columns[name] = tf.io.parse_tensor(tf.io.read_file(f"{self.folder}/{name}.tensor"), tf.string)
        return self._shuffled(tf.data.Dataset.from_tensor_slices(columns), self.data.records)


class Cached(Checkpointed):
    """tf.data's own cache in a file, shuffled within a buffer of 10,000 records.

    `cache(FILE)`, then `shuffle(10_000)`, `batch` and `prefetch(AUTOTUNE)`: the file is read from its
    start to its end, and only what is in the buffer is mixed. A build fills the cache, from a generator
    of 256 records at once and `unbatch`. "Workers" are threads: `batch(num_parallel_calls=2)`. It is
    stopped by `tf.train.Checkpoint` of the iterator, in which tf.data stores the shuffle buffer.
    """

    @classmethod
    def _cache(cls, data: Data, folder: Path) -> tf.data.Dataset:
        return rows(data, 256).cache(str(folder / "cache"))

    @classmethod
    def build(cls, data: Data, folder: Path) -> None:
        for _ in cls._cache(data, folder).batch(256):
            pass

    def _made(self) -> tf.data.Dataset:
        return self._shuffled(self._cache(self.data, self.folder), BUFFER)


class FromGenerator(Pipeline):
    """A Python generator of records, as most programs begin, shuffled within a buffer of 10,000 records.

    The generator yields the rows of mapped `.npy` files in their order; byte strings it slices from one
    mapped file. `from_generator` with an `output_signature`, `shuffle(10_000)`, `batch`,
    `prefetch(AUTOTUNE)`. "Workers" are threads: `batch(num_parallel_calls=2)`; the generator itself has
    Python's lock. tf.data can't checkpoint generators: a stopped program goes on by `skip(batches)`,
    which runs the generator over what was read.
    """

    @classmethod
    def build(cls, data: Data, folder: Path) -> None:
        shutil.copytree(data.folder, folder, dirs_exist_ok=True)

    def _made(self) -> tf.data.Dataset:
        return self._shuffled(rows(Data(self.folder)), BUFFER)

    def resume(self, state: Any, batches: int) -> Iterator[Any]:
        return iter(self._batches.skip(batches))


def rows(data: Data, block: int | None = None) -> tf.data.Dataset:
    """Return the records of a set in its order, from a generator that yields one, or so many at once."""
    shape = () if block is None else (None,)
    signature = {
        name: tf.TensorSpec([*shape, *column.shape[1:]], column.dtype)
        if isinstance(column, np.ndarray)
        else tf.TensorSpec(shape, tf.string)
        for name, column in data.columns.items()
    }
    starts = range(0, data.records, block or 1)

    def taken(column: Any, start: int) -> Any:
        if block is None:
            return column[start]
        stop = min(start + block, data.records)
        return (
            column[start:stop] if isinstance(column, np.ndarray) else [column[i] for i in range(start, stop)]
        )

    def made() -> Iterator[dict[str, Any]]:
        return ({name: taken(column, start) for name, column in data.columns.items()} for start in starts)

    found = tf.data.Dataset.from_generator(made, output_signature=signature)
    return found if block is None else found.unbatch()
