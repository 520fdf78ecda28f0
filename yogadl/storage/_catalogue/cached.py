"""Open a cache: find the files that its manifest names, check them against it, and read its records."""

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import field
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from yogadl._core.frozen import frozen
from yogadl._core.key import DatasetKey
from yogadl._core.memory import trim_allocator
from yogadl._core.process import ProcessLock
from yogadl._core.protocols import (
    Announced,
    Column,
    Indices,
    Lineage,
    Locality,
    Memory,
    OnPlanned,
    Stored,
    Stretches,
)
from yogadl._core.spec import Spec
from yogadl._format.codec import MAX_DICTIONARY_BYTES
from yogadl._format.files import File, FileId, Files
from yogadl._format.manifest import NEEDS_PICKLE, Manifest
from yogadl._format.reader import Reader
from yogadl._format.table import ArrayFile, LateSha256Names, PartTable
from yogadl.errors import CacheFormatError, ConfigurationError
from yogadl.storage import _names
from yogadl.storage._files.folder import Folder, network_file_system
from yogadl.storage._files.root import MAX_READ_BYTES, Root

if TYPE_CHECKING:
    from yogadl._foreign.groups import GroupReader
    from yogadl._format.checks import Checksums
    from yogadl._format.fields import BlockPositions
    from yogadl._format.files import HeldRows, PartFiles
    from yogadl._format.joined import Selection
    from yogadl._format.layout import PartIndex, SealedPart
    from yogadl._format.rows import AddressRange, Parts
    from yogadl._format.table import PartTable
    from yogadl.storage._files.bucket_root import BucketRoot
    from yogadl.storage._files.permitted import Permitted


# Any reader of a cache.
RecordReader: TypeAlias = "Reader | GroupReader"
# The size from which a part table is compacted in memory; a smaller one would save too little for the time.
LARGE_TABLE_BYTES: Final = 2**20


class PartPaths:
    """The paths of a cache's files: of its parts in a local folder, of others their address. Picklable."""

    away = None  # all are on this machine

    def __init__(self, folder: Folder, dataset_id: str, table: PartTable) -> None:
        self._folder = folder
        self._id = dataset_id
        self._table = table

    def path(self, file: FileId) -> str:
        """Return the path of the file of that number."""
        found = self._table.files[file]
        return found.address or str(self._folder.path(_names.file_of(self._id, found)))

    def dictionary(self, sha256: str) -> bytes:
        """Return a dictionary of the parts."""
        return read_dictionary(self._folder, self._id, sha256)


def open_table(root: Root, manifest: Manifest) -> PartTable:
    """Return the part table of a manifest.

    The table is read, not mapped, though processes could share a mapping: its checked content must stay as it
    was, and a file that is truncated while it is mapped kills the process.

    Raises:
        CacheFormatError: if the table is missing, or not the one that the manifest names.
    """
    manifest = manifest.stored
    name = _names.table(manifest.key.id, manifest.table_sha256)
    what = f"the part table of {manifest.key} ({root.where(name)})"
    content = root.view(name, manifest.table_bytes + 1)
    if content is None:
        raise CacheFormatError(f"{what} is missing; build the dataset again, or restore the file")
    if len(content) != manifest.table_bytes or hashlib.sha256(content).hexdigest() != manifest.table_sha256:
        raise CacheFormatError(
            f"{what} was truncated or changed; build the dataset again, or restore the file"
        )
    table = PartTable.from_file(ArrayFile.from_buffer(content, what), what)
    for noun, counted, stated in (
        ("records", table.records, manifest.records),
        ("parts", len(table), manifest.parts),
        ("bytes in its parts", table.total_bytes, manifest.size_bytes),
        ("fields", len(table.fields), len(manifest.spec.fields) if len(table) else 0),
    ):
        if counted != stated:
            raise CacheFormatError(
                f"{what} has {counted} {noun}, but the manifest says {stated}: one of them was changed; "
                "build the dataset again, or restore the files"
            )
    if table.container != manifest.container:
        raise CacheFormatError(
            f"{what} has the container {table.container}, but the manifest says {manifest.container}: one of "
            "them was changed; build the dataset again, or restore the files"
        )
    if len(table) and tuple(table.codecs) != manifest.codecs:
        raise CacheFormatError(
            f"{what} has fields of the codecs {table.codecs}, but the manifest says {list(manifest.codecs)}: "
            "one of them was changed; build the dataset again, or restore the files"
        )
    return table


