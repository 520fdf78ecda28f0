"""Tag, delete and restore versions, and remove files that no version needs any more.

Each *attempt* to build a version has a folder of its own below ``builds/``, whose name tells the kind of
attempt: see `yogadl.storage._names`. The *notes* in it name parts that no manifest names yet.
"""

import contextlib
import errno
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from yogadl._core.arguments import in_words
from yogadl._core.frozen import MANY_DIGITS, parse_json
from yogadl._core.key import RESERVED_NAMES, DatasetKey
from yogadl._core.process import one_operation
from yogadl._format.manifest import read_manifest
from yogadl.errors import (
    CacheFormatError,
    ConfigurationError,
    CredentialsError,
    DatasetNotFoundError,
    LeaseError,
    StorageError,
)
from yogadl.storage import _names
from yogadl.storage._catalogue.backend import Backend, BuildExclusion
from yogadl.storage._catalogue.cached import open_table, part_files
from yogadl.storage._catalogue.tags import (
    TagMove,
    check_tag,
    current_tags,
    move_tag,
    refuse_tag,
    refuse_tagged,
    version_of,
)
from yogadl.storage._files.folder import checked_path, network_file_system
from yogadl.storage._files.locks import remove_free_lock
from yogadl.storage._files.root import Entry, Root, new_trashed_name, trashed, trashed_names
from yogadl.storage._leases.locks import exclusive_build
from yogadl.storage._objects.bucket import OfflineError

_log = logging.getLogger("yogadl")


_MOST_VERSION_BYTES: Final = 2**12


@dataclass(frozen=True)
class Unfinished:
    """The files of unfinished builds of a version: killed, failed, or running.

    Attributes:
        id: The dataset's id.
        version: The version that they build, or ``None`` if unknown.
        size_bytes: The size of their files.
        written: The time of the last write.
    """

    id: str
    version: str | None
    size_bytes: int
    written: float


@dataclass
class Attempt:
    """One attempt to build a version.

    Args:
        builds: The folder of all attempts to build that version.
        name: The name of this attempt's folder there; empty for files of no attempt.
        entries: Its files.
        named: The parts that its notes name, and their indexes.
    """

    builds: str
    name: str
    entries: list[Entry] = field(default_factory=list)
    named: set[str] = field(default_factory=set)

    @property
    def written(self) -> float:
        """The time of the last write."""
        return max(entry.modified for entry in self.entries)


def attempts_of(root: Root, dataset_id: str) -> list[Attempt]:
    """Return all attempts to build a version of a dataset."""
    attempts: dict[tuple[str, str], Attempt] = {}
    for entry in root.entries(f"{dataset_id}/builds"):
        if _names.is_cache_file(dataset_id, entry.name):
            builds, name = _names.split_attempt(dataset_id, entry.name)
            attempt = attempts.setdefault((builds, name), Attempt(builds, name))
            attempt.entries.append(entry)
            if name and entry.name.endswith(".json"):
                attempt.named |= _files_in_note(root, dataset_id, entry.name)
    return list(attempts.values())


def has_unresumable(root: Root, dataset_id: str, published: DatasetKey | None) -> bool:
    """Return whether there may be attempts that no build can continue, or remaining files of one."""
    names: dict[str, set[str]] = {}
    for file in root.names(f"{dataset_id}/builds"):
        builds, name = _names.split_attempt(dataset_id, file)
        names.setdefault(builds, set()).add(name)
    published_builds = published and _names.builds(published)
    return any(
        builds == published_builds or attempts == {""} or any(map(_names.is_unresumable, attempts))
        for builds, attempts in names.items()
    )


def _files_in_note(root: Root, dataset_id: str, name: str) -> set[str]:
    """Return the files that a note names, of one part or of all parts of a partition."""
    files: set[str] = set()
    # A truncated or foreign note names no files that a build could use.
    with contextlib.suppress(ValueError, KeyError, TypeError, CacheFormatError):
        document: Any = parse_json(root.read(name) or b"[]", most_digits=MANY_DIGITS)
        if isinstance(document, dict):
            files |= {_names.dictionary(dataset_id, name) for name in document.get("dictionaries", ())}
            document = document.get("parts", [[document.get("sha256"), document.get("index_sha256")]])
        for sha256, index_sha256, *_ in document:
            files |= {_names.part(dataset_id, sha256), *_names.indexes(dataset_id, sha256, index_sha256)}
    return files


