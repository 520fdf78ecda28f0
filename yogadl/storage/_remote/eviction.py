"""Choose the folder of a mirror, keep the settings that its processes share, and evict files to make room."""

import contextlib
import errno
import hashlib
import itertools
import json
import logging
import os
import re
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

from yogadl._core.arguments import in_words
from yogadl._core.frozen import parse_json
from yogadl._format.files import SUFFIXES
from yogadl._format.table import ArrayFile, PartTable
from yogadl.errors import CacheFormatError, ConfigurationError, StorageError
from yogadl.storage import _names
from yogadl.storage._catalogue.cached import file_sizes, part_files
from yogadl.storage._files.folder import Folder, file_system, network_file_system, storage_error
from yogadl.storage._files.locks import is_free, locked
from yogadl.storage._remote.partial_file import names_of, remove_abandoned

_log = logging.getLogger("yogadl")

# The file that distinguishes a mirror from any other folder, and holds its limit.
_SETTINGS: Final = "mirror.json"
_MIRROR_ENTRIES: Final = frozenset(
    {_SETTINGS, "gate.lock", "locks", "caches", "builds", "blocks", "hosts", "lost+found"}
)
# The lock file in each folder of blocks. The processes that read the blocks hold it; it contains the
# number of bytes reserved for the blocks.
BLOCKS_LOCK: Final = "lock"
# A disk with less free space is not chosen.
_MIN_FREE_BYTES: Final = 10**9
_OTHER_TEMPORARY: Final = "/var/tmp"
MEMORY_FILE_SYSTEMS: Final = frozenset({"tmpfs", "ramfs"})
# The longest wait for the gate. Every process holds it only briefly: to list or remove files, or to write
# a few bytes.
_GATE_LIMIT_S: Final = 300.0


@dataclass(frozen=True)
class MirrorLocation:
    """The folder of a mirror.

    Args:
        root: Its path; everything else is below.
        given_bytes: The limit that this process has as an argument; used if the settings' file was removed.
    """

    root: Path
    given_bytes: int | None = None

    @cached_property
    def caches(self) -> Folder:
        """The mirrored files, laid out as in a local storage."""
        return Folder(self.root / "caches")

    @property
    def builds(self) -> Path:
        """The folder of unfinished builds of this machine."""
        return self.root / "builds"

    @property
    def blocks(self) -> Path:
        """The folder of blocks that streams hold for a time: a folder for each stream."""
        return self.root / "blocks"

    def gate(self, *, exclusive: bool) -> AbstractContextManager[None]:
        """Hold the lock that all processes share: exclusively to evict, shared to register a reader."""
        return locked(self.root / "gate.lock", exclusive=exclusive, limit_s=_GATE_LIMIT_S)

    def reader_lock(self, table_name: str) -> Path:
        """Return the lock that a reader of the cache with this part table holds."""
        return self.root / "locks" / f"{hashlib.sha256(table_name.encode()).hexdigest()[:32]}.lock"

    def download_lock(self, table_name: str) -> Path:
        """Return the lock that is held while all of the cache with this part table is downloaded."""
        return self.reader_lock(table_name).with_suffix(".whole")

    def fill_lock(self, table_name: str) -> Path:
        """Return the lock of the process that fills the mirror with the cache of this part table, by parts.

        The file contains the name of the part being downloaded.
        """
        return self.reader_lock(table_name).with_suffix(".fill")

    def download_locks(self) -> list[Path]:
        """Return every existing lock of a download, of `download_lock` and of `fill_lock`."""
        folder = self.root / "locks"
        return [*folder.glob("*.whole"), *folder.glob("*.fill")]

    def free_bytes(self) -> int:
        """Return the bytes of its disk that are free for this user."""
        found = os.statvfs(self.root)
        return found.f_bavail * found.f_frsize

    def limit_bytes(self) -> int | None:
        """Return the largest size of the mirror in bytes, or ``None`` if only the disk limits it."""
        try:
            settings = parse_json(Folder(self.root).read(_SETTINGS) or b"")
        except ValueError:
            return self.given_bytes  # damaged, or removed
        found = settings.get("limit_bytes") if isinstance(settings, dict) else self.given_bytes
        return found if type(found) is int and found > 0 else None

    def set_limit(self, limit_bytes: int) -> None:
        """Set the largest size of the mirror, for all processes that share it."""
        if self.limit_bytes() != limit_bytes:
            with self.gate(exclusive=True):
                self._write(limit_bytes)

    def prepare(self) -> None:
        """Make the folder a mirror, unless it is one.

        Raises:
            ConfigurationError: if it holds other files.
            StorageError: if it can't be made.
        """
        if self.is_made():
            return
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            others = {entry for entry in os.listdir(self.root) if not entry.startswith(".")} - _MIRROR_ENTRIES
        except (FileExistsError, NotADirectoryError) as error:
            raise ConfigurationError(f"the mirror {self.root} is a file, not a folder") from error
        except OSError as error:
            raise storage_error(error, f"can't make the mirror {self.root}") from error
        if others and not self.is_made():  # another process may have made it a mirror meanwhile
            raise ConfigurationError(
                f"the folder {self.root} is no mirror, and not empty (it has {sorted(others)[0]!r}); a "
                f"mirror removes files, so pass another folder: {self.root / 'yogadl-mirror'}"
            )
        with self.gate(exclusive=True):
            if not self.is_made():
                self._write(None)

    def is_made(self) -> bool:
        """Return whether the folder is a mirror now."""
        return Folder(self.root).size(_SETTINGS) is not None

    def _write(self, limit_bytes: int | None) -> None:
        Folder(self.root).write(_SETTINGS, json.dumps({"limit_bytes": limit_bytes}).encode() + b"\n")


