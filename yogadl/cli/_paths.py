"""Recognise a path that was given where an id belongs, and say which command was meant."""

import argparse
import shlex
from pathlib import Path
from typing import Final

from yogadl._key import is_dataset_id

_VERSIONS: Final = "versions"
_SUFFIX: Final = ".json"
# The climb from a file of a cache to its dataset's folder is short; versions may have slashes.
_MOST_LEVELS: Final = 8


def mistaken_path(arguments: argparse.Namespace) -> str | None:
    """Return what to say where the id is a path or a URL; None where it is neither."""
    name: str | None = getattr(arguments, "id", None)
    if not name:
        return None
    command: str = arguments.command
    if "://" in name:
        return _with_storage(command, name, f"{name} is the place of a storage, not a dataset's id")
    path = Path(name).expanduser()
    dataset = _dataset_at(path)
    if is_dataset_id(name) and (arguments.storage is not None or not _is_below_here(dataset)):
        return None
    if dataset is None:
        is_storage = path.is_dir() and any(path.glob(f"*/{_VERSIONS}"))
        what = f"{name} is a path, not a dataset's id"
        return _with_storage(command, name if is_storage else "FOLDER", what)
    folder, version = dataset
    asked = ["yogadl", command, folder.name]
    if command != "ls":
        asked.append(version or _only_version(folder) or "VERSION")
    meant = shlex.join([*asked, "-s", str(folder.parent)])
    return f"{name} is a path, not a dataset's id; you want `{meant}`"


def _with_storage(command: str, location: str, what: str) -> str:
    where = f"-s {shlex.quote(location)}"
    said = f"{what}; `yogadl ls {where}` lists the datasets there"
    return said if command == "ls" else f"{said}, then `yogadl {command} ID ... {where}`"


def _is_below_here(dataset: tuple[Path, str | None] | None) -> bool:
    """Return whether a dataset is in a storage below the current folder, which is none itself."""
    from yogadl.cli._location import storage_below  # loads much

    here = Path.cwd()
    return dataset is not None and here in dataset[0].parents and storage_below(here) != here


def _dataset_at(path: Path) -> tuple[Path, str | None] | None:
    """Return the dataset's folder that a path is or is below, and the version if the path says one."""
    absolute = path.absolute()
    for folder in [absolute, *absolute.parents][:_MOST_LEVELS]:
        if (folder / _VERSIONS).is_dir():
            rest = absolute.relative_to(folder).as_posix()
            version = rest.removeprefix(f"{_VERSIONS}/").removesuffix(_SUFFIX)
            return folder, version if (folder / _VERSIONS / f"{version}{_SUFFIX}").is_file() else None
    return None


def _only_version(folder: Path) -> str | None:
    """Return the version of a dataset, if it has just one."""
    found = sorted((folder / _VERSIONS).rglob(f"*{_SUFFIX}"))
    if len(found) != 1:
        return None
    return found[0].relative_to(folder / _VERSIONS).as_posix().removesuffix(_SUFFIX)
