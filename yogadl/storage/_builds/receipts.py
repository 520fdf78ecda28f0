"""Cut a source into shares, and write a receipt of each sealed part, by which a later build can use the part.

A *share* is the part of a source that one process can read alone: a partition of the build. A *receipt* is a
small file in the build's folder that names a sealed part and describes its records.
"""

import copy
import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from yogadl._core.columns import Columns
from yogadl._core.frozen import MANY_DIGITS, parse_json
from yogadl._core.key import DatasetKey
from yogadl._core.leaf import OBJECT
from yogadl._core.spec import Spec
from yogadl._format.columns import RunHash, hash_run, stored_column
from yogadl._format.layout import SealedPart, join_parts
from yogadl._format.reader import Reader
from yogadl._provenance.builder import sha256_of_data
from yogadl._sources.partitioned import Partition, PartitionedSource
from yogadl._sources.sources import Resumable, Source
from yogadl.errors import ConfigurationError, StorageError
from yogadl.storage import _names
from yogadl.storage._catalogue.parts import read_sealed
from yogadl.storage._files.root import MAX_READ_BYTES, Root

# A source with random access is cut into about this many shares, whatever the number of workers. So a slow or
# killed worker costs little, and a build with more workers can continue one with fewer. Rounding of the size
# makes somewhat fewer or more shares; there are more if shares would be larger than _SHARE_BYTES.
_SHARES: Final = 48
_SHARE_BYTES: Final = 2**27
# A share's size is rounded up to a multiple of a power of two, by an eighth at most, so that parts end at the
# ends of blocks.
_MAX_ROUNDING_SHARE: Final = 8


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

    def without_other_records(self) -> "Share":
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

    def origin(self, hash_of_data: Callable[[], str]) -> str:
        """Return the hash of all that decides the records; empty if records must be compared.

        Args:
            hash_of_data: Returns the hash of the code and values that the source was made from.

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
        return _PartitionShares(source)
    if source.length is None or not source.can_start_anywhere:
        raise ConfigurationError(
            "workers, an engine and tasks need a source that can be read in pieces: one with __len__ and "
            "__getitem__, or one in partitions (yogadl.partitioned). Submit an iterable without workers and "
            "engine"
        )
    length = source.length
    if count is not None:
        return _RangeShares(source, [length * k // count for k in range(count + 1)])
    record_bytes = sum(field.leaf.row_bytes for field in source.spec.fields if field.leaf.is_fixed)
    records = records_per_share(length, record_bytes)
    bounds = [0]
    for start in getattr(source, "starts", range(0, length, records)):
        if start - bounds[-1] >= records:
            bounds.append(start)
    return _RangeShares(source, [*bounds, length])


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


def ending_before(source: Source, end: int) -> Source:
    """Return a copy of a source that ends before record `end`, or the source if no copy is possible."""
    if isinstance(source, Resumable):
        return source  # a copy would not share its state
    shortened: Any = copy.copy(source)
    try:
        shortened.length = end
    except AttributeError:
        return source
    return shortened  # type: ignore[no-any-return]


class _RangeShares:
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

    def __getitem__(self, number: int) -> "_RangeShare":
        return _RangeShare(self._source, self._bounds[number], self._bounds[number + 1])

    def terms(self) -> Any:
        return self._bounds

    def origin(self, hash_of_data: Callable[[], str]) -> str:
        return hash_of_data() if getattr(self._source, "is_costly", False) else ""


class _RangeShare:
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

    def source(self) -> "_RangeShare | None":
        return self if self.length else None

    def without_other_records(self) -> "_RangeShare":
        end = self._first + self.length
        rows = self._source.rows(self._first, end) if hasattr(self._source, "rows") and self.length else None
        return self if rows is None else _RangeShare(rows, self._first, end, self._first)

    def chunks(self, start: int = 0) -> Iterator[Columns]:
        """Yield the share's records."""
        records_left, offset_in_source = self.length - start, self._first - self._offset
        for columns in ending_before(self._source, offset_in_source + self.length).chunks(
            offset_in_source + start
        ):
            count = min(records_left, len(columns[0]))
            yield [column[:count] for column in columns]
            records_left -= count
            if records_left == 0:
                return


class _PartitionShares:
    """The shares of a source in partitions."""

    length = None

    def __init__(self, source: PartitionedSource) -> None:
        self._source = source

    @property
    def count(self) -> int:
        return self._source.partitions

    def __getitem__(self, number: int) -> "_PartitionShare":
        return _PartitionShare(self._source.partition(number))

    def terms(self) -> Any:
        return self.count

    def origin(self, hash_of_data: Callable[[], str]) -> str:
        return sha256_of_data(self._source.origin, strict=True)


