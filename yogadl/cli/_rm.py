"""Move a version to the trash.

The command asks for no confirmation, since `yogadl undelete` restores the version. After 30 days
`yogadl prune` frees the disk space.

Example:
  yogadl rm squares 1 -s /data/caches
"""

import argparse
import shlex

from yogadl.cli._arguments import add_json, add_key, add_storage, open_existing, option_for
from yogadl.cli._output import say, say_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_key(parser)
    add_storage(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    storage = open_existing(arguments)
    storage.delete(arguments.id, arguments.version)
    if arguments.json:
        say_json(storage=storage.location, id=arguments.id, version=arguments.version)
        return 0
    key = f"{shlex.quote(arguments.id)} {shlex.quote(arguments.version)}"
    say(f"{arguments.id} {arguments.version} is in the trash; `yogadl prune` removes it after 30 days.")
    say("To bring it back:")
    say(f"  yogadl undelete {key} {option_for(storage, arguments)}")
    return 0
