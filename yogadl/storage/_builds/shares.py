"""Cut a source into shares: a *share* is what one process can read alone, a partition of the build."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from yogadl._core.columns import Columns
from yogadl._core.spec import Spec
from yogadl._provenance.builder import sha256_of_data
from yogadl._sources.partitioned import Partition, PartitionedSource
from yogadl._sources.sources import Source
from yogadl.errors import ConfigurationError

# A source with random access is cut into about this many shares, whatever the number of workers. So a slow or
# killed worker costs little, and a build with more workers can continue one with fewer. Rounding of the size
# makes somewhat fewer or more shares; there are more if shares would be larger than _SHARE_BYTES.
_SHARES: Final = 48
_SHARE_BYTES: Final = 2**27
# A share's size is rounded up to a multiple of a power of two, by an eighth at most, so that parts end at the
# ends of blocks.
_MAX_ROUNDING_SHARE: Final = 8


class RangeShare(Source):
    """A range of records, as a share and as a source of its own.

    Args:
        source: The whole source, or its records from `offset` on.
        first: The number of the share's first record.
        end: The number after its last record.
        offset: The number of the first record of `source`.
    """

    stamp = ""
    can_start_anywhere = True

    def __init__(self, source: Source, first: int, end: int, offset: int = 0) -> None:
        self._source = source
        self._first = first
        self._offset = offset
        self.spec: Spec = source.spec
        self.length: int = end - first
        self.is_costly = source.is_costly

    def __str__(self) -> str:
        return f"records {self._first} to {self._first + self.length - 1}"

    def source(self) -> "RangeShare | None":
        """Return the share, or ``None`` if it has no records."""
        return self if self.length else None

    def readable_chunks(self, leave_out: Callable[[int, str, str | None], None]) -> Iterator[Columns]:
        """Yield the share's records that can be read."""
        source: Any = self._source  # of a class that has `readable_chunks`: see `opened`
        first = self._first - self._offset

        def note(index: int, reason: str) -> None:
            leave_out(index + self._offset, reason, source.file_of(index))

        chunks: Iterator[Columns] = source.readable_chunks(first, first + self.length, note)
        return chunks

    def chunks(self, start: int = 0) -> Iterator[Columns]:
        """Yield the share's records."""
        left, first = self.length - start, self._first - self._offset
        for columns in self._source.ending_before(first + self.length).chunks(first + start):
            count = min(left, len(columns[0]))
            yield [column[:count] for column in columns]
            left -= count
            if left == 0:
                return


Share = Partition | RangeShare


class Shares:
    """A source with random access, cut into ranges of records. Picklable if the source is.

    Args:
        source: The source.
        bounds: The first record of each share, and the number of records.
    """

    def __init__(self, source: Source, bounds: Sequence[int]) -> None:
        self.source = source
        self._bounds = bounds

    @property
    def count(self) -> int:
        """The number of shares."""
        return len(self._bounds) - 1

    def __getitem__(self, number: int) -> Share:
        """Return one share; its text describes it in messages."""
        return RangeShare(self.source, self._bounds[number], self._bounds[number + 1])

    def alone(self, number: int) -> Share:
        """Return one share with only the part of the source that it needs, to send elsewhere."""
        first, end = self._bounds[number : number + 2]
        rows = self.source.rows(first, end) if first < end else None
        return self[number] if rows is None else RangeShare(rows, first, end, first)

    def terms(self) -> Any:
        """Return a JSON value that describes how the source was cut."""
        return self._bounds

    def origin(self, hash_of_data: Callable[[], str]) -> str:
        """Return the hash of all that decides the records; empty if records must be compared.

        Args:
            hash_of_data: Returns the hash of the code and values that the source was made from.

        Raises:
            ConfigurationError: if no hash is certain, and records can't be compared.
        """
        return hash_of_data() if self.source.is_costly else ""


class _PartitionShares(Shares):
    """The shares of a source in partitions."""

    source: PartitionedSource

    def __getitem__(self, number: int) -> Partition:
        return self.source.partition(number)

    def alone(self, number: int) -> Partition:
        return self[number]

    def terms(self) -> Any:
        return self.count

    def origin(self, hash_of_data: Callable[[], str]) -> str:
        return sha256_of_data(self.source.origin, strict=True)


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
        return _PartitionShares(source, range(source.partitions + 1))
    if source.length is None or not source.can_start_anywhere:
        raise ConfigurationError(
            "workers, an engine and tasks need a source that can be read in pieces: one with __len__ and "
            "__getitem__, or one in partitions (yogadl.partitioned). Submit an iterable without workers and "
            "engine"
        )
    length = source.length
    if count is not None:
        return Shares(source, [length * k // count for k in range(count + 1)])
    record_bytes = sum(field.leaf.row_bytes for field in source.spec.fields if field.leaf.is_fixed)
    records = records_per_share(length, record_bytes)
    bounds = [0]
    for start in source.starts or range(0, length, records):
        if start - bounds[-1] >= records:
            bounds.append(start)
    return Shares(source, [*bounds, length])


def records_per_share(length: int, record_bytes: int) -> int:
    """Return the number of records in each share of a source but the last.

    Args:
        length: The number of records, at least one.
        record_bytes: The known part of a record's size.
    """
    shares = max(_SHARES, -(-length * record_bytes // _SHARE_BYTES))
    records = max(1, length // shares)  # rounded down: few records make more shares, not half as many
    step = 1 << max(0, (records // _MAX_ROUNDING_SHARE).bit_length() - 1)
    return -(-records // step) * step
