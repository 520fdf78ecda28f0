"""Read Grain's data as records: its datasets and loaders, in order, and random access where they have it."""

import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import grain

from yogadl._sources import IterableSource, Source
from yogadl.adapters.grain._loader import allow_workers
from yogadl.errors import UnsupportedDataError

# Grain's classes have no annotations, so `Any` stands for its datasets.

# What never ends has a length of `sys.maxsize`, or that divided by the shards.
_ENDLESS: Final = sys.maxsize >> 20

# Map datasets that have an element at every index; others may have none at some.
_DENSE: Final = frozenset(
    {
        *("SourceMapDataset", "RangeMapDataset", "StreamMapDataset", "MapMapDataset", "RandomMapMapDataset"),
        *("MapWithIndexMapDataset", "BatchMapDataset", "ShuffleMapDataset", "WindowShuffleMapDataset"),
        *("ConcatenateMapDataset", "MixedMapDataset", "ZipMapDataset", "_WithSeedMapDataset"),
        *("SliceMapDataset", "RepeatMapDataset"),
    }
)


def source(data: Any, allow_pickle: bool = False) -> Source | None:
    """Return the source in Grain's data, or ``None`` if its records are read by position, as a list's.

    Raises:
        UnsupportedDataError: if it never ends, or a record can't be stored.
    """
    if isinstance(data, grain.MapDataset):
        _require_end(data)
        if all(type(part).__name__ in _DENSE for part in _parts(data)):
            return None
        return _in_order(lambda: data.to_iter_dataset(grain.ReadOptions(0, 0)), allow_pickle)
    if isinstance(data, grain.IterDataset):
        _require_end(data)
        return _in_order(lambda: data, allow_pickle)
    if isinstance(data, grain.DataLoader):
        _require_end(data._dataset)
        return _in_order(lambda: data, allow_pickle)
    return None


def _in_order(open_data: Callable[[], Any], allow_pickle: bool) -> Source:
    allow_workers()
    return IterableSource(_Elements(open_data), allow_pickle=allow_pickle)


class _Elements:
    """Iterate over what Grain iterates over, and close it afterwards: its workers are processes."""

    def __init__(self, open_data: Callable[[], Any]) -> None:
        self._open_data = open_data

    def __iter__(self) -> Iterator[Any]:
        iterator = iter(self._open_data())
        try:
            yield from iterator
        finally:
            if isinstance(iterator, grain.DataLoaderIterator):
                iterator = iterator._iterator
            iterator.close()


def _parts(data: Any) -> Iterator[Any]:
    todo = [data]
    while todo:
        part = todo.pop()
        yield part
        todo += getattr(part, "parents", ())


def _require_end(data: Any) -> None:
    for part in _parts(data):
        name = type(part).__name__
        is_endless = isinstance(part, grain.MapDataset) and len(part) >= _ENDLESS
        if is_endless or (name == "RepeatIterDataset" and part._num_epochs is None):
            raise UnsupportedDataError(
                f"the data never ends, because of its {name}: give the number of epochs, 1 for a cache"
            )