def unfinished_builds(
    root: Root, dataset_id: str, attempts_found: Iterable[Attempt], named: set[str]
) -> list[Unfinished]:
    """Return the unfinished builds that these attempts belong to; files in `named` are not counted."""
    by_version: dict[str, list[Attempt]] = {}
    for attempt in attempts_found:
        by_version.setdefault(attempt.builds, []).append(attempt)
    sizes = {entry.name: entry.size_bytes for entry in root.entries(f"{dataset_id}/parts")}
    result = []
    for builds, attempts in sorted(by_version.items()):
        if not any(attempt.name for attempt in attempts):
            continue
        names = set().union(*(attempt.named for attempt in attempts)) - named
        own_bytes = sum(entry.size_bytes for attempt in attempts for entry in attempt.entries)
        size_bytes = own_bytes + sum(sizes.get(name, 0) for name in names)
        version = (root.view(_names.version_note(builds), _MOST_VERSION_BYTES) or b"").decode(
            errors="replace"
        )
        written = max(attempt.written for attempt in attempts)
        result.append(Unfinished(dataset_id, version or None, size_bytes, written))
    return result


# Leases are kept for this long at least: a builder that waits for a prune to end has put its lease already.
_LEAST_LEASE_GRACE_S: Final = 86_400.0
# The time for which the files of an unresponsive builder with a lease are kept. The builder is considered
# dead, but it may wake up and publish a manifest that names these files.
UNRESPONSIVE_BUILDER_GRACE_S: Final = 86_400.0
# The time for which files of tasks are kept: tasks that write partitions hold no right to build.
_TASK_FILES_GRACE_S: Final = 86_400.0
_CHECK_EVERY_S: Final = 1.0


@dataclass(frozen=True)
class Pruned:
    """The files that `prune` removed, or would remove."""

    files: tuple[str, ...]
    size_bytes: int


