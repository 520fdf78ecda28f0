"""Exclude other builders of a version, and fail at once if a builder waits for itself."""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass

from yogadl._core.key import DatasetKey
from yogadl._workers.processes import refuse_starting_worker
from yogadl.errors import ConfigurationError
from yogadl.storage._catalogue.backend import Backend, BuildExclusion
from yogadl.storage._catalogue.tags import refuse_tag


@dataclass(eq=False)
class _Running:
    """A build in progress, recorded for the code that runs inside it."""

    location: str
    key: DatasetKey
    is_over: bool = False  # a copied context may outlive the build


# The builds of this context, so that a builder that requests its own result fails instead of waiting.
_building: ContextVar[tuple[_Running, ...]] = ContextVar("building", default=())


@contextlib.contextmanager
def exclusive_build_unless(
    backend: Backend, key: DatasetKey, unless: Callable[[], bool] | None = None
) -> Iterator[BuildExclusion | None]:
    """Exclude other builders of a version, waiting for the one that builds it now.

    Args:
        backend: The storage.
        key: The version.
        unless: Called while waiting; once it returns true, the context manager gives ``None`` and holds
            nothing.

    Raises:
        ConfigurationError: if this context builds the version already, the name is a tag, or a worker process
            is importing its script.
        LeaseError: if the wait takes longer than the storage allows.
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
    """Exclude other builders of a version, whether or not it exists; see `exclusive_build_unless`."""
    with exclusive_build_unless(backend, key) as exclusion:
        assert exclusion is not None  # it is None only if `unless` returned true
        yield exclusion
