"""MosaicML Streaming."""

import gc
from pathlib import Path
from typing import Any

import numpy as np
from data import Data
from readers import SEED, Stateful
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from streaming.base.util import clean_stale_shared_memory


class Streaming(Stateful):
    """Shards of MDS, read by a StreamingDataset in a StreamingDataLoader.

    `MDSWriter` writes shards of its default size (64 MiB), without compression and without hashes. Arrays
    are of the encoding "ndarray" with dtype and shape given, so that neither is stored with each record;
    numbers are "int64", byte strings "bytes". The dataset has `local` alone, since all shards are there,
    `shuffle=True` and the default for the rest: shuffling by "py1e" among records of nearby shards. The
    loader has `batch_size`, `num_workers`, `persistent_workers=True` where there are workers, and the
    default collate function. Resume is its `state_dict` and `load_state_dict`. A batch is a dict of
    tensors, and a list of bytes.
    """

    _compression: str | None = None

    def __init__(self, data: Data, folder: Path, workers: int) -> None:
        super().__init__(data, folder, workers)
        clean_stale_shared_memory()  # of a process that was killed, as its documentation says
        dataset = StreamingDataset(local=str(folder), shuffle=True, shuffle_seed=SEED, batch_size=data.batch)
        self._loader: Any = StreamingDataLoader(
            dataset, batch_size=data.batch, num_workers=workers, persistent_workers=workers > 0
        )

    @classmethod
    def build(cls, data: Data, folder: Path) -> None:
        columns = {name: _encoding(column) for name, column in data.fixed.items()}
        if data.varying is not None:
            columns[data.varying] = "bytes"
        with MDSWriter(out=str(folder), columns=columns, compression=cls._compression) as writer:
            for record in data:
                writer.write(record)

    def close(self) -> None:
        super().close()
        gc.collect()
        clean_stale_shared_memory()


class Compressed(Streaming):
    """The same with `compression="zstd"`, level 3, each shard as a whole.

    When a shard is first read, it is decompressed into `local`, which is the folder itself, beside the
    compressed file; batches come out of the decompressed one. What was built is the compressed files.
    """

    _compression = "zstd"


def _encoding(column: np.ndarray) -> str:
    if column.ndim == 1:
        return str(column.dtype)
    return f"ndarray:{column.dtype}:{','.join(map(str, column.shape[1:]))}"
