"""The two parts of a storage: a catalogue that finds caches, and a coordinator of builds and prunes.

The coordinator grants a builder the exclusive right to build a version: by a lock in a folder, or by a lease
in a bucket or a shared folder. Times after which a silent builder counts as dead are a `Lease`.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING, Final, Protocol

from yogadl._core.arguments import bool_argument
from yogadl._core.frozen import frozen
from yogadl._core.key import DatasetKey
from yogadl.errors import CacheFormatError, ConfigurationError, LeaseError, StorageError
from yogadl.storage._catalogue.catalogue import Catalogue
from yogadl.storage._files.root import Root

if TYPE_CHECKING:
    from yogadl._core.progress import Progress


class LeaseLostError(LeaseError):
    """Another builder has taken over, because the heartbeat of this process stopped for too long."""


class BuildExclusion(Protocol):
    """The exclusive right to build one version, from when it was granted to the end of the ``with`` block."""

    @property
    def term(self) -> int | None:
        """The lease's term, which counts the builds of this version, or ``None`` for a lock."""

    @property
    def report(self) -> "Progress | None":
        """Cheaply reports progress to waiting processes, or is ``None`` if they can't be reached."""

    def check(self) -> None:
        """Check that no other builder has taken over.

        Raises:
            LeaseLostError: if another builder has taken over.
        """


@contextlib.contextmanager
def reporting_loss(exclusion: BuildExclusion) -> Iterator[None]:
    """Raise `LeaseLostError` instead of a storage error, if another builder has taken over.

    The other builder removes the files of this one; code in the ``with`` block then fails because a file is
    missing, although the lost lease is the cause.
    """
    try:
        yield
    except (StorageError, CacheFormatError):
        with contextlib.suppress(StorageError):  # the store may not answer: then nobody knows
            exclusion.check()
        raise


class BuildCoordinator(Protocol):
    """Decides which process may build a version, and which may remove files. Picklable."""

    def building(
        self, key: DatasetKey, unless: Callable[[], bool] | None = None
    ) -> AbstractContextManager["BuildExclusion | None"]:
        """Exclude other builders of this version; wait for one that builds it or prunes the dataset.

        Args:
            key: The version.
            unless: Called while waiting, and once more when the wait ends. Once it returns true, the context
                manager gives ``None``, and the right to build is not taken.

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
        make_coordinator: Makes the coordinator when it is first needed: a process that only reads never loads
            its module.
        part_bytes: The largest size of a part unless a build gives one; parts grow up to 1 GiB if ``None``.
    """

    catalogue: Catalogue
    make_coordinator: Callable[[], BuildCoordinator]
    part_bytes: int | None = None

    @cached_property
    def coordinator(self) -> BuildCoordinator:
        """The object that decides which process may build, and which may remove files."""
        return self.make_coordinator()

    @property
    def root(self) -> Root:
        """The root below which the files lie."""
        return self.catalogue.root


DEFAULT_TTL_S: Final = 300.0
_MIN_TTL_S: Final = 1.0


@frozen
class Lease:
    """How builders on several machines exclude each other, in a bucket or a `shared` folder.

    Args:
        ttl_s: A builder without a heartbeat for this time is considered dead.
        wait_s: How long callers wait for a builder that is alive, before a `LeaseError`; ``None``: for ever.
        exclusive: Of a bucket: whether to refuse to build in a store that can't keep two builders apart. If
            ``False``, you must make sure that only one machine builds at a time.

    Raises:
        ConfigurationError: if a value is invalid.

    Example:
        >>> import yogadl
        >>> storage = yogadl.open_storage("caches", shared=True, lease=yogadl.Lease(wait_s=60))
    """

    ttl_s: float = DEFAULT_TTL_S
    wait_s: float | None = None
    exclusive: bool = True

    def __post_init__(self) -> None:
        ttl_s: object = self.ttl_s  # a value from the user may have any type
        wait_s: object = self.wait_s
        if not (isinstance(ttl_s, int | float) and _MIN_TTL_S <= ttl_s < float("inf")):
            raise ConfigurationError(
                f"Lease: ttl_s must be a finite number of seconds, at least {_MIN_TTL_S:.0f}, "
                f"not {ttl_s!r:.100}"
            )
        if wait_s is not None and not (isinstance(wait_s, int | float) and wait_s >= 0):
            raise ConfigurationError(
                "Lease: wait_s must be a number of seconds, at least 0, or None to wait without limit, "
                f"not {wait_s!r:.100}"
            )
        bool_argument("Lease: exclusive", self.exclusive)
