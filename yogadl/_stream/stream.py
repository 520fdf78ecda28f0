"""Stream records: the order of a source, a shard of it, and where to begin."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from yogadl._interfaces import DataRef, Indices, RandomAccess, Stream
from yogadl._order import Blocks, make_order
from yogadl._spec import Spec
from yogadl._stream import cursor as cursors
from yogadl._stream.arguments import explains_names, flag, whole
from yogadl._stream.batch import Loader, make_batches, make_cut, read_ahead
from yogadl._stream.claims import Recipe
from yogadl._stream.items import Records
from yogadl._stream.iterator import Restartable, begin
from yogadl._stream.rows import Cut, Point, Remainder, Shard
from yogadl._stream.run import Run
from yogadl.errors import ConfigurationError


@dataclass(frozen=True)
class Plan:
    """What a shard reads in one whole epoch, before reading anything.

    Attributes:
        records: How many records.
        bytes: About how many bytes, counted as they are in memory; exact where no field varies in length.
        requests: How many requests to a store; a local source makes none.
        disk: How many bytes of local disk are filled.
        price: What the requests cost in dollars; None where nobody charges.
    """

    records: int
    bytes: int
    requests: int = 0
    disk: int = 0
    price: float | None = None


class RecordStream(Restartable, Stream):
    """Deliver a shard's records one by one, an epoch at a time; or, by `batch`, many at once.

    Immutable but for its count of epochs: each `iter` claims the next epoch at its first `next`.
    Thread-safe, though each iterator belongs to one thread; safe to carry across a fork; pickles if
    its source does, count included.

    Example:
        >>> import yogadl
        >>> stream = yogadl.from_source([10, 11, 12, 13, 14]).stream(shard_rank=1, num_shards=2)
        >>> [int(record) for record in stream]
        [11, 13]
        >>> stream.indices(epoch=0).tolist()
        [1, 3]
    """

    def __init__(self, run: Run, recipe: Recipe | None = None) -> None:
        self._run = run
        self._read_by(recipe or Recipe(run, Cut(), Records()))
        # Not a method of ours: that would be a cycle, and a dropped stream would wait for the collector.
        super().__init__(partial(begin, self._recipe, self._claims), run.shard.own(0))

    def __repr__(self) -> str:
        shard = self._run.shard
        name = self._run.order.describe().get("name")
        return f"<RecordStream of {shard.records} records, order {name}, shard {shard.rank} of {shard.ranks}>"

    @property
    def source(self) -> RandomAccess:
        """Where the records come from."""
        return self._run.source

    @property
    def spec(self) -> Spec:
        """The structure of a record."""
        return self._run.source.spec

    @property
    def run(self) -> Run:
        """Which records this stream reads: the source, its order and the shard together."""
        return self._run

    @property
    def start(self) -> Point:
        """The epoch and the position in it that the first `iter` starts at."""
        return self._run.start

    @property
    def shard(self) -> Shard:
        """Which share of an epoch this stream reads."""
        return self._run.shard

    @explains_names({"ref.stream": DataRef.stream, "loader.prefetch": Loader.prefetch})
    def batch(
        self,
        n: int,
        drop_remainder: bool = False,
        epochs: int | None = 1,
        across_epochs: bool = False,
        collate: Callable[[list[Any]], Any] | None = None,
        *,
        padding_field: str | None = None,
        skip_finished_epoch: bool = False,
    ) -> Loader:
        """Return a loader of batches, which starts where this stream starts and counts for itself.

        Args:
            n: Records in a batch.
            drop_remainder: Leave out an epoch's last batch if it is short.
            epochs: How many epochs one iterator reads; None: it never ends.
            across_epochs: Fill an epoch's last batch from the next epoch.
            collate: Called with the list of a batch's records, instead of stacking them.
            padding_field: The name under which each batch (each record, with `collate`) says what is
                padding, by a bool a record.
            skip_finished_epoch: For trainers that begin an epoch whenever they like: each iterator goes on
                where the last one stopped, also before a cursor was saved, with the next epoch if no batch is
                left of that one. Otherwise each iterator reads the next epoch, and the first after a cursor
                the rest of one, which may be nothing.

        Raises:
            ConfigurationError: if an argument makes no sense, or if several epochs are asked for and
                shards of unequal length would drift into different ones.
        """
        cut = make_cut(self._run, n, drop_remainder, epochs, across_epochs, skip_finished_epoch)
        return Loader(self, Recipe(self._run, cut, make_batches(self._run, collate, padding_field)))

    @explains_names({"ref.stream": DataRef.stream, "stream.batch": batch})
    def prefetch(self, n: int, workers: int = 0) -> "RecordStream":
        """Return a stream that reads up to `n` records ahead, in a thread; see `Loader.prefetch`.

        For throughput use `batch` first: handing over costs more than reading a small record. Batches
        of the returned stream are not read ahead.

        Raises:
            ConfigurationError: if an argument makes no sense.
        """
        return RecordStream(self._run, read_ahead(self._recipe, n, workers))

    def indices(self, epoch: int = 0, start: int = 0, stop: int | None = None) -> Indices:
        """Return which records this shard reads in an epoch, in order, without reading any.

        Args:
            epoch: Which epoch. In the epoch that the stream starts in, rows count from its start.
            start: The first row.
            stop: The row to stop before; None or too large: to the epoch's end.

        Raises:
            ConfigurationError: if an argument is negative or no whole number.
        """
        point = Point(whole("epoch", epoch), self._run.origin(epoch))
        own = self._run.shard.own(point.position)
        last = own if stop is None else min(own, whole("stop", stop))
        return self._run.chunk(point, min(whole("start", start), last), last)[0]

    def cursor(self, delivered: int, epoch: int | None = None) -> dict[str, Any]:
        """Return the cursor that stands where this shard has handed out so many records.

        Args:
            delivered: How many of its own: all that it has in an epoch leave the cursor at the epoch's end,
                not in the next. Where shards are uneven, one that is shorter gets there a record early.
            epoch: The epoch in which they are counted, from its start (or where this stream starts in
                it); None: from where this stream starts, across epochs.

        Raises:
            ConfigurationError: if the epoch has not so many.
        """
        records, shard = whole("delivered", delivered), self._run.shard
        point = self._run.start
        if epoch is not None:
            point = Point(whole("epoch", epoch), self._run.origin(epoch))
            most = shard.rows(point.position)
            if records > most:
                raise ConfigurationError(
                    f"{records} can't be delivered: a shard's epoch {epoch} has {most} records"
                )
            records = min(records, shard.own(point.position))  # which may be one less: counted by another's
        return cursors.write(self._run.identity(), shard.delivered(point, records))

    def past_finished(self, cut: Cut) -> "RecordStream":
        """Return the stream that starts where whoever cuts it so begins to read; see `Cut.past_finished`."""
        start = cut.past_finished(self._run.shard, cut.span(self._run.start)).start
        return self if start == self._run.start else RecordStream(replace(self._run, start=start))

    def plan(self) -> Plan:
        """Return what one whole epoch of this shard reads."""
        records = len(self)
        return Plan(records, records * self._run.source.record_bytes)


def open_stream(
    source: RandomAccess,
    *,
    start_offset: int = 0,
    shuffle: bool | Blocks = False,
    skip_shuffle_at_epoch_end: bool = False,
    shuffle_seed: int | None = None,
    shard_rank: int = 0,
    num_shards: int = 1,
    drop_shard_remainder: bool = False,
    pad_shard_remainder: bool = False,
    cursor: Mapping[str, Any] | None = None,
    rebind: bool = False,
) -> RecordStream:
    """Return a stream over a source; the arguments are those of `DataRef.stream`.

    Args:
        source: Where the records come from.
        start_offset: Start after so many records of this shard; later epochs are whole.
        shuffle: True, or a named order such as `yogadl.Blocks`.
        skip_shuffle_at_epoch_end: Read every epoch in the order of the first.
        shuffle_seed: Which shuffle; None is 0, never a random one.
        shard_rank: Which shard.
        num_shards: Of how many.
        drop_shard_remainder: Give every shard the same number of records by leaving out the last few.
        pad_shard_remainder: Give every shard the same number by repeating from the epoch's start.
        cursor: Start there, wherever it was saved.
        rebind: Accept a cursor of other data of equal length, by the caller's word.

    Raises:
        ConfigurationError: if an argument, or two together, make no sense.
        CursorError: if the cursor is none, or is one of other data or another order.
    """
    if not isinstance(shuffle, bool | np.bool_ | Blocks):
        raise ConfigurationError(
            f"shuffle must be True, False or an order such as yogadl.Blocks(...), not {shuffle!r}"
        )
    if isinstance(start_offset, bool | np.bool_):
        raise ConfigurationError(
            f"start_offset must be a number of records, not {start_offset}: to shuffle, pass shuffle=True"
        )
    seed = 0 if shuffle_seed is None else whole("shuffle_seed", shuffle_seed, None)
    skip = flag("skip_shuffle_at_epoch_end", skip_shuffle_at_epoch_end)
    drop = flag("drop_shard_remainder", drop_shard_remainder)
    pad = flag("pad_shard_remainder", pad_shard_remainder)
    shard = _shard(len(source), shard_rank, num_shards, drop, pad)
    offset = whole("start_offset", start_offset)
    if offset and cursor is not None:
        raise ConfigurationError("start_offset and cursor both say where to start: pass one of them")
    run = Run(
        source=source,
        order=make_order(shard.records, shuffle, seed),
        shard=shard,
        start=shard.delivered(Point(0, 0), offset),
        seed=seed if shuffle else None,
        skip_shuffle_at_epoch_end=skip and bool(shuffle),
    )
    if cursor is not None:
        point = cursors.read(run.identity(), cursor, flag("rebind", rebind))
        run = replace(run, start=point)
    return RecordStream(run)


def _shard(records: int, rank: int, ranks: int, drop: bool, pad: bool) -> Shard:
    """Check which share of the records is asked for."""
    ranks, rank = whole("num_shards", ranks, 1), whole("shard_rank", rank)
    if rank >= ranks:
        raise ConfigurationError(
            f"shard_rank is {rank}, but num_shards is {ranks}: pass a rank from 0 to {ranks - 1}"
        )
    if drop and pad:
        raise ConfigurationError("drop_shard_remainder and pad_shard_remainder exclude each other: pass one")
    remainder: Remainder = "drop" if drop else "pad" if pad else "uneven"
    return Shard(records, rank, ranks, remainder)
