"""List the tags of a dataset, and which version each names.

Example:
  yogadl tags squares -s /data/caches
"""

import argparse

from yogadl.cli._arguments import add_json, add_storage, open_existing
from yogadl.cli._output import note, say_json, say_table, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the name of the dataset")
    add_storage(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    storage = open_existing(arguments)
    found = storage.tags(arguments.id)
    if not found and not storage.versions(arguments.id):
        raise storage._backend.catalogue.no_dataset(arguments.id)
    if arguments.json:
        say_json(storage=storage.location, id=arguments.id, tags=found)
    elif found:
        say_table(table(("tag", "version"), [list(pair) for pair in found.items()]))
    else:
        note(f"{arguments.id} has no tags in {storage.location}")
    return 0
