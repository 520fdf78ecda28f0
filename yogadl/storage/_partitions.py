"""Build one cache from partitions that are written apart: by processes here, or tasks of any scheduler."""

import concurrent.futures
import contextlib
import itertools
import json
import logging
import pickle
import secrets
from collections.abc import Iterator
from typing import Any

from yogadl._columns import Columns
from yogadl._format.layout import SealedPart
from yogadl._key import DatasetKey
from yogadl._processes import given_to_worker, worker_pool
from yogadl._sources import Source, open_source
from yogadl._spec import Spec
from yogadl.errors import (
    CacheFormatError,
    ConfigurationError,
    DatasetNotFoundError,
    UnsupportedDataError,
)
from yogadl.storage import _names
from yogadl.storage._backend import Backend
from yogadl.storage._build import Build, content_of, describe_machine
from yogadl.storage._exclusive import exclusive_build
from yogadl.storage._parts import read_sealed
from yogadl.storage._progress import Progress
from yogadl.storage._publish import clear_attempt, publish
from yogadl.storage._receipts import Receipt

_log = logging.getLogger("yogadl")


class PartitionedBuild:
    """A build in progress, to be handed to tasks: small, picklable, and harmless to repeat.

    Args:
        backend: Where the cache will be.
        key: Which it will be.
        partitions: How many there are.
        run: What tells this build from others of the same key.
    """

    def __init__(self, backend: Backend, key: DatasetKey, partitions: int, run: str) -> None:
        if type(partitions) is not int or partitions < 1:
            raise ConfigurationError(f"partitions must be a positive integer, not {partitions!r}")
        DatasetKey("run", run)  # it becomes part of a path
        self._backend = backend
        self.key = key
        self.partitions = partitions
        self.run = run

    @property
    def _where(self) -> str:
        return _names.partitioned(self.key, self.run, self.partitions)

    def _receipt(self, partition: int) -> str:
        return f"{self._where}/{partition:08d}.json"

    def write(
        self,
        partition: int,
        records: Any,
        *,
        part_bytes: int | None = None,
        allow_pickle: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """Write the records of one partition. Repeated or raced, the first to finish counts.

        Args:
            partition: Its number, from 0.
            records: Any source; a partition without records is given as an empty list.
            part_bytes: How large one file may get; ``None`` is the storage's own choice.
            allow_pickle: Whether objects without a stored form may be pickled.
            progress: Called with records so far, records in all or ``None``, and bytes so far.
        """
        if type(partition) is not int or not 0 <= partition < self.partitions:
            raise ConfigurationError(
                f"there is no partition {partition!r}: they are 0 to {self.partitions - 1}"
            )
        if self._backend.root.size(self._receipt(partition)) is not None:
            return
        is_empty = hasattr(records, "__len__") and len(records) == 0
        source = None if is_empty else open_source(records, allow_pickle=allow_pickle)
        self.write_source(partition, source, part_bytes, progress)

    def write_source(
        self, partition: int, source: Source | None, part_bytes: int | None, progress: Progress | None = None
    ) -> int:
        """Write the records of a source that is open already; return how many bytes they take."""
        receipts: list[Receipt] = []
        if source is not None:
            where = f"{self._where}/{partition:08d}-{secrets.token_hex(8)}"
            part_bytes = part_bytes or self._backend.part_bytes
            receipts = Build(self._backend.root, self.key, part_bytes, progress).run(source, where)
        document = [[r.part.sha256, r.part.index_sha256, r.spec.to_json()] for r in receipts]
        self._backend.root.write_if_absent(self._receipt(partition), json.dumps(document).encode())
        if source is not None:
            self._backend.root.remove_folder(where)  # only now: what no receipt names would never be found
        return sum(receipt.part.index.size_bytes for receipt in receipts)

    def receipts(self) -> list[Receipt]:
        """Return the receipts of all parts, in order.

        Raises:
            ConfigurationError: if a partition is not written yet, or its parts are gone by now.
        """
        found: list[Receipt] = []
        written = [self._parts(k) for k in range(self.partitions)]
        missing = [k for k, parts in enumerate(written) if parts is None]
        if missing:
            raise ConfigurationError(
                f"{self.key}: {len(missing)} partitions are not written yet: {missing[:10]}"
            )
        first = 0
        for part, spec in itertools.chain.from_iterable(filter(None, written)):
            found.append(Receipt(first, part, spec))
            first += part.index.records
        if not found:
            raise UnsupportedDataError(f"{self.key}: no partition has any records")
        return found

    def _parts(self, partition: int) -> list[tuple[SealedPart, Spec]] | None:
        """Return the parts of a partition, ``None`` if it is to be written, anew if its parts are gone."""
        root, name = self._backend.root, self._receipt(partition)
        content = root.read(name)
        if content is None:
            return None
        try:
            return [
                (read_sealed(root, self.key.id, sha256, index_sha256), Spec.from_json(spec))
                for sha256, index_sha256, spec in json.loads(content)
            ]
        except CacheFormatError as error:
            # A prune with a short grace may have taken them; with the receipt, none would be written again.
            _log.warning("yogadl: %s: partition %d must be written again: %s", self.key, partition, error)
            root.remove(name)
            return None

    def commit(self) -> None:
        """Publish the cache. Anyone may, once all partitions are written; twice does no harm.

        Raises:
            ConfigurationError: if a partition is not written yet.
            UnsupportedDataError: if partitions have different structures.
        """
        builder = {"partitions": self.partitions, "run": self.run}
        machine = describe_machine()
        with exclusive_build(self._backend, self.key) as exclusion:
            try:
                receipts = self.receipts()
            except ConfigurationError:
                # Another process's commit clears the receipts away.
                with contextlib.suppress(DatasetNotFoundError):
                    published = self._backend.catalogue.published(self.key)
                    if published.manifest.builder.items() >= builder.items():
                        return
                raise
            content = content_of(receipts)
            publish(
                self._backend.root, self.key, content, machine | builder, exclusion=exclusion, replaces=True
            )
            clear_attempt(self._backend.root, self.key, self._where)


class _WorkersBuild(PartitionedBuild):
    """One whose tasks are the workers of the process that holds the lock or lease."""

    @property
    def _where(self) -> str:
        return _names.unresumable(self.key, self.run)


class _Share:
    """The records of a source from one number to another, as a source of its own."""

    can_start_anywhere = False

    def __init__(self, source: Source, first: int, end: int) -> None:
        self._source = source
        self._first = first
        self.spec = source.spec
        self.length = end - first

    def chunks(self, start: int = 0) -> Iterator[Columns]:
        """Yield the share's records."""
        left = self.length - start
        for columns in self._source.chunks(self._first + start):
            count = min(left, len(columns[0]))
            yield [column[:count] for column in columns]
            left -= count
            if left == 0:
                return


def build_with_workers(
    backend: Backend,
    key: DatasetKey,
    source: Source,
    *,
    workers: int,
    token: str,
    part_bytes: int | None,
    progress: Progress | None,
) -> list[Receipt]:
    """Read a source with several processes and return the receipts of all parts, in order.

    Args:
        backend: Where the cache will be.
        key: Which it will be.
        source: What to read.
        workers: How many processes read it, at most.
        token: What tells this attempt from others.
        part_bytes: How large one file may get; ``None`` is the storage's own choice.
        progress: Called with records so far, records in all, and bytes so far.

    Raises:
        ConfigurationError: if the source can only be read in order.
    """
    if source.length is None or not source.can_start_anywhere:
        raise ConfigurationError(
            "several workers need a source with __len__ and __getitem__; an iterable takes workers=1"
        )
    import cloudpickle

    workers = min(workers, source.length)
    build = _WorkersBuild(backend, key, workers, token)
    bounds = [source.length * k // workers for k in range(workers + 1)]
    done = size_bytes = 0
    with worker_pool(workers, cloudpickle.dumps((build, source, part_bytes))) as pool:
        tasks = {}
        for k in range(workers):
            share = bounds[k], bounds[k + 1]
            tasks[pool.submit(_write_share, k, *share)] = share[1] - share[0]
        for task in concurrent.futures.as_completed(tasks):
            size_bytes += task.result()
            done += tasks[task]
            if progress is not None:
                progress(done, source.length, size_bytes)
    return build.receipts()


def _write_share(partition: int, first: int, end: int) -> int:
    build, source, part_bytes = pickle.loads(given_to_worker())
    written: int = build.write_source(partition, _Share(source, first, end), part_bytes)
    return written
