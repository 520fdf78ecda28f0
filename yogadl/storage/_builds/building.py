"""Begin builds of a source, for one process that holds the right to build, or in partitions for any tasks."""

import contextlib
import errno
import functools
import hashlib
import json
import logging
import secrets
import shutil
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, ParamSpec

from yogadl._core.arguments import in_words, users_level
from yogadl._core.key import AUTO, DatasetKey, is_version, new_key
from yogadl._core.progress import Progress, Tally, is_shown, report_to_both, shown
from yogadl._core.protocols import DataRef
from yogadl._dataref import RecordsRef
from yogadl._format.manifest import Manifest
from yogadl._provenance.builder import Builder, Call, Describer, sha256_of_data
from yogadl._provenance.difference import difference
from yogadl._provenance.values import HOOK
from yogadl._sources.partitioned import PartitionedSource
from yogadl._sources.sources import Source, open_if_any, open_source
from yogadl._workers.processes import require_main
from yogadl.errors import CacheFormatError, ConfigurationError, DatasetNotFoundError, StorageError
from yogadl.storage import _names
from yogadl.storage._builds.build import Build, Planned, describe_machine, digest_replaced
from yogadl.storage._builds.executors import ENGINES, write_all, written_by_itself
from yogadl.storage._builds.partitions import Partitions
from yogadl.storage._builds.publish import clear_attempt, publish
from yogadl.storage._builds.receipts import Shares, shares_of
from yogadl.storage._catalogue.backend import Backend, BuildExclusion, LeaseLostError, reporting_loss
from yogadl.storage._catalogue.tags import refuse_tag
from yogadl.storage._files.root import Root
from yogadl.storage._keeping.keeping import clear_unresumable
from yogadl.storage._leases.exclusive import exclusive_build, exclusive_build_unless

# Begin builds of a source in partitions, for one process that holds the right to build, or for any tasks.


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


# Build versions for `submit` and `cacheable`, under the lock or lease of a storage.


P = ParamSpec("P")


@dataclass(frozen=True)
class BuildOptions:
    """The options of a build that do not change its records.

    Args:
        workers: How many processes read the source; more than one needs random access, or partitions.
        part_bytes: Parts are sealed before they hold more; ``None`` is the storage's own choice.
        allow_pickle: Whether objects without a stored form may be pickled.
        progress: ``True`` or ``False`` for a progress bar or none, ``None`` for one on a terminal, or a
            function of (records so far, records in all or None, bytes so far).
        check_space: Whether to refuse a build that certainly needs more space than the disk has.
        engine: Any executor, or the name of one in `ENGINES`, whose tasks read the source in place of worker
            processes.
    """

    workers: int = 1
    part_bytes: int | None = None
    allow_pickle: bool = False
    progress: bool | Progress | None = None
    check_space: bool = True
    engine: Executor | str | None = None

    def __post_init__(self) -> None:
        if type(self.workers) is not int or self.workers < 1:
            raise ConfigurationError(f"workers must be a positive integer, not {self.workers!r}")
        if self.engine is not None:
            self._check_engine()
        elif self.workers > 1:
            require_main()
        if self.part_bytes is not None and (type(self.part_bytes) is not int or self.part_bytes < 1):
            raise ConfigurationError(
                f"part_bytes must be a positive number of bytes, not {self.part_bytes!r}"
            )

    def _check_engine(self) -> None:
        if self.workers != 1:
            raise ConfigurationError("an engine has its own workers: leave out workers, or engine")
        if self.engine not in ENGINES and not callable(getattr(self.engine, "submit", None)):
            raise ConfigurationError(
                'engine must be "ray", or an executor as those of concurrent.futures, not '
                f"{self.engine!r:.100}"
            )


def replace_version(
    backend: Backend,
    key: DatasetKey,
    data: Callable[[], Any],
    options: BuildOptions,
    call: Call | None = None,
) -> None:
    """Build a version, whether or not one exists.

    Args:
        backend: The storage.
        key: The version.
        data: Returns the source, or a `Planned`; called once no other process builds.
        options: The options of the build.
        call: The call that returned the source, if the manifest is to describe it.

    Raises:
        ConfigurationError: if the name is not allowed for a new version.
    """
    with _attempt(backend, key) as token, exclusive_build(backend, key) as exclusion:
        _build(backend, key, data(), options, call, token=token, exclusion=exclusion, replaces=True)


