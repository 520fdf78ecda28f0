"""Let shells complete commands and names."""

import argparse
from typing import Any

from yogadl.cli._arguments import Answer, declared, open_existing, plain_command
from yogadl.errors import MissingDependencyError


@plain_command(*declared("shell={bash,zsh,fish}  your shell"))
def completion(arguments: argparse.Namespace) -> Answer:
    """Print the code that lets your shell complete commands and names.

    Put the line for your shell, see below, into the shell's start-up file. Completion needs argcomplete:
    pip install 'yogadl[completion]'.

    Example:
      eval "$(yogadl completion bash)"
      eval "$(yogadl completion zsh)"
      yogadl completion fish | source
    """
    print(_argcomplete().shellcode(["yogadl"], shell=arguments.shell))
    return Answer()


def complete(parser: argparse.ArgumentParser) -> None:
    """Print the completions for the shell, and exit."""
    for action in _actions(parser):
        if action.dest in ("id", "version"):
            action.completer = _names  # type: ignore[attr-defined]  # argcomplete reads this attribute
    _argcomplete().autocomplete(parser)


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    found = list(parser._actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                found += _actions(one)
    return found


def _names(prefix: str, action: argparse.Action, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """Return ids of datasets, or versions and tags; nothing for a bucket, which would answer too slowly."""
    location = getattr(parsed_args, "storage", None)
    if location is not None and "://" in location:
        return []
    storage = open_existing(parsed_args)
    if action.dest == "id":
        return storage.datasets()
    return [*storage.versions(parsed_args.id), *storage.tags(parsed_args.id)]


def _argcomplete() -> Any:
    try:
        import argcomplete
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "shell completion needs argcomplete: pip install 'yogadl[completion]'"
        ) from error
    return argcomplete
