"""Make room in a mirror: count what is there and what is promised, remove what nobody reads, oldest first.

A reader registers with the part table of its cache: it holds a shared lock on the table's lock file for as
long as it lives, whatever the number of parts. So the tables whose locks are held say which parts must stay,
and how many bytes are promised to those that are still being brought. All this happens while the mirror's
gate is held alone, and readers register while they share it: nobody comes in between.
"""

import errno
import hashlib
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from yogadl._format.arrays import ArrayFile
from yogadl._format.table import PartTable
from yogadl._size import in_words
from yogadl.errors import CacheFormatError, StorageError
from yogadl.storage import _names
from yogadl.storage._mirror.flock import is_free
from yogadl.storage._mirror.location import MirrorLocation
from yogadl.storage._mirror.manifests import remove_with
from yogadl.storage._mirror.partial_file import names_of, remove_abandoned

# What is left free on a disk that nothing else limits: a hundredth of it, or this.
_SPARE_BYTES: Final = 2**30
# A file is locked a moment after it was made, and one that is adopted is not locked at all.
_ABANDONED_S: Final = 600.0
# What `st_blocks` counts, on any file system: a file that is being filled has holes.
_STAT_BLOCK_BYTES: Final = 512
_KINDS: Final = (".mdb", ".idx", ".parts")


def reader_lock(location: MirrorLocation, table_name: str) -> Path:
    """Return the lock that a reader of the cache with this part table holds."""
    return location.root / "locks" / f"{hashlib.sha256(table_name.encode()).hexdigest()[:32]}.lock"


@dataclass(frozen=True)
class _File:
    """One file that may go."""

    name: str
    size_bytes: int
    written_ns: int


@dataclass
class _Contents:
    """What a mirror has and owes, by name.

    Args:
        present: The files that are there.
        last_used_ns: When each was used last that a table names.
        kept: Which of them, and of those to come, somebody reads.
        promised: The size of each file that a reader is still waiting for.
        unfinished_bytes: How much of those is on the disk already.
    """

    present: dict[str, _File] = field(default_factory=dict)
    last_used_ns: dict[str, int] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
    promised: dict[str, int] = field(default_factory=dict)
    unfinished_bytes: int = 0

    def age(self, file: _File) -> tuple[int, bool, str]:
        """Return what sorts files by when they were used last; a table comes after what it names."""
        return self.last_used_ns.get(file.name, file.written_ns), _is_table(file.name), file.name


def evict_for(location: MirrorLocation, wanted: dict[str, int], limit_bytes: int | None, what: str) -> None:
    """Remove files that nobody reads, least recently used first, until `wanted` fits.

    The caller holds the gate alone.

    Args:
        place: The mirror.
        wanted: Name and size of each file that is about to be brought.
        limit_bytes: What the mirror may hold; ``None`` if only the disk limits it.
        what: What they are for, for messages.

    Raises:
        StorageError: if they can't fit; then nothing is removed.
    """
    contents = _contents(location, wanted)
    promised = contents.promised | {
        name: size for name, size in wanted.items() if name not in contents.present
    }
    here_bytes = sum(file.size_bytes for file in contents.present.values())
    most_bytes, because = _most_bytes(location, here_bytes + contents.unfinished_bytes, limit_bytes)
    excess_bytes = here_bytes + sum(promised.values()) - most_bytes
    free = [
        file for name, file in contents.present.items() if name not in contents.kept and name not in wanted
    ]
    missing_bytes = excess_bytes - sum(file.size_bytes for file in free)
    if missing_bytes > 0:
        in_use_bytes = sum(size for name, size in promised.items() if name not in wanted) + sum(
            file.size_bytes for name, file in contents.present.items() if name in contents.kept
        )
        raise StorageError(
            errno.ENOSPC,
            f"{what} does not fit into the mirror {location.root}: {in_words(sum(wanted.values()))} are to "
            f"be brought, {because}, and {in_words(in_use_bytes)} are in use: it is "
            f"{in_words(missing_bytes)} short. Raise mirror_limit, end other readers, or give mirror= a "
            "folder on a larger disk",
        )
    for file in sorted(free, key=contents.age):
        if excess_bytes <= 0:
            break
        excess_bytes -= location.caches.remove(file.name)
        if _is_table(file.name):
            reader_lock(location, file.name).unlink(missing_ok=True)
            remove_with(location.caches, file.name)


