"""Keep small files by name in a bucket, or in a folder that several machines share, such as one on NFS."""

import contextlib
import errno
import itertools
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from yogadl._format.manifest import MAX_MANIFEST_BYTES
from yogadl.errors import StorageError
from yogadl.storage import _names
from yogadl.storage._files.folder import Folder
from yogadl.storage._files.local_bucket import LocalBucket
from yogadl.storage._files.root import MAX_READ_BYTES, Entry, Promises, Root, too_large
from yogadl.storage._objects.bucket import Bucket, Object

# The name of the object that is written to read the store's clock; no dataset has such an id.
_CLOCK: Final = ".yogadl/clock"
_CLOCK_VALID_S: Final = 600.0
_DAY_S: Final = 86_400.0


class BucketRoot:
    """The methods of `Root` for small files in a bucket. Safe for threads and after a fork; picklable.

    Methods write only if their docstrings, here or in `Root`, mention it. Reading takes only the permissions
    to get and to list.
    """

    promises = Promises(renames=False, has_locks=False)

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._clock: tuple[float, float] | None = None  # the store's time, and this machine's at that moment

    @property
    def location(self) -> str:
        return self._bucket.url

    def where(self, name: str) -> str:
        return f"{self._bucket.url}/{name}"

    def read(self, name: str, most_bytes: int = MAX_MANIFEST_BYTES) -> bytes | None:
        with self._bucket.get(name) as body:
            if body is None:
                return None
            if body.object.size_bytes > most_bytes:
                raise too_large(self.where(name), most_bytes)
            return b"".join(body.chunks)

    def view(self, name: str, most_bytes: int = MAX_READ_BYTES) -> bytes | None:
        # Reading the whole object leaves less memory in use than a range (benchmarks/many_parts.py).
        with self._bucket.get(name) as body:
            if body is None:
                return None
            chunks, size_bytes = [], 0
            for chunk in body.chunks:
                chunks.append(chunk)
                size_bytes += len(chunk)
                if size_bytes >= most_bytes:
                    break
            return b"".join(chunks)[:most_bytes]

    def size(self, name: str) -> int | None:
        found = self._bucket.head(name)
        return None if found is None else found.size_bytes

    def write(self, name: str, content: bytes) -> None:
        self._bucket.put(name, content)

    def write_if_absent(self, name: str, content: bytes) -> bool:
        return self._bucket.put_if_absent(name, content)

    def rename(self, name: str, new_name: str, check: Callable[[], None] = lambda: None) -> bool:
        """Move a small object, by a copy; return whether it existed."""
        content = self.read(name)
        if content is None:
            return False
        self.write(new_name, content)
        check()
        self._bucket.delete(name)
        return True

    def names(self, below: str, suffix: str = "") -> list[str]:
        found = (entry.name for entry in self._bucket.list(f"{below}/"))
        return sorted(name for name in found if name.endswith(suffix))

    def entries(self, below: str) -> Iterator[Entry]:
        for found in itertools.chain(self._bucket.list(f"{below}/"), self._unfinished(below)):
            yield Entry(found.name, found.size_bytes, found.modified, found.tag)

    def _unfinished(self, below: str) -> Iterator[Object]:
        """Yield temporary files that killed writers left below a folder; only buckets in folders have any."""
        found: Iterator[Object] = getattr(self._bucket, "unfinished", lambda _: iter(()))(below)
        return found

    def folders_with(
        self, *names: str, most_files: int | None = None, below: str = ""
    ) -> tuple[list[str], bool]:
        folders, count = set(), 0
        entries_listed = itertools.chain(
            self._bucket.list(f"{below}/" if below else ""), self._unfinished(below)
        )
        for entry in itertools.islice(entries_listed, most_files):
            count += 1
            segments = entry.name.split("/")[:-1]
            for number, segment in enumerate(segments):
                if number and segment in names:
                    folders.add("/".join(segments[:number]))
        return sorted(folders), count != most_files

    def now(self) -> float:
        """Return the time by the store's clock, read from the date of a small object that this writes.

        The clock of this machine is not used, since it may be hours off.
        """
        if self._clock is None or time.monotonic() - self._clock[1] > _CLOCK_VALID_S:
            written = self._bucket.put(_CLOCK, secrets.token_bytes(8))
            # A second is added, since HTTP dates are whole seconds: no object may seem to be from the future.
            self._clock = written.modified + 1.0, time.monotonic()
        store_s, monotonic_s = self._clock
        return store_s + time.monotonic() - monotonic_s

    def age_s(self, name: str, now: float) -> float:
        if _names.is_unfinished(name):
            unfinished = self._unfinished(name.rpartition("/")[0])
            found = next((entry for entry in unfinished if entry.name == name), None)
        else:
            found = self._bucket.head(name)
        return 0.0 if found is None else now - found.modified

    def keep(self, name: str) -> bool:
        """Return whether an object is too young for pruning to remove it within a day."""
        found = self._bucket.head(name)
        return found is not None and self.now() - found.modified < _DAY_S

    def remove(self, name: str) -> None:
        delete = getattr(self._bucket, "delete_unfinished", None) if _names.is_unfinished(name) else None
        (delete or self._bucket.delete)(name)

    def remove_folder(self, name: str) -> None:
        for entry in list(self.entries(name)):
            self.remove(entry.name)


