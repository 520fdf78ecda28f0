"""Bring back what was thrown away or replaced last.

A version that was replaced can be brought back too, once the one in its place is thrown away: then
`undelete` twice, for the last one thrown away comes first.

Example:
  yogadl undelete squares 1 -s /data/caches
"""

import argparse

from yogadl.cli._location import add_key, add_storage, open_existing
from yogadl.cli._output import counted, day_and_time, say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_key(parser)
    add_storage(parser)


def run(arguments: argparse.Namespace) -> int:
    """Bring it back."""
    storage = open_existing(arguments.storage)
    storage.undelete(arguments.id, arguments.version)
    info = storage.info(arguments.id, arguments.version)
    built = day_and_time(info.created)
    say(f"{info.id} {info.version} is back: {counted(info.records, 'record')}, built {built} UTC.")
    return 0
