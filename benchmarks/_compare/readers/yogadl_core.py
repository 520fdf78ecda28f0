"""yogadl, as it is in this checkout."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data import Data
from readers import SEED, Reader

import yogadl


class Core(Reader):
    """This checkout of yogadl, without a framework: batches are dicts of numpy arrays.

    Built by `storage.submit` from arrays, or from single records where byte strings vary. Read by
    `ref.stream(shuffle=True, shuffle_seed=...).batch(n)`, with worker processes by `.prefetch(4, workers=2)`.
    The checkpoint is `state_dict()`, given to the next stream as `cursor=`. All else is as it comes.
    """

    _kind = "workers"
    _codec: Any = None

    def __init__(self, data: Data, folder: Path, workers: int) -> None:
        super().__init__(data, folder, workers)
        self._ref = yogadl.open_storage(folder).fetch("set", "1")
        self._loader = self._made(None)
        self._iterator: Any = None

    def _made(self, cursor: Any) -> Any:
        loader = self._ref.stream(shuffle=True, shuffle_seed=SEED, cursor=cursor).batch(self.data.batch)
        return loader.prefetch(4, **{self._kind: self.workers}) if self.workers else loader

    @classmethod
    def build(cls, data: Data, folder: Path) -> None:
        source = list(data) if data.varying else data.columns
        yogadl.open_storage(folder).submit(source, "set", "1", codec=cls._codec)

    def epoch(self) -> Iterator[Any]:
        self._iterator = iter(self._loader)
        return self._iterator

    def state(self) -> Any:
        return self._iterator.state_dict()

    def resume(self, state: Any, batches: int) -> Iterator[Any]:
        self._loader = self._made(state)
        return self.epoch()


class Threads(Core):
    """The same, but with threads that read ahead: `.prefetch(4, threads=2)`.

    They share the process with the loop, so nothing is sent, and are what to take where records need no work
    but reading. Where there are none, it is yogadl's own row again.
    """

    _kind = "threads"


class Zstd(Core):
    """The same with `codec="zstd"`: each record by itself."""

    _codec = "zstd"


class Zstd9(Core):
    """The same with `codec=yogadl.Zstd(level=9)`."""

    _codec = yogadl.Zstd(level=9)


class ZstdThreads(Threads):
    """The same with `codec="zstd"`, and threads that read ahead."""

    _codec = "zstd"
