"""Say what differs in how two versions of a dataset were built.

Functions by their changed lines, values and arguments by what they were and are. In parentheses stands what
decides no version but may yet be the reason, such as another version of a library.

Example:
  yogadl explain squares 1 2 -s /data/caches
"""

import argparse
from dataclasses import asdict

from yogadl.cli._arguments import add_json, add_storage, add_tagged
from yogadl.cli._location import open_version
from yogadl.cli._output import say, say_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_tagged(parser, other="the other version, or its tag")
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
