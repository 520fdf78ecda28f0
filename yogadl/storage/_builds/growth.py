"""Build a version that continues another (append), or that has its records in fewer, larger parts (compact).

The other version, the *base*, is read only after this process has the right to build the new one. Until the
end of the build no file of the dataset is pruned, so the base's parts stay, even if the base is deleted.
"""

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from yogadl._core.arguments import users_level
from yogadl._core.columns import CHUNK_BYTES, Columns
from yogadl._core.key import DatasetKey
from yogadl._core.protocols import Earlier, Int64s
from yogadl._core.spec import BYTES, OBJECT, DictNode, Leaf, Spec
from yogadl._format.checks import UNREAD, damage_error
from yogadl._format.codec import RAW, SAME, ZSTD, Codec, codecs_of, recorded_codecs
from yogadl._format.columns import ForeignValues, stored_column
from yogadl._format.fields import Entries
from yogadl._format.files import FileId, ForeignFile
from yogadl._format.layout import PartIndex, SealedPart
from yogadl._format.manifest import CODEC, MOST_EARLIER, DecodedRows, Manifest
from yogadl._format.reader import Reader
from yogadl._provenance.builder import Call
from yogadl._sources.sources import NO_RECORDS, Source
from yogadl.errors import (
    CacheFormatError,
    ConfigurationError,
    DatasetNotFoundError,
    UnsupportedDataError,
)
from yogadl.storage._builds.build import PlannedBuild, Receipt, content_of, describe_machine
from yogadl.storage._builds.building import build_version
from yogadl.storage._builds.left_out import refuse_other_metadata
from yogadl.storage._builds.options import BuildTerms
from yogadl.storage._builds.publish import Content, read_published
from yogadl.storage._catalogue.backend import Backend
from yogadl.storage._catalogue.cached import (
    Published,
    RecordReader,
    open_table,
    read_dictionary,
    read_index,
    require_named,
)
from yogadl.storage._catalogue.catalogue import Catalogue
from yogadl.storage._files.root import Root

_log = logging.getLogger("yogadl")

# The threads that read indexes of parts; in a bucket each small read takes a round trip.
_AT_ONCE: Final = 16


def append(
    backend: Backend,
    key: DatasetKey,
    data: Callable[[], Any],
    base: DatasetKey,
    options: BuildTerms,
    call: Call | None = None,
) -> Published:
    """Build a version of another's parts and those of a source: see `CacheStorage.append`.

    Args:
        backend: The storage.
        key: The version to build.
        data: Returns the new records, once no other process builds and the base is known to exist.
        base: The version that it begins with.
        options: The options of the build.
        call: The call that the records come from, if the manifest is to describe it.
    """
    if key == base:
        raise ConfigurationError(
            f"{key} can't be appended to itself: a call that is repeated after a failure would append twice; "
            "give the new version another name"
        )
    try:
        return build_version(backend, key, lambda: _appended(backend, key, base, data), options, call)
    except UnsupportedDataError as error:
        if str(error) != NO_RECORDS:
            raise
        raise UnsupportedDataError(
            f"the source has no records, so there is nothing to append to {base}: fetch {base} itself"
        ) from None


def compact(
    backend: Backend, key: DatasetKey, base: DatasetKey, options: BuildTerms, *, materialize: bool
) -> Published:
    """Build a version of the same records in new parts: see `CacheStorage.compact`."""
    catalogue = backend.catalogue
    return build_version(backend, key, lambda: _compacted(catalogue, base, options, materialize), options)


def _appended(backend: Backend, key: DatasetKey, base: DatasetKey, data: Callable[[], Any]) -> PlannedBuild:
    manifest = newest(backend.catalogue, base).manifest
    if _contains(manifest, key, _existing_manifest(backend.catalogue.root, key)):
        which = f"{manifest.key.version!r}" + (f" (the tag {base.version!r})" if base != manifest.key else "")
        what = "is the same version" if manifest.key == key else "has all its records"
        raise ConfigurationError(
            f"{key} can't be appended to version {which}, which {what}: it would have the new records "
            "twice. If this call is a repetition, there is nothing left to do. To build the version again, "
            "append to an older version"
        )
    before = receipts_of(backend, manifest)

    def content(receipts: list[Receipt]) -> Content:
        new = [replace(r, first_record=r.first_record + stored.records) for r in receipts]
        found = content_of([*before, *new])
        _warn_of_varying_shapes(stored, found.spec)
        rows = _rows_of_both(manifest, source)
        return replace(found, earlier=earlier_of(manifest), metadata=manifest.metadata, decoded=rows)

    stored, source = manifest.stored, data()
    check = partial(_check_like, manifest)
    return PlannedBuild(source, check, content, _codec_of(stored), stored.spec)


