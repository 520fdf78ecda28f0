"""Name a dataset by an id and a version, checked before they become a path; the library's own version."""

from functools import cache
from pathlib import Path
from typing import Final

from yogadl._core.frozen import frozen
from yogadl.errors import ConfigurationError

# Folders that each dataset has; an id with such a segment would collide with the files of a shorter id.
RESERVED_NAMES = frozenset({"versions", "parts", "tables", "builds", "trash", "locks", "leases", "tags"})
# The longest path segment in bytes: file systems allow 255, and this library appends suffixes.
MAX_SEGMENT_BYTES = 200
MAX_NAME_BYTES = 800
# The version name with which `cacheable`, `cached` and `yogadl build` compute the version.
AUTO: Final = "auto"


@frozen
class DatasetKey:
    """The id and version of one immutable dataset; slashes make folders.

    Raises:
        ConfigurationError: if id or version is empty, absolute, too long, or has a ``.``, ``..``, control
            character or reserved segment.
    """

    id: str
    version: str

    def __post_init__(self) -> None:
        check_name("dataset id", self.id)
        check_name("dataset version", self.version)

    def __lt__(self, other: "DatasetKey") -> bool:
        return (self.id, self.version) < (other.id, other.version)

    def __str__(self) -> str:
        return f"{self.id!r} version {self.version!r}"


def new_key(dataset_id: str, dataset_version: str) -> DatasetKey:
    """Return the key of a dataset to be built; its name must have no invisible characters.

    Caches that earlier releases built under other names can still be read.

    Raises:
        ConfigurationError: if no `DatasetKey` can have these names, or a name has an invisible character; or
            if the version is `AUTO`, which needs a builder or a source.
    """
    key = DatasetKey(dataset_id, dataset_version)
    if key.version == AUTO:
        raise ConfigurationError(
            f"the version {AUTO!r} works only with storage.cacheable, storage.cached and `yogadl build`, "
            "which compute it from a function or a source; here give the version a name of your own"
        )
    for what, name in (("dataset id", key.id), ("dataset version", key.version)):
        hidden = _hidden_in(name)
        if hidden:
            raise ConfigurationError(
                f"the {what} {name!a} has an invisible character, U+{ord(hidden):04X}; leave it out"
            )
    return key


def _hidden_in(name: str) -> str | None:
    """Return an invisible character of a name: a control, text direction or line separator character."""
    if name.isascii():
        return None  # the usual case; ASCII control characters are refused in any key
    import unicodedata  # slow to import

    return next((c for c in name if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp")), None)


def is_dataset_id(name: str) -> bool:
    """Return whether a dataset may have this name."""
    return _problem_with(name) is None


is_version = is_dataset_id  # the same rules


def check_name(what: str, name: object) -> None:
    """Refuse a name that can't be used in a path.

    Raises:
        ConfigurationError: if the name is refused; the error gives the reason.
    """
    if not isinstance(name, str):
        raise ConfigurationError(f"the {what} must be a string, not {type(name).__name__}: {name!r}")
    shown = repr(name if len(name) <= 60 else name[:57] + "...")
    problem = _problem_with(name)
    if problem:
        raise ConfigurationError(
            f"the {what} {shown} {problem}; letters, digits, '-', '_', '.' and '/' are safe"
        )


def _problem_with(name: str) -> str | None:
    if not name:
        return "is empty"
    if any(c < " " or c == "\x7f" for c in name):
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


@cache  # the version can't change while the library is loaded
def library_version() -> str:
    """Return the version.

    The version is read from the file, since importlib.metadata takes 20 ms and finds no version in a source
    checkout.
    """
    return (Path(__file__).parents[1] / "VERSION").read_text().strip()
