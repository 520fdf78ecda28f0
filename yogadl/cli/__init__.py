"""Run the `yogadl` command: find the sub-command, and turn errors into one line and an exit code.

A sub-command is a function `run_<name>(arguments)` of a module of this package, which returns the exit code;
its docstring is the sub-command's help. `add_<name>_arguments(parser)` is beside it. A module with the name
of its only sub-command has `run`, `add_arguments`, and the help in its own docstring. `COMMANDS` lists all
sub-commands. A module is imported only when one of its sub-commands runs.
"""

import argparse
import contextlib
import difflib
import inspect
import io
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from yogadl._core.key import is_dataset_id, library_version
from yogadl.cli._output import error_line, note, stop_waiting, wait
from yogadl.errors import YogaError

_FAILED: Final = 1
_USAGE_ERROR: Final = 2  # as argparse exits
_INTERRUPTED: Final = 128 + 2  # as shells report a process that was ended by Ctrl-C


# These lines repeat the first lines of the docstrings, so that `yogadl --help` imports none of the modules.
# A test compares them.
_GROUPS: Final[Mapping[str, Mapping[str, str]]] = {
    "See what there is": {
        "ls": "List the datasets and their versions.",
        "info": "Show the size, the fields and the origin of a version.",
        "head": "Show the first records of a version.",
        "report": "Write a page about a version.",
        "explain": "Say what differs in how two versions of a dataset were built.",
        "log": "Show the history of a dataset: its versions and its tags.",
        "tags": "List the tags of a dataset, and which version each names.",
        "verify": "Read every byte of a version and compare it with its checksums.",
        "plan": "Estimate what reading a version takes and costs, in advance.",
        "bench": "Compare the speed of reading a version with numpy arrays in RAM.",
    },
    "Build and convert": {
        "build": "Build a version from a function in a Python file.",
        "adopt": "Build a version whose values stay in files of other libraries.",
        "refresh": "Build a version of adopted files as they are now.",
        "append": "Build a version from an earlier version and new records.",
        "recompress": "Build a version with the records of another, compressed or not.",
        "export": "Write a version to files that other programs read.",
        "import-014": "Turn a cache of yogadl 0.1.4 into a new one.",
        "demo": "Show in a few seconds what a cache does.",
    },
    "Copy, and use buckets": {
        "pull": "Download a version from a bucket to this machine.",
        "push": "Copy a version to a bucket, or to any other storage.",
        "doctor": "Check that a storage can be used; say how to solve each problem.",
    },
    "Manage versions": {
        "tag": "Give a version a name that can be moved to another version later.",
        "untag": "Remove a tag; the version that it names stays.",
        "rm": "Move a version to the trash.",
        "undelete": "Restore a version that was deleted or replaced.",
        "prune": "Erase the versions that have been in the trash for a while.",
        "completion": "Print the code that lets your shell complete commands and names.",
    },
}
COMMANDS: Final[Mapping[str, str]] = {
    name: line for group in _GROUPS.values() for name, line in group.items()
}

# The module of each sub-command.
_MODULES: Final[Mapping[str, str]] = {
    "adopt": "_adopt", "refresh": "_adopt",
    "append": "_build", "build": "_build", "recompress": "_build",
    "bench": "_bench", "plan": "_bench",
    "completion": "_completion",
    "demo": "_demo",
    "doctor": "_checking", "verify": "_checking",
    "explain": "_list", "info": "_list", "log": "_list", "ls": "_list",
    "export": "_copying", "import-014": "_copying", "pull": "_copying", "push": "_copying",
    "head": "_head",
    "prune": "_managing", "rm": "_managing", "undelete": "_managing",
    "report": "_report",
    "tag": "_managing", "tags": "_managing", "untag": "_managing",
}  # fmt: skip

# Sub-commands that show no progress bar; `wait` shows a line in its place.
_WITHOUT_PROGRESS_BAR: Final = frozenset(
    ("ls", "info", "head", "explain", "log", "tags", "plan", "report", "tag", "untag", "rm", "undelete")
)

_EXAMPLE: Final = """\
Example, with a file data.py that has a function `squares`:
  yogadl build data.py:squares squares 1 -s /data/caches
  yogadl head squares 1 -s /data/caches

`yogadl COMMAND -h` describes a command. Exit codes: 0 done, 1 failed or
damage found, 2 invalid arguments, 130 interrupted.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a sub-command and return the exit code.

    Args:
        argv: The arguments after the command's name; by default the arguments of this process.

    Raises:
        SystemExit: after ``--help`` and ``--version``, with 0.
    """
    if sys.stdout is None:  # the caller closed it
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (until the end)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # the terminal may be unable to show a name
    words = sys.argv[1:] if argv is None else argv
    try:
        if "_ARGCOMPLETE" in os.environ:  # argcomplete of the shell calls the command to complete a line
            _complete()
        arguments = _parse(words)
        if arguments.command in _WITHOUT_PROGRESS_BAR:
            wait(f"yogadl {arguments.command}")
        with _warnings_in_one_line():
            code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except _UsageError as error:
        note(str(error), "red")
        return _USAGE_ERROR
    except BrokenPipeError:
        # The reader of stdout has closed the pipe. The flush of the rest at exit must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _FAILED
    except (YogaError, OSError) as error:
        note(error_line(error), "red")
        return _FAILED
    except KeyboardInterrupt:
        note("interrupted")
        return _INTERRUPTED
    finally:
        stop_waiting()


