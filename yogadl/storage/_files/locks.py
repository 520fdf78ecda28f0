"""Locks on files, and temporary folders; the end of their process releases or removes them in any case.

The locks are those of flock, since forked children share them, unlike POSIX locks: a lock is free once the
last process that inherited it has closed its descriptor. Descriptors are closed on exec.
"""

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from yogadl.errors import StorageError
from yogadl.storage._files.folder import translated

_FIRST_POLL_S: Final = 0.002
_LAST_POLL_S: Final = 0.1
_READ_ONLY: Final = (errno.EROFS, errno.EACCES, errno.EPERM)
_BUSY: Final = (errno.EWOULDBLOCK, errno.EACCES)
# The interval at which the holder of a claim touches its lock file.
_TOUCH_EVERY_S: Final = 1.0


def open_lock(path: Path, *, reads: bool = False) -> int:
    """Open a lock's file, making it and its folder if missing; the caller closes the descriptor.

    Args:
        path: The file.
        reads: Whether the lock will only be shared; then a file that may only be read suffices.

    Raises:
        StorageError: if the file can't be made.
    """
    with translated(f"can't make the lock {path}"):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            if not reads or error.errno not in _READ_ONLY:
                raise
            try:
                return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                raise error from None


def try_lock(descriptor: int, path: Path, *, exclusive: bool) -> bool:
    """Take a lock if it is free; return whether this call did.

    Raises:
        StorageError: if the file system has no locks.
    """
    kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _BUSY:
            return False
        raise StorageError(
            error.errno or errno.ENOLCK,
            f"locks don't work where {path} is ({error.strerror}): choose a folder on a local disk",
        ) from error
    return True


def wait_for_lock(descriptor: int, path: Path, *, exclusive: bool, limit_s: float) -> None:
    """Take a lock, waiting until it is free.

    Raises:
        StorageError: if the lock is not free within the limit.
    """
    for _ in polls(limit_s):
        if try_lock(descriptor, path, exclusive=exclusive):
            return
    raise StorageError(
        errno.ETIMEDOUT,
        f"another process has held the lock {path} for {limit_s:.0f} s: end it (`fuser {path}` names it)",
    )


@contextlib.contextmanager
def locked(path: Path, *, exclusive: bool, limit_s: float) -> Iterator[None]:
    """Hold a lock for a short while."""
    descriptor = open_lock(path, reads=not exclusive)
    try:
        wait_for_lock(descriptor, path, exclusive=exclusive, limit_s=limit_s)
        try:
            yield
        finally:
            # A child forked meanwhile has the descriptor, too, and must not keep the lock.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def is_free(path: Path) -> bool:
    """Return whether no process holds a lock."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError:
        return False  # unknown, so not free
    try:
        return try_lock(descriptor, path, exclusive=True)
    finally:
        os.close(descriptor)


def remove_free_lock(path: Path) -> bool:
    """Remove a lock's file unless a process holds the lock; return whether this call did.

    This call holds the lock while it removes the file. A process that opened the file before, and locks it
    afterwards, finds that its file has no name any more, and must take the lock anew.

    Raises:
        StorageError: if the file can't be removed.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False  # the file is gone, or not a lock
    try:
        if not (try_lock(descriptor, path, exclusive=True) and is_at(descriptor, path)):
            return False
        with translated(f"can't remove the lock {path}"):
            path.unlink()
        return True
    finally:
        os.close(descriptor)


class Claim:
    """A claim that lets one process at a time download a file, as long as it makes progress."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock_path = path.with_name(f".{path.name}.lock")
        self._descriptor = -1
        self._touched_s = time.monotonic()

    def touch(self) -> None:
        """Note that the download makes progress."""
        now = time.monotonic()
        if self._descriptor >= 0 and now - self._touched_s > _TOUCH_EVERY_S:
            self._touched_s = now
            os.utime(self._descriptor)

    def take(self, is_made: Callable[[], bool], stall_s: float) -> bool:
        """Wait for the claim, or until another process has the file; return whether to download it.

        After `stall_s` without progress of the holder, the wait ends, and the file is downloaded twice, which
        does no harm.
        """
        last_touch, touch_seen_s = -1, time.monotonic()
        for _ in polls(None):
            if self._try():
                if is_made():
                    self.release()
                    return False
                return True
            if is_made():
                return False
            touch = self._holder_touched_ns()
            now = time.monotonic()
            if touch != last_touch:
                last_touch, touch_seen_s = touch, now
            elif now - touch_seen_s > stall_s:
                return True
        raise AssertionError("unreachable")

    def release(self) -> None:
        """Release the claim."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            # Unlink before unlocking: a process that waits for this lock then finds that its file has no
            # name.
            if is_at(descriptor, self.lock_path):
                self.lock_path.unlink(missing_ok=True)
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def _try(self) -> bool:
        descriptor = open_lock(self.lock_path)
        try:
            if try_lock(descriptor, self.lock_path, exclusive=True) and is_at(descriptor, self.lock_path):
                os.utime(descriptor)
                self._descriptor, descriptor = descriptor, -1
                return True
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        return False

    def _holder_touched_ns(self) -> int:
        try:
            return self.lock_path.stat().st_mtime_ns
        except FileNotFoundError:
            return 0


def is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file is still the file of that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def polls(limit_s: float | None) -> Iterator[None]:
    """Yield repeatedly until the limit, with growing pauses."""
    started = time.monotonic()
    pause_s = _FIRST_POLL_S
    while True:
        yield
        if limit_s is not None and time.monotonic() - started > limit_s:
            return
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _LAST_POLL_S)


# Make temporary folders, which are removed after their process has ended, for whatever reason.


@contextlib.contextmanager
def scratch_folder(below: Path) -> Iterator[Path]:
    """Give a new folder that is removed at the end, and remove the folders of killed processes.

    Args:
        below: A folder of this machine that holds nothing but such folders.

    Raises:
        StorageError: if the folder can't be made.
    """
    sweep(below)
    token = secrets.token_hex(8)
    unlocked, lock, folder = below / f"{token}.new", below / f"{token}.lock", below / token
    descriptor = open_lock(unlocked)
    try:
        with translated(f"can't make the folder {folder}"):
            try_lock(descriptor, unlocked, exclusive=True)
            unlocked.rename(lock)  # every file with a lock's name is locked while its process lives
            folder.mkdir()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.unlink(missing_ok=True)
        # A child forked meanwhile has the descriptor, too, and must not keep the lock.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def sweep(below: Path) -> None:
    """Remove the folders of killed processes."""
    for lock in below.glob("*.lock"):
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # another user's, or removed meanwhile
        try:
            if try_lock(descriptor, lock, exclusive=True):
                shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
                lock.unlink(missing_ok=True)
        finally:
            os.close(descriptor)
