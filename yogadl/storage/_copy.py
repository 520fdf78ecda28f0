"""Copy a published cache from one storage to another, part by part, the manifest last.

The copy has the same bytes, so the same digest. What the other storage has of it already stays; nothing can
be read there before all of it is there.
"""

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from yogadl._format.layout import PartTable
from yogadl._format.manifest import Manifest, digest_of, read_manifest
from yogadl._key import DatasetKey
from yogadl.errors import CacheFormatError, ConfigurationError, StorageError
from yogadl.storage import _names
from yogadl.storage._base import CacheStorage
from yogadl.storage._buckets.bucket import Bucket
from yogadl.storage._build import check_parts, new_trashed_name
from yogadl.storage._cached import open_table
from yogadl.storage._folder import storage_error
from yogadl.storage._leases.right import Right
from yogadl.storage._mirror.transfer import Beat, Progress, Total, Wanted, download_all, in_parallel, upload
from yogadl.storage._remote import RemoteStorage

# Each hashes and sends a part.
_AT_ONCE: Final = 4


def copy(
    source: CacheStorage,
    target: CacheStorage,
    dataset_id: str,
    dataset_version: str,
    *,
    replaces: bool = False,
    progress: Progress | None = None,
) -> bool:
    """Copy a version to another storage.

    Args:
        source: Where it is.
        target: Where to.
        dataset_id: What the dataset is called.
        dataset_version: Which version.
        replaces: Whether it takes the place of another version of that name, which goes to the trash.
        progress: Called with bytes copied and bytes to copy.

    Returns:
        Whether there was something to do: not if all of it is there already.

    Raises:
        DatasetNotFoundError: if there is no such version.
        ConfigurationError: if the target has another one, and `replaces` is not given.
        CacheFormatError: if a file of it is damaged: only what is sound is copied.
    """
    key = DatasetKey(dataset_id, dataset_version)
    content = _content_of(source, key)
    is_new = _is_new(target, key, content, replaces)
    manifest = read_manifest(content, key, source.root.where(_names.manifest(key)))
    name = _names.table(key.id, manifest.table_sha256)
    parts = _Parts(source, target, key, open_table(source.root, manifest))
    if not is_new and target.root.size(name) == manifest.table_bytes and not parts.missing(are_named=True):
        return False
    with target.building(key) as right:
        assert right is not None
        parts.copy(parts.missing(are_named=not is_new), right, progress)
        target.root.write(name, _checked_bytes(source, name, manifest))
        check_parts(target.root, key, parts.table)
        right.check()
        if is_new:
            _publish(target, key, content, replaces)
        target.root.remove_folder(_names.builds(key))
    return True


def _content_of(source: CacheStorage, key: DatasetKey) -> bytes:
    """Return the bytes of a manifest."""
    published = source.published(key)  # which says what there is, if there is none
    content = source.root.read(_names.manifest(key))
    if content is None or digest_of(content) != published.digest:
        raise StorageError(errno.ESTALE, f"{key} in {source.location} was replaced just now; try again")
    return content


def _checked_bytes(source: CacheStorage, name: str, manifest: Manifest) -> bytes:
    content = source.root.view(name, manifest.table_bytes) or b""
    if hashlib.sha256(content).hexdigest() != manifest.table_sha256:
        raise CacheFormatError(f"{source.root.where(name)} was changed just now; restore the file")
    return content


def _is_new(target: CacheStorage, key: DatasetKey, content: bytes, replaces: bool) -> bool:
    """Return whether the target has not this very version."""
    found = target.root.read(_names.manifest(key))
    if found == content:
        return False
    if found is not None and not replaces:
        raise ConfigurationError(
            f"{target.location} has another {key} (digest {digest_of(found)[:12]}, not "
            f"{digest_of(content)[:12]}); replace it (replaces=True, --replace), or copy to another storage"
        )
    return True


def _publish(target: CacheStorage, key: DatasetKey, content: bytes, replaces: bool) -> None:
    root, name = target.root, _names.manifest(key)
    if not replaces:
        if not root.write_if_absent(name, content):
            _is_new(target, key, content, replaces)  # which refuses another one
        return
    old = root.read(name)
    if old is not None:
        # A copy first, then the replacement: at no moment is there no manifest.
        root.write(new_trashed_name(root, key), old)
    root.write(name, content)


