"""Run the `yogadl` command: find the sub-command, and turn errors into one line and an exit code.

`_GROUPS` is the table of the sub-commands. A row names the module of a sub-command, which has it under its
own name: a function, declared by `_arguments.command` with the arguments that it takes. Its docstring is the
help, and the `Answer` that it returns is what is printed, for people or as JSON. Errors, exit codes, `--json`
and progress are written here once. A module is imported only when one of its sub-commands runs.
"""

import argparse
import contextlib
import difflib
import io
import os
import shlex
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from yogadl._core.key import is_dataset_id, library_version
from yogadl.cli._output import error_line, note, say, say_json, say_table, stop_waiting, wait
from yogadl.errors import YogaError

if TYPE_CHECKING:
    from yogadl.cli._arguments import Command


class Exit(IntEnum):
    """The exit codes; a sub-command that finds damage or problems returns `FAILED` in its answer."""

    DONE = 0
    FAILED = 1
    USAGE = 2  # as argparse exits
    INTERRUPTED = 128 + 2  # as shells report a process that was ended by Ctrl-C


class Row(NamedTuple):
    """A sub-command in the table: its line in the help, its module, and another name that it has.

    The line repeats the first line of the function's docstring, so that `yogadl --help` imports no module. A
    test compares them.
    """

    line: str
    module: str
    alias: str = ""


_GROUPS: Final[Mapping[str, Mapping[str, Row]]] = {
    "See what there is": {
        "ls": Row("List the datasets and their versions.", "_list"),
        "info": Row("Show the size, the fields and the origin of a version.", "_list"),
        "head": Row("Show the first records of a version.", "_head"),
        "report": Row("Write a page about a version.", "_report_page"),
        "explain": Row("Say what differs in how two versions of a dataset were built.", "_list"),
        "log": Row("Show the history of a dataset: its versions and its tags.", "_list"),
        "tags": Row("List the tags of a dataset, and which version each names.", "_managing"),
        "verify": Row("Read every byte of a version and compare it with its checksums.", "_checking"),
        "plan": Row("Estimate what reading a version takes and costs, in advance.", "_bench"),
        "bench": Row("Compare the speed of reading a version with numpy arrays in RAM.", "_bench"),
    },
    "Build and convert": {
        "build": Row("Build a version from a function in a Python file.", "_build"),
        "adopt": Row("Build a version whose values stay in files of other libraries.", "_adopt"),
        "refresh": Row("Build a version of adopted files as they are now.", "_adopt"),
        "append": Row("Build a version from an earlier version and new records.", "_build"),
        "recompress": Row("Build a version with the records of another, compressed or not.", "_build"),
        "export": Row("Write a version to files that other programs read.", "_copying"),
        "import-014": Row("Turn a cache of yogadl 0.1.4 into a new one.", "_copying"),
        "demo": Row("Show in a few seconds what a cache does.", "_demo"),
    },
    "Copy, and use buckets": {
        "pull": Row("Download a version from a bucket to this machine.", "_copying"),
        "push": Row("Copy a version to a bucket, or to any other storage.", "_copying"),
        "doctor": Row("Check that a storage can be used; say how to solve each problem.", "_checking"),
    },
    "Manage versions": {
        "tag": Row("Give a version a name that can be moved to another version later.", "_managing"),
        "untag": Row("Remove a tag; the version that it names stays.", "_managing"),
        "delete": Row("Move a version to the trash.", "_managing", alias="rm"),
        "undelete": Row("Restore a version that was deleted or replaced.", "_managing"),
        "prune": Row("Erase the versions that have been in the trash for a while.", "_managing"),
        "completion": Row("Print the code that lets your shell complete commands and names.", "_completion"),
    },
}
COMMANDS: Final = {name: row for group in _GROUPS.values() for name, row in group.items()}
_ALIASES: Final = {row.alias: name for name, row in COMMANDS.items() if row.alias}
NAMES: Final = (*COMMANDS, *_ALIASES)

_EXAMPLE: Final = """\
Example, with a file data.py that has a function `squares`:
  yogadl build data.py:squares squares 1 -s /data/caches
  yogadl head squares 1 -s /data/caches

`yogadl COMMAND -h` describes a command. Exit codes: 0 done, 1 failed or
damage found, 2 invalid arguments, 130 interrupted.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a sub-command and return the exit code; without any arguments, print which there are.

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
    try:
        code = _run(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
        return code
    except _UsageError as error:
        note(str(error), "red")
        return Exit.USAGE
    except BrokenPipeError:
        # The reader of stdout has closed the pipe. The flush of the rest at exit must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.FAILED
    except (YogaError, OSError) as error:
        note(error_line(error), "red")
        return Exit.FAILED
    except KeyboardInterrupt:
        note("interrupted")
        return Exit.INTERRUPTED
    finally:
        stop_waiting()


def _run(words: Sequence[str]) -> int:
    if "_ARGCOMPLETE" in os.environ:  # argcomplete of the shell calls the command to complete a line
        from yogadl.cli._completion import complete

        complete(_parser(os.environ.get("COMP_LINE", "").split()[1:]))
    if not words:
        _say_commands()
        return Exit.USAGE
    arguments = _parse(words)
    called: Command = arguments.called
    if not called.has_bar:
        wait(f"yogadl {arguments.command}")
    with _warnings_in_one_line():
        answer = called.run(arguments)
        if arguments.json:
            say_json(**answer.document)
        else:
            for line in answer.lines:
                say_table(line) if isinstance(line, list) else say(line)
    return answer.code


def _say_commands() -> None:
    """Print the names of all commands, on one screen."""
    say("yogadl COMMAND ...: build, read and look after caches of datasets.")
    for title, group in _GROUPS.items():
        say()
        say(title, "bold")
        say(f"  {'  '.join(group)}")
    say()
    say("`yogadl -h` says what each does, `yogadl COMMAND -h` describes one,")
    say("`yogadl demo` shows in a few seconds what a cache does.")


def command_named(name: str) -> "Command":
    """Return a sub-command, whose module is loaded."""
    name = _ALIASES.get(name, name)
    module = import_module(f"yogadl.cli.{COMMANDS[name].module}")
    found: Command = getattr(module, name.replace("-", "_"))
    return found


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
        if command is not None and command not in NAMES:
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
    similar = difflib.get_close_matches(command, NAMES, 1)
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
    for name in NAMES:
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
    called = command_named(name)
    subparser = commands.add_parser(
        name,
        description=called.help,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    called.add_arguments(subparser)
    subparser.set_defaults(called=called, refuse=subparser.error, positionals=_positionals(subparser))


def _group_lines() -> Iterator[str]:
    for title, group in _GROUPS.items():
        lines = [f"    {name:<10} {row.line[:1].lower()}{row.line[1:-1]}" for name, row in group.items()]
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
