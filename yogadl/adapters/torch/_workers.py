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
from yogadl.adapters.torch._transport import Packer, Parcel, Unpacker
from yogadl.errors import ConfigurationError

# What goes from a worker to the loop at a time, unless a single batch is larger: handing over costs some
# 0.2 ms, whatever its size (benchmarks/torch_loader.py).
_MOST_BYTES: Final = 1_000_000
_CHUNKS: Final = 4  # of an epoch for each worker, at least, if it has as many batches

Transform = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class _Request:
    """Ask a worker for the `number`-th chunk of an epoch, and tell it which segments are free again."""

    turn: int
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
    _kept: "list[_Crew]" = field(default_factory=list, compare=False)

    def __reduce__(self) -> Any:
        return type(self), (self.batches, self.transform, self.workers, self.options)

    @property
    def run(self) -> Run:
        """Whose records."""
        return self.batches.run

    def reads(self, cut: Cut, start: Point, end: int | None) -> Iterator[Read]:
        """Yield the batches from `start` to the epoch `end`, chunk by chunk."""
        crew = self._crew(cut, start)
        is_sound = False
        try:
            yield from crew.reads(start, end)
            is_sound = True
        except GeneratorExit:
            is_sound = True  # the consumer's wish
            raise
        finally:
            if is_sound and self.options.get("persistent_workers"):
                self._kept[:] = [crew]
            else:
                crew.end()

    def _crew(self, cut: Cut, start: Point) -> "_Crew":
        """Return the processes that are kept, if they can read from there on, or new ones."""
        while self._kept:  # whoever takes them has them alone
            crew = self._kept.pop()
            if crew.can_start(start):
                return crew
            crew.end()
        return _Crew(self, replace(self.run, start=start), cut)