def chosen_location(folder: Path) -> MirrorLocation:
    """Return the mirror in a folder that the user chose.

    On a network file system the mirror is in a subfolder of this host's own: it is unknown whether locks hold
    between hosts, and without them one host could remove files that another reads.
    """
    network = network_file_system(folder)
    if network is None:
        return MirrorLocation(folder)
    location = MirrorLocation(folder / "hosts" / _host_folder())
    _log.warning(
        "yogadl: the mirror %s is on a network file system (%s): no faster than the network; "
        "this host uses its own subfolder, %s. A local disk is better", folder, network, location.root
    )  # fmt: skip
    return location


def default_location(*, makes: bool = True) -> MirrorLocation:
    """Return the mirror in this machine's temporary storage: on a local disk, in this user's own folder.

    Args:
        makes: Whether its folder is made if missing.

    Raises:
        StorageError: if there is no local disk with room.
    """
    candidates = dict.fromkeys(
        Path(os.path.realpath(path)) for path in (tempfile.gettempdir(), _OTHER_TEMPORARY)
    )
    locations = [MirrorLocation(path / f"yogadl-mirror-{os.getuid()}") for path in candidates]
    for location in locations:
        if _is_own_folder(location.root) and location.is_made():
            return location
    refused: list[str] = []
    for location in locations:
        problem = _problem_with_default(location.root, makes)
        if problem is None:
            if makes:
                _log.warning(
                    "yogadl: copies of what is read from buckets are kept in %s (mirror= names another "
                    "folder)",
                    location.root,
                )
            return location
        refused.append(f"{location.root.parent} {problem}")
    raise StorageError(
        errno.ENOSPC,
        f"there is no local folder for copies of what is read from a bucket: {'; '.join(refused)}; "
        "pass mirror=FOLDER, a folder on a local disk",
    )


