"""Write a file whose download another process can resume if this one is killed.

The file is in the folder of its final path, under a temporary name. A second file beside it has notes: the
ranges that were written. A range is noted when it is written, not when it is synced: the writes of a killed
process are in the page cache, but may be lost when the machine crashes. Notes are therefore used only until
the next boot. In any case the whole file is compared with its sha256 before it gets its final name.
"""

import contextlib
import hashlib
import json
import operator
import os
import secrets
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from yogadl._core.frozen import parse_json
from yogadl._format.files import NOT_A_FILE
from yogadl.errors import StorageError
from yogadl.storage._files.locks import is_at, try_lock

_BYTES_SUFFIX: Final = ".tmp"
_NOTES_SUFFIX: Final = ".ranges.tmp"
# Linux only; elsewhere only the sha256 detects lost writes.
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_MOST_NOTED_BYTES: Final = 2**20
# The file is synced each time that this many bytes were written, so that little is left to sync at the end.
_SYNC_BYTES: Final = 16 * 2**20
# Links are not followed, and opening a pipe does not wait.
_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


class PartialFile:
    """A file that several threads fill. Made by `open_partial`.

    Args:
        path: The file.
        descriptor: The file, open; this process holds its lock.
        notes: The file with its ranges, or ``None`` if it can't be resumed.

    Attributes:
        found: The ranges that it had at first, as (start, stop), each with the tag of its object.
    """

    def __init__(self, path: Path, descriptor: int, notes: Path | None) -> None:
        self.path = path
        self.descriptor = descriptor
        self.found: dict[tuple[int, int], str] = {}
        self._notes = notes
        self._lock = threading.Lock()
        self._syncing = threading.Lock()
        # If several threads wrote one file at once, all but one would spin in the kernel.
        self._writing = threading.Lock()
        self._unsynced_bytes = 0  # approximate: several threads change it without a lock
        if notes is not None:
            size_bytes = os.fstat(descriptor).st_size
            self.found = {span: tag for span, tag in _read_notes(notes).items() if span[1] <= size_bytes}
        if not self.found:
            self._drop_notes()
            os.ftruncate(descriptor, 0)

    def write(self, chunks: list[bytes | memoryview], position: int) -> int:
        """Write chunks one after the other, from any thread; return their size in bytes."""
        size_bytes = sum(map(len, chunks))
        with self._writing:
            written = os.pwritev(self.descriptor, chunks, position)
        while written < size_bytes:
            rest = memoryview(b"".join(chunks))[written:]
            written += os.pwrite(self.descriptor, rest, position + written)
        self._unsynced_bytes += size_bytes
        return size_bytes

    def sync_meanwhile(self) -> None:
        """Sync the file, if much was written since the last sync, while other threads receive.

        One thread at a time: several that sync one file slow each other down (benchmarks/transfer.py).
        """
        if self._unsynced_bytes >= _SYNC_BYTES and self._syncing.acquire(blocking=False):
            try:
                self._unsynced_bytes = 0
                os.fsync(self.descriptor)
            finally:
                self._syncing.release()

    def hash(self, sha256: "hashlib._Hash", start: int, stop: int, buffer: memoryview) -> None:
        """Add the bytes of a range to a hash."""
        while start < stop:
            count = os.preadv(self.descriptor, [buffer[: stop - start]], start)
            if not count:
                return  # the hash will differ
            sha256.update(buffer[:count])
            start += count

    def note(self, span: tuple[int, int], tag: str) -> None:
        """Note a range that was written, with the tag of its object; from any thread."""
        if self._notes is not None:
            with self._lock, self._notes.open("ab", buffering=0) as file:
                first = b"" if file.tell() else _json_line(boot())
                file.write(first + _json_line([*span, tag]))

    def finish(self, path: Path) -> None:
        """Give the file its name; the caller has synced its bytes."""
        self._drop_notes()  # first, or they would be used for the next file of that name
        self.path.replace(path)

    def drop(self) -> None:
        """Close the file, and remove it unless it is finished."""
        with contextlib.suppress(FileNotFoundError):
            if is_at(self.descriptor, self.path):
                self._drop_notes()
                self.path.unlink()
        os.close(self.descriptor)

    def _drop_notes(self) -> None:
        if self._notes is not None:
            self._notes.unlink(missing_ok=True)


