"""Name, open and read the files of a version: its parts, and the files of others in which its values lie."""

import errno
import hashlib
import json
import os
import resource
import stat
import weakref
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, ClassVar, Final, NewType, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from yogadl._core.frozen import frozen
from yogadl._core.protocols import Int64s
from yogadl.errors import CacheFormatError, StorageError

# The container of a version that has foreign files.
FOREIGN: Final = "foreign-1"
# The container of a version whose foreign files are of Parquet: its parts hold where row groups lie.
PARQUET: Final = "parquet-1"
# The most bytes of an address and of a tag.
_MOST_TEXT_BYTES: Final = 4096
MAX_FOREIGN_BYTES: Final = 2**46  # of all foreign files of a version, as of all its parts


# How to go on after damage of a file that the cache does not own.
REFRESH: Final = (
    "restore the file, or, if its bytes are right as they are, touch it, and make a version of the files as "
    "they are: storage.refresh"
)
_IN_MIRROR: Final = "If it is this machine's mirror that has other bytes, storage.verify downloads them again"

# The number of a file of a version.
FileId = NewType("FileId", int)


# What each kind of file declares:
#
# suffix          the end of its name in a folder of parts; of a file with an address, of its copy there
# is_interleaved  whether values of several fields lie one after the other, with other bytes between
# address         the path or URL where it lies, if it is not the cache's own file
# tag             the tag that its object must have; None if its bytes must have its name as their sha256
# is_watched      whether anybody may write into it, so that it must be found unchanged after each read
# sha256          its name
# size_bytes      its size
# label           a name for messages
# damage          where damaged bytes of it are said to be, and the remedy, if that is not the cache's
# open(path)      opens it, or the copy of it at this path, for reading, after a check that it is this file;
#                 raises a CacheFormatError if it is missing or another one, a StorageError if that fails
# changed(what)   returns the error of a file that is not as the version names it


@frozen
class PartFile:
    """A part of a version.

    Args:
        sha256: Its name: the sha256 of its bytes.
        size_bytes: Its size.
    """

    suffix: ClassVar[str] = ".mdb"
    is_interleaved: ClassVar[bool] = False
    address: ClassVar[str] = ""
    tag: ClassVar[None] = None
    is_watched: ClassVar[bool] = False

    sha256: str
    size_bytes: int

    @property
    def label(self) -> str:
        return f"part {self.sha256}"

    @property
    def damage(self) -> tuple[str, str | None]:
        return f"part {self.sha256}.mdb", None

    def open(self, path: str) -> int:
        return open_part(path, self.size_bytes)

    def changed(self, problem: str) -> CacheFormatError:
        return CacheFormatError(f"{self.label} {problem}; build the dataset again, or restore the file")


