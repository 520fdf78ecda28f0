"""Be a `grain.MapDataset`: the items of a stream by index, where the index also says the epoch."""

import operator
from typing import Any

import grain

from yogadl._stream import Numbering
from yogadl.adapters.grain._numbering import length_of
from yogadl.adapters.grain._sources import Batches, Records


class StreamMapDataset(grain.MapDataset):  # type: ignore[misc]  # of Any: Grain has no annotations
    """Give a stream's items, records or batches; what `map_dataset` returns.

    Its length is how many there are; an index behind that belongs to a later epoch, as `repeat` asks for it,
    and a negative one counts from the end.
    Immutable, thread-safe; pickles if the stream does.

    Attributes:
        numbering: Which items there are.
    """

    def __init__(self, numbering: Numbering, source: Records | Batches) -> None:
        super().__init__()
        self.numbering = numbering
        self._source = source

    def __len__(self) -> int:
        return length_of(self.numbering)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        number = operator.index(index)
        return self._source[number if number >= 0 else self._from_the_end(number)]

    def _from_the_end(self, number: int) -> int:
        """Return which element a negative index is of: round and round, as Grain's own sources count."""
        if self.numbering.cut.epochs is None or not len(self):
            what = "without end" if len(self) else "without elements"
            raise IndexError(f"a dataset {what} has no element {number}")
        return number % len(self)

    def to_iter_dataset(
        self, read_options: grain.ReadOptions | None = None, *, allow_nones: bool = False
    ) -> grain.IterDataset:
        """Return the dataset to iterate over, without threads by default: the reading is not worth them."""
        options = grain.ReadOptions(0, 0) if read_options is None else read_options
        return super().to_iter_dataset(options, allow_nones=allow_nones)

    def __str__(self) -> str:
        return f"StreamMapDataset({self._source!r})"
