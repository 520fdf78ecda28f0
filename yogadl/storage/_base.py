"""Submit, fetch and cacheable, and what keeps a storage in order: written once, over a root and a right."""

import contextlib
import errno
import functools
import itertools
import logging
import os
import secrets
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, ParamSpec

from yogadl._caller import users_level
from yogadl._dataref import RecordsRef
from yogadl._format.checks import CheckedReader
from yogadl._format.manifest import Manifest, digest_of, read_manifest
from yogadl._format.reader import Reader
from yogadl._interfaces import Storage
from yogadl._key import DatasetKey, is_dataset_id, is_version, new_key
from yogadl._provenance.builder import Builder
from yogadl._provenance.describer import Call, Describer, sha256_of_data
from yogadl._provenance.difference import difference
from yogadl._provenance.values import HOOK
from yogadl._sources import open_source
from yogadl._spec import Spec
from yogadl._stream.arguments import explains_names
from yogadl.errors import (
    CacheFormatError,
    ConfigurationError,
    DatasetNotFoundError,
    LeaseError,
    StorageError,
)
from yogadl.storage import _names
from yogadl.storage._buckets.offline import OfflineError
from yogadl.storage._build import (
    Build,
    Progress,
    check_space,
    clear_attempt,
    content_of,
    describe_machine,
    new_trashed_name,
    publish,
    replace,
    trashed_names,
)
from yogadl.storage._cached import CachedRecords, Published
from yogadl.storage._explain import Explanation, explain
from yogadl.storage._export import Exported, export
from yogadl.storage._leases.right import LostRightError, Right, told_if_lost
from yogadl.storage._partitions import PartitionedBuild, build_with_workers
from yogadl.storage._progress import is_shown, shown
from yogadl.storage._prune import GRACE_OF_THE_SILENT_S, GRACE_S, Pruned, Pruning, count, incomplete
from yogadl.storage._root import Entry, Root
from yogadl.storage._unfinished import Unfinished, attempts, has_spent, held
from yogadl.storage._verify import Verified, verify

_log = logging.getLogger("yogadl")

P = ParamSpec("P")
# To say what there is, so many files are looked at, as many as stores list at once, and so many ids named.
_MOST_LOOKED_AT: Final = 1000
_MOST_NAMED: Final = 20
# The version that is worked out from the builder itself.
AUTO: Final = "auto"


@dataclass(eq=False)
class _Running:
    """A build in progress, as whatever runs inside of it knows it."""

    location: str
    key: DatasetKey
    is_over: bool = False  # a context may outlive the build that it was copied in


# What this context is building, so that a builder that asks for itself fails instead of waiting.
_building: ContextVar[tuple[_Running, ...]] = ContextVar("building", default=())


@dataclass(frozen=True)
class DatasetInfo:
    """What a storage knows of one version."""

    id: str
    version: str
    records: int
    size_bytes: int
    parts: int
    spec: Spec
    fingerprint: str
    digest: str
    created: float
    builder: dict[str, Any]


@dataclass(frozen=True)
class BuildOptions:
    """How a cache is built; none of it changes what is in it.

    Args:
        workers: How many processes read the source; more than one needs a source with random access.
        engine: Where the workers run; ``None`` is this machine.
        part_bytes: Parts are sealed before they hold more; ``None`` is the storage's own choice.
        allow_pickle: Whether objects without a stored form may be pickled.
        progress: ``True`` or ``False`` for a progress bar or none, ``None`` for one on a terminal, or a
            function of (records so far, records in all or None, bytes so far).
        check_space: Whether to refuse what certainly needs more than the disk has room for.
    """

    workers: int = 1
    engine: None = None
    part_bytes: int | None = None
    allow_pickle: bool = False
    progress: bool | Progress | None = None
    check_space: bool = True

    def __post_init__(self) -> None:
        if type(self.workers) is not int or self.workers < 1:
            raise ConfigurationError(f"workers must be a positive integer, not {self.workers!r}")
        if self.engine is not None:
            raise ConfigurationError(
                f"there is no engine {self.engine!r}; leave it out to build on this machine, or drive "
                "storage.begin, write and commit from your scheduler"
            )
        if self.part_bytes is not None and (type(self.part_bytes) is not int or self.part_bytes < 1):
            raise ConfigurationError(
                f"part_bytes must be a positive number of bytes, not {self.part_bytes!r}"
            )


