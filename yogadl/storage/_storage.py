"""What users call of a storage: building here, reading and keeping in order in the modules beside this one.

What builds and what removes is loaded when it is first called: who only reads needs none of it.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec

from yogadl._arguments import explains_names
from yogadl._dataref import RecordsRef
from yogadl._interfaces import Storage
from yogadl._key import DatasetKey, new_key
from yogadl.storage._backend import Backend
from yogadl.storage._storage_keeping import KeepingStorage
from yogadl.storage._storage_reading import ReadingStorage

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from yogadl._progress import Progress
    from yogadl.storage._begin import PartitionedBuild

P = ParamSpec("P")


class CacheStorage(ReadingStorage, KeepingStorage, Storage):
    """Build datasets once, keep them below a root, and hand out references to them.

    Safe to use from any number of threads and processes and, except for a local folder, from several
    machines; picklable. Reading needs only the permissions to get and to list, and writes nothing, except
    that `RecordsRef.filter` stores what it selected if it may. If a builder dies, nothing that it wrote can
    be read, and the next builder continues its work or starts again.

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
        """Where it is, a folder's path or a bucket's URL."""
        return self._backend.root.location

    @explains_names()
    def submit(
        self,
        data: Any,
        dataset_id: str,
        dataset_version: str,
        *,
        workers: int = 1,
        engine: "Executor | str | None" = None,
        part_bytes: int | None = None,
        allow_pickle: bool = False,
        progress: "bool | Progress | None" = None,
        check_space: bool = True,
    ) -> None:
        """Build a cache from any source and publish it; an existing version is replaced atomically.

        Nothing is visible before everything is on the disk. Readers of the version that is replaced keep
        reading it.

        Args:
            data: Arrays, an object with ``__len__`` and ``__getitem__``, an iterable or a generator function.
            dataset_id: What the dataset is called; slashes make folders.
            dataset_version: Which version this is.
            workers: How many processes read the source, if it has random access or partitions.
            engine: What runs tasks that read it instead: any `concurrent.futures.Executor`, or "ray".
            part_bytes: How large one file may get; ``None`` lets files grow up to 1 GiB, in a bucket 256 MiB.
            allow_pickle: Whether objects without a stored form may be pickled.
            progress: Whether to show a progress bar; ``None``: only on a terminal; or a function to call.
            check_space: Whether to refuse a build that certainly needs more space than the disk has, before
                anything is read: of arrays, tables and other sources that know their length and shapes.

        Raises:
            UnsupportedDataError: if a record can't be stored; names field and record.
            StorageError: if the disk fails or is full.
        """
        from yogadl.storage._building import BuildOptions, replace_version

        key = DatasetKey(dataset_id, dataset_version)
        options = BuildOptions(workers, part_bytes, allow_pickle, progress, check_space, engine)
        replace_version(self._backend, key, lambda: data, options)

    @explains_names()
    def append(
        self,
        data: Any,
        dataset_id: str,
        dataset_version: str,
        *,
        base_version: str,
        workers: int = 1,
        engine: "Executor | str | None" = None,
        part_bytes: int | None = None,
        allow_pickle: bool = False,
        progress: "bool | Progress | None" = None,
        check_space: bool = True,
    ) -> None:
        """Build a version from all records of another version, followed by new records.

        Only the new records are read and written: the parts of the other version become parts of this one,
        too. The result, even its fingerprint, is the same as if all records had been built at once. The
        other version stays as it is, and may be deleted later. If it is replaced or deleted during this
        call, its state at the beginning counts. An existing version is replaced atomically, so the call can
        be repeated. See docs/howto/growth.md.

        Args:
            data: As for `submit`: the new records alone.
            dataset_id: What the dataset is called.
            dataset_version: Which version is built.
            base_version: The version whose records come first; it must be another one.
            workers: As for `submit`, like all that follow; of the new records.
            engine: See there.
            part_bytes: See there.
            allow_pickle: See there.
            progress: See there.
            check_space: See there.

        Raises:
            DatasetNotFoundError: if there is no such version to begin with.
            UnsupportedDataError: if the new records have another structure or dtype (the error names the
                field); or if there are none.
            ConfigurationError: if the other version is this one, or contains all of it, as it does when the
                call is repeated.
        """
        from yogadl.storage._building import BuildOptions
        from yogadl.storage._growth import append

        key, base = DatasetKey(dataset_id, dataset_version), DatasetKey(dataset_id, base_version)
        options = BuildOptions(workers, part_bytes, allow_pickle, progress, check_space, engine)
        append(self._backend, key, lambda: data, base, options)

    @explains_names()
    def compact(
        self,
        dataset_id: str,
        dataset_version: str,
        *,
        base_version: str,
        workers: int = 1,
        engine: "Executor | str | None" = None,
        part_bytes: int | None = None,
        progress: "bool | Progress | None" = None,
        check_space: bool = True,
    ) -> None:
        """Build a version with the same records as another, in few large parts, as `submit` makes them.

        After many small appends such a version is faster to read, fetch and copy. The fingerprint is the
        same, so cursors stay valid. All records are read, compared with their checksums and written again;
        pickled values are not unpickled.

        Args:
            dataset_id: What the dataset is called.
            dataset_version: Which version is built; that of `base_version` is replaced atomically.
            base_version: Which version has the records.
            workers: As for `submit`, like all that follow. Several make more parts than one.
            engine: See there.
            part_bytes: See there.
            progress: See there.
            check_space: See there.

        Raises:
            DatasetNotFoundError: if there is no such version.
            CacheFormatError: if it is damaged; then nothing is published.
        """
        from yogadl.storage._building import BuildOptions
        from yogadl.storage._growth import compact

        key, base = DatasetKey(dataset_id, dataset_version), DatasetKey(dataset_id, base_version)
        options = BuildOptions(workers, part_bytes, False, progress, check_space, engine)
        compact(self._backend, key, base, options)

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
            partitions: How many partitions there are; their order is the order of the records. With a
                `source`, a good number is chosen if it is not given.
            run: A name that tells this build from other builds of the same key, such as the id of a job. If
                not given, it is made from the source: tasks with the same source work on the same build.
                Without a source, each call begins a new build; hand the object returned to all tasks.
            source: What `write` reads when it is given no records: a source with random access, or
                `yogadl.partitioned`.
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
        engine: "Executor | str | None" = None,
        part_bytes: int | None = None,
        allow_pickle: bool = False,
        progress: "bool | Progress | None" = None,
        check: bool = False,
        check_space: bool = True,
    ) -> Callable[[Callable[P, Any]], Callable[P, RecordsRef]]:
        """Decorate a function that returns a source, so that it returns a `DataRef`, built once.

        The function runs only if there is no such version; other callers, in threads or processes, wait for
        it and then read what it built. If a version exists that other code or other arguments built, a
        warning says so once, and that version is served. With the version ``"auto"``, code and arguments
        decide the version, so a change of them builds a new one; see docs/howto/versions.md.

        A function that asks for its own result gets an error. If it asks from a thread that it has started,
        and waits for that thread, it waits for ever: yogadl can't tell such a thread from one that may wait,
        unless threads inherit contexts (an option of Python 3.14). A warning says so after two seconds.

        Args:
            dataset_id: What the dataset is called.
            dataset_version: Which version this is; bump it when the function changes, or give ``"auto"``.
            workers: As for `submit`, like all that follow. None of them influences the version.
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


def _reopened(kind: type[CacheStorage], backend: Backend) -> CacheStorage:
    storage = kind.__new__(kind)  # of 0.1.4's, which warned where it was made
    CacheStorage.__init__(storage, backend)
    return storage
