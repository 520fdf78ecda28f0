"""Read a bucket's cache that this machine has only partly: mapped parts, and the rest by range.

Meanwhile a mirror may be filled with the cache: part by part, by one process of the machine.
"""

import logging
import os
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from yogadl._core.arguments import in_words
from yogadl._core.process import PerProcess, ProcessLock
from yogadl._core.protocols import Int64s
from yogadl._format.files import FileId, HeldRows, PartFiles, PartRemovedError
from yogadl._format.manifest import Manifest
from yogadl._format.table import PartTable
from yogadl.errors import CacheFormatError, StorageError
from yogadl.storage._catalogue.cached import read_dictionary
from yogadl.storage._files.bucket_root import BucketRoot
from yogadl.storage._files.folder import FULL
from yogadl.storage._files.local_bucket import LocalBucket
from yogadl.storage._objects.bucket import Bucket
from yogadl.storage._remote.download import Total, connection_count
from yogadl.storage._remote.held_ranges import MOST_IN_MEMORY_BYTES, BlockFiles, BlockStore
from yogadl.storage._remote.mirrored_cache import MirroredCache
from yogadl.storage._remote.ranges import Ranges, gap_of
from yogadl.storage._remote.requests import DaemonThreads, PartObjects, Pins, RequestCount, Spending

if TYPE_CHECKING:
    from yogadl._format.checks import Checksums
    from yogadl.storage._files.permitted import Places

_log = logging.getLogger("yogadl")

_said_to_be_scattered: Final[set[str]] = set()  # versions; said once in a process

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
# With Mirror(fill="auto"), a mirror is filled if the processes of this machine read at least this share of a
# cache.
_LEAST_SHARE: Final = 0.5


@dataclass(frozen=True)
class FillPolicy:
    """Decide whether to fill a mirror.

    Args:
        fill: ``"auto"`` fills it if processes of this machine read enough of the cache, ``"always"`` always,
            ``"never"`` never.
        warn_full: Called if the mirror has no room for some parts, with a phrase about them and the error.
        at_once: Whether `fetch` downloads all that is missing, as it is little.
    """

    fill: Literal["auto", "always", "never"]
    warn_full: Callable[[str, StorageError], None] = lambda *_: None
    at_once: bool = False

    def fills(self, share: float) -> bool:
        """Return whether to fill the mirror for a process that reads this share of the records an epoch."""
        if self.at_once:
            return True
        if self.fill == "auto":
            return share * _processes_here() >= _LEAST_SHARE
        return self.fill == "always"

    def reason(self, share: float) -> str:
        """Return a phrase with the values that `fills` depends on."""
        if self.at_once:
            return "fetch downloads all that is missing at once, as it is little"
        of = f", and this process reads {share:.0%} of it an epoch" if self.fill == "auto" else ""
        return f"Mirror(fill={self.fill!r}){of}"


def _processes_here() -> int:
    """Return the number of processes of the job on this machine, as its launcher sets it; otherwise 1."""
    count = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(count) if count.isascii() and count.isdigit() else 1


def _fetch(
    objects: PartObjects, places: "Places", file: FileId, position: int, length: int
) -> bytes | memoryview:
    """Return bytes of a file, from where it lies."""
    place = places.get(file)
    return objects.fetch(file, position, length) if place is None else place.fetch(position, length)


