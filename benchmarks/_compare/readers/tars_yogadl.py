"""Tar files in a bucket, read where they lie by yogadl."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from data import Data
from readers import SEED, Reader, afar

import yogadl


class Global(Reader):
    """`storage.adopt("s3://raw/*.tar")`, then `ref.stream(shuffle=True)`: any record anywhere in the epoch.

    The index lies on this machine. Workers are threads: `prefetch(4, threads=2)`.
    """

    _order: Any = True

    def __init__(self, data: Data, folder: Path, workers: int) -> None:
        super().__init__(data, folder, workers)
        ref = _storage(folder).fetch("set", "1")
        loader = ref.stream(shuffle=self._order, shuffle_seed=SEED).batch(data.batch)
        self._loader = loader.prefetch(4, threads=workers) if workers else loader

    @classmethod
    def build(cls, data: Data, folder: Path) -> None:
        afar.write_tars(data, folder)
        urls = [f"s3://{afar.BUCKET}/{name}" for name in afar.names(folder)]
        _storage(folder).adopt(urls, "set", "1", format="webdataset")

    def epoch(self) -> Iterator[Any]:
        return iter(self._loader)

    @staticmethod
    def columns(batch: Any) -> Mapping[str, Any]:
        return {"data": batch["data.bin"], "id": np.frombuffer(b"".join(batch["id.bin"]), np.int64)}


class InBlocks(Global):
    """The same with `Blocks(records=10, window=100, lanes=1)`: blocks of 1 MB, 1,000 records mixed."""

    _order = yogadl.Blocks(records=10, window=100, lanes=1)


class InOrder(Global):
    """The same with `shuffle=False`."""

    _order = False


def _storage(folder: Path) -> Any:
    options = {"anonymous": True, "client_options": {"region_name": "us-east-1"}}
    foreign = {f"s3://{afar.BUCKET}": {"endpoint_url": afar.served(folder), **options}}
    return yogadl.open_storage(folder / "store", foreign=foreign)