def _complete() -> None:
    """Print the completions for the shell, and exit."""
    from yogadl.cli._completion import complete

    complete(_parser(os.environ.get("COMP_LINE", "").split()[1:]))


class Command(NamedTuple):
    """A sub-command: its help, and its functions."""

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def command_named(name: str) -> Command:
    """Return a sub-command, whose module is loaded."""
    suffix = name.replace("-", "_")
    module = import_module(f"yogadl.cli.{_MODULES[name]}")
    run = getattr(module, f"run_{suffix}")
    described = inspect.cleandoc(run.__doc__ or COMMANDS[name])
    return Command(described, getattr(module, f"add_{suffix}_arguments"), run)


class _UsageError(Exception):
    """Invalid arguments; `positionals` are the names of the positional arguments that the command takes."""

    def __init__(self, message: str, positionals: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.positionals = positionals


class _Parser(argparse.ArgumentParser):
    """A parser that raises `_UsageError` where argparse would print the usage and exit."""

    def error(self, message: str) -> NoReturn:
        raise _UsageError(f"{message}; see `{self.prog} -h`", _positionals(self))


def _positionals(parser: argparse.ArgumentParser) -> list[str]:
    return [action.dest for action in parser._actions if not action.option_strings]


def _parse(words: Sequence[str]) -> argparse.Namespace:
    """Return the parsed arguments.

    Raises:
        _UsageError: if the arguments are invalid; where a path stands in the place of an id, the message
            names the command that is likely meant.
    """
    try:
        arguments, unknown = _parser(words).parse_known_args(words)
    except _UsageError as error:
        command = _command_of(words)
        if command is not None and command not in COMMANDS:
            raise _UsageError(_unknown_message(command)) from None
        # `rm caches/squares/1` lacks VERSION, for example
        _refuse_path(_partly_parsed(words, error.positionals))
        raise
    _refuse_path(arguments)
    if unknown:
        arguments.refuse(f"unrecognized arguments: {' '.join(unknown)}")
    return arguments


def _command_of(words: Sequence[str]) -> str | None:
    return next((word for word in words if not word.startswith("-")), None)


def _unknown_message(command: str) -> str:
    similar = difflib.get_close_matches(command, COMMANDS, 1)
    suggestion = f"you want `yogadl {similar[0]}`; " if similar else ""
    return f"there is no command {command!r}; {suggestion}`yogadl -h` lists all"


def _partly_parsed(words: Sequence[str], positionals: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of a command line that lacks some, as far as they can be assigned."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-s", "--storage", nargs="?")
    parser.add_argument("command", nargs="?")
    parser.add_argument("given", nargs="*")
    guessed, _ = parser.parse_known_args(words)
    vars(guessed).update(zip(positionals, guessed.given, strict=False), positionals=positionals)
    return guessed


def _refuse_path(arguments: argparse.Namespace) -> None:
    """Raise a `_UsageError` where a path stands in the place of an id."""
    if (message := mistaken_path(arguments)) is not None:
        raise _UsageError(message)


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser; of the sub-commands, only the one that is called gets its arguments."""
    parser = _Parser(
        prog="yogadl",
        usage="yogadl COMMAND ...",
        description="\n\n".join(["Build, read and look after caches of datasets.", *_group_lines()]),
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(
        prog="yogadl", dest="command", metavar="COMMAND", required=True, help=argparse.SUPPRESS
    )
    chosen = _command_of(words)
    for name in COMMANDS:
        if name == chosen:
            _add_command(commands, name)
        else:
            commands.add_parser(name)
    options = parser.add_argument_group("Options")
    options.add_argument("-h", "--help", action="help", help="show this and exit")
    options.add_argument(
        "--version",
        action="version",
        version=f"yogadl {library_version()}",
        help="show the version and exit",
    )
    return parser


def _add_command(commands: Any, name: str) -> None:  # argparse names no type for what add_subparsers returns
    command = command_named(name)
    subparser = commands.add_parser(
        name,
        description=command.help.rstrip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_arguments(subparser)
    subparser.set_defaults(run=command.run, refuse=subparser.error, positionals=_positionals(subparser))


def _group_lines() -> Iterator[str]:
    for title, group in _GROUPS.items():
        lines = [f"    {name:<10} {line[:1].lower()}{line[1:].rstrip('.')}" for name, line in group.items()]
        yield "\n".join([f"{title}:", *lines])


@contextlib.contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    """Show warnings of this library in one line, as its errors; warnings of other code keep their form."""
    package = str(Path(__file__).parents[1])

    def show(
        message: Warning | str, category: type[Warning], filename: str, *rest: Any, **named: Any
    ) -> None:
        if filename.startswith(package):
            note(f"warning: {' '.join(str(message).split())}", "yellow")
        else:
            before(message, category, filename, *rest, **named)

    with warnings.catch_warnings():
        before = warnings.showwarning
        warnings.showwarning = show
        yield


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
        elif isinstance(several := getattr(arguments, name, None), list):
            yield from several
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
