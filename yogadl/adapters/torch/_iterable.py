"""Present a stream to PyTorch as an iterable dataset that DataLoader's workers share exactly."""

import fcntl
import json
import multiprocessing
import os
import tempfile
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from yogadl._core.arguments import int_argument
from yogadl._dataref import takes_a_stream
from yogadl._stream import Cut, NumberedBatches, Numbering, Point, RecordStream, as_stream, read_cursor
from yogadl.adapters._checks import check_function, cut_of
from yogadl.adapters.torch._loader import TensorBatches
from yogadl.adapters.torch._sampler import TrainersEpochs, warn_of_shards
from yogadl.adapters.torch._source import to_tensors
from yogadl.errors import ConfigurationError, CursorError

# Let the worker processes of one DataLoader agree on the epoch that each iterator of a dataset reads.
#
# DataLoader copies an iterable dataset into its workers each time it is iterated over, and calls `iter` only
# there: the copy in the training loop gets no notice of a new epoch. The workers therefore record the epoch
# in a small file, whose path all copies have.


_MOST_CLAIMS: Final = 64  # the number of latest iterators to keep in the file; their workers may still start


@dataclass(frozen=True)
class WorkerId:
    """The identity of a worker process: its number, and the iterator of a DataLoader that it serves."""

    worker: int = 0
    workers: int = 1
    seed: int = 0  # DataLoader's random number for the iterator; two iterators seldom have the same
    # The ordinal of the process among all that the parent has started, minus the worker's number. The value
    # is the same for all workers of an iterator, which are started one after another. If another thread
    # starts fewer than `workers` processes in between, the values differ less than those of two iterators.
    started: int = 0
    parent: int = 0  # the process that iterates over the DataLoader

    @staticmethod
    def here() -> "WorkerId | None":
        """Return the identity of this process, or ``None`` if it is no worker."""
        info = torch.utils.data.get_worker_info()
        parent = multiprocessing.parent_process()
        if info is None or parent is None or parent.pid is None:
            return None
        ordinal = multiprocessing.current_process()._identity[-1]
        return WorkerId(info.id, info.num_workers, info.seed - info.id, ordinal - info.id, parent.pid)


class SharedEpochs:
    """Give each iterator of a dataset the next epoch; copies made by pickling or forking count together.

    A copy in another training process counts separately. The file is removed with the original.
    """

    def __init__(self, first: Point) -> None:
        self._first = first
        self._begun = 0  # the number of iterators of this process
        self._path = os.path.join(tempfile.gettempdir(), f"yogadl-epochs-{uuid.uuid4().hex}")
        weakref.finalize(self, _remove, self._path, os.getpid())

    def begin(self) -> int:
        """Count an iterator of this process: a persistent worker has several, one after another."""
        self._begun += 1
        return self._begun

    def claim(self, worker: WorkerId | None, number: int) -> Point:
        """Return the start of the iterator for which `begin` returned `number`, the same for all workers."""
        with self._notes(worker) as notes:
            if worker is not None:
                for seed, started, begun, epoch, position in notes["claims"]:
                    is_same = (seed, begun) == (worker.seed, number)
                    if is_same and abs(started - worker.started) < worker.workers:
                        return Point(epoch, position)
            point = Point(*notes["next"])
            notes["next"] = [point.epoch + 1, 0]
            if worker is not None:
                notes["claims"].append([worker.seed, worker.started, number, *point])
                del notes["claims"][:-_MOST_CLAIMS]
        return point

    def move(self, worker: WorkerId | None, point: Point) -> None:
        """Note that an iterator was moved to `point`: the next claim is the epoch after it."""
        self.restart(worker, Point(point.epoch + 1, 0))

    def restart(self, worker: WorkerId | None, point: Point) -> None:
        """Let the next claim be at `point`."""
        with self._notes(worker) as notes:
            notes["next"] = list(point)

    @contextmanager
    def _notes(self, worker: WorkerId | None) -> Iterator[dict[str, Any]]:
        """Read the notes of this training process, and write them back; one process at a time."""
        parent = os.getpid() if worker is None else worker.parent
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "r+") as file:
            # The lock is released with the descriptor, also if the process is killed.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            text = file.read()
            everything = json.loads(text) if text else {}
            yield everything.setdefault(str(parent), {"next": list(self._first), "claims": []})
            written = json.dumps(everything)
            if written != text:
                file.seek(0)
                file.write(written)
                file.truncate()


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner:
        Path(path).unlink(missing_ok=True)


# Present a stream to PyTorch as an iterable dataset that DataLoader's workers share exactly.