def cached(
    backend: Backend,
    dataset_id: str,
    dataset_version: str,
    options: BuildOptions,
    check: bool,
    function: Callable[P, Any],
) -> Callable[P, RecordsRef]:
    """Return a function that builds the result of `function` once, and returns a reference to it."""
    is_auto = dataset_version == AUTO
    describer = Describer(function, thorough=is_auto)
    catalogue = backend.catalogue
    warned: set[str] = set()

    @functools.wraps(function)
    def build_once(*args: P.args, **kwargs: P.kwargs) -> RecordsRef:
        call = describer.call(args, kwargs)
        key = DatasetKey(dataset_id, call.builder.version if is_auto else dataset_version)

        def data() -> Any:
            if is_auto:
                _log_why(backend, key, call.builder)
            return function(*args, **kwargs)

        published = catalogue.find(key)
        while published is None:
            _build_once(backend, key, data, options, call)
            published = catalogue.find(key)
        if not is_auto:
            warn_if_stale(published.manifest, call.builder.to_json(), warned)
        return catalogue.ref(key, published, allow_pickle=options.allow_pickle, check=check)

    # The identity under which another builder that calls this function hashes it.
    setattr(build_once, HOOK, function if is_auto else (dataset_id, dataset_version))
    return build_once


def _build_once(
    backend: Backend, key: DatasetKey, data: Callable[[], Any], options: BuildOptions, call: Call
) -> None:
    """Build a version that does not exist, unless another process builds it first."""

    def is_there() -> bool:
        return backend.catalogue.find(key) is not None

    with _attempt(backend, key) as token, exclusive_build_unless(backend, key, is_there) as exclusion:
        if exclusion is None:
            return
        records = data()
        try:
            _build(backend, key, records, options, call, token=token, exclusion=exclusion, replaces=False)
        except LeaseLostError as error:
            _log.warning("yogadl: another process builds %s by now; its result will be used: %s", key, error)


@contextlib.contextmanager
def _attempt(backend: Backend, key: DatasetKey) -> Iterator[str]:
    """Give a token for an attempt to build; at the end, remove files that no build can continue with.

    Raises:
        ConfigurationError: if the name is not allowed for a new version.
    """
    new_key(key.id, key.version)
    token = secrets.token_hex(8)
    own = _names.unresumable(key, token)
    try:
        yield token
    except BaseException:
        clear_unresumable(backend, key.id, own)
        raise
    clear_unresumable(backend, key.id, own, key)


def _build(
    backend: Backend,
    key: DatasetKey,
    data: Any,
    options: BuildOptions,
    call: Call | None,
    *,
    token: str,
    exclusion: BuildExclusion,
    replaces: bool,
) -> None:
    planned = data if isinstance(data, Planned) else Planned(data)
    source = open_source(planned.data, allow_pickle=options.allow_pickle)
    planned.check(source)
    machine = describe_machine()

    def sha256() -> str:
        return call.sha256() if call else sha256_of_data(getattr(source, "origin", planned.data))

    def builder() -> dict[str, Any]:
        return machine | getattr(source, "provenance", {}) | (call.manifest() if call else {})

    part_bytes, aside = options.part_bytes or backend.part_bytes, _names.unresumable(key, token)
    with reporting_loss(exclusion), shown(options.progress, f"building {key}") as show:
        writes_itself = hasattr(source, "write_partitions")
        if writes_itself and (options.workers > 1 or options.engine not in (None, *ENGINES)):
            raise ConfigurationError(
                "this source is written by the tasks that make its records: leave workers and engine out"
            )
        has_many = writes_itself or isinstance(source, PartitionedSource)
        if options.engine is not None or options.workers > 1 or has_many:
            if writes_itself:
                begun = Partitions(backend, key, 0, token, is_shared_out=True)
                begun.put_others_aside()
                build = written_by_itself(source, begun, part_bytes, options.allow_pickle, aside)
                exclusion.check()
            else:
                build = shared_out(backend, key, source, sha256, part_bytes, token)
                if options.check_space:
                    _check_space(backend.root, key, source, build.where)
                say = partial(_log.log, _log_level(options))
                tally = Tally(f"yogadl: {key}", build.count, source.length, show, exclusion.report, say)
                write_all(build, options.workers, options.engine, part_bytes, tally, exclusion)
            content = planned.content(build.receipts())
            build.publish(content, builder(), exclusion, replaces=replaces, aside=aside)
            return
        where = _names.resumable(key) if source.can_start_anywhere else aside
        if options.check_space:
            _check_space(backend.root, key, source, where)
        one = Build(
            backend.root, key, part_bytes, report_to_both(exclusion.report, show), exclusion, sha256,
            log_level=_log_level(options),
        )  # fmt: skip
        content = planned.content(one.run(source, where))
    if publish(backend.root, key, content, builder(), exclusion=exclusion, replaces=replaces):
        clear_attempt(backend.root, key, where)


