"""Say what differs in how two versions of a dataset were built.

For a function the command shows the lines that changed, for a value or an argument the old and the new value.
Lines in parentheses have no influence on the version, but may explain a difference: another version of a
library, for example.

Example:
  yogadl explain squares 1 2 -s /data/caches
"""

import argparse
from dataclasses import asdict

from yogadl.cli._arguments import add_json, add_storage, add_tagged, open_version
from yogadl.cli._output import say, say_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_tagged(parser, other="the version to compare it with, or a tag")
    add_storage(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    storage = open_version(arguments, "other")
    found = storage.explain(arguments.id, arguments.version, arguments.other)
    if arguments.json:
        key = {"id": found.id, "version": found.version, "other": found.other}
        differences = [asdict(one) for one in found.differences]
        say_json(storage=storage.location, **key, differences=differences, notes=found.notes)
        return 0
    for line in str(found).splitlines():
        say(line)
    return 0
