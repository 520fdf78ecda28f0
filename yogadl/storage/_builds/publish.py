"""Publish a cache of sealed parts: write the part table, then the manifest, which makes the cache exist."""

import contextlib
import errno
import hashlib
import logging
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from typing import Any

from yogadl._core.key import DatasetKey
from yogadl._core.protocols import Earlier
from yogadl._core.spec import Spec
from yogadl._format.columns import RunHash, fingerprint_of
from yogadl._format.files import PARQUET
from yogadl._format.manifest import DecodedRows, Groups, Manifest, digest_of, read_manifest, shorten_to_limit
from yogadl._format.table import PartTable, is_hash
from yogadl.errors import CacheFormatError, ConfigurationError, StorageError
from yogadl.storage import _names
from yogadl.storage._catalogue.backend import BuildExclusion
from yogadl.storage._catalogue.cached import Published, open_table
from yogadl.storage._files.root import Entry, Root
from yogadl.storage._keeping import replace
from yogadl.storage._objects.bucket import Bucket, ReplacedError
from yogadl.storage._remote.requests import UNKNOWN, has_bytes, hash_of, pins_file, read_pins

_log = logging.getLogger("yogadl")


@dataclass(frozen=True)
class Content:
    """The facts about the records that a manifest will contain.

    Args:
        spec: The structure of a record.
        table: The part table.
        run: The hash of all records.
        earlier: The versions that it begins with, the oldest first.
        metadata: What the user keeps with the version.
        is_weak: Whether the hash is of places of foreign values that were not read.
        aliases: Other fingerprints of the same records.
        decoded: The rows that the records are groups of, if they are.
    """

    spec: Spec
    table: PartTable
    run: RunHash
    earlier: tuple[Earlier, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)
    is_weak: bool = False
    aliases: tuple[str, ...] = ()
    decoded: DecodedRows | None = None

    @property
    def fingerprint(self) -> str:
        """The hash of the records."""
        found = fingerprint_of(self.spec, self.run, is_weak=self.is_weak)
        return found if self.decoded is None else self.decoded.fingerprint_over(found)

    def with_aliases(self, fingerprints: Iterable[str]) -> "Content":
        """Return the content with other fingerprints of the same records."""
        others = {*fingerprints, *self.aliases} - {self.fingerprint}
        return replace_fields(self, aliases=tuple(sorted(name for name in others if is_hash(name, 32))))


def publish(
    root: Root,
    key: DatasetKey,
    content: Content,
    builder: dict[str, Any],
    *,
    exclusion: BuildExclusion,
    replaces: bool,
) -> Published | None:
    """Write part table and manifest, which makes the cache exist.

    Args:
        root: The storage's root.
        key: The version.
        content: Its records.
        builder: The description of the code and machine that built it.
        exclusion: The right to build; held by the caller.
        replaces: Whether to replace an existing version, which goes to the trash. If not, an existing version
            stays.

    Returns:
        The version as it is published now; ``None`` if another one is.

    Raises:
        LeaseLostError: if another builder has taken over.
        StorageError: if a part does not exist any more.
    """
    if content.run.records != content.table.records:
        raise ConfigurationError("the parts and their hashes disagree; this is a bug, please report it")
    table = content.table.to_file().to_bytes()
    table_sha256 = hashlib.sha256(table).hexdigest()
    root.write(_names.table(key.id, table_sha256), table)
    pin_parts(root, key, content.table, table_sha256, content.earlier)
    rows, groups, container = content.decoded, None, content.table.container
    if rows is not None:
        groups, container = Groups(content.run.records, content.spec, rows.form), PARQUET
    made = Manifest(
        key=key,
        spec=content.spec if rows is None else rows.spec,
        records=content.run.records if rows is None else rows.records,
        fingerprint=content.fingerprint,
        table_sha256=table_sha256,
        table_bytes=len(table),
        size_bytes=int(content.table.size_bytes.sum()),
        parts=len(content.table),
        created=time.time(),
        builder=builder if exclusion.term is None else builder | {"lease_epoch": exclusion.term},
        token=secrets.token_hex(8),
        earlier=content.earlier,
        metadata=content.metadata,
        codecs=tuple(content.table.codecs),
        container=container,
        aliases=content.aliases,
        is_weak=content.is_weak,
        groups=groups,
    )
    manifest = shorten_to_limit(made).to_bytes()
    if replaces:
        replace(root, key, manifest, exclusion)
    else:
        exclusion.check()
        if not root.write_if_absent(_names.manifest(key), manifest):
            return None
    return _published(root, key, manifest)


