"""Hold the files of one cache in a mirror: download them, also while the cache is read, and protect them."""

import contextlib
import hashlib
import itertools
import logging
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from yogadl._core.process import ProcessLock
from yogadl._core.progress import showing_bytes
from yogadl._format.layout import PartIndex
from yogadl._format.manifest import Manifest
from yogadl._format.table import PartTable
from yogadl.errors import CacheFormatError, StorageError
from yogadl.storage import _names
from yogadl.storage._catalogue.parts import read_dictionary, read_index, table_to_read
from yogadl.storage._files.folder import FULL, storage_error
from yogadl.storage._files.locks import open_lock, try_lock, wait_for_lock
from yogadl.storage._objects.bucket import Bucket
from yogadl.storage._remote.download import (
    Download,
    Received,
    Total,
    connection_count,
    fetch,
    fetch_one,
    in_parallel,
)
from yogadl.storage._remote.eviction import MirrorLocation, evict_for
from yogadl.storage._remote.held_ranges import BlockFiles
from yogadl.storage._remote.requests import DaemonThreads

_log = logging.getLogger("yogadl")

# Only eviction holds this lock exclusively, for a moment.
_LOCK_LIMIT_S: Final = 60.0
# For more indexes than this, sizes are listed instead of requested one by one.
_FEW_INDEXES: Final = 16
# To look for room, the mirror is listed, which takes a second for 100,000 parts. So the room that was found
# is used for several parts, but only this fraction of it, since other processes may use the rest.
_ROOM_SHARE: Final = 16
# The number of files compared at once, and the bytes of each read at a time.
_HASHED_AT_ONCE: Final = 4
_HASH_BYTES: Final = 2**20


# Returns the bucket and the name of each foreign file of a table.
Places = Callable[[PartTable], Sequence[tuple[Bucket, str] | None]]


def no_places(table: PartTable) -> Sequence[tuple[Bucket, str] | None]:
    """Return the places of a cache without foreign files."""
    return ()


