"""Find published caches below a root, list them, and return references to them."""

import contextlib
import errno
import itertools
import os
from collections.abc import Iterator
from typing import Final

from yogadl._core.frozen import frozen
from yogadl._core.key import DatasetKey, is_dataset_id, is_version
from yogadl._dataref import RecordsRef
from yogadl._format.manifest import digest_of, read_manifest
from yogadl.errors import CacheFormatError, DatasetNotFoundError, StorageError
from yogadl.storage import _names
from yogadl.storage._catalogue.cached import CachedRecords, Opener, Published
from yogadl.storage._files.folder import folder_at
from yogadl.storage._files.root import Root, trashed_names

# An error about a missing dataset lists at most 20 ids, found among the first 1,000 files (a page of a
# store's list).
_MOST_FILES_LISTED: Final = 1000
_MOST_NAMED: Final = 20


@frozen
class Catalogue:
    """The caches below a root. Picklable, and small; safe to use from threads and after a fork."""

    root: Root
    opener: Opener

    def ref(
        self,
        key: DatasetKey,
        published: Published,
        *,
        allow_pickle: bool = False,
        check: bool = False,
        tag: str | None = None,
    ) -> RecordsRef:
        """Return a reference to a cache, after opening the cache."""
        records = CachedRecords(
            self, key, published.digest, allow_pickle, check=check, tag=tag, published=published
        )
        records.open()
        self.opener.note_opened(published)
        return RecordsRef(records)

    def built(self, published: Published, *, allow_pickle: bool = False) -> RecordsRef:
        """Return a reference to a cache that was just published; it is opened at the first read."""
        key = published.manifest.key
        self.opener.note_opened(published)
        return RecordsRef(CachedRecords(self, key, published.digest, allow_pickle, published=published))

    def published(self, key: DatasetKey, digest: str | None = None) -> Published:
        """Return the manifest of a version; the one with the digest, even from the trash, if one is given.

        Raises:
            DatasetNotFoundError: if there is no such manifest.
        """
        if digest is None:
            found = self.find(key)
            if found is None:
                raise self.not_found(key)
            return found
        mirrored = self.opener.mirrored(key, digest)
        if mirrored is not None:
            return mirrored
        for name in self._manifest_names(key):
            content = self.root.read(name)
            if content is not None and digest_of(content) == digest:
                return Published(read_manifest(content, key, self.root.where(name)), digest, content)
        raise DatasetNotFoundError(
            f"{key} was replaced or deleted, and its manifest with digest {digest} was pruned; fetch it again"
        )

    def named(self, key: DatasetKey, digest: str | None = None) -> tuple[DatasetKey, Published]:
        """Return the version of this name, or else the version that a tag of this name names.

        Args:
            key: The version, or the tag in place of one.
            digest: As for `find`.

        Raises:
            DatasetNotFoundError: if there is neither a version nor a tag of this name.
            CacheFormatError: if the manifest is damaged, or has another digest.
        """
        try:
            published = self.find(key, digest)
            if published is not None:
                return key, published
            version = self.opener.tagged_version(key)
        except StorageError:
            version = self.opener.tagged_version(key, is_away=True)
            if version is None:
                raise
        if version is None:
            raise self.not_found(key)
        target = DatasetKey(key.id, version)
        published = self.find(target, digest)
        if published is None:
            raise DatasetNotFoundError(
                f"the tag {key.version!r} of {key.id!r} names the version {version!r}, which was deleted: "
                "move the tag to another version, or undelete that one"
            )
        return target, published

    def _manifest_names(self, key: DatasetKey) -> Iterator[str]:
        """Yield the names that manifests of a version may have: its own, then those in the trash."""
        yield _names.manifest(key)
        yield from trashed_names(self.root, key)
        yield _names.manifest(key)  # once more: it may have been restored from the trash meanwhile

    def find(self, key: DatasetKey, digest: str | None = None) -> Published | None:
        """Return the manifest of a version, if there is one; a manifest with another digest is not parsed.

        Raises:
            CacheFormatError: if the manifest is damaged, or has another digest.
        """
        content = self.opener.manifest(key, digest)
        if content is None:
            return None
        found_digest = digest_of(content)
        if digest is not None and found_digest != digest:
            raise CacheFormatError(
                f"{key} has digest {found_digest}, not {digest}: it was built again or changed; fetch it "
                "without a digest, or with the new one"
            )
        where = self.root.where(_names.manifest(key))
        return Published(read_manifest(content, key, where), found_digest, content)

    def not_found(self, key: DatasetKey) -> DatasetNotFoundError:
        """Return the error for a version that does not exist; its message lists versions that do."""
        message = f"there is no {key} in {self.root.location}"
        if not self.is_there():
            return DatasetNotFoundError(f"{message}: that folder does not exist; check the path")
        # If a part of the storage can't be listed or read, the message ends without that information.
        with contextlib.suppress(StorageError, CacheFormatError):
            versions = self.versions(key.id)
            message += (
                f"; there are the versions {versions}" if versions else f"; {self.described_datasets()}"
            )
            tags = self.tags(key.id) if versions else {}
            message += f", and the tags {sorted(tags)}" if tags else ""
        return DatasetNotFoundError(message)

    def no_dataset(self, dataset_id: str) -> DatasetNotFoundError:
        """Return the error for a dataset that does not exist; its message lists datasets that do."""
        message = f"there is no dataset {dataset_id!r} in {self.root.location}"
        if not self.is_there():
            return DatasetNotFoundError(f"{message}: that folder does not exist; check the path")
        return DatasetNotFoundError(f"{message}; {self.described_datasets()}")

    def is_there(self) -> bool:
        """Return whether the folder exists; true for a bucket, since finding out would need a request."""
        folder = folder_at(self.root.location)
        return folder is None or os.path.lexists(folder)

    def described_datasets(self) -> str:
        """Return a phrase that lists datasets, for the error about a dataset that does not exist.

        Only the first files are looked at, because a bucket may hold millions of other objects.
        """
        found, is_all = self.root.folders_with("versions", most_files=_MOST_FILES_LISTED)
        ids = sorted(filter(is_dataset_id, found))
        named = list(itertools.islice(filter(self._has_version, ids), _MOST_NAMED))
        if is_all and len(ids) <= _MOST_NAMED:
            return f"it has the datasets {named}"
        if not named:
            return f"none of the first {_MOST_FILES_LISTED:,} files is of a dataset; `yogadl ls` looks at all"
        return f"it has, among others, the datasets {named}; `yogadl ls` lists all"

    def datasets(self, below: str = "") -> list[str]:
        """Return the ids of all datasets that have a version and that this user may list.

        Args:
            below: Return only the dataset of this id, and those below it, as if it were a folder.
        """
        found = self.ids_with("versions", below=below)
        return [dataset_id for dataset_id in found if self._has_version(dataset_id)]

    def _has_version(self, dataset_id: str) -> bool:
        try:
            return bool(self.versions(dataset_id))
        except StorageError as error:
            if error.errno in (errno.EACCES, errno.EPERM):
                return False
            raise

    def ids_with(self, *names: str, below: str = "") -> list[str]:
        """Return the ids that have one of these folders; a root may hold unrelated folders, too."""
        return sorted(filter(is_dataset_id, self.root.folders_with(*names, below=below)[0]))

    def tags(self, dataset_id: str) -> dict[str, str]:
        """Return the tags of a dataset, each with the version that it names."""
        from yogadl.storage._catalogue.tags import current_tags  # most readers do not need it

        DatasetKey(dataset_id, "any")
        return current_tags(self.root, dataset_id)

    def versions(self, dataset_id: str) -> list[str]:
        """Return the versions of a dataset, in order of their names."""
        DatasetKey(dataset_id, "any")
        below = f"{dataset_id}/versions"
        names = self.root.names(below, _names.MANIFEST_SUFFIX)
        found = (name[len(below) + 1 : -len(_names.MANIFEST_SUFFIX)] for name in names)
        return sorted(filter(is_version, found))  # ignores files that yogadl did not write
