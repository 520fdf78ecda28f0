"""Count and sort the records of a dataset by length, and keep a plan that is made of lengths.

A kept plan is a magic word of 8 bytes, 64-bit integers, and arrays; each array begins at a multiple of 8. All
is little-endian, so that a plan is used where it is mapped. The plans of packs and of buckets are kept so.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from yogadl._order.keys import RECORDS_LIMIT
from yogadl._order.permutation import Integers
from yogadl.errors import CacheFormatError, ConfigurationError

LENGTH_LIMIT: Final = 1 << 40
_CHUNK: Final = 1 << 18  # lengths at a time: a chunk and what is made of it fit into the processor's cache
_ALIGNMENT: Final = 8

Numbers = NDArray[np.unsignedinteger[Any]]  # uint32, or uint64 where numbers are larger


def word_for(limit: int) -> type[np.uint32] | type[np.uint64]:
    """Return the narrowest word for numbers less than a limit."""
    return np.uint32 if limit <= 1 << 32 else np.uint64


def chunks_of(lengths: Any) -> Iterator[tuple[int, Integers]]:
    """Yield the lengths in chunks, each with the number of its first record.

    Raises:
        ConfigurationError: If these are no lengths.
    """
    if not isinstance(lengths, np.ndarray) or lengths.ndim != 1 or lengths.dtype.kind not in "iu":
        raise ConfigurationError("lengths must be an array of integers with one dimension.")
    for start in range(0, lengths.size, _CHUNK):
        chunk = lengths[start : start + _CHUNK].astype(np.int64)
        # Negative numbers are huge if they are read as unsigned.
        if int(chunk.view(np.uint64).max()) > LENGTH_LIMIT:
            wrong = int(np.flatnonzero((chunk < 0) | (chunk > LENGTH_LIMIT))[0])
            raise ConfigurationError(
                f"record {start + wrong} has the length {int(lengths[start + wrong])}; "
                "a record can have from 0 to 2**40 values."
            )
        yield start, chunk


def sorted_by_kind(chunks: Iterable[tuple[Integers, NDArray[Any]]], counts: Integers, word: Any) -> Numbers:
    """Sort numbers by their kinds, from 0, and keep those of one kind in the order given.

    Args:
        chunks: Numbers, and the kind of each.
        counts: How many numbers there are of each kind.
        word: The dtype of the result.
    """
    result = np.empty(int(counts.sum()), word)
    begins = np.cumsum(counts) - counts
    narrow = np.uint16 if len(counts) <= 1 << 16 else np.uint32  # numpy sorts 16-bit integers in linear time
    for numbers, kinds in chunks:
        order = np.argsort(kinds.astype(narrow, copy=False), kind="stable")
        here = np.bincount(kinds, minlength=len(counts))
        places = np.repeat(begins - (np.cumsum(here) - here), here)
        places += np.arange(len(order))
        result[places] = numbers[order]
        begins += here
    return result


def ramps(starts: Integers, counts: Integers) -> Integers:
    """Return for each start the numbers that follow it, as many as its count, one after the other."""
    ends = np.cumsum(counts)
    numbers = np.repeat(starts - (ends - counts), counts)
    numbers += np.arange(numbers.size)
    return numbers


def offsets_of(counts: Integers) -> Integers:
    """Return where each of many stretches begins, and where the last one ends."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def total(counts: NDArray[Any], what: str) -> int:
    """Return the sum of counts from a file, or raise CacheFormatError if it may be too large."""
    if counts.size and (int(counts.min()) < 0 or float(counts.sum(dtype=np.float64)) > RECORDS_LIMIT):
        raise damaged(f"it has too many {what}")
    return int(counts.sum(dtype=np.int64))


def damaged(reason: str) -> CacheFormatError:
    """Return the error about a kept plan that can't be used."""
    return CacheFormatError(f"this is no kept plan of yogadl, or it is damaged: {reason}; plan again.")


def kept(
    magic: bytes, integers: Sequence[int], arrays: Sequence[NDArray[Any]]
) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a plan."""
    yield magic
    yield np.array(integers, "<i8").tobytes()
    for array in arrays:
        yield np.ascontiguousarray(array, array.dtype.newbyteorder("<")).view(np.uint8).data
        yield bytes(-array.nbytes % _ALIGNMENT)


class KeptPlan:
    """The bytes of a kept plan, taken apart from their beginning; no array is read or copied.

    Raises:
        CacheFormatError: If the plan is of another kind, or cut.
    """

    def __init__(self, buffer: Any, magic: bytes) -> None:
        self._bytes = memoryview(buffer).cast("B")
        self._taken = len(magic)
        if bytes(self._bytes[: len(magic)]) != magic:
            raise damaged(f"it does not begin with {magic!r}")

    def integers(self, limits: Sequence[int]) -> list[int]:
        """Take one integer for each limit, from 0 to this limit."""
        found: list[int] = self.array(np.int64, len(limits)).tolist()
        for integer, limit in zip(found, limits, strict=True):
            if not 0 <= integer <= limit:
                raise damaged(f"it has {integer} where it can have 0 to {limit}")
        return found

    def array(
        self, dtype: Any, count: int, check: Callable[[NDArray[Any]], Any] | None = None
    ) -> NDArray[Any]:
        """Take an array, as a view of the bytes."""
        kind = np.dtype(dtype).newbyteorder("<")
        size = count * kind.itemsize
        end = self._taken + size + -size % _ALIGNMENT
        if not 0 <= size <= end <= len(self._bytes):
            raise damaged(f"it ends at byte {len(self._bytes)}")
        array = np.frombuffer(self._bytes, kind, count, self._taken)
        self._taken = end
        if check is not None and count and not bool(check(array)):
            raise damaged("a number is out of range")
        return array

    def end(self) -> None:
        """Check that nothing follows."""
        if self._taken != len(self._bytes):
            raise damaged(f"{len(self._bytes) - self._taken} bytes follow")
