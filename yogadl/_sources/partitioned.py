"""A source in partitions: each partition is a function that opens its records when they are read."""

import functools
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from yogadl._core.columns import Columns
from yogadl._core.forms import Forms
from yogadl._core.printable import masked
from yogadl._core.spec import Spec
from yogadl._sources.sources import NO_RECORDS, Source, open_if_any
from yogadl.errors import ConfigurationError, UnsupportedDataError


class Partitioned:
    """A source in partitions that are read separately, by any number of processes or machines.

    ::

        source = yogadl.partitioned.of(sorted(Path("logs").glob("*.csv")), read)
        storage.submit(source, "logs", "1", workers=8)

    The records are those of all partitions, one after the other, whichever process reads them. A killed build
    keeps the partitions that it has written. A partition may have any number of records, including none.
    All records have the same structure; their shapes may differ. Picklable if its functions are.

    Args:
        partitions: Functions without arguments; each returns the records of one partition as any source. They
            are called in other processes, in any order, and again if a process was killed.
    """

    def __init__(self, partitions: Iterable[Callable[[], Any]]) -> None:
        if not isinstance(partitions, Iterable):
            raise ConfigurationError(
                f"give a list of functions, one for each partition, not {partitions!r:.60}"
            )
        self._open = tuple(partitions)
        self._paths: tuple[Any, ...] | None = None
        if not self._open:
            raise ConfigurationError("a source in partitions needs one at least: the list is empty")
        for number, partition in enumerate(self._open):
            if not callable(partition):
                raise ConfigurationError(
                    f"partition {number} is {partition!r:.60}, which can't be called: give a function for "
                    "each that returns its records, or partitioned.of(paths, read)"
                )

    @classmethod
    def of(cls, paths: Iterable[Any], read: Callable[[Any], Any]) -> "Partitioned":
        """Return a source with a partition for each path, or for any other description of where records are.

        Args:
            paths: The paths in order. If a build continues, a file that changed since it was read is read
                again.
            read: Called with one path, returns the records there as any source.
        """
        if isinstance(paths, str | bytes | os.PathLike) or not isinstance(paths, Iterable):
            raise ConfigurationError(f"give a list of paths, not one alone: [{masked(paths, quoted=True)}]")
        if not callable(read):
            raise ConfigurationError(f"read must be a function of a path, not {read!r:.60}")
        all_paths = tuple(paths)
        source = cls([functools.partial(read, path) for path in all_paths])
        source._paths = all_paths
        return source

    def __repr__(self) -> str:
        return f"<yogadl.partitioned: {len(self._open)} partitions>"

    def as_source(self, forms: Forms) -> Source:
        """Return the source that builds read; nothing is opened."""
        return PartitionedSource(self, self._open, self._paths, forms)


class PartitionedSource(Source):
    """The form of a `Partitioned` that builds read; a partition is opened only when it is read.

    Args:
        origin: The `Partitioned` that decides the records.
        partitions: Functions without arguments; each returns the records of one partition.
        paths: The path that each partition reads from, if known.
        forms: What is said about the values of records.
    """

    def __init__(
        self,
        origin: Partitioned,
        partitions: tuple[Callable[[], Any], ...],
        paths: tuple[Any, ...] | None,
        forms: Forms,
    ) -> None:
        self.origin = origin
        self._open = partitions
        self._paths = paths
        self._forms = forms

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return len(self._open)

    def check_at_end(self) -> None:
        """Raise an error if what was read has changed since; called when all partitions are read."""

    def partition(self, number: int) -> "Partition":
        """Return one partition, unopened."""
        path = None if self._paths is None else self._paths[number]
        return Partition(self._open[number], path, self._forms)

    @functools.cached_property
    def spec(self) -> Spec:
        """The structure of the first record: partitions are opened in order until one has a record."""
        for number in range(self.partitions):
            source = self.partition(number).source()
            if source is not None:
                return source.spec
        raise UnsupportedDataError(NO_RECORDS)

    def chunks(self, start: int = 0) -> Iterator[Columns]:
        """Yield the records of all partitions; `start` skips by reading."""
        to_skip = start
        for number in range(self.partitions):
            source = self.partition(number).source()
            for columns in source.chunks() if source is not None else ():
                if to_skip < len(columns[0]):
                    yield [column[to_skip:] for column in columns] if to_skip else columns
                to_skip = max(0, to_skip - len(columns[0]))


class Partition:
    """One partition of a source, with all that a task needs to read it; picklable if its function is."""

    def __init__(self, open_: Callable[[], Any], path: Any, forms: Forms) -> None:
        self._open = open_
        self._path = path
        self._forms = forms

    def __str__(self) -> str:
        return "" if self._path is None else f"{str(self._path)!r:.200}"

    @property
    def stamp(self) -> str:
        """A string that changes when the partition's file changes; empty if there is no such file."""
        if not isinstance(self._path, str | os.PathLike):
            return ""
        try:
            status = os.stat(self._path)
        except (OSError, ValueError):
            return ""
        return f"{status.st_size} {status.st_mtime_ns}"

    def source(self, like: Spec | None = None) -> Source | None:
        """Open the partition; ``None`` if it has no records."""
        return open_if_any(self._open(), self._forms if like is None else replace(self._forms, like=like))


partitioned = Partitioned
