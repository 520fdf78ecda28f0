"""Read the caches of yogadl 0.1: one LMDB file with a pickled record for each key."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import lmdb

from yogadl.errors import CacheFormatError

# The key of the list of the records' keys. The shapes and types of TensorFlow are stored, too, but not
# needed.
_KEYS: Final = b"__keys__"


class OldCache:
    """The records of a cache that yogadl 0.1 made, in order. Reading runs any code in its pickles.

    Args:
        path: The file, which is called ``cache.mdb``.

    Raises:
        CacheFormatError: if it is not such a file, or was cut short.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with self._open() as database:
                end = (database.info()["last_pgno"] + 1) * database.stat()["psize"]
                if path.stat().st_size < end:  # reading beyond the end would kill the process
                    raise CacheFormatError(f"{path} was cut short: it has less than its {end} bytes")
                with database.begin() as transaction:
                    listed = transaction.get(_KEYS)
        except lmdb.Error as error:
            raise CacheFormatError(f"{path} is no LMDB file, or damaged: {error}") from error
        if listed is None:
            raise CacheFormatError(
                f"{path} has no list of its records: it was not made by yogadl 0.1, or its build was "
                "cut short"
            )
        keys = _unpickled(listed, path, "the list of records")
        if not isinstance(keys, list) or not all(isinstance(key, bytes) for key in keys):
            raise CacheFormatError(f"the list of records of {path} is damaged")
        self._keys: list[bytes] = keys

    def _open(self) -> lmdb.Environment:
        return lmdb.open(str(self._path), subdir=False, readonly=True, lock=False, create=False)

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Any]:
        try:
            with self._open() as database:
                for number, key in enumerate(self._keys):
                    # Each record gets a transaction of its own, so that none stays open while the caller uses
                    # the record.
                    with database.begin() as transaction:
                        value = transaction.get(key)
                    if value is None:
                        raise CacheFormatError(f"{self._path} lacks record {number} of {len(self)}")
                    yield _unpickled(value, self._path, f"record {number}")
        except lmdb.Error as error:
            raise CacheFormatError(f"{self._path} can't be read: {error}") from error


def _unpickled(content: bytes, path: Path, what: str) -> Any:
    try:
        return pickle.loads(content)
    except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, ValueError) as error:
        raise CacheFormatError(
            f"{what} of {path} can't be unpickled: {error} (a module that it needs may be missing)"
        ) from error
