"""The part of `CacheStorage` that reads, and what it returns."""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from yogadl._core.arguments import explains_names
from yogadl._core.frozen import frozen
from yogadl._core.key import DatasetKey
from yogadl._core.protocols import Earlier
from yogadl._core.spec import Spec
from yogadl._dataref import RecordsRef
from yogadl._format.codec import RAW
from yogadl._format.manifest import Manifest
from yogadl.storage._catalogue.backend import Backend

if TYPE_CHECKING:
    from yogadl.storage._catalogue.export import Exported
    from yogadl.storage._catalogue.log import Explanation, Log
    from yogadl.storage._catalogue.verify import Verified


@frozen
class DatasetInfo:
    """The facts that a storage records about one version."""

    id: str
    version: str
    records: int
    size_bytes: int
    parts: int
    spec: Spec
    fingerprint: str
    digest: str
    created: float
    builder: dict[str, Any]
    earlier: tuple[Earlier, ...] = ()  # the versions that it begins with, the oldest first
    metadata: dict[str, Any] | None = None  # what the user keeps with the version; {} if nothing
    is_adopted: bool = False  # whether values lie in foreign files: see `CacheStorage.adopt`


@frozen
class FieldSizes:
    """The codec of a version's field, its bytes in the files, and the bytes of its values."""

    codec: str
    stored_bytes: int
    raw_bytes: int


