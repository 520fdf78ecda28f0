"""Open a stream: check the arguments, and find the start; or read a stream's batches by number.

tf.data, Keras, Grain and the worker processes of PyTorch request batches by number, and
count them themselves.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from yogadl._core.arguments import bool_argument, int_argument
from yogadl._core.protocols import Column, DataRef, Memory, RandomAccess, Stream
from yogadl._order import Blocks, BlocksOfGroups, Drawn, Mixture, SequencesOfEpisodes, make_order
from yogadl._stream.cursor import read_skipped
from yogadl._stream.cut import Cut, Flags, Point, Remainder, Rows, Shard
from yogadl._stream.items import Batches
from yogadl._stream.run import RowBlocks, Run
from yogadl._stream.stream import Loader, RecordStream
from yogadl.errors import ConfigurationError, CursorError


class NumberedBatches:
    """Reads the batches of a stream in any order: batch j of epoch e, from the stream's start in that epoch.

    Safe to use from any number of threads and after a fork; pickles if the stream does, without the rows that
    it keeps ready. It claims no epochs.

    Args:
        stream: The stream.
        cut: How the stream is cut into batches; if it skips finished epochs, the batches start with the next
            epoch if none is left from the stream's start on.
        padding_field: The name of a field to add to each batch: a bool for each record, true for padding.

    Attributes:
        stream: The stream, from where the batches start.
        numbering: The numbers of the batches.
        padding_field: The name of the padding field, if any.

    Raises:
        ConfigurationError: if the arguments make no sense.

    Example:
        >>> import yogadl
        >>> from yogadl._stream import Cut, NumberedBatches
        >>> batches = NumberedBatches(yogadl.from_source([10, 11, 12, 13, 14]).stream(), Cut(2))
        >>> batches.count(epoch=0), batches.batch(epoch=1, number=1).tolist()
        (3, [12, 13])
    """

    def __init__(self, stream: RecordStream, cut: Cut, *, padding_field: str | None = None) -> None:
        self.size = cut.size
        self.stream = stream = stream.past_finished(cut)
        self._run = run = stream.run.counted_anew()
        self.numbering = run.numbering(cut)
        self._finish = Batches(run, padding_field=padding_field).finish()
        self.padding_field = padding_field
        self._blocks = RowBlocks(run, self.size)

    def __reduce__(self) -> Any:
        make = partial(NumberedBatches, padding_field=self.padding_field)
        return make, (self.stream, self.numbering.cut)

    def count(self, epoch: int) -> int:
        """Return the number of batches in an epoch; in the stream's first epoch, from its start on."""
        return self.numbering.count(epoch)

    def batch(self, epoch: int, number: int) -> Any:  # a tree like the record's
        """Read one batch.

        Raises:
            IndexError: if the epoch has no such batch.
        """
        return self._finish(*self.read(epoch, number))

    def read(self, epoch: int, number: int, memory: Memory | None = None) -> tuple[list[Column], Flags]:
        """Read one batch: one column a field, and its padding flags.

        Raises:
            IndexError: if the epoch has no such batch.
        """
        rows = self.rows(epoch, number)
        return list(self._run.read(rows, None, memory)), rows.padding

    def rows(self, epoch: int, number: int) -> Rows:
        """Return the rows of one batch, and announce the rows that follow.

        Raises:
            IndexError: if the epoch has no such batch.
        """
        count = self.numbering.count(epoch)
        if not 0 <= number < count:
            raise IndexError(f"epoch {epoch} has no batch {number}: it has {count}")
        origin = Point(epoch, self._run.origin(epoch))
        first = number * self.size
        last = min(first + self.size, self._run.shard.own(origin.position))
        return self._blocks.rows(origin, first, last)


def open_stream(
    source: RandomAccess,
    shard: Shard,
    *,
    start_offset: int,
    shuffle: bool | Blocks | BlocksOfGroups | SequencesOfEpisodes | Drawn | Mixture,
    skip_shuffle_at_epoch_end: bool,
    shuffle_seed: int | None,
    cursor: Mapping[str, Any] | None,
    rebind: bool,
) -> RecordStream:
    """Return a stream over a shard of a source; the other arguments are those of `RecordsRef.stream`.

    Raises:
        ConfigurationError: if an argument, or two together, make no sense.
        CursorError: if the cursor is no cursor, or belongs to other data or another order.
    """
    record_shuffle = shuffle.shuffle if isinstance(shuffle, Drawn | Mixture) else shuffle
    if not isinstance(record_shuffle, bool | np.bool_ | Blocks | BlocksOfGroups | SequencesOfEpisodes):
        raise ConfigurationError(
            f"shuffle must be True, False or an order such as yogadl.Blocks(...), not {record_shuffle!r}"
        )
    if isinstance(start_offset, bool | np.bool_):
        raise ConfigurationError(
            f"start_offset must be a number of records, not {start_offset}: to shuffle, pass shuffle=True"
        )
    seed = 0 if shuffle_seed is None else int_argument("shuffle_seed", shuffle_seed, None)
    skip = bool_argument("skip_shuffle_at_epoch_end", skip_shuffle_at_epoch_end)
    offset = int_argument("start_offset", start_offset)
    if offset and cursor is not None:
        raise ConfigurationError("start_offset and cursor both say where to start: pass one of them")
    run = Run(
        source=source,
        order=make_order(shard.records, shuffle, seed),
        shard=shard,
        start=shard.delivered(Point(0, 0), offset),
        seed=seed if shuffle or shuffle_seed is not None else None,
        skip_shuffle_at_epoch_end=skip and bool(shuffle),
    )
    run.require_batch(None)
    if offset and run.order.lanes is not None:
        raise ConfigurationError(
            "Sequences can't begin at start_offset, in the middle of episodes whose states are not there: "
            "pass cursor=, which was saved with the states"
        )
    if cursor is not None:
        resume = _resume_mix if isinstance(shuffle, Mixture) else _resume
        run = resume(run, cursor, bool_argument("rebind", rebind))
    return RecordStream(run)


