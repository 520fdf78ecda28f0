"""LitData."""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from data import Data
from litdata import StreamingDataLoader, StreamingDataset, TokensLoader, optimize
from readers import SEED, Reader, Stateful


class Chunks(Stateful):
    """Chunks of LitData, read by a StreamingDataset in a StreamingDataLoader.

    `optimize` writes chunks of 64 MB, its default and what its FAQ advises, without compression, in as many
    processes as there are cores. A record is a dict of tensors, ints and bytes; where it is one row of
    tokens, it is that tensor alone, and TokensLoader reads it, as its documentation advises for tokens. The
    dataset reads chunks where they lie, mapped into memory. With `shuffle=True` chunks are shuffled, then
    the records within a chunk: all of them (`item_shuffle_window="full"`) rather than in blocks of 256,
    which is no slower. `batch_decode=0` decodes records one by one, which is 3 to 10 times as fast here as
    the default. The loader has `batch_size`, `num_workers`, and `persistent_workers=True` where there are
    workers. Byte strings come as memoryviews of the chunk, which do not collate: a `transform` makes them
    bytes. Resume is the loader's `state_dict` and `load_state_dict`. A batch is a dict of tensors, and a
    list of bytes; of tokens, a tensor.
    """

    _compression: str | None = None

    def __init__(self, data: Data, folder: Path, workers: int) -> None:
        super().__init__(data, folder, workers)
        width = _token_width(data)
        dataset = StreamingDataset(
            str(folder),
            item_loader=TokensLoader(block_size=width) if width else None,
            shuffle=True,
            drop_last=False,
            seed=SEED,
            batch_decode=0,
            item_shuffle_window="full",
            transform=partial(_bytes, data.varying) if data.varying else None,
        )
        self._loader: Any = StreamingDataLoader(
            dataset, batch_size=data.batch, num_workers=workers, persistent_workers=workers > 0
        )

    @classmethod
    def build(cls, data: Data, folder: Path) -> None:
        optimize(
            fn=partial(_record, _Source(data.folder)),
            inputs=list(range(data.records)),
            output_dir=str(folder),
            chunk_bytes="64MB",
            compression=cls._compression,
            compression_level="chunk" if cls._compression else None,
            num_workers=os.cpu_count(),
            item_loader=TokensLoader() if _token_width(data) else None,
            verbose=False,
        )

    @staticmethod
    def columns(batch: Any) -> Mapping[str, Any]:
        return Reader.columns(batch if isinstance(batch, dict) else {"tokens": batch})

    @staticmethod
    def size(batch: Any) -> int:
        return Reader.size(batch) if isinstance(batch, dict) else len(batch)


class Compressed(Chunks):
    """The same with `compression="zstd", compression_level="chunk"`: each chunk as a whole.

    When a chunk is first read, it is decompressed into the folder, and the compressed file is removed. The
    default, `compression_level="batch"`, does not work with these records in LitData 0.2.76: a dict of bytes
    and an int is written without compression, and refused when it is read ("missing LDFZ01 magic").

    With workers a record takes 2 ms, also with a `cache_dir`, with "local:" before the folder, and with the
    defaults of `batch_decode` and `item_shuffle_window`; without compression it does not.
    """

    _compression = "zstd"


class _Source:
    """Opens a set in each process that reads of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._data: Data | None = None

    def __reduce__(self) -> Any:
        return _Source, (self._folder,)

    def opened(self) -> Data:
        if self._data is None:
            self._data = Data(self._folder)
        return self._data


def _record(source: _Source, index: int) -> Any:
    data = source.opened()
    record = {name: _leaf(value) for name, value in data.record(index).items()}
    return record["tokens"] if _token_width(data) else record


def _bytes(name: str, record: dict[str, Any]) -> dict[str, Any]:
    return {**record, name: bytes(record[name])}


def _leaf(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    return value if isinstance(value, bytes) else int(value)


def _token_width(data: Data) -> int | None:
    """Return how many tokens a record is, if it is that alone."""
    return int(data.columns["tokens"].shape[1]) if set(data.columns) == {"tokens"} else None