def require_named(key: DatasetKey, files: Collection[File], indexes: "Iterable[PartIndex]") -> None:
    """Refuse indexes of parts that name other files with an address than `files`, those of the part table.

    Where a storage may read is decided by the table.

    Raises:
        CacheFormatError: if one does.
    """
    if not all(file in files for index in indexes for file in index.files):
        raise CacheFormatError(
            f"{key}: the indexes of its parts name foreign files that its part table lacks: they were "
            "changed since they were written; adopt the files again"
        )


def table_to_read(root: Root, manifest: Manifest) -> PartTable:
    """Return the part table of a manifest as `open_table` does, for a reader that holds it in memory.

    Of a large table, the names of the parts' index files (a third of its size) are not kept in memory: they
    are read from the file again when a block is to be compared with its checksum.

    Raises:
        CacheFormatError: if the table is missing, or not the one that the manifest names.
    """
    table = open_table(root, manifest)
    if manifest.table_bytes < LARGE_TABLE_BYTES:
        return table
    return table.compacted(LateSha256Names(len(table), partial(_index_names, root, manifest)))


def _index_names(root: Root, manifest: Manifest) -> Sequence[str]:
    return open_table(root, manifest).index_names()


def file_sizes(dataset_id: str, files: Files) -> Iterator[tuple[str, int]]:
    """Yield name and size of each file, of one with an address those of a mirror's copy, in their order."""
    below = _names.parts(dataset_id)
    for name, size_bytes in zip(files.names, files.sizes.tolist(), strict=True):
        yield f"{below}/{name}", size_bytes


def are_whole(folder: Folder, dataset_id: str, files: Files) -> NDArray[np.bool_]:
    """Return for each of these files whether a folder has it with its full size."""
    found = np.fromiter(folder.sizes(_names.parts(dataset_id), files.names), np.int64, len(files))
    whole: NDArray[np.bool_] = found == files.sizes
    return whole


def part_files(dataset_id: str, table: PartTable, files: Files) -> Iterator[str]:
    """Yield the names of these files of a table, of its dictionaries, and of its parts' indexes.

    If a part occurs twice, its files do, too.
    """
    for sha256 in table.dictionaries:
        yield _names.dictionary(dataset_id, sha256)
    for sha256, index_sha256 in zip(table.sha256, table.index_sha256, strict=True):
        yield from _names.indexes(dataset_id, sha256, index_sha256)
    yield from (name for name, _ in file_sizes(dataset_id, files))


def read_sealed(root: "Root | BucketRoot", dataset_id: str, sha256: str, index_sha256: str) -> "SealedPart":
    """Return a part of the storage with its index, the file that describes its layout.

    Raises:
        CacheFormatError: if its files are missing or changed.
    """
    from yogadl._format.layout import PartIndex, SealedPart  # reading without `check` does not need them

    name, old_name = _names.indexes(dataset_id, sha256, index_sha256)
    content = root.read(name, MAX_READ_BYTES)
    if content is None:
        content = root.read(old_name, MAX_READ_BYTES)
    if content is None or hashlib.sha256(content).hexdigest() != index_sha256:
        raise CacheFormatError(
            f"the index {name} is missing or was changed; build the dataset again, or restore the file"
        )
    index = PartIndex.from_file(ArrayFile.from_buffer(content, name), name)
    if root.size(_names.part(dataset_id, sha256)) != index.size_bytes:
        raise CacheFormatError(
            f"part {sha256} is missing or was truncated or overwritten; build the dataset again, or restore "
            "the file"
        )
    return SealedPart(sha256, index_sha256, index)


def read_dictionary(root: "Root | BucketRoot", dataset_id: str, sha256: str) -> bytes:
    """Return the dictionary of that name.

    Raises:
        CacheFormatError: if it is missing or was changed.
    """
    name = _names.dictionary(dataset_id, sha256)
    content = root.read(name, MAX_DICTIONARY_BYTES)
    if content is None or hashlib.sha256(content).hexdigest() != sha256:
        raise CacheFormatError(
            f"{root.where(name)} is missing or was changed; build the dataset again, or restore the file"
        )
    return content