def pin_parts(
    root: Root, key: DatasetKey, table: PartTable, table_sha256: str, earlier: Sequence[Earlier]
) -> None:
    """Check that every part is in its place, right before a manifest names it.

    In a bucket this also records the pins of the parts' objects, for `Pins`.

    Raises:
        StorageError: if a part does not exist any more.
        CacheFormatError: if a part that an earlier version has was replaced since by other bytes.
    """
    entries = check_parts(root, key, table)
    bucket = root.bucket
    if bucket is None or not len(table):
        return
    earlier_pins = _earlier_pins(root, bucket, key, earlier)
    largest = max(table.sha256, key=lambda sha256: entries[_names.part(key.id, sha256)].size_bytes)
    hashes = []
    for sha256 in table.sha256:
        entry = entries[_names.part(key.id, sha256)]
        pin = hash_of(entry.tag)
        if earlier_pins.get(sha256, UNKNOWN) not in (UNKNOWN, pin):
            try:
                is_right = has_bytes(bucket, entry.name, sha256, entry.tag)
            except ReplacedError:  # another build has uploaded the same part since it was listed
                is_right, pin = True, UNKNOWN
            if not is_right:
                raise CacheFormatError(
                    f"{root.where(entry.name)} has other bytes than its name says: it was altered or damaged "
                    "there; restore the object, or build the dataset again"
                )
            earlier_pins[sha256] = UNKNOWN  # compared; a version may have a part twice
        hashes.append(pin)
    # Some stores give an object one tag in a listing and another in the answer to a get.
    first = bucket.head(_names.part(key.id, largest))
    if first is None or first.tag != entries[first.name].tag:
        _log.info(
            "yogadl: parts in %s are not pinned: the store lists other tags than it sends", root.location
        )
        hashes = [UNKNOWN] * len(hashes)
    root.write(_names.pins(key.id, table_sha256), pins_file(bucket, hashes))


def _earlier_pins(root: Root, bucket: Bucket, key: DatasetKey, earlier: Sequence[Earlier]) -> dict[str, int]:
    """Return the pins of the parts of the newest earlier version that still exists, by the parts' hashes."""
    for entry_of_earlier in reversed(earlier):
        with contextlib.suppress(CacheFormatError):  # a damaged manifest: its pins are not used
            published = read_published(root, DatasetKey(key.id, entry_of_earlier.version))
            if published is not None:
                table = open_table(root, published.manifest)
                found = read_pins(bucket, key.id, table, published.manifest.table_sha256)
                return dict(zip(table.sha256, found.tolist(), strict=True))
    return {}


def read_published(root: Root, key: DatasetKey) -> Published | None:
    """Return the manifest that a version has now, ignoring the mirror; ``None`` if there is none.

    Raises:
        CacheFormatError: if it is damaged.
    """
    content = root.read(_names.manifest(key))
    return None if content is None else _published(root, key, content)


def _published(root: Root, key: DatasetKey, content: bytes) -> Published:
    manifest = read_manifest(content, key, root.where(_names.manifest(key)))
    return Published(manifest, digest_of(content), content)


def check_parts(root: Root, key: DatasetKey, table: PartTable) -> dict[str, Entry]:
    """Check that every part is in its place; return the entries of all files of parts by name."""
    entries = {entry.name: entry for entry in root.entries(f"{key.id}/parts")}
    rows = zip(table.sha256, table.index_sha256, table.size_bytes.tolist(), strict=True)
    names = [_names.dictionary(key.id, sha256) for sha256 in table.dictionaries]
    vanished = [name for name in names if name not in entries]
    for sha256, index_sha256, size_bytes in rows:
        name = _names.part(key.id, sha256)
        has_index = not entries.keys().isdisjoint(_names.indexes(key.id, sha256, index_sha256))
        if name not in entries or entries[name].size_bytes != size_bytes or not has_index:
            vanished.append(name)
    if vanished:
        raise StorageError(
            errno.ENOENT,
            f"{root.where(vanished[0])} or its index has vanished since it was written; was there a prune "
            "with a short grace, or does the bucket delete by age? Build again",
        )
    return entries


def put_aside(root: Root, folder: str, aside: str, depth: int = 0) -> None:
    """Move the notes of an attempt to another folder, where no build uses them, and prune finds them.

    Args:
        root: The storage's root.
        folder: The attempt's folder.
        aside: The folder of an attempt that no build can continue.
        depth: Move only notes that lie in at least this many folders below the attempt's.
    """
    for name in root.names(folder, ".json"):
        rest = name[len(folder) + 1 :]
        if rest.count("/") >= depth:
            root.rename(name, f"{aside}/{rest.replace('/', '-')}")


def clear_attempt(root: Root, key: DatasetKey, folder: str) -> None:
    """Remove the folder of an attempt that was published; of the last attempt, the folder of all attempts."""
    others = {_names.split_attempt(key.id, name)[1] for name in root.names(_names.builds(key))}
    is_last = others <= {"", folder.rpartition("/")[2]}
    root.remove_folder(_names.builds(key) if is_last else folder)
