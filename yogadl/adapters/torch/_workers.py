"""Read batches in DataLoader's worker processes, in order, many small ones at a time."""

import itertools
import multiprocessing.util
import os
import pickle
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch

from yogadl._memory import settle_allocator
from yogadl._stream import (
    Batches,
    Cut,
    ForkedError,
    NumberedBatches,
    Numbering,
    Point,
    Read,
    RecordStream,
    Run,
)
from yogadl.adapters.torch._transport import Packer, SharedBatch, Unpacker
from yogadl.errors import ConfigurationError

# Batches are sent in chunks of about this size, since sending costs some 0.2 ms, whatever is sent
# (benchmarks/torch_loader.py).
_MOST_BYTES: Final = 1_000_000
_CHUNKS: Final = 4  # the least number of chunks of an epoch for each worker, if there are as many batches

Transform = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class _Request:
    """Ask a worker for the `number`-th chunk of an epoch, and return segments to it."""

    iteration: int
    epoch: int
    number: int
    worker: int
    returned: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Failure:
    """Carry an error out of a worker."""

    error: BaseException
    where: str


@dataclass(frozen=True)
class WorkerBatches:
    """Make items that are batches of tensors, read in worker processes. Pickles without the processes.

    Args:
        batches: How a batch is made of its columns.
        transform: Called with each batch, in the worker.
        workers: How many processes.
        options: More arguments of `torch.utils.data.DataLoader`.
    """

    batches: Batches
    transform: Transform | None
    workers: int
    options: Mapping[str, Any]
    _idle: "list[_WorkerPool]" = field(default_factory=list, compare=False)

    def __reduce__(self) -> Any:
        return type(self), (self.batches, self.transform, self.workers, self.options)

    @property
    def run(self) -> Run:
        """Whose records."""
        return self.batches.run

    def reads(self, cut: Cut, start: Point, end: int | None) -> Iterator[Read]:
        """Yield the batches from `start` to the epoch `end`, chunk by chunk."""
        pool = self._pool(cut, start)
        is_reusable = False
        try:
            yield from pool.reads(start, end)
            is_reusable = True
        except GeneratorExit:
            is_reusable = True  # the iterator was closed, nothing failed
            raise
        finally:
            if is_reusable and self.options.get("persistent_workers"):
                self._idle[:] = [pool]
            else:
                pool.end()

    def _pool(self, cut: Cut, start: Point) -> "_WorkerPool":
        """Return the processes that are idle, if they can read from there on, or new ones."""
        while self._idle:  # `pop`, so that two iterators never share one pool
            pool = self._idle.pop()
            if pool.can_start(start):
                return pool
            pool.end()
        return _WorkerPool(self, replace(self.run, start=start), cut)


