"""Open a published cache and read its records."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

from yogadl._format.arrays import ArrayFile
from yogadl._format.checks import CheckedReader
from yogadl._format.layout import PartIndex, PartTable
from yogadl._format.manifest import NEEDS_PICKLE, Manifest
from yogadl._format.reader import Reader
from yogadl._interfaces import Column, Indices, Memory
from yogadl._key import DatasetKey
from yogadl._lock import ProcessLock
from yogadl._spec import Spec
from yogadl.errors import CacheFormatError, ConfigurationError
from yogadl.storage import _names
from yogadl.storage._build import PartPaths, read_sealed
from yogadl.storage._folder import Folder
from yogadl.storage._mounts import network_file_system
from yogadl.storage._root import Root

# What to do about damage where there is no second copy.
REMEDY: Final = "build the dataset again, or restore the file"


@dataclass(frozen=True)
class Published:
    """A manifest as it was read, the digest of its bytes, and these."""

    manifest: Manifest
    digest: str
    content: bytes = field(repr=False)


class Catalogue(Protocol):
    """Where caches are found and opened: what a reference needs of its storage, picklable."""

    def published(self, key: DatasetKey, digest: str | None = None) -> Published:
        """Return the manifest of a version; with a digest that very one."""

    def reader(self, published: Published, *, check: bool = False) -> Reader | CheckedReader:
        """Return a reader of a cache, one that compares blocks with their checksums if that is wanted."""


class CachedRecords:
    """Records of a cache, opened when first needed.

    Pickles as the storage's location, the key and the digest, so that whoever unpickles it reads the very
    same bytes even if the version has been replaced since. Safe to use from threads and after a fork.

    Args:
        storage: Where the cache lies.
        key: Which it is.
        digest: The digest that its manifest must have.
        allow_pickle: Whether pickled fields may be read.
        check: Whether each block is compared with its checksum before it is first read from.
        published: The manifest of that digest, if it was read just now.
    """

    def __init__(
        self,
        storage: Catalogue,
        key: DatasetKey,
        digest: str,
        allow_pickle: bool,
        check: bool = False,
        published: Published | None = None,
    ) -> None:
        self._storage = storage
        self._key = key
        self._digest = digest
        self._allow_pickle = allow_pickle
        self._is_checked = check
        self._published = published
        self._lock = ProcessLock()
        self._opened: tuple[Manifest, Reader | CheckedReader] | None = None

    def __reduce__(self) -> Any:
        arguments = self._storage, self._key, self._digest, self._allow_pickle, self._is_checked
        return CachedRecords, arguments

    def open(self) -> tuple[Manifest, Reader | CheckedReader]:
        """Return manifest and reader, reading the part table the first time.

        Raises:
            CacheFormatError: if the cache is damaged.
            DatasetNotFoundError: if it is gone.
        """
        opened = self._opened
        if opened is None:
            with self._lock:
                opened = self._opened = self._opened or self._open()
        return opened

    def _open(self) -> tuple[Manifest, Reader | CheckedReader]:
        published = self._published or self._storage.published(self._key, self._digest)
        manifest = published.manifest
        if NEEDS_PICKLE in manifest.needs and not self._allow_pickle:
            raise ConfigurationError(
                f"{self._key} has pickled fields, and unpickling runs code: "
                "if you trust who built it, fetch it with allow_pickle=True"
            )
        try:
            return manifest, self._storage.reader(published, check=self._is_checked)
        except CacheFormatError:
            self._storage.published(self._key, self._digest)  # which says so if it was pruned meanwhile
            raise

    @property
    def spec(self) -> Spec:
        """The structure of a record."""
        return self.open()[0].spec

    @property
    def fingerprint(self) -> str:
        """The content's hash, the same on every machine."""
        return self.open()[0].fingerprint

    @property
    def record_bytes(self) -> int:
        """About how large a record is."""
        return max(1, self.open()[1].record_bytes)

    def __len__(self) -> int:
        return self.open()[0].records

    def columns(
        self, indices: Indices, fields: Sequence[int] | None = None, memory: Memory | None = None
    ) -> Sequence[Column]:
        """Read records, in the order asked for."""
        opened = self._opened or self.open()
        return opened[1].columns(indices, fields, memory)

    def will_need(self, indices: Indices) -> None:
        """Say that these records will be read soon."""
        self.open()[1].will_need(indices)


def open_table(root: Root, manifest: Manifest) -> PartTable:
    """Return the part table of a manifest.

    It is read, not mapped, though all processes could share a mapping: what was checked when it was opened
    must stay as it was, and a file that is cut short while it is mapped kills the process.

    Args:
        root: The storage's root.
        manifest: Whose table it is.

    Raises:
        CacheFormatError: if it is missing or not what the manifest names.
    """
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
    for noun, found, said in (
        ("records", table.records, manifest.records),
        ("parts", len(table), manifest.parts),
        ("bytes in its parts", table.total_bytes, manifest.size_bytes),
        ("fields", len(table.fields), len(manifest.spec.fields) if len(table) else 0),
    ):
        if found != said:
            raise CacheFormatError(
                f"{what} has {found} {noun}, but the manifest says {said}: one of them was changed; "
                "build the dataset again, or restore the files"
            )
    return table


def open_reader(folder: Folder, manifest: Manifest, *, check: bool, mapped: bool) -> Reader | CheckedReader:
    """Return a reader of a cache, whose parts are all there and of their size.

    Args:
        folder: Where it lies.
        manifest: The cache.
        check: Whether each block is compared with its checksum before it is first read from.
        mapped: Whether files may be mapped.

    Raises:
        CacheFormatError: if a file is missing or truncated.
    """
    table = open_table(folder, manifest)
    for sha256, size_bytes in zip(table.sha256, table.size_bytes.tolist(), strict=True):
        found = folder.size(_names.part(manifest.key.id, sha256))
        if found != size_bytes:
            problem = (
                "is missing" if found is None else f"has {found} bytes, not {size_bytes}: it was truncated"
            )
            raise CacheFormatError(
                f"{manifest.key}: part {sha256}.mdb {problem}; build the dataset again, or restore the file"
            )
    maps = mapped and can_map(folder)
    reader = Reader(manifest.spec, table, PartPaths(folder, manifest.key.id), maps=maps)
    if not check:
        return reader
    index_of = partial(read_index, folder, manifest.key, table)
    return CheckedReader(reader, index_of, str(manifest.key), REMEDY)


def can_map(folder: Folder) -> bool:
    """Return whether files of a folder can be mapped: not on a network file system.

    There a file that another machine truncates, or a server that goes away, would kill the process instead of
    being an error.
    """
    return network_file_system(folder.root) is None


def read_index(root: Root, key: DatasetKey, table: PartTable, part: int) -> PartIndex:
    """Return the index of a part.

    Raises:
        CacheFormatError: if it is missing or was changed.
    """
    try:
        return read_sealed(root, key.id, table.sha256[part], table.index_sha256[part]).index
    except CacheFormatError as error:
        first, end = table.first_record[part : part + 2].tolist()
        raise CacheFormatError(f"{key}: records {first} to {end - 1}: {error}") from error
