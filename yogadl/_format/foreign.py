"""Name the foreign files of a cache: files that are not its own, whose values it reads where they lie."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from yogadl._core.frozen import frozen
from yogadl._core.protocols import Int64s
from yogadl.errors import CacheFormatError

# The container of a version that has foreign files.
FOREIGN: Final = "foreign-1"
# The most bytes of an address and of a tag.
_MOST_TEXT_BYTES: Final = 4096
MAX_FOREIGN_BYTES: Final = 2**46  # of all foreign files of a version, as of all its parts


@frozen
class PartFile:
    """A part of a version.

    Args:
        sha256: Its name: the sha256 of its bytes.
        size_bytes: Its size.
    """

    sha256: str
    size_bytes: int

    @property
    def label(self) -> str:
        """A name for messages."""
        return f"part {self.sha256}"


@frozen
class ForeignFile:
    """One state of a foreign file; a file that was changed is another one.

    Args:
        address: The path of a local file, or the URL of an object.
        size_bytes: Its size.
        tag: The object's ETag or generation; of a local file the time of its last change, in nanoseconds.
    """

    address: str
    size_bytes: int
    tag: str

    @property
    def label(self) -> str:
        """A name for messages."""
        return self.address

    @property
    def is_local(self) -> bool:
        """Whether it is a file, not an object of a bucket."""
        return self.address.startswith("/")

    @property
    def is_sound(self) -> bool:
        """Whether a version can name this file."""
        return 0 <= self.size_bytes < MAX_FOREIGN_BYTES and _are_sound(self.address, self.tag)

    @cached_property
    def sha256(self) -> str:
        """The name of this state of the file."""
        text = json.dumps([self.address, self.size_bytes, self.tag], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

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

    @property
    def are_all_local(self) -> bool:
        """Whether all are files, not objects of buckets."""
        return bool(self._are_local().all())

    @property
    def are_any_local(self) -> bool:
        """Whether some are files, not objects of buckets."""
        return bool(self._are_local().any())

    def _are_local(self) -> NDArray[np.bool_]:
        starts = np.concatenate([np.zeros(1, np.int64), self.ends])[:-1]
        found: NDArray[np.bool_] = self.text[starts] == ord("/")
        return found

    def copy(self) -> "ForeignFiles":
        """Return the list with memory of its own."""
        return ForeignFiles(self.size_bytes.copy(), self.text.copy(), self.ends.copy())


NO_FOREIGN: Final = ForeignFiles.of(())


class Files:
    """All files in which values of a version lie, by number: its parts, and foreign files.

    How they are numbered is known here alone.

    Args:
        sha256: The name of each part.
        part_bytes: The size of each part.
        foreign: The foreign files.

    Attributes:
        sizes: The size of each file.
        foreign: The numbers of the foreign files.
        mappable: The number of the first file that is not to be mapped: anybody may cut foreign files of this
            machine, which would end a process that maps them. A mirror's copies of others are its own.
    """

    def __init__(self, sha256: Sequence[str], part_bytes: Int64s, foreign: ForeignFiles) -> None:
        self._sha256 = sha256
        self._foreign = foreign
        self._own = len(sha256)
        self.sizes = np.concatenate([part_bytes, foreign.size_bytes]) if len(foreign) else part_bytes
        self.foreign = range(self._own, len(self.sizes))
        self.mappable = self._own if foreign.are_any_local else len(self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, file: int) -> PartFile | ForeignFile:
        if file < self._own:
            return PartFile(self._sha256[file], int(self.sizes[file]))
        return self._foreign[file - self._own]

    def of_blocks(self, parts: Int64s, foreign: Int64s) -> Int64s:
        """Return the file of each block: its part, or the foreign file of this number, if it is not -1."""
        return np.where(foreign < 0, parts, foreign + self._own)

    def any_foreign(self, flags: NDArray[np.bool_]) -> bool:
        """Return whether the flag of any foreign file is set, given one for each file."""
        return bool(flags[self._own :].any())
