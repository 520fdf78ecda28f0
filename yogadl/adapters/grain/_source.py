"""Read Grain's datasets and loaders as sources, in order."""

import sys
from collections.abc import Iterator
from typing import Any, Final

import grain

from yogadl._core.forms import PLAIN, Forms
from yogadl._sources.sources import IterableSource, Source
from yogadl.adapters.grain._items import allow_workers
from yogadl.errors import UnsupportedDataError

# Grain's classes have no annotations, so `Any` stands for its datasets.

# A dataset without end has a length of `sys.maxsize`, or of `sys.maxsize` divided by the shards.
_ENDLESS: Final = sys.maxsize >> 20

# Map datasets that have an element at every index; in all others some elements may be missing.
_WITHOUT_GAPS: Final = frozenset(
    {
        *("SourceMapDataset", "RangeMapDataset", "StreamMapDataset", "MapMapDataset", "RandomMapMapDataset"),
        *("MapWithIndexMapDataset", "BatchMapDataset", "ShuffleMapDataset", "WindowShuffleMapDataset"),
        *("ConcatenateMapDataset", "MixedMapDataset", "ZipMapDataset", "_WithSeedMapDataset"),
        *("SliceMapDataset", "RepeatMapDataset"),
    }
)


def source(data: Any, forms: Forms = PLAIN) -> Source | None:  # any object of Grain
    """Return the source in Grain's data, or ``None`` if it can be read by position, like any list.

    Args:
        data: A `grain.MapDataset`, `grain.IterDataset` or `grain.DataLoader`, of single records.
        forms: The caller's statements about the values of records.

    Raises:
        UnsupportedDataError: if the data never ends, or a record can't be stored.
    """
    if isinstance(data, grain.MapDataset):
        _require_end(data)
        if all(type(stage).__name__ in _WITHOUT_GAPS for stage in _stages(data)):
            return None
        data = data.to_iter_dataset(grain.ReadOptions(0, 0))
    elif isinstance(data, grain.IterDataset):
        _require_end(data)
    elif isinstance(data, grain.DataLoader):
        _require_end(data._dataset)
    else:
        return None
    allow_workers()
    return IterableSource(_elements(data), forms)


def _elements(data: Any) -> Iterator[Any]:
    """Yield Grain's elements, then close Grain's iterator, which may have worker processes."""
    iterator = iter(data)
    try:
        yield from iterator
    finally:
        if isinstance(iterator, grain.DataLoaderIterator):
            iterator = iterator._iterator
        iterator.close()


def _stages(data: Any) -> Iterator[Any]:
    todo = [data]
    while todo:
        stage = todo.pop()
        yield stage
        todo += getattr(stage, "parents", ())


def _require_end(data: Any) -> None:
    for stage in _stages(data):
        name = type(stage).__name__
        is_endless = isinstance(stage, grain.MapDataset) and len(stage) >= _ENDLESS
        if is_endless or (name == "RepeatIterDataset" and stage._num_epochs is None):
            raise UnsupportedDataError(
                f"the data never ends, because of its {name}: give the number of epochs, 1 for a cache"
            )
