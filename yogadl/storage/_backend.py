"""Say what a storage is made of."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from yogadl._frozen import frozen
from yogadl._key import DatasetKey
from yogadl.storage._catalogue import Catalogue
from yogadl.storage._root import Root

if TYPE_CHECKING:
    from yogadl.storage._exclusion import BuildExclusion


class BuildCoordinator(Protocol):
    """Decide which process may build, and which may remove. Picklable."""

    def building(
        self, key: DatasetKey, unless: Callable[[], bool] | None = None
    ) -> AbstractContextManager["BuildExclusion | None"]:
        """Exclude other builders of this version, waiting for one that builds it or prunes the dataset.

        Args:
            key: The version.
            unless: Called while waiting, and once more at its end. Once it returns true, ``None`` is given
                and nothing is held.

        Raises:
            LeaseError: if it takes longer than this storage waits.
        """

    def pruning(self, dataset_id: str) -> AbstractContextManager["BuildExclusion | None"]:
        """Exclude builders of a dataset, to remove files of it.

        Does not wait: gives ``None`` if one builds or prunes now.
        """

    def wait_for_pruning(self, dataset_id: str) -> None:
        """Wait until nobody prunes a dataset who began before this call.

        Raises:
            LeaseError: if it takes longer than this storage waits.
        """

    def has_builder(self, dataset_id: str) -> bool:
        """Return whether a version of this dataset is being built."""


@frozen
class Backend:
    """What a storage is made of. Picklable; safe to use from threads and after a fork.

    Args:
        catalogue: Where caches lie, and what opens them.
        coordinator: Decides which process may build there.
        part_bytes: How large a part gets unless a build says otherwise; ``None`` lets it grow up to 1 GiB.
    """

    catalogue: Catalogue
    coordinator: BuildCoordinator
    part_bytes: int | None = None

    @property
    def root(self) -> Root:
        """Where its files lie."""
        return self.catalogue.root
