"""Samplers of a `grain.DataLoader`, which return the number of the next record or batch."""

import json
import sys
from dataclasses import asdict
from typing import Any, Final

import grain
import numpy as np

from yogadl._dataref import takes_a_stream
from yogadl._stream import Cut, NumberedBatches, Numbering, RecordStream, as_order
from yogadl.adapters.grain._assignment import Assignment, Effect
from yogadl.adapters.grain._numbering import length_of, random_key, to_json
from yogadl.errors import ConfigurationError

_AT_ONCE: Final = 1024  # the number of records whose indices are computed together


class _ShardPlaces:
    """The places of one shard, as Grain counts them: place i of shard r of R is number i * R + r.

    Attributes:
        numbering: The numbering of the items.
    """

    def __init__(self, numbering: Numbering, length: int) -> None:
        self.numbering = numbering
        self._rank, self._ranks = numbering.shard.rank, numbering.shard.ranks
        self._places = length
        # Grain reads this attribute if a DataLoader gets no shard_options.
        self._shard_options = grain.sharding.ShardOptions(self._rank, self._ranks)

    def __len__(self) -> int:
        """Return the places of all shards as if each had as many as this one: Grain divides by the shards."""
        return min(sys.maxsize, self._places * self._ranks)

    def _place(self, index: int) -> int:
        place, rank = divmod(index, self._ranks)
        if rank != self._rank:
            raise ConfigurationError(
                f"the DataLoader reads shard {rank} of {self._ranks}, the stream is shard {self._rank}: "
                "leave out shard_options, the stream says them"
            )
        if not 0 <= place < self._places:
            raise IndexError(f"there is no place {place}: the sampler has {self._places}")
        return place

    def _rng(self, item: int) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(key=random_key(self.numbering, item)))


class Sampler(_ShardPlaces):
    """The records of a stream in its order, for a `grain.DataLoader` over `DataSource`.

    Immutable, thread-safe; picklable if the stream is. Every iteration of the loader begins at the stream's
    start. Grain's checkpoints contain the ``repr`` of the sampler, from which `cursor` computes the cursor.

    Args:
        stream: The stream, which sets the records, the start, the order and the shard. Leave out
            ``shard_options`` of the DataLoader, or pass the same shard.
        epochs: The number of epochs; ``None``: without end.

    Raises:
        ConfigurationError: if shards of unequal length would drift into different epochs.

    Example:
        >>> import grain, yogadl
        >>> from yogadl.adapters import grain as yogadl_grain
        >>> ref = yogadl.from_source([10, 11, 12, 13, 14])
        >>> sampler = yogadl_grain.Sampler(ref.stream(shard_rank=1, num_shards=2))
        >>> source = yogadl_grain.DataSource(ref)
        >>> [int(record) for record in grain.DataLoader(data_source=source, sampler=sampler)]
        [11, 13]
    """

    @takes_a_stream
    def __init__(self, stream: RecordStream, epochs: int | None = 1) -> None:
        numbering = as_order(stream).run.numbering(Cut(epochs=epochs))
        numbering.cut.warn_if_finished(numbering.shard, numbering.cut.span(numbering.start))
        super().__init__(numbering, length_of(numbering))
        self._batches = NumberedBatches(stream, _AT_ONCE)
        self._kept: tuple[int, int, list[int]] = (-1, 0, [])

    def __getitem__(self, index: int) -> grain.RecordMetadata:
        place = self._place(index)
        epoch, row = self.numbering.locate(place)
        number, within = divmod(row, _AT_ONCE)
        kept = self._kept
        if kept[:2] != (epoch, number):
            kept = (epoch, number, self._batches.rows(epoch, number).indices.tolist())
            self._kept = kept
        return grain.RecordMetadata(index, kept[2][within], self._rng(place))

    def __repr__(self) -> str:
        return f"yogadl.Sampler({json.dumps(to_json(self.numbering))})"


class ItemSampler(_ShardPlaces):
    """The numbers of items, records or batches, assigned to workers; after the last item, empty places.

    `is_random` tells whether any operation needs random generators, as making them doubles the time.
    """

    def __init__(
        self, numbering: Numbering, assignment: Assignment, effect: Effect, *, is_random: bool
    ) -> None:
        super().__init__(numbering, assignment.length)
        self._items = length_of(numbering)
        self._assignment = assignment
        self._effect = effect
        self._is_random = is_random

    def __getitem__(self, index: int) -> grain.RecordMetadata:
        item = min(self._assignment.item(self._place(index)), self._items)
        rng = self._rng(item) if self._is_random and item < self._items else None
        return grain.RecordMetadata(index, item, rng)

    def __repr__(self) -> str:
        described: dict[str, Any] = to_json(self.numbering)
        described["effect"] = asdict(self._effect)
        return f"yogadl.ItemSampler({json.dumps(described)})"
