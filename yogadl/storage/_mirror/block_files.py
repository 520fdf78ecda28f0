"""Keep blocks in a mirror while a stream reads from them, a file each, shared by the machine's processes."""

import contextlib
import fcntl
import hashlib
import logging
import os
import secrets
import weakref
from collections.abc import Callable
from typing import Final

from yogadl.errors import StorageError
from yogadl.storage._flock import Claim, open_lock, try_lock, wait_for_lock
from yogadl.storage._folder import storage_error
from yogadl.storage._held import GoneError
from yogadl.storage._mirror.eviction import evict_for
from yogadl.storage._mirror.location import BLOCKS_LOCK, MirrorLocation
from yogadl.storage._mirror.partial_file import boot

_log = logging.getLogger("yogadl")

_LOCK_LIMIT_S: Final = 60.0
# How long to wait for a process that downloads a block and makes no progress.
_STALL_S: Final = 60.0


class BlockFiles:
    """The folder of one stream's blocks, shared by all processes of this machine that read the stream.

    The folder is removed if room is needed and none of these processes lives.

    Args:
        location: The mirror.
        table_name: The name of the cache's part table.
        key: The name of the stream.
        most_bytes: The room to reserve.

    Attributes:
        most_bytes: The reserved room.
        is_lost: Whether the folder was removed by others.

    Raises:
        StorageError: if there is no room, or the disk fails.
    """

    def __init__(self, location: MirrorLocation, table_name: str, key: str, most_bytes: int) -> None:
        # With the boot's id, since files written before a crash of the machine may be incomplete.
        name = hashlib.sha256(f"{table_name} {key} {boot()}".encode()).hexdigest()[:32]
        self._folder = location.blocks / name
        self._lock_path = lock_path = self._folder / BLOCKS_LOCK
        with location.gate(exclusive=True):
            descriptor = open_lock(lock_path)
            weakref.finalize(self, os.close, descriptor).atexit = False
            if try_lock(descriptor, lock_path, exclusive=True):
                self._clear()
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            wait_for_lock(descriptor, lock_path, exclusive=False, limit_s=_LOCK_LIMIT_S)
            wanted = {f"blocks/{name}": most_bytes}
            evict_for(location, wanted, location.limit_bytes(), "two windows of blocks")
            os.pwrite(descriptor, str(most_bytes).encode(), 0)
        self.most_bytes = most_bytes
        self.is_lost = self._is_told = False

    def bring(self, name: str, fetch: Callable[[], bytes | memoryview]) -> None:
        """Write the result of `fetch` to a file, unless the file exists; see `HeldFiles`."""
        path = self._folder / name
        if path.exists():
            return
        if not self._lock_path.exists():
            self.is_lost = True
            raise GoneError("the folder was removed, and with it what keeps the room")
        claim = Claim(path)
        try:
            if not claim.take(path.exists, _STALL_S):
                return
        except StorageError as error:
            raise self._gone(error) from error
        try:
            content = fetch()
            temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
            try:
                temporary.write_bytes(content)
                temporary.replace(path)
            except OSError as error:
                with contextlib.suppress(OSError):
                    temporary.unlink(missing_ok=True)
                raise self._gone(storage_error(error, f"can't write {path}")) from error
        finally:
            with contextlib.suppress(OSError):
                claim.release()

    def read(self, name: str, position: int, length: int) -> bytes:
        """Read from a file; see `HeldFiles`."""
        try:
            descriptor = os.open(self._folder / name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            self.is_lost = self.is_lost or not self._lock_path.exists()
            raise GoneError from error
        try:
            content = os.pread(descriptor, length, position)
        except OSError as error:
            raise GoneError from error
        finally:
            os.close(descriptor)
        if len(content) != length:
            raise GoneError
        return content

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        with contextlib.suppress(OSError):
            (self._folder / name).unlink(missing_ok=True)

    def _clear(self) -> None:
        """Remove the files of processes that have ended."""
        for entry in os.scandir(self._folder):
            if entry.name == BLOCKS_LOCK:
                os.truncate(entry.path, 0)
            else:
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)

    def _gone(self, error: StorageError) -> GoneError:
        if not self._is_told:
            self._is_told = True
            _log.warning("yogadl: blocks are read by range, record by record: %s", error)
        return GoneError(str(error))
