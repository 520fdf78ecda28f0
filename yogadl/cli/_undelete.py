"""Restore a version that was deleted or replaced.

If a version of that name exists now, that version is moved to the trash. The same command again undoes this.

Example:
  yogadl undelete squares 1 -s /data/caches
"""

import argparse

from yogadl.cli._arguments import add_json, add_key, add_storage, open_existing
from yogadl.cli._info import info_to_json
from yogadl.cli._output import counted, day_and_time, say, say_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_key(parser)
    add_storage(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    storage = open_existing(arguments)
    storage.undelete(arguments.id, arguments.version)
    info = storage.info(arguments.id, arguments.version)
    if arguments.json:
        say_json(storage=storage.location, **info_to_json(info))
        return 0
    built = day_and_time(info.created)
    say(f"{info.id} {info.version} is back: {counted(info.records, 'record')}, built {built} UTC.")
    return 0
