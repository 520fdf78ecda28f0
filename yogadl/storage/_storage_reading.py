"""Find what a storage has, read it and check it: half of what users call. `_storage.py` has all of it."""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from yogadl._arguments import explains_names
from yogadl._dataref import RecordsRef
from yogadl._frozen import frozen
from yogadl._interfaces import Earlier
from yogadl._key import DatasetKey
from yogadl._spec import Spec
from yogadl.storage._backend import Backend

if TYPE_CHECKING:
    from yogadl.storage._explain import Explanation
    from yogadl.storage._export import Exported
    from yogadl.storage._log import Log
    from yogadl.storage._verify import Verified


@frozen
class DatasetInfo:
    """What a storage knows of one version."""

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
    """What a storage answers. It needs nothing but the permissions to get and to list."""

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
            dataset_id: What the dataset is called.
            dataset_version: Which version.
            digest: The digest that `info` gave; a version with another digest is refused.
            allow_pickle: Whether pickled fields may be read, which can run any code of whoever wrote them.
            check: Whether each process compares each block with its checksum before it reads from it for the
                first time. A damaged block is then a `CacheFormatError` that names the records.

        Raises:
            DatasetNotFoundError: if there is no such version.
            CacheFormatError: if it is damaged, from a newer library, or has another digest.
        """
        asked, catalogue = DatasetKey(dataset_id, dataset_version), self._backend.catalogue
        key, published = catalogue.named(asked, digest)
        tag = None if key is asked else asked.version
        return catalogue.ref(key, published, allow_pickle=allow_pickle, check=check, tag=tag)

    def datasets(self) -> list[str]:
        """Return the ids of all datasets that have a version, and that this user may list."""
        return self._backend.catalogue.datasets()

    def versions(self, dataset_id: str) -> list[str]:
        """Return the versions of a dataset, in order of their names."""
        return self._backend.catalogue.versions(dataset_id)

    def tags(self, dataset_id: str) -> dict[str, str]:
        """Return which version each tag of a dataset names."""
        return self._backend.catalogue.tags(dataset_id)

    def log(self, dataset_id: str) -> "Log":
        """Return the history of a dataset: its versions and its tags.

        Returns:
            The versions, the oldest first, each with what it shares with the one before, what it adds, and
            what it was built from; and which version each tag named at which time.

        Raises:
            DatasetNotFoundError: if there is no such dataset.
            CacheFormatError: if a tag is damaged; damaged versions are listed as such.
        """
        from yogadl.storage._log import log_of

        return log_of(self._backend.catalogue, dataset_id)

    def info(self, dataset_id: str, dataset_version: str) -> DatasetInfo:
        """Return what is known of a version, without opening it."""
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
        """Read every byte of a version and compare it with its checksums, in a bucket and in the mirror.

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
        """Return what differs between the code, values and arguments that built two versions of a dataset.

        Args:
            dataset_id: What the dataset is called.
            dataset_version: One version.
            other_version: The other.

        Returns:
            The functions, values and arguments that differ; printed, a line for each.

        Raises:
            DatasetNotFoundError: if there is no such version.
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
            dataset_id: What the dataset is called.
            dataset_version: Which version.
            folder: The folder to write to: a new one, or an empty one.
            format: ``"npy"``, ``"parquet"`` or ``"arrow"``.
            progress: Called with records written and records in all.

        Raises:
            DatasetNotFoundError: if there is no such version.
            UnsupportedDataError: if a field has no form in that format; names it, and what to do.
        """
        from yogadl.storage._export import export

        catalogue = self._backend.catalogue
        key, published = catalogue.named(DatasetKey(dataset_id, dataset_version))
        # Nothing is unpickled: pickled fields are refused before anything is read.
        ref = catalogue.ref(key, published, allow_pickle=True)
        return export(ref, folder, format, progress=progress)
