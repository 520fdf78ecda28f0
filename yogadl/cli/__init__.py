"""Run the `yogadl` command: find the sub-command, and turn errors into one line and an exit code.

A sub-command is a file of its own beside this one: its docstring's first line is its help, and it has
`add_arguments` and `run`. `COMMANDS` lists them all.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Final, Protocol

from yogadl.cli import _demo
from yogadl.errors import YogaError

_FAILED: Final = 1
_INTERRUPTED: Final = 128 + 2  # what a shell says of a process that Ctrl-C ended


class Command(Protocol):
    """What the module of a sub-command offers."""

    __doc__: str | None

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the sub-command's own arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Do it, and return the exit code."""


COMMANDS: Final[Mapping[str, Command]] = {"demo": _demo}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a sub-command and return the exit code.

    Args:
        argv: The arguments after the command's name; those of this process if not given.

    Raises:
        SystemExit: after ``--help`` and ``--version`` with 0, after arguments that make no sense with 2.
    """
    arguments = _parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Whoever read our output has seen enough. What is left must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _FAILED
    except YogaError as error:
        print(f"yogadl: {_line(error)}", file=sys.stderr)
        return _FAILED
    except KeyboardInterrupt:
        print("yogadl: interrupted", file=sys.stderr)
        return _INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    version = files("yogadl").joinpath("VERSION").read_text("utf-8").strip()
    parser = argparse.ArgumentParser(
        prog="yogadl", description="Build, read and look after caches of datasets."
    )
    parser.add_argument("--version", action="version", version=f"yogadl {version}")
    commands = parser.add_subparsers(metavar="command", required=True)
    for name, command in COMMANDS.items():
        text = (command.__doc__ or "").partition("\n")[0]
        one = commands.add_parser(name, help=text[:1].lower() + text[1:].rstrip("."), description=text)
        command.add_arguments(one)
        one.set_defaults(run=command.run)
    return parser


def _line(error: YogaError) -> str:
    """Return the error's message as one line, without the number that an OSError puts before it."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
    return " ".join(text.split())