class ReadingStorage:
    """The calls that only read, and need only the permissions to get and to list."""

    _backend: Backend

    @explains_names()
    def fetch(
        self,
        dataset_id: str,
        dataset_version: str,
        *,
        digest: str | None = None,
        allow_pickle: bool = False,
        check: bool = False,
    ) -> RecordsRef:
        """Return a `DataRef` to a published cache.

        Args:
            dataset_id: The dataset's id.
            dataset_version: The version's name, or a tag.
            digest: The digest that `info` returned; a version with another digest is refused.
            allow_pickle: Whether pickled fields may be read; unpickling can run any code that their builder
                stored.
            check: Whether each process compares each block with its checksum before the first read from that
                block. A damaged block is then a `CacheFormatError` that names the records. All checks and
                their costs are in a table in docs/howto/damage.md.

        Raises:
            DatasetNotFoundError: if the version does not exist.
            CacheFormatError: if the version is damaged, from a newer library, or has another digest.
        """
        requested, catalogue = DatasetKey(dataset_id, dataset_version), self._backend.catalogue
        key, published = catalogue.named(requested, digest)
        tag = None if key is requested else requested.version
        return catalogue.ref(key, published, allow_pickle=allow_pickle, check=check, tag=tag)

    def datasets(self) -> list[str]:
        """Return the ids of all datasets that have a version and that this user may list."""
        return self._backend.catalogue.datasets()

    def versions(self, dataset_id: str) -> list[str]:
        """Return the versions of a dataset, in order of their names."""
        return self._backend.catalogue.versions(dataset_id)

    def tags(self, dataset_id: str) -> dict[str, str]:
        """Return the tags of a dataset, each with the version that it names."""
        return self._backend.catalogue.tags(dataset_id)

    def log(self, dataset_id: str) -> "Log":
        """Return the history of a dataset: its versions and its tags.

        Returns:
            The versions, the oldest first, each with the size of the files that it shares with the one
            before, the size of its other files, and the differences between the code, values and arguments
            that built the two; and the versions that each tag named, with times.

        Raises:
            DatasetNotFoundError: if the dataset does not exist.
            CacheFormatError: if a tag is damaged; damaged versions are listed as such.
        """
        from yogadl.storage._catalogue.log import log_of

        return log_of(self._backend.catalogue, dataset_id)

    def info(self, dataset_id: str, dataset_version: str) -> DatasetInfo:
        """Return the facts that a version's manifest holds, without opening the cache."""
        key, published = self._backend.catalogue.named(DatasetKey(dataset_id, dataset_version))
        manifest = published.manifest
        return DatasetInfo(
            id=key.id,
            version=key.version,
            records=manifest.records,
            size_bytes=manifest.size_bytes,
            parts=manifest.parts,
            spec=manifest.spec,
            fingerprint=manifest.fingerprint,
            digest=published.digest,
            created=manifest.created,
            builder=manifest.builder,
            earlier=manifest.earlier,
            metadata=manifest.metadata,
            is_adopted=manifest.is_adopted,
        )

    def field_sizes(self, dataset_id: str, dataset_version: str) -> dict[str, FieldSizes]:
        """Return the codec of each field, by name, its bytes as stored and the bytes of its values.

        A field has a codec if some of its parts have one. In the files, a value that varies also takes an
        entry of 12 bytes and more, which says where it lies. Dictionaries are not counted. Fields of one
        name, such as those of ``{"a/b": ..., "a": {"b": ...}}``, are added up.

        Raises:
            DatasetNotFoundError: if the version does not exist.
            CacheFormatError: if its part table is damaged.
        """
        _key, published = self._backend.catalogue.named(DatasetKey(dataset_id, dataset_version))
        found: dict[str, FieldSizes] = {}
        fields = published.manifest.spec.fields
        for field, one in zip(fields, self._sizes_in_order(published.manifest), strict=True):
            before = found.get(field.name, FieldSizes(RAW, 0, 0))
            found[field.name] = FieldSizes(
                before.codec if one.codec == RAW else one.codec,
                before.stored_bytes + one.stored_bytes,
                before.raw_bytes + one.raw_bytes,
            )
        return found

    def _sizes_in_order(self, manifest: Manifest) -> list[FieldSizes]:
        """Return the sizes of each field, in the order of the fields, whose names may be equal."""
        from yogadl.storage._catalogue.cached import open_table

        table = open_table(self._backend.root, manifest)
        if not len(table):
            return [FieldSizes(RAW, 0, 0) for _ in manifest.spec.fields]
        counts = np.diff(table.first_record)
        found = [
            FieldSizes(codec, *stored.sizes(counts))
            for codec, stored in zip(table.codecs, table.fields, strict=True)
        ]
        if manifest.groups is None:
            return found
        from yogadl._foreign.parquet import FIRST_COLUMN, fields_of_columns

        of_columns: list[FieldSizes] = []
        for column, count in zip(found[FIRST_COLUMN:], fields_of_columns(manifest.spec), strict=True):
            of_columns += [column, *[FieldSizes(RAW, 0, 0)] * (count - 1)]
        return of_columns

    def verify(
        self, dataset_id: str, dataset_version: str, *, progress: Callable[[int, int], None] | None = None
    ) -> "Verified":
        """Read every byte of a version, in a bucket and in the mirror, and compare it with its checksums.

        Damaged files in this machine's mirror are downloaded again; the result lists them. All checks and
        their costs are in a table in docs/howto/damage.md.

        Raises:
            CacheFormatError: at the first damage that has no second copy, naming dataset, field and records.
        """
        from yogadl.storage._catalogue.verify import verify

        catalogue = self._backend.catalogue
        _, published = catalogue.named(DatasetKey(dataset_id, dataset_version))

        def report_all_but_last(done: int, total: int) -> None:
            if progress is not None and done < total:
                progress(done, total)

        manifest = published.manifest
        verified = verify(catalogue.root, manifest, lambda: catalogue.opener.permitted, report_all_but_last)
        mirrored, mended = catalogue.opener.mend(published)
        if progress is not None and verified.parts:
            progress(verified.parts, verified.parts)
        return replace(verified, mirrored=mirrored, mended=tuple(mended))

    def explain(self, dataset_id: str, dataset_version: str, other_version: str) -> "Explanation":
        """Return the differences between the code, values and arguments that built two versions.

        Args:
            dataset_id: The dataset's id.
            dataset_version: One version.
            other_version: The other.

        Returns:
            The functions, values and arguments that differ; printed, a line for each.

        Raises:
            DatasetNotFoundError: if one of the versions does not exist.
        """
        from yogadl.storage._catalogue.log import adopted_files, explain

        keys = DatasetKey(dataset_id, dataset_version), DatasetKey(dataset_id, other_version)
        catalogue = self._backend.catalogue
        first, second = (catalogue.named(key)[1].manifest for key in keys)
        return explain(first, second, {each.key: adopted_files(catalogue, each) for each in (first, second)})

    def export(
        self,
        dataset_id: str,
        dataset_version: str,
        folder: str | os.PathLike[str],
        format: str = "npy",
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> "Exported":
        """Write a version to files that other programs read: see `yogadl.storage.export`.

        Args:
            dataset_id: The dataset's id.
            dataset_version: The version's name, or a tag.
            folder: The folder to write to: a new one, or an empty one.
            format: ``"npy"``, ``"parquet"`` or ``"arrow"``.
            progress: Called with the number of records written and of all records.

        Raises:
            DatasetNotFoundError: if the version does not exist.
            UnsupportedDataError: if a field has no form in that format; the error names the field and a
                remedy.
        """
        from yogadl.storage._catalogue.export import export

        catalogue = self._backend.catalogue
        key, published = catalogue.named(DatasetKey(dataset_id, dataset_version))
        # Safe: export refuses pickled fields before it reads anything, so nothing is unpickled.
        ref = catalogue.ref(key, published, allow_pickle=True)
        return export(ref, folder, format, progress=progress)
