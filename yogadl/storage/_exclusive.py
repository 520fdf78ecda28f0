"""Exclude other builders of a version, and make a builder that asks for its own result fail at once."""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass

from yogadl._key import DatasetKey
from yogadl._processes import refuse_starting_worker
from yogadl.errors import ConfigurationError
from yogadl.storage._backend import Backend
from yogadl.storage._exclusion import BuildExclusion
from yogadl.storage._tags import refuse_tag


@dataclass(eq=False)
class _Running:
    """A build in progress, as the code that runs inside it sees it."""

    location: str
    key: DatasetKey
    is_over: bool = False  # a context may outlive the build that it was copied in


# What this context is building, so that a builder that asks for itself fails instead of waiting.
_building: ContextVar[tuple[_Running, ...]] = ContextVar("building", default=())


@contextlib.contextmanager
def exclusive_build_unless(
    backend: Backend, key: DatasetKey, unless: Callable[[], bool] | None = None
) -> Iterator[BuildExclusion | None]:
    """Exclude other builders of a version, waiting for the one that builds it now.

    Args:
        backend: Where.
        key: The version.
        unless: Called while waiting; once it returns true, ``None`` is given and nothing is held.

    Raises:
        ConfigurationError: if this very context builds it, or it is a tag, or a worker imports its script.
        LeaseError: if it takes longer than the storage waits.
    """
    refuse_starting_worker()
    outer, location = _building.get(), backend.root.location
    if any((r.location, r.key, r.is_over) == (location, key, False) for r in outer):
        raise ConfigurationError(
            f"{key} is being built by this very call: a builder can't ask for its own result, or replace it"
        )
    refuse_tag(backend.root, key)
    with backend.coordinator.building(key, unless) as exclusion:
        running = _Running(location, key)
        reset = _building.set((*outer, running))
        try:
            yield exclusion
        finally:
            running.is_over = True
            _building.reset(reset)


@contextlib.contextmanager
def exclusive_build(backend: Backend, key: DatasetKey) -> Iterator[BuildExclusion]:
    """Exclude other builders of a version, even if it is there by then; see `exclusive_build_unless`."""
    with exclusive_build_unless(backend, key) as exclusion:
        assert exclusion is not None  # which only `unless` makes it
        yield exclusion
