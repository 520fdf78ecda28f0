"""Drive a build: from a source to sealed parts with receipts, to a published manifest."""

import contextlib
import errno
import hashlib
import json
import logging
import platform
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from yogadl._format.columns import stored_column
from yogadl._format.fingerprint import RunHash, hash_run
from yogadl._format.layout import SealedPart, join_parts
from yogadl._format.manifest import digest_of
from yogadl._format.reader import Reader
from yogadl._key import DatasetKey
from yogadl._leaf import OBJECT
from yogadl._size import in_words
from yogadl._sources import Resumable, Source
from yogadl._spec import Spec
from yogadl._version import library_version
from yogadl.errors import CacheFormatError, StorageError, UnsupportedDataError
from yogadl.storage import _names
from yogadl.storage._leases.right import LockedRight, Right
from yogadl.storage._parts import read_sealed
from yogadl.storage._progress import Progress
from yogadl.storage._publish import Content
from yogadl.storage._root import MAX_READ_BYTES, Root
from yogadl.storage._trash import trashed_names

_log = logging.getLogger("yogadl")

_SAY_AFTER_S: Final = 10.0
# Compared with the source before a build goes on: so many records at either end of each sealed part, and of
# large records fewer.
_SAMPLED_RECORDS: Final = 16
_SAMPLED_BYTES: Final = 2**20
_STATE: Final = ".state"  # what a file beside a receipt is called: where the source stood


@dataclass(frozen=True)
class Sample:
    """The hash of some records of a part that follow each other."""

    start: int
    run: RunHash


@dataclass(frozen=True)
class Receipt:
    """What is known of one sealed part of an unfinished build.

    Args:
        first_record: The number of its first record.
        part: The part.
        spec: The spec as far as it was known by then.
        samples: Hashes of some of its records.
        origin: The hash of the code and the values that it was made by, if they were asked for.
    """

    first_record: int
    part: SealedPart
    spec: Spec
    samples: tuple[Sample, ...] = ()
    origin: str = ""


