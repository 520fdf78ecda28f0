"""Recognise a path in the place of a dataset's id, and suggest the command that is likely meant."""

import argparse
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from yogadl._core.key import is_dataset_id

_VERSIONS: Final = "versions"
_SUFFIX: Final = ".json"
# The search for a dataset's folder goes up this many levels at most; versions may contain slashes.
_MOST_LEVELS: Final = 8


def mistaken_path(arguments: argparse.Namespace) -> str | None:
    """Return the error message if the id is a path or a URL, else None."""
    name: str | None = getattr(arguments, "id", None)
    if not name:
        return None
    if "://" in name:
        return _with_storage(
            arguments.command, name, f"{name} is the location of a storage, not a dataset's id"
        )
    try:
        return _message_about_path(name, arguments)
    except OSError:  # the path is too long, or the folder can't be listed
        return None


def _message_about_path(name: str, arguments: argparse.Namespace) -> str | None:
    command: str = arguments.command
    path = Path(name).expanduser()
    dataset = _dataset_at(path)
    is_storage = dataset is None and path.is_dir() and any(path.glob(f"*/{_VERSIONS}"))
    if is_dataset_id(name) and (
        arguments.storage is not None
        or not (is_storage or (dataset is not None and Path.cwd() in dataset[0].parents))
        or _is_storage(Path.cwd())
    ):
        return None
    if dataset is None:
        if not is_storage and "/" not in name and name.strip("."):
            return None  # neither a path nor an id: the code that uses the id reports the error
        what = f"{name} is a path, not a dataset's id"
        return _with_storage(command, name if is_storage else "FOLDER", what)
    suggestion = shlex.join(
        ["yogadl", command, *_suggested_arguments(arguments, *dataset), "-s", str(dataset[0].parent)]
    )
    return f"{name} is a path, not a dataset's id; you want `{suggestion}`"


def _suggested_arguments(arguments: argparse.Namespace, folder: Path, version: str | None) -> Iterator[str]:
    """Yield the arguments likely meant where a path replaces the id, and maybe the version."""
    names = [name for name in arguments.positionals if name != "id"]
    given = [str(value) for name in names if (value := getattr(arguments, name, None)) is not None]
    if len(given) == len(names) and "version" in names:
        version = version or given[names.index("version")]
    others = iter([value for value in given if value != version])
    for name in arguments.positionals:
        if name == "id":
            yield folder.name
        elif name == "version":
            yield version or _only_version(folder) or "VERSION"
        else:
            yield next(others, name.upper())


def _with_storage(command: str, location: str, what: str) -> str:
    where = f"-s {shlex.quote(location)}"
    message = f"{what}; `yogadl ls {where}` lists the datasets there"
    return message if command == "ls" else f"{message}, then `yogadl {command} ID ... {where}`"


def _is_storage(folder: Path) -> bool:
    """Return whether a folder is the root of a storage."""
    from yogadl.cli._arguments import storage_below  # this loads all storages

    return storage_below(folder) == folder


def _dataset_at(path: Path) -> tuple[Path, str | None] | None:
    """Return the dataset's folder at or above a path, and the version if the path is one of its manifests."""
    absolute = path.absolute()
    for folder in [absolute, *absolute.parents][:_MOST_LEVELS]:
        if (folder / _VERSIONS).is_dir():
            rest = absolute.relative_to(folder).as_posix()
            version = rest.removeprefix(f"{_VERSIONS}/").removesuffix(_SUFFIX)
            return folder, version if (folder / _VERSIONS / f"{version}{_SUFFIX}").is_file() else None
    return None


def _only_version(folder: Path) -> str | None:
    """Return the version of a dataset that has exactly one; else None."""
    found = sorted((folder / _VERSIONS).rglob(f"*{_SUFFIX}"))
    if len(found) != 1:
        return None
    return found[0].relative_to(folder / _VERSIONS).as_posix().removesuffix(_SUFFIX)
