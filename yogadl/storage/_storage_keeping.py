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

        It can then be given wherever a version is read. Atomic, and safe beside others that do the same.
        What was fetched by the tag stays what it is.

        Args:
            dataset_id: What the dataset is called.
            tag: The tag: anything that could be a version's name, and is none, without an ``@``.
            dataset_version: Which version; or another tag, for the version that this names now.

        Raises:
            DatasetNotFoundError: if there is no such version.
            ConfigurationError: if a version is called as the tag, or none could be.
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
        """Throw a version away; `undelete` brings it back until `prune` has removed it.

        Waits for a process that builds it, and then throws away what was built.

        Raises:
            DatasetNotFoundError: if there is no such version.
            ConfigurationError: if a tag names it, or it is a tag.
            LeaseError: if it takes longer than this storage waits.
        """
        from yogadl.storage._keeping import delete

        delete(self._backend, DatasetKey(dataset_id, dataset_version))

    def undelete(self, dataset_id: str, dataset_version: str) -> None:
        """Bring back what was deleted or replaced last.

        If there is such a version now, it goes to the trash in exchange: the next call undoes this one.
        Waits for a process that builds it.

        Raises:
            DatasetNotFoundError: if the trash has no such version.
            LeaseError: if it takes longer than this storage waits.
        """
        from yogadl.storage._keeping import undelete

        undelete(self._backend, DatasetKey(dataset_id, dataset_version))

    def unfinished(self, dataset_id: str | None = None) -> "list[Unfinished]":
        """Return what builds hold that are not finished: killed, failed, or running just now.

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
        """Remove what no manifest names, and manifests that have been in the trash for longer than the grace.

        What is younger than the grace stays, since a running reader opens parts late, and partitions are
        named last. Nothing is removed of a dataset of which somebody builds, deletes or brings back a version
        just now, nor, with a warning, of one that has a damaged manifest, which may name anything. A dataset
        that can't be listed or read is left alone, too, and the others are pruned before the error is raised.

        Args:
            grace_s: How long files that no version names are kept; 30 days if not given.
            dry_run: Whether to say what would be removed, and remove nothing.
            unfinished: Whether to remove just what `unfinished` lists, however young. What tasks of a `begin`
                wrote within a day stays in either case: they can't be told from tasks that are at work.
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
