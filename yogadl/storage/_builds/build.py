"""Write the parts of a cache, each with a receipt, and join the receipts into the content to publish."""

import contextlib
import errno
import logging
import platform
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from yogadl._core.arguments import in_words
from yogadl._core.columns import CHUNK_BYTES, Columns, size_of, widen
from yogadl._core.key import DatasetKey, library_version
from yogadl._core.leaf import Leaf
from yogadl._core.progress import Progress
from yogadl._core.spec import Spec
from yogadl._format.codec import SAME, Codec, described
from yogadl._format.columns import RunHash
from yogadl._format.layout import SealedPart, join_parts
from yogadl._format.manifest import digest_of
from yogadl._sources.sources import Source
from yogadl.errors import CacheFormatError, StorageError, UnsupportedDataError
from yogadl.storage import _names
from yogadl.storage._builds.publish import Content
from yogadl.storage._builds.receipts import STATE, Receipt, Receipts, samples_of
from yogadl.storage._catalogue.backend import BuildExclusion
from yogadl.storage._catalogue.parts import read_dictionary
from yogadl.storage._files.root import Root, trashed_names

_log = logging.getLogger("yogadl")

# After this time, a build logs its expected size.
_LOG_AFTER_S: Final = 10.0


@dataclass(frozen=True)
class Build:
    """Writes the parts of a source below a storage's root, each with a receipt.

    Args:
        root: The root below which the parts are written.
        key: The version to build.
        part_bytes: Parts are sealed before they hold more; ``None`` lets them grow up to 1 GiB.
        progress: Called with records so far, records in all if known, bytes so far.
        exclusion: The right to build this key, held by the caller; ``None`` for a task, which has none.
        log_level: The log level of the message about size and time: a warning if no progress bar shows them.
        on_receipt_written: Called when a part's receipt is written, before the part is moved to its place.
        codec: How values are compressed.
        shared: The folder of what all writers of this build have in common: the dictionaries.
    """

    root: Root
    key: DatasetKey
    part_bytes: int | None
    progress: Progress | None
    exclusion: BuildExclusion | None
    log_level: int
    on_receipt_written: Callable[[], None]
    codec: Codec = None
    shared: str = ""

    def run(self, source: Source, folder: str, origin: str | None = None) -> list[Receipt]:
        """Read `source` to its end and return the receipts of all parts, in order.

        Args:
            source: The source.
            folder: The folder of the parts' receipts, and of unfinished files.
            origin: For a folder in which builds continue where a killed one stopped: the hash of all that
                decides the records, empty if all records must be compared. ``None`` for a new folder.
        """
        terms = {} if origin is None else self._terms(source)
        folder_receipts = Receipts(self.root, self.key, folder, source, terms, origin or "")
        receipts = [] if origin is None else folder_receipts.read()
        first = receipts[-1].first_record + receipts[-1].part.index.records if receipts else 0
        if receipts:
            _log.info("yogadl: %s: continuing at record %d, where an earlier build stopped", self.key, first)
        spec = receipts[-1].spec if receipts else source.spec

        def on_sealed(path: Path, part: SealedPart, spec: Spec) -> None:
            if self.exclusion is not None:
                self.exclusion.check()
            first_record = sum(r.part.index.records for r in receipts)
            try:
                samples = samples_of(path, part, spec, partial(read_dictionary, self.root, self.key.id))
            except CacheFormatError as error:
                raise StorageError(
                    errno.EIO,
                    f"a part that was just written can't be read, so the disk may be failing: {error}",
                ) from error
            receipt = Receipt(first_record, part, spec, samples, folder_receipts.origin)
            folder_receipts.keep(path, receipt, self.on_receipt_written)
            receipts.append(receipt)

        from yogadl._format.writer import CacheWriter  # imports lmdb, which reading does not need
        from yogadl.storage._builds.dictionaries import Dictionaries

        dictionaries = Dictionaries(self.root, self.key, self.shared)
        if first != source.length:
            dictionaries.train_ahead(source, self.codec)

        with self.root.workplace(folder) as work:
            writer = CacheWriter(
                work, spec, part_bytes=self.part_bytes, on_sealed=on_sealed, first_record=first,
                codec=self.codec, dictionaries=dictionaries.find,
            )  # fmt: skip
            sizes = _SizeReporter(self, source.length, work)
            has_mirror = not self.root.promises.renames
            try:
                if first != source.length:
                    for columns in source.chunks(first):
                        writer.wait()
                        sizes.check(writer.records, writer.size_bytes, first)
                        if has_mirror:
                            self._make_room(writer.size_bytes, columns)
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

    def _make_room(self, written_bytes: int, columns: Columns) -> None:
        """Make room in the mirror for a chunk, and for the part that earlier chunks have begun.

        The size of that part is counted twice, because LMDB writes whole pages, and the part before it may be
        sealed at the same time.
        """
        begun_bytes = min(written_bytes, self.part_bytes or written_bytes)
        self.root.make_room(CHUNK_BYTES + 2 * (begun_bytes + sum(map(_bytes_of, columns))))

    def _terms(self, source: Source) -> dict[str, Any]:
        """Return the values that an earlier build must share with this one for its parts to be used."""
        return {
            "length": source.length,
            "part_bytes": self.part_bytes,
            "replaces": digest_replaced(self.root, self.key),
            **({} if self.codec is None else {"codec": described(self.codec)}),
        }


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

    def __init__(self, build: Build, length: int | None, work: Path) -> None:
        self._build = build
        self._length = length
        self._work = work
        self._started = time.monotonic()
        self._has_logged = False

    def check(self, records: int, size_bytes: int, first: int) -> None:
        written = records - first
        if not written:
            return
        if self._build.progress is not None:
            self._build.progress(records, self._length, size_bytes)
        elapsed_s = time.monotonic() - self._started
        if self._has_logged or elapsed_s < _LOG_AFTER_S:
            return
        self._has_logged = True
        free_bytes = shutil.disk_usage(self._work).free
        if self._length is None:
            _log.log(
                self._build.log_level, "yogadl: %s: %s written, %s free",
                self._build.key, in_words(size_bytes), in_words(free_bytes),
            )  # fmt: skip
            return
        rest_bytes = size_bytes * (self._length - records) // written
        rest_s = elapsed_s * (self._length - records) / written
        _log.log(
            self._build.log_level,
            "yogadl: %s: about %s in all, %.0f s left, %s free",
            self._build.key, in_words(size_bytes + rest_bytes), rest_s, in_words(free_bytes),
        )  # fmt: skip
        if rest_bytes > free_bytes and self._build.root.promises.renames:
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
