"""Know which object each part of a bucket's cache was when it was published, for readers of its ranges.

What is read by range is not compared with the part's sha256. So the publication notes a hash of each object's
tag (its ETag, its generation), and the first answer to a reader must have that tag. An object that was put
there again has another: then each process reads it as a whole, once, and compares that with its name.
"""

import errno
import hashlib
import logging
from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from yogadl._format.arrays import ArrayFile
from yogadl._format.table import PartTable
from yogadl._lock import ProcessLock
from yogadl.errors import CacheFormatError, StorageError
from yogadl.storage import _names
from yogadl.storage._buckets.bucket import Bucket
from yogadl.storage._buckets.store_errors import CredentialsError

_log = logging.getLogger("yogadl")

Uint64s = NDArray[np.uint64]

# Of an object of which nothing is known.
UNKNOWN: Final = 0
# Such a file has no more than this beside its hashes.
_MOST_HEADER_BYTES: Final = 4096


class Pins:
    """Say whether the parts of a cache are the objects that were published.

    Safe to use from threads and after a fork; not picklable.

    Args:
        bucket: Where the cache is.
        dataset_id: What it is of.
        table: Its part table.
        table_sha256: The sum of that.
    """

    def __init__(self, bucket: Bucket, dataset_id: str, table: PartTable, table_sha256: str) -> None:
        self._bucket = bucket
        self._id = dataset_id
        self._table = table
        self._table_sha256 = table_sha256
        self._lock = ProcessLock()
        self._known: Uint64s | None = None
        self._found_out: dict[tuple[int, str], bool] = {}

    def is_published(self, part: int, tag: str) -> bool | None:
        """Return whether a part's object is right that has this tag; ``None`` if only its bytes can say.

        The first call makes a request.

        Raises:
            CacheFormatError: if what was noted is damaged.
            StorageError: if it can't be read.
        """
        if self._known is None:
            with self._lock:
                if self._known is None:
                    self._known = read_pins(self._bucket, self._id, self._table, self._table_sha256)
        if int(self._known[part]) in (UNKNOWN, hash_of(tag)):
            return True
        return self._found_out.get((part, tag))

    def find_out(self, part: int, tag: str) -> bool:
        """Read a part's object as a whole; return whether its bytes are right.

        Raises:
            ReplacedError: if it has another tag by now.
            StorageError: if it can't be read.
        """
        name = _names.part(self._id, self._table.sha256[part])
        is_right = has_bytes(self._bucket, name, self._table.sha256[part], tag)
        if is_right and True not in self._found_out.values():
            _log.warning(
                "yogadl: %s in %r is not the object that was published, but has the same bytes: it was put "
                "there again. Each process reads such parts as a whole first, until the dataset is published "
                "anew or %s is removed", name, self._bucket, _names.pins(self._id, self._table_sha256),
            )  # fmt: skip
        self._found_out[part, tag] = is_right
        return is_right


def hash_of(tag: str) -> int:
    """Return the hash of an object's tag that is noted; of an empty one, that it is unknown."""
    if not tag:
        return UNKNOWN
    return int.from_bytes(hashlib.sha256(tag.encode()).digest()[:8], "little") or 1


def has_bytes(bucket: Bucket, name: str, sha256: str, tag: str) -> bool:
    """Return whether an object, the one with this tag, has the bytes of this sum."""
    with bucket.get(name, tag=tag) as body:
        if body is None:
            return False
        found = hashlib.sha256()
        for chunk in body.chunks:
            found.update(chunk)
        return found.hexdigest() == sha256


def read_pins(bucket: Bucket, dataset_id: str, table: PartTable, table_sha256: str) -> Uint64s:
    """Return what was noted of each part; of none anything, if that was never, or in another bucket.

    A bucket's objects may have been copied one by one to another, where they have other tags.

    Raises:
        CacheFormatError: if the file of it is damaged.
    """
    name = _names.pins(dataset_id, table_sha256)
    what = f"{name} in {bucket!r}, which may be removed,"
    nothing = np.zeros(len(table), np.uint64)
    try:
        content = _content(bucket, name, what, _MOST_HEADER_BYTES + nothing.nbytes)
    except CredentialsError:
        raise
    except StorageError as error:
        if error.errno != errno.EACCES:
            raise
        # Who may not list is told so of every object that is missing.
        _log.info("yogadl: it is not known which objects were published: %s", error)
        return nothing
    if content is None:
        return nothing
    file = ArrayFile.from_buffer(content, what)
    found = file.arrays.get("pins")
    if found is None or found.dtype != nothing.dtype or found.shape != nothing.shape:
        raise CacheFormatError(f"{what} is not about the {len(table)} parts of its part table")
    return found if file.document.get("location") == _hash_of_location(bucket) else nothing


def _content(bucket: Bucket, name: str, what: str, most_bytes: int) -> bytes | None:
    with bucket.get(name) as body:
        if body is None:
            return None
        if body.object.size_bytes > most_bytes:
            raise CacheFormatError(f"{what} is larger than it can be")
        return b"".join(body.chunks)


def pins_file(bucket: Bucket, hashes: Iterable[int]) -> bytes:
    """Return the content of the file that notes these hashes, one a part, of objects of this bucket."""
    document = {"location": _hash_of_location(bucket)}
    return ArrayFile({"pins": np.array([*hashes], np.uint64)}, document).to_bytes()


def _hash_of_location(bucket: Bucket) -> str:
    return hashlib.sha256(bucket.url.encode()).hexdigest()