def _problem_with_default(root: Path, makes: bool) -> str | None:
    """Return why the default mirror can't be in this folder, ``None`` if it can."""
    parent = root.parent
    try:
        home = os.path.realpath(os.path.expanduser("~"))
        if parent.is_relative_to(home) and home != "/":
            return "is in the home folder"
        kind = file_system(parent)
        if network_file_system(parent) is not None:
            return f"is on a network file system ({kind})"
        if kind in MEMORY_FILE_SYSTEMS:
            return "is in memory"
        found = os.statvfs(parent)
        if found.f_bavail * found.f_frsize < _MIN_FREE_BYTES:
            return "is full"
        if makes:
            root.mkdir(mode=0o700, exist_ok=True)
        is_fine = _is_own_folder(root) or not os.path.lexists(root)
    except OSError as error:
        return f"can't be used ({error.strerror})"
    return None if is_fine else f"has a {root.name} that is not this user's own"


def _is_own_folder(root: Path) -> bool:
    """Return whether a folder is this user's and not writable for others; anybody may write to /tmp."""
    try:
        found = root.lstat()
    except OSError:
        return False
    others_write = stat.S_IWGRP | stat.S_IWOTH
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & others_write


def _host_folder() -> str:
    name = re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname())
    try:
        return f"{name}-{Path('/etc/machine-id').read_text().strip()[:12]}"
    except OSError:
        return name


# Evict files from a mirror to make room: files that no process reads, least recently used first.
#
# As long as a reader lives, it holds a shared lock on one lock file, that of its cache's part table: the
# tables whose locks are held name the parts that must stay. Another lock is held while parts are downloaded;
# it reserves the bytes of all missing parts, or of the one part that it names. Eviction holds the mirror's
# gate exclusively, and readers register while they share it, so neither interferes with the other.


# The bytes of the disk that stay free, or a hundredth of the disk if that is less.
_SPARE_BYTES: Final = 2**30
# Temporary files younger than this are not removed: their writers may not have locked them yet, and never
# lock the temporary files of `LocalMirror.adopt`.
_ABANDONED_S: Final = 600.0
# The unit of `st_blocks` on any file system; unlike `st_size`, the blocks exclude holes.
_STAT_BLOCK_BYTES: Final = 512
# Files with these suffixes count as contents of the mirror, and may be evicted.
_MIRRORED_SUFFIXES: Final = (
    *SUFFIXES, ".idx", ".parts", _names.DICTIONARY_SUFFIX, _names.SELECTION_SUFFIX, _names.PLAN_SUFFIX,
)  # fmt: skip


@dataclass
class _Contents:
    """The files of a mirror and the room reserved in it, by name.

    Args:
        present: The files that exist.
        last_used_ns: The time of the last use of each file that a table names.
        in_use: The files that some reader has open or is going to download.
        reserved: The size of each file that a reader is going to download.
        unfinished_bytes: The bytes of those files that are on the disk already.
    """

    present: dict[str, os.stat_result] = field(default_factory=dict)
    last_used_ns: dict[str, int] = field(default_factory=dict)
    in_use: set[str] = field(default_factory=set)
    reserved: dict[str, int] = field(default_factory=dict)
    unfinished_bytes: int = 0

    def eviction_order(self, name: str) -> tuple[int, bool, str]:
        """Return a sort key: the least recently used file first, a table after the files that it names."""
        return self.last_used_ns.get(name, self.present[name].st_mtime_ns), _is_table(name), name