class Pruning:
    """One prune of a dataset.

    Args:
        root: The storage's root.
        dataset_id: The dataset's id.
        grace_s: How long files that no version names are kept.
        now: The time when the prune began, by the root's clock.
    """

    def __init__(self, root: Root, dataset_id: str, grace_s: float, now: float) -> None:
        self._root = root
        self._id = dataset_id
        self._grace_s = grace_s
        self._now = now
        self._named_by_manifest: dict[
            bytes, set[str]
        ] = {}  # by manifest: the files that it names never change

    def removable(self, versions: Sequence[str]) -> list[Entry]:
        """Return the files that can be removed, manifests first.

        The result holds as long as no process builds, deletes or restores a version, which the right to prune
        prevents. Without that right, it lists the files that could be removed if nothing changed.

        Raises:
            CacheFormatError: if a manifest can't be read; then nothing may be removed.
            StorageError: if a file or folder can't be listed or read; then nothing may be removed, either.
        """
        entries = [
            entry for below in sorted(RESERVED_NAMES) for entry in self._root.entries(f"{self._id}/{below}")
        ]
        # This is read after the parts are listed: a task that notes a part from now on waits for this prune
        # before it moves the part to its place.
        removable, kept = [], self._named_by_versions(versions) | self._written_by_tasks()
        keys = [DatasetKey(self._id, version) for version in versions]
        for key, stamp, name in trashed(self._root, self._id):
            if self._now - stamp / 1e9 > self._grace_s:
                removable.append(Entry(name, self._root.size(name) or 0, stamp / 1e9))
            else:
                kept |= self._named_files(key, name)
                keys.append(key)
        others = [e for e in entries if not _names.is_lock(self._id, e.name)]
        removable += [e for e in others if self._is_removable(e, kept)]
        # Locks come last, and go with the last files of their version.
        removed = {entry.name for entry in removable}
        locks = self._unused_locks(keys, entries, removed)
        return removable + [e for e in locks if self._is_removable(e, kept)]

    def _unused_locks(
        self, keys: Sequence[DatasetKey], entries: Sequence[Entry], removed: set[str]
    ) -> list[Entry]:
        """Return the locks of versions that do not exist, are not in the trash, and are not being built.

        A bucket has no locks. On a network file system all locks stay: a process that waits for a lock there
        might not notice that its file was removed.

        Args:
            keys: The versions that exist, or stay in the trash.
            entries: The dataset's files.
            removed: The names of those that are removed before the locks.
        """
        locks = [entry for entry in entries if _names.is_lock(self._id, entry.name)]
        if not locks or not self._root.promises.renames or network_file_system(Path(self._root.location)):
            return []
        begun = {entry.name for entry in entries if entry.name.startswith(f"{self._id}/builds/")} - removed
        builds = {_names.split_attempt(self._id, name)[0] for name in begun}
        used = {_names.version_hash_in(name) for name in builds.union(map(_names.builds, keys))}
        return [entry for entry in locks if _names.version_hash_in(entry.name) not in used]

    def _written_by_tasks(self) -> set[str]:
        """Return the files that tasks may be writing now, and the parts that these name.

        These files are kept whatever the grace.
        """
        # Read twice: a task's notes may be replaced by a receipt between the listing and the reading.
        found = attempts_of(self._root, self._id) + attempts_of(self._root, self._id)
        at_work = [a for a in found if _names.is_partitioned(a.name) and self._may_be_at_work(a)]
        notes = {entry.name for attempt in at_work for entry in attempt.entries}
        notes |= {_names.version_note(attempt.builds) for attempt in at_work}
        return notes.union(*(attempt.named for attempt in at_work))

    def named(self, versions: Iterable[str]) -> set[str]:
        """Return the files that are named by the manifests of versions, or by manifests in the trash.

        Raises:
            CacheFormatError: if a manifest can't be read.
        """
        trashed_files = (self._named_files(key, name) for key, _, name in trashed(self._root, self._id))
        return self._named_by_versions(versions).union(*trashed_files)

    def unresumable(
        self, versions: Iterable[str], own: str | None, published: DatasetKey | None, age_s: float
    ) -> list[Entry]:
        """Return the files of attempts that no build can continue, parts first.

        As for `removable`, the result holds only as long as no process builds.

        Args:
            versions: The versions that the dataset has.
            own: The folder of the caller's own attempt, which has ended.
            published: A version that was just published: other attempts to build it are of no use.
            age_s: How long the files of other attempts are kept: their builders are considered dead, but may
                wake up.
        """
        published_builds = published and _names.builds(published)

        def is_dead(attempt: Attempt) -> bool:
            if f"{attempt.builds}/{attempt.name}" == own:
                return True
            if _names.is_partitioned(attempt.name) and self._may_be_at_work(attempt):
                return False  # its tasks may still write, and its `commit` replaces the published version
            is_old = self._now - attempt.written >= age_s
            return is_old and (_names.is_unresumable(attempt.name) or attempt.builds == published_builds)

        return self._files_of_dead(versions, is_dead)

    def unfinished(self, versions: Iterable[str]) -> list[Entry]:
        """Return all files of attempts, parts first, except those that tasks may be writing now.

        As for `removable`, the result holds only as long as no process builds.
        """

        def is_dead(attempt: Attempt) -> bool:
            return not (_names.is_partitioned(attempt.name) and self._may_be_at_work(attempt))

        return self._files_of_dead(versions, is_dead)

    def _may_be_at_work(self, attempt: Attempt) -> bool:
        """Return whether tasks may be writing partitions now; tasks hold no right to build."""
        return self._now - attempt.written < _TASK_FILES_GRACE_S

    def _files_of_dead(self, versions: Iterable[str], is_dead: Callable[[Attempt], bool]) -> list[Entry]:
        """Return the files of the attempts that `is_dead` selects, and the parts that only these name."""
        found = attempts_of(self._root, self._id)
        living = [attempt for attempt in found if attempt.name and not is_dead(attempt)]
        living_builds = {attempt.builds for attempt in living}
        dead = [a for a in found if (is_dead(a) if a.name else a.builds not in living_builds)]
        named = set().union(*(attempt.named for attempt in dead))
        parts: list[Entry] = []
        if named:
            named -= self.named(versions).union(
                self._written_by_tasks(), *(attempt.named for attempt in living)
            )
            parts = [entry for entry in self._root.entries(f"{self._id}/parts") if entry.name in named]
        return parts + [entry for attempt in dead for entry in attempt.entries]

    def _named_by_versions(self, versions: Iterable[str]) -> set[str]:
        """Return the files that the manifests of these versions name."""
        keys = (DatasetKey(self._id, version) for version in versions)
        return set().union(*(self._named_files(key, _names.manifest(key)) for key in keys))

    def _is_removable(self, entry: Entry, kept: set[str]) -> bool:
        least_age_s = max(self._grace_s, _LEAST_LEASE_GRACE_S if "/leases/" in entry.name else 0.0)
        if _names.is_unfinished(entry.name) and not self._root.promises.has_locks:
            # Tasks and tags are written without a lease; only a local folder has no such writers during a
            # prune.
            least_age_s = max(least_age_s, _TASK_FILES_GRACE_S)
        is_old = self._now - entry.modified >= least_age_s
        is_named = not kept.isdisjoint((entry.name, entry.name.rpartition("/")[0]))
        if entry.name.startswith(f"{_names.tags(self._id)}/"):
            is_named = bool(kept)  # tags are kept as long as the dataset or its trash has any version
        is_cache_file = _names.is_cache_file(self._id, entry.name) or _names.is_lock(self._id, entry.name)
        return is_old and not is_named and is_cache_file

    def _named_files(self, key: DatasetKey, name: str) -> set[str]:
        content = self._root.read(name)
        if content is None:
            return set()
        if content not in self._named_by_manifest:
            manifest = read_manifest(content, key, self._root.where(name))
            try:
                table = open_table(self._root, manifest)
            except CacheFormatError:
                if self._root.read(name) is None:
                    return set()  # another process has pruned it meanwhile
                raise
            named = {_names.table(key.id, manifest.table_sha256), *part_files(key.id, table, table.files.own)}
            named.add(_names.pins(key.id, manifest.table_sha256))
            named.add(_names.selections(key.id, manifest.fingerprint))  # the folder: all files in it are kept
            self._named_by_manifest[content] = named
        return self._named_by_manifest[content]

    def remove(self, removable: Iterable[Entry], exclusion: BuildExclusion) -> Iterator[Entry]:
        """Remove these files, except files that were written again meanwhile; yield each removed file.

        Raises:
            LeaseLostError: if a builder has taken over; nothing is removed from then on.
        """
        checked = time.monotonic()
        for entry in removable:
            if time.monotonic() - checked >= _CHECK_EVERY_S:
                exclusion.check()
                checked = time.monotonic()
            is_trash = "/trash/" in entry.name and not _names.is_unfinished(entry.name)
            if is_trash or self._root.age_s(entry.name, self._now) >= self._now - entry.modified:
                if not _names.is_lock(self._id, entry.name):
                    self._root.remove(entry.name)
                elif not remove_free_lock(Path(checked_path(Path(self._root.location), entry.name))):
                    continue
                yield entry


