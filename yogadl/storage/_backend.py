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
    """Decide who may build, and who may remove. Picklable."""

    def building(
        self, key: DatasetKey, unless: Callable[[], bool] | None = None
    ) -> AbstractContextManager["BuildExclusion | None"]:
        """Hold the right to build this version, waiting for whoever holds it now, or prunes the dataset.

        Args:
            key: The version.
            unless: Asked while waiting, and once more at the end of it. As soon as it says yes, ``None`` is
                given and nothing is held.

        Raises:
            LeaseError: if it takes longer than this storage waits.
        """

    def pruning(self, dataset_id: str) -> AbstractContextManager["BuildExclusion | None"]:
        """Hold the right to remove files of a dataset: as long as that is held, nobody builds there.

        Does not wait: gives ``None`` if somebody builds or prunes.
        """

    def has_builder(self, dataset_id: str) -> bool:
        """Return whether somebody is building a version of this dataset."""


@frozen
class Backend:
    """What a storage is made of. Picklable; safe to use from threads and after a fork.

    Args:
        catalogue: Where caches lie, and what opens them.
        coordinator: Decides who may build there.
        part_bytes: How large a part gets unless a build says otherwise; ``None`` lets it grow up to 1 GiB.
    """

    catalogue: Catalogue
    coordinator: BuildCoordinator
    part_bytes: int | None = None

    @property
    def root(self) -> Root:
        """Where its files lie."""
        return self.catalogue.root
