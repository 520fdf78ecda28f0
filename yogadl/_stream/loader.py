"""Hold what users hold: a loader of a stream's batches."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from yogadl._arguments import explains_names, whole
from yogadl._interfaces import Item_co, Made
from yogadl._stream.items import Batches
from yogadl._stream.iterator import Restartable
from yogadl._stream.recipe import Recipe
from yogadl._stream.stats import Stats
from yogadl._stream.workers import InWorkers
from yogadl.errors import ConfigurationError

if TYPE_CHECKING:
    from yogadl._prices import Prices
    from yogadl._stream.plan import Plan
    from yogadl._stream.stream import RecordStream


class Loader(Restartable[Item_co]):
    """Deliver a stream's records in batches, or what later stages make of them.

    Immutable but for its count of epochs: each `iter` claims the next ones for itself at its first
    `next`, starting where the stream starts. Thread-safe, though each iterator belongs to one thread;
    safe to carry across a fork; pickles if its source and its functions do.

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
        stream: The stream that it reads.
    """

    def __init__(self, stream: "RecordStream", recipe: Recipe) -> None:
        self.stream = stream
        self._read_by(recipe)

    def __len__(self) -> int:
        """Count the batches of whole epochs, however much of the first one a cursor skips.

        Raises:
            TypeError: if it is endless.
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
        """How many records a full batch has."""
        return self._recipe.cut.size

    @property
    def epochs(self) -> int | None:
        """How many epochs an iterator reads; None if it never ends."""
        return self._recipe.cut.epochs

    @explains_names()
    def map(self, fn: Callable[[Item_co], Made]) -> "Loader[Made]":
        """Return a loader that delivers ``fn(batch)``, whatever that is.

        The function is called once a batch, in order, in the thread that iterates; with `prefetch`, before
        or after, in the threads that read ahead. Cursors stay the same. Where it raises, a `StageError` comes
        after the batches before, and the next `next` tries again.

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
        record: so on the batch size and the shards, but not on where a job went on. What shall depend on
        neither is `RecordStream.random_map`.

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

        It is of reading in this process. Several threads or workers announce in other pieces: neighbours are
        then asked for together less often, and each worker keeps what is small for itself.
        """
        from yogadl._stream.plan import plan

        return plan(Batches(self._recipe.run), self._recipe.cut, epochs, records_per_s, prices)

    def batch_at(self, step: int) -> Item_co:
        """Read one batch again, as it was delivered, random functions included: the one after `step` others.

        They are counted from where the stream starts, over all epochs. Claims nothing.

        Raises:
            ConfigurationError: if `step` is negative or no whole number.
            IndexError: if there is no such batch.
        """
        found: Item_co = self._recipe.item_at(whole("step", step))
        return found

    def stats(self) -> Stats:
        """Return what the newest iterator did so far: how fast it was, and what it waited for.

        It is counted all the time, at next to no cost. Printed, it is one line.
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
        """Return a loader that reads up to `n` batches ahead: in a thread, in several, or in processes.

        The batches, their order and every cursor stay the same: a cursor counts what was delivered.
        Threads start at an iterator's first `next` and end when the iterator is closed or dropped.
        An error comes after the batches before it, and the next `next` tries again.

        With `threads`, so many read at once, each the next piece: then functions of the user's are called in
        so many threads at once. In flight are at most ``n + threads - 1`` batches; where several make a
        piece, since they are small (below 1 MB), ``threads + 1`` pieces, mostly of 1.5 MB. A batch that is
        kept holds at most twice its bytes; with one thread, up to 1.5 MB where it is smaller.

        With `workers`, everything before this happens in so many processes, and what comes after it in this
        one. They start at the first `next` and stay for the loader's next iterator; they end when the loader
        and its iterators are dropped. One that dies is a `WorkerDiedError`, and replaced at the next `next`;
        at the same batch only once.

        Args:
            n: How many batches to keep ready, at least 1. With workers, each of them is at one batch more (of
                small batches, at as many as make a megabyte, if no function is called).
            workers: How many processes to read in; 0: none, but threads of this one.
            threads: How many threads of this process read; not with `workers`.
            worker_init: Called first in each of them, with its number.
            timeout_s: How long to wait for a batch before its worker is ended, by a `WorkerTimeoutError`.
            start_method: "forkserver": they begin with nothing, and start fast. "spawn": with nothing at all.
                "fork": with all that this process has, which is not safe where it has threads.
            worker_threads: How many threads BLAS and OpenCV may have in each of them.

        Raises:
            ConfigurationError: if an argument makes no sense.
        """
        asked = n, workers, threads, worker_init, timeout_s, start_method, worker_threads
        return Loader(self.stream, self._recipe.prefetch(*asked))
