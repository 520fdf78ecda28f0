"""Detect parts whose objects in a bucket were replaced after publication, for readers of ranges.

Ranges are not compared with the part's sha256. Therefore the publication records a hash of each object's tag
(its ETag, its generation), its pin, and the first answer to a reader must have that tag. An object that was
uploaded again has another tag: then each process reads the whole object, once, and compares it with its name.
"""

import errno
import hashlib
import logging
from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from yogadl._core.process import ProcessLock
from yogadl._format.table import ArrayFile, PartTable
from yogadl.errors import CacheFormatError, StorageError
from yogadl.storage import _names
from yogadl.storage._buckets.bucket import Bucket
from yogadl.storage._buckets.store_errors import CredentialsError

_log = logging.getLogger("yogadl")

Uint64s = NDArray[np.uint64]

# The pin of an object whose tag is unknown.
UNKNOWN: Final = 0
# The bytes that a file of pins may have beside its hashes.
_MOST_HEADER_BYTES: Final = 4096


class Pins:
    """The pins of a cache's parts, which tell whether these are the objects that were published.

    Safe to use from threads and after a fork; not picklable.

    Args:
        bucket: The bucket of the cache.
        dataset_id: The dataset's id.
        table: The part table.
        table_sha256: The hash of the part table.
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
        """Return whether a part's object with this tag is right, or ``None`` if its bytes must be compared.

        The first call makes a request.

        Raises:
            CacheFormatError: if the pins are damaged.
            StorageError: if the pins can't be read.
        """
        if self._known is None:
            with self._lock:
                if self._known is None:
                    self._known = read_pins(self._bucket, self._id, self._table, self._table_sha256)
        if int(self._known[part]) in (UNKNOWN, hash_of(tag)):
            return True
        return self._found_out.get((part, tag))

    def find_out(self, part: int, tag: str) -> bool:
        """Read the whole object of a part; return whether its bytes are right.

        Raises:
            ReplacedError: if the object has another tag now.
            StorageError: if the object can't be read.
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
    """Return the pin of an object's tag; `UNKNOWN` for an empty tag."""
    if not tag:
        return UNKNOWN
    return int.from_bytes(hashlib.sha256(tag.encode()).digest()[:8], "little") or 1


def has_bytes(bucket: Bucket, name: str, sha256: str, tag: str) -> bool:
    """Return whether an object with this tag has bytes of this hash."""
    with bucket.get(name, tag=tag) as body:
        if body is None:
            return False
        found = hashlib.sha256()
        for chunk in body.chunks:
            found.update(chunk)
        return found.hexdigest() == sha256


def read_pins(bucket: Bucket, dataset_id: str, table: PartTable, table_sha256: str) -> Uint64s:
    """Return the pin of each part; `UNKNOWN` for all, if there are no pins or they are of another bucket.

    A bucket's objects may have been copied one by one to another bucket, where they have other tags.

    Raises:
        CacheFormatError: if the file of pins is damaged.
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
        # Without the permission to list, stores answer "forbidden" for every missing object.
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
    """Return the content of a file of pins: one hash for each part, of an object of this bucket."""
    document = {"location": _hash_of_location(bucket)}
    return ArrayFile({"pins": np.array([*hashes], np.uint64)}, document).to_bytes()


def _hash_of_location(bucket: Bucket) -> str:
    return hashlib.sha256(bucket.url.encode()).hexdigest()
