"""Cut a source into shares that any process can read alone: the partitions of a build."""

import copy
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

from yogadl._core.columns import Columns
from yogadl._provenance.builder import sha256_of_data
from yogadl._sources.partitioned import Partition, PartitionedSource
from yogadl._sources.sources import Resumable, Source
from yogadl.errors import ConfigurationError

# A source with random access is cut into about this many shares, whatever the number of workers. So a slow or
# killed worker costs little, and a build with more workers can continue one with fewer. Rounding of the size
# makes somewhat fewer or more shares; there are more if shares would be larger than _SHARE_BYTES.
_SHARES: Final = 48
_SHARE_BYTES: Final = 2**27
# A share's size is rounded up to a multiple of a power of two, by an eighth at most, so that parts end at the
# ends of blocks.
_ROUNDED_BY: Final = 8


class Share(Protocol):
    """One share of a source. Picklable if the source is."""

    @property
    def stamp(self) -> str:
        """A text that changes if the share's records may have changed; empty if there is no such text."""

    @property
    def can_compare(self) -> bool:
        """Whether records written from the share are compared with the source before they are used."""

    def source(self) -> Source | None:
        """Open the share; return ``None`` if it has no records."""

    def alone(self) -> "Share":
        """Return the share with only the part of the source that it needs, to send elsewhere."""


class Shares(Protocol):
    """A source, cut into shares. Picklable if the source is."""

    @property
    def count(self) -> int:
        """The number of shares."""

    @property
    def length(self) -> int | None:
        """The number of records in all shares, if known."""

    def __getitem__(self, number: int) -> Share:
        """Return one share."""

    def terms(self) -> Any:
        """Return a JSON value that describes how the source was cut."""

    def origin(self, known: Callable[[], str]) -> str:
        """Return the hash of all that decides the records; empty if records must be compared.

        Args:
            known: Returns the hash of the code and values that the source was made from.

        Raises:
            ConfigurationError: if no hash is certain, and records can't be compared.
        """


def shares_of(source: Source, count: int | None = None) -> Shares:
    """Cut a source into shares.

    Args:
        source: A source with random access, or in partitions.
        count: The number of shares, or ``None`` for a suitable number, or that of its partitions.

    Raises:
        ConfigurationError: if the source can only be read in order, or has another number of partitions.
    """
    if isinstance(source, PartitionedSource):
        if count not in (None, source.partitions):
            raise ConfigurationError(f"the source has {source.partitions} partitions, not {count}")
        return _Partitions(source)
    if source.length is None or not source.can_start_anywhere:
        raise ConfigurationError(
            "workers, an engine and tasks need a source that can be read in pieces: one with __len__ and "
            "__getitem__, or one in partitions (yogadl.partitioned). Submit an iterable without workers and "
            "engine"
        )
    length = source.length
    if count is not None:
        return _Ranges(source, [length * k // count for k in range(count + 1)])
    record_bytes = sum(field.leaf.row_bytes for field in source.spec.fields if field.leaf.is_fixed)
    records = cut(length, record_bytes)
    bounds = [0]
    for start in getattr(source, "starts", range(0, length, records)):
        if start - bounds[-1] >= records:
            bounds.append(start)
    return _Ranges(source, [*bounds, length])


def cut(length: int, record_bytes: int) -> int:
    """Return the number of records in each share of a source but the last.

    Args:
        length: The number of records, at least one.
        record_bytes: The known part of a record's size.
    """
    shares = max(_SHARES, -(-length * record_bytes // _SHARE_BYTES))
    records = max(1, length // shares)  # rounded down: few records make more shares, not half as many
    step = 1 << max(0, (records // _ROUNDED_BY).bit_length() - 1)
    return -(-records // step) * step


def until(source: Source, end: int) -> Source:
    """Return a copy of a source that ends before record `end`, or the source if no copy is possible."""
    if isinstance(source, Resumable):
        return source  # a copy would not share its state
    made: Any = copy.copy(source)
    try:
        made.length = end
    except AttributeError:
        return source
    return made  # type: ignore[no-any-return]


class _Ranges:
    """The shares of a source with random access: records from one number to another."""

    def __init__(self, source: Source, bounds: list[int]) -> None:
        self._source = source
        self._bounds = bounds

    @property
    def count(self) -> int:
        return len(self._bounds) - 1

    @property
    def length(self) -> int:
        return self._bounds[-1]

    def __getitem__(self, number: int) -> "_Range":
        return _Range(self._source, self._bounds[number], self._bounds[number + 1])

    def terms(self) -> Any:
        return self._bounds

    def origin(self, known: Callable[[], str]) -> str:
        return known() if getattr(self._source, "is_costly", False) else ""


class _Range:
    """A range of records, as a share and as a source of its own.

    Args:
        source: The whole source, or its records from `offset` on.
        first: The number of the share's first record.
        end: The number after its last record.
        offset: The number of the first record of `source`.
    """

    stamp = ""
    can_compare = True
    can_start_anywhere = True

    def __init__(self, source: Source, first: int, end: int, offset: int = 0) -> None:
        self._source = source
        self._first = first
        self._offset = offset
        self.spec = source.spec
        self.length = end - first
        self.is_costly: bool = getattr(source, "is_costly", False)

    def __str__(self) -> str:
        return f"records {self._first} to {self._first + self.length - 1}"

    def source(self) -> "_Range | None":
        return self if self.length else None

    def alone(self) -> "_Range":
        end = self._first + self.length
        rows = self._source.rows(self._first, end) if hasattr(self._source, "rows") and self.length else None
        return self if rows is None else _Range(rows, self._first, end, self._first)

    def chunks(self, start: int = 0) -> Iterator[Columns]:
        """Yield the share's records."""
        left, begin = self.length - start, self._first - self._offset
        for columns in until(self._source, begin + self.length).chunks(begin + start):
            count = min(left, len(columns[0]))
            yield [column[:count] for column in columns]
            left -= count
            if left == 0:
                return


class _Partitions:
    """The shares of a source in partitions."""

    length = None

    def __init__(self, source: PartitionedSource) -> None:
        self._source = source

    @property
    def count(self) -> int:
        return self._source.partitions

    def __getitem__(self, number: int) -> "_Partition":
        return _Partition(self._source.partition(number))

    def terms(self) -> Any:
        return self.count

    def origin(self, known: Callable[[], str]) -> str:
        return sha256_of_data(self._source.origin, strict=True)


class _Partition:
    """A partition as a share; its stamp, made of its function and its file, detects changes."""

    can_compare = False

    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    def __str__(self) -> str:
        return str(self._partition)

    @property
    def stamp(self) -> str:
        return self._partition.stamp

    def source(self) -> Source | None:
        return self._partition.source()

    def alone(self) -> "_Partition":
        return self


class Only:
    """One share alone, for the task that writes it."""

    def __init__(self, shares: Shares, number: int) -> None:
        self._share = shares[number].alone()

    def __getitem__(self, number: int) -> Share:
        """Return the share, whatever the number."""
        return self._share