def read_index(root: "Root | BucketRoot", key: DatasetKey, table: PartTable, part: int) -> "PartIndex":
    """Return the index of a part.

    Raises:
        CacheFormatError: if the index is missing or was changed.
    """
    try:
        return read_sealed(root, key.id, table.sha256[part], table.index_sha256[part]).index
    except CacheFormatError as error:
        first, end = table.first_record[part : part + 2].tolist()
        raise CacheFormatError(f"{key}: records {first} to {end - 1}: {error}") from error


# The advice about damage if there is no second copy.
REMEDY: Final = "build the dataset again, or restore the file"


@frozen
class Published:
    """A manifest, the digest of its bytes, and the bytes."""

    manifest: Manifest
    digest: str
    content: bytes = field(repr=False)


class Opener(Protocol):
    """Open caches: in place, or after a download. Picklable."""

    @property
    def permitted(self) -> "Permitted":
        """The places that the storage may read besides its own."""

    def to_plan(self) -> "Opener":
        """Return an opener for plans: of a cache that is not here, it reads manifest and table alone."""
        return self

    def manifest(self, key: DatasetKey, digest: str | None = None) -> bytes | None:
        """Return the manifest of a version as it is now, or ``None`` if there is none.

        Args:
            key: The version.
            digest: The digest of the manifest that the caller wants, if any; the result may have another.
        """

    def mirrored(self, key: DatasetKey, digest: str) -> Published | None:
        """Return the manifest with this digest if all its files are on this machine, else ``None``."""
        return None

    def reader(self, published: Published, *, check: bool = False) -> RecordReader:
        """Return a reader of a cache.

        Args:
            published: The cache.
            check: Whether each block is compared with its checksum before the first read from it.

        Raises:
            CacheFormatError: if a file is missing or truncated.
        """

    def read(self, name: str, most_bytes: int) -> bytes | None:
        """Return the content of a file that is the same in every copy, or ``None`` if there is none.

        Raises:
            CacheFormatError: if it is larger than `most_bytes`, or not a file.
        """

    def write(self, name: str, content: bytes) -> None:
        """Write a file that is the same in every copy; a file of that name is replaced."""

    def map(self, name: str) -> Any:
        """Return the content of such a file that may be large, mapped if possible, or ``None``."""

    def tagged_version(self, key: DatasetKey, *, is_away: bool = False) -> str | None:
        """Return the version that a tag names, ``None`` if there is no such tag.

        Args:
            key: The tag, in place of a version.
            is_away: Whether the storage can't be reached; then the tags that this machine has recorded are
                used.
        """

    def note_opened(self, published: Published) -> None:
        """Record that this manifest was returned as the newest of its version."""

    def planner(self, parts: "Parts") -> Any:
        """Return an object that counts the requests for reading a cache by range, from its parts alone."""

    def mend(self, published: Published) -> tuple[int, list[str]]:
        """Compare this machine's copies of a cache's files with their checksums; download damaged ones again.

        Returns:
            The number of copies, and the names of the damaged ones.
        """
        return 0, []


class Versions(Protocol):
    """Find manifests, and open the caches that they describe. Picklable."""

    @property
    def opener(self) -> Opener:
        """The object that opens caches."""

    def versions(self, dataset_id: str) -> list[str]:
        """Return the versions of a dataset, in order of their names."""

    def find(self, key: DatasetKey) -> Published | None:
        """Return the manifest of a version, if there is one."""

    def published(self, key: DatasetKey, digest: str | None = None) -> Published:
        """Return the manifest with a digest, even from the trash.

        Raises:
            DatasetNotFoundError: if there is no such manifest.
        """


P = ParamSpec("P")
Found = TypeVar("Found")


def _naming_version(
    read: "Callable[Concatenate[CachedRecords, P], Found]",
) -> "Callable[Concatenate[CachedRecords, P], Found]":
    """Decorate a method that reads, so that an error about damage names the version."""

    @wraps(read)
    def named(records: "CachedRecords", /, *args: P.args, **options: P.kwargs) -> Found:
        try:
            return read(records, *args, **options)
        except CacheFormatError as error:
            _name_in(error, records._key)
            raise

    return named


