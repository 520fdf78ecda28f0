"""Write the partitions of a build by worker processes of this process, or by tasks of any executor."""

import concurrent.futures
import importlib
import logging
import pickle
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple

from yogadl._core.progress import Tally
from yogadl._sources.sources import SelfWritingSource, Source
from yogadl._workers.messages import pickled
from yogadl._workers.processes import worker_pool
from yogadl.errors import ConfigurationError, WorkerDiedError
from yogadl.storage import _names
from yogadl.storage._builds.build import Build, Receipt, Writing, WrittenParts
from yogadl.storage._builds.options import ENGINES
from yogadl.storage._builds.partitions import InPartitions
from yogadl.storage._builds.publish import put_aside
from yogadl.storage._catalogue.backend import BuildExclusion

_log = logging.getLogger("yogadl")

# What the workers of a build share.
_PRELOAD: Final = (__name__, "yogadl._format.writer")
# The interval between reports of progress.
_PROGRESS_INTERVAL_S: Final = 0.5
# The largest size of a part; larger than a share of a source with random access, so each share is one part.
_PART_BYTES: Final = 2**29
# An executor keeps the arguments of waiting tasks in memory. _LEAST_WAITING tasks wait in any case, so that
# no slot is idle for long; _LEAST_WAITING_IF_UNKNOWN, if the executor does not report which tasks run. Up to
# _MOST_WAITING tasks wait as long as their arguments take less than _WAITING_BYTES.
_LEAST_WAITING: Final = 4
_LEAST_WAITING_IF_UNKNOWN: Final = 32
_MOST_WAITING: Final = 4096
_WAITING_BYTES: Final = 2**30


class _SubmittedTask(NamedTuple):
    """A submitted task, its partition, and the size of its arguments."""

    task: "concurrent.futures.Future[WrittenCounts]"
    partition: int
    size_bytes: int = 0


class WrittenCounts(NamedTuple):
    """The result of a task: the records and bytes of its partition."""

    records: int
    size_bytes: int


@dataclass(frozen=True)
class Parallel(InPartitions):
    """A build whose partitions are written for one process that holds the right to build.

    They are written by this process or its worker processes, or by an executor's tasks. If the process dies,
    the next builder continues with the partitions that have a receipt.
    """

    def write_all(self, source: Source, writing: Writing) -> tuple[Build, Sequence[WrittenParts | None]]:
        """Write all partitions that are not written yet.

        Raises:
            WorkerDiedError: if workers died repeatedly at the same partition; the error names it.
        """
        self.train_dictionaries(source)
        options, exclusion, show, log_level = writing
        say = partial(_log.log, log_level)
        tally = Tally(f"yogadl: {self.key}", self.count, source.length, show, exclusion.report, say)
        part_bytes = options.build.part_bytes or _PART_BYTES
        if options.build.engine is not None:
            _run_tasks(self, tally, exclusion, _submitting(self, options.build.engine, part_bytes))
        elif options.workers <= 1:
            _write_in_this_process(self, part_bytes, tally, exclusion)
        else:
            arguments = pickled((self, part_bytes), stays_here=True)
            count = min(options.workers, self.count)
            with worker_pool(count, arguments, _PRELOAD, lambda counts: tally.note(*counts)) as pool:
                _run_tasks(
                    self, tally, exclusion, lambda k: _SubmittedTask(pool.call(_write_in_worker, k), k)
                )
        return self, self.written()

    def put_others_aside(self) -> None:
        """Put aside the files that other builds of this version left, such as builds of other code."""
        root = self.backend.root
        names = root.names(_names.builds(self.key), ".json")
        for run in {_names.split_attempt(self.key.id, name)[1] for name in names}:
            folder = f"{_names.builds(self.key)}/{run}"
            if _names.is_parallel(run) and folder != self.folder:
                put_aside(root, folder, _names.unresumable(self.key, secrets.token_hex(8)))


@dataclass(frozen=True)
class ByItsSource(Parallel):
    """A build whose source writes its records by its own tasks; one that fails can't be continued."""

    def write_all(self, source: Source, writing: Writing) -> tuple[Build, Sequence[WrittenParts | None]]:
        """Let the source write all partitions, the number of which only it knows."""
        assert isinstance(source, SelfWritingSource)
        try:
            count = source.write_partitions(
                partial(self.write_records, part_bytes=writing.options.build.part_bytes)
            )
        except BaseException:
            put_aside(self.backend.root, self.folder, _names.unresumable(self.key, self.run))
            raise
        writing.exclusion.check()
        build = replace(self, count=count)
        return build, build.written()