class _PartitionShare:
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

    def without_other_records(self) -> "_PartitionShare":
        return self


class SingleShare:
    """One share alone, for the task that writes it."""

    def __init__(self, shares: Shares, number: int) -> None:
        self._share = shares[number].without_other_records()

    def __getitem__(self, number: int) -> Share:
        """Return the share, whatever the number."""
        return self._share


# The samples that are compared with the source before a build continues: this many records at either end of
# each sealed part, fewer of large records. As a record may take seconds to compute, at most one in 32.
_SAMPLED_RECORDS: Final = 16
_RECORDS_PER_SAMPLED: Final = 32
_SAMPLED_BYTES: Final = 2**20
STATE: Final = ".state"  # the suffix of a file beside a receipt that holds the state of the source


@dataclass(frozen=True)
class SampledRecord:
    """The hash of some records of a part that follow each other."""

    start: int
    run: RunHash


@dataclass(frozen=True)
class Receipt:
    """The facts about one sealed part of an unfinished build.

    Args:
        first_record: The number of its first record.
        part: The part.
        spec: The spec as known when the part was sealed.
        samples: Hashes of some of its records.
        origin: The hash of all that decides the source's records; empty if it was not computed.
    """

    first_record: int
    part: SealedPart
    spec: Spec
    samples: tuple[SampledRecord, ...] = ()
    origin: str = ""


@dataclass(frozen=True)
class Receipts:
    """The receipts of one build, which are files of its folder.

    Args:
        root: The root that the parts go below.
        key: The version to build.
        folder: The name of the build's folder.
        source: The source of the records.
        terms: The values that an earlier build must share with this one for its parts to be used.
        origin: The hash of all that decides the source's records; empty if it was not computed.
    """

    root: Root
    key: DatasetKey
    folder: str
    source: Source
    terms: dict[str, Any]
    origin: str

    def keep(self, path: Path, receipt: Receipt, on_receipt_written: Callable[[], None]) -> None:
        """Write the receipt of a sealed part and the state of the source, then move the part to its place.

        The order matters: if the process dies in between, a part without a receipt would never be found.

        Args:
            path: The path of the part.
            receipt: The receipt.
            on_receipt_written: Called after the receipt is written, before the part is moved.
        """
        part = receipt.part
        document = {
            "first": receipt.first_record,
            "sha256": part.sha256,
            "index_sha256": part.index_sha256,
            "spec": receipt.spec.to_json(),
            "samples": samples_to_json(receipt.samples),
            "origin": receipt.origin,
            **self.terms,
        }
        if isinstance(self.source, Resumable) and receipt.samples:
            # The state before the last sample lets a later build compare that sample without reading the
            # whole part.
            state = self.source.state(receipt.first_record + receipt.samples[-1].start)
            if state is not None:
                self.root.write(f"{self.folder}/{receipt.first_record:015d}{STATE}", state)
        self.root.write(f"{self.folder}/{receipt.first_record:015d}.json", json.dumps(document).encode())
        on_receipt_written()
        self.root.adopt(
            {
                _names.index(self.key.id, part.index_sha256): path.with_suffix(".idx"),
                _names.part(self.key.id, part.sha256): path,
            }
        )

    def read(self) -> list[Receipt]:
        """Return the receipts of an earlier build that this build can use; put the others aside."""
        usable: list[Receipt] = []
        if self.source.can_start_anywhere:
            for name in self.root.names(self.folder, ".json"):
                receipt = self._read(name)
                expected = usable[-1].first_record + usable[-1].part.index.records if usable else 0
                if receipt is None or receipt.first_record != expected:
                    break
                usable.append(receipt)
            if usable and not self.agree(usable):
                usable = []
        aside = _names.unresumable(self.key, secrets.token_hex(8))  # prune removes the parts named there
        names = {f"{r.first_record:015d}{suffix}" for r in usable for suffix in (".json", STATE)}
        for name in self.root.names(self.folder):
            if Path(name).name in names:
                continue
            if name.endswith(".json"):
                self.root.rename(name, f"{aside}/{Path(name).name}")
            else:
                self.root.remove(name)
        return usable

    def _restore(self, receipt: Receipt) -> bool:
        """Restore the state that a source had when a part was sealed; return whether there is one."""
        if not isinstance(self.source, Resumable):
            return False
        state = self.root.read(f"{self.folder}/{receipt.first_record:015d}{STATE}", MAX_READ_BYTES)
        if state is not None:
            self.source.restore(state)
        return state is not None

    def _read(self, name: str) -> Receipt | None:
        content = self.root.read(name)
        try:
            document = parse_json(content or b"", most_digits=MANY_DIGITS)
            if any(document[term] != value for term, value in self.terms.items()):
                return None
            sha256, index_sha256 = document["sha256"], document["index_sha256"]
            names = _names.part(self.key.id, sha256), _names.index(self.key.id, index_sha256)
            # The files' times are renewed before the part is read, or a prune might remove it right after.
            if not all(self.root.keep(name) for name in names):
                return None
            part = read_sealed(self.root, self.key.id, sha256, index_sha256)
            samples, spec = samples_from(document["samples"]), Spec.from_json(document["spec"])
            return Receipt(document["first"], part, spec, samples, document["origin"])
        except (ValueError, KeyError, TypeError, StorageError):
            return None  # from another version, or truncated: its part is built again

    def agree(self, receipts: Sequence[Receipt]) -> bool:
        """Return whether the sealed records are those of the source.

        All records are compared, with one exception: of a costly source, records that the same code made from
        the same values are compared by samples. If a source can only be read in order, and has no state to
        restore, all are compared: it must read the whole part anyway to reach the part's end.
        """
        spec = receipts[-1].spec
        if not spec.is_like(self.source.spec):
            return False
        for receipt in receipts:
            is_alike = self.origin != "" and receipt.origin == self.origin
            compares_samples = is_alike and (self._restore(receipt) or not isinstance(self.source, Resumable))
            for sample in (
                receipt.samples if compares_samples else (SampledRecord(0, receipt.part.index.run),)
            ):
                if _hash_source(self.source, spec, receipt.first_record, sample) != sample.run:
                    return False
        return all(receipt.samples for receipt in receipts)