def _rows_of_both(base: Manifest, source: Any) -> DecodedRows | None:
    """Return the rows of a version and those of a source, which are decoded alike, if they are.

    Raises:
        ConfigurationError: if only one of them has groups of rows, or they are decoded otherwise.
    """
    before, after = base.decoded, source.decoded if isinstance(source, Source) else None
    if before is None and after is None:
        return None
    if before is None or after is None:
        which = "has rows of Parquet files, and the new records are" if after is None else "is"
        raise ConfigurationError(
            f"{base.key} {which} no rows of Parquet files, which are decoded as they are read: append files "
            "of the same kind; or make a cache of its rows first, storage.submit(ref, ...)"
        )
    if (before.spec, before.form) != (after.spec, after.form):
        raise UnsupportedDataError(
            f"can't append to {base.key}: its rows are {before.spec.tree}, those of the new files "
            f"{after.spec.tree}, or other values come in the place of nulls: give the same fields, missing"
        )
    return replace(before, records=before.records + after.records)


def _codec_of(manifest: Manifest) -> Codec:
    """Return a codec for the fields that a version has compressed: that of its build, if known."""
    pairs = zip(manifest.spec.fields, manifest.codecs, strict=True)
    names = [field.name for field, codec in pairs if codec != RAW]
    return dict.fromkeys(names, ZSTD) | recorded_codecs(manifest.builder.get(CODEC), names)


def earlier_of(base: Manifest) -> tuple[Earlier, ...]:
    """Return the `earlier` entry of a version that continues this one, the oldest version first."""
    entry = Earlier(base.key.version, base.records, base.fingerprint)
    return (*base.earlier, entry)[-MOST_EARLIER:]


def _contains(base: Manifest, key: DatasetKey, built: Manifest | None) -> bool:
    """Return whether a base already contains the records to append, because the call is a repetition.

    Args:
        base: The version to begin with.
        key: The version to build.
        built: The manifest that this version has now, if any.
    """
    earlier = earlier_of(base)
    if any(each.version == key.version for each in earlier):
        return True
    # The base may have the same records under another name, because it was compacted since.
    return built is not None and built.earlier != () and any(_has_records_of(each, built) for each in earlier)


def _has_records_of(earlier: Earlier, manifest: Manifest) -> bool:
    return (earlier.records, earlier.fingerprint) == (manifest.records, manifest.fingerprint)


def warn_if_other_base(catalogue: Catalogue, built: Manifest, base: DatasetKey) -> None:
    """Warn that the version returned continues another version than the base that the call names.

    Args:
        catalogue: The catalogue of both.
        built: The version returned.
        base: The base that the call names: a version, or a tag of one.
    """
    last = built.earlier[-1] if built.earlier else None
    base_name = base.version
    try:
        found = newest(catalogue, base).manifest
    except DatasetNotFoundError:  # it may have been deleted since
        is_same = last is not None and last.version == base_name
    else:
        base_name = found.key.version
        is_same = _contains(found, built.key, built) or (last is not None and _has_records_of(last, found))
    if is_same:
        return
    continues = "was not appended to any version" if last is None else f"continues version {last.version!r}"
    if last is not None and last.version == base_name:
        continues += " as it was before it was replaced"
    warnings.warn(
        f"{built.key} {continues}, but this call appends to {base_name!r}. It is returned as it is.",
        UserWarning,
        stacklevel=users_level(),
    )


def newest(catalogue: Catalogue, key: DatasetKey) -> Published:
    """Return a version, or the one that a tag names, as the storage has it now, ignoring the mirror.

    Raises:
        DatasetNotFoundError: if there is no such version.
    """
    found = read_published(catalogue.root, key)
    if found is None:
        key, known = catalogue.named(key)
        found = read_published(catalogue.root, key) or known
    return found


