"""Write the parts of a cache, each with a receipt, and join the receipts into the content to publish.

A *receipt* is a small file in the folder of a build. It names sealed parts that follow each other, and
describes their records: one part that a killed build can continue after, or all parts of a partition.
"""

import contextlib
import errno
import json
import logging
import platform
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from yogadl._core.arguments import in_words
from yogadl._core.columns import CHUNK_BYTES, Columns, size_of, widen
from yogadl._core.forms import PLAIN, Forms
from yogadl._core.frozen import MANY_DIGITS, parse_json
from yogadl._core.key import DatasetKey, library_version
from yogadl._core.progress import Progress, report_to_both
from yogadl._core.spec import OBJECT, Leaf, Spec
from yogadl._format.codec import AUTO_RATIO, LEAST_ROW_BYTES, RAW, SAME, Codec, codecs_of, described
from yogadl._format.columns import RunHash, hash_run, stored_column
from yogadl._format.layout import SealedPart, join_parts
from yogadl._format.manifest import CODEC, digest_of
from yogadl._format.reader import Reader
from yogadl._format.writer import CacheWriter
from yogadl._sources.sources import ResumableSource, Source
from yogadl.errors import CacheFormatError, StorageError, UnsupportedDataError
from yogadl.storage import _names
from yogadl.storage._builds.dictionaries import DICTIONARY, Dictionaries
from yogadl.storage._builds.options import BuildTerms
from yogadl.storage._builds.publish import Content, clear_attempt, publish
from yogadl.storage._builds.shares import Shares
from yogadl.storage._catalogue.backend import Backend, BuildExclusion
from yogadl.storage._catalogue.cached import Published, read_dictionary, read_sealed
from yogadl.storage._files.root import MAX_READ_BYTES, Root, trashed_names

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


_log = logging.getLogger("yogadl")

# After this time, a build logs its expected size.
_LOG_AFTER_S: Final = 10.0


class Writing(NamedTuple):
    """How the holder of the right to build writes all of a source.

    Args:
        options: The options of the build, with the largest size of a part.
        exclusion: The right to build; held by the caller.
        show: Shows the progress.
        log_level: The level of what is logged of size and time: a warning if no progress bar shows them.
    """

    options: BuildTerms
    exclusion: BuildExclusion
    show: Progress | None
    log_level: int


class PartOptions(NamedTuple):
    """How parts are written, and who is told.

    Args:
        part_bytes: Parts are sealed before they hold more; ``None`` lets them grow up to 1 GiB.
        progress: Called with records so far, records in all if known, bytes so far.
        exclusion: The right to build, checked before each part; ``None`` for a task, which has none.
        log_level: The level of the message about size and time.
    """

    part_bytes: int | None
    progress: Progress | None
    exclusion: BuildExclusion | None = None
    log_level: int = logging.INFO


