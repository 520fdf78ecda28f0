"""Say what differs in how two versions of a dataset were built.

Functions by their changed lines, values and arguments by what they were and are. In parentheses stands what
decides no version but may yet be the reason, such as another version of a library.

Example:
  yogadl explain squares 1 2 -s /data/caches
"""

import argparse

from yogadl.cli._arguments import add_json, add_storage
from yogadl.cli._location import open_existing
from yogadl.cli._output import say, say_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("id", metavar="ID", help="what the dataset is called")
    parser.add_argument("version", metavar="VERSION", help="one version of it")
    parser.add_argument("other", metavar="OTHER", help="the other version")
    add_storage(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Say it."""
    storage = open_existing(arguments)
    found = storage.explain(arguments.id, arguments.version, arguments.other)
    if arguments.json:
        differences = [
            {"what": one.what, "before": one.before, "after": one.after} for one in found.differences
        ]
        document = {"storage": storage.location, "id": found.id, "version": found.version}
        say_json({**document, "other": found.other, "differences": differences, "notes": list(found.notes)})
        return 0
    for line in str(found).splitlines():
        say(line)
    return 0
