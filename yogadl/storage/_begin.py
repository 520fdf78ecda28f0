"""Begin builds of a source in partitions, for one process that holds the right to build, or for any tasks."""

import hashlib
import json
import logging
import secrets
from collections.abc import Callable
from typing import Any, Final

from yogadl._core.key import DatasetKey, is_version
from yogadl._core.progress import Progress
from yogadl._core.protocols import DataRef
from yogadl._provenance.builder import sha256_of_data
from yogadl._sources.sources import Source, open_if_any, open_source
from yogadl.errors import ConfigurationError
from yogadl.storage._backend import Backend
from yogadl.storage._build import digest_replaced
from yogadl.storage._partitions import Partitions
from yogadl.storage._shares import Shares, shares_of
from yogadl.storage._tags import refuse_tag

_log = logging.getLogger("yogadl")

_DIGITS: Final = 24  # of the hash that names a run


class PartitionedBuild:
    """A build in progress, to be handed to tasks: small and picklable; its calls can be repeated.

    Attributes:
        key: The version to build.
        partitions: The number of partitions.
        run: The name that distinguishes this build from other builds of the same key.
    """

    def __init__(self, every: Partitions) -> None:
        self.key, self.partitions, self.run = every.key, every.count, every.run
        self._all = every

    def write(
        self,
        partition: int,
        records: Any = None,
        *,
        part_bytes: int | None = None,
        allow_pickle: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """Write the records of one partition. If several tasks write it, the first to finish is used.

        Args:
            partition: The number of the partition, from 0.
            records: Any source, also one without records; left out if `begin` was given the source of all
                partitions.
            part_bytes: The largest size of a part; ``None`` is the storage's own choice.
            allow_pickle: Whether objects without a stored form may be pickled.
            progress: Called with records so far, records in all or ``None``, and bytes so far.

        Raises:
            ConfigurationError: if the partition was written from other records than the source has.
        """
        if type(partition) is not int or not 0 <= partition < self.partitions:
            raise ConfigurationError(
                f"there is no partition {partition!r}: they are 0 to {self.partitions - 1}"
            )
        if (records is None) == (self._all.shares is None):
            raise ConfigurationError(
                "begin was given no source: give the records of the partition, [] for none"
                if records is None
                else "begin was given the source of all partitions: leave the records out"
            )
        if self._all.is_published():
            return  # no manifest would name parts that are written now
        part_bytes = part_bytes or self._all.backend.part_bytes
        if records is None:
            self._all.write_share(partition, part_bytes, progress)
        elif not self._all.is_written(partition):
            source = open_if_any(records, allow_pickle=allow_pickle)
            self._all.write(partition, source, "", part_bytes, progress)

    def commit(self) -> None:
        """Publish the cache, after all partitions are written. Any task may call it, also several times.

        Raises:
            ConfigurationError: if a partition is not written yet.
            UnsupportedDataError: if partitions have different structures.
        """
        self._all.commit({})


def shared_out(
    backend: Backend,
    key: DatasetKey,
    source: Source,
    sha256: Callable[[], str],
    part_bytes: int | None,
    token: str,
) -> Partitions:
    """Begin a build of a source, or continue one that was killed; the caller holds the right to build.

    Args:
        backend: The storage.
        key: The version.
        source: A source with random access, or in partitions.
        sha256: Returns a hash of the code and values that the source was made from.
        part_bytes: As for the build.
        token: A name of this attempt alone.

    Raises:
        ConfigurationError: if the source can only be read in order.
    """
    shares = shares_of(source)
    try:
        origin = shares.origin(sha256)
        run = run_of(backend, key, shares, origin, part_bytes=part_bytes)
    except ConfigurationError as error:
        _log.info(
            "yogadl: %s: if this build is killed, the next one starts from the beginning: %s", key, error
        )
        origin, run = "", token
    build = Partitions(backend, key, shares.count, run, shares, origin, is_shared_out=True)
    build.put_others_aside()
    return build


def begun(
    backend: Backend,
    key: DatasetKey,
    partitions: int | None,
    run: str | None,
    data: Any,
    *,
    allow_pickle: bool,
    origin: str = "",
) -> PartitionedBuild:
    """Begin a build of partitions: see `CacheStorage.begin`.

    Args:
        backend: The storage.
        key: The version.
        partitions: The number of partitions.
        run: The name that distinguishes this build from other builds of the same key.
        data: The source of all partitions, or ``None``.
        allow_pickle: Whether objects without a stored form may be pickled.
        origin: The hash of the code and values that `data` was made from, if it is known.
    """
    refuse_tag(backend.root, key)
    if run is not None and (type(run) is not str or not is_version(run) or "/" in run):
        raise ConfigurationError(f"a run can't be called {run!r:.100}: use letters, digits, '-', '_' and '.'")
    if partitions is not None and (type(partitions) is not int or partitions < 1):
        raise ConfigurationError(f"partitions must be a positive integer, not {partitions!r}")
    if data is None:
        # Without a source, a name made from the arguments would mix the partitions of two attempts.
        if partitions is None:
            raise ConfigurationError(
                "partitions must be a positive integer, not None; or give the source of all of them"
            )
        return PartitionedBuild(Partitions(backend, key, partitions, run or secrets.token_hex(8)))
    source = open_source(data, allow_pickle=allow_pickle)
    shares = shares_of(source, partitions)

    def known(strict: bool = isinstance(data, DataRef)) -> str:  # if not strict, the hash may be of samples
        return origin or sha256_of_data(getattr(source, "origin", data), strict=strict)

    try:
        found = shares.origin(known) or known()
    except ConfigurationError as error:
        if run is None:
            raise ConfigurationError(
                "it is not certain which records this source has, and so not which partitions belong "
                f"together: give a run, such as the id of the job, or solve this: {error}"
            ) from error
        found = known(False)
    name = run or run_of(backend, key, shares, found)
    return PartitionedBuild(
        Partitions(backend, key, shares.count, name, shares, found, is_named=run is not None)
    )


def run_of(backend: Backend, key: DatasetKey, shares: Shares, origin: str, **terms: Any) -> str:
    """Return the name that all builds of the same key from the same source and terms share.

    A build that begins after such a build was published gets another name, because partitions that are left
    from before may hold older data.
    """
    terms |= {
        "shares": shares.terms(),
        "origin": origin,
        "replaces": digest_replaced(backend.root, key),
    }
    return hashlib.sha256(json.dumps(terms, sort_keys=True).encode()).hexdigest()[:_DIGITS]