# Freeing a full disk needs room for small files: a lease, its end, the copy of a manifest. The reserve holds
# that room as separate files, since a disk may run out of files, too. No dataset has such an id.
_RESERVE_FOLDER: Final = ".yogadl/reserve"
_PROBE_FILE: Final = ".yogadl/room"
_RESERVE_FILES: Final = 32
_RESERVE_FILE_BYTES: Final = 2**14
# The files that one `delete` or `prune` removes from the reserve. The rest is for the next one, since other
# programs may fill the disk in between.
_RELEASED_FILES: Final = 16
# The files that a dry run removes: it reads the store's clock, for which it writes a temporary file and
# renames it over another one.
_RELEASED_FILES_OF_DRY_RUN: Final = 2
# A build makes the reserve only if there is room for this many further files; to restore the reserve
# after files of it were removed, room for fewer is enough.
_SPARE_FILES: Final = 64
_SPARE_FILES_AFTER_RELEASE: Final = 8


class SharedRoot(BucketRoot, Root):
    """A folder that several machines share, such as one on NFS.

    Small files are read and written as in a bucket, in ways that allow for the file caches of other machines;
    parts are written in the folder and renamed.
    """

    promises = Promises(renames=True, has_locks=False)

    def __init__(self, folder: Folder) -> None:
        super().__init__(LocalBucket(folder.root))
        self._folder = folder

    def __reduce__(self) -> Any:
        return SharedRoot, (self._folder,)

    @property
    def location(self) -> str:
        return self._folder.location

    def where(self, name: str) -> str:
        return self._folder.where(name)

    def view(self, name: str, most_bytes: int = MAX_READ_BYTES) -> bytes | None:
        return self._folder.view(name, most_bytes)

    def adopt(self, files: Mapping[str, Path]) -> None:
        self._folder.adopt(files)

    def folders_with(
        self, *names: str, most_files: int | None = None, below: str = ""
    ) -> tuple[list[str], bool]:
        return self._folder.folders_with(*names, most_files=most_files, below=below)

    def remove_folder(self, name: str) -> None:
        self._folder.remove_folder(name)

    def with_room(self, dry_run: bool = False) -> AbstractContextManager[None]:
        """Remove a part of the reserve if the disk is full, because removing files takes room, too."""
        return _reserve_released_if_full(self._folder, dry_run=dry_run)

    @contextlib.contextmanager
    def workplace(self, below: str) -> Iterator[Path]:
        """Give a new folder, removed afterwards: a builder that lost its lease may still write to its own."""
        _make_reserve(self._folder)
        name = f"{below}/{secrets.token_hex(8)}"
        try:
            with self._folder.workplace(name) as path:
                yield path
        finally:
            shutil.rmtree(self._folder.path(name), ignore_errors=True)

    def local(self, name: str) -> AbstractContextManager[Path]:
        return self._folder.local(name)


def _make_reserve(folder: Folder, spare: int = _SPARE_FILES) -> None:
    """Make the missing files of the reserve, unless the disk is nearly full.

    Args:
        folder: The folder.
        spare: The number of further files that there must be room for.
    """
    with contextlib.suppress(OSError):  # the call that needs the space reports the error
        existing = {entry.name for entry in folder.entries(_RESERVE_FOLDER)}
        for name in sorted(
            {f"{_RESERVE_FOLDER}/{number:02d}" for number in range(_RESERVE_FILES)} - existing
        ):
            if not _has_room(folder, spare + 1):
                return
            folder.write(
                name, secrets.token_bytes(_RESERVE_FILE_BYTES)
            )  # random bytes, which can't be compressed


@contextlib.contextmanager
def _reserve_released_if_full(folder: Folder, *, dry_run: bool) -> Iterator[None]:
    """Remove half of the reserve if there is too little room, and restore it afterwards as far as possible.

    Args:
        folder: The folder.
        dry_run: Whether the caller only reads the clock. Then fewer files are removed, and the reserve is
            restored only if files of it were removed.
    """
    is_made = not dry_run
    with contextlib.suppress(OSError):  # the calls in the block report the error
        if not _has_room(folder, _RELEASED_FILES) or not _can_write(folder):
            for entry in list(folder.entries(_RESERVE_FOLDER))[
                : _RELEASED_FILES_OF_DRY_RUN if dry_run else _RELEASED_FILES
            ]:
                folder.remove(entry.name)
                is_made = True
    try:
        yield
    finally:
        if is_made:
            _make_reserve(folder, _SPARE_FILES_AFTER_RELEASE)


def _has_room(folder: Folder, files: int) -> bool:
    """Return whether the disk reports room for this many files of the reserve."""
    found = os.statvfs(folder.root)
    has_files = found.f_files == 0 or found.f_favail >= files  # some file systems have no limit, and report 0
    return has_files and found.f_bavail * found.f_frsize >= files * _RESERVE_FILE_BYTES


def _can_write(folder: Folder) -> bool:
    """Return whether this user can write as much as the released files have; only a write shows a quota."""
    try:
        folder.write(_PROBE_FILE, secrets.token_bytes(_RELEASED_FILES * _RESERVE_FILE_BYTES))
        folder.remove(_PROBE_FILE)
    except StorageError as error:
        return error.errno not in (errno.ENOSPC, errno.EDQUOT)
    return True