@dataclass(frozen=True)
class Build:
    """Turn one source into parts below a storage's root, going on where a killed build stopped.

    Args:
        root: Where the parts go.
        key: What is built.
        part_bytes: Parts are sealed before they hold more; ``None`` lets them grow up to 1 GiB.
        progress: Called with records so far, records in all if known, bytes so far.
        right: The right to build this key, which whoever runs this holds.
        origin_sha256: Returns a hash of the code and the values that the source was made from, if they are
            known.
        say_after_s: How long a build may take before its size and its time are said.
        say_level: The level of the log that says it: a warning where nothing else would be seen.
    """

    root: Root
    key: DatasetKey
    part_bytes: int | None = None
    progress: Progress | None = None
    right: Right = field(default_factory=LockedRight)
    origin_sha256: Callable[[], str] = field(default=str)
    say_after_s: float = field(default_factory=lambda: _SAY_AFTER_S)
    say_level: int = logging.INFO

    def run(self, source: Source, where: str) -> list[Receipt]:
        """Read `source` to its end and return the receipts of all parts, in order.

        Args:
            source: What to read.
            where: The build's own folder, by name.
        """
        note = _names.version_note(_names.builds(self.key))
        if self.root.size(note) is None:
            self.root.write(note, self.key.version.encode())
        terms, origin = self._terms(source), self._origin(source)
        receipts = self._receipts(source, where, terms, origin)
        first = receipts[-1].first_record + receipts[-1].part.index.records if receipts else 0
        if receipts:
            _log.info("yogadl: %s: going on at record %d, where an earlier build stopped", self.key, first)
        spec = receipts[-1].spec if receipts else source.spec

        def on_sealed(path: Path, part: SealedPart, spec: Spec) -> None:
            self.right.check()
            first_record = sum(r.part.index.records for r in receipts)
            try:
                samples = _samples(path, part, spec)
            except CacheFormatError as error:
                raise StorageError(errno.EIO, f"what was written just now can't be read: {error}") from error
            receipt = Receipt(first_record, part, spec, samples, origin)
            self._keep(source, path, receipt, where, terms)
            receipts.append(receipt)

        from yogadl._format.writer import CacheWriter  # loads lmdb, which reading does not need

        with self.root.workplace(where) as work:
            writer = CacheWriter(
                work, spec, part_bytes=self.part_bytes, on_sealed=on_sealed, first_record=first
            )
            sizes = _Sizes(self, source.length, work)
            try:
                if first != source.length:
                    for columns in source.chunks(first):
                        writer.write(columns)
                        sizes.check(writer.records, writer.size_bytes, first)
                writer.finish()
            except BaseException:
                writer.abandon()
                _clear_unfinished(work)
                raise
        if source.length is not None and writer.records != source.length:
            raise UnsupportedDataError(
                f"the source said that it has {source.length} records, but gave {writer.records}: "
                "a wrong __len__, or a source read before"
            )
        # The last part's spec is the widest: it was widened as shapes turned out to vary.
        receipts[-1] = Receipt(receipts[-1].first_record, receipts[-1].part, writer.spec)
        return receipts

    def _terms(self, source: Source) -> dict[str, Any]:
        """Return what an earlier build must have had in common with this one for its parts to be used."""
        name = _names.manifest(self.key)
        trashed = trashed_names(self.root, self.key)
        before = self.root.read(name) or (self.root.read(trashed[-1]) if trashed else None)
        return {
            "length": source.length,
            "part_bytes": self.part_bytes,
            # Else a builder killed after it had published would lend its parts to its own replacement.
            "replaces": None if before is None else digest_of(before),
        }

    def _origin(self, source: Source) -> str:
        """Return the hash of what decides a source's records; nothing if it need not be known."""
        if not (source.can_start_anywhere and _is_costly(source)):
            return ""
        known = {"provenance": getattr(source, "provenance", {}), "sha256": self.origin_sha256()}
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()

    def _keep(self, source: Source, path: Path, receipt: Receipt, where: str, terms: dict[str, Any]) -> None:
        """Note what a sealed part is, and where the source stood, then move it to its place.

        In this order: a part that no receipt names would be found by nobody if this process died then.
        """
        part = receipt.part
        document = {
            "first": receipt.first_record,
            "sha256": part.sha256,
            "index_sha256": part.index_sha256,
            "spec": receipt.spec.to_json(),
            "samples": [[sample.start, sample.run.records, sample.run.value] for sample in receipt.samples],
            "origin": receipt.origin,
            **terms,
        }
        if isinstance(source, Resumable) and receipt.samples:
            # Before the last sample, so that a later build need not read all of the part to compare it.
            state = source.state(receipt.first_record + receipt.samples[-1].start)
            if state is not None:
                self.root.write(f"{where}/{receipt.first_record:015d}{_STATE}", state)
        self.root.write(f"{where}/{receipt.first_record:015d}.json", json.dumps(document).encode())
        self.root.adopt(
            {
                _names.index(self.key.id, part.index_sha256): path.with_suffix(".idx"),
                _names.part(self.key.id, part.sha256): path,
            }
        )

    def _receipts(self, source: Source, where: str, terms: dict[str, Any], origin: str) -> list[Receipt]:
        """Return the receipts an earlier build left that hold for this source; put the others aside."""
        kept: list[Receipt] = []
        if source.can_start_anywhere:
            for name in self.root.names(where, ".json"):
                receipt = self._read_receipt(name, terms)
                expected = kept[-1].first_record + kept[-1].part.index.records if kept else 0
                if receipt is None or receipt.first_record != expected:
                    break
                kept.append(receipt)
            if kept and not _agree(source, kept, origin, partial(self._restore, source, where)):
                kept = []
        aside = _names.unresumable(self.key, secrets.token_hex(8))  # they say what is to be removed
        names = {f"{r.first_record:015d}{suffix}" for r in kept for suffix in (".json", _STATE)}
        for name in self.root.names(where):
            if Path(name).name in names:
                continue
            if name.endswith(".json"):
                self.root.rename(name, f"{aside}/{Path(name).name}")
            else:
                self.root.remove(name)
        return kept

    def _restore(self, source: Source, where: str, receipt: Receipt) -> bool:
        """Hand a source what it noted when a part was sealed; return whether there is anything."""
        if not isinstance(source, Resumable):
            return False
        state = self.root.read(f"{where}/{receipt.first_record:015d}{_STATE}", MAX_READ_BYTES)
        if state is not None:
            source.restore(state)
        return state is not None

    def _read_receipt(self, name: str, terms: dict[str, Any]) -> Receipt | None:
        content = self.root.read(name)
        try:
            document = json.loads(content or b"")
            if any(document[term] != value for term, value in terms.items()):
                return None
            sha256, index_sha256 = document["sha256"], document["index_sha256"]
            names = _names.part(self.key.id, sha256), _names.index(self.key.id, index_sha256)
            # Before they are looked at, or a prune might take them just after.
            if not all(self.root.keep(name) for name in names):
                return None
            part = read_sealed(self.root, self.key.id, sha256, index_sha256)
            samples = tuple(
                Sample(start, RunHash(records, value)) for start, records, value in document["samples"]
            )
            spec = Spec.from_json(document["spec"])
            return Receipt(document["first"], part, spec, samples, document["origin"])
        except (ValueError, KeyError, TypeError, StorageError):
            return None  # from another version or cut short: what it names is built again