def _submitting(
    build: Parallel, engine: concurrent.futures.Executor | str, part_bytes: int
) -> Callable[[int], _SubmittedTask]:
    """Return a function that submits the task of a partition to an executor, or to one in `ENGINES`."""
    tasks: Any = engine
    if isinstance(engine, str):
        module, name = ENGINES[engine]
        tasks = getattr(importlib.import_module(module), name)()

    def submit(partition: int) -> _SubmittedTask:
        assert build.shares is not None
        share = build.shares.alone(partition)
        arguments = pickled((replace(build, shares=None), partition, share, part_bytes), stays_here=False)
        task = tasks.submit(write_partition, arguments)
        if not isinstance(task, concurrent.futures.Future):
            raise ConfigurationError(
                "the engine must be a concurrent.futures.Executor, but submit of this "
                f"{type(tasks).__name__} did not return a concurrent.futures.Future; for a Client of "
                "Dask pass client.get_executor()"
            )
        return _SubmittedTask(task, partition, len(arguments))

    return submit


def _write_in_this_process(
    build: InPartitions, part_bytes: int, tally: Tally, exclusion: BuildExclusion
) -> None:
    for partition in range(build.count):

        def progress(records: int, _: int | None, size_bytes: int, number: int = partition) -> None:
            tally.note(number, records, size_bytes)
            tally.report_total()

        tally.note(partition, *counts_of(build.write_share(partition, part_bytes, progress)), is_whole=True)
        tally.report_total()
        exclusion.check()


def _run_tasks(
    build: InPartitions,
    tally: Tally,
    exclusion: BuildExclusion,
    submit: Callable[[int], _SubmittedTask],
) -> None:
    """Submit a task for each partition, in order, and wait for all; at the first error cancel the rest."""
    pending: dict[concurrent.futures.Future[WrittenCounts], _SubmittedTask] = {}
    submitted = 0
    try:
        while pending or submitted < build.count:
            waiting = [sent.size_bytes for sent in pending.values() if not sent.task.running()]
            least = _LEAST_WAITING_IF_UNKNOWN if waiting and len(waiting) == len(pending) else _LEAST_WAITING
            while submitted < build.count and _has_room(waiting, least):
                sent = submit(submitted)
                pending[sent.task] = sent
                waiting.append(sent.size_bytes)
                submitted += 1
            done, _ = concurrent.futures.wait(
                pending, _PROGRESS_INTERVAL_S, concurrent.futures.FIRST_COMPLETED
            )
            for task in done:
                sent = pending.pop(task)
                tally.note(sent.partition, *_result(build, sent), is_whole=True)
            tally.report_total()
            if done:
                exclusion.check()
    except BaseException:
        for task in pending:
            task.cancel()
        raise


def _has_room(waiting: Sequence[int], least: int) -> bool:
    """Return whether one more task may wait beside those whose argument sizes are in `waiting`."""
    return len(waiting) < least or (len(waiting) < _MOST_WAITING and sum(waiting) < _WAITING_BYTES)


def _result(build: InPartitions, sent: _SubmittedTask) -> WrittenCounts:
    try:
        return sent.task.result()
    except WorkerDiedError as error:
        raise WorkerDiedError(f"{build.key}: {build.described(sent.partition)}: {error}") from error


def write_partition(arguments: bytes) -> WrittenCounts:
    """Write one partition; runs as an executor's task."""
    build, partition, share, part_bytes = pickle.loads(arguments)
    return counts_of(build.write_share(partition, part_bytes, share=share))


def _write_in_worker(
    arguments: tuple[InPartitions, int], report: Callable[[Any], None], partition: int
) -> WrittenCounts:
    """Write a partition in a worker process."""
    build, part_bytes = arguments
    last_s = 0.0

    def progress(records: int, _: int | None, size_bytes: int) -> None:
        nonlocal last_s
        if time.monotonic() - last_s >= _PROGRESS_INTERVAL_S:
            last_s = time.monotonic()
            report((partition, records, size_bytes))

    return counts_of(build.write_share(partition, part_bytes, progress))


def counts_of(receipts: list[Receipt]) -> WrittenCounts:
    """Return the records and bytes of parts."""
    indexes = [receipt.part.index for receipt in receipts]
    return WrittenCounts(sum(index.records for index in indexes), sum(index.size_bytes for index in indexes))
