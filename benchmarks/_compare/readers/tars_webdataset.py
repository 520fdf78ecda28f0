"""Tar files in a bucket, by WebDataset."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import webdataset
from data import Data
from readers import SEED, Reader, afar

SHUFFLED = 1000


class Buffered(Reader):
    """`WebDataset(urls, shardshuffle=100)`, then `shuffle(1000)`, over http, which it reads by curl.

    Shards are shuffled, then the records within a buffer of 1,000.
    """

    def __init__(self, data: Data, folder: Path, workers: int) -> None:
        super().__init__(data, folder, workers)
        url = afar.served(folder)
        dataset = (
            webdataset.WebDataset(
                [f"{url}/{afar.BUCKET}/{name}" for name in afar.names(folder)],
                shardshuffle=100,
                detshuffle=True,
                seed=SEED,
            )
            .compose(webdataset.detshuffle(SHUFFLED, seed=SEED))
            .to_tuple("data.bin", "id.bin")
            .batched(data.batch)
        )
        self._loader = webdataset.WebLoader(
            dataset, batch_size=None, num_workers=workers, persistent_workers=workers > 0
        )

    @classmethod
    def build(cls, data: Data, folder: Path) -> None:
        afar.write_tars(data, folder)

    def epoch(self) -> Iterator[Any]:
        return iter(self._loader)

    @staticmethod
    def columns(batch: Any) -> Mapping[str, Any]:
        return {"data": batch[0], "id": np.frombuffer(b"".join(batch[1]), np.int64)}

    @staticmethod
    def size(batch: Any) -> int:
        return len(batch[0])