def pruned_files(removable: Iterable[Entry]) -> Pruned:
    """Return the names and the total size of these files."""
    found = list(removable)
    return Pruned(tuple(entry.name for entry in found), sum(entry.size_bytes for entry in found))


def incomplete(
    failed: Mapping[str, StorageError | LeaseError], pruned: Pruned, dry_run: bool
) -> StorageError | LeaseError:
    """Return the error for a prune that had to skip datasets.

    Args:
        failed: The error of each dataset that was skipped.
        pruned: The files of other datasets, which were removed.
        dry_run: Whether it was a dry run, which removes nothing.
    """
    first = next(iter(failed.values()))
    what = str(first)
    text = (
        f"can't prune {', '.join(map(repr, failed))}: {what}; {len(pruned.files)} other files, "
        f"{in_words(pruned.size_bytes)}, {'would be' if dry_run else 'were'} removed"
    )
    if isinstance(first, StorageError):
        return StorageError(first.errno or errno.EIO, text)
    return LeaseError(text)


def delete(backend: Backend, key: DatasetKey) -> None:
    """Move a version to the trash: see `CacheStorage.delete`."""
    root, name = backend.root, _names.manifest(key)
    if root.size(name) is None:
        refuse_tag(root, key)
        raise backend.catalogue.not_found(key)  # before locks and folders are made for it
    refuse_tagged(root, key)
    with root.with_room(), exclusive_build(backend, key) as exclusion:
        refuse_tagged(root, key)  # again: this call may have waited for a builder
        if not root.rename(name, new_trashed_name(root, key), exclusion.check):
            raise backend.catalogue.not_found(key)