def evict_for(location: MirrorLocation, wanted: dict[str, int], limit_bytes: int | None, what: str) -> int:
    """Evict files that no process reads, least recently used first, until `wanted` fits.

    The caller holds the gate exclusively.

    Args:
        location: The mirror.
        wanted: Name and size of each file that is about to be downloaded.
        limit_bytes: The largest size of the mirror, or ``None`` if only the disk limits it.
        what: A name for the wanted files, for messages.

    Returns:
        The number of further bytes that would fit without more evictions.

    Raises:
        StorageError: if the wanted files can't fit; then nothing is evicted.
    """
    contents = _contents(location, wanted)
    reserved = contents.reserved | {
        name: size for name, size in wanted.items() if name not in contents.present
    }
    here_bytes = sum(file.st_size for file in contents.present.values())
    most_bytes, reason, remedy = _most_bytes(location, here_bytes + contents.unfinished_bytes, limit_bytes)
    excess_bytes = here_bytes + sum(reserved.values()) - most_bytes
    evictable = contents.present.keys() - contents.in_use - wanted.keys()
    missing_bytes = excess_bytes - sum(contents.present[name].st_size for name in evictable)
    if missing_bytes > 0:
        in_use_bytes = sum(size for name, size in reserved.items() if name not in wanted) + sum(
            file.st_size for name, file in contents.present.items() if name in contents.in_use
        )
        raise StorageError(
            errno.ENOSPC,
            f"{what} does not fit into the mirror {location.root}: {in_words(sum(wanted.values()))} are to "
            f"be downloaded, {reason}, and {in_words(in_use_bytes)} are in use: it is "
            f"{in_words(missing_bytes)} short. {remedy}",
        )
    _evict(location, contents, evictable, excess_bytes)
    return max(0, -excess_bytes)


def evict_to_free(location: MirrorLocation, size_bytes: int) -> None:
    """Evict files that no process reads, least recently used first, until the disk has this many bytes free.

    If that is impossible, all of them are evicted. The caller holds the gate exclusively.
    """
    contents = _contents(location, ())
    evictable = contents.present.keys() - contents.in_use
    _evict(location, contents, evictable, size_bytes - location.free_bytes())


def described_contents(location: MirrorLocation) -> str:
    """Return a phrase with the size of a mirror's files, and of those that can't be evicted."""
    contents = _contents(location, ())
    here_bytes = sum(file.st_size for file in contents.present.values())
    in_use_bytes = sum(file.st_size for name, file in contents.present.items() if name in contents.in_use)
    return (
        f"the mirror {location.root} has {in_words(here_bytes)}, of which {in_words(in_use_bytes)} are being "
        f"read, and its disk has {in_words(location.free_bytes())} free"
    )


def _evict(
    location: MirrorLocation, contents: _Contents, evictable: Iterable[str], excess_bytes: int
) -> None:
    """Remove these files, least recently used first, until `excess_bytes` are removed."""
    for name in sorted(evictable, key=contents.eviction_order):
        if excess_bytes <= 0:
            break
        excess_bytes -= location.caches.remove(name)
        if _is_table(name):
            for lock in (location.reader_lock, location.download_lock, location.fill_lock):
                lock(name).unlink(missing_ok=True)
            stem = name.removesuffix(_names.TABLE_SUFFIX)
            for other in location.caches.names(name.rpartition("/")[0], _names.MANIFEST_SUFFIX):
                if other.startswith(f"{stem}."):  # a manifest of this table: see `LocalMirror.keep`
                    location.caches.remove(other)