def _log_level(options: BuildOptions) -> int:
    """Return the log level of the message about a build's size: a warning if no progress bar shows it."""
    return logging.INFO if is_shown(options.progress) else logging.WARNING


def _check_space(root: Root, key: DatasetKey, source: Source, where: str) -> None:
    """Refuse to build a version that certainly needs more space than the disk has.

    Only sizes that a source states before its records are read are certain. The sizes of the first records
    are no measure, because the first records may be by far the largest.

    Raises:
        StorageError: if the version does not fit.
    """
    if source.length is None or root.bucket is not None or not getattr(source, "has_final_spec", False):
        return
    record_bytes = sum(field.leaf.row_bytes for field in source.spec.fields if field.leaf.is_fixed)
    least_bytes = source.length * record_bytes
    with root.workplace(where) as work:
        free_bytes = shutil.disk_usage(work).free
    if least_bytes <= free_bytes:
        return
    # Parts of an earlier build are continued, and parts of another version may have the same content.
    parts_bytes = sum(entry.size_bytes for entry in root.entries(f"{key.id}/parts"))
    if least_bytes > free_bytes + parts_bytes:
        raise StorageError(
            errno.ENOSPC,
            f"{key} can't fit: it takes {in_words(least_bytes)} at least, and {root.location} has "
            f"{in_words(free_bytes)} free; free some space, or build on a larger disk. If it fits "
            "nevertheless (the file system may compress), pass check_space=False, or --no-space-check to "
            "yogadl build",
        )


def warn_if_stale(manifest: Manifest, builder: dict[str, Any], warned: set[str]) -> None:
    """Warn that the version returned was built by other code or arguments, once for each difference.

    Args:
        manifest: The manifest of the version.
        builder: The description of the code and arguments that would build it now.
        warned: The differences that warnings were given for.
    """
    changed = difference(manifest.builder, builder)
    if changed and changed not in warned:
        warned.add(changed)
        warnings.warn(
            f"{manifest.key} was built by other code or arguments than this call has ({changed}). It is "
            f"served as it is; to build it again, use the version {_bumped(manifest.key.version)!r}.",
            UserWarning,
            stacklevel=users_level(),
        )


def _log_why(backend: Backend, key: DatasetKey, builder: Builder) -> None:
    """Log the differences between this build and the newest version that was named automatically."""
    newest: Manifest | None = None
    with contextlib.suppress(StorageError):  # a build must not fail because versions can't be listed
        for version in backend.catalogue.versions(key.id):
            if version.startswith(f"{AUTO}-"):
                with contextlib.suppress(CacheFormatError, DatasetNotFoundError):
                    found = backend.catalogue.published(DatasetKey(key.id, version)).manifest
                    newest = found if newest is None or found.created > newest.created else newest
    if newest is not None:
        changed = difference(newest.builder, builder.to_json())
        _log.info("yogadl: building %s; it differs from %s in: %s", key, newest.key.version, changed)


def _bumped(version: str) -> str:
    head = version.rstrip("0123456789")
    digits = version[len(head) :]
    return f"{head}{int(digits) + 1}" if digits else f"{version}-2"
