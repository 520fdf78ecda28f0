"""Open the file of a part, or a foreign file, after a check that it is the right one, and read it."""

import errno
import os
import stat
from typing import Final

from yogadl._format.foreign import ForeignFile
from yogadl.errors import CacheFormatError, StorageError


def open_part(path: str, size_bytes: int) -> int:
    """Open a part's file for reading, after a check that it is a file of the right size.

    A page touched past the end of a mapped file kills the process, so the size must be checked here. A link
    is refused, since it may lead to any user's file, and opening a pipe does not wait.

    Raises:
        CacheFormatError: if the file is missing, not a regular file, or of another size.
        StorageError: if the file can't be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    except FileNotFoundError as error:
        raise CacheFormatError(
            f"part {path} is missing; build the dataset again, or restore the file"
        ) from error
    except OSError as error:
        if error.errno in NOT_A_FILE:
            raise CacheFormatError(
                f"part {path} is a link, or no file at all; put the file itself in its place (cp -L)"
            ) from error
        raise StorageError(error.errno, f"can't open a part: {error.strerror}", path) from error
    status = os.fstat(descriptor)
    if status.st_size != size_bytes or not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise CacheFormatError(
            f"part {path} has {status.st_size} bytes, not {size_bytes}: it was truncated or overwritten; "
            "build the dataset again, or restore the file"
        )
    return descriptor


def open_foreign(path: str, file: ForeignFile) -> int:
    """Open a foreign file, or the mirror's copy of it, if it is as it was when it was adopted.

    Raises:
        CacheFormatError: if it is missing, or was changed.
        StorageError: if it can't be opened.
    """
    try:
        descriptor = open_part(path, file.size_bytes)
    except CacheFormatError as error:
        raise changed_foreign(file, str(error).partition(";")[0]) from error
    try:
        require_unchanged(descriptor, path, file)
    except CacheFormatError:
        os.close(descriptor)
        raise
    return descriptor


def require_unchanged(descriptor: int, path: str, file: ForeignFile) -> None:
    """Make sure that an open foreign file is as it was; of the mirror's copy, that it has its size.

    Raises:
        CacheFormatError: if it was changed.
    """
    status = os.fstat(descriptor)
    tag = str(status.st_mtime_ns) if path == file.address else file.tag
    if (status.st_size, tag) != (file.size_bytes, file.tag):
        raise changed_foreign(file, "it was written since")


def changed_foreign(file: ForeignFile, problem: str) -> CacheFormatError:
    """Return the error of a foreign file that is not as it was when it was adopted."""
    return CacheFormatError(
        f"{file.address} is not the file that this version was adopted from: {problem}; restore it, or make "
        "a version of the files as they are: storage.refresh"
    )


def read_at(descriptor: int, position: int, length: int) -> bytes:
    """Return this many bytes of a file from a position on; fewer only if the file ends before."""
    content = os.pread(descriptor, length, position)
    while len(content) < length:  # one call reads at most 2 GiB
        more = os.pread(descriptor, length - len(content), position + len(content))
        if not more:
            break
        content += more
    return content


def unreadable(error: OSError, path: str) -> StorageError:
    """Return the error for a part that the disk can't read."""
    return StorageError(error.errno, f"can't read a part: {error.strerror}", path)


# The error codes of opening something that is not a regular file: a link that is not followed, a socket, a
# device that does not exist.
NOT_A_FILE: Final = (errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.ENODEV)
