"""Samplers of a DataLoader: the order of a stream, and the position from which to continue."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from yogadl._core.arguments import flag, whole
from yogadl._dataref import takes_a_stream
from yogadl._stream import (
    Cut,
    Point,
    Progress,
    Read,
    Recipe,
    RecordStream,
    Restartable,
    Run,
    StreamIterator,
    as_order,
    write_cursor,
)
from yogadl.adapters._checks import cut_of
from yogadl.adapters.torch._shards import warn_of_shards


@dataclass(frozen=True)
class _Indices:
    """Items that are indices: a single index, or the list of a batch's indices."""

    run: Run
    is_batched: bool

    def reads(self, cut: Cut, start: Point, end: int | None) -> Iterator[Read]:
        """Yield the indices from `start` to the epoch `end`; no records are read."""
        for rows in self.run.chunks(cut, start, end):
            indices = rows.indices.tolist()
            if self.is_batched:
                indices = [indices[first : first + cut.size] for first in range(0, len(indices), cut.size)]
            yield len(indices), iter(indices)


class SamplerIterator(StreamIterator):
    """An iterator over indices; its state stays within the epoch, also after the last index.

    A DataLoader requests indices before it delivers records. The request for the last index therefore does
    not mean that the epoch is over. StatefulDataLoader records that itself.
    """

    __slots__ = ()

    def state_dict(self) -> dict[str, Any]:
        """Return the cursor after the indices requested so far."""
        progress, run = self._progress, self._recipe.run
        if progress.span is None or not progress.is_finished:
            return super().state_dict()
        return write_cursor(run.identity(), run.shard.end(progress.span.start))

    get_state = state_dict


class _StreamSampler(Restartable):
    """The indices of a stream: the common part of both samplers."""

    def __init__(self, stream: RecordStream, cut: Cut, *, is_batched: bool) -> None:
        self.stream = as_order(stream)
        recipe = Recipe(_Indices(stream.run, is_batched), cut)
        warn_of_shards(stream, cut)
        self._read_by(recipe)

    def __iter__(self) -> SamplerIterator:
        progress = Progress()
        self._claims.track(progress)
        return SamplerIterator(self._recipe, progress, self._claims)

    def __len__(self) -> int:
        return self._recipe.cut.items(len(self.stream))


class Sampler(_StreamSampler, torch.utils.data.Sampler):  # type: ignore[misc]  # torch has no types where they are checked
    """The indices of a stream's records, one by one: a sampler for any DataLoader.

    Each `iter` is the stream's next epoch, of its own shard. The dataset must be of the same reference as the
    stream: ``DataLoader(Dataset(ref), batch_size=32, sampler=Sampler(ref.stream(shuffle=True)))``.

    `state_dict` is the cursor after the *requested* indices. In torchdata's StatefulDataLoader these are the
    delivered records; see `cursor`. A plain DataLoader with workers requests indices ahead: with that, count
    the delivered records yourself and call ``stream.cursor(delivered=...)``, or use `make_dataloader`.
    Picklable.

    Args:
        stream: The stream, of `DataRef.stream`. Records that pad its shard are yielded like all others.

    Raises:
        ConfigurationError: if `stream` is no stream of a reference.

    Example:
        >>> import yogadl
        >>> from yogadl.adapters import torch as yogadl_torch
        >>> ref = yogadl.from_source([10, 11, 12, 13, 14])
        >>> sampler = yogadl_torch.Sampler(ref.stream(shard_rank=1, num_shards=2))
        >>> list(sampler), len(sampler)
        ([1, 3], 2)
    """

    @takes_a_stream
    def __init__(self, stream: RecordStream) -> None:
        _StreamSampler.__init__(self, stream, Cut(), is_batched=False)


class BatchSampler(_StreamSampler, torch.utils.data.Sampler):  # type: ignore[misc]  # see above
    """Lists of indices, one for each batch: a batch sampler for any DataLoader; otherwise like `Sampler`.

    Args:
        stream: The stream, of `DataRef.stream`.
        batch_size: The number of records in a batch.
        drop_last: Whether to leave out an epoch's last batch if it is short.

    Raises:
        ConfigurationError: if an argument is invalid.

    Example:
        >>> import yogadl
        >>> from yogadl.adapters import torch as yogadl_torch
        >>> ref = yogadl.from_source([10, 11, 12, 13, 14])
        >>> sampler = yogadl_torch.BatchSampler(ref.stream(), 2)
        >>> list(sampler), len(sampler)
        ([[0, 1], [2, 3], [4]], 3)
    """

    @takes_a_stream
    def __init__(self, stream: RecordStream, batch_size: int, drop_last: bool = False) -> None:
        self.batch_size = whole("batch_size", batch_size, 1)
        self.drop_last = flag("drop_last", drop_last)
        cut = cut_of(self.batch_size, self.drop_last)
        _StreamSampler.__init__(self, stream, cut, is_batched=True)
