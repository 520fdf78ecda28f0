"""Hold the files of one cache in a mirror: bring what is missing, and keep all of it from being evicted."""

import contextlib
import logging
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from yogadl._format.layout import PartTable
from yogadl._format.manifest import Manifest
from yogadl._lock import ProcessLock
from yogadl._size import in_words
from yogadl.errors import CacheFormatError
from yogadl.storage import _names
from yogadl.storage._buckets.bucket import Bucket
from yogadl.storage._cached import open_table
from yogadl.storage._mirror.flock import Claim, open_lock, wait_for_lock
from yogadl.storage._mirror.place import Place
from yogadl.storage._mirror.room import make_room, use_lock
from yogadl.storage._mirror.transfer import Beat, Progress, Wanted, download_all
from yogadl.storage._progress import shown_bytes

_log = logging.getLogger("yogadl")

# A lock that evictors alone take, for a moment.
_LOCK_LIMIT_S: Final = 60.0
# Who brings a part and gets no byte for so long is not waited for.
_STALL_S: Final = 60.0


class Brought:
    """The files of one cache in a mirror, which stay there as long as this lives: what a `Reader` reads.

    Safe to use from threads and after a fork; the cache may be evicted once the last process that has it has
    closed it or ended, however that was. Not picklable.

    Args:
        bucket: Where the cache is.
        place: The mirror.
        manifest: The cache. Its part table is brought now, its parts by `complete`.
    """

    def __init__(self, bucket: Bucket, place: Place, manifest: Manifest) -> None:
        self.folder = place.caches
        self._bucket = bucket
        self._place = place
        self._manifest = manifest
        self._table_name = _names.table(manifest.key.id, manifest.table_sha256)
        self._lock_path = use_lock(place, self._table_name)
        self._lock = ProcessLock()
        self._release = self._hold()
        try:
            self.table = self._open_table()
        except BaseException:
            self.close()
            raise
        self._numbers = {sha256: number for number, sha256 in enumerate(self.table.sha256)}

    def __reduce__(self) -> Any:
        raise TypeError("what a mirror holds for this process can't be pickled; bring it again over there")

    def close(self) -> None:
        """Let it be evicted, as far as this process is concerned."""
        self._release()

    def path(self, sha256: str) -> str:
        """Return the path of a part's file, brought again if somebody has removed it."""
        number = self._numbers[sha256]
        if not self._is_there(number):
            with self._lock:
                self.close()
                self._release = self._hold()  # the lock's file may be gone as well
                self._open_table()
                self.complete([number])
        return str(self.folder.path(_names.part(self._manifest.key.id, sha256)))

    def complete(self, numbers: Sequence[int], progress: Progress | None = None) -> None:
        """Bring those of these parts that are not there, in this order."""
        with self._place.gate(exclusive=False):
            missing = self._missing(numbers)
        if not missing:
            return
        key = str(self._manifest.key)
        with self._place.gate(exclusive=True):
            missing = self._missing(numbers)
            sizes = {one.name: one.size_bytes or 0 for one in missing}
            make_room(self._place, sizes, self._place.limit_bytes(), key)
        _log.info("yogadl: bringing %s of %s", in_words(sum(sizes.values())), key)
        with shown_bytes(progress, f"fetching {key}", sum(sizes.values())) as show:
            self._fetch(missing, show)

    def _fetch(self, wanted: Sequence[Wanted], progress: Progress | None = None) -> None:
        """Download files, but for what other processes bring meanwhile."""
        download_all(self._bucket, wanted, progress=progress, guard=_claimed)

    def _hold(self) -> Callable[[], object]:
        """Register as a reader; return what ends that."""
        with self._place.gate(exclusive=False):
            descriptor = open_lock(self._lock_path)
            release = weakref.finalize(self, os.close, descriptor)
            release.atexit = False  # it goes with the process
            wait_for_lock(descriptor, self._lock_path, exclusive=False, limit_s=_LOCK_LIMIT_S)
            os.utime(descriptor)  # when it was used last
        return release

    def _open_table(self) -> PartTable:
        manifest, path = self._manifest, self.folder.path(self._table_name)
        wanted = Wanted(self._table_name, manifest.table_sha256, manifest.table_bytes, path)
        if not _is_made(wanted):
            self._fetch([wanted])
        try:
            return open_table(self.folder, manifest)
        except CacheFormatError:
            # Of its size, but damaged on this machine. What the bucket has is checked again.
            self.folder.remove(self._table_name)
            self._fetch([wanted])
            return open_table(self.folder, manifest)

    def _is_there(self, number: int) -> bool:
        name = _names.part(self._manifest.key.id, self.table.sha256[number])
        return self.folder.size(name) == int(self.table.size_bytes[number])

    def _missing(self, numbers: Sequence[int]) -> list[Wanted]:
        """Return what is to be brought of these parts; of two that are equal, one."""
        missing = {self.table.sha256[number]: number for number in numbers if not self._is_there(number)}
        wanted = []
        for sha256, number in missing.items():
            name = _names.part(self._manifest.key.id, sha256)
            wanted.append(Wanted(name, sha256, int(self.table.size_bytes[number]), self.folder.path(name)))
        return wanted


@contextlib.contextmanager
def _claimed(wanted: Wanted) -> Iterator[Beat | None]:
    """Hold the right of this machine to bring a file; give ``None`` if another process has brought it."""
    claim = Claim(wanted.path)
    try:
        yield claim.beat if claim.take(lambda: _is_made(wanted), _STALL_S) else None
    finally:
        claim.release()


def _is_made(wanted: Wanted) -> bool:
    try:
        size_bytes = wanted.path.stat().st_size
    except FileNotFoundError:
        return False
    return wanted.size_bytes in (None, size_bytes)
