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
from yogadl.errors import CacheFormatError, StorageError
from yogadl.storage._folder import FULL
from yogadl.storage._mirror.mirrored_cache import MirroredCache
from yogadl.storage._mirror.transfer import Total, connection_count
from yogadl.storage._threads import DaemonThreads

_log = logging.getLogger("yogadl")

# The interval at which a process looks for parts that others have downloaded, and whether it must download
# them itself; and the number of parts that it looks for at a time, each with a call to the file system.
_LOOK_EVERY_S: Final = 0.5
LOOKED_AT: Final = 256
# The pause after a failure of the network, in which reading by range retries as well.
_REST_S: Final = 10.0
# The least share of a cache that processes of this machine must read for it to be worth filling.
_LEAST_SHARE: Final = 0.5


@dataclass(frozen=True)
class FillPolicy:
    """Decide whether to fill a mirror.

    Args:
        fill: Fill it if it is worth it, always, or never.
        tell_full: Called if the mirror has no room for some parts, with a phrase about them and the error.
    """

    fill: Literal["auto", "always", "never"]
    tell_full: Callable[[str, StorageError], None] = lambda *_: None

    def fills(self, share: float) -> bool:
        """Return whether to fill the mirror for a process that reads this share of the records an epoch."""
        if self.fill == "auto":
            return share * _processes_here() >= _LEAST_SHARE
        return self.fill == "always"

    def why(self, share: float) -> str:
        """Return a phrase with the values that decide this."""
        of = f", and this process reads {share:.0%} of it an epoch" if self.fill == "auto" else ""
        return f"mirror_fill={self.fill!r}{of}"


def _processes_here() -> int:
    """Return the number of processes of a job on this machine, if its launcher sets it."""
    found = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(found) if found.isascii() and found.isdigit() else 1


class Filler:
    """Downloads the parts of a cache to this machine, in threads of one of the processes that read it.

    If that process ends, for whatever reason, another process continues.

    Args:
        cache: The mirror's files of the cache; downloads the parts.
        are_away: Whether each part is away; set to false as parts arrive.
        condemn: Called with a part whose object has other bytes than its name says, and the error.
        tell_full: See `FillPolicy`.
    """

    def __init__(
        self,
        cache: MirroredCache,
        are_away: NDArray[np.bool_],
        condemn: Callable[[int, CacheFormatError], None],
        tell_full: Callable[[str, StorageError], None],
    ) -> None:
        self._cache = cache
        self._are_away = are_away
        self._condemn = condemn
        self._tell_full = tell_full
        self._condemned: set[int] = set()
        self._soon: NDArray[np.int64] = np.empty(0, np.int64)
        self._is_resting = False  # after a failure of the network
        self._looked_s = time.monotonic()
        self._next = 0
        self._starting = ProcessLock()
        self._pid = 0  # of the process that has the threads and the lock
        self._threads: DaemonThreads | None = None
        self._lock: int | None = None

    def look(self) -> None:
        """Update from time to time which parts are away, as this process or others download them."""
        now = time.monotonic()
        if now - self._looked_s < _LOOK_EVERY_S:
            return
        self._looked_s = now
        away = np.flatnonzero(self._are_away)
        for part in away[self._next : self._next + LOOKED_AT].tolist():
            self._are_away[part] = not self._cache.is_here(part)
        self._next = 0 if self._next + LOOKED_AT >= len(away) else self._next + LOOKED_AT

    def soon(self, parts: NDArray[np.int64]) -> None:
        """Note the parts that are read next."""
        self._soon = parts

    def start(self) -> None:
        """Begin to fill, unless this process does already."""
        with self._starting:
            if self._pid == os.getpid() or not self._are_away.any():
                return
            if self._lock is not None:  # inherited through a fork: the parent keeps it
                os.close(self._lock)
                self._lock = None
            self._pid = os.getpid()
            self._threads = DaemonThreads(1 + connection_count(), "yogadl-fill")
            fill = partial(_fill, weakref.ref(self), self._threads.ended.wait)
            self._threads.put(fill, lambda: None)

    def step(self) -> float | None:
        """Download one part, if this process fills; return the pause until the next step, None for never."""
        assert self._threads is not None
        if self._lock is None:
            self._lock = self._cache.try_to_fill()
            if self._lock is None:
                self.look()
                return _LOOK_EVERY_S if self._are_away.any() else None
            close = weakref.finalize(self, _close, self._lock, self._pid)
            close.atexit = False  # threads still write to it at exit; the end of the process closes it
        part = self._first()
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
            self._condemned.add(part)
            self._condemn(part, error)
        except StorageError as error:
            if error.errno in FULL:
                left = int(self._are_away.sum())
                self._tell_full(f"{left} of {len(self._are_away)} parts are", error)
                return None
            if not self._is_resting:
                _log.info("yogadl: the mirror is filled later: %s", error)
            self._is_resting = True
            return _REST_S
        self._is_resting = False
        return 0.0

    def _first(self) -> int | None:
        """Return the part to download next: one that is needed soon, or else the first."""
        for parts in (self._soon, np.flatnonzero(self._are_away)):
            for part in map(int, parts):
                if self._are_away[part] and part not in self._condemned:
                    return part
        return None


def _fill(filler: "weakref.ref[Filler]", wait: Callable[[float], bool]) -> None:
    while (found := filler()) is not None:
        try:
            pause_s = found.step()
        except OSError as error:  # for example a file in place of a folder
            _log.warning("yogadl: the mirror is filled no further: %s", error)
            return
        del found
        if pause_s is None or wait(pause_s):
            return


def _close(descriptor: int, pid: int) -> None:
    if os.getpid() == pid:
        os.close(descriptor)