_READ_BYTES: Final = 1_000_000
_READ_RECORDS: Final = 256

Transform = Callable[[Any], Any]


class IterableDataset(torch.utils.data.IterableDataset):  # type: ignore[misc]  # torch is untyped here
    """A stream's records, or whole batches of them, as tensors: an iterable dataset.

    In a DataLoader with W workers, worker k yields items k, k + W, k + 2W, ... of the epoch. DataLoader
    takes items from the workers in turn, so ``DataLoader(dataset, batch_size=None, num_workers=W)`` delivers
    records or batches in the stream's order for any W. (If DataLoader has a batch size of its own, it makes
    each batch from the records of one worker: each record comes once, but the order depends on W.)

    Each DataLoader iterator, with workers or without, reads the stream's next epoch. The dataset's iterators
    are stateful for torchdata's StatefulDataLoader; see `cursor`. Picklable; usable after a fork.

    Args:
        stream: The stream to read, of `DataRef.stream`.
        batch_size: The number of records in a batch; ``None``: the stream's items as they are, records or
            the batches of `DataRef.bucketed`.
        drop_remainder: Leave out an epoch's last batch if it is short.
        padding_field: The name of a bool field to add; true for records that only repeat one to fill the
            shard.
        transform: A function of a record or batch that returns the item to yield.

    Raises:
        ConfigurationError: if an argument is invalid.

    Example:
        >>> import torch, yogadl
        >>> from yogadl.adapters import torch as yogadl_torch
        >>> ref = yogadl.from_source([10, 11, 12, 13, 14])
        >>> dataset = yogadl_torch.IterableDataset(ref.stream(), batch_size=2)
        >>> list(torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2))
        [tensor([10, 11]), tensor([12, 13]), tensor([14])]
    """

    @takes_a_stream
    def __init__(
        self,
        stream: RecordStream,
        batch_size: int | None = None,
        *,
        drop_remainder: bool = False,
        padding_field: str | None = None,
        transform: Transform | None = None,
    ) -> None:
        self.stream = as_stream(stream)
        cut = cut_of(batch_size, drop_remainder)
        self.batch_size = None if batch_size is None else cut.size
        if self.batch_size is not None:
            stream.run.require_batch(self.batch_size)
        check_function("transform", transform)
        self._items = _WorkerItems(stream, cut, batch_size is not None, padding_field, transform)
        self._items.batches(stream.run.start, 1)  # checks the padding field
        warn_of_shards(stream, cut)
        self._epochs = SharedEpochs(stream.run.start)
        self._of_trainer = TrainersEpochs(stream.shard, cut, stream.run.start)

    def __iter__(self) -> "ItemIterator":
        return ItemIterator(self._items, self._epochs)

    def set_epoch(self, epoch: int) -> None:
        """Let the next iterator, of all workers, read this epoch: trainers call it.

        A stream that goes on at a cursor goes on there, whatever epoch the trainer names first: it warns if
        that is another one, and counts the trainer's later epochs from there.
        """
        self._epochs.restart(WorkerId.here(), self._of_trainer.place(epoch))

    def __len__(self) -> int:
        return self._items.cut.items(len(self.stream))

    def __repr__(self) -> str:
        return f"<IterableDataset of {self.stream!r}, batch_size {self.batch_size}>"