def _existing_manifest(root: Root, key: DatasetKey) -> Manifest | None:
    """Return the manifest that the version to build has now; ``None`` if there is none, or a damaged one.

    The build replaces a damaged manifest.
    """
    with contextlib.suppress(CacheFormatError):
        found = read_published(root, key)
        return None if found is None else found.manifest
    return None


def receipts_of(backend: Backend, manifest: Manifest) -> list[Receipt]:
    """Return the receipt of each part of a version.

    Raises:
        CacheFormatError: if a file of the version is missing or damaged.
    """
    table = open_table(backend.root, manifest)
    for sha256 in table.dictionaries:
        read_dictionary(backend.root, manifest.key.id, sha256)
    first = table.first_record.tolist()
    read = partial(read_index, backend.root, manifest.key, table)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        indexes = list(pool.map(read, range(len(table))))
    receipts = [
        Receipt(start, SealedPart(*names, index), manifest.stored.spec)
        for start, names, index in zip(
            first[:-1], zip(table.sha256, table.index_sha256, strict=True), indexes, strict=True
        )
    ]
    require_named(manifest.key, {table.files[file] for file in table.files.addressed}, indexes)
    return receipts


def _check_like(base: Manifest, source: Source) -> None:
    """Refuse a source whose records have another structure or dtype, or other classes, before they are read.

    Shapes may differ: each part has its own form of each field, so old parts stay readable.

    Raises:
        UnsupportedDataError: if structure or dtype differ; the error names the field.
        ConfigurationError: if the source has other metadata, such as names of classes.
    """
    refuse_other_metadata(source, base.metadata)
    _rows_of_both(base, source)
    if source.spec.is_like(base.stored.spec):
        return
    problem = _difference(base.stored.spec, source.spec)
    raise UnsupportedDataError(f"can't append to {base.key}: {problem}")


def _difference(base: Spec, new: Spec) -> str:
    before, after = ({field.name: field.leaf.dtype for field in spec.fields} for spec in (base, new))
    for name, dtype in before.items():
        field = f"the field {name!r}" if name else "the record"
        if name not in after:
            return f"{field} ({dtype}) is missing in the new records, which have {_describe_fields(new)}"
        if after[name] != dtype:
            return (
                f"{field} is {dtype} in that version, and {after[name]} in the new records; make it {dtype}"
            )
    for name, dtype in after.items():
        if name not in before:
            return (
                f"that version lacks the field {name!r} ({dtype}) of the new records: it has "
                f"{_describe_fields(base)}"
            )
    if list(before) != list(after):
        return (
            f"its fields are {list(before)}, those of the new records {list(after)}: give them in that order"
        )
    trees = [getattr(spec.tree, "kind", "value") for spec in (base, new)]
    return f"each of its records is a {trees[0]}, each new one a {trees[1]}, or nested fields differ this way"


def _describe_fields(spec: Spec) -> str:
    if isinstance(spec.tree, Leaf):
        return "no fields: each is one value"
    is_flat = isinstance(spec.tree, DictNode)
    return f"{'the fields' if is_flat else f'a {spec.tree.kind} of'} {[field.name for field in spec.fields]}"


def _warn_of_varying_shapes(base: Manifest, spec: Spec) -> None:
    """Warn about fields whose batches were arrays and are now lists."""
    for before, now in zip(base.spec.fields, spec.fields, strict=True):
        if before.leaf.is_fixed and not now.leaf.is_fixed:
            name = repr(before.name) if before.name else "the record"
            _log.warning(
                "yogadl: %s: the shape of %s is %s in the base version, and varies in the new one: "
                "its batches are lists",
                base.key, name, before.leaf.shape,
            )  # fmt: skip


