"""Hold the files of one cache in a mirror: download them, also while the cache is read, and protect them."""

import contextlib
import hashlib
import itertools
import logging
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from yogadl._core.process import ProcessLock
from yogadl._core.progress import showing_bytes
from yogadl._format.files import File, FileId, Files, read_at
from yogadl._format.layout import PartIndex
from yogadl._format.manifest import Manifest
from yogadl._format.table import PartTable
from yogadl.errors import CacheFormatError
from yogadl.storage import _names
from yogadl.storage._catalogue.cached import read_dictionary, read_index, table_to_read
from yogadl.storage._files.bucket_root import BucketRoot
from yogadl.storage._files.folder import storage_error
from yogadl.storage._files.locks import open_lock, try_lock, wait_for_lock
from yogadl.storage._objects.bucket import Bucket
from yogadl.storage._remote.download import (
    Download,
    Received,
    Total,
    fetch,
    fetch_one,
    in_parallel,
)
from yogadl.storage._remote.eviction import MirrorLocation, evict_for
from yogadl.storage._remote.held_ranges import BlockFiles

if TYPE_CHECKING:
    from yogadl._format.checks import AddressedBlock
    from yogadl.storage._files.permitted import Places

_log = logging.getLogger("yogadl")

# Only eviction holds this lock exclusively, for a moment.
_LOCK_LIMIT_S: Final = 60.0
# For more indexes than this, sizes are listed instead of requested one by one.
_FEW_INDEXES: Final = 16
# To look for room, the mirror is listed, which takes a second for 100,000 parts. The room that was found
# is used for several parts, but only this fraction of it, since other processes may use the rest.
_ROOM_SHARE: Final = 16
# The number of files compared at once, and the bytes of each read at a time.
_HASHED_AT_ONCE: Final = 4
_HASH_BYTES: Final = 2**20


PlacesOf = Callable[[Files], "Places"]
T = TypeVar("T")


def no_places(files: Files) -> "Places":
    """Return the places of files that are all the cache's own."""
    return {}


