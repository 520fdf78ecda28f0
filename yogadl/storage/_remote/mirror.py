"""Keep copies of a bucket's caches on this machine, for all its processes: downloaded once, and checked.

A mirror is a folder that remains when the processes that use it have ended, and it needs no server. All its
files are in the bucket, too, so any file that no process reads may be evicted.
"""

import contextlib
import errno
import hashlib
import logging
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

from yogadl._core.arguments import bytes_of
from yogadl._core.columns import CHUNK_BYTES
from yogadl._core.frozen import frozen
from yogadl._core.key import DatasetKey
from yogadl._core.process import ProcessLock
from yogadl._format.manifest import Manifest, digest_of, read_manifest
from yogadl.errors import CacheFormatError, ConfigurationError, StorageError
from yogadl.storage import _names
from yogadl.storage._catalogue.cached import Published, are_whole, can_map, open_table
from yogadl.storage._files.bucket_root import BucketRoot
from yogadl.storage._files.folder import Folder, made_folder, translated
from yogadl.storage._files.locks import scratch_folder, sweep
from yogadl.storage._objects.bucket import Bucket
from yogadl.storage._remote.download import Received, upload
from yogadl.storage._remote.eviction import (
    MirrorLocation,
    chosen_location,
    default_location,
    described_contents,
    evict_for,
    evict_to_free,
)
from yogadl.storage._remote.mirrored_cache import MirroredCache, PlacesOf, no_places

_log = logging.getLogger("yogadl")

_COPY_BYTES: Final = 2**24


@frozen
class Mirror:
    """The folder on a local disk where this machine keeps copies of a bucket's caches.

    Args:
        path: The folder, made if missing. ``"auto"``: a folder in local temporary storage, if that has room.
            ``None``: no folder; records are read by range, and use no disk.
        limit: The largest size of the folder, in bytes or as ``"200GB"``. Parts that do not fit are read by
            range.
        fill: When a cache is downloaded; until then, records are read by range. ``"auto"``: if the cache is
            small (`fetch` then waits), or if streams of this machine read at least half of it each epoch;
            ``"always"``: whenever a stream reads it; ``"never"``.

    Raises:
        ConfigurationError: if a value is invalid, or contradicts another one.

    Example:
        >>> import yogadl
        >>> disk = yogadl.Mirror("/nvme/mirror", limit="200GB", fill="always")
        >>> storage = yogadl.open_storage("s3://bucket/caches", mirror=disk)
    """

    path: str | os.PathLike[str] | None = "auto"
    limit: int | str | None = None
    fill: Literal["auto", "always", "never"] = "auto"

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | os.PathLike | None):
            raise ConfigurationError(f"Mirror: path must be a folder, 'auto' or None, not {self.path!r:.100}")
        if self.limit is not None:
            bytes_of(self.limit)
        if self.fill not in ("auto", "always", "never"):
            raise ConfigurationError(f"Mirror: fill must be 'auto', 'always' or 'never', not {self.fill!r}")
        if self.path is None and (self.limit is not None or self.fill == "always"):
            raise ConfigurationError("Mirror(None) keeps nothing: leave out limit and fill")


