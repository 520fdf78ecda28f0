"""Tag, delete and restore versions, and remove files that no version needs any more."""

import contextlib
import logging
from collections.abc import Callable, Iterator

from yogadl._core.key import DatasetKey
from yogadl._format.manifest import read_manifest
from yogadl.errors import CacheFormatError, ConfigurationError, DatasetNotFoundError, LeaseError, StorageError
from yogadl.storage import _names
from yogadl.storage._catalogue.backend import Backend, BuildExclusion
from yogadl.storage._catalogue.tags import (
    TagMove,
    check_tag,
    current_tags,
    move_tag,
    refuse_tag,
    refuse_tagged,
    version_of,
)
from yogadl.storage._files.root import Entry, Root, new_trashed_name, trashed_names
from yogadl.storage._keeping.prune import (
    UNRESPONSIVE_BUILDER_GRACE_S,
    Pruned,
    Pruning,
    Unfinished,
    attempts_of,
    has_unresumable,
    incomplete,
    pruned_files,
    unfinished_builds,
)
from yogadl.storage._leases.locks import exclusive_build
from yogadl.storage._objects.bucket import OfflineError

_log = logging.getLogger("yogadl")


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
    except OfflineError:
        pass  # offline, no build was begun, and the call raises its own error
    except (StorageError, LeaseError, CacheFormatError) as error:
        _log.warning("yogadl: the files of unfinished builds of %r were not removed: %s", dataset_id, error)