def _most_bytes(location: MirrorLocation, here_bytes: int, limit_bytes: int | None) -> tuple[int, str]:
    """Return how many bytes the mirror may have, and why."""
    found = os.statvfs(location.root)
    disk_bytes, free_bytes = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    on_disk_bytes = here_bytes + free_bytes - min(_SPARE_BYTES, disk_bytes // 100)
    if limit_bytes is not None and limit_bytes < on_disk_bytes:
        return limit_bytes, f"its limit is {in_words(limit_bytes)}"
    return on_disk_bytes, f"the disk has {in_words(free_bytes)} free"


def _contents(location: MirrorLocation, wanted: Iterable[str]) -> _Contents:
    """Look at every file of the mirror; remove what killed processes have left, but of what is wanted."""
    to_go_on_with = {name for path in map(location.caches.path, wanted) for name in names_of(path)}
    contents = _Contents()
    for name, path in _files(location.caches.root):
        try:
            found = path.lstat()
        except FileNotFoundError:
            continue  # finished or removed just now
        if name.endswith(_KINDS):
            contents.present[name] = _File(name, found.st_size, found.st_mtime_ns)
        elif path.name.startswith(".") and path.suffix in (".tmp", ".lock"):
            is_old = time.time() - found.st_ctime > _ABANDONED_S
            if path in to_go_on_with or not (is_old and _is_removed(path)):
                contents.unfinished_bytes += min(found.st_size, found.st_blocks * _STAT_BLOCK_BYTES)
    for name in filter(_is_table, list(contents.present)):
        _count_table(location, name, contents)
    return contents


def _is_removed(path: Path) -> bool:
    """Remove what a process has left, unless that lives; return whether it is gone."""
    if path.suffix == ".tmp":
        return remove_abandoned(path)
    if not is_free(path):
        return False
    path.unlink(missing_ok=True)
    return True


def _count_table(location: MirrorLocation, name: str, contents: _Contents) -> None:
    """Take a table into account: its parts stay if it is in use, and else are as old as its last use."""
    lock = reader_lock(location, name)
    named = _named_by(location, name, contents.present[name].size_bytes)
    if not is_free(lock):
        contents.kept |= {name, *named}
        contents.promised |= {part: size for part, size in named.items() if part not in contents.present}
        return
    try:
        last_used_ns = lock.stat().st_mtime_ns
    except OSError:
        return
    for part in (name, *named):
        contents.last_used_ns[part] = max(contents.last_used_ns.get(part, 0), last_used_ns)


def _is_table(name: str) -> bool:
    return name.endswith(_names.TABLE_SUFFIX)


def _named_by(location: MirrorLocation, name: str, size_bytes: int) -> dict[str, int]:
    """Return name and size of the parts that a table names, and the indexes with size 0."""
    dataset_id = name.rpartition("/tables/")[0]
    try:
        content = location.caches.view(name, size_bytes)
        table = PartTable.from_file(ArrayFile.from_buffer(content or b"", name), name)
    except CacheFormatError:
        return {}  # whoever reads it brings it again
    sizes = zip(table.sha256, table.size_bytes.tolist(), strict=True)
    return {_names.part(dataset_id, sha256): size for sha256, size in sizes} | {
        name: 0
        for names in zip(table.sha256, table.index_sha256, strict=True)
        for name in _names.indexes(dataset_id, *names)
    }


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield name and path of every file below a folder."""
    for folder, _, files in os.walk(root):
        for file in files:
            path = Path(folder, file)
            yield str(path.relative_to(root)), path
