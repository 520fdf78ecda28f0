"""Read every byte of a version and compare it with its checksums.

If the version is in a bucket, the copies in this machine's mirror are compared, too. A damaged copy is
downloaded again.

If there is damage, the command names the dataset, the field and the records, and the exit code is 1. With
--all the other versions are still checked.

Example:
  yogadl verify squares 1 -s /data/caches
  yogadl verify --all -s /data/caches
"""

import argparse
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from yogadl.cli._arguments import add_json, add_storage, open_existing, open_version
from yogadl.cli._output import Bar, contents, counted, error_line, note, repair_result, say, say_json
from yogadl.errors import DatasetNotFoundError, YogaError
from yogadl.storage import CacheStorage, Verified


@dataclass
class _Checked:
    """The result of checking one version: the verified contents, or an error."""

    id: str
    version: str
    verified: Verified | None = None
    error: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", nargs="?", help="the name of the dataset; or ID@TAG")
    parser.add_argument("version", metavar="VERSION", nargs="?", help="the name of the version, or a tag")
    add_storage(parser)
    parser.add_argument(
        "--all", action="store_true", help="check all versions: of the dataset ID, or of all datasets"
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Check the versions, and return 1 if one is damaged."""
    is_named = arguments.version is not None or "@" in (arguments.id or "")
    if arguments.version is not None if arguments.all else not is_named:
        arguments.refuse("give ID and VERSION, or --all, or ID --all")
    storage = open_existing(arguments) if arguments.all else open_version(arguments)
    named = (arguments.id, arguments.version)
    keys = _keys(storage, arguments.id) if arguments.all else [_version(storage, *named)]
    sizes = [_size(storage, *key) for key in keys]
    checked = []
    with Bar("verifying", sum(sizes)) as bar:
        for number, (dataset_id, version) in enumerate(keys):
            progress = _progress(bar.show, sum(sizes[:number]), sizes[number])
            result = _Checked(dataset_id, version)
            try:
                result.verified = storage.verify(dataset_id, version, progress=progress)
            except DatasetNotFoundError:
                if arguments.all:
                    continue  # deleted meanwhile
                raise
            except YogaError as error:
                result.error = error_line(error)
            checked.append(result)
            bar.clear()
            if result.verified is None:
                note(result.error, "red")
            elif not arguments.json:
                _say(result, result.verified)
    damaged = sum(result.verified is None for result in checked)
    if arguments.json:
        say_json(storage=storage.location, versions=[_to_json(result) for result in checked])
    elif arguments.all:
        say(f"{counted(len(checked), 'version')} checked, {damaged} damaged.")
    return int(damaged > 0)


def _keys(storage: CacheStorage, dataset_id: str | None) -> list[tuple[str, str]]:
    ids = storage.datasets() if dataset_id is None else [dataset_id]
    keys = [(name, version) for name in ids for version in storage.versions(name)]
    if dataset_id is not None and not keys:
        raise DatasetNotFoundError(f"there is no dataset {dataset_id!r} in {storage.location}")
    return keys


def _version(storage: CacheStorage, dataset_id: str, version: str) -> tuple[str, str]:
    """Return a version, with a tag replaced by the version that it names."""
    with contextlib.suppress(YogaError):  # the check reports the error
        return dataset_id, storage.info(dataset_id, version).version
    return dataset_id, version


def _size(storage: CacheStorage, dataset_id: str, version: str) -> int:
    try:
        return storage.info(dataset_id, version).size_bytes
    except YogaError:
        return 0  # the check reports the error


def _progress(show: Callable[[float], None], before_bytes: int, own_bytes: int) -> Callable[[int, int], None]:
    return lambda parts, total: show(before_bytes + own_bytes * parts / max(1, total))


def _say(result: _Checked, verified: Verified) -> None:
    say(f"{result.id} {result.version} is sound: {contents(verified)}")
    if verified.mirrored:
        files = counted(verified.mirrored, "file")
        say(f"{files} of it in this machine's mirror: {repair_result(verified.mended)}")


def _to_json(result: _Checked) -> dict[str, Any]:
    names = ("records", "parts", "size_bytes", "mirrored", "mended")
    facts = {name: getattr(result.verified, name, None) for name in names}
    is_sound = result.verified is not None
    return {
        "id": result.id,
        "version": result.version,
        "is_sound": is_sound,
        **facts,
        "error": result.error or None,
    }
