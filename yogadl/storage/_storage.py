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

        Nothing is visible before everything is on the disk. Whoever reads the version that is replaced
        keeps reading it.

        Args:
            data: Arrays, an object with ``__len__`` and ``__getitem__``, an iterable or a generator function.
            dataset_id: What the dataset is called; slashes make folders.
            dataset_version: Which version this is.
            workers: How many processes read the source, if it has random access or partitions.
            engine: What runs tasks that read it instead: any `concurrent.futures.Executor`, or "ray".
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
        """Build a version of all records of another one, followed by those of a source.

        Only those of the source are read and written: the parts of the other version become parts of this
        one, too. It is as if all had been built at once, to the fingerprint. The other version stays as it
        is, and may be deleted; if it is replaced or deleted meanwhile, what it was at the beginning counts.
        An existing version is replaced atomically, so that a call can be repeated. See docs/howto/growth.md.

        Args:
            data: As for `submit`: the new records alone.
            dataset_id: What the dataset is called.
            dataset_version: Which version is built.
            base_version: Which version it begins with; another one.
            workers: As for `submit`, like all that follow; of the new records.
            engine: See there.
            part_bytes: See there.
            allow_pickle: See there.
            progress: See there.
            check_space: See there.

        Raises:
            DatasetNotFoundError: if there is no such version to begin with.
            UnsupportedDataError: if the new records have another structure or dtype, which names the field;
                or if there are none.
            ConfigurationError: if the other version is this one, or has all of it: the call is repeated.
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
        """Build a version of the same records as another, in as few and large parts as `submit` makes.

        After many small appends that is faster to read, fetch and copy. The fingerprint is the same, so
        cursors stay valid. All is read and compared with its checksums, and written anew; what is pickled is
        not unpickled.

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
        engine: "Executor | str | None" = None,
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
        they decide the version, so that a change builds anew; see docs/howto/versions.md.

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


def _reopened(kind: type[CacheStorage], backend: Backend) -> CacheStorage:
    storage = kind.__new__(kind)  # of 0.1.4's, which warned where it was made
    CacheStorage.__init__(storage, backend)
    return storage
