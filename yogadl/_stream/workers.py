"""Make items in worker processes: the same items in the same order as in this process."""

from collections.abc import Callable, Generator, Iterator
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Final

from yogadl._core.frozen import frozen
from yogadl._stream.cut import Cut, Pieces, Point, pieces_of
from yogadl._stream.items import MOST_RECORDS, RECORDS_BYTES, Batches, Read, Records, passed
from yogadl._stream.options import WorkerOptions
from yogadl._stream.run import Run
from yogadl.errors import ConfigurationError, WorkerDiedError

if TYPE_CHECKING:
    from yogadl._stream.items import ItemStage
    from yogadl._stream.pool import WorkerPool
    from yogadl._stream.worker import WorkerTask
    from yogadl._views.stages import Stage

# Small batches are sent in chunks of about this size, since sending costs some 0.1 ms for any size
# (benchmarks/torch_loader.py).
_CHUNK_BYTES: Final = 1_000_000
_CHUNKS: Final = 4  # the least number of an epoch's chunks for each worker, if there are enough batches
_CALLED_RECORDS: Final = 16  # records in a request, if a function is called with each
_MOST_DEATHS: Final = 2  # at the same item; the first death may have had a cause outside of the item


class _WorkerDeaths:
    """Counts the deaths of workers at one item, which is tried only a limited number of times."""

    def __init__(self) -> None:
        self.deaths = 0  # since an item was delivered
        self._final: tuple[Point, WorkerDiedError] | None = None
        self.interrupted: list[WorkerPool] = []  # the pool to continue with, unless shared

    def check(self, start: Point) -> None:
        """Raise the error of an item that is not tried again."""
        if self._final is not None and self._final[0] == start:
            raise self._final[1].with_traceback(None)
        self._final = None

    def failed(self, start: Point, error: WorkerDiedError) -> None:
        """Note a death at the next item."""
        if isinstance(error, TimeoutError):
            return
        self.deaths += 1
        if self.deaths >= _MOST_DEATHS:
            self._final = start, error
            error.add_note(f"{self.deaths} worker processes died at this item, so it is not tried again")


