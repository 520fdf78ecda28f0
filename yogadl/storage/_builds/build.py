"""Write the parts of a cache, each with a receipt, and join the receipts into the content to publish."""

import contextlib
import errno
import hashlib
import json
import logging
import platform
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from yogadl._core.arguments import in_words
from yogadl._core.columns import CHUNK_BYTES, Columns, size_of, widen
from yogadl._core.key import DatasetKey, library_version
from yogadl._core.leaf import Leaf
from yogadl._core.progress import Progress
from yogadl._core.spec import Spec
from yogadl._format.columns import RunHash
from yogadl._format.layout import SealedPart, join_parts
from yogadl._format.manifest import digest_of
from yogadl._sources.sources import Source
from yogadl.errors import CacheFormatError, StorageError, UnsupportedDataError
from yogadl.storage import _names
from yogadl.storage._builds.publish import Content
from yogadl.storage._builds.receipts import STATE, Receipt, Receipts, samples_of
from yogadl.storage._catalogue.backend import BuildExclusion
from yogadl.storage._files.root import Root, trashed_names
from yogadl.storage._leases.locks import BuildLock

_log = logging.getLogger("yogadl")

# After this time, a build logs its expected size.
_LOG_AFTER_S: Final = 10.0


def note_version(root: Root, key: DatasetKey) -> None:
    """Write the version's name into the folder of its builds, since the folder's name does not contain it."""
    note = _names.version_note(_names.builds(key))
    if root.size(note) is None:
        root.write(note, key.version.encode())


@dataclass(frozen=True)
class Build:
    """Turn one source into parts below a storage's root, continuing where a killed build stopped.

    Args:
        root: The root below which the parts are written.
        key: The version to build.
        part_bytes: Parts are sealed before they hold more; ``None`` lets them grow up to 1 GiB.
        progress: Called with records so far, records in all if known, bytes so far.
        exclusion: The right to build this key; held by the caller.
        origin_sha256: Returns a hash of the code and the values that the source was made from, if they are
            known.
        log_level: The log level of the message about size and time: a warning if no progress bar shows them.
        on_receipt_written: Called when a part's receipt is written, before the part is moved to its place.
    """

    root: Root
    key: DatasetKey
    part_bytes: int | None = None
    progress: Progress | None = None
    exclusion: BuildExclusion = field(default_factory=BuildLock)
    origin_sha256: Callable[[], str] = field(default=str)
    log_level: int = logging.INFO
    on_receipt_written: Callable[[], None] = lambda: None

    def run(self, source: Source, where: str) -> list[Receipt]:
        """Read `source` to its end and return the receipts of all parts, in order."""
        note_version(self.root, self.key)
        kept = Receipts(self.root, self.key, where, source, self._terms(source), self._origin(source))
        receipts = kept.read()
        first = receipts[-1].first_record + receipts[-1].part.index.records if receipts else 0
        if receipts:
            _log.info("yogadl: %s: going on at record %d, where an earlier build stopped", self.key, first)
        spec = receipts[-1].spec if receipts else source.spec

        def on_sealed(path: Path, part: SealedPart, spec: Spec) -> None:
            self.exclusion.check()
            first_record = sum(r.part.index.records for r in receipts)
            try:
                samples = samples_of(path, part, spec)
            except CacheFormatError as error:
                raise StorageError(
                    errno.EIO, f"a part that was just written can't be read: {error}"
                ) from error
            receipt = Receipt(first_record, part, spec, samples, kept.origin)
            kept.keep(path, receipt, self.on_receipt_written)
            receipts.append(receipt)

        from yogadl._format.writer import CacheWriter  # imports lmdb, which reading does not need

        with self.root.workplace(where) as work:
            writer = CacheWriter(
                work, spec, part_bytes=self.part_bytes, on_sealed=on_sealed, first_record=first
            )
            sizes = _Sizes(self, source.length, work)
            has_mirror = self.root.bucket is not None
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
                f"the source said that it has {source.length} records, but gave {writer.records}: "
                "a wrong __len__, or a source read before"
            )
        # The writer's spec is the widest: it is widened whenever a shape turns out to vary.
        receipts[-1] = replace(receipts[-1], spec=writer.spec)
        return receipts

    def _make_room(self, written_bytes: int, columns: Columns) -> None:
        """Make room in the mirror for a chunk and for the records before it that are not written yet.

        The records before fill one part at most. Their size is counted twice, because LMDB writes whole pages
        and the part before is sealed at the same time.
        """
        held_bytes = min(written_bytes, self.part_bytes or written_bytes)
        self.root.make_room(CHUNK_BYTES + 2 * (held_bytes + sum(map(_bytes_of, columns))))

    def _terms(self, source: Source) -> dict[str, Any]:
        """Return the values that an earlier build must share with this one for its parts to be used."""
        return {
            "length": source.length,
            "part_bytes": self.part_bytes,
            "replaces": digest_replaced(self.root, self.key),
        }

    def _origin(self, source: Source) -> str:
        """Return the hash of all that decides a source's records; empty if all records are compared."""
        if not (source.can_start_anywhere and getattr(source, "is_costly", False)):
            return ""
        known = {"provenance": getattr(source, "provenance", {}), "sha256": self.origin_sha256()}
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def digest_replaced(root: Root, key: DatasetKey) -> str | None:
    """Return the digest of the manifest that a build of this version replaces, or of the newest in the trash.

    Without it, the replacement of a version would reuse the parts of a build that was killed right after it
    had published that version.
    """
    trashed = trashed_names(root, key)
    before = root.read(_names.manifest(key)) or (root.read(trashed[-1]) if trashed else None)
    return None if before is None else digest_of(before)


