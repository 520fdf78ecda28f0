"""Fill a file that another process goes on with if this one is killed.

The file lies beside its final name, and notes beside it say which of its ranges are there. A range is noted
once it is written, not once it is on the disk: what a killed process wrote is there, what a machine without
power had yet to write is not. So notes count only until the machine is started again. Whatever is noted, the
bytes of the whole file are compared with their sha256 before it gets its name.
"""

import contextlib
import json
import operator
import os
import secrets
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from yogadl._format.window import NO_FILE
from yogadl.errors import StorageError
from yogadl.storage._mirror.flock import try_lock

_BYTES: Final = ".tmp"
_NOTES: Final = ".ranges.tmp"
# Linux has it; elsewhere the sha256 alone tells what was lost.
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_MOST_NOTED_BYTES: Final = 2**20
# Whatever lies there in place of a file: no link is followed, no pipe waited for.
_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


class PartialFile:
    """A file that several threads fill. Made by `open_partial`.

    Args:
        path: The file.
        descriptor: It, open; this process holds its lock.
        notes: The file that says what is there; ``None`` if nobody is to go on with it.

    Attributes:
        found: The ranges that were there before, from and up to, and the tag of the object that each is of.
    """

    def __init__(self, path: Path, descriptor: int, notes: Path | None) -> None:
        self.path = path
        self.descriptor = descriptor
        self.found: dict[tuple[int, int], str] = {}
        self._notes = notes
        self._lock = threading.Lock()
        if notes is not None:
            size_bytes = os.fstat(descriptor).st_size
            self.found = {span: tag for span, tag in _noted(notes).items() if span[1] <= size_bytes}
        if not self.found:
            self._drop_notes()
            os.ftruncate(descriptor, 0)

    def note(self, span: tuple[int, int], tag: str) -> None:
        """Note that a range is there, and of which object it is; from any thread."""
        if self._notes is not None:
            with self._lock, self._notes.open("ab", buffering=0) as file:
                first = b"" if file.tell() else _line(_boot())
                file.write(first + _line([*span, tag]))

    def finish(self, path: Path) -> None:
        """Give the file its name; its bytes must be on the disk."""
        self._drop_notes()  # first, or they would be those of the next file of that name
        self.path.replace(path)

    def drop(self) -> None:
        """Close the file, and remove it unless it is finished."""
        with contextlib.suppress(FileNotFoundError):
            if _is_at(self.descriptor, self.path):
                self._drop_notes()
                self.path.unlink()
        os.close(self.descriptor)

    def _drop_notes(self) -> None:
        if self._notes is not None:
            self._notes.unlink(missing_ok=True)


@contextlib.contextmanager
def open_partial(path: Path, *, is_noted: bool) -> Iterator[PartialFile]:
    """Give the file that is to become `path`, as far as a process that was killed has filled it.

    It is gone afterwards, unless it was finished, or this process is killed as well. A lock on it tells that
    it is being written; who finds that another process has it gets a file of its own.

    Args:
        path: What it is to become.
        is_noted: Whether it is noted what is there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _taken(path, is_noted) or _own(path)
    try:
        yield partial
    finally:
        partial.drop()


def names_of(path: Path) -> tuple[Path, Path]:
    """Return the files that there are of an unfinished one: its bytes, and the notes on them."""
    return path.with_name(f".{path.name}{_BYTES}"), path.with_name(f".{path.name}{_NOTES}")


def remove_abandoned(path: Path) -> bool:
    """Remove what is left of an unfinished file, unless somebody is at it; return whether it is gone."""
    stem = path.name.removesuffix(_NOTES).removesuffix(_BYTES)
    notes = path.with_name(stem + _NOTES)
    if path == notes:
        if path.with_name(stem + _BYTES).exists():
            return False  # they go together
        path.unlink(missing_ok=True)
        return True
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError:
        return False  # not ours to remove
    try:
        is_free = _locked(descriptor, path)
        if is_free and _is_at(descriptor, path):
            notes.unlink(missing_ok=True)
            path.unlink()
        return is_free
    finally:
        os.close(descriptor)


def _taken(path: Path, is_noted: bool) -> PartialFile | None:
    """Go on with what a killed process has left, or begin; ``None`` if a process that lives is at it."""
    name, notes = names_of(path)
    while True:
        try:
            descriptor = os.open(name, _FLAGS | os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            if error.errno not in NO_FILE:
                raise
            name.unlink()  # a link, say, which leads elsewhere
            continue
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                name.unlink()  # a pipe
                continue
            if not _locked(descriptor, name):
                break
            if _is_at(descriptor, name):  # else its writer has finished it just now
                partial = PartialFile(name, descriptor, notes if is_noted else None)
                descriptor = -1
                return partial
        finally:
            if descriptor >= 0:
                os.close(descriptor)
    return None


def _own(path: Path) -> PartialFile:
    name = path.with_name(f".{secrets.token_hex(8)}{_BYTES}")
    descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    _locked(descriptor, name)
    return PartialFile(name, descriptor, None)


def _locked(descriptor: int, path: Path) -> bool:
    """Take a file's lock, which goes with this process; return whether it was free, and there are locks."""
    try:
        return try_lock(descriptor, path, exclusive=True)
    except StorageError:
        return False


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _noted(notes: Path) -> dict[tuple[int, int], str]:
    """Return what is noted since this machine was started, as far as it is whole."""
    found = {}
    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
        with open(os.open(notes, _FLAGS | os.O_RDONLY), "rb") as file:
            lines = file.read(_MOST_NOTED_BYTES).split(b"\n")[:-1]  # the last one may be cut off
        if lines and json.loads(lines[0]) == _boot():
            for line in lines[1:]:
                start, stop, tag = json.loads(line)
                found[operator.index(start), operator.index(stop)] = str(tag)
    return found


def _boot() -> str:
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


def _line(document: Any) -> bytes:  # what JSON can say
    return json.dumps(document).encode() + b"\n"