def _compacted(
    catalogue: Catalogue, base: DatasetKey, options: BuildTerms, materialize: bool
) -> PlannedBuild:
    published = newest(catalogue, base)
    manifest, rows = published.manifest, None
    if manifest.groups is not None and not materialize:
        if options.codec != SAME and any(codecs_of(options.codec, ["column"])):
            raise ConfigurationError(
                f"{manifest.key}: its rows lie in Parquet files and stay there, so they can't be compressed: "
                "copy them, too (materialize=True, --materialize)"
            )
        published, rows = replace(published, manifest=manifest.stored), manifest.decoded
    manifest = published.manifest
    if manifest.is_adopted and not materialize:
        _refuse_to_compress_foreign(catalogue.root, manifest, options.codec)

    def content(receipts: list[Receipt]) -> Content:
        found = replace(content_of(receipts), earlier=manifest.earlier, metadata=manifest.metadata)
        return replace(found, decoded=rows)

    source = _StoredRecords(catalogue, published, materialize)
    return PlannedBuild(source, content=content, codec=_codec_of(manifest.stored))


def _refuse_to_compress_foreign(root: Root, manifest: Manifest, codec: Codec) -> None:
    """Refuse to compress fields whose values stay in foreign files."""
    fields, names = open_table(root, manifest).fields, [field.name for field in manifest.spec.fields]
    codecs = [None] * len(names) if codec == SAME else codecs_of(codec, names)
    for name, field, one in zip(names, fields, codecs, strict=True):
        if one is not None and field.are_foreign.any():
            raise ConfigurationError(
                f"{manifest.key}: the values of field {name!r} lie in foreign files and stay there, so they "
                "can't be compressed: copy them, too (materialize=True, --materialize), or give codec= for "
                "other fields"
            )


