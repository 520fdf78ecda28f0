"""Remove a tag; the version that it names stays.

Example:
  yogadl untag squares stable -s /data/caches
"""

import argparse

from yogadl.cli._arguments import add_json, add_storage, open_existing
from yogadl.cli._output import say, say_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the name of the dataset")
    parser.add_argument("tag", metavar="TAG", help="the tag")
    add_storage(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    storage = open_existing(arguments)
    storage.untag(arguments.id, arguments.tag)
    if arguments.json:
        say_json(storage=storage.location, id=arguments.id, tag=arguments.tag)
    else:
        say(f"{arguments.id} has no tag {arguments.tag} any more.")
    return 0
