"""Keep what a storage has in order: a part of what users call. `_storage.py` has all of it.

What removes is loaded when it is first called: who only reads needs none of it.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from yogadl._key import DatasetKey
from yogadl.storage._backend import Backend

if TYPE_CHECKING:
    from yogadl.storage._prune import Pruned
    from yogadl.storage._unfinished import Unfinished

# How long files that no version names are kept: 30 days.
GRACE_S: Final = 30 * 86_400.0


class KeepingStorage:
    """What throws away, brings back and removes in a storage."""

    _backend: Backend

    def tag(self, dataset_id: str, tag: str, dataset_version: str) -> None:
        """Make a tag name a version, whatever it named before.

        Every call that reads a version also takes the tag. Atomic, and safe if others do the same at the
        same time. A reference that was fetched by the tag before does not change.

        Args:
            dataset_id: What the dataset is called.
            tag: The tag: any name that a version can have, but no version has, without an ``@``.
            dataset_version: Which version; or another tag, for the version that it names now.

        Raises:
            DatasetNotFoundError: if there is no such version.
            ConfigurationError: if a version has the tag's name, or the name is not allowed.
        """
        from yogadl.storage._tags import set_tag

        set_tag(self._backend, DatasetKey(dataset_id, dataset_version), tag)

    def untag(self, dataset_id: str, tag: str) -> None:
        """Take a tag away. The version that it names stays.

        Raises:
            DatasetNotFoundError: if there is no such tag.
        """
        from yogadl.storage._tags import remove_tag

        remove_tag(self._backend, dataset_id, tag)

    def delete(self, dataset_id: str, dataset_version: str) -> None:
        """Move a version to the trash; `undelete` restores it until `prune` has removed it.

        Waits for a process that builds this version, and then deletes the result.

        Raises:
            DatasetNotFoundError: if there is no such version.
            ConfigurationError: if a tag names it, or it is a tag.
            LeaseError: if it takes longer than this storage waits.
        """
        from yogadl.storage._keeping import delete

        delete(self._backend, DatasetKey(dataset_id, dataset_version))

    def undelete(self, dataset_id: str, dataset_version: str) -> None:
        """Restore the version that was deleted or replaced last.

        If a version of that name exists now, it is moved to the trash: the next call undoes this one. Waits
        for a process that builds this version.

        Raises:
            DatasetNotFoundError: if the trash has no such version.
            LeaseError: if it takes longer than this storage waits.
        """
        from yogadl.storage._keeping import undelete

        undelete(self._backend, DatasetKey(dataset_id, dataset_version))

    def unfinished(self, dataset_id: str | None = None) -> "list[Unfinished]":
        """Return the builds that are not finished (killed, failed, or running), and how much they hold.

        Args:
            dataset_id: Just those of this dataset.
        """
        from yogadl.storage._keeping import unfinished

        return unfinished(self._backend, dataset_id)

    def prune(
        self,
        *,
        grace_s: float = GRACE_S,
        dry_run: bool = False,
        unfinished: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> "Pruned":
        """Remove old files from the trash, and old files that no version uses, locks among them.

        Files that are younger than `grace_s` stay, since a reader may open them late and a running build may
        use them at its end. A dataset is skipped while somebody builds, deletes or restores one of its
        versions, and, with a warning, if it has a damaged manifest, since that may name any file. A dataset
        that can't be listed or read is skipped, too; the error is raised after the others are pruned.

        Args:
            grace_s: How long files that no version names are kept; 30 days if not given.
            dry_run: Whether to say what would be removed, and remove nothing.
            unfinished: Whether to remove only the files of unfinished builds, of any age; see `unfinished`.
                Files that tasks of a `begin` wrote within a day stay in any case: they may be in use.
            progress: Called with how many datasets were seen, and how many files removed, so far.

        Raises:
            ConfigurationError: if `grace_s` is no number of seconds.
            StorageError: if something can't be listed, read or removed; names the dataset.
            LeaseError: if this process was stopped for so long that a builder took over its lease.
        """
        from yogadl.storage._keeping import prune

        return prune(
            self._backend, grace_s=grace_s, dry_run=dry_run, unfinished=unfinished, progress=progress
        )
