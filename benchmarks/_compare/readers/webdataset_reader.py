"""WebDataset."""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import webdataset
from data import Data
from readers import SEED, Reader

SHUFFLED = 1000


def _array(dtype: np.dtype, shape: tuple[int, ...], raw: bytes) -> np.ndarray:
    return np.frombuffer(raw, dtype).reshape(shape)


class Tars(Reader):
    """`WebDataset` over tar files, which are read from front to back and shuffled in a buffer.

    `ShardWriter` writes shards of 10,000 records or 100 MB, and at least eight, so that shards can be
    shuffled and dealt to workers; no compression. Each field is a file in the tar, as is usual:
    `000017.image.bin`. It is decoded by `np.frombuffer` in `map_tuple`; WebDataset's own `.npy` decoder was
    a quarter slower.

    `WebDataset(shards, shardshuffle=100, detshuffle=True, seed=7)`, then `detshuffle(1000, seed=7)`, as
    large as in the documentation's examples, then `batched(n)`, which keeps the short batch. So the shuffle
    is not global: shards are shuffled, and records within the buffer. `detshuffle` gives each epoch another
    order that comes again in a new process. Shards are dealt to workers by `split_by_worker`, each record
    comes once; each worker ends with a short batch. (`resampled=True`, which draws shards with replacement,
    would not read each record once.)

    `WebLoader(dataset, batch_size=None)`, with `num_workers=2` and `persistent_workers=True`, without which
    each epoch would have the first one's order. Batches are not mixed between workers
    (`.unbatched().shuffle(1000).batched(n)`), which is slower. There is no checkpoint: going on means to
    read what was read. Batches are lists of a torch tensor for each field, and of a list of bytes.
    """

    def __init__(self, data: Data, folder: Path, workers: int) -> None:
        super().__init__(data, folder, workers)
        shards = sorted(str(path) for path in folder.glob("*.tar"))
        self._names = list(data.columns)
        decode = [
            None if name == data.varying else partial(_array, column.dtype, column.shape[1:])
            for name, column in data.columns.items()
        ]
        dataset = (
            webdataset.WebDataset(shards, shardshuffle=100, detshuffle=True, seed=SEED)
            .compose(webdataset.detshuffle(SHUFFLED, seed=SEED))
            .to_tuple(*(f"{name}.bin" for name in self._names))
            .map_tuple(*decode)
            .batched(data.batch)
        )
        self._loader = webdataset.WebLoader(
            dataset, batch_size=None, num_workers=workers, persistent_workers=workers > 0
        )

    @classmethod
    def build(cls, data: Data, folder: Path) -> None:
        a_shard = min(10_000, -(-data.records // 8))
        pattern = str(folder / "%06d.tar")
        with webdataset.ShardWriter(pattern, maxcount=a_shard, maxsize=1e8, verbose=0) as writer:
            for index, record in enumerate(data):
                fields = {
                    f"{name}.bin": value if isinstance(value, bytes) else value.tobytes()
                    for name, value in record.items()
                }
                writer.write({"__key__": f"{index:08d}", **fields})

    def epoch(self) -> Iterator[Any]:
        return iter(self._loader)

    def columns(self, batch: Any) -> Mapping[str, Any]:
        return super().columns(dict(zip(self._names, batch, strict=True)))

    @staticmethod
    def size(batch: Any) -> int:
        return len(batch[0])

    def close(self) -> None:
        self._loader = None
