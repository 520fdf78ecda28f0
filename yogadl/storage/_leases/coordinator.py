"""Decide by leases which process builds or prunes in a bucket, or in a folder that machines share."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from yogadl._core.key import DatasetKey
from yogadl.storage._buckets.conditions import check_conditions
from yogadl.storage._exclusion import BuildExclusion
from yogadl.storage._leases.lease import Leases
from yogadl.storage._root import Root


class LeaseCoordinator:
    """Exclude other builders below a root that machines share. Implements `BuildCoordinator`.

    Args:
        root: The root.
        leases: The leases below the same root.
        probes: Whether to test first that the store honours conditional writes.
        changed: Called with a version that was built, or may have been. Picklable.
    """

    def __init__(
        self,
        root: Root,
        leases: Leases,
        *,
        probes: bool = False,
        changed: Callable[[DatasetKey], object] | None = None,
    ) -> None:
        self.leases = leases
        self._root = root
        self._probes = probes
        self._is_probed = False
        self._changed = changed

    def __reduce__(self) -> Any:
        return partial(LeaseCoordinator, probes=self._probes, changed=self._changed), (
            self._root,
            self.leases,
        )

    @contextmanager
    def building(
        self, key: DatasetKey, unless: Callable[[], bool] | None = None
    ) -> Iterator[BuildExclusion | None]:
        self._probe()
        with self.leases.held(key, unless) as lease:
            try:
                yield lease
            finally:
                if self._changed is not None:
                    self._changed(key)

    @contextmanager
    def pruning(self, dataset_id: str) -> Iterator[BuildExclusion | None]:
        self._probe()
        with self.leases.pruning(dataset_id, self._root.now()) as lease:
            yield lease

    def wait_for_pruning(self, dataset_id: str) -> None:
        self._probe()
        self.leases.wait_for_pruning(dataset_id)

    def _probe(self) -> None:
        if self._probes and not self._is_probed:
            check_conditions(self.leases.bucket)
            self._is_probed = True

    def has_builder(self, dataset_id: str) -> bool:
        return self.leases.is_held(dataset_id, self._root.now())
