"""Find the files that a manifest names, and check them against it."""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from yogadl._core.key import DatasetKey
from yogadl._format.codec import MAX_DICTIONARY_BYTES
from yogadl._format.files import File, FileId, Files
from yogadl._format.manifest import Manifest
from yogadl._format.table import ArrayFile, LateSha256Names, PartTable
from yogadl.errors import CacheFormatError
from yogadl.storage import _names
from yogadl.storage._files.folder import Folder
from yogadl.storage._files.root import MAX_READ_BYTES, Root

if TYPE_CHECKING:
    from yogadl._format.layout import PartIndex, SealedPart
    from yogadl.storage._files.bucket_root import BucketRoot

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
