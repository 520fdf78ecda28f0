"""Arguments that several sub-commands share, among them the storage that a command works on."""

import argparse
import itertools
import math
import os
import re
import shlex
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath
from typing import Any, Final

from yogadl._core.arguments import bytes_of
from yogadl._core.frozen import MANY_DIGITS, parse_json
from yogadl._core.key import RESERVED_NAMES
from yogadl._core.printable import masked
from yogadl._dataref import RecordsRef
from yogadl.errors import ConfigurationError
from yogadl.storage import CacheStorage, open_storage
from yogadl.storage._files.folder import Folder, folder_at
from yogadl.storage._objects.bucket import Bucket
from yogadl.storage._remote.urls import open_bucket

# A search of a home folder without a limit would take minutes.
_MOST_FOLDERS: Final = 2_000
_MOST_MANIFESTS: Final = 10
_MIRROR_OPTIONS: Final = ("mirror", "mirror_limit", "mirror_fill", "verify")
_BUCKET_OPTIONS: Final = ("endpoint_url", "region", "profile", "anonymous")
_FOLDER_OPTIONS: Final = ("shared",)


def open_existing(arguments: argparse.Namespace, *others: str) -> CacheStorage:
    """Open a storage as `open_or_make` does, but make no folder: the name may be misspelt.

    Raises:
        ConfigurationError: if there is no such folder.
    """
    location: str | None = arguments.storage
    refuse_unused_options(arguments, location or str(Path.cwd()), *others)
    folder = None if location is None else folder_at(location)
    if folder is not None:
        path = folder.expanduser()
        if not path.is_dir():
            what = "is a file, not a folder of caches" if path.exists() else "is not there"
            raise ConfigurationError(f"the storage {masked(location)} {what}; say which one with -s STORAGE")
    return open_or_make(arguments, *others)


def open_version(arguments: argparse.Namespace, *names: str, others: Sequence[str] = ()) -> CacheStorage:
    """Open as `open_existing` does, and complete the arguments that name a version: ID VERSION, or ID@TAG.

    An ``@`` separates id and tag only where no dataset has the whole as its id, and one argument is missing.

    Args:
        arguments: The command's arguments.
        names: The names of the command's further arguments, all of which are required.
        others: Further locations whose options the command accepts.
    """
    required = ("version", *names)
    values = [value for name in required if (value := getattr(arguments, name)) is not None]
    head, _, tag = arguments.id.rpartition("@")
    storage = None
    if len(values) == len(required) - 1 and head and tag:
        storage = open_existing(arguments, *others)
        if not storage.versions(arguments.id):
            arguments.id, values = head, [tag, *values]
    elif len(values) == len(required) and head and tag:
        storage = open_existing(arguments, *others)
        if not storage.versions(arguments.id) and storage.versions(head):
            arguments.refuse(f"{arguments.id} stands for both ID and VERSION: leave {values[0]!r} out")
    if len(values) != len(required):
        rest = "".join(f" {name.upper()}" for name in names)
        arguments.refuse(f"give ID VERSION{rest}, or ID@TAG{rest}")
    for name, value in zip(required, values, strict=True):
        setattr(arguments, name, value)
    return storage or open_existing(arguments, *others)


def fetch(storage: CacheStorage, arguments: argparse.Namespace, *, allow_pickle: bool = True) -> RecordsRef:
    """Fetch the version that the arguments name, and replace a tag in the arguments by the version's name."""
    ref = storage.fetch(arguments.id, arguments.version, allow_pickle=allow_pickle)
    if ref.lineage is not None:
        arguments.version = ref.lineage.version
    return ref


def open_or_make(arguments: argparse.Namespace, *others: str) -> CacheStorage:
    """Open the storage of --storage, making a missing folder; without --storage, that of the current folder.

    Args:
        arguments: The command's arguments.
        others: Further locations whose options the command accepts.

    Raises:
        ConfigurationError: if --storage is not given and the current folder has no caches.
    """
    location: str | None = arguments.storage
    current = Path.cwd()
    refuse_unused_options(arguments, location or str(current), *others)
    if location is not None:
        return open_at(location, arguments)
    root = storage_below(current)
    if root is None:
        raise ConfigurationError(
            f"there are no caches in the current folder, {current}: say where they are with -s STORAGE "
            "(-s . to begin here)"
        )
    if root != current:
        raise ConfigurationError(
            f"the current folder, {current}, is not a storage; say which one with -s STORAGE, e.g. -s "
            f"{shlex.quote(str(root.relative_to(current)))}"
        )
    return open_at(str(current), arguments)


