"""Make folders for unfinished files, which go with the process that made them, however it ends."""

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
    """Give a new folder that is removed afterwards, and remove what killed processes have left there.

    Args:
        below: A folder of this machine that holds nothing else than such folders.

    Raises:
        StorageError: if it can't be made.
    """
    sweep(below)
    token = secrets.token_hex(8)
    unlocked, lock, folder = below / f"{token}.new", below / f"{token}.lock", below / token
    descriptor = open_lock(unlocked)
    try:
        with translated(f"can't make the folder {folder}"):
            try_lock(descriptor, unlocked, exclusive=True)
            unlocked.rename(lock)  # so that whatever has a lock's name is locked, as long as its maker lives
            folder.mkdir()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.unlink(missing_ok=True)
        # A child forked meanwhile has the descriptor, too.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def sweep(below: Path) -> None:
    """Remove the folders of killed processes."""
    for lock in below.glob("*.lock"):
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # another process's, or swept just now
        try:
            if try_lock(descriptor, lock, exclusive=True):
                shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
                lock.unlink(missing_ok=True)
        finally:
            os.close(descriptor)