@dataclass(frozen=True)
class Build:
    """An attempt to build a version: all partitions are written, and published together.

    Its classes declare who writes them, and what else may happen meanwhile. Picklable, if the source is.

    Args:
        backend: The storage of the cache.
        key: The version to build.
        count: The number of partitions.
        run: The name that distinguishes this build from other builds of the same key.
        folder: The folder of the partitions' receipts.
        shares: A share of the source for each partition, if there is one source.
        origin: The hash of all that decides the records of the source; empty if records must be compared.
        codec: How values are compressed.
        forms: What is said about the values of records.
        is_skipping: Whether records that can't be read are left out.
    """

    backend: Backend
    key: DatasetKey
    count: int
    run: str
    folder: str
    shares: Shares | None = None
    origin: str = ""
    codec: Codec = None
    forms: Forms = PLAIN
    is_skipping: bool = False

    def write_all(self, source: Source, writing: Writing) -> "tuple[Build, Sequence[WrittenParts | None]]":
        """Write all of a source; return this build, with the number of partitions, and what each has.

        Raises:
            WorkerDiedError: if workers died repeatedly at the same partition; the error names it.
        """
        raise NotImplementedError

    def receipts(self, written: Sequence[WrittenParts | None]) -> list[Receipt]:
        """Return the receipts of all parts, in order, of what was written.

        Raises:
            ConfigurationError: if a partition is not written, or its parts do not exist any more.
        """
        raise NotImplementedError

    def write_parts(
        self, source: Source, folder: str, how: PartOptions, origin: str | None = None
    ) -> list[Receipt]:
        """Read `source` to its end and return the receipts of all parts, in order.

        Args:
            source: The source.
            folder: The folder of the parts' receipts, and of unfinished files.
            how: How large parts are, and who is told.
            origin: For a folder in which builds continue where a killed one stopped: the hash of all that
                decides the records, empty if all records must be compared. ``None`` for a new folder.
        """
        root = self.backend.root
        terms = {} if origin is None else self._terms(source, how.part_bytes)
        folder_receipts = Receipts(root, self.key, folder, source, terms, origin or "")
        receipts = [] if origin is None else folder_receipts.read()
        first = receipts[-1].first_record + receipts[-1].part.index.records if receipts else 0
        if receipts:
            _log.info("yogadl: %s: continuing at record %d, where an earlier build stopped", self.key, first)
        spec = receipts[-1].spec if receipts else source.spec

        def on_sealed(path: Path, part: SealedPart, spec: Spec) -> None:
            if how.exclusion is not None:
                how.exclusion.check()
            first_record = sum(r.part.index.records for r in receipts)
            try:
                samples = samples_of(path, part, spec, partial(read_dictionary, root, self.key.id))
            except CacheFormatError as error:
                raise StorageError(
                    errno.EIO,
                    f"a part that was just written can't be read, so the disk may be failing: {error}",
                ) from error
            receipt = Receipt(first_record, part, spec, samples, folder_receipts.origin)
            folder_receipts.keep(path, receipt, self._wait_for_prune)
            receipts.append(receipt)

        dictionaries = Dictionaries(root, self.key, self.folder)
        if first != source.length:
            dictionaries.train_ahead(source, self.codec)

        with root.workplace(folder) as work:
            writer = CacheWriter(
                work, spec, part_bytes=how.part_bytes, on_sealed=on_sealed, first_record=first,
                codec=self.codec, dictionaries=dictionaries.find,
            )  # fmt: skip
            sizes = _SizeReporter(self, source.length, work, how)
            has_mirror = not root.promises.renames
            try:
                if first != source.length:
                    for columns in source.chunks(first):
                        writer.wait()
                        sizes.check(writer.records, writer.size_bytes, first)
                        if has_mirror:
                            self._make_room(writer.size_bytes, columns, how.part_bytes)
                        writer.write(columns)
                writer.finish()
                sizes.check(writer.records, writer.size_bytes, first)
            except BaseException:
                writer.abandon()
                _clear_unfinished(work)
                raise
        if source.length is not None and writer.records != source.length:
            raise UnsupportedDataError(
                f"the length of the source is {source.length}, but it returned {writer.records} records: "
                "correct its __len__; or it was read before, then give a new one"
            )
        return receipts

    def _make_room(self, written_bytes: int, columns: Columns, part_bytes: int | None) -> None:
        """Make room in the mirror for a chunk, and for the part that earlier chunks have begun.

        The size of that part is counted twice, because LMDB writes whole pages, and the part before it may be
        sealed at the same time.
        """
        begun_bytes = min(written_bytes, part_bytes or written_bytes)
        self.backend.root.make_room(CHUNK_BYTES + 2 * (begun_bytes + sum(map(_bytes_of, columns))))

    def _terms(self, source: Source, part_bytes: int | None) -> dict[str, Any]:
        """Return the values that an earlier build must share with this one for its parts to be used."""
        return {
            "length": source.length,
            "part_bytes": part_bytes,
            "replaces": digest_replaced(self.backend.root, self.key),
            **({} if self.codec is None else {"codec": described(self.codec)}),
        }

    def _wait_for_prune(self) -> None:
        """Do nothing: the right to build excludes prunes."""

    def _note_version(self) -> None:
        """Write the version's name into the folder of its builds, whose name does not contain it."""
        root, note = self.backend.root, _names.version_note(_names.builds(self.key))
        if root.size(note) is None:
            root.write(note, self.key.version.encode())

    @property
    def _entries(self) -> dict[str, Any]:
        """What the manifest says of the build, beside the builder."""
        return {}

    def publish(
        self,
        content: Content,
        builder: dict[str, Any],
        exclusion: BuildExclusion,
        *,
        replaces: bool,
        aside: str,
    ) -> Published | None:
        """Publish the content that was made of the receipts; return it, unless another one is the version.

        Args:
            content: The content made of the receipts of all parts, perhaps with parts of a base before them.
            builder: The manifest's description of the builder, without run and number of partitions.
            exclusion: The right to build; held by the caller.
            replaces: Whether the cache replaces an existing version.
            aside: The folder of an attempt of the caller's that has ended: see `put_aside`.
        """
        root = self.backend.root
        builder = builder | self._entries
        if self.codec:
            builder |= {CODEC: described(self.codec)}
        published = publish(root, self.key, content, builder, exclusion=exclusion, replaces=replaces)
        if published is None:
            return None
        if self.codec and content.run.records:
            _log_uncompressed(self.key, self.codec, content)
        self._put_leftovers_aside(aside)
        clear_attempt(root, self.key, self.folder)
        return published

    def _put_leftovers_aside(self, aside: str) -> None:
        """Put aside what writers that are not needed any more have left."""