class _Crew:
    """The worker processes of one iterator at a time, and of the process that started them.

    They end at once when this object is let go of. So nothing that it or DataLoader holds may lead back here:
    the garbage collector comes when it likes, and then closes the queues first by which workers are told.
    """

    def __init__(self, make: WorkerBatches, run: Run, cut: Cut) -> None:
        self._run, self._cut = run, cut
        self._numbering = numbering = run.numbering(replace(cut, epochs=1))  # counted epoch by epoch
        self._finish = make.batches.finish()
        self._is_ready = make.transform is not None  # a batch that leaves the worker as it is to be delivered
        bytes_each = run.record_bytes * cut.size
        spread = -(-numbering.begun // (_CHUNKS * make.workers))
        self._each = 1 if self._is_ready else max(1, min(_MOST_BYTES // bytes_each, spread))
        numbered = NumberedBatches(RecordStream(run), cut.size * self._each)
        dataset = _Chunks(numbered, make.batches, make.transform)
        self._pid = os.getpid()
        self._plan = _Plan(numbering, self._each, make.workers)
        self._answers: Any = None  # DataLoader's iterator
        self._ending: Callable[[], object] | None = None
        self._loader = torch.utils.data.DataLoader(
            dataset,
            batch_size=None,
            sampler=self._plan,
            num_workers=make.workers,
            collate_fn=_as_it_is,
            **make.options,
        )

    def can_start(self, start: Point) -> bool:
        """Return whether they are this process's, and count chunks as they are counted from `start`."""
        return self._pid == os.getpid() and self._run.origin(start.epoch) == start.position

    def reads(self, start: Point, end: int | None) -> Iterator[Read]:
        """Yield what the workers read from `start` to the epoch `end`."""
        unpacker = self._plan.begin(start, end)
        self._start()
        for epoch in _epochs(start, end):
            items = self._numbering.count(epoch)
            for first in range(0, items, self._each):
                found = self._next(unpacker)
                count = min(self._each, items - first)
                if self._is_ready:
                    yield count, iter((found,))
                else:
                    columns, padding = found
                    yield count, self._cut_up(columns, padding, count)
                    del columns, padding
                del found

    def _start(self) -> None:
        """Let DataLoader ask for what is planned; the first time, start the processes.

        Raises:
            ConfigurationError: if what a process is to be sent can't be pickled; says what.
        """
        try:
            answers = iter(self._loader)
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            raise self._unsendable(error) from error
        if answers is self._answers:
            return
        self._answers = answers
        # Not needed here, and functions or data of the user's may lead to the loader, and so to us.
        answers._dataset = answers._worker_init_fn = None
        at_exit = multiprocessing.util.Finalize(None, _forget, (weakref.ref(answers),), exitpriority=0)
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
        """Return what the next worker in turn read; raise what it raised."""
        if self._pid != os.getpid():
            raise ForkedError  # the iterator then goes on with workers of its own
        try:
            answer = next(self._answers)
            if not isinstance(answer, _Failure):
                return unpacker.unpack(answer)
        except RuntimeError as error:
            # DataLoader has one type for both.
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
        """End the processes now: an error's traceback may hold this object for long.

        While it lives, DataLoader raises the death of a worker wherever this process is, again and again.
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
    """End the processes of DataLoader's iterator; in a forked process they are not ours to end."""
    at_exit.cancel()
    if pid == os.getpid():
        answers._shutdown_workers()
    else:
        answers._shutdown = True


def _forget(answers: "weakref.ref[Any]") -> None:
    """Let the interpreter end the processes of DataLoader's iterator at its own end.

    One that is still starting dies of that, where others know it for the end, and would be told as a worker
    that was killed.
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


def _as_it_is(answer: Any) -> Any:
    return answer


class _Plan:
    """Say what DataLoader is to ask the workers for, iteration by iteration: its sampler.

    It has no part of the source: see `_Crew`.
    """

    def __init__(self, numbering: Numbering, each: int, workers: int) -> None:
        self._numbering = numbering
        self._each, self._workers = each, workers
        self._turn = 0
        self._requests: Iterator[_Request] = iter(())

    def __iter__(self) -> Iterator[_Request]:
        return self._requests

    def begin(self, start: Point, end: int | None) -> Unpacker:
        """Plan to read from `start` to the epoch `end`; return what unpacks the answers."""
        self._turn += 1
        unpacker = Unpacker(self._workers)
        self._requests = self._plan(unpacker, start, end)
        return unpacker

    def _plan(self, unpacker: Unpacker, start: Point, end: int | None) -> Iterator[_Request]:
        workers = itertools.cycle(range(self._workers))  # DataLoader asks them in turn
        for epoch in _epochs(start, end):
            for number in range(-(-self._numbering.count(epoch) // self._each)):
                worker = next(workers)
                yield _Request(self._turn, epoch, number, worker, unpacker.returned(worker))


class _Chunks(torch.utils.data.Dataset):  # type: ignore[misc]  # torch has no types where they are checked
    """Read chunks in a worker process: DataLoader's dataset."""

    def __init__(self, numbered: NumberedBatches, batches: Batches, transform: Transform | None) -> None:
        self._numbered = numbered
        self._batches = batches
        self._finish = batches.finish()
        self.transform = transform
        self._packer: Packer | None = None
        self._turn = -1

    def __reduce__(self) -> Any:
        return type(self), (self._numbered, self._batches, self.transform)

    def __getitem__(self, request: _Request) -> Parcel | _Failure:
        try:
            worker = torch.utils.data.get_worker_info().id
            if self._packer is None:
                settle_allocator()
            if self._packer is None or request.turn != self._turn:
                # Of another iteration, whose end nobody told us: its segments are left to who reads them.
                self._packer, self._turn = Packer(worker), request.turn
            if worker == request.worker:  # else DataLoader asked another than expected: it makes new ones
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
    except Exception:  # noqa: BLE001  (what an error of the user's does there is his)
        error = RuntimeError(f"{type(error).__name__}: {error}")
    return _Failure(error, where)
