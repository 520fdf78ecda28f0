"""What finds and reads the files of parts and foreign files; those that are here are checked when opened."""

import errno
import os
import resource
import stat
import weakref
from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from yogadl._core.protocols import Int64s
from yogadl._format.foreign import ForeignFile, PartFile
from yogadl.errors import CacheFormatError, StorageError

_MOST_OPEN_FILES: Final = 1024


class PartRemovedError(StorageError):
    """A part was removed from this machine, which has no room for it again: it counts as away from now on."""


class PartFiles(Protocol):
    """The places of the parts' files. Foreign files are numbered after the parts."""

    def path(self, part: int) -> str:
        """Return the path of the file of a part, or of a foreign file or its copy, by its number."""

    def dictionary(self, sha256: str) -> bytes:
        """Return the dictionary of that name, which compressed values need."""

    @property
    def away(self) -> "AwayParts | None":
        """The reader of parts that are not on this machine; ``None`` if all are."""
        return None


class AwayParts(Protocol):
    """Reads parts that are not on this machine, by ranges of their bytes.

    Attributes:
        are_away: Whether each part, and each foreign file, is away. A part may arrive at any time; a part
            that was removed may become away.
    """

    are_away: NDArray[np.bool_]

    @property
    def are_here(self) -> NDArray[np.bool_]:
        """Whether each part is on this machine by now: other processes download parts, too."""

    def read(
        self,
        parts: Int64s,
        positions: Int64s,
        lengths: Int64s,
        *,
        keeps_pages: bool,
        held: "HeldRows | None" = None,
    ) -> Sequence[bytes | memoryview]:
        """Read ranges of parts that are away.

        Args:
            parts: The part of each range.
            positions: The start of each range in its part.
            lengths: The bytes of each range.
            keeps_pages: Whether the bytes around a range are likely to be read, too.
            held: Keeps the bytes, if they will be read again.
        """

    def announce(
        self, parts: Int64s, positions: Int64s, lengths: Int64s, held: "HeldRows", *, keeps_pages: bool
    ) -> None:
        """Begin to read ranges that will soon be read; `held` keeps the bytes that are not kept as pages."""

    def new_held(self) -> "HeldRows":
        """Return what keeps the bytes of one announcement, as long as it lives."""

    def will_read(self, records: int, *, held_bytes: int | None, is_scattered: bool) -> None:
        """Announce that a stream of this process is going to read so many records an epoch; see `choice`.

        `is_scattered` tells whether it shuffles all records.
        """

    def choice(self, share: float, *, held_bytes: int | None) -> tuple[str, str]:
        """Return the way in which a stream reads this share of the records an epoch, and the reason.

        `held_bytes` is the memory needed to hold the stream's blocks, if its order is of blocks.
        """

    def block_store(self, key: str, share: float, held_bytes: int, *, is_shared: bool) -> Any:
        """Return the store in which a stream holds the blocks that it reads from; None if it needs none.

        Args:
            key: A name for the stream, the same in all processes of this machine that read it.
            share: The share of the records that the stream reads an epoch.
            held_bytes: The room that the blocks take.
            is_shared: Whether several processes read one shard.
        """

    @property
    def received(self) -> tuple[int, int]:
        """The number of requests by which this process read ranges, and the number of bytes received."""


class HeldRows(Protocol):
    """Keeps bytes of parts that are not on this machine."""

    def add(self, parts: Int64s, positions: Int64s, lengths: Int64s) -> None:
        """Begin to read these ranges, and keep their bytes."""


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
        problem = str(error).partition(";")[0].replace(f"part {path}", "it", 1)
        raise changed_foreign(file, problem) from error
    try:
        require_unchanged(descriptor, path, file)
    except CacheFormatError:
        os.close(descriptor)
        raise
    return descriptor


def open_file(path: str, file: PartFile | ForeignFile) -> int:
    """Open a file of a version, or the copy of it at this path; see `open_part` and `open_foreign`."""
    return open_part(path, file.size_bytes) if isinstance(file, PartFile) else open_foreign(path, file)


def require_unchanged(descriptor: int, path: str, file: ForeignFile) -> None:
    """Make sure that an open foreign file is as it was; of the mirror's copy, that it has its size.

    Raises:
        CacheFormatError: if it was changed.
    """
    status = os.fstat(descriptor)
    tag = str(status.st_mtime_ns) if path == file.address else file.tag
    if (status.st_size, tag) != (file.size_bytes, file.tag):
        raise changed_foreign(file, "it was written since")


class OpenFile:
    """An open file, which is closed with the last reference to it, so not while a thread reads from it.

    Args:
        descriptor: Its descriptor, which this object closes.
        path: Its path.
        file: The file of the version whose bytes it has.

    Attributes:
        file: The file, if it is a local foreign one, into which anybody may write: it must stay as it is.
    """

    def __init__(self, descriptor: int, path: str, file: PartFile | ForeignFile) -> None:
        self.descriptor = descriptor
        self.path = path
        self.file = file if isinstance(file, ForeignFile) and file.is_local else None
        weakref.finalize(self, os.close, descriptor).atexit = False  # daemon threads may still read then
        status = os.fstat(descriptor)
        self._looks = _looks(status)
        self.ctime_ns = status.st_ctime_ns

    @property
    def is_same(self) -> bool:
        """Whether nobody has written to a foreign file, replaced or removed it, since it was opened.

        Whoever gives a file its old time of change, or its name to another file, changes its inode's time.
        """
        return self.file is None or _looks(os.fstat(self.descriptor)) == self._looks

    def problem(self) -> CacheFormatError:
        """Return the error of a foreign file that was changed."""
        assert self.file is not None
        try:
            status = os.lstat(self.path)  # a link is refused, as when it is opened
        except OSError as error:
            return changed_foreign(self.file, f"{error.strerror}")
        if (status.st_size, str(status.st_mtime_ns)) != (self.file.size_bytes, self.file.tag):
            return changed_foreign(self.file, "it was written since")
        return CacheFormatError(
            f"{self.path} was replaced, or was written and given its old time of change, since it was first "
            "read here; or only its owner, mode or links were changed. Compare it by storage.verify, and "
            "fetch the version again if it is sound; restore the file if not"
        )


def _looks(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def most_open_files() -> int:
    """Return how many files one reader may hold open: an eighth of what the process may, at most."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_OPEN_FILES if limit < 0 else min(_MOST_OPEN_FILES, max(1, limit // 8))


def changed_foreign(file: ForeignFile, problem: str) -> CacheFormatError:
    """Return the error of a foreign file that is not as it was when it was adopted."""
    return CacheFormatError(
        f"{file.address} is not the file that this version was adopted from: {problem}; restore it, or make "
        "a version of the files as they are: storage.refresh, or storage.adopt if they were moved"
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
