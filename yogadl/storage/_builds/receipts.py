"""Write a receipt of sealed parts, by which a later build or a commit can use them, and read receipts.

A *receipt* is a small file in the folder of a build. It names sealed parts that follow each other, and
describes their records: one part that a killed build can continue after, or all parts of a partition.
"""

import json
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from yogadl._core.frozen import MANY_DIGITS, parse_json
from yogadl._core.key import DatasetKey
from yogadl._core.spec import OBJECT, Spec
from yogadl._format.columns import RunHash, hash_run, stored_column
from yogadl._format.layout import SealedPart, join_parts
from yogadl._format.reader import Reader
from yogadl._sources.sources import ResumableSource, Source
from yogadl.errors import CacheFormatError, StorageError
from yogadl.storage import _names
from yogadl.storage._catalogue.parts import read_sealed
from yogadl.storage._files.root import MAX_READ_BYTES, Root

# The samples that are compared with the source before a build continues: this many records at either end of
# each sealed part, fewer of large records. As a record may take seconds to compute, at most one in 32.
_SAMPLED_RECORDS: Final = 16
_RECORDS_PER_SAMPLED: Final = 32
_SAMPLED_BYTES: Final = 2**20
STATE: Final = ".state"  # the suffix of a file beside a receipt that holds the state of the source
DICTIONARY: Final = ".trained"  # the suffix of a file with the dictionary of a field


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
class WrittenParts:
    """The content of a receipt's file: the parts, and the facts by which a build decides whether to use them.

    Args:
        receipts: The receipts of parts that follow each other.
        facts: Values of JSON by name, of which ``origin`` belongs to the receipts, and ``first`` is the
            number of the first record, if it is not 0.
    """

    receipts: list[Receipt]
    facts: dict[str, Any]

    def to_bytes(self) -> bytes:
        """Return the content of the file."""
        parts = [
            [
                receipt.part.sha256,
                receipt.part.index_sha256,
                receipt.spec.to_json(),
                [[sample.start, sample.run.records, sample.run.value] for sample in receipt.samples],
            ]
            for receipt in self.receipts
        ]
        dictionaries = dictionaries_of(receipt.part for receipt in self.receipts)
        named = {"dictionaries": dictionaries} if dictionaries else {}
        return json.dumps(self.facts | named | {"parts": parts}).encode()

    @staticmethod
    def from_bytes(
        content: bytes, root: Root, dataset_id: str, origin: str = "", terms: dict[str, Any] | None = None
    ) -> "WrittenParts":
        """Return the content of a file, after a check that the parts exist.

        Args:
            content: The file.
            root: The root that the parts are below.
            dataset_id: The dataset's id.
            origin: The origin of the records, if the file has none.
            terms: The facts that a build which continues with these parts must share. The times of the parts'
                files are then renewed before they are read, or a prune might remove them right after.

        Raises:
            ValueError: if the file is damaged, or has other terms.
            CacheFormatError: if a part is damaged or missing.
        """
        facts = parse_json(content, most_digits=MANY_DIGITS)
        receipts = []
        try:
            is_other = any(facts[term] != value for term, value in (terms or {}).items())
            if is_other or (terms and facts.get("codec") != terms.get("codec")):
                raise ValueError("the parts were written under other terms")
            first, origin = facts.get("first", 0), facts.get("origin", origin)
            if "parts" not in facts:  # older versions wrote the receipt of a single part in this form
                facts["parts"] = [[facts[name] for name in ("sha256", "index_sha256", "spec", "samples")]]
            dictionaries = [_names.dictionary(dataset_id, name) for name in facts.pop("dictionaries", ())]
            if terms and not all(map(root.keep, dictionaries)):
                raise CacheFormatError("a dictionary is missing, or a prune may remove it soon")
            for sha256, index_sha256, spec, samples in facts.pop("parts"):
                names = _names.part(dataset_id, sha256), _names.index(dataset_id, index_sha256)
                if terms and not all(map(root.keep, names)):
                    raise CacheFormatError(f"part {sha256} is missing, or a prune may remove it soon")
                part = read_sealed(root, dataset_id, sha256, index_sha256)
                receipts.append(Receipt(first, part, Spec.from_json(spec), _samples_from(samples), origin))
                first += part.index.records
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it is not the receipt of a partition: {error!r:.200}") from error
        return WrittenParts(receipts, facts)


