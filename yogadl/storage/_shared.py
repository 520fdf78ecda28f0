"""Keep caches in a folder that several machines share, one builder at a time by lease."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from yogadl._format.checks import CheckedReader
from yogadl._format.reader import Reader
from yogadl._key import DatasetKey
from yogadl.storage._base import CacheStorage
from yogadl.storage._bucket_root import SharedRoot
from yogadl.storage._buckets.local import LocalBucket
from yogadl.storage._cached import Published, open_reader
from yogadl.storage._leases.lease import Leases
from yogadl.storage._leases.right import Right
from yogadl.storage._leases.waiting import Terms
from yogadl.storage._local import made_folder
from yogadl.storage._reserve import given_up_if_full


class SharedStorage(CacheStorage):
    """Keep caches in a folder on a network file system, whose file locks may not hold between machines.

    Safe to use from any number of threads, processes and machines; picklable. Caches lie as in a local
    storage, and each can be opened as the other, as long as nobody builds.

    Args:
        path: The folder; made if missing, and may be read-only for reading.
        terms: How long builders wait for each other.
        mapped: Whether files may be mapped to be read.
    """

    def __init__(self, path: Path, terms: Terms, mapped: bool = True) -> None:
        self.folder = made_folder(path)
        self._is_mapped = mapped
        super().__init__(SharedRoot(self.folder))
        self._leases = Leases(LocalBucket(self.folder.root), terms)

    def __reduce__(self) -> Any:
        return SharedStorage, (self.folder.root, self._leases.terms, self._is_mapped)

    def building(
        self, key: DatasetKey, unless: Callable[[], bool] | None = None
    ) -> AbstractContextManager[Right | None]:
        """Hold the right to build this version, waiting for whoever holds it now."""
        return self._leases.held(key, unless)

    def pruning(self, dataset_id: str) -> AbstractContextManager[Right | None]:
        """Hold the right to prune a dataset, or give ``None`` if somebody builds or prunes there."""
        return self._leases.pruning(dataset_id, self.root.now())

    def has_builder(self, dataset_id: str) -> bool:
        """Return whether somebody is building a version of this dataset."""
        return self._leases.is_held(dataset_id, self.root.now())

    def with_room(self, dry_run: bool) -> AbstractContextManager[None]:
        """Give up some of the reserve where the disk is full, to free which takes room, too."""
        return given_up_if_full(self.folder, dry_run=dry_run)

    def reader(self, published: Published, *, check: bool = False) -> Reader | CheckedReader:
        """Return a reader of a cache, whose parts are all there and of their size."""
        return open_reader(self.folder, published.manifest, check=check, mapped=self._is_mapped)
