"""Declare what caches are kept below: a root, where files lie by name. A folder is one, a bucket another."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from yogadl._format.manifest import MAX_MANIFEST_BYTES
from yogadl.errors import CacheFormatError

if TYPE_CHECKING:
    from yogadl.storage._buckets.bucket import Bucket

# What is read whole is small, a manifest above all; a damaged or foreign file must not fill the memory.
MAX_READ_BYTES: Final = 2**28


class Entry(NamedTuple):
    """A file below a root, and when it was last written, by the root's own clock; of an object, its tag."""

    name: str
    size_bytes: int
    modified: float
    tag: str = ""


class Root(Protocol):
    """Keep files by name: small ones whole, large ones as they were finished elsewhere.

    Readers see a file whole, old or new, or not at all. Safe to use from any process or thread. Every error
    is a `StorageError` that names the file.
    """

    @property
    def location(self) -> str:
        """Where it is, as people write it: a folder's path or a bucket's URL."""

    @property
    def bucket(self) -> "Bucket | None":
        """The bucket that holds the files; ``None`` if they are in a folder, where parts are made, too."""
        return None

    def where(self, name: str) -> str:
        """Return where the file of that name lies, as people write it."""

    def read(self, name: str, most_bytes: int = MAX_MANIFEST_BYTES) -> bytes | None:
        """Return the content of a file, or ``None`` if there is none.

        Raises:
            CacheFormatError: if it is larger than that, or no file at all: a link, a pipe, a device.
        """

    def view(self, name: str, most_bytes: int = MAX_READ_BYTES) -> bytes | None:
        """Return the content of a file that may be large, but no more than `most_bytes`; ``None`` if none."""

    def size(self, name: str) -> int | None:
        """Return how many bytes a file has, or ``None`` if there is none."""

    def write(self, name: str, content: bytes) -> None:
        """Put a file in place of any other of that name."""

    def write_if_absent(self, name: str, content: bytes) -> bool:
        """Put a file unless there is one; return whether this call did."""

    def adopt(self, files: Mapping[str, Path]) -> None:
        """Take finished files from where they were made, a `workplace`, to their names, in this order."""

    def rename(self, name: str, new_name: str, check: Callable[[], None] = ...) -> bool:
        """Move a small file; return whether there was one. At each moment it has one name, or both.

        Args:
            name: Its name.
            new_name: What it is called from then on.
            check: Called right before the old name goes, which it may forbid by raising.
        """

    def names(self, below: str, suffix: str = "") -> list[str]:
        """Return the names of all finished files below a folder, with that ending, in order."""

    def entries(self, below: str) -> Iterator[Entry]:
        """Yield what is known of all files below a folder, the unfinished ones, too."""

    def folders_with(
        self, *names: str, most_files: int | None = None, below: str = ""
    ) -> tuple[list[str], bool]:
        """Return every folder, at any depth, that has a folder of one of these names inside.

        Args:
            names: Of the folders inside.
            most_files: How many files and folders are looked at, at most; ``None`` for all.
            below: The folder that is looked into, which may be one of them; empty for all.

        Returns:
            The folders, in order, and whether all was looked at.
        """

    def now(self) -> float:
        """Return the time by the clock that `age_s` goes by. It may write."""

    def age_s(self, name: str, now: float) -> float:
        """Return how long ago a file was last written; 0 if it is gone."""

    def keep(self, name: str) -> bool:
        """Make sure that pruning leaves a file alone for a day; ``False`` if it is gone or soon will be."""

    def remove(self, name: str) -> int | None:
        """Remove a file if it is there; return how many bytes it had, where that is known."""

    def remove_folder(self, name: str) -> None:
        """Remove a folder and all below it, if it is there."""

    def with_room(self, dry_run: bool = False) -> AbstractContextManager[None]:
        """See to it that what throws away and removes has the room that it takes itself.

        Args:
            dry_run: Whether nothing is to be removed.
        """

    def make_room(self, size_bytes: int) -> None:
        """Free so much of the disk where parts are made, as far as what else is there can be had again."""
        return

    def workplace(self, below: str) -> AbstractContextManager[Path]:
        """Give a folder on a local disk for what a build has not finished.

        Args:
            below: The folder below this root where the build keeps its receipts.
        """

    def local(self, name: str) -> AbstractContextManager[Path]:
        """Give the path of a file's bytes as they are here now: itself, or a copy that is gone afterwards.

        Raises:
            CacheFormatError: if there is no such file.
        """


def too_large(where: str, most_bytes: int) -> CacheFormatError:
    """Return the error of a file that has more bytes than any of its kind."""
    return CacheFormatError(
        f"{where} has more than {most_bytes} bytes, far more than any such file of a cache: remove it, or "
        "restore the file"
    )