@dataclass(frozen=True)
class Receipts:
    """The receipts of the parts of one source, which are files of a folder, one for each part.

    Args:
        root: The root that the parts go below.
        key: The version to build.
        folder: The folder.
        source: The source of the records.
        terms: The values that an earlier build must share with this one for its parts to be used; empty if
            no build continues another in this folder.
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
        part, name = receipt.part, f"{self.folder}/{receipt.first_record:015d}"
        if self.terms and isinstance(self.source, ResumableSource) and receipt.samples:
            # The state before the last sample lets a later build compare that sample without reading the
            # whole part.
            state = self.source.state(receipt.first_record + receipt.samples[-1].start)
            if state is not None:
                self.root.write(f"{name}{STATE}", state)
        facts = {"first": receipt.first_record, "origin": receipt.origin, **self.terms}
        self.root.write(f"{name}.json", WrittenParts([receipt], facts).to_bytes())
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
        for name in self.root.names(self.folder, ".json"):
            expected = usable[-1].first_record + usable[-1].part.index.records if usable else 0
            found = self._read(name)
            if [receipt.first_record for receipt in found] != [expected]:
                break
            usable += found
        if usable and not have_same_records(usable, self.source, self.origin, self._restore):
            usable = []
        aside = _names.unresumable(self.key, secrets.token_hex(8))  # prune removes the parts named there
        names = {f"{r.first_record:015d}{suffix}" for r in usable for suffix in (".json", STATE)}
        for name in self.root.names(self.folder):
            if Path(name).name in names or (usable and name.endswith(DICTIONARY)):
                continue
            if name.endswith(".json"):
                self.root.rename(name, f"{aside}/{Path(name).name}")
            else:
                self.root.remove(name)
        return usable

    def _restore(self, receipt: Receipt) -> bool:
        """Restore the state that a source had when a part was sealed; return whether there is one."""
        if not isinstance(self.source, ResumableSource):
            return False
        state = self.root.read(f"{self.folder}/{receipt.first_record:015d}{STATE}", MAX_READ_BYTES)
        if state is not None:
            self.source.restore(state)
        return state is not None

    def _read(self, name: str) -> list[Receipt]:
        """Return the receipt in a file; none if it is of other terms or truncated, or its part is gone."""
        try:
            content = self.root.read(name) or b""
            return WrittenParts.from_bytes(content, self.root, self.key.id, terms=self.terms).receipts
        except (ValueError, StorageError):
            return []


def have_same_records(
    receipts: Sequence[Receipt],
    source: Source,
    origin: str,
    restore: Callable[[Receipt], bool] = lambda receipt: False,
) -> bool:
    """Return whether sealed parts have the first records of a source.

    All records are compared, with one exception: of a costly source, records that the same code made from
    the same values are compared by samples. If a source can only be read in order, and has no state to
    restore, all are compared: it must read the whole part anyway to reach the part's end.

    Args:
        receipts: The receipts of the parts, at least one.
        source: The source.
        origin: The hash of all that decides the source's records; empty if it was not computed.
        restore: Restores the state that the source had when a part was sealed; returns whether there is one.
    """
    spec = receipts[-1].spec
    if not spec.is_like(source.spec):
        return False
    for receipt in receipts:
        is_alike = origin != "" and receipt.origin == origin
        compares_samples = is_alike and (restore(receipt) or not isinstance(source, ResumableSource))
        for sample in receipt.samples if compares_samples else (SampledRecord(0, receipt.part.index.run),):
            if _hash_source(source, spec, receipt.first_record, sample) != sample.run:
                return False
    return all(receipt.samples for receipt in receipts)


def _samples_from(document: Any) -> tuple[SampledRecord, ...]:
    """Return the samples in a receipt's JSON."""
    found = tuple(SampledRecord(start, RunHash(records, value)) for start, records, value in document)
    for one in found:
        numbers: tuple[object, ...] = one.start, one.run.records, one.run.value
        if not all(type(number) is int and 0 <= number < 2**63 for number in numbers):
            raise ValueError(f"not a sample of records: {one!r:.200}")
    return found


def dictionaries_of(parts: Iterable[SealedPart]) -> list[str]:
    """Return the names of the dictionaries that parts need."""
    return sorted({field.dictionary for part in parts for field in part.index.fields} - {""})


def samples_of(
    path: Path, part: SealedPart, spec: Spec, dictionary: Callable[[str], bytes]
) -> tuple[SampledRecord, ...]:
    """Hash the first and the last records of a part that was just sealed.

    Args:
        path: The part's file.
        part: The part.
        spec: The structure of a record.
        dictionary: Returns the dictionary of a name.
    """
    fields = _comparable(spec)
    if not fields or part.index.files:  # foreign files are told apart by their names
        return ()
    reader = Reader(spec, join_parts([part]), _SinglePartPath(path, dictionary))
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

    def __init__(self, path: Path, dictionary: Callable[[str], bytes]) -> None:
        self._path = path
        self.dictionary = dictionary

    def path(self, part: int) -> str:
        """Return the path of the part's file."""
        return str(self._path)


def _hash_source(source: Source, spec: Spec, first_record: int, sample: SampledRecord) -> RunHash:
    """Hash the records of a sample as read from a source, which may give them in any number of chunks."""
    fields, count = _comparable(spec), sample.run.records
    run = RunHash()
    first = first_record + sample.start
    for columns in source.ending_before(first + count).chunks(first):
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