@dataclass(frozen=True)
class _Parts:
    """Copy the parts of one cache."""

    source: CacheStorage
    target: CacheStorage
    key: DatasetKey
    table: PartTable

    def missing(self, *, are_named: bool) -> list[int]:
        """Return the numbers of the parts that the target has not; of two that are equal, one.

        Args:
            are_named: Whether a manifest names them there, so that no prune can take them.
        """
        root, dataset_id = self.target.root, self.key.id
        sizes = {entry.name: entry.size_bytes for entry in root.entries(f"{dataset_id}/parts")}
        found: dict[str, int] = {}
        for number, sha256 in enumerate(self.table.sha256):
            names = _names.part(dataset_id, sha256), _names.index(dataset_id, sha256)
            is_there = sizes.get(names[0]) == int(self.table.size_bytes[number]) and names[1] in sizes
            if not is_there or not (are_named or all(root.keep(name) for name in names)):
                found.setdefault(sha256, number)
        return list(found.values())

    def copy(self, numbers: list[int], right: Right, progress: Progress | None) -> None:
        """Copy parts, in order, as long as this process has the right to."""
        is_remote = isinstance(self.source, RemoteStorage)
        with ExitStack() as stack:
            work = Path()
            if numbers and (is_remote or not isinstance(self.target, RemoteStorage)):
                work = stack.enter_context(self.target.root.workplace(f"{_names.builds(self.key)}/copy"))
            if isinstance(self.source, RemoteStorage):
                self._from_bucket(self.source.bucket, numbers, work, right, progress)
            else:
                self._from_folder(numbers, work, right, progress)

    def _from_bucket(
        self, bucket: Bucket, numbers: list[int], work: Path, right: Right, progress: Progress | None
    ) -> None:
        table, dataset_id = self.table, self.key.id
        parts, indexes = [], []
        for number in numbers:
            sha256, size_bytes = table.sha256[number], int(table.size_bytes[number])
            part, index = _names.part(dataset_id, sha256), _names.index(dataset_id, sha256)
            parts.append(Wanted(part, sha256, size_bytes, work / f"{sha256}.mdb"))
            indexes.append(Wanted(index, table.index_sha256[number], None, work / f"{sha256}.idx"))

        @contextlib.contextmanager
        def taken(wanted: Wanted) -> Iterator[Beat]:
            yield lambda: None
            index = wanted.path.with_suffix(".idx")
            right.check()
            self._take(wanted.sha256, wanted.path, index)
            for path in (wanted.path, index):
                path.unlink(missing_ok=True)

        download_all(bucket, indexes)
        download_all(bucket, parts, progress=progress, guard=taken)

    def _from_folder(self, numbers: list[int], work: Path, right: Right, progress: Progress | None) -> None:
        total = Total(sum(int(self.table.size_bytes[number]) for number in numbers), progress)

        def send(number: int) -> None:
            if total.stopped.is_set():
                return
            right.check()
            sha256 = self.table.sha256[number]
            with (
                self._checked(_names.part(self.key.id, sha256), sha256) as part,
                self._checked(_names.index(self.key.id, sha256), self.table.index_sha256[number]) as index,
            ):
                if isinstance(self.target, RemoteStorage):
                    self._take(sha256, part, index)
                else:
                    self._take(sha256, _copied(part, work), _copied(index, work))
            total.add(int(self.table.size_bytes[number]))

        in_parallel(send, numbers, _AT_ONCE, total)

    @contextlib.contextmanager
    def _checked(self, name: str, sha256: str) -> Iterator[Path]:
        """Give the path of a file of the source, whose bytes are what they should be."""
        with self.source.root.local(name) as path:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != sha256:
                raise CacheFormatError(
                    f"{path} was changed since it was written, so {self.key} is not copied: "
                    "`yogadl verify` says which records; build the dataset again, or restore the file"
                )
            yield path

    def _take(self, sha256: str, part: Path, index: Path) -> None:
        """Bring a part and its index to their places in the target."""
        if isinstance(self.target, RemoteStorage):
            upload(self.target.bucket, _names.index(self.key.id, sha256), index)
            upload(self.target.bucket, _names.part(self.key.id, sha256), part)
        else:
            self.target.root.adopt_part(self.key.id, sha256, part, index)


def _copied(path: Path, work: Path) -> Path:
    """Return a copy of a file in a folder, of its own: what happens to one must not happen to the other."""
    target = work / path.name
    try:
        shutil.copyfile(path, target)
        with target.open("rb+") as file:
            os.fsync(file.fileno())
    except OSError as error:
        raise storage_error(error, f"can't copy {path} to {target}") from error
    return target
