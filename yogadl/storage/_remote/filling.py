"""Fill a mirror with a cache while the cache is read: part by part, by one process of the machine."""

import logging
import os
import time
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from yogadl._core.process import ProcessLock
from yogadl._format.files import FileId
from yogadl.errors import CacheFormatError, StorageError
from yogadl.storage._files.folder import FULL
from yogadl.storage._remote.download import Total, connection_count
from yogadl.storage._remote.mirrored_cache import MirroredCache
from yogadl.storage._remote.requests import DaemonThreads

_log = logging.getLogger("yogadl")

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
