"""Hold whole ranges of a cache for as long as a stream reads from them: in files, or in memory.

A `HeldRanges` has the ranges that a stream reads from during one section of its order. Here it is called a
window, and is not the `AddressRange` of mapped memory in `_format/rows.py`. Its bytes are kept until it is
deleted.
The files lie in the mirror, where the processes of a machine share them.
"""

import contextlib
import fcntl
import hashlib
import logging
import os
import secrets
import weakref
from collections.abc import Callable
from typing import Final

from yogadl._core.protocols import Int64s
from yogadl.errors import StorageError
from yogadl.storage._files.folder import storage_error
from yogadl.storage._files.locks import Claim, open_lock, try_lock, wait_for_lock
from yogadl.storage._remote.eviction import BLOCKS_LOCK, MirrorLocation, evict_for
from yogadl.storage._remote.partial_file import boot
from yogadl.storage._remote.ranges import ByteSpan, RangeHolder, Ranges
from yogadl.storage._remote.requests import DaemonThreads, Extent, NotHeldError

# The bytes held in memory, if there is no mirror.
MOST_IN_MEMORY_BYTES: Final = 256 * 2**20
_LOCK_LIMIT_S: Final = 60.0
# How long to wait for a process that downloads a block and makes no progress.
_STALL_S: Final = 60.0

_log = logging.getLogger("yogadl")