class MirroredCache:
    """The files of one cache in a mirror, for a `Reader`; the files stay there as long as this object lives.

    Safe to use from threads and after a fork. The cache may be evicted once the last process that holds it
    has closed it or ended in any way. Not picklable.

    Args:
        bucket: The bucket of the cache.
        location: The mirror.
        manifest: The cache. Its part table is downloaded now, its parts by `complete`.
        places: Returns where its files lie that are not its own.
        with_dictionaries: Whether its dictionaries are downloaded now, too.

    Attributes:
        mended: The names of the files that were damaged and downloaded again.
    """

    away = None  # a missing part is downloaded when its path is requested

    def __init__(
        self,
        bucket: Bucket,
        location: MirrorLocation,
        manifest: Manifest,
        places: PlacesOf = no_places,
        *,
        with_dictionaries: bool = True,
    ) -> None:
        self.folder = location.caches
        self.mended: list[str] = []
        self._bucket = bucket
        self._location = location
        self._manifest = manifest
        self._table_name = _names.table(manifest.key.id, manifest.table_sha256)
        self._lock_path = location.reader_lock(self._table_name)
        self._lock = ProcessLock()
        self._room_bytes = 0  # the room that may be filled before the mirror is listed again
        self._room_limit_bytes: int | None = None  # the mirror's limit when that room was found
        self._release = self._register_reader()
        try:
            self.table = self._open_table()
            self.sizes = self.table.files.sizes
            self._places = places(self.table.files)
            for sha256 in (
                self.table.dictionaries if with_dictionaries else ()
            ):  # with them, the parts that are here can be read offline
                self.dictionary(sha256)
        except BaseException:
            self.close()
            raise

    def __reduce__(self) -> Any:
        raise TypeError(
            "an open cache of a mirror can't be pickled; fetch the dataset again in the other process"
        )

    def close(self) -> None:
        """Release this process's hold, so that the cache can be evicted."""
        self._release()

    def path(self, file: FileId) -> str:
        """Return the path of a file; one that was removed is downloaded again."""
        if not self.is_here(file):
            with self._lock:
                self.close()
                self._release = self._register_reader()  # the lock's file may have been removed as well
                self._open_table()
                self.complete([file])
        return str(self.folder.path(self._name(file)))

    def dictionary(self, sha256: str) -> bytes:
        """Return a dictionary of the parts, downloaded again if it was removed or damaged.

        Raises:
            CacheFormatError: if it is missing in the bucket or altered.
        """
        dataset_id = self._manifest.key.id
        name = _names.dictionary(dataset_id, sha256)
        wanted = Download(name, sha256, None, self.folder.path(name), in_few=True)
        return self._read(wanted, lambda: read_dictionary(self.folder, dataset_id, sha256))

    def index(self, number: int) -> PartIndex:
        """Return the index of a part, downloaded again if it was removed or damaged.

        Raises:
            CacheFormatError: if the index is missing in the bucket or altered.
        """
        self.path(FileId(number))
        try:
            return read_index(self.folder, self._manifest.key, self.table, number)
        except CacheFormatError:
            with self._lock:
                self._drop_if_damaged(number)
                self.complete_indexes([number])
            return read_index(self.folder, self._manifest.key, self.table, number)

    def complete(self, files: Sequence[FileId], progress: Received | None = None) -> None:
        """Download those of these files that are missing, in this order."""
        with self._location.gate(exclusive=False):
            missing = self._missing(files)
        if not missing:
            return
        key = str(self._manifest.key)
        with self._reserved_room():
            with self._location.gate(exclusive=True):
                missing = self._missing(files)
                sizes = {download.name: download.size_bytes or 0 for download in missing}
                evict_for(self._location, sizes, self._location.limit_bytes(), key)
            _log.info("yogadl: downloading %d bytes of %s", sum(sizes.values()), key)
            with showing_bytes(progress, f"fetching {key}", sum(sizes.values())) as show:
                fetch(self._bucket, missing, show)

    def fill_in(self, file: FileId, ranges: Executor, total: Total, lock: int) -> bool:
        """Download a file while the cache is read; return whether the file is here.

        Args:
            file: The number of the file.
            ranges: Runs the requests.
            total: Stops the download early, once stopped.
            lock: The mirror's `fill_lock` of this cache, which the caller holds.

        Raises:
            CacheFormatError: if the file is missing in its bucket or altered.
            StorageError: if the network or the disk fails, or there is no room.
        """
        download = self._download(file)
        size_bytes = download.size_bytes or 0
        limit_bytes = self._location.limit_bytes()  # it may have been lowered
        is_room_known = size_bytes <= self._room_bytes and limit_bytes == self._room_limit_bytes
        with self._location.gate(exclusive=not is_room_known):
            if is_room_known:
                self._room_bytes -= size_bytes
            else:
                what = str(self._manifest.key)
                room_bytes = evict_for(self._location, {download.name: size_bytes}, limit_bytes, what)
                self._room_bytes, self._room_limit_bytes = room_bytes // _ROOM_SHARE, limit_bytes
            os.ftruncate(lock, 0)
            os.pwrite(lock, download.name.encode(), 0)
        fetch_one(self._bucket, download, ranges, total)
        return self.is_here(file)

    def try_to_fill(self) -> int | None:
        """Take the lock on filling, which the caller must close; return None if another process has it."""
        path = self._location.fill_lock(self._table_name)
        descriptor = open_lock(path)
        if try_lock(descriptor, path, exclusive=True):
            return descriptor
        os.close(descriptor)
        return None

    def block_files(self, key: str, size_bytes: int) -> BlockFiles:
        """Return a folder for this many bytes of a stream's blocks.

        Raises:
            StorageError: if there is no room, or the disk fails.
        """
        return BlockFiles(self._location, self._table_name, key, size_bytes)

    @property
    def limit_bytes(self) -> int | None:
        """The largest size of the mirror in bytes, or ``None`` if only the disk limits it."""
        return self._location.limit_bytes()

    def are_here(self) -> NDArray[np.bool_]:
        """Return whether each file exists here; opening it checks that it is whole."""
        found = self.folder.exist(_names.parts(self._manifest.key.id), self.table.files.names)
        return np.fromiter(found, bool, len(self.sizes))

    def complete_indexes(self, numbers: Sequence[int]) -> None:
        """Download those of these parts' indexes that are missing; checked reads need them."""
        key = self._manifest.key
        missing = [number for number in numbers if not self._has_index(number)]
        if not missing:
            return
        sizes: dict[str, int] | None = None
        if len(missing) > _FEW_INDEXES:  # a list has the sizes of a thousand files in one request
            sizes = {found.name: found.size_bytes for found in self._bucket.list(f"{key.id}/parts/")}
        wanted = {self._index_names(number)[0]: self._index(number, sizes) for number in missing}
        with self._location.gate(exclusive=True):
            room = {name: download.size_bytes or 0 for name, download in wanted.items()}
            evict_for(self._location, room, self._location.limit_bytes(), str(key))
        fetch(self._bucket, list(wanted.values()))

    def mend(self, progress: Received | None = None) -> int:
        """Compare every file that is here with its checksum, and download damaged ones again.

        Args:
            progress: Called with bytes compared and bytes to compare.

        Returns:
            The number of files that were here. `mended` has the names of the damaged ones.
        """
        numbers = range(len(self.table))
        parts = {part: self.folder.size(part.name) for part in map(self._download, self.table.files.own.ids)}
        held = {part: size_bytes for part, size_bytes in parts.items() if size_bytes is not None}
        self.mended += _repair(self._bucket, held, progress)
        indexes = [number for number in numbers if self._has_index(number)]
        damaged = [number for number in indexes if self._drop_if_damaged(number)]
        self.complete_indexes(damaged)
        self.mended += [self._index_names(number)[0] for number in damaged]
        others = 1 + len(self.table.dictionaries) + self._mend_addressed()  # and the table
        return len(held) + len({self._index_names(number) for number in indexes}) + others

    def _mend_addressed(self) -> int:
        """Compare copies of files with an address by their blocks that were read; return how many.

        No checksum of a whole file is known.
        """
        from yogadl._format.checks import addressed_blocks  # reading does not need it

        files = self.table.files
        here = {files[file]: self._download(file) for file in files.addressed if self.is_here(file)}
        compared: set[File] = set()
        damaged: dict[File, Download] = {}
        root = BucketRoot(self._bucket)
        for part in range(len(self.table)) if here else ():
            blocks = addressed_blocks(read_index(root, self._manifest.key, self.table, part))
            for file, own in itertools.groupby(blocks, lambda block: block.file):
                if file in here and file not in damaged:
                    compared.add(file)
                    if not _are_sound(here[file].path, own):
                        damaged[file] = here[file]
        self._download_again(list(damaged.values()))
        return len(compared)

    def _register_reader(self) -> Callable[[], object]:
        """Register as a reader; return the function that ends the registration."""
        with self._location.gate(exclusive=False):
            descriptor = open_lock(self._lock_path, reads=True)
            release = weakref.finalize(self, os.close, descriptor)
            release.atexit = False  # the end of the process closes it
            wait_for_lock(descriptor, self._lock_path, exclusive=False, limit_s=_LOCK_LIMIT_S)
            with contextlib.suppress(OSError):  # a read-only mirror has no evictions
                os.utime(descriptor)  # the time of the last use
        return release

    def _open_table(self) -> PartTable:
        manifest, path = self._manifest, self.folder.path(self._table_name)
        wanted = Download(self._table_name, manifest.table_sha256, manifest.table_bytes, path, in_few=True)
        return self._read(wanted, lambda: table_to_read(self.folder, manifest))

    def _read(self, wanted: Download, read: Callable[[], T]) -> T:
        """Return what a file has, downloaded if it is missing, and again if this machine's is damaged."""
        if self.folder.size(wanted.name) is None:
            fetch(self._bucket, [wanted])
        try:
            return read()
        except CacheFormatError:
            self._download_again([wanted])  # it compares the bytes that arrive
            return read()

    def _download_again(self, damaged: Sequence[Download]) -> None:
        """Replace damaged files of the mirror, and note their names."""
        for wanted in damaged:
            _warn_of_damage(wanted.path)
            self.folder.remove(wanted.name)
        fetch(self._bucket, damaged)
        self.mended += [wanted.name for wanted in damaged]

    @contextlib.contextmanager
    def _reserved_room(self) -> Iterator[None]:
        """Reserve room for all missing parts, so that other processes do not use it."""
        path = self._location.download_lock(self._table_name)
        descriptor = open_lock(path)
        try:
            wait_for_lock(descriptor, path, exclusive=False, limit_s=_LOCK_LIMIT_S)
            yield
        finally:
            os.close(descriptor)

    def is_here(self, file: FileId) -> bool:
        """Return whether a file is here."""
        return self.folder.size(self._name(file)) == int(self.sizes[file])

    def _name(self, file: FileId) -> str:
        return _names.file_of(self._manifest.key.id, self.table.files[file])

    def _missing(self, files: Sequence[FileId]) -> list[Download]:
        """Return the downloads of missing files; equal parts have one file, so they get one download."""
        missing = {self._name(file): file for file in files if not self.is_here(file)}
        return [self._download(file) for file in missing.values()]

    def _download(self, file: FileId) -> Download:
        name, found = self._name(file), self.table.files[file]
        where = name, found.sha256, found.size_bytes, self.folder.path(name)
        return Download(*where, place=self._places.get(file))

    def _index_names(self, number: int) -> tuple[str, ...]:
        """Return the names that a part's index may have in the bucket; here it has the first."""
        dataset_id, table = self._manifest.key.id, self.table
        return _names.indexes(dataset_id, table.sha256[number], table.index_sha256[number])

    def _has_index(self, number: int) -> bool:
        return self.folder.size(self._index_names(number)[0]) is not None

    def _index(self, number: int, sizes: dict[str, int] | None) -> Download:
        """Return the download of a part's index, given the sizes of the bucket's files, if known."""
        names = self._index_names(number)
        if sizes is None:
            sizes = {name: found.size_bytes for name in names if (found := self._bucket.head(name))}
        name = next((name for name in names if name in sizes), names[0])
        index_sha256, path = self.table.index_sha256[number], self.folder.path(names[0])
        return Download(name, index_sha256, sizes.get(name), path)

    def _drop_if_damaged(self, number: int) -> bool:
        """Remove a part's index if it is damaged; return whether it was. No reader keeps indexes open."""
        name = self._index_names(number)[0]
        content = self.folder.read(name)
        if content is None or hashlib.sha256(content).hexdigest() == self.table.index_sha256[number]:
            return False
        _warn_of_damage(self.folder.path(name))
        self.folder.remove(name)
        return True