class RangedCache:
    """The files of one cache, in a mirror or read by range, for a `Reader`.

    Safe to use from threads and after a fork; not picklable.

    Args:
        bucket: The bucket of the cache.
        manifest: The cache.
        table: Its part table.
        spending: Counts requests for ranges.
        sums: The checksums of the blocks, or ``None`` if ranges are not compared.
        here: The files of the cache on this machine, in a mirror or in a folder, and whether each is there;
            ``None``: there are none.
        policy: Whether to fill the mirror while a stream reads.
        places: See `Places`.

    Attributes:
        are_away: Whether each file is away, not on this machine. Files may arrive at any time.
        sums: The checksums of the blocks, or ``None`` if ranges are not compared.
    """

    def __init__(
        self,
        bucket: Bucket,
        manifest: Manifest,
        table: PartTable,
        spending: Spending,
        sums: "Checksums | None" = None,
        here: tuple[PartFiles, NDArray[np.bool_]] | None = None,
        policy: FillPolicy | None = None,
        places: "Places" = MappingProxyType({}),
    ) -> None:
        self.table = table
        self.sums = sums
        self._files = None if here is None else here[0]
        self._mirrored = self._files if isinstance(self._files, MirroredCache) else None
        self._policy = policy or FillPolicy("never")
        dataset_id = manifest.key.id
        self._bucket, self._id = bucket, dataset_id
        self._key, self._table_sha256 = manifest.key, manifest.table_sha256
        count = len(table.files)
        self.are_away: NDArray[np.bool_] = np.ones(count, bool) if here is None else ~here[1]
        # If blocks are compared with their checksums, objects need no check of their pins.
        needs_pins = sums is None and (here is None or self._mirrored is not None)
        pins = Pins(bucket, dataset_id, table, manifest.table_sha256) if needs_pins else None
        request_count = RequestCount(spending)
        objects = PartObjects(bucket, dataset_id, table.files, request_count, pins)
        fetch, gap_bytes = partial(_fetch, objects, places), gap_of(table, is_compared=sums is not None)
        self._ranges = Ranges(fetch, table.files.sizes, request_count, gap_bytes, sums)
        self._stores = PerProcess(weakref.WeakValueDictionary[str, BlockStore])
        self._filler = (
            None
            if self._mirrored is None
            else Filler(self._mirrored, self.are_away, self._ranges.mark_damaged, self._policy.warn_full)
        )

    def __reduce__(self) -> Any:
        raise TypeError(
            "a cache that is read by range can't be pickled; fetch the dataset again in the other process"
        )

    @property
    def away(self) -> "RangedCache":
        """The reader of the files that are not here."""
        return self

    @property
    def are_here(self) -> NDArray[np.bool_]:
        """Whether each file is on this machine by now, whichever process has downloaded it."""
        return ~self.are_away if self._mirrored is None else ~self.are_away | self._mirrored.are_here()

    def path(self, file: FileId) -> str:
        """Return the path of a file that is here; one that was removed is downloaded again.

        Raises:
            PartRemovedError: if the mirror has no room for it now; it is then read by range.
        """
        assert self._files is not None
        try:
            return self._files.path(file)
        except StorageError as error:
            if error.errno not in FULL:
                raise
            self.are_away[file] = True
            raise PartRemovedError(*error.args) from error

    def dictionary(self, sha256: str) -> bytes:
        """Return a dictionary of the parts.

        Raises:
            CacheFormatError: if it is missing or altered.
        """
        if self._files is not None:
            return self._files.dictionary(sha256)
        return read_dictionary(BucketRoot(self._bucket), self._id, sha256)

    def will_read(self, records: int, *, held_bytes: int | None, is_scattered: bool) -> None:
        """Announce that a stream of this process will read this many records an epoch; see `AwayParts`."""
        share = records / max(1, self.table.records)
        way, why = self.choice(share, held_bytes=held_bytes)
        is_filled = self._policy.fills(share) and way != "blocks"
        if way == "ranges" and is_scattered and self.are_away[self.table.files.are_addressed].any():
            self._warn_of_scattered_ranges(why)
        if self._filler is not None and is_filled:
            self._filler.start()

    def _warn_of_scattered_ranges(self, why: str) -> None:
        """Log how a shuffled stream of adopted files reads faster: once in this process for each version."""
        version = f"{self._bucket.url} {self._key} {self._table_sha256}"
        if version in _said_to_be_scattered:
            return
        _said_to_be_scattered.add(version)
        ways = [] if self.sums is not None else ["an order of blocks, shuffle=yogadl.Blocks(...)"]
        if self._mirrored is not None:
            ways.append('a mirror that is filled: yogadl.Mirror(fill="always"), and room for all files')
        elif self._files is not None:  # of a version in a folder
            ways.append("a mirror, if the version lies in a bucket, too (yogadl push)")
        else:
            ways.append('a mirror, yogadl.open_storage(..., mirror="/a/folder")')
        _log.warning(
            "yogadl: %s: this stream shuffles the records of adopted files, and reads each of a bucket by "
            "requests of its own (%s), which may be 6 to 15 times slower than in order. Faster is %s. "
            "stream.plan() shows what each costs", self._key, why, ", or ".join(ways),
        )  # fmt: skip

    def choice(self, share: float, *, held_bytes: int | None) -> tuple[str, str]:
        """Return the way in which a stream reads this share of the records an epoch, and the reason."""
        limit_bytes = None if self._mirrored is None else self._mirrored.limit_bytes
        has_disk = self._mirrored is not None and self._policy.fill != "never"
        otherwise = "ranges"
        # Ranges that are compared are read as whole blocks already, so no window of blocks is needed.
        if held_bytes is not None and self.sums is None:
            has_room = has_disk and (limit_bytes is None or held_bytes <= limit_bytes)
            if not has_room and held_bytes > MOST_IN_MEMORY_BYTES:
                return "ranges", f"there is no room for two windows of blocks, {in_words(held_bytes)}"
            otherwise = "blocks"
        if self._mirrored is None:
            return otherwise, "mirror=None"
        is_filled = self._policy.fills(share)
        if is_filled and limit_bytes is not None and limit_bytes < int(self.table.files.sizes.sum()):
            room = in_words(limit_bytes)
            return otherwise, f"the mirror's limit is {room}: only the parts that are there are read from it"
        return "mirror" if is_filled else otherwise, self._policy.reason(share)

    def block_store(
        self, key: str, share: float, room: tuple[int, int], *, is_shared: bool
    ) -> BlockStore | None:
        """Return the store in which a stream is to hold blocks; see `AwayParts`."""
        held_bytes, all_bytes = room
        if self.choice(share, held_bytes=all_bytes)[0] != "blocks":
            return None
        stores = self._stores()
        store = stores.get(key)
        if store is None:
            files = self._block_files(key, held_bytes)
            if files is None and (is_shared or all_bytes > MOST_IN_MEMORY_BYTES):
                return None
            store = stores[key] = BlockStore(self._ranges, files, held_bytes / max(1, all_bytes))
        return store

    def _block_files(self, key: str, held_bytes: int) -> BlockFiles | None:
        """Return a folder on disk for blocks, or None if there is no room."""
        if self._mirrored is None or self._policy.fill == "never":
            return None
        try:
            return self._mirrored.block_files(key, held_bytes)
        except StorageError as error:
            _log.info("yogadl: blocks are not kept in the mirror: %s", error)
            return None

    def read(
        self,
        files: Int64s,
        positions: Int64s,
        lengths: Int64s,
        *,
        keeps_pages: bool,
        held: HeldRows | None = None,
        is_joined: bool = False,
    ) -> Sequence[bytes | memoryview]:
        """Read ranges of files; see `AwayParts`."""
        self._look_for_parts()
        read = self._ranges.read_joined if is_joined else self._ranges.read
        found = list(read(files, positions, lengths, keeps_pages=keeps_pages, held=held))
        if self._filler is not None:
            self._filler.note_read()
        return found

    def announce(
        self, files: Int64s, positions: Int64s, lengths: Int64s, held: HeldRows, *, keeps_pages: bool
    ) -> None:
        """Begin to read ranges of files; see `AwayParts`."""
        self._look_for_parts()
        if self._filler is not None:
            self._filler.note_next(files)
        self._ranges.announce(files, positions, lengths, held, keeps_pages=keeps_pages)

    def new_held(self) -> HeldRows:
        """Return what keeps the bytes of one announcement."""
        return self._ranges.new_held()

    @property
    def received(self) -> tuple[int, int]:
        """The number of requests that this process made for ranges, and the number of bytes received."""
        return self._ranges.received

    def _look_for_parts(self) -> None:
        """Update from time to time which parts other processes have downloaded."""
        if self._filler is not None:
            self._filler.look()


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
        mark_damaged: Callable[[FileId, CacheFormatError], None],
        warn_full: Callable[[str, StorageError], None],
    ) -> None:
        self._cache = cache
        self._are_away = are_away
        self._mark_damaged = mark_damaged
        self._warn_full = warn_full
        self._damaged: set[FileId] = set()
        self._next: NDArray[np.int64] = np.empty(0, np.int64)
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
        """Update from time to time which files are away, as this process or others download them."""
        now = time.monotonic()
        if now - self._last_look_s < _LOOK_INTERVAL_S:
            return
        self._last_look_s = now
        away = np.flatnonzero(self._are_away)
        for file in away[self._look_from : self._look_from + PARTS_AT_ONCE].tolist():
            self._are_away[file] = not self._cache.is_here(file)
        self._look_from = (
            0 if self._look_from + PARTS_AT_ONCE >= len(away) else self._look_from + PARTS_AT_ONCE
        )

    def note_next(self, files: NDArray[np.int64]) -> None:
        """Note the files that are read next, which `step` downloads first."""
        self._next = files

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
        """Download one file, if this process fills; return the pause until the next step, None for never."""
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
        file = self._file_to_download()
        if file is None:
            return None
        try:
            total = Total(0, None, stopped=self._threads.ended)
            is_here = self._cache.fill_in(file, self._threads, total, self._lock)
            self._are_away[file] = not is_here
        except CancelledError:
            return None  # the process ends
        except CacheFormatError as error:
            _log.warning("yogadl: %s", error)
            self._damaged.add(file)
            self._mark_damaged(file, error)
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

    def _file_to_download(self) -> FileId | None:
        """Return the file to download next: one that is read next, or else the first that is away."""
        for files in (self._next, np.flatnonzero(self._are_away)):
            for file in map(FileId, map(int, files)):
                if self._are_away[file] and file not in self._damaged:
                    return file
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


def files_with_addressed(
    manifest: Manifest, table: PartTable, own: "PartFiles", places: "Places"
) -> "PartFiles":
    """Return the files of a version in a folder together with those that are objects elsewhere."""
    nowhere = LocalBucket(Path(os.devnull))  # of the parts, which are all here
    are_here = np.ones(len(table.files), bool)
    are_here[list(places)] = False
    return RangedCache(nowhere, manifest, table, Spending(), here=(own, are_here), places=places)
