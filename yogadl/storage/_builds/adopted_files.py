"""Which files a path, a folder or a pattern means, and of which format they are."""

import importlib
import logging
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from yogadl._core.printable import masked
from yogadl._foreign.file_reader import Format
from yogadl._format.files import ForeignFile
from yogadl.errors import ConfigurationError, UnsupportedDataError
from yogadl.storage._files.listing import refuse_impossible
from yogadl.storage._files.permitted import Permitted, wild_segments

_log = logging.getLogger("yogadl")

# The class of each format, and the options that it takes.
FORMATS: Final[dict[str, tuple[str, str, tuple[str, ...]]]] = {
    "arrow": ("arrow", "Arrow", ("fields", "missing")),
    "jsonl": ("lines", "Lines", ("parse",)),
    "mds": ("mds", "MDS", ("fields",)),
    "megatron": ("megatron", "Megatron", ()),
    "npy": ("npy", "Npy", ()),
    "parquet": ("parquet", "Parquet", ("fields", "json", "missing")),
    "tfrecord": ("tfrecord", "TFRecord", ("features", "missing")),
    "webdataset": ("webdataset", "WebDataset", ("fields", "missing")),
}
# Formats whose files are read through only if that is asked for.
UNREAD_FORMATS: Final = ("parquet",)
_MEGATRON: Final = "megatron"
# Patterns of shards: `train.tfrecord-{00000..00063}-of-00064`, `train.tfrecord-*`.
_BRACES: Final = re.compile(r"\{(\d+)\.\.\d+\}")
_WILD_SHARD: Final = re.compile(r"-[^/.]*\*[^/.]*$")
_SHOWN: Final = 3


def is_read_as(format: str, said: bool | None) -> bool:
    """Return whether files of a format are read through, given what a user says of it, if anything."""
    return format not in UNREAD_FORMATS if said is None else said


def format_named(name: Any, *, is_read: bool, **options: Any) -> Format:
    """Return a format with the options that are given, those that are not None.

    Raises:
        ConfigurationError: if there is no such format, or it does not take an option.
    """
    if not isinstance(name, str) or name not in FORMATS:
        raise ConfigurationError(f"there is no format {name!r:.100}: give one of {', '.join(FORMATS)}")
    module, kind, takes = FORMATS[name]
    given = {option: value for option, value in options.items() if value is not None}
    unknown = sorted(given.keys() - set(takes))
    if unknown:
        raise ConfigurationError(f"{', '.join(unknown)}: no option of the format {name!r}")
    if isinstance(given.get("fields"), Iterable) and not isinstance(given["fields"], str):
        given["fields"] = tuple(given["fields"])
    if name == "tfrecord":
        given["checks_data"] = is_read
    made: Format = getattr(importlib.import_module(f"yogadl._foreign.{module}"), kind)(**given)
    return made


def checked_paths(paths: Any) -> list[str]:
    """Return paths as texts; those of local files absolute.

    Raises:
        ConfigurationError: if they are none, or no file can have one.
    """
    problem = f"give a path, a URL, a pattern, or a list of them, not {masked(paths, quoted=True)}"
    one = isinstance(paths, str | os.PathLike)
    if not one and (isinstance(paths, bytes) or not isinstance(paths, Iterable)):
        raise ConfigurationError(problem)
    given = [paths] if one else list(paths)
    found = [os.fspath(path) for path in given if isinstance(path, str | os.PathLike)]
    if not found or len(found) < len(given) or not all(isinstance(path, str) and path for path in found):
        raise ConfigurationError(problem)
    for path in found:
        refuse_impossible(path)
    return [path if "://" in path else _absolute(path) for path in found]


def _absolute(path: str) -> str:
    absolute = os.path.abspath(os.path.expanduser(path))
    return f"{absolute}/" if path.endswith("/") else absolute


def listed_files(stores: Permitted, patterns: Sequence[str], format: Format) -> list[ForeignFile]:
    """Return the files of all patterns, in order; log what was left out in folders.

    Raises:
        ConfigurationError: if there are none, or one is named twice.
        StorageError: if a folder can't be listed.
    """
    found: dict[str, ForeignFile] = {}
    left_out: list[str] = []
    for pattern in patterns:
        files = _of_index(stores, pattern, format, left_out)
        if files is None:
            files = _without_caches(
                stores, pattern, format, stores.listed(pattern, format.matches, left_out), left_out
            )
        format.check_together([file.address for file in files])
        for file in files:
            if file.address in found:
                raise ConfigurationError(f"{file.address} is named twice: give each file once")
            found[file.address] = file
    said = [address for address in left_out if not address.endswith(format.beside)]
    if said:
        shown = ", ".join(masked(each, quoted=True) for each in said[:_SHOWN])
        more = f" and {len(said) - _SHOWN} more" if said[_SHOWN:] else ""
        _log.warning(
            "yogadl: %d files are left out, which are hidden or not of the format (%s): %s%s",
            len(said), " ".join(format.suffixes), shown, more,
        )  # fmt: skip
    return list(found.values())


