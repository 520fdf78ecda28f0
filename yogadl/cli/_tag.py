"""Give a version a name that can be moved to another version later.

A command that reads a version accepts a tag in the place of VERSION, or ID@TAG. `yogadl log` shows which
versions the tag named before.

Example:
  yogadl tag squares stable 2 -s /data/caches
  yogadl info squares@stable -s /data/caches
"""

import argparse

from yogadl.cli._arguments import add_json, add_storage, open_existing
from yogadl.cli._output import say, say_json
from yogadl.errors import ConfigurationError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the name of the dataset")
    parser.add_argument("tag", metavar="TAG", help="the tag to make or to move")
    parser.add_argument(
        "version", metavar="VERSION", help="the version that it will name, or another tag of that version"
    )
    add_storage(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    storage = open_existing(arguments)
    try:
        storage.tag(arguments.id, arguments.tag, arguments.version)
    except ConfigurationError:
        versions = storage.versions(arguments.id)
        if arguments.tag not in versions or arguments.version in (*versions, *storage.tags(arguments.id)):
            raise
        meant = f"yogadl tag {arguments.id} {arguments.version} {arguments.tag}"
        arguments.refuse(f"{arguments.tag} is a version; you want `{meant}`")
    version = storage.tags(arguments.id)[arguments.tag]
    if arguments.json:
        say_json(storage=storage.location, id=arguments.id, tag=arguments.tag, version=version)
    else:
        say(f"{arguments.id}@{arguments.tag} is version {version} now.")
    return 0
