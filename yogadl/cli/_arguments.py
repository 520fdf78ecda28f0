"""How sub-commands are declared, the arguments that several share, and the storage of a command."""

import argparse
import inspect
import itertools
import math
import os
import re
import shlex
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
from yogadl.storage._remote.mirror import Mirror
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
    return open_bucket(url, **(_bucket_options(arguments) if is_store(url) else {}), **more)


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
    return (*_MIRROR_OPTIONS, *_BUCKET_OPTIONS) if is_store(location) else _MIRROR_OPTIONS


def _given_options(location: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the given options that apply to a storage at this location, and to its foreign files."""
    names = [name for name in _options_for(location) if name not in _BUCKET_OPTIONS]
    found = {name: value for name in names if (value := getattr(arguments, name))}
    path = found.pop("mirror", "auto")
    mirror = {name: found.pop(f"mirror_{name}") for name in ("limit", "fill") if f"mirror_{name}" in found}
    if mirror or path != "auto":
        found["mirror"] = Mirror(None if path == "none" else path, **mirror)
    own = _bucket_options(arguments)
    if is_store(location):
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
    return is_store(url) and (not is_store(location) or location.partition("://")[0] == kind)


def is_store(location: str) -> bool:
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


@dataclass(frozen=True)
class Argument:
    """An argument of sub-commands: its names, and its terms for argparse."""

    names: tuple[str, ...]
    terms: Mapping[str, Any]

    def add_to(self, parser: Any) -> None:  # a parser, or a group of one
        """Add the argument to a parser."""
        parser.add_argument(*self.names, **self.terms)


@dataclass(frozen=True)
class ArgumentGroup:
    """Arguments under a title of their own; or without a title, of which one at most is given."""

    title: str
    arguments: "tuple[Argument | ArgumentGroup, ...]"

    def add_to(self, parser: Any) -> None:
        """Add the arguments to a parser."""
        group = parser.add_argument_group(self.title) if self.title else parser.add_mutually_exclusive_group()
        for each in self.arguments:
            each.add_to(group)


def declared(text: str, **terms: Mapping[str, Any]) -> tuple[Argument, ...]:
    """Return the arguments of a text that looks like their help.

    An argument begins a line: its names, what is shown in the place of its value, two blanks, and its help,
    which may continue in lines that are indented. An option without a value is a flag, ``NAME...`` is given
    once or more, ``[NAME]`` may be left out, ``{a,b}`` is one of these words, and ``dest=NAME`` gives an
    argument without an option another name in the program.

    Args:
        text: The text.
        terms: Further terms for argparse, by the argument's name.
    """
    found = tuple(_declared(each, terms) for each in re.split(r"\n(?=\S)", inspect.cleandoc(text)))
    assert terms.keys() <= {_name_of(each.names) for each in found}
    return found


def _name_of(names: Sequence[str]) -> str:
    return names[-1].lstrip("-").replace("-", "_")


def _declared(text: str, terms: Mapping[str, Mapping[str, Any]]) -> Argument:
    own: dict[str, Any]
    words, _, help = text.partition("  ")
    names = [word for word in words.split() if word.startswith("-")]
    value = "" if names and words.endswith(names[-1]) else words.split()[-1]
    shown, own = value.removesuffix("..."), {"help": " ".join(help.split())}
    if not names:
        name, _, shown = shown.rpartition("=")
        shown = shown.strip("[]")
        names = [name or shown.lower()]
        own |= {"nargs": "?"} if value.endswith("]") else {"nargs": "+"} if value.endswith("...") else {}
    elif value.endswith("..."):
        own |= {"action": "append", "help": f"{own['help']}; may be repeated"}
    if shown.startswith("{"):
        own["choices"] = shown[1:-1].split(",")
    else:
        own |= {"metavar": shown} if value else {"action": "store_true"}
    return Argument(tuple(names), own | dict(terms.get(_name_of(names), {})))


def typed(parse: Callable[[str], Any], default: Any = None) -> dict[str, Any]:
    """Return the terms of an argument whose text is parsed."""
    return {"type": parse, "default": default}


@dataclass(frozen=True)
class Answer:
    """The output of a sub-command, which is printed when it ends.

    Args:
        document: The document that `--json` prints.
        lines: The lines for people otherwise; a list among them is a table, whose first line is its header.
        code: The exit code.
    """

    document: Mapping[str, Any] = field(default_factory=dict)
    lines: Iterable[str | list[str]] = ()
    code: int = 0


@dataclass(frozen=True)
class Command:
    """A sub-command: its arguments, and the function that runs it.

    Args:
        run: Returns what is printed; its docstring is the help.
        arguments: The arguments, with those that all commands of a storage have.
        defaults: The values of arguments that this command lacks, and a function it shares looks at.
        has_bar: Whether it shows a progress bar or lines as it goes; else a line shows how long it has run.
    """

    run: Callable[[argparse.Namespace], Answer]
    arguments: tuple[Argument | ArgumentGroup, ...]
    defaults: Mapping[str, Any]
    has_bar: bool

    @property
    def help(self) -> str:
        """The description of the command."""
        return inspect.cleandoc(self.run.__doc__ or "")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments to its parser."""
        parser.set_defaults(json=False, **self.defaults)
        for each in self.arguments:
            each.add_to(parser)


def plain_command(
    *arguments: Argument | ArgumentGroup, has_bar: bool = False, defaults: Mapping[str, Any] | None = None
) -> Callable[[Callable[[argparse.Namespace], Answer]], Command]:
    """Make a sub-command of a function, with these arguments alone."""
    return lambda run: Command(run, arguments, defaults or {}, has_bar)


def command(
    *arguments: Argument | ArgumentGroup, storage: str = "-s --storage", **more: Any
) -> Callable[[Callable[[argparse.Namespace], Answer]], Command]:
    """Make a sub-command of a function: one of a storage, which prints JSON if that is wanted.

    Args:
        arguments: The arguments of this command.
        storage: The names of the option for the storage.
        more: As for `plain_command`.
    """
    where = declared(
        f"""
        {storage} STORAGE  the storage: a folder of caches, s3://bucket/prefix or gs://bucket/prefix
            (default: the current folder, if it has caches)
        --json  print one JSON document
        """
    )
    return plain_command(*arguments, *where, BUCKETS, **more)


def key_of(storage: CacheStorage, version: Any) -> dict[str, Any]:  # an object with an id and a version
    """Return where a version is and what it is called, for JSON; the arguments of a command name one, too."""
    return {"storage": storage.location, "id": version.id, "version": version.version}


ID: Final = declared("ID  the name of the dataset")
# A version to build or delete.
KEY: Final = (*ID, *declared("VERSION  the name of the version"))
# A version to read: ID VERSION, or ID@TAG.
TAGGED: Final = declared(
    """
    ID  the name of the dataset; or ID@TAG, or ID@VERSION
    [VERSION]  the name of the version, or a tag
    """
)
BUCKETS: Final = ArgumentGroup(
    "buckets, and folders that several machines share",
    declared(
        """
        --endpoint-url URL  the URL of the store, if it is not AWS or Google
        --region REGION  the region of an S3 bucket
        --profile NAME  the profile of the AWS configuration to use
        --anonymous  read a public bucket without credentials
        --shared  several machines build in this folder, as on NFS
        --foreign URL...  adopted files of this storage may lie here, in a bucket with these options
        --mirror FOLDER  where this machine keeps copies of what it reads from a bucket; none: keep no copies
        --mirror-limit SIZE  the size that the mirror may have, e.g. 200GB
        --mirror-fill {auto,always,never}  when a cache that is read by range is downloaded to the mirror, too
            (default: auto)
        --verify {block}  read whole blocks when reading by range, and compare them with their checksums
        """,
        foreign=typed(parse_url),
        mirror_limit=typed(parse_size),
    ),
)
TARGET_BUCKET: Final = ArgumentGroup(
    "the bucket to copy to, if it needs other options than the bucket that is read",
    declared(
        """
        --to-endpoint-url URL  the URL of its store
        --to-region REGION  its region
        --to-profile NAME  the profile of the AWS configuration to use
        --to-anonymous  write to it without credentials
        """
    ),
)
MATERIALIZE: Final = declared(
    "--materialize  of an adopted version, copy the records themselves, not only the index of foreign files"
)
WORKERS: Final = declared(
    "--workers COUNT  processes that read the records (default: 0, only this one)",
    workers=typed(number_of("workers", least=0), 0),
)
BATCH: Final = declared(
    "--batch RECORDS  records in a batch (default: 256)", batch=typed(number_of("records"), 256)
)