def _bytes_of(column: Any) -> int:
    """Return about how many bytes a column of a source takes; the column may be in its stored form."""
    if isinstance(column, np.ndarray | list):
        return size_of(column)
    sizes = column.sizes()
    return sizes * len(column) if isinstance(sizes, int) else int(sizes.sum())


def _clear_unfinished(work: Path) -> None:
    """Remove the unfinished files of a failed build, which would fill up a full disk."""
    with contextlib.suppress(OSError):  # the error that failed the build is raised, not one of this cleanup
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


class _Sizes:
    """Report progress, and log after a while the expected size and whether the disk may be too small."""

    def __init__(self, build: Build, length: int | None, work: Path) -> None:
        self._build = build
        self._length = length
        self._work = work
        self._started = time.monotonic()
        self._said = False

    def check(self, records: int, size_bytes: int, first: int) -> None:
        written = records - first
        if not written:
            return
        if self._build.progress is not None:
            self._build.progress(records, self._length, size_bytes)
        elapsed_s = time.monotonic() - self._started
        if self._said or elapsed_s < _LOG_AFTER_S:
            return
        self._said = True
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
        if rest_bytes > free_bytes and self._build.root.bucket is None:
            _log.warning(
                "yogadl: %s may not fit: if the records to come are as large as those so far, %s are still "
                "to be written to %s, and %s are free",
                self._build.key, in_words(rest_bytes), self._work, in_words(free_bytes),
            )  # fmt: skip


def content_of(receipts: Iterable[Receipt]) -> Content:
    """Join the receipts of all parts, in order, into the content to publish.

    Raises:
        UnsupportedDataError: if parts have different structures.
    """
    every = list(receipts)
    spec = every[0].spec
    for receipt in every[1:]:
        require_like(spec, receipt.spec, f"the records from {receipt.first_record} on have")
        ours, theirs = spec.fields, receipt.spec.fields
        spec = spec.with_leaves(_union(a.leaf, b.leaf) for a, b in zip(ours, theirs, strict=True))
    run = RunHash()
    for receipt in every:
        run = run.then(receipt.part.index.run)
    return Content(spec, join_parts([receipt.part for receipt in every]), run)


@dataclass(frozen=True)
class PlannedBuild:
    """A source to build, with a check of it and a change of the content that is published.

    Args:
        data: The source.
        check: Called with the open source; raises to refuse it.
        content: Turns the receipts of the parts into the content that is published.
    """

    data: Any
    check: Callable[[Source], None] = lambda source: None
    content: Callable[[list[Receipt]], Content] = content_of


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
        now, then = _fields_of(spec), _fields_of(before)
        raise UnsupportedDataError(
            f"{what} another structure or dtype than before: {now}, not {then}{remedy}"
        )


def _fields_of(spec: Spec) -> str:
    if isinstance(spec.tree, Leaf):
        return spec.tree.dtype
    names = (f"{field.name!r} {field.leaf.dtype}" for field in spec.fields)
    return f"a {spec.tree.kind} of ({', '.join(names)})"


def _union(ours: Any, theirs: Any) -> Any:
    """Return the leaf that admits the shapes of both leaves."""
    if ours.shape is None or theirs.shape is None:
        return ours if ours.shape is None else theirs
    return widen(ours, theirs.shape)
