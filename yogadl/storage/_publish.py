"""Make a cache of sealed parts: the part table, then the manifest, which then is the cache."""

import errno
import hashlib
import secrets
import time
from dataclasses import dataclass
from typing import Any

from yogadl._format.fingerprint import RunHash, fingerprint_of
from yogadl._format.manifest import Manifest, fitting
from yogadl._format.table import PartTable
from yogadl._interfaces import Earlier
from yogadl._key import DatasetKey
from yogadl._spec import Spec
from yogadl.errors import ConfigurationError, StorageError
from yogadl.storage import _names
from yogadl.storage._exclusion import BuildExclusion
from yogadl.storage._root import Root
from yogadl.storage._trash import new_trashed_name


@dataclass(frozen=True)
class Content:
    """What a manifest will say of the data itself.

    Args:
        spec: The structure of a record.
        table: How every part lies.
        run: The hash of all records.
        earlier: The versions that it begins with, the oldest first.
    """

    spec: Spec
    table: PartTable
    run: RunHash
    earlier: tuple[Earlier, ...] = ()


def publish(
    root: Root,
    key: DatasetKey,
    content: Content,
    builder: dict[str, Any],
    *,
    exclusion: BuildExclusion,
    replaces: bool,
) -> bool:
    """Write part table and manifest, which then is the cache.

    Args:
        root: Where to.
        key: What is published.
        content: What it holds.
        builder: Where it came from.
        exclusion: Held by the caller.
        replaces: Whether it takes the place of an existing version, which goes to the trash. If not, and
            there is one, that one stays.

    Returns:
        Whether this is what is published now.

    Raises:
        LeaseLostError: if another builder has taken over.
        StorageError: if a part is gone.
    """
    if content.run.records != content.table.records:
        raise ConfigurationError("the parts and their hashes disagree; this is a bug, please report it")
    table = content.table.to_file().to_bytes()
    table_sha256 = hashlib.sha256(table).hexdigest()
    root.write(_names.table(key.id, table_sha256), table)
    check_parts(root, key, content.table)
    made = Manifest(
        key=key,
        spec=content.spec,
        records=content.run.records,
        fingerprint=fingerprint_of(content.spec, content.run),
        table_sha256=table_sha256,
        table_bytes=len(table),
        size_bytes=int(content.table.size_bytes.sum()),
        parts=len(content.table),
        created=time.time(),
        builder=builder if exclusion.term is None else builder | {"lease_epoch": exclusion.term},
        token=secrets.token_hex(8),
        earlier=content.earlier,
    )
    manifest = fitting(made)
    if replaces:
        replace(root, key, manifest.to_bytes(), exclusion)
        return True
    exclusion.check()
    return root.write_if_absent(_names.manifest(key), manifest.to_bytes())


def replace(root: Root, key: DatasetKey, content: bytes, exclusion: BuildExclusion) -> None:
    """Put a manifest in place of that of this version; if there is one, it goes to the trash.

    At no moment is there none.

    Raises:
        LeaseLostError: if another builder has taken over.
    """
    name = _names.manifest(key)
    exclusion.check()
    old = root.read(name)
    if old is not None:
        root.write(new_trashed_name(root, key), old)
        exclusion.check()
    root.write(name, content)


def check_parts(root: Root, key: DatasetKey, table: PartTable) -> None:
    """Make sure that every part is where it should be, right before a manifest says so."""
    sizes = {entry.name: entry.size_bytes for entry in root.entries(f"{key.id}/parts")}
    each = zip(table.sha256, table.index_sha256, table.size_bytes.tolist(), strict=True)
    for sha256, index_sha256, size_bytes in each:
        name = _names.part(key.id, sha256)
        has_index = not sizes.keys().isdisjoint(_names.indexes(key.id, sha256, index_sha256))
        if sizes.get(name) != size_bytes or not has_index:
            raise StorageError(
                errno.ENOENT,
                f"{root.where(name)} or its index has vanished since it was written; was there a prune with "
                "a short grace, or does the bucket delete by age? Build again",
            )


def put_aside(root: Root, where: str, aside: str, depth: int = 0) -> None:
    """Move the notes of an attempt to where they say what is to be removed, and nobody goes on with them.

    Args:
        root: Where.
        where: The attempt's folder.
        aside: The folder of one that nobody can go on with.
        depth: Only those that lie in folders so deep in it.
    """
    for name in root.names(where, ".json"):
        rest = name[len(where) + 1 :]
        if rest.count("/") >= depth:
            root.rename(name, f"{aside}/{rest.replace('/', '-')}")


def clear_attempt(root: Root, key: DatasetKey, where: str) -> None:
    """Remove the notes of an attempt that has become a version, and the folder of all if it was the last."""
    others = {_names.split_attempt(key.id, name)[1] for name in root.names(_names.builds(key))}
    is_last = others <= {"", where.rpartition("/")[2]}
    root.remove_folder(_names.builds(key) if is_last else where)
