"""The class that users call: building versions here, reading and keeping in the two modules it inherits from.

The modules that build and remove are imported at the first call that needs them: a process that only reads
does not load them.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec

from yogadl._core.arguments import explains_names
from yogadl._core.key import DatasetKey, new_key
from yogadl._core.protocols import Storage
from yogadl._dataref import RecordsRef
from yogadl.storage._backend import Backend
from yogadl.storage._storage_keeping import KeepingStorage
from yogadl.storage._storage_reading import ReadingStorage

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from yogadl._core.progress import Progress
    from yogadl.storage._begin import PartitionedBuild

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
        workers: int = 1,
        engine: "Executor | str | None" = None,
        part_bytes: int | None = None,
        allow_pickle: bool = False,
        progress: "bool | Progress | None" = None,
        check_space: bool = True,
    ) -> None:
        """Build a cache from any source and publish it; an existing version is replaced atomically.

        The version becomes visible only after all its files are on the disk. Readers of a version that is
        replaced keep reading it.

        Args:
            data: Arrays, an object with ``__len__`` and ``__getitem__``, an iterable or a generator function.
            dataset_id: The dataset's id; slashes make folders.
            dataset_version: The version's name.
            workers: How many processes read the source, if it has random access or partitions.
            engine: Any `concurrent.futures.Executor`, or "ray", whose tasks read the source instead.
            part_bytes: The largest size of a part; ``None`` lets parts grow up to 1 GiB, in a bucket 256 MiB.
            allow_pickle: Whether objects without a stored form may be pickled.
            progress: Whether to show a progress bar; ``None``: only on a terminal; or a function to call.
            check_space: Whether to refuse, before anything is read, a build that certainly needs more space
                than the disk has: of arrays, tables and other sources with known length and shapes.

        Raises:
            UnsupportedDataError: if a record can't be stored; the error names field and record.
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
            engine: As for `submit`.
            part_bytes: As for `submit`.
            allow_pickle: As for `submit`.
            progress: As for `submit`.
            check_space: As for `submit`.

        Raises:
            DatasetNotFoundError: if the base version does not exist.
            UnsupportedDataError: if the new records have another structure or dtype (the error names the
                field); or if there are no new records.
            ConfigurationError: if the base version is this one, or contains all of it, as it does when the
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

        A version that grew by many small appends is faster to read, fetch and copy once it is compacted. The
        fingerprint is the same, so cursors stay valid. All records are read, compared with their checksums
        and written again; pickled values are not unpickled.

        Args:
            dataset_id: The dataset's id.
            dataset_version: The version to build; if it is `base_version`, that version is replaced
                atomically.
            base_version: The version that has the records.
            workers: As for `submit`. Several workers make more parts than one.
            engine: As for `submit`.
            part_bytes: As for `submit`.
            progress: As for `submit`.
            check_space: As for `submit`.

        Raises:
            DatasetNotFoundError: if the base version does not exist.
            CacheFormatError: if the base version is damaged; nothing is published.
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
            dataset_id: The dataset's id.
            dataset_version: The version to build.
            partitions: The number of partitions; their order is the order of the records. If it is not given,
                a number is chosen for the `source`.
            run: A name that distinguishes this build from other builds of the same key, such as the id of a
                job. If not given, it is made from the source: tasks with the same source work on the same
                build. Without a source, each call begins a new build; hand the object returned to all tasks.
            source: The source that `write` reads if its call has no records: one with random access, or
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
            workers: As for `submit`. The version does not depend on it, nor on the arguments that follow.
            engine: As for `submit`.
            part_bytes: As for `submit`.
            allow_pickle: As for `submit`; also allows reading pickled fields.
            progress: As for `submit`.
            check: As for `fetch`.
            check_space: As for `submit`.

        Raises:
            ConfigurationError: if the arguments make no sense; from the function returned, if the version is
                ``"auto"`` and a value that the function uses can't be described.
        """
        from yogadl.storage._building import BuildOptions, cached

        DatasetKey(dataset_id, dataset_version)
        options = BuildOptions(workers, part_bytes, allow_pickle, progress, check_space, engine)
        return lambda function: cached(self._backend, dataset_id, dataset_version, options, check, function)


def _reopened(kind: type[CacheStorage], backend: Backend) -> CacheStorage:
    storage = kind.__new__(kind)  # the classes of 0.1.4 warn in their __init__
    CacheStorage.__init__(storage, backend)
    return storage