class BlockFiles:
    """The folder of one stream's blocks, shared by all processes of this machine that read the stream.

    The folder is removed if room is needed and none of these processes lives.

    Args:
        location: The mirror.
        table_name: The name of the cache's part table.
        stream_name: The name of the stream.
        most_bytes: The room to reserve.

    Attributes:
        most_bytes: The reserved room.
        is_lost: Whether the folder was removed by others.

    Raises:
        StorageError: if there is no room, or the disk fails.
    """

    def __init__(self, location: MirrorLocation, table_name: str, stream_name: str, most_bytes: int) -> None:
        # The name has the boot's id, since files written before a crash of the machine may be incomplete.
        name = hashlib.sha256(f"{table_name} {stream_name} {boot()}".encode()).hexdigest()[:32]
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
            # One window is read while the next one arrives.
            evict_for(location, wanted, location.limit_bytes(), "two windows of blocks")
            os.pwrite(descriptor, str(most_bytes).encode(), 0)
        self.most_bytes = most_bytes
        self.is_lost = self._has_warned = False

    def write_once(self, name: str, fetch: Callable[[], bytes | memoryview]) -> None:
        """Write the result of `fetch` to a file, unless the file exists.

        Raises:
            NotHeldError: if there is no room.
        """
        path = self._folder / name
        if path.exists():
            return
        if not self._lock_path.exists():
            self.is_lost = True
            raise NotHeldError("the folder was removed, and with it the reservation of its room")
        claim = Claim(path)
        try:
            if not claim.take(path.exists, _STALL_S):
                return
        except StorageError as error:
            raise self._not_held(error) from error
        try:
            content = fetch()
            temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
            try:
                temporary.write_bytes(content)
                temporary.replace(path)
            except OSError as error:
                with contextlib.suppress(OSError):
                    temporary.unlink()
                raise self._not_held(storage_error(error, f"can't write {path}")) from error
        finally:
            with contextlib.suppress(OSError):
                claim.release()

    def read(self, name: str, position: int, length: int) -> bytes:
        """Read from a file.

        Raises:
            NotHeldError: if the file does not exist.
        """
        try:
            descriptor = os.open(self._folder / name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            self.is_lost = self.is_lost or not self._lock_path.exists()
            raise NotHeldError from error
        try:
            content = os.pread(descriptor, length, position)
        except OSError as error:
            raise NotHeldError from error
        finally:
            os.close(descriptor)
        if len(content) != length:
            raise NotHeldError
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

    def _not_held(self, error: StorageError) -> NotHeldError:
        if not self._has_warned:
            self._has_warned = True
            _log.warning("yogadl: blocks are read by range, record by record: %s", error)
        return NotHeldError(str(error))


class HeldTally:
    """The files and bytes of one `HeldRanges`.

    Attributes:
        names: The names of its files.
        size_bytes: The size of its ranges.
        is_over: Whether the `HeldRanges` was deleted; ranges that arrive later are not kept.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.size_bytes = 0
        self.is_over = False


class HeldRange(Extent):
    """Bytes of one file that are kept for as long as a `HeldRanges` holds them.

    Attributes:
        name: The name of its file.
    """

    __slots__ = ("_files", "_tally", "name")

    def __init__(self, span: ByteSpan, files: BlockFiles | None, label: str, tally: HeldTally) -> None:
        super().__init__(*span)
        self._files = files
        self._tally = tally
        self.name = "-".join(map(str, (label, *span)))

    def content(self, fetch: Callable[[], bytes | memoryview]) -> bytes | memoryview:
        """Return the bytes to keep in memory: the result of `fetch`, or no bytes if they go to a file."""
        if self._files is None:
            return fetch()
        self._files.write_once(self.name, fetch)
        if self._tally.is_over:  # the range was released before it arrived
            self._files.remove(self.name)
        return b""

    def slice(self, start: int, length: int) -> bytes | memoryview:
        """Return bytes from a position of the file on, waiting for them to arrive.

        Raises:
            NotHeldError: if they are not held any more.
        """
        if self._files is None:
            return super().slice(start, length)
        self.wait()
        return self._files.read(self.name, start - self.start, length)


class HeldRanges(RangeHolder[HeldRange]):
    """Ranges of one cache that are kept as long as this object lives. Made by `BlockStore.window`."""

    def __init__(self, store: "BlockStore", label: str) -> None:
        super().__init__()
        self._label = label
        self._ranges = store.ranges
        self._files = store.files
        self._requested: list[HeldRange] = []
        self._tally = HeldTally()
        store.tallies.add(self._tally)
        weakref.finalize(self, _release_ranges, os.getpid(), self._files, store.tallies, self._tally)

    def add(self, files: Int64s, positions: Int64s, lengths: Int64s) -> None:
        """Begin to read these ranges, merged into as few as possible, each read whole."""
        self._ranges.add_to_window(self, files, positions, lengths)

    def _new(self, span: ByteSpan) -> HeldRange:
        held_range = HeldRange(span, self._files, self._label, self._tally)
        self._requested.append(held_range)
        self._tally.names.append(held_range.name)
        self._tally.size_bytes += held_range.size_bytes
        return held_range

    def coming_bytes(self) -> int:
        """Return the number of bytes that were requested and have not arrived."""
        self._requested = coming = [held_range for held_range in self._requested if not held_range.is_done]
        return sum(held_range.size_bytes for held_range in coming)


class BlockStore:
    """Keep the blocks of a cache that a stream reads from; see `HeldRanges`.

    Args:
        ranges: Reads the blocks.
        files: The files that hold them, or None for memory.
        share: The share of the stream's blocks that are of this cache.

    Attributes:
        tallies: The tally of each `HeldRanges` that lives.
    """

    def __init__(self, ranges: Ranges, files: BlockFiles | None, share: float = 1.0) -> None:
        self.ranges = ranges
        self.files = files
        self._share = share
        self.tallies: set[HeldTally] = set()
        self._threads = DaemonThreads(1, "yogadl-blocks")

    @property
    def is_lost(self) -> bool:
        """Whether the folder of the files was removed by others."""
        return self.files is not None and self.files.is_lost

    def free_bytes(self) -> int:
        """Return the number of bytes that there is still room for."""
        most_bytes = int(self._share * MOST_IN_MEMORY_BYTES) if self.files is None else self.files.most_bytes
        return most_bytes - sum(tally.size_bytes for tally in self.tallies.copy())

    def window(self, label: str) -> HeldRanges:
        """Return a new, empty `HeldRanges` for blocks that are kept together; each needs its own label."""
        return HeldRanges(self, label)

    def later(self, work: Callable[[], None]) -> None:
        """Run a function in a thread, one function after the other."""
        self._threads.put(work, lambda: None)


def _release_ranges(pid: int, files: BlockFiles | None, tallies: set[HeldTally], tally: HeldTally) -> None:
    """Release the ranges of a `HeldRanges`. Takes no lock, since a finalizer may run in any thread."""
    if os.getpid() == pid:  # in a forked child, they belong to the parent
        tallies.discard(tally)
        tally.is_over = True
        if files is not None:
            for name in tally.names:
                files.remove(name)
