"""Drive a build: from a source to sealed parts with receipts, to a published manifest."""

import contextlib
import hashlib
import json
import logging
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from yogadl._format.arrays import ArrayFile
from yogadl._format.columns import stored_column
from yogadl._format.fingerprint import RunHash, fingerprint_of, hash_run
from yogadl._format.layout import PartIndex, PartTable, SealedPart, join_parts
from yogadl._format.manifest import Manifest, digest_of
from yogadl._format.reader import Reader
from yogadl._key import DatasetKey
from yogadl._sources import Source
from yogadl._spec import Spec
from yogadl.errors import CacheFormatError, ConfigurationError, StorageError, UnsupportedDataError
from yogadl.storage import _names
from yogadl.storage._folder import Folder, storage_error

_log = logging.getLogger("yogadl")

_SAY_AFTER_S: Final = 10.0
_SAMPLED_RECORDS: Final = 16

Progress = Callable[[int, int | None, int], None]


@dataclass(frozen=True)
class Receipt:
    """What is known of one sealed part of an unfinished build."""

    first_record: int
    part: SealedPart
    spec: Spec


@dataclass(frozen=True)
class Build:
    """Turn one source into parts in a storage's folder, going on where a killed build stopped.

    Whoever runs it holds the right to build this key.

    Args:
        folder: The storage's root.
        key: What is built.
        part_bytes: Parts are sealed before they hold more; ``None`` lets them grow up to 1 GiB.
        progress: Called with records so far, records in all if known, bytes so far.
    """

    folder: Folder
    key: DatasetKey
    part_bytes: int | None = None
    progress: Progress | None = None
    say_after_s: float = field(default=_SAY_AFTER_S)

    def run(self, source: Source, where: str) -> list[Receipt]:
        """Read `source` to its end and return the receipts of all parts, in order.

        Args:
            source: What to read.
            where: The build's own folder, by name.
        """
        terms = self._terms(source)
        receipts = self._receipts(source, where, terms)
        first = receipts[-1].first_record + receipts[-1].part.index.records if receipts else 0
        if receipts:
            _log.info("yogadl: %s: going on at record %d, where an earlier build stopped", self.key, first)
        work = self.folder.path(where)
        try:
            work.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise storage_error(error, f"can't make the folder {work}") from error
        spec = receipts[-1].spec if receipts else source.spec
        sizes = _Sizes(self, source.length, work)

        def on_sealed(path: Path, part: SealedPart, spec: Spec) -> None:
            receipt = Receipt(sum(r.part.index.records for r in receipts), part, spec)
            self._keep(path, receipt, where, terms)
            receipts.append(receipt)

        from yogadl._format.writer import CacheWriter  # loads lmdb, which reading does not need

        writer = CacheWriter(work, spec, part_bytes=self.part_bytes, on_sealed=on_sealed, first_record=first)
        try:
            if first != source.length:
                for columns in source.chunks(first):
                    writer.write(columns)
                    sizes.check(writer.records, writer.size_bytes, first)
            writer.finish()
        except BaseException:
            writer.abandon()
            # On a full disk every unfinished file is in the way; what is sealed has left this folder.
            for name in self.folder.names(where):
                if not name.endswith(".json"):
                    self.folder.remove(name)
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
        trashed = trashed_names(self.folder, self.key)
        before = self.folder.read(name) or (self.folder.read(trashed[-1]) if trashed else None)
        return {
            "length": source.length,
            "part_bytes": self.part_bytes,
            # Else a builder killed after it had published would lend its parts to its own replacement.
            "replaces": None if before is None else digest_of(before),
        }

    def _keep(self, path: Path, receipt: Receipt, where: str, terms: dict[str, Any]) -> None:
        """Move a sealed part to its place, then note that it is there."""
        part = receipt.part
        index, name = _names.index(self.key.id, part.sha256), _names.part(self.key.id, part.sha256)
        self.folder.adopt({index: path.with_suffix(".idx"), name: path})
        document = {
            "first": receipt.first_record,
            "sha256": part.sha256,
            "index_sha256": part.index_sha256,
            "spec": receipt.spec.to_json(),
            **terms,
        }
        self.folder.write(f"{where}/{receipt.first_record:015d}.json", json.dumps(document).encode())

    def _receipts(self, source: Source, where: str, terms: dict[str, Any]) -> list[Receipt]:
        """Return the receipts an earlier build left that hold for this source; clear the rest."""
        kept: list[Receipt] = []
        if source.can_start_anywhere:
            for name in self.folder.names(where, ".json"):
                receipt = self._read_receipt(name, terms)
                expected = kept[-1].first_record + kept[-1].part.index.records if kept else 0
                if receipt is None or receipt.first_record != expected:
                    break
                kept.append(receipt)
            if kept and not _agree(source, kept, self.folder, self.key):
                kept = []
        names = {f"{receipt.first_record:015d}.json" for receipt in kept}
        for name in self.folder.names(where):
            if Path(name).name not in names:
                self.folder.remove(name)
        return kept

    def _read_receipt(self, name: str, terms: dict[str, Any]) -> Receipt | None:
        content = self.folder.read(name)
        try:
            document = json.loads(content or b"")
            if any(document[term] != value for term, value in terms.items()):
                return None
            for name_of in (_names.part, _names.index):
                self.folder.touch(
                    name_of(self.key.id, document["sha256"])
                )  # or a prune might take it just now
            part = read_sealed(self.folder, self.key.id, document["sha256"], document["index_sha256"])
            return Receipt(document["first"], part, Spec.from_json(document["spec"]))
        except (ValueError, KeyError, TypeError, StorageError):
            return None  # from another version or cut short: what it names is built again