class _StoredRecords(Source):
    """The stored records of a version as a source; pickled values are not unpickled.

    All blocks are compared with their checksums. Picklable: each worker opens the version itself.

    Args:
        catalogue: The catalogue that has the version.
        published: The version.
        materialize: Whether values in foreign files are records' values like others; if not, they stay there.
    """

    can_start_anywhere = True

    def __init__(self, catalogue: Catalogue, published: Published, materialize: bool) -> None:
        self._catalogue = catalogue
        self._published = published
        self._materialize = materialize
        self._keeps_foreign = published.manifest.is_adopted and not materialize
        self._reader: RecordReader | None = None
        self.has_final_spec = not self._keeps_foreign  # else its sizes are not those of the build
        self.spec: Spec = published.manifest.spec
        self.length: int = published.manifest.records
        self.fingerprints = {published.manifest.fingerprint, *published.manifest.aliases}
        is_other = published.manifest.is_weak or (materialize and published.manifest.has_own_texts)
        self.content_fingerprint = None if is_other else published.manifest.fingerprint
        # The compacted cache keeps the provenance of its base.
        of_base = _without_machine(published.manifest.builder)
        self.provenance = {**of_base, "compacts": published.manifest.key.version}
        if not self.length:
            raise UnsupportedDataError(NO_RECORDS)

    def __reduce__(self) -> Any:
        return _StoredRecords, (self._catalogue, self._published, self._materialize)

    def chunks(self, start: int = 0) -> Iterator[Columns]:
        """Yield the records from `start` on."""
        reader = self._open()
        foreign = _ForeignRecords(self._catalogue.root, self._published.manifest, reader.stored)
        count = max(1, CHUNK_BYTES // max(1, reader.record_bytes))
        first_record = reader.parts.table.first_record
        while start < self.length:
            end = min(start + count, self.length)
            if self._keeps_foreign:  # the records of one part
                end = min(end, int(first_record[np.searchsorted(first_record, start, side="right")]))
            indices = np.arange(start, end, dtype=np.int64)
            if self._keeps_foreign:
                yield from (self._as_stored(columns) for columns in foreign.columns(indices))
            else:
                yield self._as_stored(reader.columns(indices))
            start = end

    def _as_stored(self, columns: Columns) -> Columns:
        return [
            stored_column(leaf, column) if field.leaf.dtype == OBJECT else column
            for leaf, field, column in zip(_as_stored(self.spec), self.spec.fields, columns, strict=True)
        ]

    def _open(self) -> RecordReader:
        if self._reader is None:
            manifest = self._published.manifest
            plain = replace(manifest, spec=manifest.spec.with_leaves(_as_stored(self.spec)))
            self._reader = self._catalogue.opener.reader(replace(self._published, manifest=plain), check=True)
        return self._reader


class _ForeignRecords:
    """Says of the records of a version where their values lie in foreign files, in the blocks that it has.

    Each block that has a checksum is read, and compared: its records are hashed again.
    """

    def __init__(self, root: Root, manifest: Manifest, reader: Reader) -> None:
        self._root = root
        self._manifest = manifest
        self._reader = reader
        self._index: tuple[int, PartIndex] | None = None  # the part that was read last
        self._held: dict[tuple[FileId, int, int], NDArray[np.uint8]] = {}  # the blocks of the last records

    def columns(self, indices: Int64s) -> Iterator[Columns]:
        """Yield the columns of records of one part, cut where a field goes on in another block."""
        entries = self._reader.foreign_entries(indices)
        own = [number for number in range(len(self._reader.fields)) if number not in entries]
        columns: dict[int, Any] = dict(zip(own, self._reader.columns(indices, own), strict=True))
        is_cut = np.zeros(len(indices) + 1, bool)
        is_cut[[0, -1]] = True
        for found in entries.values():
            is_cut[1:-1] |= np.diff(found.blocks) != 0
        for begin, end in pairwise(np.flatnonzero(is_cut).tolist()):
            places = {
                number: Entries._make(each[begin:end] for each in entries[number]) for number in entries
            }
            blocks = {
                number: self._block(number, found, indices[begin:end]) for number, found in places.items()
            }
            self._held = {place: data for place, _, data in blocks.values() if data is not None}
            yield [
                self._values(number, places[number], *blocks[number])
                if number in places
                else columns[number][begin:end]
                for number in range(len(self._reader.fields))
            ]

    def _block(
        self, number: int, entries: Entries, indices: Int64s
    ) -> tuple[tuple[FileId, int, int], int, NDArray[np.uint8] | None]:
        """Return the block of these values: file, position and length; its checksum; its bytes, if known."""
        table, field = self._reader.parts.table, self._reader.parts.table.fields[number]
        part, of_part = int(self._reader.parts.locate(indices[:1])[0][0]), int(entries.blocks[0])
        if self._index is None or self._index[0] != part:
            self._index = part, read_index(self._root, self._manifest.key, table, part)
        block = int(field.heap_first_block[part]) + of_part
        file = FileId(int(entries.files[0]))
        place = file, int(field.heap_position[block]), int(field.heap_length[block])
        checksum = int(self._index[1].fields[number].heap.checksum[of_part])
        if checksum == UNREAD:
            return place, checksum, None
        data = self._held.get(place)
        if data is None:
            data = np.frombuffer(self._reader.bytes_of(*place), np.uint8)
            if xxh3_64_intdigest(data.data) != checksum:
                name = self._manifest.spec.fields[number].name
                address = table.files[file].label
                records = range(int(indices[0]), int(indices[-1]) + 1)
                raise damage_error(str(self._manifest.key), name, records, address)
            self._held[place] = data  # other fields may share it
        return place, checksum, data

    def _values(
        self,
        number: int,
        entries: Entries,
        place: tuple[FileId, int, int],
        checksum: int,
        data: NDArray[np.uint8] | None,
    ) -> ForeignValues:
        table, leaf = self._reader.parts.table, self._reader.spec.fields[number].leaf
        file, position, length = place
        shapes = entries.shapes.astype(np.int64)
        if not shapes.shape[1]:
            shapes = np.zeros((len(shapes), 1), np.int64)
        starts = entries.positions - position
        foreign = table.files[file]
        assert isinstance(foreign, ForeignFile)
        where = foreign, position, length, checksum, data
        return ForeignValues(*where, starts, entries.lengths, shapes, not leaf.is_numeric)


def _without_machine(builder: dict[str, Any]) -> dict[str, Any]:
    machine_entries = describe_machine().keys() | {"lease_epoch", CODEC}
    return {name: value for name, value in builder.items() if name not in machine_entries}


def _as_stored(spec: Spec) -> list[Leaf]:
    """Return the leaves of a record in which pickles are bytes."""
    return [Leaf(BYTES) if field.leaf.dtype == OBJECT else field.leaf for field in spec.fields]
