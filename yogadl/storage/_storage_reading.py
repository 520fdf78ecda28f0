"""The calls of a storage that find, read and check versions; `_storage.py` has the whole class."""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from yogadl._core.arguments import explains_names
from yogadl._core.frozen import frozen
from yogadl._core.key import DatasetKey
from yogadl._core.protocols import Earlier
from yogadl._core.spec import Spec
from yogadl._dataref import RecordsRef
from yogadl.storage._backend import Backend

if TYPE_CHECKING:
    from yogadl.storage._explain import Explanation
    from yogadl.storage._export import Exported
    from yogadl.storage._log import Log
    from yogadl.storage._verify import Verified


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


class ReadingStorage:
    """The calls that only read, for which it takes only the permissions to get and to list."""

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
                block. A damaged block is then a `CacheFormatError` that names the records.

        Raises:
            DatasetNotFoundError: if the version does not exist.
            CacheFormatError: if the version is damaged, from a newer library, or has another digest.
        """
        asked, catalogue = DatasetKey(dataset_id, dataset_version), self._backend.catalogue
        key, published = catalogue.named(asked, digest)
        tag = None if key is asked else asked.version
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
        from yogadl.storage._log import log_of

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
        )

    def verify(
        self, dataset_id: str, dataset_version: str, *, progress: Callable[[int, int], None] | None = None
    ) -> "Verified":
        """Read every byte of a version, in a bucket and in the mirror, and compare it with its checksums.

        Damaged files in this machine's mirror are downloaded again; the result lists them.

        Raises:
            CacheFormatError: at the first damage that has no second copy, naming dataset, field and records.
        """
        from yogadl.storage._verify import verify

        catalogue = self._backend.catalogue
        _, published = catalogue.named(DatasetKey(dataset_id, dataset_version))

        def but_for_the_last(done: int, total: int) -> None:
            if progress is not None and done < total:
                progress(done, total)

        verified = verify(catalogue.root, published.manifest, but_for_the_last)
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
        from yogadl.storage._explain import explain

        keys = DatasetKey(dataset_id, dataset_version), DatasetKey(dataset_id, other_version)
        first, second = (self._backend.catalogue.named(key)[1].manifest for key in keys)
        return explain(first, second)

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
        from yogadl.storage._export import export

        catalogue = self._backend.catalogue
        key, published = catalogue.named(DatasetKey(dataset_id, dataset_version))
        # Safe: export refuses pickled fields before it reads anything, so nothing is unpickled.
        ref = catalogue.ref(key, published, allow_pickle=True)
        return export(ref, folder, format, progress=progress)
