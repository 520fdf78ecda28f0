"""`CacheStorage`, the class that users call: reading (in `_reading`), tagging and removing, building.

The modules that build and remove are imported at the first call that needs them: a process that only reads
does not load them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec

from yogadl._core.arguments import bool_argument, explains_names, value_argument
from yogadl._core.key import DatasetKey, new_key
from yogadl._core.protocols import Storage
from yogadl._dataref import RecordsRef
from yogadl.storage._catalogue.backend import Backend
from yogadl.storage._reading import ReadingStorage

if TYPE_CHECKING:
    from yogadl._format.codec import Codec
    from yogadl.storage._builds.building import PartitionedBuild
    from yogadl.storage._builds.options import BuildOptions, FileOptions, RecordOptions
    from yogadl.storage._keeping import Pruned, Unfinished


# How long prune keeps files that no version names: 30 days.
GRACE_S: Final = 30 * 86_400.0


class KeepingStorage:
    """The calls that tag versions, delete and restore them, and remove files."""

    _backend: Backend

    def tag(self, dataset_id: str, tag: str, dataset_version: str) -> None:
        """Make a tag name a version; a tag that exists moves to it.

        Every call that reads a version also takes the tag. Atomic, and safe if others do the same at the
        same time. A reference that was fetched by the tag before does not change.

        Args:
            dataset_id: The dataset's id.
            tag: The tag: a name that a version could have, that no version has, without an ``@``.
            dataset_version: The version's name; or another tag, for the version that it names now.

        Raises:
            DatasetNotFoundError: if the version does not exist.
            ConfigurationError: if a version has the tag's name, or the name is not allowed.
        """
        from yogadl.storage._keeping import set_tag

        set_tag(self._backend, DatasetKey(dataset_id, dataset_version), tag)

    def untag(self, dataset_id: str, tag: str) -> None:
        """Remove a tag. The version that it names stays.

        Raises:
            DatasetNotFoundError: if the tag does not exist.
        """
        from yogadl.storage._keeping import remove_tag

        remove_tag(self._backend, dataset_id, tag)

    def delete(self, dataset_id: str, dataset_version: str) -> None:
        """Move a version to the trash; `undelete` restores it until `prune` has removed it.

        If a process builds this version, the call waits, and then deletes the version that was built.

        Raises:
            DatasetNotFoundError: if the version does not exist.
            ConfigurationError: if a tag names the version, or the given name is a tag.
            LeaseError: if the wait takes longer than this storage allows.
        """
        from yogadl.storage._keeping import delete

        delete(self._backend, DatasetKey(dataset_id, dataset_version))

    def undelete(self, dataset_id: str, dataset_version: str) -> None:
        """Restore the version that was deleted or replaced last.

        If a version of that name exists, it is moved to the trash: the next call undoes this one. If a
        process builds this version, the call waits.

        Raises:
            DatasetNotFoundError: if the trash has no such version.
            LeaseError: if the wait takes longer than this storage allows.
        """
        from yogadl.storage._keeping import undelete

        undelete(self._backend, DatasetKey(dataset_id, dataset_version))

    def unfinished(self, dataset_id: str | None = None) -> "list[Unfinished]":
        """Return the builds that are not finished (killed, failed, or running), with the size of their files.

        Args:
            dataset_id: Return only the builds of this dataset.
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
        """Remove old files from the trash, and old files that no version uses, locks among them.

        Files younger than `grace_s` stay: a reader may open them late, and a running build may use them at
        its end. A dataset is skipped while another process builds, deletes or restores one of its versions. A
        dataset with a damaged manifest is skipped with a warning, since that manifest may name any file. A
        dataset that can't be listed or read is skipped, too; the error is raised after the others are pruned.

        Args:
            grace_s: How long files that no version names are kept; 30 days if not given.
            dry_run: Whether to return the files that would be removed, and remove nothing.
            unfinished: Whether to remove only the files of unfinished builds, of any age; see `unfinished`.
                Files that tasks of a `begin` wrote within a day stay in any case: a task may still use them.
            progress: Called with the number of datasets seen and the number of files removed so far.

        Raises:
            ConfigurationError: if `grace_s` is no number of seconds.
            StorageError: if a file or folder can't be listed, read or removed; the error names the dataset.
            LeaseError: if this process was stopped for so long that a builder took over its lease.
        """
        from yogadl.storage._keeping import prune

        return prune(
            self._backend, grace_s=grace_s, dry_run=dry_run, unfinished=unfinished, progress=progress
        )