def undelete(backend: Backend, key: DatasetKey) -> None:
    """Restore the version that was deleted or replaced last: see `CacheStorage.undelete`."""
    root = backend.root
    if not trashed_names(root, key):
        refuse_tag(root, key)
        raise DatasetNotFoundError(
            f"the trash of {root.location} has no {key}: it was not deleted, or was pruned since"
        )
    with root.with_room(), exclusive_build(backend, key) as exclusion:
        names = trashed_names(root, key)
        content = root.read(names[-1]) if names else None
        if content is None:
            raise DatasetNotFoundError(
                f"the trash of {root.location} has no {key} any more: another process restored or pruned it"
            )
        if root.size(_names.manifest(key)) is None:
            exclusion.check()
            root.rename(names[-1], _names.manifest(key))  # a rename takes no room on a local disk
            return
        replace(root, key, content, exclusion)
        root.remove(names[-1])


def replace(root: Root, key: DatasetKey, content: bytes, exclusion: BuildExclusion) -> None:
    """Replace the manifest of this version, without a moment in which there is none.

    The old manifest, if there is one, goes to the trash.

    Raises:
        LeaseLostError: if another builder has taken over.
    """
    name = _names.manifest(key)
    exclusion.check()
    old = root.read(name)
    if old is not None:
        root.write(new_trashed_name(root, key), old)
        exclusion.check()
    root.write(name, content)


def set_tag(backend: Backend, key: DatasetKey, tag: str) -> None:
    """Make a tag name a version: see `CacheStorage.tag`."""
    root = backend.root
    check_tag(key.id, tag)
    name = DatasetKey(key.id, tag)
    if root.size(_names.manifest(name)) is not None:
        raise ConfigurationError(f"there is a {name}, so a tag can't have that name: choose another")
    if not _is_there(root, key):
        target = version_of(root, key)  # the given name may be another tag
        if target is None or not _is_there(root, DatasetKey(key.id, target)):
            raise backend.catalogue.not_found(key)
        key = DatasetKey(key.id, target)
    now: str | None = None
    with contextlib.suppress(CacheFormatError):  # a new move replaces a damaged one
        now = version_of(root, name)
    if now != key.version:
        move_tag(root, key.id, TagMove(tag, key.version, root.now()))


def _is_there(root: Root, key: DatasetKey) -> bool:
    """Return whether a version exists.

    Raises:
        CacheFormatError: if its manifest can't be read, so that reading by a tag would fail.
    """
    name = _names.manifest(key)
    content = root.read(name)
    if content is not None:
        read_manifest(content, key, root.where(name))
    return content is not None


def remove_tag(backend: Backend, dataset_id: str, tag: str) -> None:
    """Remove a tag: see `CacheStorage.untag`."""
    check_tag(dataset_id, tag)
    if version_of(backend.root, DatasetKey(dataset_id, tag)) is None:
        tags = sorted(current_tags(backend.root, dataset_id))
        if not tags and not backend.catalogue.versions(dataset_id):
            raise backend.catalogue.no_dataset(dataset_id)
        raise DatasetNotFoundError(
            f"{dataset_id!r} has no tag {tag!r} in {backend.root.location}; it has the tags {tags}"
        )
    move_tag(backend.root, dataset_id, TagMove(tag, None, backend.root.now()))


