"""Keep manifests beside what a mirror has brought, so that a version that is here whole needs no bucket.

A manifest is kept under its digest, and goes with its part table. Which one a version had when its store was
last asked is kept for each store apart: buckets of one name may lie in several.
"""

import contextlib
import hashlib
from typing import Final

from yogadl._format.manifest import Manifest, digest_of, read_manifest
from yogadl._key import DatasetKey
from yogadl.errors import CacheFormatError
from yogadl.storage import _names
from yogadl.storage._cached import Published
from yogadl.storage._folder import Folder
from yogadl.storage._parts import open_table

_SUFFIX: Final = ".json"


def save(folder: Folder, published: Published) -> None:
    """Keep a manifest whose part table is here.

    Raises:
        StorageError: if the disk fails, or is full.
    """
    name = _name(published.manifest.key, published.manifest.table_sha256, published.digest)
    if folder.size(name) is None:
        folder.write(name, published.content)


def note_newest(folder: Folder, origin: str, key: DatasetKey, digest: str | None) -> None:
    """Note which manifest a version has, as its store says; ``None`` to note nothing.

    Raises:
        StorageError: if the disk fails, or is full.
    """
    name = _newest_name(origin, key)
    if digest is None:
        folder.remove(name)
    else:
        folder.write(name, digest.encode())


def newest(folder: Folder, origin: str, key: DatasetKey) -> str | None:
    """Return the digest of the manifest that a version had when its store was last asked."""
    content = folder.read(_newest_name(origin, key))
    return None if content is None else content.decode(errors="replace")


def load(folder: Folder, key: DatasetKey, digest: str) -> Published | None:
    """Return a manifest if the mirror has it, and all parts that it names."""
    for name in folder.names(f"{key.id}/tables", f".{digest}{_SUFFIX}"):
        content = folder.read(name)
        if content is not None and digest_of(content) == digest:
            with contextlib.suppress(CacheFormatError):  # another library's, or another version's
                manifest = read_manifest(content, key, folder.where(name))
                return Published(manifest, digest, content) if _is_whole(folder, manifest) else None
    return None


def remove_with(folder: Folder, table_name: str) -> None:
    """Remove the manifests of a part table that is removed."""
    stem = table_name.removesuffix(_names.TABLE_SUFFIX)
    for name in folder.names(table_name.rpartition("/")[0], _SUFFIX):
        if name.startswith(f"{stem}."):
            folder.remove(name)


def _is_whole(folder: Folder, manifest: Manifest) -> bool:
    try:
        table = open_table(folder, manifest)
    except CacheFormatError:
        return False
    sizes = zip(table.sha256, table.size_bytes.tolist(), strict=True)
    return all(folder.size(_names.part(manifest.key.id, sha256)) == size for sha256, size in sizes)


def _name(key: DatasetKey, table_sha256: str, digest: str) -> str:
    table = _names.table(key.id, table_sha256)
    return f"{table.removesuffix(_names.TABLE_SUFFIX)}.{digest}{_SUFFIX}"


def _newest_name(origin: str, key: DatasetKey) -> str:
    return f"{key.id}/newest/{hashlib.sha256(f'{key.version} {origin}'.encode()).hexdigest()[:32]}"