def samples_to_json(samples: Sequence[SampledRecord]) -> list[list[int]]:
    """Return samples as JSON."""
    return [[sample.start, sample.run.records, sample.run.value] for sample in samples]


def samples_from(document: Any) -> tuple[SampledRecord, ...]:
    """Return the samples in a receipt's JSON."""
    found = tuple(SampledRecord(start, RunHash(records, value)) for start, records, value in document)
    for one in found:
        numbers: tuple[object, ...] = one.start, one.run.records, one.run.value
        if not all(type(number) is int and 0 <= number < 2**63 for number in numbers):
            raise ValueError(f"not a sample of records: {one!r:.200}")
    return found


def samples_of(path: Path, part: SealedPart, spec: Spec) -> tuple[SampledRecord, ...]:
    """Hash the first and the last records of a part that was just sealed."""
    fields = _comparable(spec)
    if not fields:
        return ()
    reader = Reader(spec, join_parts([part]), _SinglePartPath(path))
    records = part.index.records
    most = min(
        _SAMPLED_RECORDS, records // _RECORDS_PER_SAMPLED // 2, _SAMPLED_BYTES // max(1, reader.record_bytes)
    )
    count = max(1, most)
    samples = []
    for start in sorted({0 if records >= 2 * _RECORDS_PER_SAMPLED else records - count, records - count}):
        columns = reader.columns(np.arange(start, start + count, dtype=np.int64), fields)
        samples.append(SampledRecord(start, _hash_columns(spec, fields, columns, count)))
    return tuple(samples)


def _comparable(spec: Spec) -> list[int]:
    """Return the fields that can be compared with the source's; pickles of equal values may differ."""
    return [number for number, field in enumerate(spec.fields) if field.leaf.dtype != OBJECT]


class _SinglePartPath:
    """The path of one part."""

    away = None

    def __init__(self, path: Path) -> None:
        self._path = path

    def path(self, part: int) -> str:
        """Return the path of the part's file."""
        return str(self._path)


def _hash_source(source: Source, spec: Spec, first_record: int, sample: SampledRecord) -> RunHash:
    """Hash the records of a sample as read from a source, which may give them in any number of chunks."""
    fields, count = _comparable(spec), sample.run.records
    run = RunHash()
    first = first_record + sample.start
    for columns in ending_before(source, first + count).chunks(first):
        piece = [columns[number][: count - run.records] for number in fields]
        run = run.then(_hash_columns(spec, fields, piece, len(piece[0])))
        if run.records >= count:
            break
    return run


def _hash_columns(spec: Spec, fields: Sequence[int], columns: Sequence[Any], count: int) -> RunHash:
    leaves = [spec.fields[number].leaf for number in fields]
    return hash_run(
        [stored_column(leaf, column).hashes() for leaf, column in zip(leaves, columns, strict=True)], count
    )