def _repair(bucket: Bucket, files: Mapping[Download, int], progress: Received | None = None) -> list[str]:
    """Compare files with their sha256, and download damaged ones again.

    A process that has a damaged file open or mapped keeps it: the new file only takes its name. A damaged
    file that can't be downloaded again is removed, so that no process reads it.

    Args:
        bucket: The bucket to download from.
        files: The files, each with its size.
        progress: Called with bytes compared and bytes to compare.

    Returns:
        The names of the damaged files.

    Raises:
        CacheFormatError: if the bucket's object is missing or damaged, too.
        StorageError: if the network or the disk fails, or the disk is full.
    """
    total = Total(sum(files.values()), progress)
    damaged: dict[Download, os.stat_result] = {}

    def compare(wanted: Download) -> None:
        status = _status_if_damaged(wanted, total)
        if status is not None:
            damaged[wanted] = status

    in_parallel(compare, list(files), _HASHED_AT_ONCE, total)
    for wanted in damaged:
        _warn_of_damage(wanted.path)
    try:
        fetch(bucket, list(damaged), is_made=lambda wanted: not _is_unchanged(damaged[wanted], wanted.path))
    except BaseException:
        for wanted, status in damaged.items():
            if _is_unchanged(status, wanted.path):
                wanted.path.unlink(missing_ok=True)
        raise
    return [wanted.name for wanted in damaged]


