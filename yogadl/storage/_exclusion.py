"""Declare the right to build that a builder holds: a lock in a folder, a lease in a bucket."""

import contextlib
from collections.abc import Iterator
from typing import Protocol

from yogadl._core.progress import Progress
from yogadl.errors import CacheFormatError, LeaseError, StorageError


class LeaseLostError(LeaseError):
    """Another builder has taken over, because the heartbeat of this process stopped for too long."""


class BuildExclusion(Protocol):
    """The exclusive right to build one version, from when it was granted to the end of the ``with`` block."""

    @property
    def term(self) -> int | None:
        """The lease's term, which counts the builds of this version, or ``None`` for a lock."""

    @property
    def report(self) -> Progress | None:
        """A cheap function that reports the progress to waiting processes, or ``None`` if there is no way."""

    def check(self) -> None:
        """Check that no other builder has taken over.

        Raises:
            LeaseLostError: if another builder has taken over.
        """


@contextlib.contextmanager
def reporting_loss(exclusion: BuildExclusion) -> Iterator[None]:
    """Raise `LeaseLostError` in place of a storage error that followed from the loss of the build.

    A builder that takes over removes the files of the builder before it, which then fails to find them.
    """
    try:
        yield
    except (StorageError, CacheFormatError):
        exclusion.check()
        raise