def _name_in(error: CacheFormatError, key: DatasetKey) -> None:
    if str(key) not in str(error):
        error.args = (f"{key}: {error}",)


class CachedRecords(Stored):
    """The records of a cache, which is opened at the first use that its manifest can't answer.

    Pickles as the storage's location, the key and the digest, so the unpickled object reads the same bytes
    even if the version has been replaced since. Safe to use from threads and after a fork.

    Args:
        storage: The catalogue that has the cache.
        key: The version.
        digest: The digest that its manifest must have.
        allow_pickle: Whether pickled fields may be read.
        check: Whether each block is compared with its checksum before the first read from it.
        tag: The tag that the cache was fetched by, if any.
        published: The manifest of that digest, if it was read just now.
    """

    def __init__(
        self,
        storage: Versions,
        key: DatasetKey,
        digest: str,
        allow_pickle: bool,
        *,
        check: bool = False,
        tag: str | None = None,
        published: Published | None = None,
    ) -> None:
        self._storage = storage
        self._key = key
        self._digest = digest
        self._allow_pickle = allow_pickle
        self._is_checked = check
        self._tag = tag
        self._published = published
        self._lock = ProcessLock()
        self._selections: dict[str, Selection] = {}  # selections that can't be written to the storage
        self._opened: tuple[Manifest, RecordReader] | None = None

    def __reduce__(self) -> Any:
        made = partial(CachedRecords, check=self._is_checked, tag=self._tag)
        return made, (self._storage, self._key, self._digest, self._allow_pickle)

    def open(self) -> tuple[Manifest, RecordReader]:
        """Return manifest and reader; the first call reads the part table.

        Raises:
            CacheFormatError: if the cache is damaged.
            DatasetNotFoundError: if the cache does not exist any more.
        """
        opened = self._opened
        if opened is None:
            with self._lock:
                opened = self._opened = self._opened or self._open()
        return opened

    def _open(self) -> tuple[Manifest, RecordReader]:
        published = self._published or self._storage.published(self._key, self._digest)
        manifest = published.manifest
        if NEEDS_PICKLE in manifest.needs and not self._allow_pickle:
            raise ConfigurationError(
                f"{self._key} has pickled fields, and unpickling runs code: "
                "if you trust who built it, fetch it with allow_pickle=True"
            )
        if manifest.is_weak and self._is_checked:
            raise ConfigurationError(
                f"{self._key} was adopted without reading its files, so there are no checksums to compare: "
                "leave out check, or adopt the files with FileOptions(read=True)"
            )
        try:
            reader = self._storage.opener.reader(published, check=self._is_checked)
        except CacheFormatError:
            self._storage.published(self._key, self._digest)  # raises if the version was pruned meanwhile
            raise
        if manifest.table_bytes >= LARGE_TABLE_BYTES:
            trim_allocator()
        return manifest, reader

    @property
    def _manifest(self) -> Manifest:
        return self.open()[0] if self._published is None else self._published.manifest

    @property
    def spec(self) -> Spec:
        """The structure of a record."""
        return self._manifest.spec

    @property
    def fingerprint(self) -> str:
        """The hash of the records, the same on every machine."""
        return self._manifest.fingerprint

    @property
    def content_fingerprint(self) -> str | None:
        """The fingerprint that a copy of the records has, or None if it may be another one."""
        manifest = self._manifest
        is_other = manifest.is_weak or manifest.has_own_texts or NEEDS_PICKLE in manifest.needs
        return None if is_other else manifest.fingerprint

    @property
    def aliases(self) -> tuple[str, ...]:
        """Other fingerprints of the same records."""
        return self._manifest.aliases

    @property
    def lineage(self) -> Lineage:
        """The name of the version, and the versions that it begins with."""
        return Lineage(self._key.id, self._key.version, self._tag, self._manifest.earlier)

    @property
    def metadata(self) -> dict[str, Any]:
        """What the user keeps with the version."""
        return self._manifest.metadata

    def version_with(self, fingerprint: str) -> str | None:
        """Return which of the last twenty versions of this dataset, by name, has a fingerprint, if any."""
        for version in reversed(self._storage.versions(self._key.id)[-20:]):
            published = self._storage.find(DatasetKey(self._key.id, version))
            if published is not None and published.manifest.fingerprint == fingerprint:
                return version
        return None

    @property
    def group_ends(self) -> Indices | None:
        """The record after the last one of each group of rows, if the records are decoded from such."""
        reader = self.open()[1] if self._manifest.groups is not None else None
        return None if reader is None else reader.group_ends

    @property
    def record_bytes(self) -> int:
        """The approximate size of a record."""
        return max(1, self.open()[1].record_bytes)

    def __len__(self) -> int:
        return self._manifest.records

    def columns(
        self, indices: Indices, fields: Sequence[int] | None = None, memory: Memory | None = None
    ) -> Sequence[Column]:
        """Read records, in the order of the indices."""
        opened = self._opened or self.open()
        try:
            return opened[1].columns(indices, fields, memory)
        except CacheFormatError as error:
            _name_in(error, self._key)
            raise

    @_naming_version
    def lengths(self, indices: Indices, number: int) -> Indices:
        """Return the lengths of values along their first axis, which alone varies; reads no values."""
        return self.open()[1].lengths(indices, number)

    @_naming_version
    def stretches(self, indices: Indices, number: int, starts: Indices, stops: Indices) -> NDArray[Any]:
        """Return the elements `starts` to `stops` of the first axis of values, back to back."""
        return self.open()[1].stretches(indices, number, starts, stops)

    def mapped(self, records: int) -> "AddressRange | None":
        """Return the memory that the parts are mapped to, to read this many records, or None."""
        return self.open()[1].mapped(records)

    def blocks(self, number: int) -> "BlockPositions | None":
        """Return where the blocks of a field lie in that memory, or None if its rows differ in size."""
        return self.open()[1].blocks(number)

    @_naming_version
    def will_need(
        self, indices: Indices, fields: Sequence[int] | None = None, on_planned: OnPlanned | None = None
    ) -> Announced:
        """Announce that these records will be read soon."""
        if on_planned is not None:
            return on_planned(self, indices, fields, None)
        return self.open()[1].will_need(indices, fields)

    @_naming_version
    def item_bytes(self, number: int) -> int:
        """Return the bytes of an element of a field's values, of which only the first axis varies."""
        return self.open()[1].item_bytes(number)

    @_naming_version
    def will_need_stretches(
        self, indices: Indices, number: int, starts: Indices, stops: Indices
    ) -> Announced | None:
        """Announce that these stretches will be read soon; return None if all are on this machine."""
        reader = self.open()[1]
        return reader.will_need_stretches(indices, number, starts, stops)

    def will_read(self, records: int, *, held_bytes: int | None, is_scattered: bool) -> None:
        """Announce that a stream of this process will read this many records an epoch; see `AwayParts`."""
        away = self.open()[1].parts.away
        if away is not None:
            away.will_read(records, held_bytes=held_bytes, is_scattered=is_scattered)

    def block_store(self, key: str, records: int, room: tuple[int, int], *, is_shared: bool) -> Any:
        """Return a store for the blocks of a stream that reads this many records an epoch.

        ``None`` if all parts are on this machine. `room` is the bytes that two windows of this cache need,
        and those that the stream needs for all its caches.
        """
        away = self.open()[1].parts.away
        if away is None:
            return None
        return away.block_store(key, records / max(1, len(self)), room, is_shared=is_shared)

    @_naming_version
    def hold(
        self,
        indices: Indices,
        fields: Sequence[int] | None,
        stretches: Stretches | None,
        held: "HeldRows",
        *,
        entries: bool,
    ) -> None:
        """Begin to read the records that are not on this machine, and let `held` keep them.

        The first call reads the entries of values (`entries`); the second reads the values and waits for the
        entries. With `stretches`, only these bytes of the one field's values are read.
        """
        self.open()[1].hold(indices, fields, stretches, held, entries=entries)

    @property
    def received(self) -> tuple[int, int]:
        """The number of requests that this process made for ranges, and the number of bytes received."""
        away = None if self._opened is None else self._opened[1].parts.away
        return (0, 0) if away is None else away.received

    @property
    def table(self) -> "PartTable":
        """The part table."""
        return self.open()[1].parts.table

    @property
    def locality(self) -> Locality:
        """The numbers of parts and bytes in all and on this machine."""
        parts = self.open()[1].parts
        sizes = parts.sizes
        here = sizes if parts.away is None else sizes[parts.away.are_here]
        return Locality(len(sizes), len(here), int(sizes.sum()), int(here.sum()), *self.received)

    def planner(self) -> Any:
        """Return a planner that counts the requests for reading this cache by range."""
        reader = self.open()[1]
        return reader.planner(self._storage.opener.planner(reader.parts))

    def selection(self, name: str, records: int) -> Indices | None:
        """Return the selection kept under this name, of a view of this many records, or None."""
        from yogadl.storage._catalogue.selections import find_selection  # most readers do not need it

        found = self._selections.get(name)
        if found is None:
            found = find_selection(self._storage.opener, self.open()[0], name, records)
        return None if found is None else found.indices

    def keep_selection(self, name: str, records: int, indices: Indices) -> None:
        """Keep a selection, in the storage or, if it can't be written there, in this object.

        Args:
            name: A hash of the filter and of the records it was applied to, 64 digits.
            records: The number of records that were selected from: of the cache, or of a view of it.
            indices: The indices of the selected records.
        """
        from yogadl._format.joined import Selection
        from yogadl.storage._catalogue.selections import write_selection

        selection = Selection(name, records, indices)
        if not write_selection(self._storage.opener, self.open()[0], selection):
            self._selections[name] = selection

    def plan(self, name: str) -> memoryview | None:
        """Return the plan of packs or batches that is kept under this name, or None."""
        from yogadl.storage._catalogue.selections import find_plan  # most readers do not need it

        return find_plan(self._storage.opener, self.open()[0], name)

    def keep_plan(self, name: str, content: bytes) -> bool:
        """Keep a plan in the storage; return whether that succeeded."""
        from yogadl.storage._catalogue.selections import write_plan

        return write_plan(self._storage.opener, self.open()[0], name, content)


