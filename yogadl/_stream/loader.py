"""The loader of a stream's batches, as users hold it."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from yogadl._core.arguments import explains_names, whole
from yogadl._core.protocols import Item_co, Made
from yogadl._stream.items import Batches
from yogadl._stream.iterator import Restartable
from yogadl._stream.recipe import Recipe
from yogadl._stream.stats import Stats
from yogadl._stream.workers import InWorkers
from yogadl.errors import ConfigurationError

if TYPE_CHECKING:
    from yogadl._core.protocols import Prices
    from yogadl._stream.plan import Plan
    from yogadl._stream.stream import RecordStream


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
        cut, stages = self._recipe.cut, getattr(self._recipe.make, "stages", ())
        passed = "".join(f", {stage}" for stage in stages)
        return f"<Loader of {self.stream!r}, batch {cut.size}, epochs {cut.epochs}{passed}>"

    @property
    def batch_size(self) -> int:
        """The number of records in a full batch."""
        return self._recipe.cut.size

    @property
    def epochs(self) -> int | None:
        """The number of epochs that an iterator reads; None if it never ends."""
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
        made = self._recipe.make
        if not isinstance(made, Batches | InWorkers) or self._recipe.changing:
            raise ConfigurationError(
                "this loader's batches are passed through transform= or pinned already: pass one function as "
                "transform=, or map the stream's records"
            )
        return Loader(self.stream, replace(self._recipe, make=made.then(function, seed)))

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
        found: Item_co = self._recipe.item_at(whole("step", step))
        return found

    def stats(self) -> Stats:
        """Return the newest iterator's statistics so far: its speed, its waits and the time of each stage.

        The counts are always kept, and cost almost nothing. Printed, the result is one line.
        """
        return self._recipe.stats(self._claims.newest())

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
        The workers start at the first `next` and stay for the loader's next iterator; they end when the
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
        asked = n, workers, threads, worker_init, timeout_s, start_method, worker_threads
        return Loader(self.stream, self._recipe.prefetch(*asked))
