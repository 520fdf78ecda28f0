"""Find the files of unfinished builds: their notes name parts that no manifest names yet.

Each attempt to build a version has a folder of its own below `builds/`, whose name tells the kind of attempt:
see `yogadl.storage._names`.
"""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from yogadl._core.frozen import MANY_DIGITS, parse_json
from yogadl._core.key import DatasetKey
from yogadl.errors import CacheFormatError
from yogadl.storage import _names
from yogadl.storage._root import Entry, Root

_MOST_VERSION_BYTES: Final = 2**12


@dataclass(frozen=True)
class Unfinished:
    """The files of unfinished builds of a version: killed, failed, or running.

    Attributes:
        id: The dataset's id.
        version: The version that they build, or ``None`` if unknown.
        size_bytes: The size of their files.
        written: The time of the last write.
    """

    id: str
    version: str | None
    size_bytes: int
    written: float


@dataclass
class Attempt:
    """One attempt to build a version.

    Args:
        builds: The folder of all attempts to build that version.
        name: The name of this attempt's folder there; empty for files of no attempt.
        entries: Its files.
        named: The parts that its notes name, and their indexes.
    """

    builds: str
    name: str
    entries: list[Entry] = field(default_factory=list)
    named: set[str] = field(default_factory=set)

    @property
    def written(self) -> float:
        """The time of the last write."""
        return max(entry.modified for entry in self.entries)


def attempts(root: Root, dataset_id: str) -> list[Attempt]:
    """Return all attempts to build a version of a dataset."""
    found: dict[tuple[str, str], Attempt] = {}
    for entry in root.entries(f"{dataset_id}/builds"):
        if _names.is_ours(dataset_id, entry.name):
            builds, name = _names.split_attempt(dataset_id, entry.name)
            attempt = found.setdefault((builds, name), Attempt(builds, name))
            attempt.entries.append(entry)
            if name and entry.name.endswith(".json"):
                attempt.named |= _named(root, dataset_id, entry.name)
    return list(found.values())


def has_spent(root: Root, dataset_id: str, published: DatasetKey | None) -> bool:
    """Return whether there may be attempts that no build can continue, or files left of one."""
    names: dict[str, set[str]] = {}
    for file in root.names(f"{dataset_id}/builds"):
        builds, name = _names.split_attempt(dataset_id, file)
        names.setdefault(builds, set()).add(name)
    mine = published and _names.builds(published)
    return any(
        builds == mine or those == {""} or any(map(_names.is_spent, those)) for builds, those in names.items()
    )


def _named(root: Root, dataset_id: str, name: str) -> set[str]:
    """Return the files that a note names: the files of a part, or of all parts of a partition."""
    found: set[str] = set()
    # A truncated or foreign note names no files that a build could use.
    with contextlib.suppress(ValueError, KeyError, TypeError, CacheFormatError):
        document: Any = parse_json(root.read(name) or b"[]", most_digits=MANY_DIGITS)
        if isinstance(document, dict):
            document = document.get("parts", [[document.get("sha256"), document.get("index_sha256")]])
        for sha256, index_sha256, *_ in document:
            found |= {_names.part(dataset_id, sha256), *_names.indexes(dataset_id, sha256, index_sha256)}
    return found


def held(root: Root, dataset_id: str, found: Iterable[Attempt], kept: set[str]) -> list[Unfinished]:
    """Return the files of attempts by version; files in `kept` are not counted, since manifests name them."""
    by_version: dict[str, list[Attempt]] = {}
    for attempt in found:
        by_version.setdefault(attempt.builds, []).append(attempt)
    sizes = {entry.name: entry.size_bytes for entry in root.entries(f"{dataset_id}/parts")}
    result = []
    for builds, those in sorted(by_version.items()):
        if not any(attempt.name for attempt in those):
            continue
        names = set().union(*(attempt.named for attempt in those)) - kept
        own_bytes = sum(entry.size_bytes for attempt in those for entry in attempt.entries)
        size_bytes = own_bytes + sum(sizes.get(name, 0) for name in names)
        version = (root.view(_names.version_note(builds), _MOST_VERSION_BYTES) or b"").decode(
            errors="replace"
        )
        written = max(attempt.written for attempt in those)
        result.append(Unfinished(dataset_id, version or None, size_bytes, written))
    return result
