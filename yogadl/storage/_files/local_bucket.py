"""Keep a bucket's objects as files of a folder, on a disk or on a network file system that machines share."""

import errno
import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

from yogadl.errors import ConfigurationError, StorageError
from yogadl.storage._files.folder import (
    Folder,
    changed,
    files_below,
    open_file,
    refuse_unlisted,
    stat_any,
    stat_file,
    storage_error,
)
from yogadl.storage._objects.bucket import (
    Body,
    Bucket,
    Object,
    check_range,
    checked_name,
    checked_prefix,
    is_name,
    is_own,
    replaced,
)

_CHUNK_BYTES: Final = 2**20
_TEMPORARY: Final = re.compile(r"\.[0-9a-f]{16}\.tmp")
_MILLISECOND_NS: Final = 1_000_000
_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)

Found = TypeVar("Found")


class LocalBucket(Bucket):
    """A bucket in a folder, whose names are paths in it.

    Writes are durable when the call returns. A hard link decides which writer is first; it is atomic on
    network file systems, too.

    Args:
        folder: The folder; made at the first write.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Folder(Path(folder).absolute())

    @property
    def url(self) -> str:
        return self._folder.root.as_uri()

    @contextmanager
    def get(
        self, name: str, start: int = 0, stop: int | None = None, *, tag: str | None = None
    ) -> Iterator[Body | None]:
        check_range(name, start, stop)
        file = self._look_up(name, open_file)
        if file is None:
            yield None
            return
        with file:
            found = _object(name, os.fstat(file.fileno()))
            if tag not in (None, found.tag):
                raise replaced(self.url, name)
            end = found.size_bytes if stop is None else min(stop, found.size_bytes)
            yield Body(found, self._chunks(file, found, start, end))

    def put(self, name: str, content: bytes | Path) -> Object:
        with self._folder.written(_checked_object_name(name), content) as temporary:
            _stamp(temporary)
            found = _object(name, temporary.stat())
            temporary.replace(self._folder.path(name))
        return found

    def put_if_absent(self, name: str, content: bytes) -> bool:
        with self._folder.written(_checked_object_name(name), content) as temporary:
            _stamp(temporary)
            is_first = self._link(temporary, name)
            temporary.unlink()
        # A network file system repeats a request whose answer was lost, and then fails on the link it has
        # made.
        return is_first or is_own(self, name, content)

    def head(self, name: str) -> Object | None:
        found = self._look_up(name, stat_file)
        return None if found is None else _object(name, found)

    def list(self, prefix: str = "") -> Iterator[Object]:
        # The folder only: the prefix `a/b` matches `a/bc/d`, too.
        below, _, _ = checked_prefix(prefix).rpartition("/")
        names = [
            name
            for name in files_below(self._folder.root, below, refuse_unlisted)
            # Other programs put files there whose names no object can have, such as "Icon\r".
            if name.startswith(prefix) and is_name(name) and not _is_temporary(name)
        ]
        for name in sorted(names):  # as text: in the order of the UTF-8 bytes, as stores list them
            found = self._look_up(name, stat_any)  # anything but a regular file is refused when it is read
            if found is not None:  # it may have been deleted meanwhile
                yield _object(name, found)

    def delete(self, name: str) -> None:
        self._folder.remove(_checked_object_name(name))

    def unfinished(self, below: str) -> Iterator[Object]:
        """Yield temporary files that killed writers left below a folder; these are no objects."""
        for name in files_below(self._folder.root, below, refuse_unlisted):
            if is_name(name) and _is_temporary(name):
                with suppress(FileNotFoundError):  # finished or removed meanwhile
                    yield _object(name, stat_any(self._folder.root, name))

    def delete_unfinished(self, name: str) -> None:
        """Remove a file that `unfinished` returned, if it exists."""
        self._folder.remove(checked_name(name))

    def _look_up(self, name: str, look: Callable[[Path, str], Found]) -> Found | None:
        """Return the result of `look` for a file, ``None`` if the file does not exist."""
        root, path = self._folder.root, self._folder.path(_checked_object_name(name))
        try:
            try:
                return look(root, name)
            except FileNotFoundError:
                # A network file system may cache for a minute that a name is free; opening the folder renews
                # the cache.
                os.close(os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY))
                return look(root, name)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except OSError as error:
            raise storage_error(error, f"can't read {path}", reads=True) from error

    def _chunks(self, file: BinaryIO, found: Object, start: int, end: int) -> Iterator[bytes]:
        name, at = found.name, start
        while at < end:
            try:
                chunk = os.pread(file.fileno(), min(_CHUNK_BYTES, end - at), at)
            except OSError as error:
                if error.errno == errno.ESTALE:  # deleted on the server of a network file system
                    raise replaced(self.url, name) from error
                raise storage_error(error, f"can't read {self._folder.path(name)}") from error
            if not chunk:
                raise StorageError(
                    errno.EIO,
                    f"{self._folder.path(name)} ends at byte {at}, before {end}: it was truncated meanwhile; "
                    "restore the file",
                )
            at += len(chunk)
            if _object(name, os.fstat(file.fileno())).tag != found.tag:  # looked at after the read
                raise replaced(self.url, name)
            yield chunk

    def _link(self, temporary: Path, name: str) -> bool:
        path = self._folder.path(name)
        try:
            os.link(temporary, path)
        except FileExistsError as error:
            if os.path.isdir(path):  # not an object: waiting for it would never end
                raise storage_error(error, f"{path} is a folder; remove it") from error
            return False
        except OSError as error:
            if error.errno in _NO_LINKS:
                raise StorageError(
                    error.errno,
                    f"can't write {path}: its file system has no hard links, by which several machines agree "
                    "who writes first; use a folder on another file system",
                ) from error
            raise
        return True


def _is_temporary(name: str) -> bool:
    return _TEMPORARY.fullmatch(name.rpartition("/")[2]) is not None


def _checked_object_name(name: str) -> str:
    checked_name(name)
    if _is_temporary(name):
        raise ConfigurationError(f"an object can't be called {name!r}: unfinished files have such names")
    return name


def _stamp(path: Path) -> None:
    """Give a new file a time, and so a tag, that no other file has.

    File systems give one time to all files written within some milliseconds, and reuse the inodes of removed
    files. The milliseconds are kept, since they are from the file system's clock, not this machine's.
    """
    modified = path.stat().st_mtime_ns
    os.utime(path, ns=(modified, modified - modified % _MILLISECOND_NS + secrets.randbelow(_MILLISECOND_NS)))


def _object(name: str, status: os.stat_result) -> Object:
    tag = f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"
    return Object(name, status.st_size, tag, changed(status))
