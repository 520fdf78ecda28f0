"""The stream of records, as users hold it."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from yogadl._core.arguments import explains_names, flag, whole
from yogadl._core.protocols import DataRef, Indices, Item_co, Made, RandomAccess, Stream
from yogadl._core.spec import Spec
from yogadl._stream.cursor import write_cursor
from yogadl._stream.cut import Cut
from yogadl._stream.items import Batches, Records
from yogadl._stream.iterator import Restartable, begin
from yogadl._stream.loader import Loader
from yogadl._stream.recipe import Recipe
from yogadl._stream.run import Counters, Run
from yogadl._stream.shard import Point, Shard
from yogadl._stream.skipped import Skipped
from yogadl._stream.workers import InWorkers
from yogadl.errors import ConfigurationError

if TYPE_CHECKING:
    from yogadl._core.protocols import Prices
    from yogadl._stream.plan import Plan


class RecordStream(Restartable[Item_co], Stream[Item_co]):
    """Delivers a shard's records one by one, an epoch at a time; for batches call `batch`.

    Immutable except for its count of epochs: each `iter` claims the next epoch at its first `next`.
    Thread-safe, though each iterator belongs to one thread; safe to use after a fork; pickles if its source
    does, count included.

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
        self._read_by(recipe or Recipe(Records(run), Cut()))
        # Not a method of this object: the cycle would keep a dropped stream until the garbage collector runs.
        super().__init__(partial(begin, self._recipe, self._claims), run.shard.own(0))

    def __repr__(self) -> str:
        shard = self._run.shard
        name = self._run.order.describe().get("name")
        skipped = f", skips {list(self._run.skipped.ranges)}" if self._run.skipped else ""
        passed = f"{skipped}, {self._run.chain}" if self._run.chain else skipped
        share = f"shard {shard.rank} of {shard.ranks}"
        return f"<RecordStream of {shard.records} records, order {name}, {share}{passed}>"

    @property
    def source(self) -> RandomAccess:
        """The source of the records."""
        return self._run.source

    @property
    def spec(self) -> Spec:
        """The structure of a record."""
        return self._run.spec

    @property
    def run(self) -> Run:
        """The source, its order and the shard of this stream together."""
        return self._run

    @property
    def start(self) -> Point:
        """The epoch, and the position in it, at which the first `iter` starts."""
        epoch, position = self._run.start
        return Point(epoch, self._run.identity().skipped.place(position))

    @property
    def shard(self) -> Shard:
        """The share of an epoch that this stream reads."""
        return self._run.shard

    @explains_names()
    def map(self, fn: Callable[[Item_co], Made], *, spec: Any = None) -> "RecordStream[Made]":
        """Return a stream of ``fn(record)``, in the same order, with the same cursors, for every framework.

        The function is called wherever records are read: this may be in several threads and processes at once
        (tf.data's threads, workers of PyTorch and Grain). It returns a tree of arrays, scalars and texts,
        like any record. If it returns something else, such as an image or a tensor, a batch has a list of
        those. All results must have the structure of the first record's result; the function is called once
        for that record in advance to find the structure.

        If the function raises, the batches before that record are delivered, and then a `StageError` names
        the record; the next `next` tries it again.

        Args:
            fn: Takes a record, and returns a record. It may change the record that it is given.
            spec: The shapes that vary, which the first result may not show; as in `yogadl.from_source`. With
                the `spec` of another `DataRef`, `fn` is not called in advance.

        Raises:
            ConfigurationError: if an argument makes no sense.
        """
        return self._through(fn, None, spec)

    @explains_names()
    def random_map(
        self,
        fn: Callable[[Item_co, "np.random.Generator"], Made],
        *,
        seed: int | None = None,
        spec: Any = None,
    ) -> "RecordStream[Made]":
        """Return a stream of ``fn(record, rng)``, for random augmentation that can be repeated; see `map`.

        The `numpy.random.Generator` depends only on the seed, the epoch, the record's position in it and the
        number of functions before this one: not on batches, shards or workers, nor on where a job resumed.

        Args:
            fn: Takes a record and a generator, and returns a record.
            seed: Any integer; the stream's `shuffle_seed` if not given, or 0.
            spec: As for `map`.

        Raises:
            ConfigurationError: if an argument makes no sense.
        """
        return self._through(fn, self._run.stage_seed(seed), spec)

    def _through(self, function: Callable[..., Any], seed: int | None, spec: Any) -> "RecordStream":
        return self._over(self._run.through(function, seed, spec))

    def _over(self, run: Run) -> "RecordStream":
        if isinstance(self._recipe.make, InWorkers):
            raise ConfigurationError(
                "these records come from worker processes: call prefetch last, after map, random_map and "
                "skip_ranges"
            )
        return RecordStream(run, replace(self._recipe, make=Records(run)))

    def skip_ranges(self, ranges: Any) -> "RecordStream[Item_co]":
        """Return a stream that leaves out these positions, such as records that made a training diverge.

        Positions are those of cursors: counted over all shards, and including positions that are left out.
        The ranges replace those of earlier calls, and hold in every epoch. All other records come in the same
        order and with the same random numbers as before. A cursor contains the ranges, and a stream that is
        opened with it has them. A cursor from before this call can be used, too.

        Args:
            ranges: Pairs (start, stop); ``[]`` leaves out nothing.

        Raises:
            ConfigurationError: if they are no ranges of an epoch's positions, or leave no position.

        Example:
            >>> import yogadl
            >>> stream = yogadl.from_source([10, 11, 12, 13, 14]).stream()
            >>> [int(record) for record in stream.skip_ranges([(1, 3)])]
            [10, 13, 14]
        """
        run = self._run
        return self._over(run.skipping(Skipped.of(ranges, run.identity().records)))

    @explains_names({"ref.stream": DataRef.stream, "loader.prefetch": Loader.prefetch})
    def batch(
        self,
        n: int,
        drop_remainder: bool = False,
        epochs: int | None = 1,
        across_epochs: bool = False,
        collate: Callable[[list[Item_co]], Made] | None = None,
        *,
        padding_field: str | None = None,
        skip_finished_epoch: bool = False,
        progress: bool = False,
    ) -> Loader[Made]:
        """Return a loader of batches, which starts where this stream starts and has its own count of epochs.

        Args:
            n: The number of records in a batch.
            drop_remainder: Whether to leave out an epoch's last batch if it is short.
            epochs: The number of epochs that one iterator reads; None: without end.
            across_epochs: Whether to fill an epoch's last batch from the next epoch.
            collate: Called with the list of a batch's records, instead of stacking them.
            padding_field: The name of a bool field to add to each batch (with `collate`, to each record):
                true for records that are padding.
            skip_finished_epoch: For trainers that begin epochs at their own times. If ``True``, each iterator
                continues where the last one stopped, even if no cursor was saved; if no batch is left in that
                epoch, it reads the next one. If ``False``, each iterator reads the next epoch; the first one
                after a cursor reads the rest of the cursor's epoch, which may be empty.
            progress: Whether to show the progress of each iterator, its speed, and the share of time that was
                spent waiting for it: as a bar on a terminal, otherwise as a line from time to time.

        Raises:
            ConfigurationError: if an argument makes no sense, or if several epochs are requested and shards
                of unequal length would drift into different ones.
        """
        cut = Cut(n, drop_remainder, epochs, across_epochs, skip_finished_epoch)
        made = Batches(replace(self._run, counters=Counters()), collate, padding_field)
        return Loader(self, Recipe(made, cut, is_shown=flag("progress", progress)))

    @explains_names({"ref.stream": DataRef.stream, "stream.batch": batch})
    def prefetch(
        self,
        n: int,
        workers: int = 0,
        threads: int = 1,
        *,
        worker_init: Callable[[int], object] | None = None,
        timeout_s: float | None = None,
        start_method: str | None = None,
        worker_threads: int = 1,
    ) -> "RecordStream[Item_co]":
        """Return a stream that reads up to `n` records ahead, in threads or in worker processes.

        The arguments are those of `Loader.prefetch`. Each request to a worker is for several records.

        If speed matters, call `batch` first: handing over a single small record takes longer than reading
        it. Batches of the returned stream are not read ahead.

        Raises:
            ConfigurationError: if an argument makes no sense.
        """
        asked = n, workers, threads, worker_init, timeout_s, start_method, worker_threads
        return RecordStream(self._run, self._recipe.prefetch(*asked))

    def indices(self, epoch: int = 0, start: int = 0, stop: int | None = None) -> Indices:
        """Return the indices of the records that this shard reads in an epoch, in order, without reading any.

        Args:
            epoch: The epoch. In the epoch that the stream starts in, rows count from its start.
            start: The first row.
            stop: The row to stop before; None or too large: the epoch's end.

        Raises:
            ConfigurationError: if an argument is negative or no whole number.
        """
        point = Point(whole("epoch", epoch), self._run.origin(epoch))
        own = self._run.shard.own(point.position)
        last = own if stop is None else min(own, whole("stop", stop))
        return self._run.rows(point, min(whole("start", start), last), last).indices

    def cursor(self, delivered: int, epoch: int | None = None) -> dict[str, Any]:
        """Return the cursor for the place at which this shard has delivered this many records.

        Args:
            delivered: The number of this shard's records that were delivered. After all of its records in an
                epoch, the cursor is at the end of that epoch, not in the next one. If shards are uneven, a
                shorter one is there one record earlier.
            epoch: The epoch in which the records are counted, from its start (or from where this stream
                starts in it); None: counted from where this stream starts, across epochs.

        Raises:
            ConfigurationError: if the epoch has fewer records.
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
            records = min(records, shard.own(point.position))  # may be one less than `most`
        return write_cursor(self._run.identity(), shard.delivered(point, records))

    def past_finished(self, cut: Cut) -> "RecordStream[Item_co]":
        """Return the stream that starts where items with this cut begin; see `Cut.past_finished`."""
        start = cut.past_finished(self._run.shard, cut.span(self._run.start)).start
        return self if start == self._run.start else RecordStream(replace(self._run, start=start))

    def plan(
        self, *, epochs: int = 1, records_per_s: float | None = None, prices: "Prices | None" = None
    ) -> "Plan":
        """Return an estimate of what whole epochs of this shard read and cost, before anything is read.

        For caches that are not complete on this machine, the plan gives the number of requests for each way
        of reading, and the way that is used. It is computed from the caches' part tables and the order; in
        longer epochs, from their first 131,072 records. For batches see `Loader.plan`.

        Args:
            epochs: The number of epochs.
            records_per_s: The number of this shard's records that are read a second; needed for
                `requests_per_s`.
            prices: The prices of the store; by default those with which the storage was opened.

        Raises:
            ConfigurationError: if an argument makes no sense.

        Example:
            >>> import yogadl
            >>> yogadl.from_source([10, 11, 12]).stream(num_shards=2).plan().records
            2
        """
        from yogadl._stream.plan import plan

        return plan(Records(self._run), Cut(), epochs, records_per_s, prices)
