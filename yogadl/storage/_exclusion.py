"""Say what it means to hold the right to build a version."""

import contextlib
from collections.abc import Iterator
from typing import Protocol

from yogadl.errors import CacheFormatError, LeaseError, StorageError
from yogadl.storage._progress import Progress


class LeaseLostError(LeaseError):
    """Say that somebody else has taken over a build, since this process gave no sign of life for too long."""


class BuildExclusion(Protocol):
    """The right to build one version, from when it was given until the block that asked for it ends."""

    @property
    def term(self) -> int | None:
        """Which build of this version this is, if builds are counted."""

    @property
    def report(self) -> Progress | None:
        """Tells those who wait how far the build is, at next to no cost; None if nobody can be told."""

    def is_lost(self) -> bool:
        """Return whether somebody else has the right by now."""

    def check(self) -> None:
        """Make sure that the right is still held.

        Raises:
            LeaseLostError: if somebody else has it.
        """


@contextlib.contextmanager
def reporting_loss(exclusion: BuildExclusion) -> Iterator[None]:
    """Raise that the right was lost, if so, instead of what came of it.

    Who takes over a build clears away what it finds of it.
    """
    try:
        yield
    except (StorageError, CacheFormatError):
        exclusion.check()
        raise