class CacheStorage(Storage):
    """Build datasets once, keep them below a root, and hand out references to them.

    Safe to use from any number of threads and processes; picklable.

    Args:
        root: Where they lie.
        part_bytes: How large a part gets unless a build says otherwise; ``None`` lets it grow up to 1 GiB.
    """

    def __init__(self, root: Root, part_bytes: int | None = None) -> None:
        self.root = root
        self.part_bytes = part_bytes

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.location!r})"

    @property
    def location(self) -> str:
        """Where it is: a folder's path or a bucket's URL."""
        return self.root.location

    # What differs between kinds of storage.

    def building(
        self, key: DatasetKey, unless: Callable[[], bool] | None = None
    ) -> contextlib.AbstractContextManager[Right | None]:
        """Hold the right to build this version, waiting for whoever holds it now, or prunes the dataset.

        Args:
            key: The version.
            unless: Asked while waiting, and once more at the end of it. As soon as it says yes, ``None`` is
                given and nothing is held.

        Raises:
            LeaseError: if it takes longer than this storage waits.
        """
        raise NotImplementedError

    def pruning(self, dataset_id: str) -> contextlib.AbstractContextManager[Right | None]:
        """Hold the right to remove files of a dataset: as long as that is held, nobody builds there.

        Does not wait: gives ``None`` if somebody builds or prunes.
        """
        raise NotImplementedError

    def has_builder(self, dataset_id: str) -> bool:
        """Return whether somebody is building a version of this dataset."""
        raise NotImplementedError

    def with_room(self, dry_run: bool) -> contextlib.AbstractContextManager[None]:
        """See to it that `delete`, `undelete` and `prune` have the room that they take themselves.

        Args:
            dry_run: Whether nothing is to be removed.
        """
        return contextlib.nullcontext()

    def reader(self, published: Published, *, check: bool = False) -> Reader | CheckedReader:
        """Return a reader of a cache.

        Args:
            published: The cache.
            check: Whether each block is compared with its checksum before it is first read from.

        Raises:
            CacheFormatError: if a file is missing or truncated.
        """
        raise NotImplementedError

    def manifest_of(self, key: DatasetKey, digest: str | None = None) -> bytes | None:
        """Return the manifest of a version as it is now, or ``None`` if there is none.

        Args:
            key: The version.
            digest: Which one is wanted, if one is; it may have another.
        """
        return self.root.read(_names.manifest(key))

    # Building.

    @explains_names()
    def submit(
        self,
        data: Any,
        dataset_id: str,
        dataset_version: str,
        *,
        workers: int = 1,
        engine: None = None,
        part_bytes: int | None = None,
        allow_pickle: bool = False,
        progress: bool | Progress | None = None,
        check_space: bool = True,
    ) -> None:
        """Build a cache from any source and publish it; an existing version is replaced atomically.

        Nothing is visible before everything is on the disk. Whoever reads the version that is replaced
        keeps reading it.

        Args:
            data: Arrays, an object with ``__len__`` and ``__getitem__``, an iterable or a generator function.
            dataset_id: What the dataset is called; slashes make folders.
            dataset_version: Which version this is.
            workers: How many processes read the source.
            engine: Where the workers run; ``None`` is this machine.
            part_bytes: How large one file may get; ``None`` lets files grow up to 1 GiB, in a bucket 256 MiB.
            allow_pickle: Whether objects without a stored form may be pickled.
            progress: A progress bar or none; ``None`` for one on a terminal; or a function.
            check_space: Whether to refuse, before anything is read, what certainly needs more than the disk
                has room for: arrays, tables and other sources that know their length and shapes.

        Raises:
            UnsupportedDataError: if a record can't be stored; names field and record.
            StorageError: if the disk fails or is full.
        """
        key = new_key(dataset_id, dataset_version)
        options = BuildOptions(workers, engine, part_bytes, allow_pickle, progress, check_space)
        with self._attempt(key) as token, self._building_alone(key) as right:
            assert right is not None  # nothing was said that would make it needless
            self._build(key, data, options, None, token=token, right=right, replaces=True)

    def begin(
        self, dataset_id: str, dataset_version: str, *, partitions: int, run: str | None = None
    ) -> PartitionedBuild:
        """Begin a build whose partitions are written by tasks of any scheduler, in any order.

        Args:
            dataset_id: What the dataset is called.
            dataset_version: Which version this is.
            partitions: How many there are; their records follow each other in order of their numbers.
            run: What tells this build from others of the same key, if every task calls `begin` itself
                (a job's id, say); without it the one object returned must be handed to all tasks.
        """
        key = new_key(dataset_id, dataset_version)
        return PartitionedBuild(self, key, partitions, run or secrets.token_hex(8))

    @explains_names()
    def cacheable(
        self,
        dataset_id: str,
        dataset_version: str,
        *,
        workers: int = 1,
        engine: None = None,
        part_bytes: int | None = None,
        allow_pickle: bool = False,
        progress: bool | Progress | None = None,
        check: bool = False,
        check_space: bool = True,
    ) -> Callable[[Callable[P, Any]], Callable[P, RecordsRef]]:
        """Decorate a function that returns a source, so that it returns a `DataRef`, built once.

        The function runs only if there is no such version; other callers, threads and processes alike,
        wait for it and then read what it built. If its code, what that uses, or its arguments differ from
        what built the cache, a warning says so once, and the cache is served. With the version ``"auto"``
        they decide the version, so that a change builds anew; see docs/versions.md.

        A function that asks for its own result is told so. From a thread that it has started, and waits for,
        it would wait for ever: Python does not tell such a thread from others, which rightly wait, unless
        threads inherit contexts (an option of Python 3.14). After two seconds a warning says what it may be.

        Args:
            dataset_id: What the dataset is called.
            dataset_version: Which version this is; bump it when the function changes, or give ``"auto"``.
            workers: As for `submit`, like all that follow. None of them has a part in the version.
            engine: See there.
            part_bytes: See there.
            allow_pickle: See there; also allows reading pickled fields.
            progress: See there.
            check: As for `fetch`.
            check_space: See there.

        Raises:
            ConfigurationError: if the arguments make no sense; from the function returned, if the version
                is ``"auto"`` and a value that the function uses can't be described.
        """
        DatasetKey(dataset_id, dataset_version)
        options = BuildOptions(workers, engine, part_bytes, allow_pickle, progress, check_space)
        is_auto = dataset_version == AUTO
        warned: set[str] = set()

        def decorate(function: Callable[P, Any]) -> Callable[P, RecordsRef]:
            describer = Describer(function, thorough=is_auto)

            @functools.wraps(function)
            def build_once(*args: P.args, **kwargs: P.kwargs) -> RecordsRef:
                call = describer.call(args, kwargs)
                key = DatasetKey(dataset_id, call.builder.version if is_auto else dataset_version)
                published = self._find(key)
                while published is None:
                    self._build_once(
                        key,
                        lambda: function(*args, **kwargs),
                        options,
                        call,
                        before=lambda: self._log_why(key, call.builder) if is_auto else None,
                    )
                    published = self._find(key)
                if not is_auto:
                    self._warn_if_stale(published.manifest, call.builder.to_json(), warned)
                return self._ref(key, published, allow_pickle, check)

            # What stands for it in the version of another builder that calls it.
            setattr(build_once, HOOK, function if is_auto else (dataset_id, dataset_version))
            return build_once

        return decorate

    def _build_once(
        self,
        key: DatasetKey,
        function: Callable[[], Any],
        options: BuildOptions,
        call: Call,
        *,
        before: Callable[[], None],
    ) -> None:
        """Build a version that is not there, unless somebody else does meanwhile."""
        new_key(key.id, key.version)

        def is_there() -> bool:
            return self._find(key) is not None

        with self._attempt(key) as token, self._building_alone(key, is_there) as right:
            if right is None:
                return
            before()
            data = function()
            try:
                self._build(key, data, options, call, token=token, right=right, replaces=False)
            except LostRightError as error:
                _log.warning(
                    "yogadl: %s is built by others by now, whose result will be served: %s", key, error
                )

    @contextlib.contextmanager
    def _building_alone(
        self, key: DatasetKey, unless: Callable[[], bool] | None = None
    ) -> Iterator[Right | None]:
        outer = _building.get()
        if any((r.location, r.key, r.is_over) == (self.location, key, False) for r in outer):
            raise ConfigurationError(
                f"{key} is being built by this very call: its builder asks for its own result, or replaces it"
            )
        with self.building(key, unless) as right:
            running = _Running(self.location, key)
            reset = _building.set((*outer, running))
            try:
                yield right
            finally:
                running.is_over = True
                _building.reset(reset)

    @contextlib.contextmanager
    def _attempt(self, key: DatasetKey) -> Iterator[str]:
        """Give a token for an attempt to build; however it ends, clear what nobody can go on with."""
        token = secrets.token_hex(8)
        own = _names.unresumable(key, token)
        try:
            yield token
        except BaseException:
            self.clear_spent(key.id, own)
            raise
        self.clear_spent(key.id, own, key)

    def clear_spent(
        self, dataset_id: str, own: str | None = None, published: DatasetKey | None = None
    ) -> None:
        """Remove what builds hold that nobody can go on with, unless somebody builds: then that one does.

        Args:
            dataset_id: The dataset.
            own: The folder of an attempt of this call, which is over.
            published: A version that is there by now, so that no attempt to build it is gone on with.
        """
        try:
            if not has_spent(self.root, dataset_id, published):
                return
            with self.pruning(dataset_id) as right:
                if right is not None:
                    pruning = Pruning(self.root, dataset_id, 0.0, self.root.now())
                    age_s = 0.0 if right.epoch is None else GRACE_OF_THE_SILENT_S
                    spent = pruning.spent(self.versions(dataset_id), own, published, age_s)
                    for _ in pruning.remove(spent, right):
                        pass
        except OfflineError:
            pass  # nothing was begun, as its own error says
        except (StorageError, LeaseError, CacheFormatError) as error:
            _log.warning("yogadl: what unfinished builds of %r hold is not removed: %s", dataset_id, error)

    def _build(
        self,
        key: DatasetKey,
        data: Any,
        options: BuildOptions,
        call: Call | None,
        *,
        token: str,
        right: Right,
        replaces: bool,
    ) -> None:
        source = open_source(data, allow_pickle=options.allow_pickle)
        provenance = getattr(source, "provenance", {})
        machine = describe_machine()
        goes_on = source.can_start_anywhere and options.workers == 1
        where = _names.resumable(key) if goes_on else _names.unresumable(key, token)
        part_bytes = options.part_bytes or self.part_bytes
        if options.check_space:
            check_space(self.root, key, source, where)
        with told_if_lost(right), shown(options.progress, str(key)) as show:

            def progress(records: int, total: int | None, size_bytes: int) -> None:
                right.report(records, total, size_bytes)
                if show is not None:
                    show(records, total, size_bytes)

            if options.workers > 1:
                receipts = build_with_workers(
                    self,
                    key,
                    source,
                    workers=options.workers,
                    token=token,
                    part_bytes=part_bytes,
                    progress=progress,
                )
            else:
                of_data = partial(sha256_of_data, getattr(source, "origin", data))
                build = Build(
                    self.root, key, part_bytes, progress, right, call.sha256 if call else of_data,
                    say_level=logging.INFO if is_shown(options.progress) else logging.WARNING,
                )  # fmt: skip
                receipts = build.run(source, where)
        described = provenance | (call.manifest() if call else {})
        content = content_of(receipts)
        if publish(self.root, key, content, machine | described, right=right, replaces=replaces):
            clear_attempt(self.root, key, where)

    def _warn_if_stale(self, manifest: Manifest, builder: dict[str, Any], warned: set[str]) -> None:
        changed = difference(manifest.builder, builder)
        if changed and changed not in warned:
            warned.add(changed)
            warnings.warn(
                f"{manifest.key} was built by other code or arguments than it is asked for with ({changed}). "
                f"It is served as it is; to build anew, make the version {_bumped(manifest.key.version)!r}.",
                UserWarning,
                stacklevel=users_level(),
            )

    def _log_why(self, key: DatasetKey, builder: Builder) -> None:
        """Say what has changed since the newest version that was worked out, too."""
        newest: Manifest | None = None
        with contextlib.suppress(StorageError):  # a list that can't be had is no reason not to build
            for version in self.versions(key.id):
                if version.startswith(f"{AUTO}-"):
                    with contextlib.suppress(CacheFormatError, DatasetNotFoundError):
                        found = self.published(DatasetKey(key.id, version)).manifest
                        newest = found if newest is None or found.created > newest.created else newest
        if newest is not None:
            changed = difference(newest.builder, builder.to_json())
            _log.info("yogadl: %s is built, for it is not %s: %s", key, newest.key.version, changed)

    # Reading.

    @explains_names()
    def fetch(
        self,
        dataset_id: str,
        dataset_version: str,
        *,
        digest: str | None = None,
        allow_pickle: bool = False,
        check: bool = False,
    ) -> RecordsRef:
        """Return a `DataRef` to a published cache.

        Args:
            dataset_id: What the dataset is called.
            dataset_version: Which version.
            digest: The digest that `info` gave; any other bytes than those are refused.
            allow_pickle: Whether pickled fields may be read, which runs code of whoever wrote them.
            check: Whether each process compares each block with its checksum before it first reads from it:
                then what reading returns was built so, or is a `CacheFormatError` that names the records.

        Raises:
            DatasetNotFoundError: if there is no such version.
            CacheFormatError: if it is damaged, from a newer library, or has another digest.
        """
        key = DatasetKey(dataset_id, dataset_version)
        published = self.published(key) if digest is None else self._find(key, digest)
        if published is None:
            raise DatasetNotFoundError(self._not_found(key))
        return self._ref(key, published, allow_pickle, check)

    def _ref(
        self, key: DatasetKey, published: Published, allow_pickle: bool, check: bool = False
    ) -> RecordsRef:
        records = CachedRecords(self, key, published.digest, allow_pickle, check, published)
        records.open()
        return RecordsRef(records)

    def published(self, key: DatasetKey, digest: str | None = None) -> Published:
        """Return the manifest of a version; with a digest that very one, from the trash if need be.

        Raises:
            DatasetNotFoundError: if there is none.
        """
        if digest is None:
            found = self._find(key)
            if found is None:
                raise DatasetNotFoundError(self._not_found(key))
            return found
        for name in self._manifest_names(key):
            content = self.root.read(name)
            if content is not None and digest_of(content) == digest:
                return Published(read_manifest(content, key, self.root.where(name)), digest, content)
        raise DatasetNotFoundError(
            f"{key} was replaced or deleted, and the manifest {digest} is gone; fetch it again"
        )

    def _manifest_names(self, key: DatasetKey) -> Iterator[str]:
        """Yield where manifests of a version may be: in its place, then in the trash."""
        yield _names.manifest(key)
        yield from trashed_names(self.root, key)
        yield _names.manifest(key)  # once more: it may have come back from the trash just now

    def _find(self, key: DatasetKey, digest: str | None = None) -> Published | None:
        """Return the manifest of a version, if there is one; of another digest than that, it is not parsed.

        Raises:
            CacheFormatError: if it is damaged, or has another digest.
        """
        content = self.manifest_of(key, digest)
        if content is None:
            return None
        found = digest_of(content)
        if digest is not None and found != digest:
            raise CacheFormatError(
                f"{key} has digest {found}, not {digest}: it was built or changed by others"
            )
        where = self.root.where(_names.manifest(key))
        return Published(read_manifest(content, key, where), found, content)

    def _not_found(self, key: DatasetKey) -> str:
        with contextlib.suppress(StorageError):  # what can't be listed is not to hide what is known
            versions = self.versions(key.id)
            if versions:
                return f"there is no {key} in {self.location}; there are the versions {versions}"
            return f"there is no {key} in {self.location}; {self.what_there_is()}"
        return f"there is no {key} in {self.location}"

    def what_there_is(self) -> str:
        """Say which datasets there are, for who has asked for one that is not there.

        A bucket may hold millions of objects of others: only the first ones are looked at.
        """
        found, is_all = self.root.folders_with("versions", most_files=_MOST_LOOKED_AT)
        ids = sorted(filter(is_dataset_id, found))
        named = list(itertools.islice(filter(self._has_version, ids), _MOST_NAMED))
        if is_all and len(ids) <= _MOST_NAMED:
            return f"it has the datasets {named}"
        if not named:
            return (
                f"none of the first {_MOST_LOOKED_AT:,} files there is of a dataset; `yogadl ls` looks at all"
            )
        return f"it has, among others, the datasets {named}; `yogadl ls` looks at all"

    def datasets(self) -> list[str]:
        """Return the ids of all datasets that have a version, and that this user may list."""
        return [dataset_id for dataset_id in self._ids_with("versions") if self._has_version(dataset_id)]

    def _has_version(self, dataset_id: str) -> bool:
        try:
            return bool(self.versions(dataset_id))
        except StorageError as error:
            if error.errno in (errno.EACCES, errno.EPERM):
                return False
            raise

    def _ids_with(self, *names: str) -> list[str]:
        """Return the ids that have one of these folders; a root may hold folders of others, too."""
        return sorted(filter(is_dataset_id, self.root.folders_with(*names)[0]))

    def versions(self, dataset_id: str) -> list[str]:
        """Return the versions of a dataset, in order of their names."""
        DatasetKey(dataset_id, "any")
        below = f"{dataset_id}/versions"
        names = self.root.names(below, _names.MANIFEST_SUFFIX)
        found = (name[len(below) + 1 : -len(_names.MANIFEST_SUFFIX)] for name in names)
        return sorted(filter(is_version, found))  # any other file is not ours

    def info(self, dataset_id: str, dataset_version: str) -> DatasetInfo:
        """Return what is known of a version, without opening it."""
        published = self.published(DatasetKey(dataset_id, dataset_version))
        manifest = published.manifest
        return DatasetInfo(
            id=dataset_id,
            version=dataset_version,
            records=manifest.records,
            size_bytes=manifest.size_bytes,
            parts=manifest.parts,
            spec=manifest.spec,
            fingerprint=manifest.fingerprint,
            digest=published.digest,
            created=manifest.created,
            builder=manifest.builder,
        )

    def verify(
        self, dataset_id: str, dataset_version: str, *, progress: Callable[[int, int], None] | None = None
    ) -> Verified:
        """Read every byte of a version and compare it with its checksums.

        Raises:
            CacheFormatError: at the first damage, naming dataset, field and records.
        """
        return verify(self.root, self.published(DatasetKey(dataset_id, dataset_version)).manifest, progress)

    def explain(self, dataset_id: str, dataset_version: str, other_version: str) -> Explanation:
        """Say what differs between what two versions of a dataset were built from.

        Args:
            dataset_id: What the dataset is called.
            dataset_version: One version.
            other_version: The other.

        Returns:
            Which function's lines, which values and which arguments differ; printed, a line for each.

        Raises:
            DatasetNotFoundError: if there is no such version.
        """
        first = self.published(DatasetKey(dataset_id, dataset_version)).manifest
        second = self.published(DatasetKey(dataset_id, other_version)).manifest
        return explain(first, second)

    def export(
        self,
        dataset_id: str,
        dataset_version: str,
        folder: str | os.PathLike[str],
        format: str = "npy",
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> Exported:
        """Write a version to files that other programs read: see `yogadl.storage.export`.

        Args:
            dataset_id: What the dataset is called.
            dataset_version: Which version.
            folder: Where to; made, or there and empty.
            format: ``"npy"``, ``"parquet"`` or ``"arrow"``.
            progress: Called with records written and records in all.

        Raises:
            DatasetNotFoundError: if there is no such version.
            UnsupportedDataError: if a field has no form in that format; names it, and what to do.
        """
        key = DatasetKey(dataset_id, dataset_version)
        # Nothing is unpickled: pickled fields are refused before anything is read.
        ref = self._ref(key, self.published(key), allow_pickle=True)
        return export(ref, folder, format, progress=progress)

    # Keeping order.

    def delete(self, dataset_id: str, dataset_version: str) -> None:
        """Throw a version away; `undelete` brings it back until `prune` has removed it.

        Waits for whoever builds it, and then throws away what was built.

        Raises:
            DatasetNotFoundError: if there is no such version.
            LeaseError: if it takes longer than this storage waits.
        """
        key = DatasetKey(dataset_id, dataset_version)
        name = _names.manifest(key)
        if self.root.size(name) is None:
            raise DatasetNotFoundError(self._not_found(key))  # before anything is made for it
        with self.with_room(dry_run=False), self._building_alone(key) as right:
            assert right is not None  # nothing was said that would make it needless
            if not self.root.rename(name, new_trashed_name(self.root, key), right.check):
                raise DatasetNotFoundError(self._not_found(key))

    def undelete(self, dataset_id: str, dataset_version: str) -> None:
        """Bring back what was deleted or replaced last.

        If there is such a version now, it goes to the trash in exchange: the next call undoes this one.
        Waits for whoever builds it.

        Raises:
            DatasetNotFoundError: if the trash has no such version.
            LeaseError: if it takes longer than this storage waits.
        """
        key = DatasetKey(dataset_id, dataset_version)
        if not trashed_names(self.root, key):
            raise DatasetNotFoundError(f"the trash of {self.location} has no {key}")
        with self.with_room(dry_run=False), self._building_alone(key) as right:
            assert right is not None  # nothing was said that would make it needless
            names = trashed_names(self.root, key)
            content = self.root.read(names[-1]) if names else None
            if content is None:
                raise DatasetNotFoundError(f"the trash of {self.location} has no {key} any more")
            if self.root.size(_names.manifest(key)) is None:
                right.check()
                self.root.rename(names[-1], _names.manifest(key))  # on a local disk, this takes no room
                return
            replace(self.root, key, content, right)
            self.root.remove(names[-1])

    def unfinished(self, dataset_id: str | None = None) -> list[Unfinished]:
        """Return what builds hold that are not finished: killed, failed, or running just now.

        Args:
            dataset_id: Just those of this dataset.
        """
        found: list[Unfinished] = []
        for name in self._ids_with("builds") if dataset_id is None else [dataset_id]:
            those = attempts(self.root, name)
            if those:
                kept: set[str] = set()
                with contextlib.suppress(CacheFormatError):  # a damaged manifest hides none of them
                    kept = Pruning(self.root, name, 0.0, 0.0).named(self.versions(name))
                found += held(self.root, name, those, kept)
        return found

    def prune(
        self,
        *,
        grace_s: float = GRACE_S,
        dry_run: bool = False,
        unfinished: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Pruned:
        """Remove what no manifest names, and manifests that have been in the trash for longer than the grace.

        What is younger than the grace stays, since a running reader opens parts late, and partitions are
        named last. Nothing is removed of a dataset of which somebody builds, deletes or brings back a version
        just now, nor, with a warning, of one that has a damaged manifest, which may name anything. A dataset
        that can't be listed or read is left alone, too, and the others are pruned before the error is raised.

        Args:
            grace_s: How long what nobody names is kept; 30 days if not given.
            dry_run: Whether to say what would be removed, and remove nothing.
            unfinished: Whether to remove just what `unfinished` lists, however young, but what tasks of a
                `begin` have written within a day: they can't be told from tasks that are at work.
            progress: Called with how many datasets were seen, and how many files removed, so far.

        Raises:
            StorageError: if something can't be listed, read or removed; names the dataset.
            LeaseError: if this process was stopped for so long that a builder took the right from it.
        """
        gone: list[Entry] = []
        failed: dict[str, StorageError | LeaseError] = {}
        with self.with_room(dry_run):
            now = self.root.now()
            for seen, dataset_id in enumerate(self._ids_with("versions", "trash", "parts", "builds")):
                if progress is not None:
                    progress(seen, len(gone))
                pruning = Pruning(self.root, dataset_id, grace_s, now)
                doomed = pruning.unfinished if unfinished else pruning.doomed
                try:
                    for entry in self._pruned(pruning, doomed, dataset_id, dry_run):
                        gone.append(entry)
                        if progress is not None:
                            progress(seen, len(gone))
                except CacheFormatError as error:
                    _log.warning("yogadl: nothing is removed of %r: %s", dataset_id, error)
                except (StorageError, LeaseError) as error:
                    failed[dataset_id] = error
        if failed:
            raise incomplete(failed, count(gone), dry_run) from next(iter(failed.values()))
        return count(gone)

    def _pruned(
        self,
        pruning: Pruning,
        doomed: Callable[[list[str]], list[Entry]],
        dataset_id: str,
        dry_run: bool,
    ) -> Iterator[Entry]:
        """Yield what is removed, or would be, of a dataset."""
        found = doomed(self.versions(dataset_id))
        if not found:
            return  # so that nobody is kept waiting for nothing
        if dry_run:
            yield from () if self.has_builder(dataset_id) else found
            return
        with self.pruning(dataset_id) as right:
            if right is None:
                _log.warning(
                    "yogadl: nothing is removed of %r: others build or prune it just now", dataset_id
                )
                return
            yield from pruning.remove(doomed(self.versions(dataset_id)), right)


def _bumped(version: str) -> str:
    head = version.rstrip("0123456789")
    digits = version[len(head) :]
    return f"{head}{int(digits) + 1}" if digits else f"{version}-2"
