"""Keep selections, the indices that filters selected, beside the cache whose records were filtered.

The format of their files is in docs/explanation/format.md.

A selection can be computed again. Therefore one that can't be read counts as absent, and a failure to write
one is only logged for debugging.
"""

import logging
from collections.abc import Iterator
from typing import Protocol

from yogadl._format.joined import Selection, most_selection_bytes, read_selection
from yogadl._format.manifest import Manifest
from yogadl.errors import CacheFormatError, ConfigurationError, StorageError
from yogadl.storage import _names
from yogadl.storage._files.root import Root

_log = logging.getLogger("yogadl")


class Files(Protocol):
    """Read and write small files, which are the same in every copy of a cache."""

    def read(self, name: str, most_bytes: int) -> bytes | None:
        """Return the content of a file, or ``None`` if there is none."""

    def write(self, name: str, content: bytes) -> None:
        """Write a file; a file of that name is replaced."""


def find_selection(files: Files, manifest: Manifest, name: str, records: int) -> Selection | None:
    """Return the selection of that name, made from this many records; ``None`` if there is no sound one."""
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


def write_selection(files: Files, manifest: Manifest, selection: Selection) -> bool:
    """Write a selection, replacing any of its name; return whether that succeeded."""
    file = _names.selection(manifest.key.id, manifest.fingerprint, selection.name)
    try:
        files.write(file, selection.to_bytes())
    except (StorageError, CacheFormatError, ConfigurationError) as error:
        _log.debug("yogadl: a selection from %s is kept only in memory: %s", manifest.key, error)
        return False
    return True


def missing_selections(source: Root, target: Root, manifest: Manifest) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each selection's file that `source` has and `target` lacks, if sound."""
    below = _names.selections(manifest.key.id, manifest.fingerprint)
    there = set(target.names(below, _names.SELECTION_SUFFIX))
    for file in source.names(below, _names.SELECTION_SUFFIX):
        if file in there:
            continue
        try:
            content = source.read(file, most_selection_bytes(manifest.records))
            if content is None:
                continue
            found = read_selection(content, source.where(file))
        except CacheFormatError as error:
            _log.info("yogadl: a selection is not copied, since it can be computed again: %s", error)
            continue
        if file == _names.selection(manifest.key.id, manifest.fingerprint, found.name):
            yield file, content
