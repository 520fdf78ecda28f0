"""Find and remove what no manifest names any more."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from yogadl._format.manifest import read_manifest
from yogadl._key import RESERVED_NAMES, DatasetKey
from yogadl.storage import _names
from yogadl.storage._cached import open_table
from yogadl.storage._root import Entry, Root
from yogadl.storage._verify import part_files

GRACE_S: Final = 30 * 86_400.0


@dataclass(frozen=True)
class Pruned:
    """What `prune` removed, or would."""

    files: tuple[str, ...]
    size_bytes: int


class Pruning:
    """One round of pruning.

    Args:
        root: The storage's root.
        grace_s: How long what nobody names is kept.
    """

    def __init__(self, root: Root, grace_s: float) -> None:
        self._root = root
        self._now = root.now()
        self._grace_s = grace_s

    def doomed(
        self, dataset_id: str, versions: Callable[[], list[str]], has_builder: Callable[[], bool]
    ) -> list[Entry]:
        """Return the files of a dataset that can go.

        What a builder that begins after `has_builder` was asked goes on with is not among them, as long as
        the grace is a day or more: it uses nothing that is older than that.

        Raises:
            CacheFormatError: if a manifest can't be read; then nothing may be removed.
        """
        # In this order: what is listed here and was built by somebody who is done by now is named below.
        found = [
            entry for below in sorted(RESERVED_NAMES) for entry in self._root.entries(f"{dataset_id}/{below}")
        ]
        is_built = has_builder()
        doomed, kept = [], set()
        for name in self._root.names(f"{dataset_id}/trash", _names.MANIFEST_SUFFIX):
            try:
                version, stamp = _names.split_trashed(name[len(dataset_id) + len("/trash/") :])
                key = DatasetKey(dataset_id, version)
            except ValueError:
                continue  # not ours
            if self._now - stamp / 1e9 > self._grace_s:
                doomed.append(Entry(name, self._root.size(name) or 0, stamp / 1e9))
            else:
                kept |= self._named_files(key, name)
        for version in versions():
            key = DatasetKey(dataset_id, version)
            kept |= self._named_files(key, _names.manifest(key))
        if is_built:
            return doomed  # its parts are named by no manifest yet
        return doomed + [entry for entry in found if self._can_go(dataset_id, entry, kept)]

    def _can_go(self, dataset_id: str, entry: Entry, kept: set[str]) -> bool:
        is_old = self._now - entry.modified >= self._grace_s
        return is_old and entry.name not in kept and _names.is_ours(dataset_id, entry.name)

    def _named_files(self, key: DatasetKey, name: str) -> set[str]:
        content = self._root.read(name)
        if content is None:
            return set()
        manifest = read_manifest(content, key, self._root.where(name))
        named = {_names.table(key.id, manifest.table_sha256)}
        return named | part_files(key.id, open_table(self._root, manifest))

    def remove(self, doomed: Iterable[Entry]) -> Pruned:
        """Remove these, but for what a builder has taken up meanwhile."""
        removed = []
        for entry in doomed:
            is_trash = "/trash/" in entry.name and not _names.is_unfinished(entry.name)
            if is_trash or self._root.age_s(entry.name, self._now) >= self._grace_s:
                self._root.remove(entry.name)
                removed.append(entry)
        return count(removed)


def count(doomed: Iterable[Entry]) -> Pruned:
    """Say what removing these would free."""
    found = list(doomed)
    return Pruned(tuple(entry.name for entry in found), sum(entry.size_bytes for entry in found))
