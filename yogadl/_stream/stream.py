"""The stream of records and the loader of its batches, as users hold them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack, overload

import numpy as np

from yogadl._core.arguments import above_zero, bool_argument, explains_names, int_argument
from yogadl._core.protocols import DataRef, Int64s, Item_co, Made, RandomAccess, Stream
from yogadl._core.spec import Spec
from yogadl._stream.cursor import Skipped, write_cursor
from yogadl._stream.cut import Cut, Point, Shard
from yogadl._stream.items import Batches, Records
from yogadl._stream.iterator import Restartable, begin
from yogadl._stream.recipe import MakeInWorkers, Recipe, Stats
from yogadl._stream.run import Run
from yogadl.errors import ConfigurationError

if TYPE_CHECKING:
    from yogadl._core.protocols import Prices
    from yogadl._stream.plan import Plan
    from yogadl._stream.tickets import Tickets

_SHOWN_RECORDS: Final = 3  # the most records that a notebook reads of a stream
_SHOWN_BYTES: Final = 32 * 2**20


class Loader(Restartable[Item_co]):
    """Delivers a stream's records in batches, or the results of later stages.

    Immutable except for its count of epochs: each `iter` claims the next epochs at its first `next`, starting
    where the stream starts. Thread-safe, though each iterator belongs to one thread; safe to use after a
    fork; pickles if its source and its functions do.

    Example:
        >>> import yogadl
        >>> loader = yogadl.from_source([10, 11, 12, 13, 14]).stream().batch(2)
        >>> [batch.tolist() for batch in loader]
        [[10, 11], [12, 13], [14]]
        >>> batches = loader.at(epoch=1, position=2)
        >>> next(batches).tolist()
        [12, 13]
        >>> cursor = batches.state_dict()
        >>> cursor["epoch"], cursor["position"]
        (1, 4)

    Attributes:
        stream: The stream that is read.
    """

    def __init__(self, stream: "RecordStream", recipe: Recipe) -> None:
        self.stream = stream
        self._read_by(recipe)

    def __len__(self) -> int:
        """Return the number of batches in whole epochs, even if a cursor skips a part of the first one.

        Raises:
            TypeError: if the loader is endless.
        """
        count = self._recipe.cut.count(self.stream.shard)
        if count is None:
            raise TypeError("an endless loader (epochs=None) has no length")
        return count

    def __repr__(self) -> str:
        cut, make = self._recipe.cut, self._recipe.make
        stages = make.stages if isinstance(make, Batches | MakeInWorkers) else ()
        passed = "".join(f", {stage}" for stage in stages)
        return f"<Loader of {self.stream!r}, batch {cut.size}, epochs {cut.epochs}{passed}>"

    def _repr_html_(self) -> str | None:
        """Return what a notebook shows: the next iterator's first records, before they become batches."""
        return html_of(self, lambda: self.stream.starting(self._claims.next_span().start))

    @property
    def batch_size(self) -> int:
        """The number of records in a full batch."""
        return self._recipe.cut.size

    @property
    def epochs(self) -> int | None:
        """The number of epochs that an iterator reads, or None if it never ends."""
        return self._recipe.cut.epochs

    @explains_names()
    def map(self, fn: Callable[[Item_co], Made]) -> "Loader[Made]":
        """Return a loader that delivers ``fn(batch)``, which may be of any type.

        The function is called once for each batch, in order, in the thread that iterates; with `prefetch`, in
        the threads that read ahead. Cursors stay the same. If it raises, the batches before are delivered,
        then a `StageError` is raised, and the next `next` tries again.

        Raises:
            ConfigurationError: if `fn` can't be called.
        """
        return self._through(fn, None)

    @explains_names()
    def random_map(
        self, fn: Callable[[Item_co, "np.random.Generator"], Made], *, seed: int | None = None
    ) -> "Loader[Made]":
        """Return a loader that delivers ``fn(batch, rng)``; see `map`.

        The `numpy.random.Generator` depends on the seed, the epoch and the position of the batch's first
        record. It therefore depends on the batch size and the shards, but not on the place where a job
        resumed. Use `RecordStream.random_map` if it must depend on none of these.

        Args:
            fn: The function.
            seed: Any integer; the stream's `shuffle_seed` if not given, or 0.

        Raises:
            ConfigurationError: if an argument makes no sense.
        """
        return self._through(fn, self.stream.run.stage_seed(seed))

    def _through(self, function: Callable[..., Any], seed: int | None) -> "Loader":
        make = self._recipe.make
        if not isinstance(make, Batches | MakeInWorkers) or self._recipe.changing:
            raise ConfigurationError(
                "this loader's batches are passed through transform= or pinned already: pass one function as "
                "transform=, or map the stream's records"
            )
        return Loader(self.stream, replace(self._recipe, make=make.then(function, seed)))

    def plan(
        self, *, epochs: int = 1, records_per_s: float | None = None, prices: "Prices | None" = None
    ) -> "Plan":
        """Return what whole epochs read and cost in batches of this size; see `RecordStream.plan`.

        The plan is for one thread of this process. With several threads or workers, fewer neighbouring
        records share a request, and each worker holds small caches of its own.
        """
        from yogadl._stream.plan import plan

        return plan(Batches(self._recipe.run), self._recipe.cut, epochs, records_per_s, prices)

    def batch_at(self, step: int) -> Item_co:
        """Read one batch again, exactly as it was delivered, random functions included.

        Args:
            step: The number of batches before it, counted over all epochs from where the stream starts. The
                call claims no epoch.

        Raises:
            ConfigurationError: if `step` is negative or no whole number.
            IndexError: if the batch does not exist.
        """
        found: Item_co = self._recipe.item_at(int_argument("step", step))
        return found

    def stats(self) -> Stats:
        """Return the newest iterator's statistics so far: its speed, its waits and the time of each stage.

        The counts are always kept, and cost almost nothing. Printed, the result is one line.
        """
        return self._recipe.stats(self._claims.newest())

    @explains_names()
    def on_stats(self, fn: Callable[[Stats], object], every_s: float = 10.0) -> "Loader[Item_co]":
        """Return a loader whose iterators call ``fn(stats)`` every few seconds, and once when they end.

        The function is called in the thread that iterates, within `next`, before the next batch is taken:
        while the loop computes or waits, it is not called. If it raises, `next` raises that error, no batch
        is lost, and the next `next` continues. The counts are those of `stats`: from the iterator's
        beginning, so they start anew with each iterator and after `load_state_dict`. An iterator that is
        left before its end makes no last call; iterators of `at` make none.

        A loader pickles only if `fn` does. A second call of this method replaces the function.

        Args:
            fn: Takes the `Stats` of the iterator.
            every_s: The seconds between two calls, at least.

        Raises:
            ConfigurationError: if an argument makes no sense.
        """
        if not callable(fn):
            raise ConfigurationError(f"on_stats takes a function that is called with Stats, not {fn!r}")
        recipe = replace(self._recipe, on_stats=fn, stats_every_s=above_zero("every_s", every_s) or 10.0)
        return Loader(self.stream, recipe)

    @explains_names()
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
    ) -> "Loader[Item_co]":
        """Return a loader that reads up to `n` batches ahead, in one or several threads, or in processes.

        The batches, their order and every cursor stay the same: a cursor counts delivered batches. Threads
        start at an iterator's first `next` and end when the iterator is closed or dropped. An error comes
        after the batches before it, and the next `next` tries again.

        With `threads`, several threads read at the same time, each of them the next piece; your functions are
        therefore called in several threads at once, too. At most ``n + threads - 1`` batches are held. Small
        batches (below 1 MB) are read several at a time, in pieces of mostly 1.5 MB; then ``threads + 1``
        pieces are held. If you keep a batch, it takes at most twice its bytes; with one thread, up to 1.5 MB
        if it is smaller.

        With `workers`, all stages before this call run in worker processes, and all after it in this process.
        The workers start at the first `next`, stay for the loader's next iterator, and end when the
        loader and its iterators are dropped. If a worker dies, a `WorkerDiedError` is raised, and the next
        `next` replaces the worker; if a second one dies at the same batch, the batch is not tried again.

        Args:
            n: The number of batches to keep ready, at least 1. Each worker holds one more batch that it works
                on (if batches are small and no function is called, as many as make a megabyte).
            workers: The number of processes that read; 0: only threads of this process.
            threads: The number of threads of this process that read; not with `workers`.
            worker_init: A function that is called first in each worker, with the worker's number.
            timeout_s: The longest time to wait for a batch; after that, its worker is ended and a
                `WorkerTimeoutError` raised.
            start_method: The way to start workers. "forkserver": fast, without a copy of this process.
                "spawn": slowly, without a copy of this process. "fork": with a copy of it, which is not safe
                if it has threads.
            worker_threads: The number of threads that BLAS and OpenCV may use in each worker.

        Raises:
            ConfigurationError: if an argument makes no sense.
        """
        settings = worker_init, timeout_s, start_method, worker_threads
        return Loader(self.stream, self._recipe.prefetch(n, workers, threads, settings))


