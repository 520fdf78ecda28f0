"""Find and remove what no manifest names any more."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from yogadl._format.manifest import read_manifest
from yogadl._key import RESERVED_NAMES, DatasetKey
from yogadl.storage import _names
from yogadl.storage._cached import open_table
from yogadl.storage._folder import Folder
from yogadl.storage._verify import part_files

GRACE_S: Final = 30 * 86_400.0


@dataclass(frozen=True)
class Pruned:
    """What `prune` removed, or would."""

    files: tuple[str, ...]
    size_bytes: int


@dataclass(frozen=True)
class Pruning:
    """One round of pruning.

    Args:
        folder: The storage's root.
        now: The time, in seconds since 1970.
        grace_s: How long what nobody names is kept.
    """

    folder: Folder
    now: float
    grace_s: float

    def doomed(
        self, dataset_id: str, versions: Iterable[str], has_builder: Callable[[str], bool]
    ) -> list[str]:
        """Return the names of the files of a dataset that can go.

        Raises:
            CacheFormatError: if a manifest can't be read; then nothing may be removed.
        """
        doomed, kept = [], set()
        for name in self.folder.names(f"{dataset_id}/trash", _names.MANIFEST_SUFFIX):
            try:
                version, stamp = _names.split_trashed(name[len(dataset_id) + len("/trash/") :])
                key = DatasetKey(dataset_id, version)
            except ValueError:
                continue  # not ours
            if self.now - stamp / 1e9 > self.grace_s:
                doomed.append(name)
            else:
                kept |= self._named_files(key, name)
        for version in versions:
            key = DatasetKey(dataset_id, version)
            kept |= self._named_files(key, _names.manifest(key))
        if has_builder(dataset_id):
            return doomed  # its parts are named by no manifest yet
        for below in ("parts", "tables", "builds"):
            names = self.folder.names(f"{dataset_id}/{below}")
            doomed += [name for name in names if name not in kept and _names.is_ours(dataset_id, name)]
        # What a killed process was writing just then.
        for below in sorted(RESERVED_NAMES):
            doomed += self.folder.unfinished(f"{dataset_id}/{below}")
        return [name for name in doomed if self._is_old(dataset_id, name)]

    def _is_old(self, dataset_id: str, name: str) -> bool:
        # What was thrown away has its time in its name.
        is_trash = name.startswith(f"{dataset_id}/trash/") and not name.endswith(".tmp")
        return is_trash or self.folder.age_s(name, self.now) >= self.grace_s

    def _named_files(self, key: DatasetKey, name: str) -> set[str]:
        content = self.folder.read(name)
        if content is None:
            return set()
        manifest = read_manifest(content, key, name)
        named = {_names.table(key.id, manifest.table_sha256)}
        return named | part_files(key.id, open_table(self.folder, manifest))

    def count(self, doomed: Iterable[str]) -> Pruned:
        """Say what removing these would free."""
        names = tuple(doomed)
        return Pruned(names, sum(self.folder.size(name) or 0 for name in names))

    def remove(self, doomed: Iterable[str]) -> Pruned:
        """Remove these, but for what a builder has taken up meanwhile."""
        removed, size = [], 0
        for name in doomed:
            if "/trash/" in name or self.folder.age_s(name, self.now) >= self.grace_s:
                size += self.folder.remove(name)
                removed.append(name)
        return Pruned(tuple(removed), size)
