"""Exclude other builders of a version; raise an error at once if a builder would wait for itself."""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass

from yogadl._core.key import DatasetKey
from yogadl.errors import ConfigurationError
from yogadl.storage._catalogue.backend import Backend, BuildExclusion
from yogadl.storage._catalogue.tags import refuse_tag


@dataclass(eq=False)
class _RunningBuild:
    """A build in progress, by which code that runs inside it can be recognised."""

    location: str
    key: DatasetKey
    is_over: bool = False  # needed because a copied context may outlive the build


# The builds of this context, so that a builder that requests its own result fails instead of waiting.
_building: ContextVar[tuple[_RunningBuild, ...]] = ContextVar("building", default=())


@contextlib.contextmanager
def exclusive_build_unless(
    backend: Backend, key: DatasetKey, unless: Callable[[], bool] | None = None
) -> Iterator[BuildExclusion | None]:
    """Exclude other builders of a version, waiting for the one that builds it now.

    Args:
        backend: The storage.
        key: The version.
        unless: Called while waiting; once it returns true, the context manager gives ``None``, and the right
            to build is not taken.

    Raises:
        ConfigurationError: if this context builds the version already, or the name is a tag.
        LeaseError: if the wait takes longer than the storage allows.
    """
    outer, location = _building.get(), backend.root.location
    if any((build.location, build.key, build.is_over) == (location, key, False) for build in outer):
        raise ConfigurationError(
            f"{key} is being built by this very call: a function that builds a version can't read or replace "
            "that version; read the data there without the cache"
        )
    refuse_tag(backend.root, key)
    with backend.coordinator.building(key, unless) as exclusion:
        running = _RunningBuild(location, key)
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