class _WorkerPool:
    """Worker processes, used by one iterator at a time, in the process that started them.

    They end when the last reference to this object goes away. So nothing that it or DataLoader holds may
    refer back to it: the garbage collector would collect that cycle late, and in an order in which it may
    close the queues before the workers were told to end.
    """

    def __init__(self, make: WorkerBatches, run: Run, cut: Cut) -> None:
        self._run, self._cut = run, cut
        self._numbering = numbering = run.numbering(replace(cut, epochs=1))  # counted epoch by epoch
        self._finish = make.batches.finish()
        self._is_transformed = make.transform is not None  # then the worker sends batches, not columns
        bytes_each = run.record_bytes * cut.size
        spread = -(-numbering.begun // (_CHUNKS * make.workers))
        self._each = 1 if self._is_transformed else max(1, min(_MOST_BYTES // bytes_each, spread))
        numbered = NumberedBatches(RecordStream(run), cut.size * self._each)
        dataset = _ChunkDataset(numbered, make.batches, make.transform)
        self._pid = os.getpid()
        self._requests = _RequestSampler(numbering, self._each, make.workers)
        self._answers: Any = None  # DataLoader's iterator
        self._ending: Callable[[], object] | None = None
        self._loader = torch.utils.data.DataLoader(
            dataset,
            batch_size=None,
            sampler=self._requests,
            num_workers=make.workers,
            collate_fn=_unchanged,
            **make.options,
        )

    def can_start(self, start: Point) -> bool:
        """Return whether this process started them, and their chunks are those counted from `start`."""
        return self._pid == os.getpid() and self._run.origin(start.epoch) == start.position

    def reads(self, start: Point, end: int | None) -> Iterator[Read]:
        """Yield what the workers read from `start` to the epoch `end`."""
        unpacker = self._requests.begin(start, end)
        self._start()
        for epoch in _epochs(start, end):
            items = self._numbering.count(epoch)
            for first in range(0, items, self._each):
                found = self._next(unpacker)
                count = min(self._each, items - first)
                if self._is_transformed:
                    yield count, iter((found,))
                else:
                    columns, padding = found
                    yield count, self._cut_up(columns, padding, count)
                    del columns, padding
                del found

    def _start(self) -> None:
        """Let DataLoader send the requests; the first time, start the processes."""
        try:
            answers = iter(self._loader)
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            raise self._unsendable(error) from error
        if answers is self._answers:
            return
        self._answers = answers
        # Not needed here, and the user's functions and data may refer to the loader, and so to this object.
        answers._dataset = answers._worker_init_fn = None
        at_exit = multiprocessing.util.Finalize(None, _ignore_deaths, (weakref.ref(answers),), exitpriority=0)
        ending = weakref.finalize(self, _end, answers, self._pid, at_exit)
        ending.atexit = False  # the interpreter ends its daemonic processes itself, without waiting
        self._ending = ending

    def _unsendable(self, error: Exception) -> ConfigurationError:
        loader = self._loader
        method = (loader.multiprocessing_context or torch.multiprocessing).get_start_method()
        what, instead = "the stream's source", "a cache (storage.submit), or another source that pickles"
        for name, function in (
            ("transform", loader.dataset.transform),
            ("worker_init_fn", loader.worker_init_fn),
        ):
            if not _pickles(function):
                what = f"{name}={function!r}"
                instead = "a function of a module, or functools.partial of one to give it arguments"
                break
        return ConfigurationError(
            f"{what} can't be sent to a worker process, which {method!r} starts empty: {error}. Pass "
            f'{instead}; or multiprocessing_context="fork", whose processes begin with all that this one has'
        )

    def _next(self, unpacker: Unpacker) -> Any:
        """Return what the next worker read; raise what it raised."""
        if self._pid != os.getpid():
            raise ForkedError  # the iterator then goes on with workers of its own
        try:
            answer = next(self._answers)
            if not isinstance(answer, _Failure):
                return unpacker.unpack(answer)
        except RuntimeError as error:
            # DataLoader raises the same type for a timeout and for a dead worker.
            error.add_note(_LATE if str(error).startswith("DataLoader timed out") else _DIED)
            raise
        except (OSError, EOFError) as error:
            died = RuntimeError(
                f"a worker process of make_dataloader ended before its batch could be taken: {error}"
            )
            died.add_note(_DIED)
            raise died from error
        answer.error.add_note(answer.where)
        raise answer.error

    def end(self) -> None:
        """End the processes now, without waiting until the last reference is gone.

        After an error its traceback may hold this object for long. Until then DataLoader would raise the
        death of a worker again and again, wherever this process happens to be.
        """
        if self._ending is not None:
            self._ending()
        self._answers = None

    def _cut_up(self, columns: list[Any], padding: Any, count: int) -> Iterator[Any]:
        size = self._cut.size
        for first in range(0, count * size, size):
            rows = slice(first, first + size)
            yield self._finish([column[rows] for column in columns], padding[rows])


def _end(answers: Any, pid: int, at_exit: Any) -> None:
    """End the processes of DataLoader's iterator; in a forked process, leave that to the parent."""
    at_exit.cancel()
    if pid == os.getpid():
        answers._shutdown_workers()
    else:
        answers._shutdown = True


def _ignore_deaths(answers: "weakref.ref[Any]") -> None:
    """When the program exits, let DataLoader no longer report the deaths of its workers.

    The interpreter ends its daemonic processes itself. One that is still starting dies of that with an exit
    code that DataLoader would report as a worker that was killed.
    """
    found = answers()
    if found is not None and found._worker_pids_set:
        found._worker_pids_set = False
        torch.utils.data._utils.signal_handling._remove_worker_pids(id(found))


def _pickles(value: Any) -> bool:
    try:
        pickle.dumps(value)
    except (TypeError, AttributeError, pickle.PicklingError):
        return False
    return True


_AGAIN: Final = (
    "Nothing that was not delivered is lost: next() tries again, and state_dict() stands after the last "
    "batch delivered"
)
_DIED: Final = (
    "a worker process of make_dataloader failed; if it was killed, it is often memory that it lacked: try "
    f"fewer workers or smaller batches. {_AGAIN}"
)
_LATE: Final = (
    "no batch came from a worker process of make_dataloader within timeout=: the source or the transform "
    "takes longer, or hangs, as it may on a lock that was held when the process was forked "
    '(multiprocessing_context="spawn" has none). Pass a longer timeout=, or none to wait for as long as it '
    f"takes. {_AGAIN}"
)


def _epochs(start: Point, end: int | None) -> Iterator[int]:
    return itertools.count(start.epoch) if end is None else iter(range(start.epoch, end))


def _unchanged(answer: Any) -> Any:
    return answer


class _RequestSampler:
    """Yield the requests that DataLoader sends to the workers, iteration by iteration: its sampler.

    It refers to nothing of the source: see `_WorkerPool`.
    """

    def __init__(self, numbering: Numbering, each: int, workers: int) -> None:
        self._numbering = numbering
        self._each, self._workers = each, workers
        self._iteration = 0
        self._requests: Iterator[_Request] = iter(())

    def __iter__(self) -> Iterator[_Request]:
        return self._requests

    def begin(self, start: Point, end: int | None) -> Unpacker:
        """Make the requests from `start` to the epoch `end`; return what unpacks the answers."""
        self._iteration += 1
        unpacker = Unpacker(self._workers)
        self._requests = self._make(unpacker, start, end)
        return unpacker

    def _make(self, unpacker: Unpacker, start: Point, end: int | None) -> Iterator[_Request]:
        workers = itertools.cycle(range(self._workers))  # as DataLoader asks them
        for epoch in _epochs(start, end):
            for number in range(-(-self._numbering.count(epoch) // self._each)):
                worker = next(workers)
                yield _Request(self._iteration, epoch, number, worker, unpacker.returned(worker))


class _ChunkDataset(torch.utils.data.Dataset):  # type: ignore[misc]  # torch has no types where they are checked
    """Read chunks in a worker process: DataLoader's dataset."""

    def __init__(self, numbered: NumberedBatches, batches: Batches, transform: Transform | None) -> None:
        self._numbered = numbered
        self._batches = batches
        self._finish = batches.finish()
        self.transform = transform
        self._packer: Packer | None = None
        self._iteration = -1

    def __reduce__(self) -> Any:
        return type(self), (self._numbered, self._batches, self.transform)

    def __getitem__(self, request: _Request) -> SharedBatch | _Failure:
        try:
            worker = torch.utils.data.get_worker_info().id
            if self._packer is None:
                settle_allocator()
            if self._packer is None or request.iteration != self._iteration:
                # The segments of an earlier iteration may still be read: they are not used again.
                self._packer, self._iteration = Packer(worker), request.iteration
            if worker == request.worker:  # else DataLoader asked another worker than expected
                self._packer.take_back(request.returned)
            return self._packer.pack(self._read(request))
        except Exception as error:  # noqa: BLE001  (the loop raises it, whatever it is)
            return _failure(error, request.worker)

    def _read(self, request: _Request) -> Any:
        columns, padding = self._numbered.read(request.epoch, request.number)
        if self.transform is None:
            return columns, padding
        return self.transform(self._finish(columns, padding))


def _failure(error: Exception, worker: int) -> _Failure:
    where = f"in worker process {worker} of make_dataloader:\n{traceback.format_exc()}"
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001  (a user's error may do anything here)
        error = RuntimeError(f"{type(error).__name__}: {error}")
    return _Failure(error, where)
