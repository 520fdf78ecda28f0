"""Keep a little room in a folder that machines share: what frees a full disk writes small files itself.

That is a lease, its end, and the copy of a manifest. The reserve is as many files as that may take, since a
disk may run out of files, too.
"""

import contextlib
import errno
import os
import secrets
from typing import Final

from yogadl.errors import StorageError
from yogadl.storage._folder import Folder

# Below the root; no dataset is called so.
_FOLDER: Final = ".yogadl/reserve"
_PROBE: Final = ".yogadl/room"
_FILES: Final = 16
_FILE_BYTES: Final = 2**14
# It is made only where there is room for so many of it.
_SPARE: Final = 4


def make_reserve(folder: Folder) -> None:
    """Make what is missing of the reserve, unless the disk is as good as full."""
    with contextlib.suppress(OSError):  # whoever needs the room is told by what fails then
        there = {entry.name for entry in folder.entries(_FOLDER)}
        missing = sorted({f"{_FOLDER}/{number:02d}" for number in range(_FILES)} - there)
        if missing and _has_room(folder, _SPARE):
            for name in missing:
                folder.write(name, secrets.token_bytes(_FILE_BYTES))  # which no file system compresses


def give_up_reserve_if_full(folder: Folder) -> None:
    """Give up the reserve if there is no room for as much again; the next build makes it anew."""
    with contextlib.suppress(OSError):  # what is done then says what is wrong
        if not _has_room(folder, 1) or not _can_write(folder):
            for entry in list(folder.entries(_FOLDER)):
                folder.remove(entry.name)


def _has_room(folder: Folder, times: int) -> bool:
    """Return whether the disk says that it has room for so many reserves."""
    found = os.statvfs(folder.root)
    has_files = found.f_files == 0 or found.f_favail >= times * _FILES  # some have no limit, and say 0
    return has_files and found.f_bavail * found.f_frsize >= times * _FILES * _FILE_BYTES


def _can_write(folder: Folder) -> bool:
    """Return whether there is room for a reserve for this user: a quota does not show otherwise."""
    try:
        folder.write(_PROBE, secrets.token_bytes(_FILES * _FILE_BYTES))
        folder.remove(_PROBE)
    except StorageError as error:
        return error.errno not in (errno.ENOSPC, errno.EDQUOT)
    return True