@frozen
class ForeignFile:
    """One state of a foreign file; a file that was changed is another one.

    Args:
        address: The path of a local file, or the URL of an object.
        size_bytes: Its size.
        tag: The object's ETag or generation; of a local file the time of its last change, in nanoseconds.
    """

    suffix: ClassVar[str] = ".foreign"
    is_interleaved: ClassVar[bool] = True

    address: str
    size_bytes: int
    tag: str

    @property
    def label(self) -> str:
        return self.address

    @property
    def damage(self) -> tuple[str, str | None]:
        return self.address, f"{REFRESH}. {_IN_MIRROR}"

    @property
    def is_local(self) -> bool:
        """Whether it is a file, not an object of a bucket."""
        return self.address.startswith("/")

    @property
    def is_watched(self) -> bool:
        return self.is_local

    @property
    def is_sound(self) -> bool:
        """Whether a version can name this file."""
        return 0 <= self.size_bytes < MAX_FOREIGN_BYTES and _are_sound(self.address, self.tag)

    @cached_property
    def sha256(self) -> str:
        """The name of this state of the file."""
        text = json.dumps([self.address, self.size_bytes, self.tag], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def open(self, path: str) -> int:
        """Open the file, or the mirror's copy of it, if it is as it was when it was adopted; see `File`."""
        try:
            descriptor = open_part(path, self.size_bytes)
        except CacheFormatError as error:
            problem = str(error).partition(";")[0].replace(f"part {path}", "it", 1)
            raise self.changed(problem) from error
        if path == self.address and not self.is_unchanged(os.fstat(descriptor)):
            os.close(descriptor)
            raise self.changed("it was written since")
        return descriptor

    def is_unchanged(self, status: os.stat_result) -> bool:
        """Return whether a local file still has its size and the time of its last change."""
        return (status.st_size, str(status.st_mtime_ns)) == (self.size_bytes, self.tag)

    def changed(self, problem: str) -> CacheFormatError:
        return CacheFormatError(
            f"{self.address} is not the file that this version was adopted from: {problem}; restore it, or "
            "make a version of the files as they are: storage.refresh, or storage.adopt if they were moved"
        )

    @staticmethod
    def from_json(document: Any, what: str) -> "ForeignFile":
        """Return the file that a list of address, size and tag describes.

        Raises:
            CacheFormatError: if it describes none; the error names `what`.
        """
        is_sound = isinstance(document, list) and list(map(type, document)) == [str, int, str]
        if is_sound and (found := ForeignFile(*document)).is_sound:
            return found
        raise CacheFormatError(f"{what} is damaged: {document!r:.100} is no foreign file; adopt it again")


def _are_sound(address: str, tag: str) -> bool:
    """Return whether an address and a tag can be those of a file."""
    if not (address.startswith("/") or "://" in address) or not address.isprintable() or "\0" in tag:
        return False
    # What leaves a folder could also leave the prefix that a storage's options permit.
    return not {".", ".."} & set(address.split("/")) and max(len(address), len(tag)) <= _MOST_TEXT_BYTES


class ForeignFiles:
    """The foreign files of a part table, by number; the text of each is parsed when it is used.

    Args:
        size_bytes: The size of each.
        text: Addresses and tags in UTF-8: of each file the address, a zero byte, and the tag.
        ends: Where the text of each ends.

    Raises:
        ValueError: if the arrays contradict each other.
    """

    def __init__(self, size_bytes: Int64s, text: NDArray[np.uint8], ends: Int64s) -> None:
        count = len(size_bytes) if size_bytes.ndim == 1 else -1
        is_sound = (
            size_bytes.dtype == ends.dtype == np.int64
            and ends.shape == (count,)
            and text.dtype == np.uint8
            and text.ndim == 1
            and bool((size_bytes >= 0).all())
            and float(size_bytes.sum(dtype=np.float64)) < MAX_FOREIGN_BYTES
            and bool((np.diff(ends, prepend=0) > 0).all())
            and (ends[-1] if count else 0) == len(text)
        )
        if not is_sound:
            raise ValueError("the list of foreign files contradicts itself")
        self.size_bytes = size_bytes
        self.text = text
        self.ends = ends

    @staticmethod
    def of(files: Iterable[ForeignFile]) -> "ForeignFiles":
        """Return the list of these files."""
        every = list(files)
        texts = [f"{file.address}\0{file.tag}".encode() for file in every]
        return ForeignFiles(
            np.array([file.size_bytes for file in every], np.int64),
            np.frombuffer(b"".join(texts), np.uint8),
            np.cumsum(np.array(list(map(len, texts)), np.int64), dtype=np.int64),
        )

    def __len__(self) -> int:
        return len(self.size_bytes)

    def __iter__(self) -> Iterator[ForeignFile]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, number: int) -> ForeignFile:
        start, end = int(self.ends[number - 1]) if number else 0, int(self.ends[number])
        try:
            address, _, tag = self.text[start:end].tobytes().decode().partition("\0")
        except UnicodeDecodeError as error:
            raise CacheFormatError(
                f"the address of a foreign file is no text: {error}; adopt again"
            ) from error
        return ForeignFile.from_json([address, int(self.size_bytes[number]), tag], "a part table")

    def are_local(self) -> NDArray[np.bool_]:
        """Return whether each is a file, not an object of a bucket."""
        starts = np.concatenate([np.zeros(1, np.int64), self.ends])[:-1]
        found: NDArray[np.bool_] = self.text[starts] == ord("/")
        return found

    def copy(self) -> "ForeignFiles":
        """Return the list with memory of its own."""
        return ForeignFiles(self.size_bytes.copy(), self.text.copy(), self.ends.copy())


