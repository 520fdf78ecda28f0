"""Copy a published cache from one storage to another, part by part, the manifest last.

The copy has the same bytes, so the same digest. Files that the target storage already has are not copied
again; the version can't be read there before all its files are there.
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

from yogadl._core.key import DatasetKey
from yogadl._core.printable import masked
from yogadl._core.process import one_operation
from yogadl._format.manifest import Manifest, adopted_paths, digest_of, read_manifest
from yogadl._format.table import PartTable
from yogadl.errors import CacheFormatError, ConfigurationError, StorageError
from yogadl.storage import _names
from yogadl.storage._builds.options import BuildOptions
from yogadl.storage._builds.publish import clear_attempt, pin_parts, read_published
from yogadl.storage._catalogue.backend import Backend, BuildExclusion
from yogadl.storage._catalogue.cached import open_table, part_files, read_dictionary
from yogadl.storage._catalogue.selections import missing_selections
from yogadl.storage._files.folder import Folder, network_file_system, translated
from yogadl.storage._files.permitted import Permitted, local_place
from yogadl.storage._files.root import MAX_READ_BYTES, Root
from yogadl.storage._keeping import clear_unresumable, replace
from yogadl.storage._leases.locks import exclusive_build
from yogadl.storage._objects.bucket import Bucket
from yogadl.storage._remote.download import (
    Download,
    Received,
    Total,
    Touch,
    download_all,
    in_parallel,
    upload,
)
from yogadl.storage._storage import CacheStorage

# The number of files sent at once; each thread hashes and sends one.
_AT_ONCE: Final = 4


@one_operation()
def copy(
    source: CacheStorage,
    target: CacheStorage,
    dataset_id: str,
    dataset_version: str,
    *,
    replaces: bool = False,
    materialize: bool = False,
    progress: Received | None = None,
) -> bool:
    """Copy a version to another storage.

    Of a version that was adopted from foreign files, the index is copied, and the files stay where they are.
    Both storages must be allowed to read them. Files of this machine are handed on only by a folder on a disk
    of this machine; a bucket, and a folder that machines share, may have been written by others, so a copy
    from there may name files of this machine only below places that both have in `open_storage(foreign=)`,
    such as ``file:///data/raw``.

    Args:
        source: The storage that has the version.
        target: The storage to copy it to.
        dataset_id: The dataset's id.
        dataset_version: The version's name, or a tag of it; the version is copied, not the tag.
        replaces: Whether to replace another version of that name, which is moved to the trash.
        materialize: Whether the values in foreign files are copied, too: the copy then needs no such files.
        progress: Called with bytes copied and bytes to copy.

    Returns:
        Whether anything was copied. False if the target has all of it already.

    Raises:
        DatasetNotFoundError: if the version does not exist.
        ConfigurationError: if the target has another version of that name, and `replaces` is not given; or
            one of the storages may not read where foreign files lie.
        CacheFormatError: if a file of the version is damaged: only sound files are copied.
    """
    root, backend = source._backend.root, target._backend
    key, content = _manifest_of(source._backend, DatasetKey(dataset_id, dataset_version))
    manifest = read_manifest(content, key, root.where(_names.manifest(key)))
    if materialize and manifest.is_adopted:
        return _materialize(source, target, manifest, replaces=replaces)
    is_new = _is_new(backend.root, key, content, replaces)  # before waiting for another builder
    name = _names.table(key.id, manifest.table_sha256)
    files = _CopiedFiles(root, backend.root, key, open_table(root, manifest))
    _require_places(manifest, files.table, source._backend, backend)
    is_there = not is_new and backend.root.size(name) == manifest.table_bytes
    if is_there and not files.missing(None):
        return _copy_selections(root, backend.root, manifest)
    with exclusive_build(backend, key) as exclusion:
        is_new = _is_new(backend.root, key, content, replaces)  # others may have changed it meanwhile
        named = _shared_with(backend.root, manifest) if is_new else None
        files.copy(files.missing(named), exclusion, progress)
        backend.root.write(name, _table_bytes(root, name, manifest))
        pin_parts(backend.root, key, files.table, manifest.table_sha256, manifest.earlier)
        if is_new and replaces:
            replace(backend.root, key, content, exclusion)
        else:
            exclusion.check()
            if is_new and not backend.root.write_if_absent(_names.manifest(key), content):
                _is_new(backend.root, key, content, replaces)  # raises if another version is there
        clear_attempt(backend.root, key, f"{_names.builds(key)}/copy")
    clear_unresumable(backend, key.id, published=key)
    _copy_selections(root, backend.root, manifest)
    return True


def _require_places(manifest: Manifest, table: PartTable, source: Backend, target: Backend) -> None:
    """Refuse to copy an index unless both storages may read where its files lie.

    The target alone can't decide this: a folder may read any file of this machine, since those who write to
    it are trusted to choose the files. The version in a bucket may be anyone's.
    """
    if not table.files.addressed:
        return
    gives, takes = source.catalogue.opener.permitted, target.catalogue.opener.permitted
    is_ours = isinstance(source.root, Folder) and network_file_system(source.root.root) is None
    try:
        for number in table.files.addressed:
            address = table.files[number].address
            if takes.place(address) is not None:
                gives.place(address)
            elif not is_ours:
                _require_permitted(address, gives, takes)
        for pattern in () if is_ours else adopted_paths(manifest):  # `refresh` looks for files there
            _require_permitted(pattern, gives, takes)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{error}. Or copy the values, too: materialize=True, --materialize"
        ) from error


def _require_permitted(pattern: str, gives: Permitted, takes: Permitted) -> None:
    """Refuse a place of this machine unless both storages were told to read there."""
    place = local_place(pattern)
    if place is not None and not (gives.permits(place) and takes.permits(place)):
        folder = place if place.is_dir() else place.parent
        raise ConfigurationError(
            f"{masked(pattern)} is a place of this machine, and the version comes from where others may have "
            "written it: a copy may name it only if both storages are opened with "
            f"foreign={masked({folder.as_uri(): {}})}; the command takes --foreign URL. Permit only what "
            "those who wrote the version may read"
        )


def _materialize(source: CacheStorage, target: CacheStorage, manifest: Manifest, *, replaces: bool) -> bool:
    """Copy a version together with its values in foreign files, unless the target has it."""
    key = manifest.key
    found = read_published(target._backend.root, key)
    if found is not None:
        if manifest.fingerprint in (found.manifest.fingerprint, *found.manifest.aliases):
            return False
        if not replaces:
            raise _has_other(target._backend.root, key, found.digest, digest_of(manifest.to_bytes()))
    ref = source.fetch(key.id, key.version, check=not manifest.is_weak)  # only sound files are copied
    target.submit(ref, key.id, key.version, build=BuildOptions(metadata=manifest.metadata or None))
    return True


def _copy_selections(source: Root, target: Root, manifest: Manifest) -> bool:
    """Copy the selections of these records that the target lacks; return whether there were any."""
    is_any = False
    for name, content in missing_selections(source, target, manifest):
        target.write(name, content)
        is_any = True
    return is_any


def _manifest_of(source: Backend, key: DatasetKey) -> tuple[DatasetKey, bytes]:
    """Return the version that this name or tag stands for, and the bytes of its manifest."""
    content = source.root.read(_names.manifest(key))
    if content is None:
        key, _ = source.catalogue.named(key)  # raises an error that lists versions, if there is no tag either
        content = source.root.read(_names.manifest(key))
    if content is None:
        raise StorageError(
            errno.ESTALE, f"{key} in {source.root.location} was changed during the copy; try again"
        )
    return key, content


def _table_bytes(root: Root, name: str, manifest: Manifest) -> bytes:
    content = root.view(name, manifest.table_bytes + 1) or b""
    if hashlib.sha256(content).hexdigest() != manifest.table_sha256:
        raise CacheFormatError(f"{root.where(name)} was changed during the copy; restore the file")
    return content


def _shared_with(root: Root, manifest: Manifest) -> set[str]:
    """Return the names of the parts and indexes of the newest earlier version that the target has.

    An earlier version is one whose records this version begins with. No prune removes its files while the
    caller holds the right to build a version of the dataset.
    """
    for earlier in reversed(manifest.earlier):
        key = DatasetKey(manifest.key.id, earlier.version)
        content = root.read(_names.manifest(key))
        if content is not None:
            with contextlib.suppress(CacheFormatError):  # a damaged manifest: all files are copied
                found = read_manifest(content, key, root.where(_names.manifest(key)))
                return set(part_files(key.id, table := open_table(root, found), table.files.own))
    return set()


def _is_new(root: Root, key: DatasetKey, content: bytes, replaces: bool) -> bool:
    """Return whether the target lacks the version; False if it has the same one.

    Args:
        root: The target.
        key: The version.
        content: The bytes of the manifest in the source.
        replaces: Whether a different version of that name may be replaced.

    Raises:
        ConfigurationError: if the target has a different version of that name, which must not be replaced.
    """
    found = root.read(_names.manifest(key))
    if found == content:
        return False
    if found is not None and not replaces:
        raise _has_other(root, key, digest_of(found), digest_of(content))
    return True


def _has_other(root: Root, key: DatasetKey, theirs: str, ours: str) -> ConfigurationError:
    return ConfigurationError(
        f"{root.location} has another {key} (digest {theirs[:12]}, not {ours[:12]}); replace it "
        "(replaces=True, --replace), or copy to another storage"
    )


@dataclass(frozen=True)
class _CopiedFile:
    """A part, an index or a dictionary to copy.

    Args:
        name: Its name in the target.
        source_name: Its name in the source.
        sha256: The hash of its bytes.
        size_bytes: Its size, if a part table states it.
    """

    name: str
    source_name: str
    sha256: str
    size_bytes: int | None


@dataclass(frozen=True)
class _CopiedFiles:
    """The parts of one cache and their indexes, to be copied from one root to another."""

    source: Root
    target: Root
    key: DatasetKey
    table: PartTable

    def missing(self, named: set[str] | None) -> list[_CopiedFile]:
        """Return the files to copy, indexes first; of several equal files only one.

        These are the files that the target lacks, or has with another size; of a dictionary, with another
        hash. A file that it has, but that none of its manifests names,
        is protected from prunes for a day; if that fails, it is copied as well.

        Args:
            named: The files that a manifest in the target names, so that no prune can remove them, or
                ``None`` if a manifest names all files of the version.
        """
        root, table, dataset_id = self.target, self.table, self.key.id
        source_sizes = {entry.name: entry.size_bytes for entry in self.source.entries(f"{dataset_id}/parts")}
        target_sizes = {entry.name: entry.size_bytes for entry in root.entries(f"{dataset_id}/parts")}
        indexes, parts = {}, {}
        rows = zip(table.sha256, table.index_sha256, table.size_bytes.tolist(), strict=True)
        for sha256, index_sha256, size_bytes in rows:
            part = _names.part(dataset_id, sha256)
            if target_sizes.get(part) != size_bytes or not (
                named is None or part in named or root.keep(part)
            ):
                parts[part] = _CopiedFile(part, part, sha256, size_bytes)
            index, old_index = _names.indexes(dataset_id, sha256, index_sha256)
            is_named = named is None or index in named
            source_name = old_index if index not in source_sizes and old_index in source_sizes else index
            found_bytes = target_sizes.get(index, target_sizes.get(old_index) if is_named else None)
            is_there = found_bytes is not None and found_bytes == source_sizes.get(source_name, found_bytes)
            if not is_there or not (is_named or root.keep(index)):
                indexes[index] = _CopiedFile(index, source_name, index_sha256, None)
        for sha256 in table.dictionaries:
            name = _names.dictionary(dataset_id, sha256)
            is_there = name in target_sizes and self._has_dictionary(sha256)
            if not is_there or not (named is None or name in named or root.keep(name)):
                indexes[name] = _CopiedFile(name, name, sha256, None)
        return [*indexes.values(), *parts.values()]

    def _has_dictionary(self, sha256: str) -> bool:
        """Return whether the target has a dictionary undamaged; dictionaries are small."""
        try:
            read_dictionary(self.target, self.key.id, sha256)
        except CacheFormatError:
            return False
        return True

    def copy(self, files: list[_CopiedFile], exclusion: BuildExclusion, progress: Received | None) -> None:
        """Copy files, starting them in this order; stop if another builder takes over."""
        bucket = self.source.bucket
        with ExitStack() as stack:
            work = Path()
            if files and (bucket is not None or self.target.bucket is None):
                work = stack.enter_context(self.target.workplace(f"{_names.builds(self.key)}/copy"))
            if bucket is None:
                self._from_folder(files, work, exclusion, progress)
            else:
                self._from_bucket(bucket, files, work, exclusion, progress)

    def _from_bucket(
        self,
        bucket: Bucket,
        files: list[_CopiedFile],
        work: Path,
        exclusion: BuildExclusion,
        progress: Received | None,
    ) -> None:
        names = {work / Path(file.name).name: file.name for file in files}
        downloads = [
            Download(file.source_name, file.sha256, file.size_bytes, path)
            for path, file in zip(names, files, strict=True)
        ]

        @contextlib.contextmanager
        def move_after_download(download: Download) -> Iterator[Touch]:
            """Move a file to the target after its download, if no other builder has taken over."""
            yield lambda: None  # called while bytes arrive: there is nothing to keep alive
            exclusion.check()
            self._move_to_target(names[download.path], download.path)
            download.path.unlink(missing_ok=True)

        download_all(bucket, downloads, progress=progress, guard=move_after_download)

    def _from_folder(
        self, files: list[_CopiedFile], work: Path, exclusion: BuildExclusion, progress: Received | None
    ) -> None:
        total = Total(sum(file.size_bytes or 0 for file in files), progress)

        def send(file: _CopiedFile) -> None:
            if total.stopped.is_set():
                return
            exclusion.check()
            with self._verified(file) as path:
                self._move_to_target(file.name, _copied(path, work) if self.target.bucket is None else path)
            total.add(file.size_bytes or 0)

        in_parallel(send, files, _AT_ONCE, total)

    @contextlib.contextmanager
    def _verified(self, file: _CopiedFile) -> Iterator[Path]:
        """Give the path of a file of the source, after comparing its bytes with their hash."""
        with self.source.local(file.source_name) as path:
            most_bytes = MAX_READ_BYTES if file.size_bytes is None else file.size_bytes
            with path.open("rb") as content:
                is_small = os.fstat(content.fileno()).st_size <= most_bytes  # hashing may take days
                found = hashlib.file_digest(content, "sha256").hexdigest() if is_small else ""
            if found != file.sha256:
                raise CacheFormatError(
                    f"{path} was changed since it was written, so {self.key} is not copied: "
                    "`yogadl verify` says which records; build the dataset again, or restore the file"
                )
            yield path

    def _move_to_target(self, name: str, path: Path) -> None:
        """Move a file to its place in the target."""
        if self.target.bucket is None:
            self.target.adopt({name: path})
        else:
            upload(self.target.bucket, name, path)


def _copied(path: Path, work: Path) -> Path:
    """Return a copy of a file in the folder `work`, so that later changes of one do not affect the other."""
    target = work / path.name
    with translated(f"can't copy {path} to {target}"):
        shutil.copyfile(path, target)
        with target.open("rb+") as file:
            os.fsync(file.fileno())
    return target
