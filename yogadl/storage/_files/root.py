"""Declare a root, the folder or bucket that holds the files of caches; name the manifests in its trash.

The trash of a dataset has the manifests of versions that were deleted or replaced.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from yogadl._core.key import DatasetKey
from yogadl._format.manifest import MAX_MANIFEST_BYTES
from yogadl.errors import CacheFormatError
from yogadl.storage import _names

if TYPE_CHECKING:
    from yogadl.storage._objects.bucket import Bucket

# The largest file that is read whole. The files of a cache that are read whole are small; a damaged or
# foreign file must not fill the memory.
MAX_READ_BYTES: Final = 2**28


class Entry(NamedTuple):
    """A file below a root, with the time of its last write by the root's clock; in a bucket with its tag."""

    name: str
    size_bytes: int
    modified: float
    tag: str = ""


class Promises(NamedTuple):
    """The promises of a root beyond the methods of `Root`: local folders, shared folders and buckets differ.

    Attributes:
        renames: Whether builds write parts in place and rename them; otherwise they upload them.
        has_locks: Whether file locks exclude all other writers; otherwise leases do, or nothing.
    """

    renames: bool
    has_locks: bool


class Root(Protocol):
    """Keep files by name: small ones are written from memory, large ones moved from a workplace.

    The one abstraction between a storage and its bytes. Readers see a file whole, old or new, or not at all.
    Safe to use from any process or thread. Every error is a `StorageError` that names the file.

    Attributes:
        promises: The promises of this root beyond its methods.
    """

    promises: Promises

    @property
    def location(self) -> str:
        """The location as users write it: a folder's path or a bucket's URL."""

    @property
    def bucket(self) -> "Bucket | None":
        """The bucket that holds the files, or ``None`` for a folder, where builds write parts in place."""
        return None

    def where(self, name: str) -> str:
        """Return the location of the file of that name, as users write it."""

    def read(self, name: str, most_bytes: int = MAX_MANIFEST_BYTES) -> bytes | None:
        """Return the content of a file, or ``None`` if it does not exist.

        Raises:
            CacheFormatError: if it is larger than `most_bytes`, or not a regular file: a link, a pipe, a
                device.
        """

    def view(self, name: str, most_bytes: int = MAX_READ_BYTES) -> bytes | None:
        """Return up to `most_bytes` of a file that may be large, or ``None`` if it does not exist."""

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes, or ``None`` if it does not exist."""

    def write(self, name: str, content: bytes) -> None:
        """Write a file, replacing any of that name."""

    def write_if_absent(self, name: str, content: bytes) -> bool:
        """Write a file unless the name is taken; return whether this call did."""

    def adopt(self, files: Mapping[str, Path]) -> None:
        """Move finished files from a `workplace` to their names, in this order."""

    def rename(self, name: str, new_name: str, check: Callable[[], None] = ...) -> bool:
        """Move a small file; return whether it existed. At each moment it has one of the names, or both.

        Args:
            name: Its name.
            new_name: Its new name.
            check: Called right before the old name is removed; it may raise to prevent that.
        """

    def names(self, below: str, suffix: str = "") -> list[str]:
        """Return the names of all finished files below a folder that have this suffix, in order."""

    def entries(self, below: str) -> Iterator[Entry]:
        """Yield an entry for each file below a folder, also for unfinished files."""

    def folders_with(
        self, *names: str, most_files: int | None = None, below: str = ""
    ) -> tuple[list[str], bool]:
        """Return every folder, at any depth, that has a folder of one of these names inside.

        Args:
            names: The names of the folders inside.
            most_files: The number of files and folders to look at, at most, or ``None`` for all.
            below: The folder to search, which may itself be in the result; empty for all.

        Returns:
            The folders, in order, and whether the search was complete.
        """

    def now(self) -> float:
        """Return the time by the clock that `age_s` uses; this may write an object, to see its time."""

    def age_s(self, name: str, now: float) -> float:
        """Return the time since a file was last written; 0 if it does not exist."""

    def keep(self, name: str) -> bool:
        """Protect a file from prunes for a day; ``False`` if it is gone, or a prune may remove it soon."""

    def remove(self, name: str) -> int | None:
        """Remove a file if it exists; return its size in bytes, if known."""

    def remove_folder(self, name: str) -> None:
        """Remove a folder and all below it, if it exists."""

    def with_room(self, dry_run: bool = False) -> AbstractContextManager[None]:
        """Ensure, inside the block, that there is the disk space that deleting and removing need.

        Args:
            dry_run: Whether nothing is to be removed.
        """

    def make_room(self, size_bytes: int) -> None:
        """Free this space on the disk where parts are written, from files that can be downloaded again."""
        return

    def workplace(self, below: str) -> AbstractContextManager[Path]:
        """Give a folder on a local disk for the unfinished files of a build.

        Args:
            below: The folder below this root where the build keeps its receipts.
        """

    def local(self, name: str) -> AbstractContextManager[Path]:
        """Give the path of a file's current bytes: the file itself, or a temporary copy.

        Raises:
            CacheFormatError: if the file does not exist.
        """


def too_large(where: str, most_bytes: int) -> CacheFormatError:
    """Return the error of a file that is larger than any file of its kind can be."""
    return CacheFormatError(
        f"{where} has more than {most_bytes} bytes, far more than any such file of a cache: remove it, or "
        "restore the file"
    )


def trashed(root: Root, dataset_id: str) -> Iterator[tuple[DatasetKey, int, str]]:
    """Yield for each manifest in the trash its key, the time of its deletion in ns, and its name."""
    below = f"{dataset_id}/trash"
    for name in root.names(below, _names.MANIFEST_SUFFIX):
        try:
            version, stamp = _names.split_trashed(name[len(below) + 1 :])
            key = DatasetKey(dataset_id, version)
        except ValueError:
            continue  # not written by yogadl
        yield key, stamp, name


def trashed_names(root: Root, key: DatasetKey) -> list[str]:
    """Return the names of a version's manifests in the trash, oldest first."""
    found = sorted((stamp, name) for other, stamp, name in trashed(root, key.id) if other == key)
    return [name for _, name in found]


def new_trashed_name(root: Root, key: DatasetKey) -> str:
    """Return the name for a manifest that goes to the trash now; it sorts after all older ones."""
    stamp = int(root.now() * 1e9)
    before = [stamp for other, stamp, _ in trashed(root, key.id) if other == key]
    stamp = max([stamp, *(stamp_before + 1 for stamp_before in before)])
    return _names.trashed(key, stamp)