@dataclass(frozen=True)
class InOrder(Build):
    """A build by one process, which reads the source in order and needs no receipt of its only partition.

    A build that was killed is continued after its last part, where the folder is one that builds continue in.
    """

    def write_all(self, source: Source, writing: Writing) -> tuple[Build, Sequence[WrittenParts | None]]:
        """Write the source as one partition."""
        self._note_version()
        progress = report_to_both(writing.exclusion.report, writing.show)
        how = PartOptions(writing.options.build.part_bytes, progress, writing.exclusion, writing.log_level)
        origin = self.origin if source.can_start_anywhere else None
        return self, [WrittenParts(self.write_parts(source, self.folder, how, origin), {})]

    def receipts(self, written: Sequence[WrittenParts | None]) -> list[Receipt]:
        """Return the receipts of all parts, in order."""
        return [receipt for one in written if one is not None for receipt in one.receipts]


def _log_uncompressed(key: DatasetKey, codec: Codec, content: Content) -> None:
    """Log for which fields a codec did nothing: a warning if it was meant for them, or did nothing at all."""
    stored = content.table.codecs
    names = [field.name for field in content.spec.fields]
    given = list(zip(names, codecs_of(codec, names), stored, strict=True))
    for is_auto, why in (
        (False, f"values of one size below {LEAST_ROW_BYTES} bytes are stored as they are"),
        (True, f"a sample did not shrink to less than {AUTO_RATIO:.0%}, or values are small and of one size"),
    ):
        idle = [name for name, one, kept in given if one and kept == RAW and (one == "auto") == is_auto]
        if idle:
            is_meant = not is_auto and isinstance(codec, Mapping)
            is_all = all(kept == RAW for _, one, kept in given if one)
            level = logging.WARNING if is_meant or is_all else logging.INFO
            _log.log(level, "yogadl: %s: codec= does nothing for the fields %s: %s", key, idle, why)


def digest_replaced(root: Root, key: DatasetKey) -> str | None:
    """Return the digest of the manifest that a build of this version replaces, or of the newest in the trash.

    This digest is one of the terms under which parts are reused. Otherwise, a build that replaces a version
    would reuse the parts of a build that was killed right after it had published that version.
    """
    trashed = trashed_names(root, key)
    before = root.read(_names.manifest(key)) or (root.read(trashed[-1]) if trashed else None)
    return None if before is None else digest_of(before)


def _bytes_of(column: Any) -> int:
    """Return about how many bytes a column of a source takes; the column may be in its stored form."""
    if isinstance(column, np.ndarray | list):
        return size_of(column)
    return int(column.size_bytes)


def _clear_unfinished(work: Path) -> None:
    """Remove the unfinished files of a failed build, which would fill up a full disk."""
    with contextlib.suppress(OSError):  # the caller raises the error that made the build fail
        for path in work.iterdir():
            if path.is_file() and path.suffix not in (".json", STATE):
                path.unlink(missing_ok=True)


def describe_machine() -> dict[str, Any]:
    """Return the versions of the software that builds a cache, and the time."""
    return {
        "yogadl": library_version(),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
        "started": time.time(),
    }


