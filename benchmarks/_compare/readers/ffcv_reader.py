"""FFCV."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from data import Data
from ffcv.fields import BytesField, IntField, NDArrayField
from ffcv.fields.decoders import BytesDecoder, IntDecoder, NDArrayDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import ToTensor
from ffcv.writer import DatasetWriter
from readers import SEED, Reader

_FILE = "set.beton"
_LENGTH = "length"


class Beton(Reader):
    """One `.beton` file, read by compiled code in threads.

    `NDArrayField` for arrays, `IntField` for numbers, `BytesField` for byte strings, whose length is a field
    of its own, since the decoder fills each string up to the longest. `OrderOption.RANDOM` with a seed is a
    true shuffle, and `os_cache=True` leaves the file to the page cache, as FFCV's guide says where memory has
    room for it. A loader has one thread at least, so "without workers" is `num_workers=1`, and two workers
    are two threads. Batches are tensors, in memory that is used again. "First batch" counts compiling, which
    each process does. FFCV has no checkpoint: a stopped program reads again what it had read. To install it,
    the system must have the headers of OpenCV and libjpeg-turbo.
    """

    def __init__(self, data: Data, folder: Path, workers: int) -> None:
        super().__init__(data, folder, workers)
        pipelines = {}
        for name, field in _fields(data).items():
            decoder = {IntField: IntDecoder, NDArrayField: NDArrayDecoder, BytesField: BytesDecoder}
            pipelines[name] = [decoder[type(field)](), ToTensor()]
        self._names = list(pipelines)
        self._loader = Loader(
            str(folder / _FILE),
            batch_size=data.batch,
            num_workers=max(1, workers),
            order=OrderOption.RANDOM,
            os_cache=True,
            seed=SEED,
            drop_last=False,
            pipelines=pipelines,
        )

    @classmethod
    def build(cls, data: Data, folder: Path) -> None:
        writer = DatasetWriter(str(folder / _FILE), _fields(data), num_workers=1)
        writer.from_indexed_dataset(_Records(data))

    def epoch(self) -> Iterator[Any]:
        for batch in self._loader:
            yield dict(zip(self._names, batch, strict=True))

    @staticmethod
    def columns(batch: Any) -> Mapping[str, Any]:
        found: dict[str, Any] = {}
        for name, tensor in batch.items():
            array = tensor.numpy().copy()  # its memory is used again
            if name == "data":
                lengths = batch[_LENGTH].numpy()[:, 0].tolist()
                found[name] = [row[:length].tobytes() for row, length in zip(array, lengths, strict=True)]
            elif name != _LENGTH:
                found[name] = array[:, 0] if name == "id" else array
        return found


class _Records:
    """The records as FFCV's writer asks for them: tuples, by number."""

    def __init__(self, data: Data) -> None:
        self._data = data
        self._names = list(_fields(data))

    def __len__(self) -> int:
        return self._data.records

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        record = self._data.record(index)
        if (name := self._data.varying) is not None:
            record[_LENGTH] = len(record[name])
            record[name] = np.frombuffer(record[name], np.uint8)
        return tuple(record[name] for name in self._names)


def _fields(data: Data) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, column in data.columns.items():
        if name == data.varying:
            fields |= {name: BytesField(), _LENGTH: IntField()}
        elif column.shape[1:]:
            fields[name] = NDArrayField(dtype=column.dtype, shape=column.shape[1:])
        else:
            fields[name] = IntField()
    return fields
