"""numpy in RAM."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from data import Data
from readers import SEED, Reader


class InRam(Reader):
    """For reference, not a peer: the loop that people write when all data fits in memory.

    Where records are large, nobody who reads from anywhere else can beat it by much. Where they are small,
    most of its time goes to numpy's calls, for each field of each batch; whoever gathers several batches in
    one call is faster.

    The process reads all arrays into RAM when it starts. An epoch is a random permutation, a batch is
    `array[indices]` for each field; byte strings lie in a list. The checkpoint is two integers. Workers would
    add nothing, so there is no number with them.
    """

    def __init__(self, data: Data, folder: Path, workers: int) -> None:
        super().__init__(data, folder, workers)
        if workers:
            raise NotImplementedError("arrays in RAM have no workers")
        self._columns: dict[str, Any] = {
            name: np.load(folder / f"{name}.npy") if isinstance(column, np.ndarray) else list(column)
            for name, column in data.columns.items()
        }
        self._epoch = self._read = 0

    @classmethod
    def build(cls, data: Data, folder: Path) -> None:
        for name, column in data.columns.items():
            if isinstance(column, np.ndarray):
                np.save(folder / f"{name}.npy", column)
            else:  # the set's own file is as good as any
                (folder / f"{name}.bin").write_bytes(b"".join(column))

    def epoch(self) -> Iterator[Any]:
        self._epoch += 1
        return self._batches(self._epoch - 1, 0)

    def _batches(self, epoch: int, first: int) -> Iterator[Any]:
        order = np.random.default_rng([SEED, epoch]).permutation(self.data.records)
        for start in range(first * self.data.batch, len(order), self.data.batch):
            chosen = order[start : start + self.data.batch]
            self._read = start // self.data.batch + 1
            yield {
                name: column[chosen]
                if isinstance(column, np.ndarray)
                else [bytes(memoryview(column[index])) for index in chosen.tolist()]
                for name, column in self._columns.items()
            }

    def state(self) -> Any:
        return [self._epoch - 1, self._read]

    def resume(self, state: Any, batches: int) -> Iterator[Any]:
        return self._batches(*state)