def trashed_names(folder: Folder, key: DatasetKey) -> list[str]:
    """Return the names of the trashed manifests of a version, oldest first."""
    below = f"{key.id}/trash"
    found = []
    for name in folder.names(below, _names.MANIFEST_SUFFIX):
        with contextlib.suppress(ValueError):
            version, stamp = _names.split_trashed(name[len(below) + 1 :])
            if version == key.version:
                found.append((stamp, name))
    return [name for _, name in sorted(found)]


def read_sealed(folder: Folder, dataset_id: str, sha256: str, index_sha256: str) -> SealedPart:
    """Return what is known of a part in the storage.

    Raises:
        CacheFormatError: if its files are missing or not what they were.
    """
    name = _names.index(dataset_id, sha256)
    content = folder.read(name)
    if content is None or hashlib.sha256(content).hexdigest() != index_sha256:
        raise CacheFormatError(f"the index {name} is missing or was changed; build the dataset again")
    index = PartIndex.from_file(ArrayFile.from_buffer(content, name), name)
    if folder.size(_names.part(dataset_id, sha256)) != index.size_bytes:
        raise CacheFormatError(f"part {sha256} is missing or was truncated; build the dataset again")
    return SealedPart(sha256, index_sha256, index)


def _agree(source: Source, receipts: Sequence[Receipt], folder: Folder, key: DatasetKey) -> bool:
    """Compare the first and the last records of each sealed part with the source's."""
    spec = receipts[-1].spec
    if not spec.is_like(source.spec):
        return False
    table = join_parts([receipt.part for receipt in receipts])
    try:
        reader = Reader(spec, table, PartPaths(folder, key.id))
        for first, end in zip(table.first_record[:-1].tolist(), table.first_record[1:].tolist(), strict=True):
            for start in {first, max(first, end - _SAMPLED_RECORDS)}:
                count = min(_SAMPLED_RECORDS, end - start)
                sealed = reader.columns(np.arange(start, start + count, dtype=np.int64))
                if _hash(spec, sealed, count) != _hash_source(source, spec, start, count):
                    return False
    except CacheFormatError:
        return False
    return True


def _hash_source(source: Source, spec: Spec, start: int, count: int) -> RunHash:
    """Hash `count` records of a source, which it may give in any number of chunks."""
    run = RunHash()
    for columns in source.chunks(start):
        piece = [column[: count - run.records] for column in columns]
        run = run.then(_hash(spec, piece, len(piece[0])))
        if run.records >= count:
            break
    return run


def _hash(spec: Spec, columns: Sequence[Any], count: int) -> RunHash:
    return hash_run(
        [stored_column(f.leaf, column).hashes() for f, column in zip(spec.fields, columns, strict=True)],
        count,
    )


class PartPaths:
    """Know where the parts of a dataset lie in a local folder. Picklable."""

    def __init__(self, folder: Folder, dataset_id: str) -> None:
        self._folder = folder
        self._id = dataset_id

    def path(self, sha256: str) -> str:
        """Return the path of a part's file."""
        return str(self._folder.path(_names.part(self._id, sha256)))


class _Sizes:
    """Say after a while how large the cache will be, and stop a build that can't fit."""

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
            _log.info(
                "yogadl: %s: %s written, %s free", self._build.key, _size(size_bytes), _size(free_bytes)
            )
            return
        rest_bytes = size_bytes * (self._length - records) // max(1, written)
        rest_s = elapsed_s * (self._length - records) / max(1, written)
        _log.info(
            "yogadl: %s: about %s in all, %.0f s left, %s free",
            self._build.key, _size(size_bytes + rest_bytes), rest_s, _size(free_bytes),
        )  # fmt: skip
        if rest_bytes > free_bytes:
            raise StorageError(
                f"{self._build.key} can't fit: {_size(rest_bytes)} are still to be written to {self._work}, "
                f"and {_size(free_bytes)} are free; make room, or build where there is"
            )


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


@dataclass(frozen=True)
class Content:
    """What a manifest will say of the data itself."""

    spec: Spec
    table: PartTable
    run: RunHash


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


def publish(folder: Folder, key: DatasetKey, content: Content, builder: dict[str, Any]) -> Manifest:
    """Write part table and manifest; an existing version goes to the trash.

    The caller holds the right to build.

    Returns:
        The manifest, which now is the cache.
    """
    if content.run.records != content.table.records:
        raise ConfigurationError("the parts and their hashes disagree; this is a bug, please report it")
    table = content.table.to_file().to_bytes()
    table_sha256 = hashlib.sha256(table).hexdigest()
    folder.write(_names.table(key.id, table_sha256), table)
    manifest = Manifest(
        key=key,
        spec=content.spec,
        records=content.run.records,
        fingerprint=fingerprint_of(content.spec, content.run),
        table_sha256=table_sha256,
        table_bytes=len(table),
        size_bytes=int(content.table.size_bytes.sum()),
        parts=len(content.table),
        created=time.time(),
        builder=builder,
        token=secrets.token_hex(8),
    )
    name = _names.manifest(key)
    old = folder.read(name)
    if old is not None:
        # A copy first, then the replacement: at no moment is there no manifest.
        folder.write(_names.trashed(key, time.time_ns()), old)
    folder.write(name, manifest.to_bytes())
    return manifest
