"""Make temporary folders, which are removed after their process has ended, for whatever reason."""

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from yogadl.storage._flock import open_lock, try_lock
from yogadl.storage._folder import translated


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