P = ParamSpec("P")


class CacheStorage(ReadingStorage, KeepingStorage, Storage):
    """Build datasets once, keep them below a root, and hand out references to them.

    Safe to use from any number of threads and processes and, except for a local folder, from several
    machines; picklable. Reading needs only the permissions to get and to list, and writes nothing, except
    that `RecordsRef.filter` stores its selection where it has the permission to write. The files of a builder
    that died cannot be read, and the next builder continues its work or starts again.

    Args:
        backend: The catalogue and the coordinator of this storage.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def __reduce__(self) -> Any:
        return _reopened, (type(self), self._backend)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.location!r})"

    @property
    def location(self) -> str:
        """The location of this storage, a folder's path or a bucket's URL."""
        return self._backend.root.location

    @explains_names()
    def submit(
        self,
        data: Any,
        dataset_id: str,
        dataset_version: str,
        *,
        workers: int = 0,
        codec: "Codec" = None,
        json: Sequence[str] = (),
        missing: Mapping[str, Any] | None = None,
        build: "BuildOptions | None" = None,
        records: "RecordOptions | None" = None,
    ) -> RecordsRef:
        """Build a cache from any source and publish it; an existing version is replaced atomically.

        The version becomes visible only after all its files are on the disk. Readers of a version that is
        replaced continue to read the old records.

        A copy of all records of a version begins with the versions that this one begins with, so it is split
        as this one is. A version made of a view, such as `select` or `map`, begins with no other.

        Args:
            data: Arrays, an object with ``__len__`` and ``__getitem__``, an iterable or a generator function.
            dataset_id: The dataset's id; slashes make folders.
            dataset_version: The version's name.
            workers: How many processes read the source, if it has random access or partitions; with 0 or 1,
                this process does.
            codec: How values are compressed: ``"zstd"``, `Zstd` with a level, ``"auto"`` (where it pays), or
                a dict of these by the names of fields; ``None``: not at all. See docs/howto/compression.md.
            json: The names of fields that are json values: any tree of dict, list, str, numbers, bool and
                ``None``, stored as one text. Lists of dicts are json values in any case. See
                docs/howto/records.md.
            missing: By the names of fields, what comes in the place of a value that is ``None`` or whose key
                a record lacks, such as ``{"label": -1, "text": "empty"}``; ``"empty"`` is an empty value.
            build: How the version is built: an engine, the size of parts, progress, metadata.
            records: How the records are read: what their fields are, what an error does, pickled values.

        Returns:
            The reference that `fetch` returns, without a request for it; the files are opened at the first
            read.

        Raises:
            UnsupportedDataError: if a record can't be stored; the error names field and record.
            StorageError: if the disk fails or is full.
        """
        from yogadl.storage._builds.building import build_version
        from yogadl.storage._builds.options import terms_of

        key = DatasetKey(dataset_id, dataset_version)
        terms = terms_of(workers, codec, json, missing, build, records)
        published = build_version(self._backend, key, lambda: data, terms)
        return self._backend.catalogue.built(published, allow_pickle=terms.records.allow_pickle)

    @explains_names()
    def cached(
        self,
        data: Any,
        dataset_id: str,
        dataset_version: str = "auto",
        *,
        workers: int = 0,
        check: bool = False,
        codec: "Codec" = None,
        json: Sequence[str] = (),
        missing: Mapping[str, Any] | None = None,
        build: "BuildOptions | None" = None,
        records: "RecordOptions | None" = None,
    ) -> RecordsRef:
        """Return the version of a source, built if it does not exist: once, by however many processes.

        A version that exists is returned as it is; of a version that is named, the source is not looked at.
        With ``"auto"``, the version's name is made from the content: the fingerprint of a `Dataset` of HF
        datasets; all values of arrays, lists and tables in memory; the fingerprint of a `DataRef`, and its
        functions; for `yogadl.partitioned.of` the functions, the paths, and the size and time of each file;
        an attribute ``__yogadl_version__``, as `yogadl.image_folder` has. Other sources need a version.

        Args:
            data: As for `submit`.
            dataset_id: The dataset's id.
            dataset_version: The version's name; change it when the records change, or give ``"auto"``.
            workers: As for `submit`. The version does not depend on this argument, nor on those that follow,
                but for ``on_error="skip"`` of `records`.
            check: As for `fetch`.
            codec: As for `submit`.
            json: As for `submit`.
            missing: As for `submit`.
            build: As for `submit`; an existing version keeps its metadata.
            records: As for `submit`; pickled fields of an existing version may be read, too.

        Raises:
            ConfigurationError: if the version is ``"auto"`` and it can't be known which records the source
                has; or if the fingerprint of a `Dataset` is random, because a transform can't be hashed.
            UnsupportedDataError: if a record can't be stored; the error names field and record.
        """
        from yogadl.storage._builds.options import terms_of
        from yogadl.storage._hits.found_or_built import found_or_built

        terms = terms_of(workers, codec, json, missing, build, records)
        return found_or_built(self._backend, data, dataset_id, dataset_version, terms, check=check)

    @explains_names()
    def append(
        self,
        data: Any,
        dataset_id: str,
        dataset_version: str,
        *,
        base_version: str,
        workers: int = 0,
        codec: "Codec | Literal['same']" = "same",
        json: Sequence[str] = (),
        missing: Mapping[str, Any] | None = None,
        build: "BuildOptions | None" = None,
        records: "RecordOptions | None" = None,
    ) -> RecordsRef:
        """Build a version from all records of another version, followed by new records.

        Only the new records are read and written: the parts of the other version become parts of this one,
        too. The result, even its fingerprint, is the same as if all records had been built at once. The other
        version stays as it is, and may be deleted later. If the other version is replaced or deleted during
        this call, its records at the beginning of the call are used. An existing version is replaced
        atomically, so the call can be repeated. See docs/howto/growth.md.

        Args:
            data: As for `submit`: the new records alone.
            dataset_id: The dataset's id.
            dataset_version: The version to build.
            base_version: The version whose records come first; it must be another one.
            workers: As for `submit`, for the new records.
            codec: As for `submit`, for the new records; ``"same"``: the fields that the other version has
                compressed, as it was built.
            json: As for `submit`.
            missing: As for `submit`.
            build: As for `submit`; if no metadata are given, the new version has those of the other version.
            records: As for `submit`, without `spec`: the fields are those of the other version.

        Returns:
            As `submit`: the reference to the new version.

        Raises:
            DatasetNotFoundError: if the base version does not exist.
            UnsupportedDataError: if the new records have another structure or dtype (the error names the
                field); or if there are no new records.
            ConfigurationError: if the base version is this one, or contains all of it, as it does when the
                call is repeated.
        """
        from yogadl.storage._builds.growth import append
        from yogadl.storage._builds.options import terms_of

        key, base = DatasetKey(dataset_id, dataset_version), DatasetKey(dataset_id, base_version)
        terms = terms_of(workers, codec, json, missing, build, records).without("append", "spec")
        published = append(self._backend, key, lambda: data, base, terms)
        return self._backend.catalogue.built(published, allow_pickle=terms.records.allow_pickle)

    @explains_names()
    def compact(
        self,
        dataset_id: str,
        dataset_version: str,
        new_version: str,
        *,
        workers: int = 0,
        codec: "Codec | Literal['same']" = "same",
        materialize: bool = False,
        build: "BuildOptions | None" = None,
    ) -> RecordsRef:
        """Build a version with the same records as another, in few large parts, as `submit` makes them.

        A version that grew by many small appends is faster to read, fetch and copy once it is compacted. The
        fingerprint is the same, so cursors stay valid. All records are read, compared with their checksums
        and written again; pickled values are not unpickled.

        Of a version that was adopted, the index is written again. The values stay in the foreign files: these
        are read for their checksums, unless the version was adopted with ``FileOptions(read=False)``.
        `refresh` then reads all files that share a part of the new index with one that was changed.

        Args:
            dataset_id: The dataset's id.
            dataset_version: The version that has the records, or a tag.
            new_version: The version to build; if it is `dataset_version`, that version is replaced
                atomically.
            workers: As for `submit`. Several workers make more parts than one.
            codec: As for `submit`; ``"same"``: the fields that the other version has compressed, as it was
                built.
            materialize: Whether values in foreign files are copied, too.
            build: As for `submit`, without metadata.

        Returns:
            As `submit`: the reference to the new version. One with pickled fields reads nothing: fetch it
            with ``allow_pickle=True``.

        Raises:
            DatasetNotFoundError: if the version does not exist.
            CacheFormatError: if the version is damaged; nothing is published.
            ConfigurationError: if `codec` would compress values that stay in foreign files.
        """
        from yogadl.storage._builds.growth import compact
        from yogadl.storage._builds.options import terms_of

        key, base = DatasetKey(dataset_id, new_version), DatasetKey(dataset_id, dataset_version)
        terms = terms_of(workers, codec, build=build).without("compact", "metadata")
        is_copied = bool_argument("materialize", materialize)
        return self._backend.catalogue.built(compact(self._backend, key, base, terms, materialize=is_copied))

    @explains_names()
    def recompress(
        self,
        dataset_id: str,
        dataset_version: str,
        new_version: str,
        *,
        codec: "Codec | Literal['same']",
        workers: int = 0,
        materialize: bool = False,
        build: "BuildOptions | None" = None,
    ) -> RecordsRef:
        """Build a version with the same records as another, compressed otherwise, or not at all.

        As `compact` does: the fingerprint is the same, so cursors stay valid.

        Args:
            dataset_id: The dataset's id.
            dataset_version: The version that has the records, or a tag.
            new_version: The version to build; if it is `dataset_version`, that version is replaced
                atomically.
            codec: As for `compact`.
            workers: As for `submit`.
            materialize: As for `compact`.
            build: As for `compact`.

        Returns:
            As `compact`.

        Raises:
            DatasetNotFoundError: if the version does not exist.
            CacheFormatError: if the version is damaged; nothing is published.
            ConfigurationError: as for `compact`.
        """
        return self.compact(
            dataset_id,
            dataset_version,
            new_version,
            workers=workers,
            codec=codec,
            materialize=materialize,
            build=build,
        )

    @explains_names()
    def adopt(
        self,
        paths: Any,
        dataset_id: str,
        dataset_version: str,
        *,
        format: str | None = None,
        fields: Sequence[str] | None = None,
        parse: bool | None = None,
        missing: Literal["empty"] | Mapping[str, Any] | None = None,
        workers: int = 0,
        build: "BuildOptions | None" = None,
        files: "FileOptions | None" = None,
    ) -> RecordsRef:
        """Build a version whose values stay in the files of other libraries, with random access to them.

        Only an index of where each value lies is written, and small values such as keys and numbers. The
        version is like any other: see docs/howto/shards.md. Each file is pinned by its size and ETag or time
        of change: a file that was changed since is an error before any record of it is read.

        Args:
            paths: A file, a folder, a URL, a pattern such as ``s3://bucket/raw/*.tar`` or
                ``shards-{000..099}.tar``, or a list of them: the records are in this order. Of a folder, the
                files with an ending of the format are taken that are not hidden.
            dataset_id: The dataset's id.
            dataset_version: The version to build.
            format: ``"webdataset"``, ``"tfrecord"``, ``"megatron"``, ``"mds"``, ``"npy"``, ``"jsonl"``,
                ``"arrow"`` or ``"parquet"``; if not given, the one that the names of the files end like.
            fields: Of ``"webdataset"``, ``"mds"``, ``"arrow"`` and ``"parquet"``: the fields of a record;
                those of the first file if not given, of ``"parquet"`` those of all files. ``"image/bytes"``
                is a field of the struct ``"image"`` of Arrow.
            parse: Of ``"jsonl"``: whether a record is the json value of a line; by default it is its bytes.
            missing: As for `submit`: a dict by the names of fields, such as ``{"text": "empty", "id": -1}``,
                or ``"empty"`` for all that can be empty: of ``"webdataset"`` a field that a sample lacks, of
                ``"tfrecord"`` a feature that a record lacks, of ``"arrow"`` bytes, a str or a list that are
                null. If not given, they are refused.
            workers: How many processes read the files; with 0 or 1, this process does.
            build: As for `submit`, without `part_bytes` and `check_space`.
            files: What is rarely said of the files.

        Returns:
            As `submit`: the reference to the new version.

        Raises:
            UnsupportedDataError: if a file is damaged, or can be read only from its front; the error names
                file and place.
            ConfigurationError: if there is no such file, or the base version has its records already, or the
                names don't tell the format, or this storage may not read there: see the argument `foreign` of
                `open_storage`.
            StorageError: if a folder can't be listed.
        """
        from yogadl.storage._builds.adopted import adopt
        from yogadl.storage._builds.options import FileOptions, terms_of

        key, more = DatasetKey(dataset_id, dataset_version), value_argument("files", files, FileOptions)
        base = None if more.base_version is None else DatasetKey(dataset_id, more.base_version)
        terms = terms_of(workers, build=build).without("adopt", "part_bytes", "check_space")
        said = {"fields": fields, "features": more.features, "parse": parse, "missing": missing}
        if more.json:
            said["json"] = tuple(more.json)
        published = adopt(self._backend, key, paths, format, terms, is_read=more.read, base=base, **said)
        return self._backend.catalogue.built(published)

    @explains_names()
    def refresh(
        self,
        dataset_id: str,
        dataset_version: str,
        new_version: str,
        *,
        workers: int = 0,
        replace: bool = False,
        build: "BuildOptions | None" = None,
    ) -> RecordsRef:
        """Build a version of the foreign files of another version as they are now.

        The paths and patterns of the other version are looked up again. Only files that are new or were
        changed are read, with those that share a part with them.

        Args:
            dataset_id: The dataset's id.
            dataset_version: The version that was adopted, or a tag.
            new_version: The version to build.
            workers: As for `adopt`.
            replace: Whether a version that exists is replaced, also `dataset_version` itself.
            build: As for `submit`: an engine and progress.

        Returns:
            As `submit`: the reference to the new version. If nothing has changed, no version is built, and it
            is that to the other version: its ``lineage.version`` says which.

        Raises:
            StorageError: if a folder can't be listed.
            CacheFormatError: if a file changes meanwhile, or the other version is damaged.
            ConfigurationError: if the new version exists and `replace` is not given, or if the other one was
                not adopted, or has records of another source, or values so small that all were copied.
        """
        from yogadl.storage._builds.adopted import refresh
        from yogadl.storage._builds.options import terms_of

        key, base = DatasetKey(dataset_id, new_version), DatasetKey(dataset_id, dataset_version)
        terms = terms_of(workers, build=build).without("refresh", "part_bytes", "check_space", "metadata")
        return self._backend.catalogue.built(refresh(self._backend, key, base, terms, replaces=replace))

    @explains_names()
    def begin(
        self,
        dataset_id: str,
        dataset_version: str,
        *,
        partitions: int | None = None,
        run: str | None = None,
        source: Any = None,
        codec: "Codec" = None,
        json: Sequence[str] = (),
        missing: Mapping[str, Any] | None = None,
        records: "RecordOptions | None" = None,
    ) -> "PartitionedBuild":
        """Begin a build whose partitions are written by tasks of any scheduler, in any order.

        Args:
            dataset_id: The dataset's id.
            dataset_version: The version to build.
            partitions: The number of partitions; their order is the order of the records. If it is not given,
                a number is chosen for the `source`.
            run: A name that distinguishes this build from other builds of the same key, such as the id of a
                job. If not given, it is made from the source: tasks with the same source work on the same
                build. Without a source, each call begins a new build; hand the object returned to all tasks.
            source: The source that `write` reads if its call has no records: one with random access, or
                `yogadl.partitioned`. With a `run`, each task hashes the arrays of `yogadl.from_source` whole
                if no `fingerprint=` names them; more than 4 GiB are refused.
            codec: As for `submit`.
            json: As for `submit`.
            missing: As for `submit`.
            records: As for `submit`, without `on_error`.
        """
        from yogadl.storage._builds.building import begin_build
        from yogadl.storage._builds.options import terms_of

        key = new_key(dataset_id, dataset_version)
        terms = terms_of(0, codec, json, missing, records=records).without("begin", "on_error")
        return begin_build(
            self._backend, key, partitions, run, source, forms=terms.forms(), codec=terms.codec
        )

    @explains_names()
    def cacheable(
        self,
        dataset_id: str,
        dataset_version: str,
        *,
        workers: int = 0,
        check: bool = False,
        codec: "Codec" = None,
        json: Sequence[str] = (),
        missing: Mapping[str, Any] | None = None,
        build: "BuildOptions | None" = None,
        records: "RecordOptions | None" = None,
    ) -> Callable[[Callable[P, Any]], Callable[P, RecordsRef]]:
        """Decorate a function that returns a source, so that it returns a `DataRef`, built once.

        The function runs only if the version does not exist; other callers, in threads or processes, wait for
        it and then read the version that it built. If an existing version was built by other code or other
        arguments, that version is returned, and a warning is given once. With the version ``"auto"``, the
        version's name is made from code and arguments, so a change of either builds a new one; see
        docs/howto/versions.md.

        A function that requests its own result gets an error. If it makes the request in a thread that it
        started, and joins that thread, both wait for ever: yogadl can't distinguish such a thread from one
        that may wait, unless threads inherit contexts (an option of Python 3.14). After two seconds a warning
        is logged.

        Args:
            dataset_id: The dataset's id.
            dataset_version: The version's name; change it when the function changes, or give ``"auto"``.
            workers: As for `submit`. The version does not depend on this argument or on any that follows.
            check: As for `fetch`.
            codec: As for `submit`.
            json: As for `submit`.
            missing: As for `submit`.
            build: As for `submit`; an existing version keeps its metadata.
            records: As for `submit`; pickled fields of an existing version may be read, too.

        Raises:
            ConfigurationError: if the arguments make no sense; from the function returned, if the version is
                ``"auto"`` and a value that the function uses can't be described.
        """
        from yogadl.storage._builds.options import terms_of
        from yogadl.storage._hits.cacheable import cached

        DatasetKey(dataset_id, dataset_version)
        terms = terms_of(workers, codec, json, missing, build, records)
        return lambda function: cached(self._backend, dataset_id, dataset_version, terms, check, function)


def _reopened(kind: type[CacheStorage], backend: Backend) -> CacheStorage:
    storage = kind.__new__(kind)  # the classes of 0.1.4 warn in their __init__
    CacheStorage.__init__(storage, backend)
    return storage