def open_at(location: str, arguments: argparse.Namespace) -> CacheStorage:
    """Open the storage at a location with the given options that apply to its kind."""
    return open_storage(location, **_given_options(location, arguments))


def bucket_at(url: str, arguments: argparse.Namespace, **more: Any) -> Bucket:
    """Open a bucket without a storage, with the given options that apply to buckets."""
    return open_bucket(url, **(_bucket_options(arguments) if _is_store(url) else {}), **more)


def refuse_unused_options(arguments: argparse.Namespace, *locations: str) -> None:
    """Print the usage and exit if an option is given that applies to none of these locations."""
    known = set().union(*map(_options_for, locations), _BUCKET_OPTIONS if arguments.foreign else ())
    given = {
        name for name in (*_FOLDER_OPTIONS, *_MIRROR_OPTIONS, *_BUCKET_OPTIONS) if getattr(arguments, name)
    }
    unused = ", ".join(option_of(name) for name in sorted(given - known))
    if unused:
        arguments.refuse(f"{unused}: no option of {' or '.join(map(masked, locations))}")


def option_of(name: str) -> str:
    """Return the option as the user types it."""
    return f"--{name.replace('_', '-')}"


def _options_for(location: str) -> tuple[str, ...]:
    """Return the names of the options that apply to a storage at this location."""
    if "://" not in location:
        return _FOLDER_OPTIONS
    return (*_MIRROR_OPTIONS, *_BUCKET_OPTIONS) if _is_store(location) else _MIRROR_OPTIONS