class _OnError(TypedDict, total=False):
    on_error: str
    max_errors: int | None


class _Filling(_OnError, total=False):
    keep: str | Sequence[str]


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

    def _repr_html_(self) -> str | None:
        """Return what a notebook shows: the fields, and the next iterator's first records."""
        return html_of(self, lambda: self.starting(self._claims.next_span().start))

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

    @overload
    def map(
        self, fn: Callable[[Item_co], Made], *, spec: Any = None, **options: Unpack[_OnError]
    ) -> "RecordStream[Made]": ...
    @overload
    def map(
        self, fn: Callable[[Item_co, Any], None], *, out: Any, **options: Unpack[_Filling]
    ) -> "RecordStream[Any]": ...
    @explains_names()
    def map(
        self,
        fn: Callable[..., Any],
        *,
        spec: Any = None,
        out: Any = None,
        keep: str | Sequence[str] = (),
        on_error: str = "raise",
        max_errors: int | None = None,
    ) -> "RecordStream[Any]":
        """Return a stream of ``fn(record)``, in the same order, with the same cursors, for every framework.

        The function is called wherever records are read: this may be in several threads and processes at once
        (tf.data's threads, workers of PyTorch and Grain). It returns a tree of arrays, scalars and texts,
        like any record. If it returns something else, such as an image or a tensor, a batch has a list of
        those. All results must have the structure of the first record's result; the function is called once
        for that record in advance to find the structure.

        If the function raises, the batches before that record are delivered, and then a `StageError` names
        the record; the next `next` tries it again.

        With `out`, ``fn(record, out)`` fills a record of zeros, and returns None: a row of the batch's
        arrays, so that none is made and copied for each record.

        With ``on_error="substitute"``, another record of the epoch takes the place of one for which `fn`
        raises, drawn by seed, epoch and position: of the same parent in a mix, of the same window with
        `Blocks`; with `Sequences` it is refused. It passes through all functions with the random numbers of
        the place. Counts and cursors stay exact, and each rank and resume has the same record there.
        `rejected` lists those replaced.

        Args:
            fn: Takes a record, and returns a record. It may change the record that it is given.
            spec: The shapes that vary, which the first result may not show; as in `yogadl.from_source`. With
                the `spec` of another `DataRef`, `fn` is not called in advance.
            out: The fields that `fn` fills, such as ``{"image": yogadl.Leaf("uint8", (224, 224, 3))}``.
            keep: The names of fields of the record that the result has in addition, with `out`.
            on_error: "raise", or "substitute": see above.
            max_errors: With "substitute": more different records than this, in this process and its workers,
                are a `StageError`, which each `next` raises until the loader is made anew. Other ranks count
                their own, and must be stopped.

        Raises:
            ConfigurationError: if an argument makes no sense.
        """
        return self._through(fn, None, spec, (out, keep, on_error, max_errors))

    @overload
    def random_map(
        self,
        fn: Callable[[Item_co, "np.random.Generator"], Made],
        *,
        seed: int | None = None,
        spec: Any = None,
        **options: Unpack[_OnError],
    ) -> "RecordStream[Made]": ...
    @overload
    def random_map(
        self,
        fn: Callable[[Item_co, "np.random.Generator", Any], None],
        *,
        seed: int | None = None,
        out: Any,
        **options: Unpack[_Filling],
    ) -> "RecordStream[Any]": ...
    @explains_names()
    def random_map(
        self,
        fn: Callable[..., Any],
        *,
        seed: int | None = None,
        spec: Any = None,
        out: Any = None,
        keep: str | Sequence[str] = (),
        on_error: str = "raise",
        max_errors: int | None = None,
    ) -> "RecordStream[Any]":
        """Return a stream of ``fn(record, rng)``, for random augmentation that can be repeated; see `map`.

        The `numpy.random.Generator` depends only on the seed, the epoch, the record's position in it and the
        number of functions before this one: not on batches, shards or workers, nor on where a job resumed.

        Args:
            fn: Takes a record and a generator, and returns a record; with `out`, ``fn(record, rng, out)``.
            seed: Any integer; the stream's `shuffle_seed` if not given, or 0.
            spec: As for `map`, like the following.
            out: The record that `fn` fills.
            keep: The fields that the result has in addition.
            on_error: "raise" or "substitute".
            max_errors: The most records that may be replaced.

        Raises:
            ConfigurationError: if an argument makes no sense.
        """
        return self._through(fn, self._run.stage_seed(seed), spec, (out, keep, on_error, max_errors))

    def _through(
        self, function: Callable[..., Any], seed: int | None, spec: Any, options: tuple[Any, ...]
    ) -> "RecordStream":
        from yogadl._views.stages import StageOptions  # imported only if functions are called

        return self._over(self._run.through(function, seed, spec, StageOptions(*options)))

    def _over(self, run: Run) -> "RecordStream":
        if isinstance(self._recipe.make, MakeInWorkers):
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
            ConfigurationError: if they are no ranges of an epoch's positions, leave no position, or the order
                is `Sequences`, whose lanes would go on with other records.

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
        n: int | None,
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
            n: The number of records in a batch; None: each record is a batch as it is, such as those of
                `DataRef.bucketed`.
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
        cut = Cut(1 if n is None else n, drop_remainder, epochs, across_epochs, skip_finished_epoch)
        make = Batches(self._run, collate, padding_field, is_single=n is None)
        return Loader(self, Recipe(make, cut, is_shown=bool_argument("progress", progress)))

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
        settings = worker_init, timeout_s, start_method, worker_threads
        return RecordStream(self._run, self._recipe.prefetch(n, workers, threads, settings))

    @explains_names({"ref.stream": DataRef.stream})
    def tickets(
        self,
        max_open: int = 1024,
        max_lead: int | None = None,
        state: Any = None,
        *,
        epochs: int | None = None,
        rebind: bool = False,
    ) -> "Tickets[Item_co]":
        """Return the places of this stream as tickets that end in any order, as rollouts of prompts do.

        Each place ends once, by `Ticket.done` or `Ticket.drop`; a failed one is given out again. The tickets
        begin where this stream starts, and claim none of its epochs. With several shards, each rank has
        tickets of its own, for the positions that are its rank modulo the number of ranks.

        Args:
            max_open: The most tickets that are open at a time; `next` waits until one ends.
            max_lead: The most places, counted over all ranks, between a new ticket and the first place that
                has not ended; `next` waits. With several ranks, pass the least `Tickets.watermark` of all to
                `Tickets.follow` from time to time.
            state: What `Tickets.state_dict` returned: the tickets continue there, first with the places that
                were open. On another number of ranks, a list of the states of all ranks, the same for each.
            epochs: The number of epochs from where this stream starts, which a `state` does not change; None:
                without end.
            rebind: Whether to accept a state of other data of equal length; see `load_state_dict`.

        Raises:
            ConfigurationError: if an argument makes no sense.
            CursorError: if the state belongs to other data or another order, or one of a rank is missing.
        """
        from yogadl._stream.tickets import Tickets  # only those who ask for tickets need it

        if isinstance(self._recipe.make, MakeInWorkers) or self._recipe.stages:
            raise ConfigurationError(
                "a ticket reads its record in the thread that asks for it, not ahead: call tickets "
                "without prefetch"
            )
        is_rebound = bool_argument("rebind", rebind)
        return Tickets(self._recipe.run, max_open, max_lead, state, epochs, is_rebound)

    def indices(self, epoch: int = 0, start: int = 0, stop: int | None = None) -> Int64s:
        """Return the indices of the records that this shard reads in an epoch, in order, without reading any.

        Args:
            epoch: The epoch. In the epoch that the stream starts in, rows count from its start.
            start: The first row.
            stop: The row to stop before; if None or too large, the epoch's end.

        Raises:
            ConfigurationError: if an argument is negative or no whole number.
        """
        point = Point(int_argument("epoch", epoch), self._run.origin(epoch))
        own = self._run.shard.own(point.position)
        last = own if stop is None else min(own, int_argument("stop", stop))
        return self._run.numbers(self._run.rows(point, min(int_argument("start", start), last), last))

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
        records, shard = int_argument("delivered", delivered), self._run.shard
        point = self._run.start
        if epoch is not None:
            point = Point(int_argument("epoch", epoch), self._run.origin(epoch))
            most = shard.rows(point.position)
            if records > most:
                raise ConfigurationError(
                    f"{records} can't be delivered: a shard's epoch {epoch} has {most} records"
                )
            records = min(records, shard.own(point.position))  # may be one less than `most`
        return write_cursor(self._run.identity(), shard.delivered(point, records))

    def past_finished(self, cut: Cut) -> "RecordStream[Item_co]":
        """Return the stream that starts where items with this cut begin; see `Cut.past_finished`."""
        return self.starting(cut.past_finished(self._run.shard, cut.span(self._run.start)).start)

    def starting(self, point: Point) -> "RecordStream[Item_co]":
        """Return the stream that starts at a point, whose position counts kept positions only."""
        return self if point == self._run.start else RecordStream(replace(self._run, start=point))

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


def html_of(shown: object, stream_of: Callable[[], Any]) -> str | None:
    """Return what a notebook shows of a reference, a stream or a loader.

    The records are those at which the stream starts: at most three, and fewer if they are large. If they
    can't be read, for whatever reason, the result is None, and the notebook shows `repr`.
    """
    from yogadl._core.shown import notebook_html, values_of  # only notebooks need it

    try:
        run = stream_of().run.counted_anew()
        own = run.shard.own(run.start.position)
        rows = run.rows(run.start, 0, min(own, _SHOWN_RECORDS, _SHOWN_BYTES // run.record_bytes))
        records = values_of(run.spec, partial(run.read, rows), len(rows)) if len(rows) else []
        return notebook_html(repr(shown), run.spec, run.numbers(rows).tolist(), records)
    except (Exception, SystemExit):  # noqa: BLE001  (a notebook would show the error, or end)
        return None
