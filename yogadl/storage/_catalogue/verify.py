"""Check every byte of a cache, and name the records that a damaged byte belongs to."""

import contextlib
import hashlib
import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xxhash import xxh3_64_intdigest

from yogadl._format.checks import addressed_blocks, damage_error
from yogadl._format.codec import Decoder
from yogadl._format.columns import RunHash, fingerprint_of
from yogadl._format.files import open_part, read_at, unreadable
from yogadl._format.layout import FieldIndex, PartIndex, SealedPart, join_parts
from yogadl._format.manifest import Manifest
from yogadl._format.table import PartTable
from yogadl.errors import CacheFormatError, MissingDependencyError
from yogadl.storage import _names
from yogadl.storage._catalogue.cached import REMEDY, open_table, read_dictionary, read_sealed, require_named
from yogadl.storage._files.root import Root

if TYPE_CHECKING:
    from yogadl.storage._files.permitted import Permitted


@dataclass(frozen=True)
class Verified:
    """The result of a check that found no damage, or mended it.

    Attributes:
        records: The number of records.
        parts: The number of parts.
        size_bytes: The size of the parts.
        mirrored: The number of files in this machine's mirror, which were checked as well.
        mended: The names of files in the mirror that were damaged, and were downloaded again from the bucket.
        foreign_files: The number of foreign files, which were checked as well.
        foreign_read: Whether their bytes were compared; if they were adopted without reading them, only size
            and tag were.
    """

    records: int
    parts: int
    size_bytes: int
    mirrored: int = 0
    mended: tuple[str, ...] = ()
    foreign_files: int = 0
    foreign_read: bool = True


def verify(
    root: Root,
    manifest: Manifest,
    permitted: "Callable[[], Permitted]",
    progress: Callable[[int, int], None] | None = None,
) -> Verified:
    """Read every part of a cache and compare it with its checksums; so with its foreign files.

    Of foreign files that were adopted without reading them, only size and tag are compared.

    Args:
        root: The storage's root.
        manifest: The cache to check.
        permitted: Returns the places that the storage may read besides its own.
        progress: Called with parts checked and parts in all.

    Raises:
        CacheFormatError: at the first damage; the error names dataset, field and records.
    """
    table = open_table(root, manifest)
    for dictionary in table.dictionaries:
        content = read_dictionary(root, manifest.key.id, dictionary)
        with contextlib.suppress(MissingDependencyError):  # where nobody can read the values either
            Decoder(content)
    named = {table.files[number] for number in table.files.addressed}
    places = permitted() if named else None
    sealed = []
    for part in range(len(table)):
        sealed.append(_verify_part(root, manifest, table, part))
        if places is not None and sealed[-1].index.files:
            require_named(manifest.key, named, [sealed[-1].index])
            _verify_addressed(manifest, places, sealed[-1].index, int(table.first_record[part]))
        if progress is not None:
            progress(part + 1, len(table))
    _verify_manifest(manifest, sealed)
    return Verified(
        manifest.records, len(table), int(table.size_bytes.sum()),
        foreign_files=len(named), foreign_read=not manifest.is_weak,
    )  # fmt: skip


def _verify_manifest(manifest: Manifest, parts: Sequence[SealedPart]) -> None:
    """Check that table and manifest agree with the parts' indexes."""
    run = RunHash()
    for part in parts:
        run = run.then(part.index.run)
    table = join_parts(parts).to_file().to_bytes()
    is_weak = any(part.index.is_weak for part in parts)
    fingerprint = fingerprint_of(manifest.stored.spec, run, is_weak=is_weak)
    if manifest.decoded is not None:
        fingerprint = manifest.decoded.fingerprint_over(fingerprint)
    if (
        hashlib.sha256(table).hexdigest() != manifest.table_sha256
        or fingerprint != manifest.fingerprint
        or manifest.size_bytes != sum(part.index.size_bytes for part in parts)
        or manifest.parts != len(parts)
    ):
        raise CacheFormatError(
            f"{manifest.key}: the records of all parts are sound, but the manifest does not match them: "
            "it was changed since it was written; build the dataset again, or restore the file"
        )


def _verify_part(root: Root, manifest: Manifest, table: PartTable, part: int) -> SealedPart:
    sha256, size_bytes = table.sha256[part], int(table.size_bytes[part])
    first, end = table.first_record[part : part + 2].tolist()
    fields = manifest.stored.spec.fields
    with contextlib.ExitStack() as stack:
        try:
            sealed = read_sealed(root, manifest.key.id, sha256, table.index_sha256[part])
            index = sealed.index
            if (index.size_bytes, index.records, len(index.fields)) != (size_bytes, end - first, len(fields)):
                raise CacheFormatError(
                    f"the index of part {sha256}.mdb is that of another part; "
                    "build the dataset again, or restore the file"
                )
            path = stack.enter_context(root.local(_names.part(manifest.key.id, sha256)))
            descriptor = open_part(str(path), size_bytes)
        except CacheFormatError as error:
            raise CacheFormatError(f"{manifest.key}: records {first} to {end - 1}: {error}") from error
        file = stack.enter_context(open(descriptor, "rb"))
        try:
            for field, field_index in zip(fields, index.fields, strict=True):
                damaged = _damaged_records(file.fileno(), field_index, index.records)
                if damaged is not None:
                    records = range(first + damaged.start, first + damaged.stop)
                    raise damage_error(str(manifest.key), field.name, records, f"part {sha256}.mdb", REMEDY)
            found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise unreadable(error, str(path)) from error
        if found != sha256:
            raise CacheFormatError(
                f"{manifest.key}: part {sha256}.mdb was changed, but no record of it; restore the file"
            )
    return sealed


def _verify_addressed(manifest: Manifest, places: "Permitted", index: PartIndex, first: int) -> None:
    """Compare the blocks of files with an address with their checksums, each once, though fields share it."""
    for file in index.files:
        places.check(file)
    for file, blocks in itertools.groupby(addressed_blocks(index), lambda block: block.file):
        reader = places.reader(file, is_read=True)
        for found in blocks:
            if not found.has(reader.read(found.position, found.length)):
                damaged = index.fields[found.field].records_of("heap", found.block, index.records)
                records = range(first + damaged.start, first + damaged.stop)
                name = manifest.stored.spec.fields[found.field].name
                raise damage_error(str(manifest.key), name, records, file.damage[0])


def _damaged_records(descriptor: int, field: FieldIndex, records: int) -> range | None:
    """Return the records whose bytes differ from their checksums, if any.

    The bytes are read, not mapped, as are those of foreign files: a disk error in a mapped file would kill
    the process.
    """
    size_bytes = os.fstat(descriptor).st_size
    for kind, blocks in field.own_blocks:
        ranges = zip(blocks.position.tolist(), blocks.length.tolist(), blocks.checksum.tolist(), strict=True)
        for number, (position, length, checksum) in enumerate(ranges):
            lies_within = 0 <= position <= position + length <= size_bytes
            if not lies_within or xxh3_64_intdigest(read_at(descriptor, position, length)) != checksum:
                return field.records_of(kind, number, records)
    return None
