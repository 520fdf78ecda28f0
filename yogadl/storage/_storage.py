"""Submit, fetch and cacheable, and what keeps a storage in order: what users call.

What builds and what removes is loaded when it is first called: who only reads needs none of it.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, ParamSpec

from yogadl._arguments import explains_names
from yogadl._dataref import RecordsRef
from yogadl._frozen import frozen
from yogadl._interfaces import Storage
from yogadl._key import DatasetKey, new_key
from yogadl._spec import Spec
from yogadl.storage._backend import Backend

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from yogadl.storage._begin import PartitionedBuild
    from yogadl.storage._explain import Explanation
    from yogadl.storage._export import Exported
    from yogadl.storage._progress import Progress
    from yogadl.storage._prune import Pruned
    from yogadl.storage._unfinished import Unfinished
    from yogadl.storage._verify import Verified

P = ParamSpec("P")
# How long files that no version names are kept: 30 days.
GRACE_S: Final = 30 * 86_400.0


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


class CacheStorage(Storage):
    """Build datasets once, keep them below a root, and hand out references to them.

    Safe to use from any number of threads, processes and, but for a local folder, machines; picklable. To
    read takes the permissions to get and to list; nothing is written to read. `RecordsRef.filter` writes what
    was selected where it may. A builder that dies leaves nothing that can be read, and the next one goes on
    or starts afresh.

    Args:
        backend: What it is made of.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def __reduce__(self) -> Any:
        return _reopened, (type(self), self._backend)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.location!r})"

    @property
    def location(self) -> str:
        """Where it is: a folder's path or a bucket's URL."""
        return self._backend.root.location

    # Building.

    @explains_names()
    def submit(
        self,
        data: Any,
        dataset_id: str,
        dataset_version: str,
        *,
        workers: int = 1,
        engine: "Executor | None" = None,
        part_bytes: int | None = None,
        allow_pickle: bool = False,
        progress: "bool | Progress | None" = None,
        check_space: bool = True,
    ) -> None:
        """Build a cache from any source and publish it; an existing version is replaced atomically.

        Nothing is visible before everything is on the disk. Whoever reads the version that is replaced
        keeps reading it.

        Args:
            data: Arrays, an object with ``__len__`` and ``__getitem__``, an iterable or a generator function.
            dataset_id: What the dataset is called; slashes make folders.
            dataset_version: Which version this is.
            workers: How many processes read the source, if it has random access or partitions.
            engine: What runs the tasks that read the source instead: any `concurrent.futures.Executor`.
            part_bytes: How large one file may get; ``None`` lets files grow up to 1 GiB, in a bucket 256 MiB.
            allow_pickle: Whether objects without a stored form may be pickled.
            progress: A progress bar or none; ``None`` for one on a terminal; or a function.
            check_space: Whether to refuse, before anything is read, what certainly needs more than the disk
                has room for: arrays, tables and other sources that know their length and shapes.

        Raises:
            UnsupportedDataError: if a record can't be stored; names field and record.
            StorageError: if the disk fails or is full.
        """
        from yogadl.storage._building import BuildOptions, replace_version

        key = DatasetKey(dataset_id, dataset_version)
        options = BuildOptions(workers, part_bytes, allow_pickle, progress, check_space, engine)
        replace_version(self._backend, key, lambda: data, options)

    def begin(
        self,
        dataset_id: str,
        dataset_version: str,
        *,
        partitions: int | None = None,
        run: str | None = None,
        source: Any = None,
        allow_pickle: bool = False,
    ) -> "PartitionedBuild":
        """Begin a build whose partitions are written by tasks of any scheduler, in any order.

        Args:
            dataset_id: What the dataset is called.
            dataset_version: Which version this is.
            partitions: How many there are, in the order of their records; of a `source`, as many as is good.
            run: What tells this build from others of the same key, a job's id say. If not given, it is made
                of the source: whoever gives the same goes on with the same build. Without a source either,
                it is new at each call, lest attempts mix, and the object returned is handed to all tasks.
            source: What `write` reads, then without records: random access, or `yogadl.partitioned`.
            allow_pickle: Whether objects of the source without a stored form may be pickled.
        """
        from yogadl.storage._begin import begun

        key = new_key(dataset_id, dataset_version)
        return begun(self._backend, key, partitions, run, source, allow_pickle=allow_pickle)

    @explains_names()
    def cacheable(
        self,
        dataset_id: str,
        dataset_version: str,
        *,
        workers: int = 1,
        engine: "Executor | None" = None,
        part_bytes: int | None = None,
        allow_pickle: bool = False,
        progress: "bool | Progress | None" = None,
        check: bool = False,
        check_space: bool = True,
    ) -> Callable[[Callable[P, Any]], Callable[P, RecordsRef]]:
        """Decorate a function that returns a source, so that it returns a `DataRef`, built once.

        The function runs only if there is no such version; other callers, threads and processes alike,
        wait for it and then read what it built. If its code, what that uses, or its arguments differ from
        what built the cache, a warning says so once, and the cache is served. With the version ``"auto"``
        they decide the version, so that a change builds anew; see docs/versions.md.

        A function that asks for its own result is told so. From a thread that it has started, and waits for,
        it would wait for ever: Python does not tell such a thread from others, which rightly wait, unless
        threads inherit contexts (an option of Python 3.14). After two seconds a warning says what it may be.

        Args:
            dataset_id: What the dataset is called.
            dataset_version: Which version this is; bump it when the function changes, or give ``"auto"``.
            workers: As for `submit`, like all that follow. None of them has a part in the version.
            engine: See there.
            part_bytes: See there.
            allow_pickle: See there; also allows reading pickled fields.
            progress: See there.
            check: As for `fetch`.
            check_space: See there.

        Raises:
            ConfigurationError: if the arguments make no sense; from the function returned, if the version
                is ``"auto"`` and a value that the function uses can't be described.
        """
        from yogadl.storage._building import BuildOptions, cached

        DatasetKey(dataset_id, dataset_version)
        options = BuildOptions(workers, part_bytes, allow_pickle, progress, check_space, engine)
        return lambda function: cached(self._backend, dataset_id, dataset_version, options, check, function)

    # Reading.

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
            digest: The digest that `info` gave; any other bytes than those are refused.
            allow_pickle: Whether pickled fields may be read, which runs code that their writer chose.
            check: Whether each process compares each block with its checksum before it first reads from it:
                then what reading returns was built so, or is a `CacheFormatError` that names the records.

        Raises:
            DatasetNotFoundError: if there is no such version.
            CacheFormatError: if it is damaged, from a newer library, or has another digest.
        """
        key, catalogue = DatasetKey(dataset_id, dataset_version), self._backend.catalogue
        published = catalogue.published(key) if digest is None else catalogue.find(key, digest)
        if published is None:
            raise catalogue.not_found(key)
        return catalogue.ref(key, published, allow_pickle=allow_pickle, check=check)

    def datasets(self) -> list[str]:
        """Return the ids of all datasets that have a version, and that this user may list."""
        return self._backend.catalogue.datasets()

    def versions(self, dataset_id: str) -> list[str]:
        """Return the versions of a dataset, in order of their names."""
        return self._backend.catalogue.versions(dataset_id)

    def info(self, dataset_id: str, dataset_version: str) -> DatasetInfo:
        """Return what is known of a version, without opening it."""
        published = self._backend.catalogue.published(DatasetKey(dataset_id, dataset_version))
        manifest = published.manifest
        return DatasetInfo(
            id=dataset_id,
            version=dataset_version,
            records=manifest.records,
            size_bytes=manifest.size_bytes,
            parts=manifest.parts,
            spec=manifest.spec,
            fingerprint=manifest.fingerprint,
            digest=published.digest,
            created=manifest.created,
            builder=manifest.builder,
        )

    def verify(
        self, dataset_id: str, dataset_version: str, *, progress: Callable[[int, int], None] | None = None
    ) -> "Verified":
        """Read every byte of a version and compare it with its checksums, in a bucket and in the mirror.

        What is damaged in this machine's mirror is downloaded again, and told in what is returned.

        Raises:
            CacheFormatError: at the first damage that has no second copy, naming dataset, field and records.
        """
        from yogadl.storage._verify import verify

        catalogue = self._backend.catalogue
        published = catalogue.published(DatasetKey(dataset_id, dataset_version))

        def but_for_the_last(done: int, total: int) -> None:
            if progress is not None and done < total:
                progress(done, total)

        verified = verify(catalogue.root, published.manifest, but_for_the_last)
        mirrored, mended = catalogue.opener.mend(published)
        if progress is not None and verified.parts:
            progress(verified.parts, verified.parts)
        return replace(verified, mirrored=mirrored, mended=tuple(mended))

    def explain(self, dataset_id: str, dataset_version: str, other_version: str) -> "Explanation":
        """Say what differs between what two versions of a dataset were built from.

        Args:
            dataset_id: What the dataset is called.
            dataset_version: One version.
            other_version: The other.

        Returns:
            Which function's lines, which values and which arguments differ; printed, a line for each.

        Raises:
            DatasetNotFoundError: if there is no such version.
        """
        from yogadl.storage._explain import explain

        published = self._backend.catalogue.published
        first = published(DatasetKey(dataset_id, dataset_version)).manifest
        return explain(first, published(DatasetKey(dataset_id, other_version)).manifest)

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
            folder: Where to; made, or there and empty.
            format: ``"npy"``, ``"parquet"`` or ``"arrow"``.
            progress: Called with records written and records in all.

        Raises:
            DatasetNotFoundError: if there is no such version.
            UnsupportedDataError: if a field has no form in that format; names it, and what to do.
        """
        from yogadl.storage._export import export

        key, catalogue = DatasetKey(dataset_id, dataset_version), self._backend.catalogue
        # Nothing is unpickled: pickled fields are refused before anything is read.
        ref = catalogue.ref(key, catalogue.published(key), allow_pickle=True)
        return export(ref, folder, format, progress=progress)

    # Keeping order.

    def delete(self, dataset_id: str, dataset_version: str) -> None:
        """Throw a version away; `undelete` brings it back until `prune` has removed it.

        Waits for a process that builds it, and then throws away what was built.

        Raises:
            DatasetNotFoundError: if there is no such version.
            LeaseError: if it takes longer than this storage waits.
        """
        from yogadl.storage._keeping import delete

        delete(self._backend, DatasetKey(dataset_id, dataset_version))

    def undelete(self, dataset_id: str, dataset_version: str) -> None:
        """Bring back what was deleted or replaced last.

        If there is such a version now, it goes to the trash in exchange: the next call undoes this one.
        Waits for a process that builds it.

        Raises:
            DatasetNotFoundError: if the trash has no such version.
            LeaseError: if it takes longer than this storage waits.
        """
        from yogadl.storage._keeping import undelete

        undelete(self._backend, DatasetKey(dataset_id, dataset_version))

    def unfinished(self, dataset_id: str | None = None) -> "list[Unfinished]":
        """Return what builds hold that are not finished: killed, failed, or running just now.

        Args:
            dataset_id: Just those of this dataset.
        """
        from yogadl.storage._keeping import unfinished

        return unfinished(self._backend, dataset_id)

    def prune(
        self,
        *,
        grace_s: float = GRACE_S,
        dry_run: bool = False,
        unfinished: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> "Pruned":
        """Remove what no manifest names, and manifests that have been in the trash for longer than the grace.

        What is younger than the grace stays, since a running reader opens parts late, and partitions are
        named last. Nothing is removed of a dataset of which somebody builds, deletes or brings back a version
        just now, nor, with a warning, of one that has a damaged manifest, which may name anything. A dataset
        that can't be listed or read is left alone, too, and the others are pruned before the error is raised.

        Args:
            grace_s: How long files that no version names are kept; 30 days if not given.
            dry_run: Whether to say what would be removed, and remove nothing.
            unfinished: Whether to remove just what `unfinished` lists, however young. What tasks of a `begin`
                wrote within a day stays in either case: they can't be told from tasks that are at work.
            progress: Called with how many datasets were seen, and how many files removed, so far.

        Raises:
            ConfigurationError: if `grace_s` is no number of seconds.
            StorageError: if something can't be listed, read or removed; names the dataset.
            LeaseError: if this process was stopped for so long that a builder took over its lease.
        """
        from yogadl.storage._keeping import prune

        return prune(
            self._backend, grace_s=grace_s, dry_run=dry_run, unfinished=unfinished, progress=progress
        )


def _reopened(kind: type[CacheStorage], backend: Backend) -> CacheStorage:
    storage = kind.__new__(kind)  # of 0.1.4's, which warned where it was made
    CacheStorage.__init__(storage, backend)
    return storage
