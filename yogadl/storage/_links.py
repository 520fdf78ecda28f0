"""Open the regular files of a dataset, and refuse links, pipes and devices in its folder.

A storage's folder and the whole folder of a dataset may be links. The files in a dataset's folder may come
from any user: a link there would make yogadl read its target as a file of the storage, and prune it although
others need it; a pipe would block for ever. docs/explanation/format.md tells users about this.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from yogadl._core.key import RESERVED_NAMES
from yogadl._format.rows import NO_FILE
from yogadl.errors import CacheFormatError

_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


def checked_path(root: Path, name: str) -> str:
    """Return the path of a file, if no folder between it and its dataset's is a link.

    Args:
        root: The storage's folder.
        name: The file's name; with a slash at its end, a folder's name, which must not be a link either.

    Raises:
        CacheFormatError: if one of these is a link.
    """
    return _path(root, name)[0]


def _path(root: Path, name: str) -> tuple[str, bool]:
    """Return the path of a file, and whether it is inside a dataset."""
    folders = _folders_inside(name)
    for folder in folders:
        if os.path.islink(f"{root}/{folder}"):
            raise _link(f"{root}/{folder}")
    return f"{root}/{name}", bool(folders)


def open_file(root: Path, name: str) -> BinaryIO:
    """Open a file for reading.

    Raises:
        CacheFormatError: if it is a link inside a dataset, a pipe, a device or a socket.
        OSError: if it is a folder, or does not exist.
    """
    path, is_inside = _path(root, name)
    try:
        descriptor = os.open(path, _FLAGS | (os.O_NOFOLLOW if is_inside else 0))
    except OSError as error:
        if error.errno in NO_FILE:
            raise (_link(path) if os.path.islink(path) else _no_file(path)) from error
        raise
    try:
        _check_kind(path, os.fstat(descriptor))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def stat_file(root: Path, name: str) -> os.stat_result:
    """Return the status of a file, under the same conditions as `open_file`."""
    found = stat_any(root, name)
    _check_kind(f"{root}/{name}", found)
    return found


def stat_any(root: Path, name: str) -> os.stat_result:
    """Return the status of a path; inside a dataset, that of a link itself."""
    path, is_inside = _path(root, name)
    return os.lstat(path) if is_inside else os.stat(path)


def files_below(root: Path, below: str, onerror: Callable[[OSError], object] | None = None) -> Iterator[str]:
    """Yield the names of all files below a folder; none if the folder does not exist.

    Args:
        root: The storage's folder.
        below: The folder's name; empty for the storage's folder.
        onerror: Called with the error of a folder that can't be listed.

    Raises:
        CacheFormatError: if a folder inside a dataset is a link: its files must neither be listed nor count
            as absent. Other links are not followed.
    """
    top, is_inside = _path(root, f"{below}/")
    for path, folders, files in os.walk(top, onerror=onerror):
        for folder in folders if is_inside else ():
            if os.path.islink(os.path.join(path, folder)):
                raise _link(os.path.join(path, folder))
        prefix = os.path.relpath(path, root)
        yield from files if prefix == "." else (f"{prefix}/{file}" for file in files)


def _link(path: str) -> CacheFormatError:
    """Return the error about a link inside a dataset."""
    return CacheFormatError(
        f"{path} is a link, and links inside a dataset's folder are not followed: replace it by a copy of "
        "what it leads to (cp -RL); only the whole folder of a dataset may be a link"
    )


def _check_kind(path: str, found: os.stat_result) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise _link(path)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(found.st_mode):
        raise _no_file(path)


def _no_file(path: str) -> CacheFormatError:
    return CacheFormatError(
        f"{path} is no file, but a pipe, a device or a socket: remove it, or restore the file"
    )


def _folders_inside(name: str) -> list[str]:
    """Return the folders of a file's path that lie inside a dataset's folder, outermost first."""
    segments = name.split("/")
    for first, segment in enumerate(segments):
        if segment in RESERVED_NAMES:  # no segment of a dataset's id is one of these
            return ["/".join(segments[: end + 1]) for end in range(first, len(segments) - 1)]
    return []
