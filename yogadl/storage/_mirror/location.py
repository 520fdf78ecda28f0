"""Choose the folder of a mirror, and keep the settings that all processes share."""

import errno
import hashlib
import json
import logging
import os
import re
import socket
import stat
import tempfile
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from yogadl._core.frozen import parse_json
from yogadl.errors import ConfigurationError, StorageError
from yogadl.storage._flock import locked
from yogadl.storage._folder import Folder, storage_error
from yogadl.storage._mounts import file_system, network_file_system

_log = logging.getLogger("yogadl")

# The file that distinguishes a mirror from any other folder, and holds its limit.
_SETTINGS: Final = "mirror.json"
_OURS: Final = frozenset(
    {_SETTINGS, "gate.lock", "locks", "caches", "builds", "blocks", "hosts", "lost+found"}
)
# The lock in a folder of blocks: held by the processes that read them; contains the size of their room.
BLOCKS_LOCK: Final = "lock"
# A disk with less free space is not chosen.
_MIN_FREE_BYTES: Final = 10**9
_OTHER_TEMPORARY: Final = "/var/tmp"
IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
# The gate is held only while files are looked at or removed, or a few bytes are written.
_GATE_LIMIT_S: Final = 300.0


@dataclass(frozen=True)
class MirrorLocation:
    """The folder of a mirror.

    Args:
        root: Its path; everything else is below.
        given_bytes: The limit that this process was given; used if the file with the limit was removed.
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
        """Return the lock of the one process that fills the mirror with that cache, part by part.

        The file contains the name of the part being downloaded.
        """
        return self.reader_lock(table_name).with_suffix(".fill")

    def download_locks(self) -> list[Path]:
        """Return every existing lock of these two kinds."""
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
            others = {entry for entry in os.listdir(self.root) if not entry.startswith(".")} - _OURS
        except (FileExistsError, NotADirectoryError) as error:
            raise ConfigurationError(f"the mirror {self.root} is a file, not a folder") from error
        except OSError as error:
            raise storage_error(error, f"can't make the mirror {self.root}") from error
        if others and not self.is_made():  # another process may just have made it one
            raise ConfigurationError(
                f"the folder {self.root} is no mirror, and not empty (it has {sorted(others)[0]!r}); what is "
                f"in a mirror may be removed, so give a folder of its own: {self.root / 'yogadl-mirror'}"
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
    location = MirrorLocation(folder / "hosts" / _host())
    _log.warning(
        "yogadl: the mirror %s is on a network file system (%s): no faster than the network; "
        "this host has it in a folder of its own, %s. A local disk is better", folder, network, location.root
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
        problem = _problem_with(location.root, makes)
        if problem is None:
            if makes:
                _log.warning(
                    "yogadl: what is read from buckets is kept in %s (mirror= names another folder)",
                    location.root,
                )
            return location
        refused.append(f"{location.root.parent} {problem}")
    raise StorageError(
        errno.ENOSPC,
        f"there is no local place for copies of what is read from a bucket: {'; '.join(refused)}; "
        "give a folder on a local disk with mirror=FOLDER",
    )


def _problem_with(root: Path, makes: bool) -> str | None:
    """Return why the default mirror can't be in this folder, ``None`` if it can."""
    parent = root.parent
    try:
        home = os.path.realpath(os.path.expanduser("~"))
        if parent.is_relative_to(home) and home != "/":
            return "is in the home folder"
        kind = file_system(parent)
        if network_file_system(parent) is not None:
            return f"is on a network file system ({kind})"
        if kind in IN_MEMORY:
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


def _host() -> str:
    name = re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname())
    try:
        return f"{name}-{Path('/etc/machine-id').read_text().strip()[:12]}"
    except OSError:
        return name