class LocalMirror:
    """Copies of a bucket's caches in a folder of this machine, shared by all processes that name it.

    Opens and makes nothing before it is used. Picklable; safe to use from threads and after a fork.

    Args:
        bucket: The bucket of the caches.
        folder: The folder of the copies, or ``None`` for this machine's temporary storage.
        limit: The largest size, in bytes or as ``"200GB"``; stored in the folder, where the last value given
            is used, and ``None`` leaves it unchanged; without a limit, only the disk limits the mirror.
        keeps_files: Whether files are kept; not for ``mirror=None``, where builds still use a disk, and
            remove their files when they end.

    Raises:
        ConfigurationError: if `limit` is not a size.
    """

    def __init__(
        self,
        bucket: Bucket,
        folder: str | os.PathLike[str] | None = None,
        limit: int | str | None = None,
        keeps_files: bool = True,
    ) -> None:
        self.keeps_files = keeps_files
        self._bucket = bucket
        self._chosen_folder = None if folder is None else Path(folder).expanduser().absolute()
        self._limit_bytes = None if limit is None else bytes_of(limit)
        self._lock = ProcessLock()
        self._made_location: MirrorLocation | None = None
        # The free bytes after the last eviction if it did not help, else None.
        self._free_bytes_after_eviction: int | None = None

    def __reduce__(self) -> Any:
        folder = self._chosen_folder and str(self._chosen_folder)
        return LocalMirror, (self._bucket, folder, self._limit_bytes, self.keeps_files)

    def __repr__(self) -> str:
        return f"LocalMirror({self._bucket!r}, {str(self._chosen_folder) if self._chosen_folder else None!r})"

    @property
    def location(self) -> MirrorLocation:
        """The mirror's folder, made if missing.

        Raises:
            ConfigurationError: if the folder chosen holds other files.
            StorageError: if no folder can be used.
        """
        with self._lock:
            if self._made_location is None:
                location = (
                    default_location()
                    if self._chosen_folder is None
                    else chosen_location(self._chosen_folder)
                )
                location.prepare()
                if self._limit_bytes is not None:
                    location.set_limit(self._limit_bytes)
                self._made_location = replace(location, given_bytes=self._limit_bytes)
            return self._made_location

    def location_if_made(self) -> MirrorLocation | None:
        """Return the mirror's folder, or ``None`` if there is none yet; makes nothing.

        Raises:
            StorageError: if no folder can be used.
        """
        location = (
            default_location(makes=False)
            if self._chosen_folder is None
            else chosen_location(self._chosen_folder)
        )
        return location if location.is_made() else None

    @property
    def folder(self) -> Folder:
        """The folder of the copies, laid out as a local storage is, except for manifests."""
        return self.location.caches

    def scratch(self) -> Path:
        """Return a folder on the mirror's disk, made if missing, where caches may be built."""
        return made_folder(self.location.builds)

    def make_room(self, size_bytes: int) -> None:
        """Evict files that no process reads until the disk has this many bytes free, or no such file is left.

        This lists the mirror. If eviction did not free enough, it is repeated only when half of the bytes
        that were free then are used.
        """
        try:
            location, free_bytes_before = self.location, self._free_bytes_after_eviction
            free_bytes = location.free_bytes()
            if free_bytes < size_bytes and (free_bytes_before is None or free_bytes < free_bytes_before // 2):
                with location.gate(exclusive=True):
                    evict_to_free(location, size_bytes)
                free_bytes = location.free_bytes()
                self._free_bytes_after_eviction = None if free_bytes >= size_bytes else free_bytes
        except OSError as error:
            _log.info("yogadl: no room is made in the mirror: %s", error)

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Make room for a build to begin; on a full disk, add the size of the mirror to the error."""
        self._free_bytes_after_eviction = None
        self.make_room(CHUNK_BYTES)
        try:
            yield
        except StorageError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise StorageError(
                error.errno,
                f"{error.strerror}; {described_contents(self.location)}. All files that no process reads "
                "were removed from the mirror: end readers, free the disk, or give mirror= a folder on a "
                "larger disk",
            ) from error

    def sweep(self) -> None:
        """Remove leftovers of killed builds on this machine, if there is a mirror."""
        location = self.location_if_made()
        if location is not None:
            sweep(location.builds)

    def hold(
        self, manifest: Manifest, places: PlacesOf = no_places, *, with_dictionaries: bool = True
    ) -> MirroredCache:
        """Hold the mirror's files of a cache; only its part table, and dictionaries, are downloaded.

        As long as the returned object lives, none of these files is evicted.

        Raises:
            CacheFormatError: if the part table is missing in the bucket or altered.
            StorageError: if the network or the disk fails, or there is no room.
        """
        self._require_files(f"hold {manifest.key}")
        return MirroredCache(
            self._bucket, self.location, manifest, places, with_dictionaries=with_dictionaries
        )

    def fill(
        self, manifest: Manifest, places: PlacesOf = no_places, *, progress: Received | None = None
    ) -> list[str]:
        """Download a cache with its indexes, and compare files that were here before with their checksums.

        Args:
            manifest: The cache.
            places: See `MirroredCache`.
            progress: Called with bytes that are here and checked, and bytes of the whole cache.

        Returns:
            The names of the files that were damaged here, and were downloaded again.

        Raises:
            CacheFormatError: if a part is missing in the bucket or altered; the error names the part.
            StorageError: if the network or the disk fails, or there is no room.
        """
        self._require_files(f"download {manifest.key}")
        whole = 0

        def compared(done: int, _: int) -> None:
            if progress is not None:
                progress(min(done, whole), whole)

        def downloaded(done: int, missing: int) -> None:
            if progress is not None:
                progress(whole - missing + done, whole)

        with contextlib.closing(MirroredCache(self._bucket, self.location, manifest, places)) as cache:
            whole = int(cache.sizes.sum())
            cache.mend(compared)
            cache.complete(cache.table.files.ids, downloaded)
            cache.complete_indexes(range(len(cache.table)))
            return cache.mended

    def mend(self, manifest: Manifest, places: PlacesOf = no_places) -> tuple[int, list[str]]:
        """Compare the files of a cache that are here with their checksums; download damaged ones again.

        Returns:
            The number of files here, and the names of the damaged ones.

        Raises:
            CacheFormatError: if a part is missing in the bucket or altered; the error names the part.
            StorageError: if the network or the disk fails, or there is no room.
        """
        location = self.location_if_made() if self.keeps_files else None
        if location is None or not location.caches.names(manifest.key.id):
            return 0, []  # without making or downloading anything
        with contextlib.closing(MirroredCache(self._bucket, self.location, manifest, places)) as cache:
            return cache.mend(), cache.mended

    def published_if_whole(self, key: DatasetKey, digest: str | None = None) -> Published | None:
        """Return a version's manifest if the mirror has it and all its parts; makes no request.

        Args:
            key: The version.
            digest: The digest of the manifest, or ``None`` for the newest that is known here.
        """
        found = self.published_if_here(key, digest)
        return found if found is not None and _is_whole(self.folder, found.manifest) else None

    def published_if_here(self, key: DatasetKey, digest: str | None = None) -> Published | None:
        """Return a version's manifest if the mirror has it, with or without its parts."""
        location = self._location_if_any()
        if location is None:
            return None
        caches = location.caches
        if digest is None:
            digest = self._newest(caches, key)
        if digest is None:
            return None
        for name in caches.names(f"{key.id}/tables", f".{digest}{_names.MANIFEST_SUFFIX}"):
            content = caches.read(name)
            if content is not None and digest_of(content) == digest:
                with contextlib.suppress(CacheFormatError):  # of another version, or from a newer library
                    manifest = read_manifest(content, key, caches.where(name))
                    return Published(manifest, digest, content)
        return None

    def keep(self, published: Published) -> list[str]:
        """Save the manifest of a version whose files are here, if there is room.

        It lies beside its part table under its digest, and is evicted with the table.

        Returns:
            Its name, if it was here and damaged.
        """
        if not self.keeps_files:
            return []
        key, table_sha256 = published.manifest.key, published.manifest.table_sha256
        stem = _names.table(key.id, table_sha256).removesuffix(_names.TABLE_SUFFIX)
        name = f"{stem}.{published.digest}{_names.MANIFEST_SUFFIX}"
        with _errors_logged(key):
            found = self.folder.view(name)
            if found != published.content:
                self.folder.write(name, published.content)
                return [] if found is None else [name]
        return []

    def read_file(self, name: str, most_bytes: int) -> bytes | None:
        """Return a copy of a small file of the bucket, if one is here."""
        location = self._location_if_any()
        return None if location is None else location.caches.read(name, most_bytes)

    def map_file(self, name: str, is_mapped: bool) -> Any:
        """Return a copy of a file of the bucket that may be large, mapped if it may be, if one is here."""
        location = self._location_if_any()
        if location is None:
            return None
        caches = location.caches
        return caches.map(name) if is_mapped and can_map(caches) else caches.view(name)

    def keep_file(self, name: str, content: bytes) -> None:
        """Save a copy of a small file of the bucket, if there is room."""
        if not self.keeps_files:
            return
        try:
            location = self.location
            with location.gate(exclusive=True):
                evict_for(location, {name: len(content)}, location.limit_bytes(), name)
                location.caches.write(name, content)
        except (StorageError, CacheFormatError) as error:
            _log.info("yogadl: not kept in the mirror: %s: %s", name, error)

    def keep_newest(self, published: Published) -> None:
        """Note that this is the newest manifest of its version, unless a newest one is noted."""
        key = published.manifest.key
        with _errors_logged(key):
            if self.keeps_files and self._newest(self.folder, key) is None:
                self.folder.write(self._newest_name(key), published.digest.encode())

    def renew(self, key: DatasetKey, digest: str | None) -> None:
        """Replace the note of the newest manifest of a version, if there is one.

        Args:
            key: The version.
            digest: The digest of the newest manifest, or ``None`` if unknown.
        """
        location = self._location_if_any()
        if location is None:
            return
        with _errors_logged(key):
            if self._newest(location.caches, key) in (None, digest):
                return
            if digest is None:
                location.caches.remove(self._newest_name(key))
            else:
                location.caches.write(self._newest_name(key), digest.encode())

    def tagged_version(self, key: DatasetKey) -> str | None:
        """Return the version that a tag named when the store answered last."""
        location = self._location_if_any()
        content = None if location is None else location.caches.read(self._tag_name(key))
        return content.decode(errors="replace") if content else None

    def note_tag(self, key: DatasetKey, version: str | None) -> None:
        """Note the version that a tag names, or ``None`` if it names none."""
        with _errors_logged(key):
            if not self.keeps_files or self.tagged_version(key) == version:
                return
            if version is None:
                self.folder.remove(self._tag_name(key))
            else:
                self.folder.write(self._tag_name(key), version.encode())

    def _newest(self, caches: Folder, key: DatasetKey) -> str | None:
        """Return the digest that a version's manifest had when the store answered last."""
        content = caches.read(self._newest_name(key))
        return None if content is None else content.decode(errors="replace")

    def _newest_name(self, key: DatasetKey) -> str:
        return self._note_name(key.id, key.version)

    def _tag_name(self, key: DatasetKey) -> str:
        return self._note_name(key.id, f"@{key.version}")

    def _note_name(self, dataset_id: str, what: str) -> str:
        # The name has a hash of the bucket's origin, since two stores may have buckets of one name.
        digest = hashlib.sha256(f"{what} {self._bucket.origin}".encode()).hexdigest()
        return f"{dataset_id}/newest/{digest[:32]}"

    def _require_files(self, what: str) -> None:
        if not self.keeps_files:
            raise ConfigurationError(
                f"can't {what}: this storage has no mirror (mirror=None); pass mirror=FOLDER"
            )

    def _location_if_any(self) -> MirrorLocation | None:
        if not self.keeps_files:
            return None
        try:
            return self._made_location or self.location_if_made()
        except StorageError:
            return None

    def adopt(self, files: Mapping[str, Path]) -> bool:
        """Copy files that were built here to the mirror, as hard links if possible, to save their download.

        The bucket must have them already.

        Args:
            files: The paths by name in the bucket; the files stay in place.

        Returns:
            Whether the mirror has all of them now; it has none if there is no room.
        """
        if not self.keeps_files:
            return False
        what = " and ".join(files)
        try:
            location = self.location
            with contextlib.ExitStack() as stack:
                copies = {
                    name: stack.enter_context(_copy(path, location.caches.path(name)))
                    for name, path in files.items()
                }
                sizes = {name: path.stat().st_size for name, path in files.items()}
                with location.gate(exclusive=True):
                    evict_for(location, sizes, location.limit_bytes(), what)
                    location.caches.adopt(copies)
        except OSError as error:
            _log.info("yogadl: not kept in the mirror: %s: %s", what, error)
            return False
        return True


def _is_whole(folder: Folder, manifest: Manifest) -> bool:
    try:
        table = open_table(folder, manifest)
    except CacheFormatError:
        return False
    dictionaries = (folder.size(_names.dictionary(manifest.key.id, name)) for name in table.dictionaries)
    return bool(are_whole(folder, manifest.key.id, table.files).all()) and None not in dictionaries


@contextlib.contextmanager
def _errors_logged(key: DatasetKey) -> Iterator[None]:
    """Log an error instead of raising it: without the mirror's manifest or note, the bucket is used."""
    try:
        yield
    except StorageError as error:
        _log.info("yogadl: the manifest of %s is not kept in the mirror: %s", key, error)


@contextlib.contextmanager
def _copy(path: Path, target: Path) -> Iterator[Path]:
    """Give a hard link or a copy of a file, beside `target`; it is removed afterwards unless renamed."""
    made_folder(target.parent)
    temporary = target.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        try:
            os.link(path, temporary)
        except OSError:  # another file system, or one without links
            with path.open("rb") as source, temporary.open("xb") as file:
                shutil.copyfileobj(source, file, _COPY_BYTES)
                file.flush()
                os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


class MirroredRoot(BucketRoot):
    """A bucket whose parts are written, and kept, in this machine's mirror. Implements `Root`."""

    def __init__(self, bucket: Bucket, mirror: LocalMirror) -> None:
        super().__init__(bucket)
        self._mirror = mirror

    def __reduce__(self) -> Any:
        return MirroredRoot, (self._bucket, self._mirror)

    @property
    def bucket(self) -> Bucket:
        """The bucket: parts are uploaded to it; the mirror keeps those that it has room for."""
        return self._bucket

    def adopt(self, files: Mapping[str, Path]) -> None:
        """Upload finished files, in this order; keep them in the mirror if there is room."""
        for name, path in files.items():
            upload(self._bucket, name, path)
        self._mirror.adopt(files)
        for path in files.values():
            path.unlink()

    def with_room(self, dry_run: bool = False) -> AbstractContextManager[None]:
        """Remove the files of killed builds from the mirror; a bucket itself needs no room."""
        if not dry_run:
            self._mirror.sweep()
        return contextlib.nullcontext()

    def make_room(self, size_bytes: int) -> None:
        self._mirror.make_room(size_bytes)

    @contextlib.contextmanager
    def workplace(self, below: str) -> Iterator[Path]:
        with self._mirror.building(), scratch_folder(self._mirror.scratch()) as folder:
            yield folder

    @contextlib.contextmanager
    def local(self, name: str) -> Iterator[Path]:
        """Give the path of a new copy of an object from the bucket, even if the mirror has one."""
        with scratch_folder(self._mirror.scratch()) as folder:
            path = folder / "copy"
            with self._bucket.get(name) as body:
                if body is None:
                    raise CacheFormatError(f"{self.where(name)} is missing; build the dataset again")
                self.make_room(body.object.size_bytes)
                with translated(f"can't write {path}"), path.open("wb") as file:
                    file.writelines(body.chunks)
            yield path


def open_mirror(bucket: Bucket, mirror: Mirror) -> LocalMirror:
    """Return this machine's copies of a bucket, as a user wants them."""
    if mirror.path is None:
        return LocalMirror(bucket, keeps_files=False)
    return LocalMirror(bucket, None if mirror.path == "auto" else mirror.path, mirror.limit)
