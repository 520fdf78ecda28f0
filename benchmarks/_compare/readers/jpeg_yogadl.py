"""JPEGs decoded by yogadl's `random_map(out=)`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data import Data
from jpegs import SIZE, decode_into
from readers import SEED, Reader

import yogadl


def _fill(record: Any, rng: Any, out: Any) -> None:
    decode_into(record["data"], rng, out["image"])


class Threads(Reader):
    """`stream.random_map(fn, out=).batch(n).prefetch(4, threads=2)`; simplejpeg and OpenCV."""

    _kind = "threads"

    def __init__(self, data: Data, folder: Path, workers: int) -> None:
        super().__init__(data, folder, workers)
        stream = yogadl.open_storage(folder).fetch("set", "1").stream(shuffle=True, shuffle_seed=SEED)
        out = {"image": yogadl.Leaf("uint8", (SIZE, SIZE, 3))}
        loader = stream.random_map(_fill, out=out, keep="id").batch(data.batch)
        self._loader = loader.prefetch(4, **{self._kind: workers})

    @classmethod
    def build(cls, data: Data, folder: Path) -> None:
        yogadl.open_storage(folder).submit(list(data), "set", "1")

    def epoch(self) -> Iterator[Any]:
        return iter(self._loader)


class Workers(Threads):
    """The same with `prefetch(4, workers=2)`: two processes."""

    _kind = "workers"