@contextlib.contextmanager
def open_partial(path: Path, *, is_noted: bool) -> Iterator[PartialFile]:
    """Open the file that is to become `path`, with the ranges that a killed process has written.

    The file is removed afterwards, unless it was finished, or this process is killed as well. It is locked
    while it is written; if another process has locked it, a separate file is made.

    Args:
        path: The final path.
        is_noted: Whether to note its ranges.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _resumed(path, is_noted) or _separate(path)
    try:
        yield partial
    finally:
        partial.drop()


def names_of(path: Path) -> tuple[Path, Path]:
    """Return the paths of an unfinished file: its bytes, and the notes of its ranges."""
    return path.with_name(f".{path.name}{_BYTES_SUFFIX}"), path.with_name(f".{path.name}{_NOTES_SUFFIX}")


def remove_abandoned(path: Path) -> bool:
    """Remove an unfinished file or its notes, unless a process writes it; return whether it is removed."""
    stem = path.name.removesuffix(_NOTES_SUFFIX).removesuffix(_BYTES_SUFFIX)
    notes = path.with_name(stem + _NOTES_SUFFIX)
    if path == notes:
        if path.with_name(stem + _BYTES_SUFFIX).exists():
            return False  # the notes are removed together with the bytes
        path.unlink(missing_ok=True)
        return True
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError:
        return False  # no permission
    try:
        is_free = _locked(descriptor, path)
        if is_free and is_at(descriptor, path):
            notes.unlink(missing_ok=True)
            path.unlink()
        return is_free
    finally:
        os.close(descriptor)


def _resumed(path: Path, is_noted: bool) -> PartialFile | None:
    """Resume the file of a killed process, or begin one; return ``None`` if a live process writes it."""
    name, notes = names_of(path)
    while True:
        try:
            descriptor = os.open(name, _FLAGS | os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            if error.errno not in NOT_A_FILE:
                raise
            name.unlink()  # a link, for example
            continue
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                name.unlink()  # a pipe
                continue
            if not _locked(descriptor, name):
                break
            if is_at(descriptor, name):  # its writer may have just finished it
                partial = PartialFile(name, descriptor, notes if is_noted else None)
                descriptor = -1
                return partial
        finally:
            if descriptor >= 0:
                os.close(descriptor)
    return None


def _separate(path: Path) -> PartialFile:
    """Begin a file under a random name, which no other process resumes."""
    name = path.with_name(f".{secrets.token_hex(8)}{_BYTES_SUFFIX}")
    descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    _locked(descriptor, name)
    return PartialFile(name, descriptor, None)


def _locked(descriptor: int, path: Path) -> bool:
    """Lock a file until this process ends; return whether it was free, and the file system has locks."""
    try:
        return try_lock(descriptor, path, exclusive=True)
    except StorageError:
        return False


def _read_notes(notes: Path) -> dict[tuple[int, int], str]:
    """Return the ranges noted since the last boot, without a truncated last line."""
    noted = {}
    with contextlib.suppress(OSError, ValueError, TypeError):
        with open(os.open(notes, _FLAGS | os.O_RDONLY), "rb") as file:
            lines = file.read(_MOST_NOTED_BYTES).split(b"\n")[:-1]  # the last one may be cut off
        if lines and parse_json(lines[0]) == boot():
            for line in lines[1:]:
                start, stop, tag = parse_json(line)
                noted[operator.index(start), operator.index(stop)] = str(tag)
    return noted


def boot() -> str:
    """Return a text that is unique to the time since the machine was booted; empty if unknown."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


def _json_line(document: Any) -> bytes:  # any JSON value
    return json.dumps(document).encode() + b"\n"
