"""Read batches in DataLoader's worker processes, in order, many small ones at a time."""

import itertools
import os
import pickle
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch

from yogadl._memory import settle_allocator
from yogadl._stream import NumberedBatches, RecordStream
from yogadl._stream.items import Batches, Read
from yogadl._stream.prefetch import ForkedError
from yogadl._stream.rows import Cut, Point
from yogadl._stream.run import Run
from yogadl.adapters._torch.transport import Packer, Parcel, Unpacker

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

    def reads(self, run: Run, cut: Cut, start: Point, end: int | None) -> Iterator[Read]:
        """Yield the batches from `start` to the epoch `end`, chunk by chunk."""
        crew = self._crew(run, cut, start)
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

    def _crew(self, run: Run, cut: Cut, start: Point) -> "_Crew":
        """Return the processes that are kept, if they can read from there on, or new ones."""
        while self._kept:  # whoever takes them has them alone
            crew = self._kept.pop()
            if crew.can_start(start):
                return crew
            crew.end()
        return _Crew(self, replace(run, start=start), cut)


class _Crew:
    """The worker processes of one iterator at a time, and of the process that started them."""

    def __init__(self, make: WorkerBatches, run: Run, cut: Cut) -> None:
        self._run, self._cut, self._workers = run, cut, make.workers
        self._finish = make.batches.finish(run)
        self._is_ready = make.transform is not None  # a batch that leaves the worker as it is to be delivered
        items = cut.items(run.shard.own(run.start.position))
        bytes_each = max(1, run.source.record_bytes * cut.size)
        spread = -(-items // (_CHUNKS * make.workers))
        self._each = 1 if self._is_ready else max(1, min(_MOST_BYTES // bytes_each, spread))
        numbered = NumberedBatches(RecordStream(run), cut.size * self._each)
        dataset = _Chunks(numbered, make.batches, make.transform)
        self._pid = os.getpid()
        self._plan: Iterator[_Request] = iter(())
        self._answers: Any = None  # DataLoader's iterator
        self._turn = 0
        self._loader = torch.utils.data.DataLoader(
            dataset,
            batch_size=None,
            sampler=_Plan(self),
            num_workers=make.workers,
            collate_fn=_as_it_is,
            **make.options,
        )

    def can_start(self, start: Point) -> bool:
        """Return whether they are this process's, and count chunks as they are counted from `start`."""
        return self._pid == os.getpid() and self._run.origin(start.epoch) == start.position

    def plan(self) -> Iterator[_Request]:
        """Return the requests of the iteration that begins now."""
        return self._plan

    def reads(self, start: Point, end: int | None) -> Iterator[Read]:
        """Yield what the workers read from `start` to the epoch `end`."""
        self._turn += 1
        unpacker = Unpacker(self._workers)
        self._plan = self._requests(unpacker, start, end)
        self._answers = iter(self._loader)
        for epoch in _epochs(start, end):
            items = self._items(epoch)
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

    def _next(self, unpacker: Unpacker) -> Any:
        """Return what the next worker in turn read; raise what it raised."""
        if self._pid != os.getpid():
            raise ForkedError  # the iterator then goes on with workers of its own
        try:
            answer = next(self._answers)
            if not isinstance(answer, _Failure):
                return unpacker.unpack(answer)
        except RuntimeError as error:
            error.add_note(_DIED)
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
        """End the processes now: an error's traceback may hold DataLoader's iterator for long.

        While it lives, DataLoader raises the death of a worker wherever this process is, again and again. In
        a forked process nothing ends: the workers are the parent's.
        """
        answers, self._answers = self._answers, None
        if answers is not None and self._pid == os.getpid():
            answers._shutdown_workers()
        elif answers is not None:
            answers._shutdown = True

    def _items(self, epoch: int) -> int:
        return self._cut.items(self._run.shard.own(self._run.origin(epoch)))

    def _requests(self, unpacker: Unpacker, start: Point, end: int | None) -> Iterator[_Request]:
        workers = itertools.cycle(range(self._workers))  # DataLoader asks them in turn
        for epoch in _epochs(start, end):
            for number in range(-(-self._items(epoch) // self._each)):
                worker = next(workers)
                yield _Request(self._turn, epoch, number, worker, unpacker.returned(worker))

    def _cut_up(self, columns: list[Any], padding: Any, count: int) -> Iterator[Any]:
        size = self._cut.size
        for first in range(0, count * size, size):
            rows = slice(first, first + size)
            yield self._finish([column[rows] for column in columns], padding[rows])


_DIED: Final = (
    "a worker process of make_dataloader failed; if it was killed, it is often memory that it lacked: try "
    "fewer workers or smaller batches. Nothing that was not delivered is lost: next() tries again, and "
    "state_dict() stands after the last batch delivered"
)


def _epochs(start: Point, end: int | None) -> Iterator[int]:
    return itertools.count(start.epoch) if end is None else iter(range(start.epoch, end))


def _as_it_is(answer: Any) -> Any:
    return answer


class _Plan:
    """Let DataLoader ask a crew what to read next: its sampler."""

    def __init__(self, crew: _Crew) -> None:
        self._crew = crew

    def __iter__(self) -> Iterator[_Request]:
        return self._crew.plan()


class _Chunks(torch.utils.data.Dataset):  # type: ignore[misc]  # torch has no types where they are checked
    """Read chunks in a worker process: DataLoader's dataset."""

    def __init__(self, numbered: NumberedBatches, batches: Batches, transform: Transform | None) -> None:
        self._numbered = numbered
        self._batches = batches
        self._finish = batches.finish(numbered.stream.run)
        self._transform = transform
        self._packer: Packer | None = None
        self._turn = -1

    def __reduce__(self) -> Any:
        return type(self), (self._numbered, self._batches, self._transform)

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
        columns, padding = self._numbered.columns(request.epoch, request.number)
        if self._transform is None:
            return columns, padding
        return self._transform(self._finish(columns, padding))


def _failure(error: Exception, worker: int) -> _Failure:
    where = f"in worker process {worker} of make_dataloader:\n{traceback.format_exc()}"
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001  (what an error of the user's does there is his)
        error = RuntimeError(f"{type(error).__name__}: {error}")
    return _Failure(error, where)
