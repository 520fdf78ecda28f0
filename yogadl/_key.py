"""Name a dataset: the id and the version, checked before they ever become a path."""

from typing import Final

from yogadl._frozen import frozen
from yogadl.errors import ConfigurationError

# Folders of a dataset's own; an id that used one would collide with the files of a shorter id.
RESERVED_NAMES = frozenset({"versions", "parts", "tables", "builds", "trash", "locks", "leases", "tags"})
# The longest path segment: file systems allow 255 bytes, and suffixes of ours follow the name.
MAX_SEGMENT_BYTES = 200
MAX_NAME_BYTES = 800
# The version that is worked out from the builder itself, where there is one.
AUTO: Final = "auto"


@frozen
class DatasetKey:
    """Identify one immutable dataset by id and version; slashes make folders.

    Raises:
        ConfigurationError: if either is empty, absolute, over-long, or has a ``.``, ``..``, control
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
    """Return the key of what is to be built, whose name can be told from others by the eye.

    What earlier releases have built under another is read all the same.

    Raises:
        ConfigurationError: if no `DatasetKey` can be so, or there is a character in it that is not seen; or
            if a version is to be worked out, for which a builder is needed.
    """
    key = DatasetKey(dataset_id, dataset_version)
    if key.version == AUTO:
        raise ConfigurationError(
            f"the version {AUTO!r} works only with storage.cacheable and `yogadl build`, which compute it "
            "from a function; here give the version a name of your own"
        )
    for what, name in (("dataset id", key.id), ("dataset version", key.version)):
        hidden = _hidden_in(name)
        if hidden:
            raise ConfigurationError(
                f"the {what} {name!a} has a character that is not seen, U+{ord(hidden):04X}; leave it out"
            )
    return key


def _hidden_in(name: str) -> str | None:
    """Return a character that controls how others are shown: a control, a mark of direction, a separator."""
    if name.isascii():
        return None  # nearly always; those that ASCII has are refused in any key
    import unicodedata  # loads much

    return next((c for c in name if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp")), None)


def is_dataset_id(name: str) -> bool:
    """Return whether a dataset may be called so."""
    return _problem_with(name) is None


is_version = is_dataset_id  # the same rules


def is_hash(name: str, digits: int) -> bool:
    """Return whether a name is a hash in so many hexadecimal digits."""
    return len(name) == digits and not name.strip("0123456789abcdef")


def check_name(what: str, name: object) -> None:
    """Refuse what nothing can be called that becomes a part of a path.

    Raises:
        ConfigurationError: if it is that; says why.
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
