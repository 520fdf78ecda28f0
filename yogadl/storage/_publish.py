"""Make a cache of sealed parts: the part table, then the manifest, which then is the cache."""

import contextlib
import errno
import hashlib
import logging
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from yogadl._format.fingerprint import RunHash, fingerprint_of
from yogadl._format.manifest import Manifest, fitting, read_manifest
from yogadl._format.table import PartTable
from yogadl._interfaces import Earlier
from yogadl._key import DatasetKey
from yogadl._spec import Spec
from yogadl.errors import CacheFormatError, ConfigurationError, StorageError
from yogadl.storage import _names
from yogadl.storage._buckets.bucket import Bucket, ReplacedError
from yogadl.storage._exclusion import BuildExclusion
from yogadl.storage._parts import open_table
from yogadl.storage._pins import UNKNOWN, has_bytes, hash_of, pins_file, read_pins
from yogadl.storage._root import Entry, Root
from yogadl.storage._trash import new_trashed_name

_log = logging.getLogger("yogadl")


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
    pin_parts(root, key, content.table, table_sha256, content.earlier)
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


def pin_parts(
    root: Root, key: DatasetKey, table: PartTable, table_sha256: str, earlier: Sequence[Earlier]
) -> None:
    """Make sure that every part is where it should be, right before a manifest says so.

    In a bucket this also notes which objects they are, for `Pins`.

    Raises:
        StorageError: if a part is gone.
        CacheFormatError: if a part that an earlier version has was replaced since by other bytes.
    """
    entries = check_parts(root, key, table)
    bucket = root.bucket
    if bucket is None or not len(table):
        return
    before = _earlier_pins(root, bucket, key, earlier)
    largest = max(table.sha256, key=lambda sha256: entries[_names.part(key.id, sha256)].size_bytes)
    hashes = []
    for sha256 in table.sha256:
        entry = entries[_names.part(key.id, sha256)]
        pin = hash_of(entry.tag)
        if before.get(sha256, UNKNOWN) not in (UNKNOWN, pin):
            try:
                is_right = has_bytes(bucket, entry.name, sha256, entry.tag)
            except ReplacedError:  # since it was listed, by another build of the same part
                is_right, pin = True, UNKNOWN
            if not is_right:
                raise CacheFormatError(
                    f"{root.where(entry.name)} has other bytes than its name says: it was altered or damaged "
                    "there; restore the object, or build the dataset again"
                )
            before[sha256] = UNKNOWN  # a version may have a part twice
        hashes.append(pin)
    # Some stores do not say the same of an object in a listing as in an answer to a get.
    first = bucket.head(_names.part(key.id, largest))
    if first is None or first.tag != entries[first.name].tag:
        _log.info("yogadl: parts in %s are not pinned: a listing has other tags than they", root.location)
        hashes = [UNKNOWN] * len(hashes)
    root.write(_names.pins(key.id, table_sha256), pins_file(bucket, hashes))


def _earlier_pins(root: Root, bucket: Bucket, key: DatasetKey, earlier: Sequence[Earlier]) -> dict[str, int]:
    """Return what was noted of the parts of the newest version there is that this one begins with."""
    for one in reversed(earlier):
        other = DatasetKey(key.id, one.version)
        content = root.read(_names.manifest(other))
        if content is not None:
            with contextlib.suppress(CacheFormatError):  # damaged: then there is nothing to go by
                manifest = read_manifest(content, other, root.where(_names.manifest(other)))
                table = open_table(root, manifest)
                found = read_pins(bucket, key.id, table, manifest.table_sha256)
                return dict(zip(table.sha256, found.tolist(), strict=True))
    return {}


def check_parts(root: Root, key: DatasetKey, table: PartTable) -> dict[str, Entry]:
    """Make sure that every part is where it should be; return what is known of all files of parts."""
    entries = {entry.name: entry for entry in root.entries(f"{key.id}/parts")}
    each = zip(table.sha256, table.index_sha256, table.size_bytes.tolist(), strict=True)
    for sha256, index_sha256, size_bytes in each:
        name = _names.part(key.id, sha256)
        has_index = not entries.keys().isdisjoint(_names.indexes(key.id, sha256, index_sha256))
        if name not in entries or entries[name].size_bytes != size_bytes or not has_index:
            raise StorageError(
                errno.ENOENT,
                f"{root.where(name)} or its index has vanished since it was written; was there a prune with "
                "a short grace, or does the bucket delete by age? Build again",
            )
    return entries


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
