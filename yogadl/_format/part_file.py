"""What finds and reads the files of a version, those that are here and those that are away."""

import os
import resource
import weakref
from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from yogadl._core.protocols import Int64s
from yogadl._format.files import File, FileId
from yogadl.errors import CacheFormatError, StorageError

_MOST_OPEN_FILES: Final = 1024


class PartRemovedError(StorageError):
    """A part was removed from this machine, which has no room for it again: it counts as away from now on."""


class PartFiles(Protocol):
    """The places of the files of a version."""

    def path(self, file: FileId) -> str:
        """Return the path of a file, or of its copy."""

    def dictionary(self, sha256: str) -> bytes:
        """Return the dictionary of that name, which compressed values need."""

    @property
    def away(self) -> "AwayParts | None":
        """The reader of parts that are not on this machine; ``None`` if all are."""
        return None


class AwayParts(Protocol):
    """Reads files that are not on this machine, by ranges of their bytes.

    Attributes:
        are_away: Whether each file is away. A file may arrive at any time; one that was removed may become
            away.
    """

    are_away: NDArray[np.bool_]

    @property
    def are_here(self) -> NDArray[np.bool_]:
        """Whether each file is on this machine by now: other processes download files, too."""

    def read(
        self,
        files: Int64s,
        positions: Int64s,
        lengths: Int64s,
        *,
        keeps_pages: bool,
        held: "HeldRows | None" = None,
    ) -> Sequence[bytes | memoryview]:
        """Read ranges of files that are away.

        Args:
            files: The file of each range.
            positions: The start of each range in its file.
            lengths: The bytes of each range.
            keeps_pages: Whether the bytes around a range are likely to be read, too.
            held: Keeps the bytes, if they will be read again.
        """

    def announce(
        self, files: Int64s, positions: Int64s, lengths: Int64s, held: "HeldRows", *, keeps_pages: bool
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
    """Keeps bytes of files that are not on this machine."""

    def add(self, files: Int64s, positions: Int64s, lengths: Int64s) -> None:
        """Begin to read these ranges, and keep their bytes."""


class OpenFile:
    """An open file, which is closed with the last reference to it, so not while a thread reads from it.

    Args:
        descriptor: Its descriptor, which this object closes.
        path: Its path.
        file: The file of the version whose bytes it has.

    Attributes:
        is_watched: Whether anybody may write into it: it must stay as it is.
    """

    def __init__(self, descriptor: int, path: str, file: File) -> None:
        self.descriptor = descriptor
        self.path = path
        self.is_watched = file.is_watched
        self._file = file
        weakref.finalize(self, os.close, descriptor).atexit = False  # daemon threads may still read then
        status = os.fstat(descriptor)
        self._looks = _looks(status)
        self.ctime_ns = status.st_ctime_ns

    @property
    def is_same(self) -> bool:
        """Whether nobody has written to a watched file, replaced or removed it, since it was opened.

        Whoever gives a file its old time of change, or its name to another file, changes its inode's time.
        """
        return not self.is_watched or _looks(os.fstat(self.descriptor)) == self._looks

    def problem(self) -> CacheFormatError:
        """Return the error of a watched file that was changed."""
        try:
            status = os.lstat(self.path)  # a link is refused, as when it is opened
        except OSError as error:
            return self._file.changed(f"{error.strerror}")
        if (status.st_size, str(status.st_mtime_ns)) != (self._file.size_bytes, self._file.tag):
            return self._file.changed("it was written since")
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