def unfinished(backend: Backend, dataset_id: str | None) -> list[Unfinished]:
    """Return the unfinished builds and the sizes of their files: see `CacheStorage.unfinished`."""
    catalogue, root = backend.catalogue, backend.root
    builds: list[Unfinished] = []
    for name in catalogue.ids_with("builds") if dataset_id is None else [dataset_id]:
        attempts = attempts_of(root, name)
        if attempts:
            named: set[str] = set()
            try:
                named = Pruning(root, name, 0.0, 0.0).named(catalogue.versions(name))
            except (CacheFormatError, StorageError) as error:  # builds are listed despite a bad manifest
                _log.warning(
                    "yogadl: the sizes of unfinished builds of %r may include files that its versions use: "
                    "%s",
                    name,
                    error,
                )
            builds += unfinished_builds(root, name, attempts, named)
    return builds


@one_operation()
def prune(
    backend: Backend,
    *,
    grace_s: float,
    dry_run: bool,
    unfinished: bool,
    progress: Callable[[int, int], None] | None,
) -> Pruned:
    """Remove files that no manifest names: see `CacheStorage.prune`."""
    unchecked: object = grace_s  # a value from the user may have any type
    if isinstance(unchecked, bool) or not isinstance(unchecked, int | float) or not unchecked >= 0:
        raise ConfigurationError(f"grace_s must be a number of seconds, at least 0, not {unchecked!r:.100}")
    root, catalogue = backend.root, backend.catalogue
    if not catalogue.is_there():
        return Pruned((), 0)
    removed: list[Entry] = []
    failed: dict[str, StorageError | LeaseError] = {}
    with root.with_room(dry_run):
        now = root.now()
        ids = catalogue.ids_with("versions", "trash", "parts", "tables", "builds", "tags")
        for datasets_seen, dataset_id in enumerate(ids):
            if progress is not None:
                progress(datasets_seen, len(removed))
            pruning = Pruning(root, dataset_id, grace_s, now)
            removable = pruning.unfinished if unfinished else pruning.removable
            try:
                for entry in _pruned(backend, pruning, removable, dataset_id, dry_run):
                    removed.append(entry)
                    if progress is not None:
                        progress(datasets_seen, len(removed))
            except CacheFormatError as error:
                _log.warning("yogadl: skipped %r: %s", dataset_id, error)
            except (StorageError, LeaseError) as error:
                failed[dataset_id] = error
    if failed:
        raise incomplete(failed, pruned_files(removed), dry_run) from next(iter(failed.values()))
    return pruned_files(removed)


def _pruned(
    backend: Backend,
    pruning: Pruning,
    removable: Callable[[list[str]], list[Entry]],
    dataset_id: str,
    dry_run: bool,
) -> Iterator[Entry]:
    """Yield the files of a dataset that are removed, or would be."""
    found = removable(backend.catalogue.versions(dataset_id))
    if not found:
        return  # the right to prune is not taken, so no builder has to wait
    if dry_run:
        yield from () if backend.coordinator.has_builder(dataset_id) else found
        return
    with backend.coordinator.pruning(dataset_id) as exclusion:
        if exclusion is None:
            _log.warning("yogadl: skipped %r: another process builds or prunes it", dataset_id)
            return
        yield from pruning.remove(removable(backend.catalogue.versions(dataset_id)), exclusion)


def clear_unresumable(
    backend: Backend, dataset_id: str, own: str | None = None, published: DatasetKey | None = None
) -> None:
    """Remove files of attempts that no build can continue; if a build runs, it does so at its end.

    Args:
        backend: The storage.
        dataset_id: The dataset.
        own: The folder of this call's own attempt, which has ended.
        published: A version that has just been published: other attempts to build it are of no use.
    """
    root = backend.root
    try:
        if not has_unresumable(root, dataset_id, published):
            return
        with backend.coordinator.pruning(dataset_id) as exclusion:
            if exclusion is not None:
                pruning = Pruning(root, dataset_id, 0.0, root.now())
                age_s = 0.0 if exclusion.term is None else UNRESPONSIVE_BUILDER_GRACE_S
                found = pruning.unresumable(backend.catalogue.versions(dataset_id), own, published, age_s)
                for _ in pruning.remove(found, exclusion):
                    pass
    except (OfflineError, CredentialsError):
        pass  # the call raises the error itself, or the next one does
    except (StorageError, LeaseError, CacheFormatError) as error:
        _log.warning("yogadl: the files of unfinished builds of %r were not removed: %s", dataset_id, error)