def _given_options(location: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the given options that apply to a storage at this location, and to its foreign files."""
    names = [name for name in _options_for(location) if name not in _BUCKET_OPTIONS]
    found = {name: value for name in names if (value := getattr(arguments, name))}
    if found.get("mirror") == "none":
        found["mirror"] = None
    own = _bucket_options(arguments)
    if _is_store(location):
        found |= own
    if arguments.foreign:
        found["foreign"] = {url: own if _is_like(location, url) else {} for url in arguments.foreign}
    return found


def _bucket_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the given options of a bucket, by the names of the library's arguments."""
    found = {name: value for name in _BUCKET_OPTIONS if (value := getattr(arguments, name))}
    region = found.pop("region", None)
    return found if region is None else found | {"client_options": {"region_name": region}}


def _is_like(location: str, url: str) -> bool:
    """Return whether the options of a bucket are also those of foreign files: not if the store is another."""
    kind = url.partition("://")[0]
    return _is_store(url) and (not _is_store(location) or location.partition("://")[0] == kind)


def _is_store(location: str) -> bool:
    """Return whether a location is in a bucket, not a folder."""
    return "://" in location and not location.startswith("file://")


def storage_option(storage: CacheStorage, arguments: argparse.Namespace) -> str:
    """Return the options that select a storage, quoted for a shell."""
    options = ["-s", storage.location]
    for name in ("endpoint_url", "region", "profile"):
        value = getattr(arguments, name)
        options += [option_of(name), value] if value else []
    for url in arguments.foreign or ():
        options += ["--foreign", url]
    return " ".join(map(shlex.quote, options))


def storage_below(start: Path) -> Path | None:
    """Return the root of the first storage found at or below this folder, or None."""
    unsearched = deque([start])
    for _ in range(_MOST_FOLDERS):
        if not unsearched:
            break
        folder = unsearched.popleft()
        try:
            with os.scandir(folder) as entries:
                inside = [Path(entry) for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:
            continue  # the folder may be unreadable
        if {path.name for path in inside} & {"versions", "trash"}:
            root = _root_of(folder)
            if root is not None and root.is_relative_to(start):
                return root
        unsearched.extend(path for path in inside if path.name not in RESERVED_NAMES)
    return None


def _root_of(folder: Path) -> Path | None:
    """Return the root of the storage that has this folder as a dataset's folder, or None."""
    files = itertools.chain(folder.glob("versions/**/*.json"), folder.glob("trash/**/*.json"))
    for file in itertools.islice(files, _MOST_MANIFESTS):
        try:
            content = Folder(folder).read(str(file.relative_to(folder)))
            parts = PurePath(parse_json(content or b"", most_digits=MANY_DIGITS)["id"]).parts
        except (OSError, ValueError, KeyError, TypeError):
            continue  # damaged, or no manifest
        if parts and folder.parts[-len(parts) :] == parts:
            return Path(*folder.parts[: -len(parts)])
    return None


_BATCH: Final = 256


def add_key(parser: argparse.ArgumentParser) -> None:
    """Add the two arguments that name a version to build or delete."""
    parser.add_argument("id", metavar="ID", help="the name of the dataset")
    parser.add_argument("version", metavar="VERSION", help="the name of the version")


def add_tagged(parser: argparse.ArgumentParser, **others: str) -> None:
    """Add the arguments that name a version to read: ID VERSION, or ID@TAG; and further arguments after them.

    Args:
        parser: The command's parser.
        others: The help of each further argument, by the argument's name.
    """
    parser.add_argument("id", metavar="ID", help="the name of the dataset; or ID@TAG, or ID@VERSION")
    parser.add_argument("version", metavar="VERSION", nargs="?", help="the name of the version, or a tag")
    for name, what in others.items():
        parser.add_argument(name, metavar=name.upper(), nargs="?", help=what)


def add_storage(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add the options that select a storage; `names` are further option names for `--storage`."""
    parser.add_argument(
        "-s",
        "--storage",
        *names,
        metavar="STORAGE",
        help="the storage: a folder of caches, s3://bucket/prefix or gs://bucket/prefix "
        "(default: the current folder, if it has caches)",
    )
    group = parser.add_argument_group("buckets, and folders that several machines share")
    group.add_argument(
        "--endpoint-url", metavar="URL", help="the URL of the store, if it is not AWS or Google"
    )
    group.add_argument("--region", metavar="REGION", help="the region of an S3 bucket")
    group.add_argument("--profile", metavar="NAME", help="the profile of the AWS configuration to use")
    group.add_argument("--anonymous", action="store_true", help="read a public bucket without credentials")
    group.add_argument(
        "--shared", action="store_true", help="several machines build in this folder, as on NFS"
    )
    group.add_argument(
        "--foreign",
        metavar="URL",
        type=parse_url,
        action="append",
        help="adopted files of this storage may lie here, in a bucket with these options; may be repeated",
    )
    group.add_argument(
        "--mirror",
        metavar="FOLDER",
        help="where this machine keeps copies of what it reads from a bucket; none: keep no copies",
    )
    group.add_argument(
        "--mirror-limit",
        metavar="SIZE",
        type=parse_size,
        help="the size that the mirror may have, e.g. 200GB",
    )
    group.add_argument(
        "--mirror-fill",
        choices=("auto", "always", "never"),
        help="when a cache that is read by range is downloaded to the mirror, too (default: auto)",
    )
    group.add_argument(
        "--verify",
        choices=["block"],
        help="read whole blocks when reading by range, and compare them with their checksums",
    )


def add_batch(parser: argparse.ArgumentParser) -> None:
    """Add the option `--batch`: the number of records in a batch."""
    parser.add_argument(
        "--batch",
        metavar="RECORDS",
        type=number_of("records"),
        default=_BATCH,
        help=f"records in a batch (default: {_BATCH})",
    )


def add_target_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the target bucket, for when they differ from those of the source bucket."""
    group = parser.add_argument_group(
        "the bucket to copy to, if it needs other options than the bucket that is read"
    )
    group.add_argument("--to-endpoint-url", metavar="URL", help="the URL of its store")
    group.add_argument("--to-region", metavar="REGION", help="its region")
    group.add_argument("--to-profile", metavar="NAME", help="the profile of the AWS configuration to use")
    group.add_argument("--to-anonymous", action="store_true", help="write to it without credentials")


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option `--json`."""
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def number_of(what: str, kind: type[int | float] = int, least: float = 1) -> Callable[[str], float]:
    """Return a parser for finite numbers of type `kind` that are `least` or more."""

    def parse(text: str) -> float:
        try:
            count = kind(text)
        except ValueError:
            count = math.nan
        if not least <= count < math.inf:
            raise argparse.ArgumentTypeError(f"give a number of {what}, {least:g} or more, not {text!r}")
        return count

    return parse


def parse_url(text: str) -> str:
    """Return the URL of a bucket or of a prefix in it, such as ``s3://bucket/prefix``."""
    if not re.fullmatch("[a-z0-9]+://.+", text, re.DOTALL):
        raise argparse.ArgumentTypeError(
            f"give a URL, such as s3://bucket/prefix, not {masked(text, quoted=True)}"
        )
    return text


def parse_size(text: str) -> int:
    """Return the number of bytes in a text such as ``256MB`` or ``1GiB``."""
    try:
        return bytes_of(text)
    except ConfigurationError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def add_materialize(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--materialize",
        action="store_true",
        help="of an adopted version, copy the records themselves, not only the index of foreign files",
    )