@frozen
class InWorkers:
    """Makes items in worker processes. Pickles without them; costs nothing before the first iteration.

    Args:
        make: Makes the items.
        item_stages: The stages that they pass through in the workers.
        options: The options of the workers.
        after: Functions that each item passes through in this process.
    """

    make: Batches | Records
    item_stages: "tuple[ItemStage, ...]"
    options: WorkerOptions
    after: "tuple[Stage, ...]" = ()
    _idle: "list[WorkerPool]" = field(default_factory=list, compare=False, repr=False)
    _attempts: _WorkerDeaths = field(default_factory=_WorkerDeaths, compare=False, repr=False)

    def __reduce__(self) -> Any:
        return type(self), (self.make, self.item_stages, self.options, self.after)

    @property
    def run(self) -> Run:
        """The run of the items."""
        return self.make.run

    @property
    def stages(self) -> "tuple[Stage, ...]":
        """The functions that each item passes through, in the workers and here."""
        return (*self.make.stages, *self.after)

    def then(self, function: Callable[..., Any], seed: int | None) -> "InWorkers":
        """Return the same with one more function, which is called in this process."""
        more = self.run.then(self.stages, function, seed)[-1]
        return InWorkers(self.make, self.item_stages, self.options, (*self.after, more))

    def counted_anew(self) -> "InWorkers":
        """Return the same for another loader, with workers of its own; see `Run.counted_anew`."""
        return InWorkers(self.make.counted_anew(), self.item_stages, self.options, self.after)

    def begun(self) -> "InWorkers":
        """Return a copy for another iterator."""
        return replace(self, _attempts=_WorkerDeaths())

    def here(self, cut: Cut, start: Point, end: int | None) -> Iterator[Any]:
        """Yield the items, made in this process."""
        items = (item for _, items in self.make.reads(cut, start, end) for item in items)
        for stage in self.item_stages:
            items = stage(items)  # type: ignore[assignment]
        return self._passed(items, cut, start, end)

    def _passed(self, items: Iterator[Any], cut: Cut, start: Point, end: int | None) -> Iterator[Any]:
        """Pass items through the functions that are called in this process."""
        if not self.after:
            return items
        what = "the batch that begins with record" if isinstance(self.make, Batches) else "record"

        def called(item: Any, pieces: Pieces) -> Any:
            origin, first, _ = pieces[0]
            return passed(self.after, item, self.run.rows(origin, first, first + 1), what, self.run)

        return map(called, items, pieces_of(self.run.shard, cut, start, end))

    def reads(self, cut: Cut, start: Point, end: int | None) -> Iterator[Read]:
        """Yield the items from `start` to the epoch `end`, as the workers return them."""
        reads = self._reads(cut, start, end)
        if not self.after:
            yield from reads
            return
        try:
            for item in self._passed((item for _, items in reads for item in items), cut, start, end):
                yield 1, iter((item,))
        finally:
            reads.close()  # now, not when an error's traceback is freed

    def _reads(self, cut: Cut, start: Point, end: int | None) -> Generator[Read, None, None]:
        attempts, options, make = self._attempts, self.options, self.make
        attempts.check(start)
        pool = self._pool(cut)
        each, sends_columns = self._each(cut), pool.task.sends_columns
        requests = pieces_of(self.run.shard, cut, start, end, each)
        is_reusable = False
        try:
            for parts, error in pool.answers(requests, options.most(each), (start, end)):
                while parts:
                    if sends_columns:
                        columns, flags = parts.pop(0)
                        yield -(-len(flags) // cut.size), make.cut(columns, flags, cut.size)
                        del columns, flags
                    else:
                        yield 1, iter([parts.pop(0)])
                    attempts.deaths = 0
                if error is not None:
                    is_reusable = True
                    raise error
            is_reusable = True
        except GeneratorExit:
            is_reusable = True  # the iterator was closed without an error
            raise
        except WorkerDiedError as error:
            is_reusable = True
            attempts.failed(start, error)
            raise
        finally:
            is_reusable = (is_reusable and options.is_persistent) or pool.was_interrupted
            if pool.has_ended:
                pass  # at the interpreter's exit modules may be gone
            elif is_reusable and pool.can_begin():
                self._idle_pools[:] = [pool]
            else:
                pool.end()

    @property
    def _idle_pools(self) -> "list[WorkerPool]":
        return self._idle if self.options.is_persistent else self._attempts.interrupted

    def _each(self, cut: Cut) -> int:
        """Return the number of items in a request."""
        run, size = self.run, cut.size
        if isinstance(self.make, Records):
            most = max(1, min(MOST_RECORDS, RECORDS_BYTES // run.record_bytes))
            return min(most, _CALLED_RECORDS) if run.calls_functions or self.item_stages else most
        if run.calls_functions or self.item_stages or not self.make.is_plain:
            return 1
        spread = -(-cut.items(run.shard.own(0)) // (_CHUNKS * self.options.workers))
        return max(1, min(_CHUNK_BYTES // (run.record_bytes * size), spread))

    def _pool(self, cut: Cut) -> "WorkerPool":
        """Return an idle pool, or a new one."""
        from yogadl._stream.pool import WorkerPool  # imported only if there are workers
        from yogadl._stream.worker import WorkerTask

        while self._idle_pools:  # `pop`, so that two iterators never share a pool
            pool = self._idle_pools.pop()
            if pool.can_begin():
                return pool
        options = self.options
        begin = options.begin
        if begin is not None and options.is_begun_by_pool:
            begin = begin()
        each = -(-options.most(self._each(cut)) // options.workers)
        task = WorkerTask(self.make, self.item_stages, cut, begin, options.threads, self._maker_name(), each)
        pickled_task = b"" if options.method == "fork" else self._pickle_task(task)
        return WorkerPool(task, pickled_task, options, options.preload + _modules_to_preload())

    def _pickle_task(self, task: "WorkerTask") -> bytes:
        """Return the pickled task.

        Raises:
            ConfigurationError: if a part of it can't be pickled; the error names the part.
        """
        from yogadl._workers.messages import pickled

        try:
            hint = _PICKLE_HINT.format(self.options.errors.method)
            return pickled(task, "the stream's source", stays_here=True, hint=hint)
        except ConfigurationError:
            for name, function in self._functions():
                pickled(function, f"{name}={function!r}", stays_here=True, hint=hint)
            raise

    def _maker_name(self) -> str:
        """Return the name of the function that makes the items, for messages."""
        chain = self.run.chain
        collate = self.make.collate
        if self.item_stages:
            return "transform"
        if self.make.stages:
            return str(self.make.stages[-1])
        if collate is not None:
            return f"collate={collate!r}"
        return str(chain.stages[-1]) if chain else "the source"

    def _functions(self) -> Iterator[tuple[str, Any]]:
        yield from self.options.named
        yield "collate", self.make.collate
        for called in (*(self.run.chain.stages if self.run.chain else ()), *self.make.stages):
            yield str(called).partition("(")[0], called.function


_PICKLE_HINT: Final = (
    "Let the function make what does not pickle when it is first called; or read from a cache "
    '(storage.submit); or pass {}="fork": then each process begins with a copy of this one'
)


def _modules_to_preload() -> tuple[str, ...]:
    """Return the modules for reading that this process has loaded, which each worker needs, too."""
    import sys

    ours = [name for name in sys.modules if name.startswith("yogadl.") and ".adapters" not in name]
    return ("yogadl._stream.worker", *ours, *({"lmdb", "cloudpickle"} & set(sys.modules)))