def _resume(run: Run, cursor: Mapping[str, Any], rebind: bool) -> Run:
    """Return the run that continues from a cursor."""
    skipped = read_skipped(cursor)
    # A cursor that leaves out positions is of another order than one of lanes, and is refused for that.
    if skipped.ranges and skipped.records == run.shard.records and run.order.lanes is None:
        run = run.skipping(skipped)
    return run.resumed(cursor, rebind)


def _resume_mix(run: Run, cursor: Mapping[str, Any], rebind: bool) -> Run:
    """Return the run that continues from a cursor, which may have other weights."""
    order: Any = run.order
    saved = order.as_saved(cursor)
    shard = replace(run.shard, records=saved.records)
    resumed = _resume(replace(run, order=saved, shard=shard), cursor, rebind)
    epoch, position = cursor["epoch"], cursor["position"]
    if position < saved.start(epoch):
        raise CursorError(
            f"the cursor's 'position' is {position}, but its weights began at {saved.start(epoch)}: use a "
            "cursor as state_dict() returned it"
        )
    if saved.mixture == order.mixture:
        return resumed
    if run.skip_shuffle_at_epoch_end or resumed.skipped is not None:
        last = resumed.skipped.ranges[-1][1] if resumed.skipped is not None else 0
        reading = f"read until the 'position' of its cursor is {last} or more, " if position < last else ""
        why = (
            "with skip_shuffle_at_epoch_end they can't change"
            if run.skip_shuffle_at_epoch_end
            else "weights can't change while positions are left out, since others would be there: open the "
            f"stream with the cursor's weights first, {reading}and take the cursor of "
            "stream.skip_ranges([]).cursor(0)"
        )
        raise CursorError(
            f"the cursor is of a mix with the weights {list(saved.mixture.weights)}, the stream has "
            f"{list(order.mixture.weights)}: {why}"
        )
    order, position = saved.changed(epoch, position, order.mixture)
    return replace(run, order=order, start=Point(epoch, position))


def open_shard(
    records: int,
    *,
    shard_rank: int,
    num_shards: int,
    drop_shard_remainder: bool,
    pad_shard_remainder: bool,
) -> Shard:
    """Return a shard of this many records; the other arguments are those of `RecordsRef.stream`.

    Raises:
        ConfigurationError: if an argument, or two together, make no sense.
    """
    drop = bool_argument("drop_shard_remainder", drop_shard_remainder)
    pad = bool_argument("pad_shard_remainder", pad_shard_remainder)
    ranks, rank = int_argument("num_shards", num_shards, 1), int_argument("shard_rank", shard_rank)
    if rank >= ranks:
        raise ConfigurationError(
            f"shard_rank is {rank}, but num_shards is {ranks}: pass a rank from 0 to {ranks - 1}"
        )
    if drop and pad:
        raise ConfigurationError("drop_shard_remainder and pad_shard_remainder exclude each other: pass one")
    remainder: Remainder = "drop" if drop else "pad" if pad else "uneven"
    return Shard(records, rank, ranks, remainder)


def as_stream(given: Any) -> RecordStream:  # Any: the value is checked here
    """Return the argument, if it is a stream of this library.

    Raises:
        ConfigurationError: if it is anything else; the error tells what to pass instead.
    """
    if isinstance(given, RecordStream):
        return given
    kind = type(given).__name__
    if isinstance(given, Loader):
        raise ConfigurationError("pass the stream itself, and batch_size=, instead of stream.batch(...)")
    if isinstance(given, DataRef):
        raise ConfigurationError(
            f"a {kind} has no order of reading: pass a stream of it, such as ref.stream(shuffle=True)"
        )
    if isinstance(given, Stream):
        raise ConfigurationError(
            f"your own {kind} can only be read forwards, once: pass what DataRef.stream of this library "
            "returned; yogadl.from_source(...) makes a DataRef of anything with a length and items"
        )
    raise ConfigurationError(
        f"a {kind} is no stream: pass what ref.stream(...) returned, where ref comes from storage.fetch(...) "
        "or yogadl.from_source(...)"
    )


def as_order(given: Any) -> RecordStream:  # Any: the value is checked here
    """Return the argument, if it is a stream of which only the indices will be used.

    Raises:
        ConfigurationError: if it is no stream, or has functions, which would never be called.
    """
    stream = as_stream(given)
    if stream.run.chain is not None:
        raise ConfigurationError(
            f"a sampler gives only indices, so {stream.run.chain} would not be called: pass the "
            "stream itself to make_dataloader, or let the DataLoader read ref.map(...)"
        )
    if stream.run.order.lanes is not None and stream.source.is_drawn:
        raise ConfigurationError(
            "a sampler gives only indices, so the field of Sequences that marks first steps would be "
            "missing: pass the stream itself to make_dataloader, or Sequences(..., first=None)"
        )
    if stream.source.is_drawn:
        raise ConfigurationError(
            "a sampler gives only indices, and each epoch of packed records has other rows: pass the stream "
            "itself to make_dataloader"
        )
    return stream
