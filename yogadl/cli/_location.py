"""Say which storage a command works on, and open it."""

import argparse
import os
import shlex
from collections import deque
from pathlib import Path
from typing import Final

from yogadl._key import RESERVED_NAMES
from yogadl.errors import ConfigurationError
from yogadl.storage import CacheStorage, open_storage

# Where the current folder is somebody's home, looking on would take minutes.
_MOST_FOLDERS: Final = 2_000


def add_storage(parser: argparse.ArgumentParser) -> None:
    """Add the option that all commands share."""
    parser.add_argument(
        "-s",
        "--storage",
        metavar="FOLDER",
        help="the storage, a folder of caches (default: the current folder, if it has caches)",
    )


def add_key(parser: argparse.ArgumentParser) -> None:
    """Add the two arguments that name a version."""
    parser.add_argument("id", metavar="ID", help="what the dataset is called")
    parser.add_argument("version", metavar="VERSION", help="which version of it")


def open_existing(location: str | None) -> CacheStorage:
    """Open the storage that was asked for, or that of the current folder, to read it or keep it in order.

    Raises:
        ConfigurationError: if there is none; a misspelt folder is not made.
    """
    if location is not None and "://" not in location:
        path = Path(location).expanduser()
        if not path.is_dir():
            what = "is a file, not a folder of caches" if path.exists() else "is not there"
            raise ConfigurationError(f"the storage {location} {what}; say which one with -s FOLDER")
    return open_or_make(location)


def open_or_make(location: str | None) -> CacheStorage:
    """Open the storage that was asked for, making its folder if missing, or that of the current folder.

    Raises:
        ConfigurationError: if none was asked for and the current folder has no caches.
    """
    if location is not None:
        return open_storage(location)
    here = Path.cwd()
    if not _has_caches(here):
        raise ConfigurationError(
            f"there are no caches in the current folder, {here}: say where they are with -s FOLDER "
            "(-s . to begin here)"
        )
    return open_storage(here)


def option_for(storage: CacheStorage) -> str:
    """Return the option that names a storage, as one would type it."""
    return f"-s {shlex.quote(str(storage.folder.root))}"


def _has_caches(root: Path) -> bool:
    """Return whether a folder looks like a storage: whether a dataset's folder is found soon."""
    waiting = deque([root])
    for _ in range(_MOST_FOLDERS):
        if not waiting:
            break
        try:
            with os.scandir(waiting.popleft()) as entries:
                folders = [Path(entry) for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:
            continue  # not ours to read
        names = {folder.name for folder in folders}
        if names & {"versions", "trash"} and names & {"parts", "tables"}:
            return True
        waiting.extend(folder for folder in folders if folder.name not in RESERVED_NAMES)
    return False
