"""Bring files to a mirror: once a machine, however many processes want them, and anew if they are damaged."""

import contextlib
import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from yogadl.storage._buckets.bucket import Bucket
from yogadl.storage._folder import storage_error
from yogadl.storage._mirror.flock import Claim
from yogadl.storage._mirror.transfer import Download, Progress, Total, Touch, download_all, in_parallel

_log = logging.getLogger("yogadl")

# Who brings a part and gets no byte for so long is not waited for.
_STALL_S: Final = 60.0
# How many files are hashed at once, and how much of each at a time.
_HASHED_AT_ONCE: Final = 4
_HASH_BYTES: Final = 2**20

# Returns whether a file need not be made any more.
IsMade = Callable[[Download], bool]


def is_made(wanted: Download) -> bool:
    """Return whether a file is there, and of its size where that is known."""
    try:
        size_bytes = wanted.path.stat().st_size
    except FileNotFoundError:
        return False
    return wanted.size_bytes in (None, size_bytes)


def fetch(
    bucket: Bucket, wanted: Sequence[Download], progress: Progress | None = None, is_made: IsMade = is_made
) -> None:
    """Download files, but for what other processes bring meanwhile.

    Args:
        bucket: Where they lie.
        wanted: Which ones.
        progress: Called with bytes brought and bytes in all.
        is_made: Says which need not be brought any more.

    Raises:
        CacheFormatError: if an object is missing, or its bytes are not those that were asked for.
        StorageError: if the network or the disk fails, or the disk is full.
    """
    download_all(bucket, wanted, progress=progress, guard=partial(_claimed, is_made=is_made))


def mend(bucket: Bucket, files: Mapping[Download, int], progress: Progress | None = None) -> list[str]:
    """Compare files with their sha256, and bring anew those that are damaged.

    Who has a damaged file open or mapped keeps it: the new one takes its name, not its place. One that can't
    be brought anew is removed, so that nobody reads it.

    Args:
        bucket: Where they lie.
        files: Which ones, and how large each is that is there.
        progress: Called with bytes compared and bytes to compare.

    Returns:
        The names of those that were damaged.

    Raises:
        CacheFormatError: if the bucket has not what it should have, either.
        StorageError: if the network or the disk fails, or the disk is full.
    """
    total = Total(sum(files.values()), progress)
    damaged: dict[Download, os.stat_result] = {}

    def compare(wanted: Download) -> None:
        found = _damaged(wanted, total)
        if found is not None:
            damaged[wanted] = found

    in_parallel(compare, list(files), _HASHED_AT_ONCE, total)
    for wanted in damaged:
        warn_of_damage(wanted.path)
    try:
        fetch(bucket, list(damaged), is_made=lambda wanted: not _is_there(damaged[wanted], wanted.path))
    except BaseException:
        for wanted, found in damaged.items():
            if _is_there(found, wanted.path):
                wanted.path.unlink(missing_ok=True)
        raise
    return [wanted.name for wanted in damaged]


def warn_of_damage(path: Path) -> None:
    """Say that a file of a mirror is damaged, and will be brought anew."""
    _log.warning(
        "yogadl: %s has other bytes than it had when it was brought: it is brought anew. Such damage comes "
        "from a failing disk or memory, or somebody has written to the file",
        path,
    )


def _damaged(wanted: Download, total: Total) -> os.stat_result | None:
    """Return which file lies there, if it has not the bytes that it should have."""
    sha256, buffer = hashlib.sha256(), bytearray(_HASH_BYTES)
    try:
        with wanted.path.open("rb", buffering=0) as file:
            while not total.stopped.is_set() and (count := file.readinto(buffer)):
                sha256.update(memoryview(buffer)[:count])
                total.add(count)
            is_sound = total.stopped.is_set() or sha256.hexdigest() == wanted.sha256
            return None if is_sound else os.fstat(file.fileno())
    except FileNotFoundError:
        return None  # it is brought when it is needed
    except OSError as error:
        raise storage_error(error, f"can't read {wanted.path}") from error


def _is_there(found: os.stat_result, path: Path) -> bool:
    """Return whether that very file still lies there."""
    try:
        now = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(now, found) and now.st_mtime_ns == found.st_mtime_ns


@contextlib.contextmanager
def _claimed(wanted: Download, is_made: IsMade) -> Iterator[Touch | None]:
    """Hold the right of this machine to bring a file; give ``None`` if another process has brought it."""
    claim = Claim(wanted.path)
    try:
        yield claim.touch if claim.take(lambda: is_made(wanted), _STALL_S) else None
    finally:
        claim.release()
