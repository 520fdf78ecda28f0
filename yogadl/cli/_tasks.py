"""Build one version by tasks that do not communicate, such as those of a job array."""

import argparse
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from yogadl._core.key import DatasetKey, new_key
from yogadl._core.progress import Tally, showing_progress
from yogadl._provenance.builder import Call
from yogadl._sources.sources import open_source
from yogadl.cli._output import counted, note, say, say_json
from yogadl.storage import CacheStorage
from yogadl.storage._builds.building import begin_build
from yogadl.storage._builds.cacheable import warn_if_stale
from yogadl.storage._builds.executors import counts_of
from yogadl.storage._builds.partitions import Partitions


@dataclass(frozen=True)
class WrittenPartitions:
    """The partitions that a task has written, or has found written already."""

    id: str
    version: str
    run: str
    task: int
    tasks: int
    partitions: int
    written: int
    records: int

    def say(self, as_json: bool) -> None:
        """Print the numbers, for people or as JSON."""
        if as_json:
            say_json(**asdict(self))
            return
        what = f"{self.written} of {counted(self.partitions, 'partition')}, {counted(self.records, 'record')}"
        say(f"Task {self.task} of {self.tasks} has written {what}, of {self.id} {self.version}.")


@dataclass(frozen=True)
class Task:
    """The number of a task, and the number of tasks.

    Args:
        number: The task's number, from 1.
        count: The number of tasks.
    """

    number: int
    count: int

    @staticmethod
    def parse(text: str) -> "Task":
        """Return the task in a text such as ``3/100``."""
        found = re.fullmatch("([0-9]{1,9})/([0-9]{1,9})", text)
        number, count = map(int, found.groups()) if found else (0, 0)
        if not 1 <= number <= count:
            raise argparse.ArgumentTypeError(
                f"give a task and how many there are, counted from 1, as in 3/100, not {text!r}"
            )
        return Task(number, count)

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `build` for builds by many tasks."""
    group = parser.add_argument_group("builds by many tasks, such as those of a job array")
    which = group.add_mutually_exclusive_group()
    which.add_argument(
        "--task",
        metavar="K/N",
        type=Task.parse,
        help="write only the share of task K of N; the first task is 1",
    )
    which.add_argument(
        "--commit", action="store_true", help="publish the version, after all tasks have written their shares"
    )
    group.add_argument(
        "--run",
        dest="run_name",
        metavar="NAME",
        help="a name that all tasks of a build share, e.g. the job's id; needed for --replace",
    )


def check_options(arguments: argparse.Namespace) -> bool:
    """Return whether the options are those of a task, after refusing invalid combinations."""
    is_task = arguments.task is not None or arguments.commit
    if arguments.run_name is not None and not is_task:
        arguments.refuse("--run goes with --task or --commit")
    if is_task and arguments.workers > 1:
        arguments.refuse("a task reads in one process: leave out --workers, and start more tasks")
    if is_task and arguments.replace and arguments.run_name is None:
        # Without a run's name, a task that is repeated after the commit would start a new build.
        arguments.refuse(
            "--replace by tasks needs --run with the same name for all tasks, such as the job's id"
        )
    return is_task


def run_task(
    storage: CacheStorage,
    key: DatasetKey,
    function: Callable[..., Any],
    values: dict[str, Any],
    call: Call,
    arguments: argparse.Namespace,
) -> "bool | WrittenPartitions":
    """Write the partitions of one task, or publish the version from the partitions of all tasks.

    Returns:
        Whether this call published the version; or the partitions that the task has written.
    """
    new_key(key.id, key.version)
    if not arguments.replace:
        published = storage._backend.catalogue.find(key)
        if published is not None:
            warn_if_stale(published.manifest, call.builder.to_json(), set())
            return False
    origin = call.sha256()
    data = open_source(function(**values), allow_pickle=arguments.allow_pickle)
    build = begin_build(
        storage._backend,
        key,
        None,
        arguments.run_name,
        data,
        allow_pickle=arguments.allow_pickle,
        origin=origin,
    )
    if build._all.is_published():  # an earlier commit of this run has published the version
        warn_if_stale(storage._backend.catalogue.published(key).manifest, call.builder.to_json(), set())
        return False
    if arguments.commit:
        builder = getattr(data, "provenance", {}) | call.manifest()
        return build._all.commit(builder, replaces=arguments.replace)
    return _write(build._all, arguments)


def _write(build: Partitions, arguments: argparse.Namespace) -> "WrittenPartitions":
    """Write every N-th partition, so that a long stretch of slow partitions is spread over all tasks."""
    task: Task = arguments.task
    others = build.others()
    if others:
        note(f"other tasks of {build.key} have other code, arguments or source, or another run: {others}")
    own_partitions = range(task.number - 1, build.count, task.count)
    part_bytes = arguments.part_bytes or build.backend.part_bytes
    records = 0
    title = f"{build.key}, task {task}"
    build.note_tasks(task.count)
    with showing_progress(None, title) as show:
        tally = Tally(title, len(own_partitions), None, show, None, note)
        for partition in own_partitions:
            written = counts_of(build.write_share(partition, part_bytes))
            tally.note(partition, *written, is_whole=True)
            tally.report_total()
            records += written.records
    return WrittenPartitions(
        build.key.id,
        build.key.version,
        build.run,
        task.number,
        task.count,
        build.count,
        len(own_partitions),
        records,
    )