def _most_bytes(location: MirrorLocation, here_bytes: int, limit_bytes: int | None) -> tuple[int, str, str]:
    """Return the largest size of the mirror, the reason for that limit, and a remedy."""
    found = os.statvfs(location.root)
    disk_bytes, free_bytes = found.f_blocks * found.f_frsize, location.free_bytes()
    on_disk_bytes = here_bytes + free_bytes - min(_SPARE_BYTES, disk_bytes // 100)
    if limit_bytes is not None and limit_bytes < on_disk_bytes:
        limit = f"its limit is {in_words(limit_bytes)}"
        return limit_bytes, limit, "Raise it, Mirror(limit=...), or end other readers"
    remedy = "Make room on the disk, end other readers, or give mirror= a folder on a larger one"
    return on_disk_bytes, f"the disk has {in_words(free_bytes)} free", remedy


def _contents(location: MirrorLocation, wanted: Iterable[str]) -> _Contents:
    """List every file of the mirror; remove leftovers of killed processes, except those of wanted files."""
    resumable = {name for path in map(location.caches.path, wanted) for name in names_of(path)}
    contents = _Contents()
    # The locks are read before the files are listed, so that a part whose download ends in between is
    # counted.
    downloads = _held_download_locks(location)
    for name, path in _files(location.caches.root):
        try:
            found = path.lstat()
        except FileNotFoundError:
            continue  # finished or removed meanwhile
        if name.endswith(_MIRRORED_SUFFIXES):
            contents.present[name] = found
        elif path.name.startswith(".") and path.suffix in (".tmp", ".lock"):
            is_old = time.time() - found.st_ctime > _ABANDONED_S
            if path in resumable or not (is_old and _remove_leftover(path)):
                contents.unfinished_bytes += min(found.st_size, found.st_blocks * _STAT_BLOCK_BYTES)
    for name in filter(_is_table, list(contents.present)):
        _add_table(location, name, downloads, contents)
    _add_blocks(location, contents)
    return contents


def _add_blocks(location: MirrorLocation, contents: _Contents) -> None:
    """Add to `contents` the bytes that streams reserve for blocks; remove blocks that no process reads."""
    for lock in location.blocks.glob(f"*/{BLOCKS_LOCK}"):
        folder = lock.parent
        if is_free(lock):
            shutil.rmtree(folder, ignore_errors=True)
            continue
        with contextlib.suppress(OSError, ValueError):
            contents.reserved[f"blocks/{folder.name}"] = int(lock.read_bytes() or 0)
        for entry in os.scandir(folder):
            with contextlib.suppress(FileNotFoundError):
                contents.unfinished_bytes += entry.stat(follow_symlinks=False).st_size


def _remove_leftover(path: Path) -> bool:
    """Remove a process's leftover file, unless that process is alive; return whether the file was removed."""
    if path.suffix == ".tmp":
        return remove_abandoned(path)
    if not is_free(path):
        return False
    path.unlink(missing_ok=True)
    return True


def _held_download_locks(location: MirrorLocation) -> dict[Path, list[str]]:
    """Return the locks of running downloads, each with the names of the parts in it; no names: all parts."""
    held: dict[Path, list[str]] = {}
    for lock in location.download_locks():
        if not is_free(lock):
            content = Folder(lock.parent).read(lock.name) or b""
            held[lock] = content.decode(errors="replace").splitlines()
    return held


def _add_table(
    location: MirrorLocation, name: str, downloads: Mapping[Path, list[str]], contents: _Contents
) -> None:
    """Add a table's files to `contents`: their use or last use, and the room for those being downloaded."""
    lock = location.reader_lock(name)
    dataset_id, present = name.rpartition("/tables/")[0], contents.present
    table = _table_of(location, name, present[name].st_size)
    filled, is_whole = downloads.get(location.fill_lock(name), ()), location.download_lock(name) in downloads
    if table is not None and (filled or is_whole):
        contents.reserved.update(
            (file, size_bytes)
            for file, size_bytes in file_sizes(dataset_id, table.files)
            if file not in present and (is_whole or file in filled)
        )
    # Only files that exist are added: these may be few of the many that the table names.
    named = itertools.chain([name], () if table is None else part_files(dataset_id, table, table.files))
    if not is_free(lock):
        contents.in_use.update(file for file in named if file in present)
        return
    try:
        last_used_ns = lock.stat().st_mtime_ns
    except OSError:
        return
    for file in named:
        if file in present:
            contents.last_used_ns[file] = max(contents.last_used_ns.get(file, 0), last_used_ns)


def _is_table(name: str) -> bool:
    return name.endswith(_names.TABLE_SUFFIX)


def _table_of(location: MirrorLocation, name: str, size_bytes: int) -> PartTable | None:
    """Return a part table, or ``None`` if it is damaged; the next reader of its cache downloads it again."""
    try:
        content = location.caches.view(name, size_bytes)
        return PartTable.from_file(ArrayFile.from_buffer(content or b"", name), name)
    except CacheFormatError:
        return None


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield name and path of every file below a folder."""
    for folder, _, files in os.walk(root):
        below = os.path.relpath(folder, root)
        for file in files:
            yield file if below == "." else f"{below}/{file}", Path(folder, file)
