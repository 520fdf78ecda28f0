"""Name a dataset: the id and the version, checked before they ever become a path."""

import re
from dataclasses import dataclass

from yogadl.errors import ConfigurationError

# Folders of a dataset's own; an id that used one would collide with the files of a shorter id.
RESERVED_NAMES = frozenset({"versions", "parts", "tables", "builds", "trash", "locks", "leases"})
# The longest path segment: file systems allow 255 bytes, and suffixes of ours follow the name.
MAX_SEGMENT_BYTES = 200
MAX_NAME_BYTES = 800
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, order=True)
class DatasetKey:
    """Identify one immutable dataset by id and version; slashes make folders.

    Raises:
        ConfigurationError: if either is empty, absolute, over-long, or has a ``.``, ``..``, control
            character or reserved segment.
    """

    id: str
    version: str

    def __post_init__(self) -> None:
        _check_name("dataset id", self.id)
        _check_name("dataset version", self.version)

    def __str__(self) -> str:
        return f"{self.id!r} version {self.version!r}"


def is_dataset_id(name: str) -> bool:
    """Return whether a dataset may be called so."""
    return _problem_with(name) is None


def is_version(name: str) -> bool:
    """Return whether a version may be called so."""
    return _problem_with(name) is None


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str):
        raise ConfigurationError(f"the {what} must be a string, not {type(name).__name__}: {name!r}")
    shown = repr(name if len(name) <= 60 else name[:57] + "...")
    problem = _problem_with(name)
    if problem:
        raise ConfigurationError(f"the {what} {shown} {problem}; use letters, digits, '-', '_', '.' and '/'")


def _problem_with(name: str) -> str | None:
    if not name:
        return "is empty"
    if _CONTROL.search(name):
        return "has a control character"
    if "\\" in name:
        return "has a backslash"
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        return "is not valid Unicode"
    if len(encoded) > MAX_NAME_BYTES:
        return f"is longer than {MAX_NAME_BYTES} bytes"
    if ".json/" in name:
        return "has a folder that ends in '.json', as the files of versions do"
    for segment in name.split("/"):
        if not segment:
            return "has an empty path segment (a leading, trailing or double '/')"
        if segment.startswith("."):
            return f"has a path segment that starts with a dot, {segment[:20]!r}"
        if len(segment.encode()) > MAX_SEGMENT_BYTES:
            return f"has a path segment longer than {MAX_SEGMENT_BYTES} bytes"
        if segment in RESERVED_NAMES:
            return f"has the reserved path segment {segment!r}"
    return None