class _SizeReporter:
    """Report progress; after a while, log the expected size, and whether the disk may be too small."""

    def __init__(self, build: Build, length: int | None, work: Path, how: PartOptions) -> None:
        self._build = build
        self._length = length
        self._work = work
        self._how = how
        self._started = time.monotonic()
        self._has_logged = False

    def check(self, records: int, size_bytes: int, first: int) -> None:
        written = records - first
        if not written:
            return
        if self._how.progress is not None:
            self._how.progress(records, self._length, size_bytes)
        elapsed_s = time.monotonic() - self._started
        if self._has_logged or elapsed_s < _LOG_AFTER_S:
            return
        self._has_logged = True
        free_bytes = shutil.disk_usage(self._work).free
        if self._length is None:
            _log.log(
                self._how.log_level, "yogadl: %s: %s written, %s free",
                self._build.key, in_words(size_bytes), in_words(free_bytes),
            )  # fmt: skip
            return
        rest_bytes = size_bytes * (self._length - records) // written
        rest_s = elapsed_s * (self._length - records) / written
        _log.log(
            self._how.log_level,
            "yogadl: %s: about %s in all, %.0f s left, %s free",
            self._build.key, in_words(size_bytes + rest_bytes), rest_s, in_words(free_bytes),
        )  # fmt: skip
        if rest_bytes > free_bytes and self._build.backend.root.promises.renames:
            _log.warning(
                "yogadl: %s may not fit on the disk: if the other records are as large as those so far, %s "
                "are still to be written to %s, and %s are free",
                self._build.key, in_words(rest_bytes), self._work, in_words(free_bytes),
            )  # fmt: skip


def content_of(receipts: Iterable[Receipt]) -> Content:
    """Join the receipts of all parts, in order, into the content to publish.

    Raises:
        UnsupportedDataError: if parts have different structures.
    """
    parts_in_order = list(receipts)
    spec = parts_in_order[0].spec
    for receipt in parts_in_order[1:]:
        require_like(spec, receipt.spec, f"the records from {receipt.first_record} on have")
        ours, theirs = spec.fields, receipt.spec.fields
        spec = spec.with_leaves(_union(a.leaf, b.leaf) for a, b in zip(ours, theirs, strict=True))
    run = RunHash()
    for receipt in parts_in_order:
        run = run.then(receipt.part.index.run)
    is_weak = any(receipt.part.index.is_weak for receipt in parts_in_order)
    return Content(spec, join_parts([receipt.part for receipt in parts_in_order]), run, is_weak=is_weak)


@dataclass(frozen=True)
class PlannedBuild:
    """A source to build, with a check of it and a change of the content that is published.

    Args:
        data: The source.
        check: Called with the open source; raises to refuse it.
        content: Turns the receipts of the parts into the content that is published.
        codec: What ``codec="same"`` stands for.
        like: The structure of the records before, if there are any.
    """

    data: Any
    check: Callable[[Source], None] = lambda source: None
    content: Callable[[list[Receipt]], Content] = content_of
    codec: Codec = SAME  # which is refused
    like: Spec | None = None


def require_like(before: Spec, spec: Spec, what: str, remedy: str = "") -> None:
    """Refuse records whose structure differs from that of the records before.

    Args:
        before: The structure of the records before.
        spec: The structure of the records.
        what: The beginning of the message: the records, and "has" or "have".
        remedy: The end of the message.

    Raises:
        UnsupportedDataError: if the structures differ.
    """
    if not spec.is_like(before):
        fields_now, fields_before = _describe_fields(spec), _describe_fields(before)
        raise UnsupportedDataError(
            f"{what} another structure or dtype than before: {fields_now}, not {fields_before}{remedy}"
        )


def _describe_fields(spec: Spec) -> str:
    if isinstance(spec.tree, Leaf):
        return spec.tree.dtype
    names = (f"{field.name!r} {field.leaf.dtype}" for field in spec.fields)
    return f"a {spec.tree.kind} of ({', '.join(names)})"


def _union(first: Any, second: Any) -> Any:
    """Return the leaf that admits the shapes of both leaves."""
    if first.shape is None or second.shape is None:
        return first if first.shape is None else second
    return widen(first, second.shape)