@dataclass(frozen=True)
class _WorkerItems:
    """One worker's share of a stream's items, which are records or batches."""

    stream: RecordStream
    cut: Cut
    is_batched: bool
    padding_field: str | None
    transform: Transform | None

    def numbering(self, start: Point) -> Numbering:
        """Return the numbers of all workers' items in the epoch that begins at `start`."""
        return replace(self.stream.run, start=start).numbering(self.cut)

    def batches(self, start: Point, workers: int) -> NumberedBatches:
        """Return a reader of the epoch that begins at `start`, by batch; or by block of single records."""
        stream, cut = self.stream.starting(start), self.cut
        if not self.is_batched:
            cut = Cut(workers * stream.run.at_once(_READ_BYTES, _READ_RECORDS))
        return NumberedBatches(stream, cut, padding_field=self.padding_field)

    def read(self, start: Point, worker: int, workers: int, skip: int) -> Iterator[Any]:
        """Yield the items of one worker, without the first `skip` of them."""
        numbered = self.batches(start, workers)
        if self.is_batched:
            items = self._batches(numbered, start.epoch, worker + skip * workers, workers)
        else:
            items = self._records(numbered, start.epoch, worker, workers, skip)
        return items if self.transform is None else map(self.transform, items)

    def _batches(self, numbered: NumberedBatches, epoch: int, first: int, step: int) -> Iterator[Any]:
        finish = TensorBatches(numbered.stream.run, padding_field=self.padding_field).finish()
        for number in range(first, numbered.count(epoch), step):
            yield finish(*numbered.read(epoch, number))

    def _records(
        self, numbered: NumberedBatches, epoch: int, worker: int, workers: int, skip: int
    ) -> Iterator[Any]:
        spec, run = self.stream.spec, self.stream.run
        convert, name = to_tensors(spec), self.padding_field
        block, done = divmod(skip, numbered.size // workers)
        for number in range(block, numbered.count(epoch)):
            rows, done = numbered.rows(epoch, number)[worker + done * workers :: workers], 0
            records = spec.records(convert(run.read(rows)), len(rows))
            for record, flag in zip(records, rows.padding, strict=True):
                if name is not None:
                    record[name] = torch.tensor(bool(flag))
                yield record


class ItemIterator(Iterator[Any]):
    """An iterator over one worker's share of an epoch, or over all of the epoch; stateful.

    It claims its epoch at its first `next`, or when its state is read.
    """

    def __init__(self, items: _WorkerItems, epochs: SharedEpochs) -> None:
        self._items = items
        self._epochs = epochs
        self._id = WorkerId.here()
        self._number = epochs.begin()
        worker = self._id or WorkerId()
        self._worker, self._workers = worker.worker, worker.workers
        if not items.is_batched:
            items.stream.run.require_undivided(
                self._workers,
                "pass batch_size= to IterableDataset and batch_size=None to DataLoader, or call "
                "make_dataloader",
            )
        self._numbering: Numbering | None = None
        self._yielded = 0
        self._is_finished = False
        self._items_left: Iterator[Any] | None = None

    def __next__(self) -> Any:
        if self._items_left is None:
            self._items_left = self._items.read(
                self._claimed().start, self._worker, self._workers, self._yielded
            )
        try:
            item = next(self._items_left)
        except StopIteration:
            self._is_finished = True
            raise
        except BaseException:
            self._items_left = None  # a generator that raised has ended; the next call reopens at this item
            raise
        self._yielded += 1
        return item

    def _claimed(self) -> Numbering:
        """Return the numbers of the items of the claimed epoch; claim one if there is none yet."""
        if self._numbering is None:
            self._numbering = self._items.numbering(self._epochs.claim(self._id, self._number))
            if not self._worker:
                self._numbering.warn_if_finished()
        return self._numbering

    def _up_to(self, yielded: int) -> int:
        """Return the number of all workers' items up to the last one of this worker."""
        return self._worker + (yielded - 1) * self._workers + 1 if yielded else 0

    def state_dict(self) -> dict[str, Any]:
        """Return the number of items yielded, and the cursor if each worker yielded as many."""
        numbering = self._claimed()
        state = {
            "cursor": numbering.cursor(self._up_to(self._yielded)),
            "start": list(numbering.start),
            "yielded": self._yielded,
            **self._layout(),
        }
        if self._is_finished and not self._items.is_batched:
            # The number of items does not show the end if the shard has no record in the epoch's last row.
            state["end"] = numbering.cursor(0, is_end=True)
        return state

    def _layout(self) -> dict[str, Any]:
        size = self._items.cut.size if self._items.is_batched else None
        return {"worker": self._worker, "workers": self._workers, "batch_size": size}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` of the same worker was called.

        Raises:
            CursorError: if the state is of another dataset, batch size or number of workers.
        """
        try:
            start, yielded = Point(*state["start"]), int_argument("yielded", state["yielded"])
            layout = {name: state[name] for name in self._layout()}
            point = read_cursor(self._items.stream.run.identity(), state["cursor"])
        except (KeyError, TypeError, ConfigurationError) as error:
            raise CursorError(
                f"the state is not one of an IterableDataset's iterator ({error}): load a state that "
                "StatefulDataLoader saved"
            ) from error
        numbering = self._items.numbering(start)
        if layout != self._layout() or numbering.reach(self._up_to(yielded)) != point:
            raise CursorError(
                f"the state was saved with {layout} and its own shard, this iterator has {self._layout()}: "
                "to resume with another layout, open the stream with "
                "cursor=yogadl.adapters.torch.cursor(state_dict)"
            )
        self._numbering, self._yielded, self._items_left = numbering, yielded, None
        self._is_finished = "end" in state
        self._epochs.move(self._id, start)
