"""Manage versions: name them by tags, delete, restore, and free the disk space of them."""

import argparse
import shlex
from typing import Final

from yogadl.cli._arguments import add_json, add_key, add_storage, number_of, open_existing, storage_option
from yogadl.cli._list import info_to_json
from yogadl.cli._output import Bar, counted, day_and_time, note, say, say_json, say_table, size, table
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


def add_rm_arguments(parser: argparse.ArgumentParser) -> None:
    add_key(parser)
    add_storage(parser)
    add_json(parser)


def run_rm(arguments: argparse.Namespace) -> int:
    """Move a version to the trash.

    The command asks for no confirmation, since `yogadl undelete` restores the version. After 30 days
    `yogadl prune` frees the disk space.

    Example:
      yogadl rm squares 1 -s /data/caches
    """
    storage = open_existing(arguments)
    storage.delete(arguments.id, arguments.version)
    if arguments.json:
        say_json(storage=storage.location, id=arguments.id, version=arguments.version)
        return 0
    key = f"{shlex.quote(arguments.id)} {shlex.quote(arguments.version)}"
    say(f"{arguments.id} {arguments.version} is in the trash; `yogadl prune` removes it after 30 days.")
    say("To bring it back:")
    say(f"  yogadl undelete {key} {storage_option(storage, arguments)}")
    return 0


def add_undelete_arguments(parser: argparse.ArgumentParser) -> None:
    add_key(parser)
    add_storage(parser)
    add_json(parser)


def run_undelete(arguments: argparse.Namespace) -> int:
    """Restore a version that was deleted or replaced.

    If a version of that name exists now, that version is moved to the trash. The same command again undoes
    this.

    Example:
      yogadl undelete squares 1 -s /data/caches
    """
    storage = open_existing(arguments)
    storage.undelete(arguments.id, arguments.version)
    info = storage.info(arguments.id, arguments.version)
    if arguments.json:
        say_json(storage=storage.location, **info_to_json(info))
        return 0
    built = day_and_time(info.created)
    say(f"{info.id} {info.version} is back: {counted(info.records, 'record')}, built {built} UTC.")
    return 0


_DAY_S: Final = 86_400.0
_GRACE_DAYS: Final = 30.0


def add_prune_arguments(parser: argparse.ArgumentParser) -> None:
    add_storage(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--grace",
        metavar="DAYS",
        type=number_of("days", float, 0),
        default=_GRACE_DAYS,
        help=f"keep files that are younger than this (default: {_GRACE_DAYS:.0f})",
    )
    what.add_argument(
        "--unfinished", action="store_true", help="remove only the files of builds that were killed or failed"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="list the files that would be removed, and remove nothing"
    )
    add_json(parser)


def run_prune(arguments: argparse.Namespace) -> int:
    """Erase the versions that have been in the trash for a while.

    The command removes versions that were deleted or replaced more than --grace days ago, and files of that
    age that no version uses, such as those of a killed build. With a grace of 0 days the trash is emptied
    now; a job that still reads a version in the trash then fails.

    --unfinished removes only the files of builds that were killed or failed, and removes them at once.

    Example:
      yogadl prune --dry-run -s /data/caches
      yogadl prune --grace 7 -s /data/caches
      yogadl prune --unfinished -s /data/caches
    """
    storage = open_existing(arguments)
    is_dry: bool = arguments.dry_run
    unfinished: bool = arguments.unfinished
    grace_s = arguments.grace * _DAY_S
    with Bar("pruning", None, " files and datasets") as bar:
        pruned = storage.prune(
            grace_s=grace_s,
            dry_run=is_dry,
            unfinished=unfinished,
            progress=lambda datasets, files: bar.show(datasets + files),
        )
    if arguments.json:
        found = {"files": pruned.files, "size_bytes": pruned.size_bytes}
        say_json(
            storage=storage.location, is_dry_run=is_dry, grace_s=None if unfinished else grace_s, **found
        )
        return 0
    if not pruned.files:
        if unfinished and storage.unfinished():
            say(
                "Nothing is removed: files that tasks wrote stay for a day, and so do those of a running "
                "build."
            )
            return 0
        old = f"No file to remove is older than {arguments.grace:g} days."
        say("Unfinished builds hold no files to remove." if unfinished else old)
        return 0
    if is_dry:
        for name in pruned.files:
            say(f"  {name}")
    verb = "Would remove" if is_dry else "Removed"
    say(f"{verb} {counted(len(pruned.files), 'file')}, {size(pruned.size_bytes)}.")
    return 0
