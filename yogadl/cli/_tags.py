"""Name versions by tags: the sub-commands that set, remove and list them."""

import argparse

from yogadl.cli._arguments import add_json, add_storage, open_existing
from yogadl.cli._output import note, say, say_json, say_table, table
from yogadl.errors import ConfigurationError


def add_tag_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the name of the dataset")
    parser.add_argument("tag", metavar="TAG", help="the tag to make or to move")
    parser.add_argument(
        "version", metavar="VERSION", help="the version that it will name, or another tag of that version"
    )
    add_storage(parser)
    add_json(parser)


def run_tag(arguments: argparse.Namespace) -> int:
    """Give a version a name that can be moved to another version later.

    A command that reads a version accepts a tag in the place of VERSION, or ID@TAG. `yogadl log` shows which
    versions the tag named before.

    Example:
      yogadl tag squares stable 2 -s /data/caches
      yogadl info squares@stable -s /data/caches
    """
    storage = open_existing(arguments)
    try:
        storage.tag(arguments.id, arguments.tag, arguments.version)
    except ConfigurationError:
        versions = storage.versions(arguments.id)
        if arguments.tag not in versions or arguments.version in (*versions, *storage.tags(arguments.id)):
            raise
        suggestion = f"yogadl tag {arguments.id} {arguments.version} {arguments.tag}"
        arguments.refuse(f"{arguments.tag} is a version; you want `{suggestion}`")
    version = storage.tags(arguments.id)[arguments.tag]
    if arguments.json:
        say_json(storage=storage.location, id=arguments.id, tag=arguments.tag, version=version)
    else:
        say(f"{arguments.id}@{arguments.tag} is version {version} now.")
    return 0


def add_untag_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the name of the dataset")
    parser.add_argument("tag", metavar="TAG", help="the tag")
    add_storage(parser)
    add_json(parser)


def run_untag(arguments: argparse.Namespace) -> int:
    """Remove a tag; the version that it names stays.

    Example:
      yogadl untag squares stable -s /data/caches
    """
    storage = open_existing(arguments)
    storage.untag(arguments.id, arguments.tag)
    if arguments.json:
        say_json(storage=storage.location, id=arguments.id, tag=arguments.tag)
    else:
        say(f"{arguments.id} has no tag {arguments.tag} any more.")
    return 0


def add_tags_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the name of the dataset")
    add_storage(parser)
    add_json(parser)


def run_tags(arguments: argparse.Namespace) -> int:
    """List the tags of a dataset, and which version each names.

    Example:
      yogadl tags squares -s /data/caches
    """
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
