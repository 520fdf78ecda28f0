"""The catalogue and the build coordinator that a storage is made of."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from yogadl._core.frozen import frozen
from yogadl._core.key import DatasetKey
from yogadl.storage._catalogue import Catalogue
from yogadl.storage._root import Root

if TYPE_CHECKING:
    from yogadl.storage._exclusion import BuildExclusion


class BuildCoordinator(Protocol):
    """Decide which process may build and which may remove. Picklable."""

    def building(
        self, key: DatasetKey, unless: Callable[[], bool] | None = None
    ) -> AbstractContextManager["BuildExclusion | None"]:
        """Exclude other builders of this version; wait for one that builds it or prunes the dataset.

        Args:
            key: The version.
            unless: Called while waiting, and once more at its end. Once it returns true, the context manager
                gives ``None`` and holds nothing.

        Raises:
            LeaseError: if the wait takes longer than this storage allows.
        """

    def pruning(self, dataset_id: str) -> AbstractContextManager["BuildExclusion | None"]:
        """Exclude builders of a dataset while files of it are removed.

        Does not wait: gives ``None`` if another process builds or prunes the dataset now.
        """

    def wait_for_pruning(self, dataset_id: str) -> None:
        """Wait for the prunings of a dataset that began before this call.

        Raises:
            LeaseError: if the wait takes longer than this storage allows.
        """

    def has_builder(self, dataset_id: str) -> bool:
        """Return whether a version of this dataset is being built."""


@frozen
class Backend:
    """The parts of a storage. Picklable; safe to use from threads and after a fork.

    Args:
        catalogue: Finds and opens caches.
        coordinator: Decides which process may build.
        part_bytes: The largest size of a part unless a build gives one; ``None`` lets parts grow up to 1 GiB.
    """

    catalogue: Catalogue
    coordinator: BuildCoordinator
    part_bytes: int | None = None

    @property
    def root(self) -> Root:
        """The root below which the files lie."""
        return self.catalogue.root
