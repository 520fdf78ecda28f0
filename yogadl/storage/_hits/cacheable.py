"""Build the result of a function once, and read it at later calls; warn if the function has changed since."""

import contextlib
import functools
import logging
import warnings
from collections.abc import Callable
from typing import Any, Final, ParamSpec

from yogadl._core.arguments import users_level
from yogadl._core.key import AUTO, DatasetKey
from yogadl._dataref import RecordsRef
from yogadl._format.manifest import Manifest
from yogadl._provenance.builder import Builder, Describer
from yogadl._provenance.values import HOOK
from yogadl.errors import CacheFormatError, DatasetNotFoundError, StorageError
from yogadl.storage._builds.options import BuildTerms
from yogadl.storage._catalogue.backend import Backend

_log = logging.getLogger("yogadl")

P = ParamSpec("P")
_PLAIN: Final = (str, int, float, bool, bytes, type(None))


def cached(
    backend: Backend,
    dataset_id: str,
    dataset_version: str,
    options: BuildTerms,
    check: bool,
    function: Callable[P, Any],
) -> Callable[P, RecordsRef]:
    """Return a function that builds the result of `function` once, and returns a reference to it."""
    is_auto = dataset_version == AUTO
    describer = Describer(function, thorough=is_auto)
    catalogue = backend.catalogue
    warned: set[str] = set()
    compared: set[Any] = set()  # pairs of digest and call that `warn_if_stale` has compared already

    @functools.wraps(function)
    def reference(*args: P.args, **kwargs: P.kwargs) -> RecordsRef:
        call = describer.call(args, kwargs) if is_auto else None
        key = DatasetKey(dataset_id, call.builder.version if call else dataset_version)
        published = catalogue.find(key)
        plain_key = None if is_auto else _plain_call(args, kwargs)
        if published is None or plain_key is None or (published.digest, plain_key) not in compared:
            call = call or describer.call(args, kwargs)  # as it is before the function runs

            def data() -> Any:
                if is_auto:
                    _log_why(backend, key, call.builder)
                return function(*args, **kwargs)

            if published is None:
                from yogadl.storage._builds.building import build_if_absent  # a hit needs nothing of builds

                published = build_if_absent(backend, key, data, options, call)
            if not is_auto:
                warn_if_stale(published.manifest, call.builder.to_json(), warned)
                if plain_key is not None:
                    compared.add((published.digest, plain_key))
        return catalogue.ref(key, published, allow_pickle=options.records.allow_pickle, check=check)

    # The identity under which another builder that calls this function hashes it.
    setattr(reference, HOOK, function if is_auto else (dataset_id, dataset_version))
    return reference


def _plain_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return a key for a call, or ``None`` if not all arguments are plain values."""
    values = (*args, *kwargs.values())
    if not all(type(value) in _PLAIN for value in values):
        return None
    return len(args), tuple(kwargs), tuple((type(value), value) for value in values)


def warn_if_stale(manifest: Manifest, builder: dict[str, Any], warned: set[str]) -> None:
    """Warn that the version returned was built by other code or arguments, once for each difference.

    Args:
        manifest: The manifest of the version.
        builder: The description of the code and arguments that would build it now.
        warned: The differences that warnings were given for.
    """
    if builder.items() <= manifest.builder.items():
        return
    from yogadl._provenance.difference import difference  # a hit by the same code does not need it

    text = difference(manifest.builder, builder)
    if text and text not in warned:
        warned.add(text)
        warnings.warn(
            f"{manifest.key} was built by other code or arguments than this call has ({text}). It is "
            f"returned as it is; to build it again, use the version {_next_version(manifest.key.version)!r}.",
            UserWarning,
            stacklevel=users_level(),
        )


def _log_why(backend: Backend, key: DatasetKey, builder: Builder) -> None:
    """Log the differences between this build and the newest version that was named automatically."""
    newest: Manifest | None = None
    with contextlib.suppress(StorageError):  # a build must not fail because versions can't be listed
        for version in backend.catalogue.versions(key.id):
            if version.startswith(f"{AUTO}-"):
                with contextlib.suppress(CacheFormatError, DatasetNotFoundError):
                    found = backend.catalogue.published(DatasetKey(key.id, version)).manifest
                    newest = found if newest is None or found.created > newest.created else newest
    if newest is not None:
        from yogadl._provenance.difference import difference

        text = difference(newest.builder, builder.to_json())
        _log.info("yogadl: building %s; it differs from %s in: %s", key, newest.key.version, text)


def _next_version(version: str) -> str:
    head = version.rstrip("0123456789")
    digits = version[len(head) :]
    return f"{head}{int(digits) + 1}" if digits else f"{version}-2"
