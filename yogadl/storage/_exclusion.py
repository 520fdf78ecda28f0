"""Declare what a builder holds while it excludes all others: a lock in a folder, a lease in a bucket."""

import contextlib
from collections.abc import Iterator
from typing import Protocol

from yogadl._progress import Progress
from yogadl.errors import CacheFormatError, LeaseError, StorageError


class LeaseLostError(LeaseError):
    """Another builder has taken over, because the heartbeat of this process stopped for too long."""


class BuildExclusion(Protocol):
    """The exclusive build of one version, from when it was granted to the end of the ``with`` block."""

    @property
    def term(self) -> int | None:
        """Which build of this version this is, where builds are counted: the lease's term."""

    @property
    def report(self) -> Progress | None:
        """What tells waiting processes how far the build is, cheaply; ``None`` if it can't."""

    def check(self) -> None:
        """Make sure that no other builder has taken over.

        Raises:
            LeaseLostError: if one has.
        """


@contextlib.contextmanager
def reporting_loss(exclusion: BuildExclusion) -> Iterator[None]:
    """Raise `LeaseLostError`, if the build was lost, in place of an error that this has caused.

    A builder that takes over removes the files of the one before.
    """
    try:
        yield
    except (StorageError, CacheFormatError):
        exclusion.check()
        raise