NO_FOREIGN: Final = ForeignFiles.of(())


# Any file of a version.
File = PartFile | ForeignFile
# How the names of files end in a folder of parts, of all kinds.
SUFFIXES: Final = (PartFile.suffix, ForeignFile.suffix)


class Files:
    """All files in which values of a version lie, by number: its parts, and foreign files.

    How they are numbered is known here alone.

    Args:
        sha256: The name of each part.
        part_bytes: The size of each part.
        foreign: The foreign files.

    Attributes:
        ids: The number of each file.
        sizes: The size of each file.
        addressed: The numbers of the files that are not the cache's own, and have an address.
        are_addressed: Selects these files' entries of an array that has one for each file.
        are_here: Whether all of these are files of this machine, not objects of buckets.
        are_interleaved: Whether fields are interleaved in some; see `File`.
        mappable: The number of the first file that is not to be mapped: anybody may cut foreign files of this
            machine, which would end a process that maps them. A mirror's copies of others are its own.
    """

    def __init__(self, sha256: Sequence[str], part_bytes: Int64s, foreign: ForeignFiles) -> None:
        self._sha256 = sha256
        self._foreign = foreign
        self._own = len(sha256)
        self.sizes = np.concatenate([part_bytes, foreign.size_bytes]) if len(foreign) else part_bytes
        self.ids = cast("Sequence[FileId]", range(len(self.sizes)))
        self.are_addressed = slice(self._own, None)
        self.addressed = self.ids[self.are_addressed]
        are_local = foreign.are_local()
        self.are_here = bool(are_local.all())
        self.are_interleaved = ForeignFile.is_interleaved and len(foreign) > 0
        self.mappable = self._own if are_local.any() else len(self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, file: FileId) -> File:
        if file < self._own:
            return PartFile(self._sha256[file], int(self.sizes[file]))
        return self._foreign[file - self._own]

    @cached_property
    def own(self) -> "Files":
        """The files without those that have an address."""
        return Files(self._sha256, self.sizes[: self._own], NO_FOREIGN) if self.addressed else self

    @property
    def names(self) -> Iterator[str]:
        """The name of each in a folder of parts, in the order of their numbers."""
        own = (f"{sha256}{PartFile.suffix}" for sha256 in self._sha256)
        return chain(own, (f"{file.sha256}{file.suffix}" for file in self._foreign))

    @property
    def addressed_bytes(self) -> int:
        """The size of the files that have an address."""
        return int(self._foreign.size_bytes.sum())

    def of_blocks(self, parts: Int64s, foreign: Int64s) -> Int64s:
        """Return the file of each block: its part, or the foreign file of this number, if it is not -1."""
        return np.where(foreign < 0, parts, foreign + self._own)


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


# The error codes of opening something that is not a regular file: a link that is not followed, a socket, a
# device that does not exist.
NOT_A_FILE: Final = (errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.ENODEV)


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
        is_joined: bool = False,
    ) -> Sequence[bytes | memoryview]:
        """Read ranges of files that are away.

        Args:
            files: The file of each range.
            positions: The start of each range in its file.
            lengths: The bytes of each range.
            keeps_pages: Whether the bytes around a range are likely to be read, too.
            held: Keeps the bytes, if they will be read again.
            is_joined: Whether only the bytes of all ranges end to end are wanted, in any number of pieces.
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

    def block_store(self, key: str, share: float, room: tuple[int, int], *, is_shared: bool) -> Any:
        """Return the store in which a stream holds the blocks that it reads from; None if it needs none.

        Args:
            key: A name for the stream, the same in all processes of this machine that read it.
            share: The share of the records that the stream reads an epoch.
            room: The bytes that the blocks of this cache take, and those of all caches of the stream.
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
