"""Give the right to build, or to prune, in a bucket or in a folder that machines share, by lease."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from yogadl._key import DatasetKey
from yogadl.storage._buckets.conditions import check_conditions
from yogadl.storage._exclusion import BuildExclusion
from yogadl.storage._leases.lease import Leases
from yogadl.storage._mirror.mirror import Mirror
from yogadl.storage._root import Root


class LeaseCoordinator:
    """The right to build below a root that machines share. Implements `BuildCoordinator`.

    Args:
        root: The root.
        leases: Below the same root.
        probes: Whether to make sure first that the store can decide between builders.
        mirror: Where this machine keeps its copies, if it does; told that a version may have changed.
    """

    def __init__(
        self, root: Root, leases: Leases, probes: bool = False, mirror: Mirror | None = None
    ) -> None:
        self.leases = leases
        self._root = root
        self._probes = probes
        self._is_probed = False
        self._mirror = mirror

    def __reduce__(self) -> Any:
        return LeaseCoordinator, (self._root, self.leases, self._probes, self._mirror)

    @contextmanager
    def building(
        self, key: DatasetKey, unless: Callable[[], bool] | None = None
    ) -> Iterator[BuildExclusion | None]:
        """Hold the right to build this version, waiting for whoever holds it now.

        Raises:
            ConfigurationError: if the store can't decide between builders.
            LeaseError: if it takes longer than this storage waits.
        """
        self._probe()
        with self.leases.held(key, unless) as lease:
            try:
                yield lease
            finally:
                if self._mirror is not None:
                    self._mirror.renew(key, None)

    @contextmanager
    def pruning(self, dataset_id: str) -> Iterator[BuildExclusion | None]:
        """Hold the right to prune a dataset, or give ``None`` if somebody builds or prunes there.

        Raises:
            ConfigurationError: if the store can't decide between builders.
        """
        self._probe()
        with self.leases.pruning(dataset_id, self._root.now()) as lease:
            yield lease

    def _probe(self) -> None:
        if self._probes and not self._is_probed:
            check_conditions(self.leases.bucket)
            self._is_probed = True

    def has_builder(self, dataset_id: str) -> bool:
        """Return whether somebody is building a version of this dataset."""
        return self.leases.is_held(dataset_id, self._root.now())
