"""Compare a mirror's files with their checksums, and download damaged ones again."""

import hashlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from yogadl.storage._buckets.bucket import Bucket
from yogadl.storage._folder import storage_error
from yogadl.storage._mirror.transfer import Download, Progress, Total, fetch, in_parallel

_log = logging.getLogger("yogadl")

# How many files are hashed at once, and how much of each at a time.
_HASHED_AT_ONCE: Final = 4
_HASH_BYTES: Final = 2**20


def mend(bucket: Bucket, files: Mapping[Download, int], progress: Progress | None = None) -> list[str]:
    """Compare files with their sha256, and download again those that are damaged.

    A process that has a damaged file open or mapped keeps it: the new file only takes its name. A damaged
    file that can't be downloaded again is removed, so that nothing reads it.

    Args:
        bucket: Where they lie.
        files: Which ones, and their sizes.
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
    """Log that a file of a mirror is damaged, and will be downloaded again."""
    _log.warning(
        "yogadl: %s has other bytes than it had when it was downloaded: it is downloaded again. Such damage "
        "comes from a failing disk or memory, or somebody has written to the file",
        path,
    )


def _damaged(wanted: Download, total: Total) -> os.stat_result | None:
    """Return the status of the file if its bytes are not those of its sha256."""
    sha256, buffer = hashlib.sha256(), bytearray(_HASH_BYTES)
    try:
        with wanted.path.open("rb", buffering=0) as file:
            while not total.stopped.is_set() and (count := file.readinto(buffer)):
                sha256.update(memoryview(buffer)[:count])
                total.add(count)
            is_sound = total.stopped.is_set() or sha256.hexdigest() == wanted.sha256
            return None if is_sound else os.fstat(file.fileno())
    except FileNotFoundError:
        return None  # downloaded when needed
    except OSError as error:
        raise storage_error(error, f"can't read {wanted.path}") from error


def _is_there(found: os.stat_result, path: Path) -> bool:
    """Return whether the file there is still the same one."""
    try:
        now = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(now, found) and now.st_mtime_ns == found.st_mtime_ns
