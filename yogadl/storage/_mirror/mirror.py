"""Keep copies of a bucket's caches on this machine, for all its processes: each is brought once, and checked.

A mirror lies in a folder of its own, outlives the processes that use it, and needs no server. Whatever is in
it is also in a bucket: a part is named by the sha256 of its bytes, and comes in by a download or once it has
been uploaded. So anything that nobody reads may go.
"""

import contextlib
import logging
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from yogadl._format.manifest import Manifest
from yogadl._key import DatasetKey
from yogadl._lock import ProcessLock
from yogadl._size import bytes_of
from yogadl.errors import StorageError
from yogadl.storage._buckets.bucket import Bucket
from yogadl.storage._cached import Published
from yogadl.storage._folder import Folder, storage_error
from yogadl.storage._mirror import manifests
from yogadl.storage._mirror.eviction import evict_for
from yogadl.storage._mirror.location import MirrorLocation, chosen_location, default_location
from yogadl.storage._mirror.mirrored_cache import MirroredCache
from yogadl.storage._mirror.transfer import Progress
from yogadl.storage._scratch import sweep

_log = logging.getLogger("yogadl")

_COPY_BYTES: Final = 2**24


class Mirror:
    """Copies of a bucket's caches in a folder of this machine, shared by all processes that name it.

    Opens and makes nothing before it is used. Picklable; safe to use from threads and after a fork.

    Args:
        bucket: Where the caches are.
        folder: Where the copies are to be; ``None`` for this machine's temporary storage.
        limit: How much it may hold, in bytes or as ``"200GB"``; it is kept in the folder, where the last one
            to give it decides. ``None`` leaves it as it is: what the disk holds, if nobody ever gave one.

    Raises:
        ConfigurationError: if `limit` is no size.
    """

    def __init__(
        self, bucket: Bucket, folder: str | os.PathLike[str] | None = None, limit: int | str | None = None
    ) -> None:
        self._bucket = bucket
        self._chosen = None if folder is None else Path(folder).expanduser().absolute()
        self._limit_bytes = None if limit is None else bytes_of(limit)
        self._lock = ProcessLock()
        self._found: MirrorLocation | None = None

    def __reduce__(self) -> Any:
        return Mirror, (self._bucket, self._chosen, self._limit_bytes)

    def __repr__(self) -> str:
        return f"Mirror({self._bucket!r}, {str(self._chosen) if self._chosen else None!r})"

    @property
    def location(self) -> MirrorLocation:
        """Where it lies, made if missing.

        Raises:
            ConfigurationError: if the folder chosen holds other files.
            StorageError: if there is no place for it.
        """
        if self._found is None:
            with self._lock:
                return self._prepared()
        return self._found

    def _prepared(self) -> MirrorLocation:
        if self._found is not None:
            return self._found  # by another thread
        location = default_location() if self._chosen is None else chosen_location(self._chosen)
        location.prepare()
        if self._limit_bytes is not None:
            location.set_limit(self._limit_bytes)
        self._found = location
        return location

    def location_if_made(self) -> MirrorLocation | None:
        """Return where it lies, or ``None`` if it is not there yet: nothing is made.

        Raises:
            StorageError: if there is no place for it.
        """
        location = default_location(makes=False) if self._chosen is None else chosen_location(self._chosen)
        return location if location.is_made() else None

    @property
    def folder(self) -> Folder:
        """Where the copies lie, laid out as in a local storage, but for manifests."""
        return self.location.caches

    def scratch(self) -> Path:
        """Return a folder on the mirror's disk, made if missing, where caches may be built."""
        return _made(self.location.builds)

    def sweep(self) -> None:
        """Remove what killed builds have left on this machine, if there is a mirror."""
        location = self.location_if_made()
        if location is not None:
            sweep(location.builds)

    def bring(
        self,
        manifest: Manifest,
        *,
        first: Sequence[int] = (),
        indexes: bool = False,
        progress: Progress | None = None,
    ) -> MirroredCache:
        """Make a cache local: what is missing is downloaded once a machine, and checked as it comes in.

        Args:
            manifest: The cache.
            first: Numbers of the parts that are wanted before all others, in this order.
            indexes: Whether the parts' indexes are wanted, too.
            progress: Called with bytes brought and bytes to bring; a bar on a terminal if not given.

        Returns:
            What a reader reads. As long as it lives, nothing of it is evicted.

        Raises:
            CacheFormatError: if the bucket has not what the manifest names; says which part.
            StorageError: if the network or the disk fails, or there is no room.
        """
        cache = MirroredCache(self._bucket, self.location, manifest)
        try:
            order = dict.fromkeys([*first, *range(len(cache.table))])
            cache.complete(list(order), progress)
            if indexes:
                cache.complete_indexes(range(len(cache.table)))
        except BaseException:
            cache.close()
            raise
        return cache

    def fill(self, manifest: Manifest, *, progress: Progress | None = None) -> list[str]:
        """Make a cache local, indexes and all, and compare what was here before with its checksums.

        Args:
            manifest: The cache.
            progress: Called with bytes that are here and checked, and bytes of the whole cache.

        Returns:
            The names of the files that were damaged here, and were brought anew.

        Raises:
            CacheFormatError: if the bucket has not what the manifest names; says which part.
            StorageError: if the network or the disk fails, or there is no room.
        """
        whole = manifest.size_bytes

        def compared(done: int, _: int) -> None:
            if progress is not None:
                progress(min(done, whole), whole)

        def brought_more(done: int, missing: int) -> None:
            if progress is not None:
                progress(whole - missing + done, whole)

        with contextlib.closing(MirroredCache(self._bucket, self.location, manifest)) as cache:
            cache.mend(compared)
            cache.complete(range(len(cache.table)), brought_more)
            cache.complete_indexes(range(len(cache.table)))
            return cache.mended

    def mend(self, manifest: Manifest) -> tuple[int, list[str]]:
        """Compare what is here of a cache with its checksums, and bring anew what is damaged.

        Returns:
            How many files are here, and the names of those that were damaged.

        Raises:
            CacheFormatError: if the bucket has not what the manifest names; says which part.
            StorageError: if the network or the disk fails, or there is no room.
        """
        location = self.location_if_made()
        if location is None or not location.caches.names(manifest.key.id):
            return 0, []  # and nothing is made or brought
        with contextlib.closing(MirroredCache(self._bucket, self.location, manifest)) as cache:
            return cache.mend(), cache.mended

    def kept(self, key: DatasetKey, digest: str | None = None) -> Published | None:
        """Return the manifest of a version, the newest known here if none is named, if it is here whole.

        Nothing is asked of the bucket.
        """
        location = self._location_if_any()
        if location is not None and digest is None:
            digest = manifests.newest(location.caches, self._bucket.origin, key)
        return None if location is None or digest is None else manifests.load(location.caches, key, digest)

    def keep(self, published: Published) -> None:
        """Keep the manifest of a version that was brought, if there is room."""
        with _unless_it_fails(published.manifest.key):
            manifests.save(self.location.caches, published)

    def keep_newest(self, published: Published) -> None:
        """Note that this was the newest of its version, unless one is noted."""
        key = published.manifest.key
        with _unless_it_fails(key):
            if manifests.newest(self.location.caches, self._bucket.origin, key) is None:
                manifests.note_newest(self.location.caches, self._bucket.origin, key, published.digest)

    def renew(self, key: DatasetKey, digest: str | None) -> None:
        """Note which manifest is a version's newest in place of the one noted; ``None`` if nobody knows."""
        location = self._location_if_any()
        if location is None:
            return
        with _unless_it_fails(key):
            if manifests.newest(location.caches, self._bucket.origin, key) not in (None, digest):
                manifests.note_newest(location.caches, self._bucket.origin, key, digest)

    def _location_if_any(self) -> MirrorLocation | None:
        try:
            return self._found or self.location_if_made()
        except StorageError:
            return None

    def adopt(self, files: Mapping[str, Path]) -> bool:
        """Take files that were built here, by hard link or as copies, so that they need not be downloaded.

        The bucket must have them already.

        Args:
            files: By name in the bucket; they stay where they are.

        Returns:
            Whether the mirror has all of them now; it has none if there is no room.
        """
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


@contextlib.contextmanager
def _unless_it_fails(key: DatasetKey) -> Iterator[None]:
    """Do without: the bucket will be asked."""
    try:
        yield
    except StorageError as error:
        _log.info("yogadl: the manifest of %s is not kept in the mirror: %s", key, error)


@contextlib.contextmanager
def _copy(path: Path, target: Path) -> Iterator[Path]:
    """Give another name of a file, or a copy of it, beside `target`; it is gone afterwards unless renamed."""
    _made(target.parent)
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


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error(error, f"can't make the folder {folder}") from error
    return folder