def _clear_unfinished(work: Path) -> None:
    """Remove what a failed build has not finished: on a full disk it is in everybody's way."""
    with contextlib.suppress(OSError):  # what made the build fail is told, not what came of it
        for path in work.iterdir():
            if path.is_file() and path.suffix not in (".json", _STATE):
                path.unlink(missing_ok=True)


def describe_machine() -> dict[str, Any]:
    """Return which software builds a cache."""
    return {
        "yogadl": library_version(),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
        "started": time.time(),
    }


def _samples(path: Path, part: SealedPart, spec: Spec) -> tuple[Sample, ...]:
    """Hash the first and the last records of a part that was just sealed."""
    fields = _comparable(spec)
    if not fields:
        return ()
    reader = Reader(spec, join_parts([part]), _OnePart(path))
    records = part.index.records
    count = min(_SAMPLED_RECORDS, records, max(1, _SAMPLED_BYTES // max(1, reader.record_bytes)))
    samples = []
    for start in sorted({0, records - count}):
        columns = reader.columns(np.arange(start, start + count, dtype=np.int64), fields)
        samples.append(Sample(start, _hash(spec, fields, columns, count)))
    return tuple(samples)


def _comparable(spec: Spec) -> list[int]:
    """Return which fields can be compared with the source's: what is pickled may differ each time."""
    return [number for number, field in enumerate(spec.fields) if field.leaf.dtype != OBJECT]


class _OnePart:
    """Know where one part lies."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def path(self, sha256: str) -> str:
        """Return the path of the part's file."""
        return str(self._path)


def _agree(
    source: Source, receipts: Sequence[Receipt], origin: str, restore: Callable[[Receipt], bool]
) -> bool:
    """Compare what is sealed with the source: all of it, but where that is costly and as good as sure.

    What the same code made of the same values is compared by samples of each part. Not where a source can
    only read on and has no state to go on from: it has to read all of a part to get to its end.
    """
    spec = receipts[-1].spec
    if not spec.is_like(source.spec):
        return False
    for receipt in receipts:
        is_alike = origin != "" and receipt.origin == origin
        goes_by_samples = is_alike and (restore(receipt) or not isinstance(source, Resumable))
        for sample in receipt.samples if goes_by_samples else (Sample(0, receipt.part.index.run),):
            if _hash_source(source, spec, receipt.first_record, sample) != sample.run:
                return False
    return all(receipt.samples for receipt in receipts)


def _is_costly(source: Source) -> bool:
    return getattr(source, "is_costly", False)


def _hash_source(source: Source, spec: Spec, first_record: int, sample: Sample) -> RunHash:
    """Hash the records of a sample as a source, which may give them in any number of chunks, has them."""
    fields, count = _comparable(spec), sample.run.records
    run = RunHash()
    for columns in source.chunks(first_record + sample.start):
        piece = [columns[number][: count - run.records] for number in fields]
        run = run.then(_hash(spec, fields, piece, len(piece[0])))
        if run.records >= count:
            break
    return run


def _hash(spec: Spec, fields: Sequence[int], columns: Sequence[Any], count: int) -> RunHash:
    leaves = [spec.fields[number].leaf for number in fields]
    return hash_run(
        [stored_column(leaf, column).hashes() for leaf, column in zip(leaves, columns, strict=True)], count
    )


class _Sizes:
    """Say after a while how large the cache will be, and whether it may be too large."""

    def __init__(self, build: Build, length: int | None, work: Path) -> None:
        self._build = build
        self._length = length
        self._work = work
        self._started = time.monotonic()
        self._said = False

    def check(self, records: int, size_bytes: int, first: int) -> None:
        if self._build.progress is not None:
            self._build.progress(records, self._length, size_bytes)
        elapsed_s = time.monotonic() - self._started
        if self._said or elapsed_s < self._build.say_after_s:
            return
        self._said = True
        free_bytes = shutil.disk_usage(self._work).free
        written = records - first
        if self._length is None:
            _log.log(
                self._build.say_level, "yogadl: %s: %s written, %s free",
                self._build.key, in_words(size_bytes), in_words(free_bytes),
            )  # fmt: skip
            return
        rest_bytes = size_bytes * (self._length - records) // max(1, written)
        rest_s = elapsed_s * (self._length - records) / max(1, written)
        _log.log(
            self._build.say_level,
            "yogadl: %s: about %s in all, %.0f s left, %s free",
            self._build.key, in_words(size_bytes + rest_bytes), rest_s, in_words(free_bytes),
        )  # fmt: skip
        if rest_bytes > free_bytes and self._build.root.bucket is None:
            _log.warning(
                "yogadl: %s may not fit: if the records to come are as large as those so far, %s are still "
                "to be written to %s, and %s are free",
                self._build.key, in_words(rest_bytes), self._work, in_words(free_bytes),
            )  # fmt: skip


def content_of(receipts: Iterable[Receipt]) -> Content:
    """Join the receipts of all parts, in order.

    Raises:
        UnsupportedDataError: if parts have different structures.
    """
    every = list(receipts)
    spec = every[0].spec
    for receipt in every[1:]:
        if not receipt.spec.is_like(spec):
            raise UnsupportedDataError(
                f"the records from {receipt.first_record} on have another structure or dtype than before: "
                f"{_fields_of(receipt.spec)}, not {_fields_of(spec)}"
            )
        ours, theirs = spec.fields, receipt.spec.fields
        spec = spec.with_leaves(_union(a.leaf, b.leaf) for a, b in zip(ours, theirs, strict=True))
    run = RunHash()
    for receipt in every:
        run = run.then(receipt.part.index.run)
    return Content(spec, join_parts([receipt.part for receipt in every]), run)


def _fields_of(spec: Spec) -> str:
    names = (f"{field.name!r} {field.leaf.dtype}" for field in spec.fields)
    return f"a {getattr(spec.tree, 'kind', 'value')} of ({', '.join(names)})"


def _union(ours: Any, theirs: Any) -> Any:
    """Return the leaf that admits the shapes of both."""
    if ours.shape is None or theirs.shape is None:
        return ours if ours.shape is None else theirs
    return ours.widened(theirs.shape)