def table_of_whole(folder: Folder, manifest: Manifest) -> "PartTable":
    """Return the part table of a cache in a folder, after a check that it has all parts and dictionaries.

    Raises:
        CacheFormatError: if a file is missing or truncated.
    """
    table = table_to_read(folder, manifest)
    for part in np.flatnonzero(~are_whole(folder, manifest.key.id, table.files.own)).tolist():
        name, size_bytes = _names.part(manifest.key.id, table.sha256[part]), int(table.size_bytes[part])
        found = folder.size(name)
        if found != size_bytes:
            problem = "is missing"
            if found is not None:
                problem = f"has {found} bytes, not {size_bytes}: it was truncated or overwritten"
            raise CacheFormatError(
                f"{manifest.key}: part {name.rpartition('/')[2]} {problem}; build the dataset again, or "
                "restore the file"
            )
    for sha256 in table.dictionaries:
        name = _names.dictionary(manifest.key.id, sha256)
        if folder.size(name) is None:
            raise CacheFormatError(
                f"{manifest.key}: {folder.where(name)} is missing; build the dataset again, or restore the "
                "file"
            )
    return table


def checksums(
    manifest: Manifest, table: "PartTable", index_of: "Callable[[int], PartIndex]", remedy: str
) -> "Checksums":
    """Return the checksums of a cache's blocks; `remedy` is the advice if a block differs."""
    from yogadl._format.checks import Checksums  # only checked reading needs it

    names = [field.name for field in manifest.stored.spec.fields]
    return Checksums(table, names, index_of, str(manifest.key), remedy)


def new_reader(
    manifest: Manifest, table: "PartTable", files: "PartFiles", sums: "Checksums | None", *, maps: bool
) -> RecordReader:
    """Return a reader of a cache's files, which compares blocks with their checksums if these are given."""
    spec = manifest.stored.spec
    if sums is None:
        reader = Reader(spec, table, files, maps=maps)
    else:
        from yogadl._format.checks import CheckedReader

        reader = CheckedReader(sums, spec, files, maps=maps)
    if manifest.decoded is None:
        return reader
    from yogadl._foreign.groups import GroupReader  # only rows of Parquet files need it

    return GroupReader(reader, manifest.decoded)


def can_map(folder: Folder) -> bool:
    """Return whether files of a folder can be mapped: not on a network file system.

    If another machine truncates a mapped file there, or the server stops, the process is killed instead of
    getting an error.
    """
    return network_file_system(folder.root) is None