def _of_index(
    stores: Permitted, pattern: str, format: Format, left_out: list[str]
) -> list[ForeignFile] | None:
    """Return the files that the list in a folder names; None if the format or the folder has no such list."""
    name = format.index_name
    if name is None or wild_segments(pattern) or format.matches(pattern):
        return None
    index = pattern if pattern.endswith(f"/{name}") else f"{pattern.rstrip('/')}/{name}"
    found = stores.look_up(index if "://" in index else os.path.realpath(index))
    listed = format.listed_in(bytes(_read(stores, found))) if found is not None else None
    if found is None or listed is None:
        return None
    folder, others = found.address.rpartition("/")[0], list[str]()
    known = {file.address: file for file in stores.listed(f"{folder}/", format.matches, others)}
    files = []
    for shard, size_bytes in listed:
        address = f"{folder}/{shard}"
        file = known.pop(address if "://" in address else os.path.realpath(address), None)
        if file is None or size_bytes not in (None, file.size_bytes):
            state = "is missing" if file is None else f"has {file.size_bytes} bytes, not {size_bytes}"
            raise UnsupportedDataError(f"{masked(address)}, which {name} names, {state}")
        files.append(file)
    left_out += [*known, *others]
    return files


def _read(stores: Permitted, file: ForeignFile) -> memoryview:
    return stores.reader(file, is_read=True).read(0, file.size_bytes)


def _without_caches(
    stores: Permitted, pattern: str, format: Format, files: list[ForeignFile], left_out: list[str]
) -> list[ForeignFile]:
    """Return the files without what the writer of a folder computed of them and keeps beside them.

    A pattern that names such files takes them.
    """
    if format.index_name is None or format.is_cache(pattern.rpartition("/")[2]):
        return files
    has_index: dict[str, bool] = {}
    kept = []
    for file in files:
        folder, _, name = file.address.rpartition("/")
        if format.is_cache(name):
            if folder not in has_index:
                has_index[folder] = stores.look_up(f"{folder}/{format.index_name}") is not None
            if has_index[folder]:
                left_out.append(file.address)
                continue
        kept.append(file)
    return kept


def format_of(stores: Permitted, paths: Sequence[str]) -> str:
    """Return the format that the names of all paths and patterns end like, or of the files that they mean.

    Raises:
        ConfigurationError: if they don't tell, or are of two formats.
    """
    found: dict[str, str] = {}  # each format, with the first file of it
    for path in paths:
        named = format_of_name(path)
        own = _formats_in(stores, path) if named is None else {named: path}
        if _MEGATRON in own and not _have_indexes(stores, own[_MEGATRON]):
            del own[_MEGATRON]
        if not own:
            raise ConfigurationError(
                f"the format can't be told from {masked(path, quoted=True)}: give format= (--format), one of "
                f"{', '.join(FORMATS)}"
            )
        found = {**own, **found}
    if len(found) > 1:
        (one, first), (other, second), *_ = found.items()
        raise ConfigurationError(
            f"there are files of two formats: {other} ({masked(second, quoted=True)}) and {one} "
            f"({masked(first, quoted=True)}): give "
            "format= (--format) to take the files of one in a folder, or name only these"
        )
    return next(iter(found))


def _formats_in(stores: Permitted, path: str) -> dict[str, str]:
    """Return the formats of the files that a folder or a pattern means, each with the first file of it.

    There are none if a file of a pattern is of no format.
    """
    found: dict[str, str] = {}
    formats = _formats()
    for file in stores.listed(path, lambda name: format_of_name(name, formats) is not None):
        format = format_of_name(file.address, formats)
        if format is None:
            return {}
        if format not in found and (format != _MEGATRON or _have_indexes(stores, file.address)):
            found[format] = file.address
    return found


def _formats() -> dict[str, Format]:
    return {name: format_named(name, is_read=False) for name in FORMATS}


def format_of_name(path: str, formats: dict[str, Format] | None = None) -> str | None:
    """Return the format whose suffix a path or pattern has, or whose index it names."""
    counted_from = _BRACES.sub(r"\1", path)
    names = (path, counted_from, _WILD_SHARD.sub("", counted_from))
    for name, made in (formats or _formats()).items():
        if any(map(made.matches, names)) or path.rpartition("/")[2] == made.index_name:
            return name
    return None


def _have_indexes(stores: Permitted, path: str) -> bool:
    """Return whether there is an .idx beside each .bin, as far as one path or pattern tells."""
    try:
        stores.listed(f"{path.removesuffix('.bin')}.idx", lambda name: name.endswith(".idx"))
    except ConfigurationError:
        return False
    return True
