"""Grain over ArrayRecord files."""

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import grain
import numpy as np
from absl import flags
from array_record.python.array_record_module import ArrayRecordWriter
from data import Data
from readers import SEED, Reader

flags.FLAGS.mark_as_parsed()  # Grain's workers ask absl for flags, which `absl.app.run` would have parsed


FILE_RECORDS = 2_000


class Decode:
    """Makes a record of its bytes, and bytes of it."""

    def __init__(self, data: Data) -> None:
        self._fixed = np.dtype(
            [(name, column.dtype, column.shape[1:]) for name, column in data.fixed.items()]
        )
        self._varying = data.varying

    def encode(self, record: dict[str, Any]) -> bytes:
        fixed = np.zeros((), self._fixed)
        for name in self._fixed.names or ():
            fixed[name] = record[name]
        return fixed.tobytes() + (record[self._varying] if self._varying else b"")

    def __call__(self, record: bytes) -> dict[str, Any]:
        row = np.frombuffer(record, self._fixed, 1)[0]
        decoded = {name: row[name] for name in self._fixed.names or ()}
        if self._varying:
            decoded[self._varying] = record[self._fixed.itemsize :]
        return decoded


def gather(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Stack all fields but byte strings, which are joined: what is no array, workers send through a pipe."""
    batch: dict[str, Any] = {}
    for name, first in records[0].items():
        values = [record[name] for record in records]
        if isinstance(first, bytes):
            batch[name] = np.frombuffer(b"".join(values), np.uint8)
            batch["ends"] = np.cumsum([len(value) for value in values])
        else:
            batch[name] = np.stack(values)
    return batch


def split(name: str, batch: dict[str, Any]) -> dict[str, Any]:
    """Cut the byte strings that `gather` has joined."""
    ends = batch.pop("ends").tolist()
    joined = memoryview(batch[name])
    batch[name] = [bytes(joined[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
    return batch


class MapDataset(Reader):
    """`grain.MapDataset` over ArrayRecord files, a record to a chunk.

    The files are written with `group_size:1`, as Grain's documentation does for random access, and
    `uncompressed`, since the data is random. A record is the bytes of its fields. A file has 2,000 of
    them: how long it takes to read one grows with the records of its file, to 1 ms at a million; with
    fewer records a file, reading gets a little faster still, and small records take more disk.

    `grain.MapDataset.source(ArrayRecordDataSource(files)).seed(7).shuffle().map(decode).batch(n).repeat()`:
    a global shuffle, another each epoch, and batches that don't cross epochs. `decode` is
    `np.frombuffer`. A `batch_fn` that decodes a whole batch in one step was tried: it is somewhat faster
    where records are small, and slower where they are large. Only byte strings have a `batch_fn`, since
    Grain's own batch makes numpy strings of them, without the zero bytes at their ends. It joins them
    into one array, which comes from workers by shared memory, and a `map` at the end cuts that into a
    list: sent as a list, they kept workers from ending, so that `close` waited for ever.

    Without workers `.to_iter_dataset(grain.ReadOptions(2, 4))`: two threads make batches, four are held.
    The default, 16 threads and 500 elements, is made for slow disks: it was slower by a third or more,
    and holds 500 batches. With workers `.to_iter_dataset(grain.ReadOptions(0, 0)).mp_prefetch(...)`, no
    more threads in them; the default was slower several times. A checkpoint is the iterator's
    `get_state`. Batches are dicts of numpy arrays, and of a list of bytes.
    """

    _options = "group_size:1,uncompressed"

    def __init__(self, data: Data, folder: Path, workers: int) -> None:
        super().__init__(data, folder, workers)
        source = grain.sources.ArrayRecordDataSource(sorted(map(str, folder.glob("*.array_record"))))
        batches = grain.MapDataset.source(source).seed(SEED).shuffle()
        batches = batches.map(Decode(data)).batch(data.batch, batch_fn=gather if data.varying else None)
        self._an_epoch = len(batches)
        loader = batches.repeat().to_iter_dataset(grain.ReadOptions(*((0, 0) if workers else (2, 4))))
        if workers:
            loader = loader.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
        if data.varying:
            loader = loader.map(partial(split, data.varying))
        self._iterator = iter(loader)

    @classmethod
    def build(cls, data: Data, folder: Path) -> None:
        encode = Decode(data).encode
        for first in range(0, data.records, FILE_RECORDS):
            writer = ArrayRecordWriter(str(folder / f"{first:08d}.array_record"), cls._options)
            for index in range(first, min(first + FILE_RECORDS, data.records)):
                writer.write(encode(data.record(index)))
            writer.close()

    def epoch(self) -> Iterator[Any]:
        return itertools.islice(self._iterator, self._an_epoch)

    def state(self) -> Any:
        return self._iterator.get_state()

    def resume(self, state: Any, batches: int) -> Iterator[Any]:
        self._iterator.set_state(state)
        return itertools.islice(self._iterator, self._an_epoch - batches)

    def close(self) -> None:
        self._iterator.close()


class Compressed(MapDataset):
    """The same with ArrayRecord's default options: a record to a chunk, each by itself by zstd, level 3."""

    _options = ""
