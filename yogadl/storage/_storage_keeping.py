"""The calls of a storage that tag, delete, restore and prune; `_storage.py` has the whole class.

The modules that remove files are imported at the first call that needs them: a process that only reads does
not load them.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from yogadl._core.key import DatasetKey
from yogadl.storage._backend import Backend

if TYPE_CHECKING:
    from yogadl.storage._prune import Pruned
    from yogadl.storage._unfinished import Unfinished

# How long prune keeps files that no version names: 30 days.
GRACE_S: Final = 30 * 86_400.0


class KeepingStorage:
    """The calls that tag versions, delete and restore them, and remove files."""

    _backend: Backend

    def tag(self, dataset_id: str, tag: str, dataset_version: str) -> None:
        """Make a tag name a version; a tag that exists moves to it.

        Every call that reads a version also takes the tag. Atomic, and safe if others do the same at the
        same time. A reference that was fetched by the tag before does not change.

        Args:
            dataset_id: The dataset's id.
            tag: The tag: a name that a version could have, that no version has, without an ``@``.
            dataset_version: The version's name; or another tag, for the version that it names now.

        Raises:
            DatasetNotFoundError: if the version does not exist.
            ConfigurationError: if a version has the tag's name, or the name is not allowed.
        """
        from yogadl.storage._keeping import set_tag

        set_tag(self._backend, DatasetKey(dataset_id, dataset_version), tag)

    def untag(self, dataset_id: str, tag: str) -> None:
        """Remove a tag. The version that it names stays.

        Raises:
            DatasetNotFoundError: if the tag does not exist.
        """
        from yogadl.storage._keeping import remove_tag

        remove_tag(self._backend, dataset_id, tag)

    def delete(self, dataset_id: str, dataset_version: str) -> None:
        """Move a version to the trash; `undelete` restores it until `prune` has removed it.

        If a process builds this version, the call waits, and then deletes the version that was built.

        Raises:
            DatasetNotFoundError: if the version does not exist.
            ConfigurationError: if a tag names the version, or the given name is a tag.
            LeaseError: if the wait takes longer than this storage allows.
        """
        from yogadl.storage._keeping import delete

        delete(self._backend, DatasetKey(dataset_id, dataset_version))

    def undelete(self, dataset_id: str, dataset_version: str) -> None:
        """Restore the version that was deleted or replaced last.

        If a version of that name exists, it is moved to the trash: the next call undoes this one. If a
        process builds this version, the call waits.

        Raises:
            DatasetNotFoundError: if the trash has no such version.
            LeaseError: if the wait takes longer than this storage allows.
        """
        from yogadl.storage._keeping import undelete

        undelete(self._backend, DatasetKey(dataset_id, dataset_version))

    def unfinished(self, dataset_id: str | None = None) -> "list[Unfinished]":
        """Return the builds that are not finished (killed, failed, or running), with the size of their files.

        Args:
            dataset_id: Return only the builds of this dataset.
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

        Files younger than `grace_s` stay: a reader may open them late, and a running build may use them at
        its end. A dataset is skipped while another process builds, deletes or restores one of its versions. A
        dataset with a damaged manifest is skipped with a warning, since that manifest may name any file. A
        dataset that can't be listed or read is skipped, too; the error is raised after the others are pruned.

        Args:
            grace_s: How long files that no version names are kept; 30 days if not given.
            dry_run: Whether to return the files that would be removed, and remove nothing.
            unfinished: Whether to remove only the files of unfinished builds, of any age; see `unfinished`.
                Files that tasks of a `begin` wrote within a day stay in any case: a task may still use them.
            progress: Called with the number of datasets seen and the number of files removed so far.

        Raises:
            ConfigurationError: if `grace_s` is no number of seconds.
            StorageError: if something can't be listed, read or removed; the error names the dataset.
            LeaseError: if this process was stopped for so long that a builder took over its lease.
        """
        from yogadl.storage._keeping import prune

        return prune(
            self._backend, grace_s=grace_s, dry_run=dry_run, unfinished=unfinished, progress=progress
        )
