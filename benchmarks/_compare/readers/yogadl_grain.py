"""yogadl through its adapter for Grain, as it is in this checkout."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data import Data
from readers import SEED, Reader

import yogadl
from yogadl.adapters import grain as yogadl_grain


class WholeBatches(Reader):
    """`make_dataloader` of yogadl's adapter: a `grain.DataLoader` whose elements are whole batches.

    The cache is built by `storage.submit(arrays)`, or `submit(records)` for byte strings; fixed fields are
    not compressed. `make_dataloader(ref.stream(shuffle=True, shuffle_seed=7), batch_size=n, epochs=None)`,
    and `worker_count=2` for Grain's own worker processes; its default `ReadOptions(0, 0)` uses no threads.
    A checkpoint is the iterator's `get_state`. Batches are dicts of numpy arrays, and of a list of bytes.
    """

    def __init__(self, data: Data, folder: Path, workers: int) -> None:
        super().__init__(data, folder, workers)
        stream = yogadl.open_storage(folder).fetch("set", "1").stream(shuffle=True, shuffle_seed=SEED)
        self._an_epoch = -(-data.records // data.batch)
        self._iterator: Any = iter(
            yogadl_grain.make_dataloader(stream, batch_size=data.batch, epochs=None, worker_count=workers)
        )

    @classmethod
    def build(cls, data: Data, folder: Path) -> None:
        source = list(data) if data.varying else data.columns
        yogadl.open_storage(folder).submit(source, "set", "1")

    def epoch(self) -> Iterator[Any]:
        return itertools.islice(self._iterator, self._an_epoch)

    def state(self) -> Any:
        return self._iterator.get_state()

    def resume(self, state: Any, batches: int) -> Iterator[Any]:
        self._iterator.set_state(state)
        return itertools.islice(self._iterator, self._an_epoch - batches)

    def close(self) -> None:
        self._iterator = None
