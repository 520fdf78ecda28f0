"""Keep selections, the indices that filters selected, and plans of packs and batches, beside their cache.

The format of their files is in docs/explanation/format.md.

A selection can be computed again, as can a plan. Therefore one that can't be read counts as absent, and a
failure to write one is only logged for debugging.
"""

import logging
from collections.abc import Iterator
from typing import Any, Final, Protocol

from xxhash import xxh3_128_digest

from yogadl._format.joined import Selection, most_selection_bytes, read_selection
from yogadl._format.manifest import Manifest
from yogadl.errors import CacheFormatError, ConfigurationError, StorageError
from yogadl.storage import _names
from yogadl.storage._files.root import Root

_log = logging.getLogger("yogadl")

_NAME_BYTES: Final = 64
_HEADER_BYTES: Final = 80  # the name, and the checksum of what follows


class SmallFiles(Protocol):
    """Read and write small files, which are the same in every copy of a cache."""

    def read(self, name: str, most_bytes: int) -> bytes | None:
        """Return the content of a file, or ``None`` if there is none."""

    def write(self, name: str, content: bytes) -> None:
        """Write a file; a file of that name is replaced."""

    def map(self, name: str) -> Any:
        """Return the content of a file, mapped if possible, or ``None`` if there is none; it may be large."""


def find_selection(files: SmallFiles, manifest: Manifest, name: str, records: int) -> Selection | None:
    """Return the selection of that name from this many records, or ``None`` if there is no sound one."""
    file = _names.selection(manifest.key.id, manifest.fingerprint, name)
    try:
        content = files.read(file, most_selection_bytes(records))
        if content is None:
            return None
        found = read_selection(content, file)
    except (StorageError, CacheFormatError, ConfigurationError) as error:
        _log.info("yogadl: a selection from %s is computed again: %s", manifest.key, error)
        return None
    return found if (found.name, found.records) == (name, records) else None


def write_selection(files: SmallFiles, manifest: Manifest, selection: Selection) -> bool:
    """Write a selection, replacing any of its name; return whether that succeeded."""
    file = _names.selection(manifest.key.id, manifest.fingerprint, selection.name)
    try:
        files.write(file, selection.to_bytes())
    except (StorageError, CacheFormatError, ConfigurationError) as error:
        _log.debug("yogadl: a selection from %s is kept only in memory: %s", manifest.key, error)
        return False
    return True


def find_plan(files: SmallFiles, manifest: Manifest, name: str) -> memoryview | None:
    """Return the plan of that name, or ``None`` if there is no sound one."""
    file = _names.plan(manifest.key.id, manifest.fingerprint, name)
    try:
        content = files.map(file)
    except (StorageError, CacheFormatError, ConfigurationError) as error:
        _log.info("yogadl: a plan of %s is made again: %s", manifest.key, error)
        return None
    if content is None:
        return None
    if _plan_name(content) != name:
        _log.info("yogadl: a plan of %s is made again: %s is damaged", manifest.key, file)
        return None
    return memoryview(content)[_HEADER_BYTES:]


def write_plan(files: SmallFiles, manifest: Manifest, name: str, content: bytes) -> bool:
    """Write a plan, replacing any of its name; return whether that succeeded."""
    file = _names.plan(manifest.key.id, manifest.fingerprint, name)
    try:
        files.write(file, b"".join([name.encode(), xxh3_128_digest(content), content]))
    except (StorageError, CacheFormatError, ConfigurationError) as error:
        _log.debug("yogadl: a plan of %s is kept only in memory: %s", manifest.key, error)
        return False
    return True


def _plan_name(content: Any) -> str | None:
    """Return the name in a plan's file, or ``None`` if the file is damaged."""
    view = memoryview(content)
    if len(view) < _HEADER_BYTES or xxh3_128_digest(view[_HEADER_BYTES:]) != view[_NAME_BYTES:_HEADER_BYTES]:
        return None
    return bytes(view[:_NAME_BYTES]).decode("ascii", "replace")


def missing_selections(source: Root, target: Root, manifest: Manifest) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each file of a selection or plan that only `source` has, if sound."""
    below, key = _names.selections(manifest.key.id, manifest.fingerprint), manifest.key
    there = set(target.names(below))
    for file in source.names(below):
        if file in there or not file.endswith((_names.SELECTION_SUFFIX, _names.PLAN_SUFFIX)):
            continue
        try:
            if file.endswith(_names.PLAN_SUFFIX):
                content, name_of = source.view(file), _names.plan
                name = None if content is None else _plan_name(content)
            else:
                content = source.read(file, most_selection_bytes(manifest.records))
                name_of = _names.selection
                name = None if content is None else read_selection(content, source.where(file)).name
        except CacheFormatError as error:
            _log.info("yogadl: a selection is not copied, since it can be computed again: %s", error)
            continue
        if content is not None and name and file == name_of(key.id, manifest.fingerprint, name):
            yield file, content