def _are_sound(path: Path, blocks: "Iterable[AddressedBlock]") -> bool:
    """Return whether these blocks of a copy of a file have their checksums."""
    try:
        with path.open("rb") as file:
            return all(block.has(read_at(file.fileno(), block.position, block.length)) for block in blocks)
    except FileNotFoundError:
        return True  # it is downloaded when it is needed
    except OSError as error:
        raise storage_error(error, f"can't read {path}") from error


def _warn_of_damage(path: Path) -> None:
    """Log that a file of a mirror is damaged, and will be downloaded again."""
    _log.warning(
        "yogadl: %s has other bytes than it had when it was downloaded: it is downloaded again. Such damage "
        "comes from a failing disk or memory, or another program has written to the file",
        path,
    )


def _status_if_damaged(wanted: Download, total: Total) -> os.stat_result | None:
    """Return the status of a file if its bytes do not have its sha256, or ``None`` if they do."""
    sha256, buffer = hashlib.sha256(), bytearray(_HASH_BYTES)
    try:
        with wanted.path.open("rb", buffering=0) as file:
            while not total.stopped.is_set() and (count := file.readinto(buffer)):
                sha256.update(memoryview(buffer)[:count])
                total.add(count)
            is_sound = total.stopped.is_set() or sha256.hexdigest() == wanted.sha256
            return None if is_sound else os.fstat(file.fileno())
    except FileNotFoundError:
        return None  # it is downloaded when it is needed
    except OSError as error:
        raise storage_error(error, f"can't read {wanted.path}") from error


def _is_unchanged(status: os.stat_result, path: Path) -> bool:
    """Return whether a path still names the same file."""
    try:
        now = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(now, status) and now.st_mtime_ns == status.st_mtime_ns