class MirroredCache:
    """The files of one cache in a mirror, for a `Reader`; the files stay there as long as this object lives.

    Safe to use from threads and after a fork. The cache may be evicted once the last process that holds it
    has closed it or ended in any way. Not picklable.

    Args:
        bucket: The bucket of the cache.
        location: The mirror.
        manifest: The cache. Its part table is downloaded now, its parts by `complete`.
        places: Returns bucket and name of each of its foreign files, which are numbered after the parts.

    Attributes:
        mended: The names of the files that were damaged and downloaded again.
    """

    away = None  # a missing part is downloaded when its path is requested

    def __init__(
        self, bucket: Bucket, location: MirrorLocation, manifest: Manifest, places: "Places" = no_places
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
            self.sizes = self.table.file_bytes()
            self._places = places(self.table)
            for sha256 in self.table.dictionaries:  # with them, the parts that are here can be read offline
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

    def path(self, part: int) -> str:
        """Return the path of a part's file; a file that was removed is downloaded again."""
        if not self.is_here(part):
            with self._lock:
                self.close()
                self._release = self._register_reader()  # the lock's file may have been removed as well
                self._open_table()
                self.complete([part])
        return str(self.folder.path(self._name(part)))

    def dictionary(self, sha256: str) -> bytes:
        """Return a dictionary of the parts, downloaded again if it was removed or damaged.

        Raises:
            CacheFormatError: if it is missing in the bucket or altered.
        """
        dataset_id = self._manifest.key.id
        name = _names.dictionary(dataset_id, sha256)
        wanted = Download(name, sha256, None, self.folder.path(name), in_few=True)
        if self.folder.size(name) is None:
            fetch(self._bucket, [wanted])
        try:
            return read_dictionary(self.folder, dataset_id, sha256)
        except CacheFormatError:
            _warn_of_damage(wanted.path)
            self.folder.remove(name)
            fetch(self._bucket, [wanted])
            self.mended.append(name)
            return read_dictionary(self.folder, dataset_id, sha256)

    def index(self, number: int) -> PartIndex:
        """Return the index of a part, downloaded again if it was removed or damaged.

        Raises:
            CacheFormatError: if the index is missing in the bucket or altered.
        """
        self.path(number)
        try:
            return read_index(self.folder, self._manifest.key, self.table, number)
        except CacheFormatError:
            with self._lock:
                self._drop_if_damaged(number)
                self.complete_indexes([number])
            return read_index(self.folder, self._manifest.key, self.table, number)

    def complete(self, numbers: Sequence[int], progress: Received | None = None) -> None:
        """Download those of these parts that are missing, in this order."""
        with self._location.gate(exclusive=False):
            missing = self._missing(numbers)
        if not missing:
            return
        key = str(self._manifest.key)
        with self._reserved_room():
            with self._location.gate(exclusive=True):
                missing = self._missing(numbers)
                sizes = {download.name: download.size_bytes or 0 for download in missing}
                evict_for(self._location, sizes, self._location.limit_bytes(), key)
            _log.info("yogadl: downloading %d bytes of %s", sum(sizes.values()), key)
            with showing_bytes(progress, f"fetching {key}", sum(sizes.values())) as show:
                fetch(self._bucket, missing, show)

    def fill_in(self, number: int, ranges: Executor, total: Total, lock: int) -> bool:
        """Download a part while the cache is read; return whether the part is here.

        Args:
            number: The number of the part.
            ranges: Runs the requests.
            total: Stops the download early, once stopped.
            lock: The mirror's `fill_lock` of this cache, which the caller holds.

        Raises:
            CacheFormatError: if the part is missing in the bucket or altered.
            StorageError: if the network or the disk fails, or there is no room.
        """
        download = self._part(number)
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
        return self.is_here(number)

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
        """Return whether each part and foreign file exists here; opening it checks that it is whole."""
        dataset_id = self._manifest.key.id
        below, files = _names.parts(dataset_id), map(_names.part_file, self.table.sha256)
        copies = (_names.foreign("", file.sha256).rpartition("/")[2] for file in self.table.foreign)
        found = self.folder.exist(below, itertools.chain(files, copies))
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
        numbers = range(len(self.table))  # no checksum of a whole foreign file is known
        parts = {part: self.folder.size(part.name) for part in map(self._part, numbers)}
        held = {part: size_bytes for part, size_bytes in parts.items() if size_bytes is not None}
        self.mended += _repair(self._bucket, held, progress)
        indexes = [number for number in numbers if self._has_index(number)]
        damaged = [number for number in indexes if self._drop_if_damaged(number)]
        self.complete_indexes(damaged)
        self.mended += [self._index_names(number)[0] for number in damaged]
        others = 1 + len(self.table.dictionaries)  # and the table
        return len(held) + len({self._index_names(number) for number in indexes}) + others

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
        if self.folder.size(self._table_name) is None:
            fetch(self._bucket, [wanted])
        try:
            return table_to_read(self.folder, manifest)
        except CacheFormatError:
            # The mirror's copy is damaged; a new download is checked when it arrives.
            _warn_of_damage(path)
            self.folder.remove(self._table_name)
            fetch(self._bucket, [wanted])
            self.mended.append(self._table_name)
            return table_to_read(self.folder, manifest)

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

    def is_here(self, number: int) -> bool:
        """Return whether a part is here."""
        return self.folder.size(self._name(number)) == int(self.sizes[number])

    def _name(self, number: int) -> str:
        """Return the name of the file of a part, or of the copy of a foreign file."""
        own, dataset_id = len(self.table), self._manifest.key.id
        if number < own:
            return _names.part(dataset_id, self.table.sha256[number])
        return _names.foreign(dataset_id, self.table.foreign[number - own].sha256)

    def _missing(self, numbers: Sequence[int]) -> list[Download]:
        """Return the downloads of missing parts; equal parts have one file, so they get one download."""
        missing = {self._name(number): number for number in numbers if not self.is_here(number)}
        return [self._part(number) for number in missing.values()]

    def _part(self, number: int) -> Download:
        own, name = len(self.table), self._name(number)
        size_bytes, path = int(self.sizes[number]), self.folder.path(name)
        if number < own:
            return Download(name, self.table.sha256[number], size_bytes, path)
        foreign = self.table.foreign[number - own]
        place = self._places[number - own]
        return Download(name, foreign.sha256, size_bytes, path, foreign=foreign, place=place)

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


# Fill a mirror with a cache while the cache is read: part by part, by one process of the machine.

# The interval at which a process looks for parts that another process has downloaded, and tries to take over
# the filling; and the number of parts that it looks for at a time, each with a call to the file system.
_LOOK_INTERVAL_S: Final = 0.5
PARTS_AT_ONCE: Final = 256
# Filling begins once the first batches were read, since it delays them, and a program may want no others:
# with this many reads of each field, or with a read this long after the first, as few fields may be read.
_FIRST_READS: Final = 4
_FIRST_READS_S: Final = 5.0
_FIRST_READS_INTERVAL_S: Final = 0.05
# The pause in filling after a failure of the network.
_FAILURE_PAUSE_S: Final = 10.0
# With mirror_fill="auto", a mirror is filled if the processes of this machine read at least this share of a
# cache.
_LEAST_SHARE: Final = 0.5


@dataclass(frozen=True)
class FillPolicy:
    """Decide whether to fill a mirror.

    Args:
        fill: ``"auto"`` fills it if processes of this machine read enough of the cache, ``"always"`` always,
            ``"never"`` never.
        warn_full: Called if the mirror has no room for some parts, with a phrase about them and the error.
    """

    fill: Literal["auto", "always", "never"]
    warn_full: Callable[[str, StorageError], None] = lambda *_: None

    def fills(self, share: float) -> bool:
        """Return whether to fill the mirror for a process that reads this share of the records an epoch."""
        if self.fill == "auto":
            return share * _processes_here() >= _LEAST_SHARE
        return self.fill == "always"

    def reason(self, share: float) -> str:
        """Return a phrase with the values that `fills` depends on."""
        of = f", and this process reads {share:.0%} of it an epoch" if self.fill == "auto" else ""
        return f"mirror_fill={self.fill!r}{of}"


def _processes_here() -> int:
    """Return the number of processes of the job on this machine, as its launcher sets it; otherwise 1."""
    count = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(count) if count.isascii() and count.isdigit() else 1


class Filler:
    """Downloads the parts of a cache to this machine, in threads of one of the processes that read it.

    If that process ends, for whatever reason, another process continues.

    Args:
        cache: The mirror's files of the cache; downloads the parts.
        are_away: Whether each part is away; set to false as parts arrive.
        mark_damaged: Called with a part whose object has other bytes than its name says, and the error.
        warn_full: See `FillPolicy`.
    """

    def __init__(
        self,
        cache: MirroredCache,
        are_away: NDArray[np.bool_],
        mark_damaged: Callable[[int, CacheFormatError], None],
        warn_full: Callable[[str, StorageError], None],
    ) -> None:
        self._cache = cache
        self._are_away = are_away
        self._mark_damaged = mark_damaged
        self._warn_full = warn_full
        self._damaged_parts: set[int] = set()
        self._next_parts: NDArray[np.int64] = np.empty(0, np.int64)
        self._has_failed = False  # after a failure of the network
        self._last_look_s = time.monotonic()
        self._look_from = 0
        self._reads = 0  # since the start
        self._first_read_s = 0.0
        self._has_read_first = False
        self._starting = ProcessLock()
        self._pid = 0  # of the process that has the threads and the lock
        self._threads: DaemonThreads | None = None
        self._lock: int | None = None

    def look(self) -> None:
        """Update from time to time which parts are away, as this process or others download them."""
        now = time.monotonic()
        if now - self._last_look_s < _LOOK_INTERVAL_S:
            return
        self._last_look_s = now
        away = np.flatnonzero(self._are_away)
        for part in away[self._look_from : self._look_from + PARTS_AT_ONCE].tolist():
            self._are_away[part] = not self._cache.is_here(part)
        self._look_from = (
            0 if self._look_from + PARTS_AT_ONCE >= len(away) else self._look_from + PARTS_AT_ONCE
        )

    def note_next_parts(self, parts: NDArray[np.int64]) -> None:
        """Note the parts that are read next, which `step` downloads first."""
        self._next_parts = parts

    def note_read(self) -> None:
        """Note that a field of a batch was read; threads may miss one another's count."""
        now = time.monotonic()
        if not self._reads:
            self._first_read_s = now
        self._reads += 1
        is_enough = self._reads >= _FIRST_READS * len(self._cache.table.fields)
        if is_enough or now - self._first_read_s >= _FIRST_READS_S:
            self._has_read_first = True

    def start(self) -> None:
        """Begin to fill once the first batches were read, unless this process does already."""
        with self._starting:
            if self._pid == os.getpid() or not self._are_away.any():
                return
            if self._lock is not None:  # inherited through a fork: the parent keeps it
                os.close(self._lock)
                self._lock = None
            self._pid, self._reads, self._has_read_first = os.getpid(), 0, False
            self._threads = DaemonThreads(1 + connection_count(), "yogadl-fill")
            fill = partial(_fill, weakref.ref(self), self._threads.ended.wait)
            self._threads.put(fill, lambda: None)

    def step(self) -> float | None:
        """Download one part, if this process fills; return the pause until the next step, None for never."""
        assert self._threads is not None
        if self._lock is None:
            if not self._has_read_first:
                self.look()
                return _FIRST_READS_INTERVAL_S if self._are_away.any() else None
            self._lock = self._cache.try_to_fill()
            if self._lock is None:
                self.look()
                return _LOOK_INTERVAL_S if self._are_away.any() else None
            close = weakref.finalize(self, _close_if_own, self._lock, self._pid)
            close.atexit = False  # threads still write to it at exit; the end of the process closes it
        part = self._part_to_download()
        if part is None:
            return None
        try:
            total = Total(0, None, stopped=self._threads.ended)
            is_here = self._cache.fill_in(part, self._threads, total, self._lock)
            self._are_away[part] = not is_here
        except CancelledError:
            return None  # the process ends
        except CacheFormatError as error:
            _log.warning("yogadl: %s", error)
            self._damaged_parts.add(part)
            self._mark_damaged(part, error)
        except StorageError as error:
            if error.errno in FULL:
                away_count = int(self._are_away.sum())
                self._warn_full(f"{away_count} of {len(self._are_away)} parts are", error)
                return None
            if not self._has_failed:
                _log.info("yogadl: the mirror is filled later: %s", error)
            self._has_failed = True
            return _FAILURE_PAUSE_S
        self._has_failed = False
        return 0.0

    def _part_to_download(self) -> int | None:
        """Return the part to download next: one that is read next, or else the first that is away."""
        for parts in (self._next_parts, np.flatnonzero(self._are_away)):
            for part in map(int, parts):
                if self._are_away[part] and part not in self._damaged_parts:
                    return part
        return None


def _fill(filler: "weakref.ref[Filler]", wait: Callable[[float], bool]) -> None:
    while (living := filler()) is not None:
        try:
            pause_s = living.step()
        except OSError as error:  # for example a file in place of a folder
            _log.warning("yogadl: the mirror is filled no further: %s", error)
            return
        del living  # while this thread waits, the filler may be deleted
        if pause_s is None or wait(pause_s):
            return


def _close_if_own(descriptor: int, pid: int) -> None:
    if os.getpid() == pid:
        os.close(descriptor)
