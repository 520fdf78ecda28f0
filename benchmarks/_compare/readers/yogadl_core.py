"""yogadl, as it is in this checkout."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data import Data
from readers import SEED, Reader

import yogadl


class Core(Reader):
    """`storage.submit(arrays)`, or `submit(records)` for byte strings; then `ref.stream(shuffle=True).batch(n)`,
    and `.prefetch(4, workers=2)` for worker processes. Batches are dicts of numpy arrays."""

    def __init__(self, data: Data, folder: Path, workers: int) -> None:
        super().__init__(data, folder, workers)
        self._ref = yogadl.open_storage(folder).fetch("set", "1")
        self._loader = self._made(None)
        self._iterator: Any = None

    def _made(self, cursor: Any) -> Any:
        loader = self._ref.stream(shuffle=True, shuffle_seed=SEED, cursor=cursor).batch(self.data.batch)
        return loader.prefetch(4, workers=self.workers) if self.workers else loader

    @classmethod
    def build(cls, data: Data, folder: Path) -> None:
        source = list(data) if data.varying else data.columns
        yogadl.open_storage(folder).submit(source, "set", "1")

    def epoch(self) -> Iterator[Any]:
        self._iterator = iter(self._loader)
        return self._iterator

    def state(self) -> Any:
        return self._iterator.state_dict()

    def resume(self, state: Any, batches: int) -> Iterator[Any]:
        self._loader = self._made(state)
        return self.epoch()
