"""Manage versions: name them by tags, delete, restore, and free the disk space of them."""

import argparse
import shlex
from typing import Final

from yogadl.cli._arguments import (
    ID,
    KEY,
    Answer,
    ArgumentGroup,
    command,
    declared,
    key_of,
    number_of,
    open_existing,
    storage_option,
    typed,
)
from yogadl.cli._list import info_to_json
from yogadl.cli._output import Bar, counted, day_and_time, note, picked, size, table
from yogadl.errors import ConfigurationError


@command(
    *ID,
    *declared(
        """
        TAG  the tag to make or to move
        VERSION  the version that it will name, or another tag of that version
        """
    ),
)
def tag(arguments: argparse.Namespace) -> Answer:
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
    document = {"storage": storage.location, "id": arguments.id, "tag": arguments.tag, "version": version}
    return Answer(document, [f"{arguments.id}@{arguments.tag} is version {version} now."])


@command(*ID, *declared("TAG  the tag"))
def untag(arguments: argparse.Namespace) -> Answer:
    """Remove a tag; the version that it names stays.

    Example:
      yogadl untag squares stable -s /data/caches
    """
    storage = open_existing(arguments)
    storage.untag(arguments.id, arguments.tag)
    document = {"storage": storage.location} | picked(arguments, "id", "tag")
    return Answer(document, [f"{arguments.id} has no tag {arguments.tag} any more."])


@command(*ID)
def tags(arguments: argparse.Namespace) -> Answer:
    """List the tags of a dataset, and which version each names.

    Example:
      yogadl tags squares -s /data/caches
    """
    storage = open_existing(arguments)
    found = storage.tags(arguments.id)
    if not found and not storage.versions(arguments.id):
        raise storage._backend.catalogue.no_dataset(arguments.id)
    if not found and not arguments.json:
        note(f"{arguments.id} has no tags in {storage.location}")
    listed = [table(("tag", "version"), [list(pair) for pair in found.items()])] if found else []
    return Answer({"storage": storage.location, "id": arguments.id, "tags": found}, listed)


@command(*KEY)
def delete(arguments: argparse.Namespace) -> Answer:
    """Move a version to the trash.

    The command asks for no confirmation, since `yogadl undelete` restores the version. After 30 days
    `yogadl prune` frees the disk space.

    Example:
      yogadl delete squares 1 -s /data/caches
    """
    storage = open_existing(arguments)
    storage.delete(arguments.id, arguments.version)
    key = f"{shlex.quote(arguments.id)} {shlex.quote(arguments.version)}"
    return Answer(
        key_of(storage, arguments),
        [
            f"{arguments.id} {arguments.version} is in the trash; `yogadl prune` removes it after 30 days.",
            "To bring it back:",
            f"  yogadl undelete {key} {storage_option(storage, arguments)}",
        ],
    )


@command(*KEY)
def undelete(arguments: argparse.Namespace) -> Answer:
    """Restore a version that was deleted or replaced.

    If a version of that name exists now, that version is moved to the trash. The same command again undoes
    this.

    Example:
      yogadl undelete squares 1 -s /data/caches
    """
    storage = open_existing(arguments)
    storage.undelete(arguments.id, arguments.version)
    info = storage.info(arguments.id, arguments.version)
    text = f"{counted(info.records, 'record')}, built {day_and_time(info.created)} UTC"
    return Answer(info_to_json(storage, info), [f"{info.id} {info.version} is back: {text}."])


_DAY_S: Final = 86_400.0
_GRACE_DAYS: Final = 30.0


@command(
    ArgumentGroup(
        "",
        declared(
            f"""
            --grace DAYS  keep files that are younger than this (default: {_GRACE_DAYS:.0f})
            --unfinished  remove only the files of builds that were killed or failed
            """,
            grace=typed(number_of("days", float, 0), _GRACE_DAYS),
        ),
    ),
    *declared("--dry-run  list the files that would be removed, and remove nothing"),
    has_bar=True,
)
def prune(arguments: argparse.Namespace) -> Answer:
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
    document = {"storage": storage.location, "is_dry_run": is_dry, "grace_s": None if unfinished else grace_s}
    document |= picked(pruned, "files", "size_bytes")
    if pruned.files:
        verb = "Would remove" if is_dry else "Removed"
        total = f"{verb} {counted(len(pruned.files), 'file')}, {size(pruned.size_bytes)}."
        return Answer(document, [*(f"  {name}" for name in pruned.files if is_dry), total])
    if not unfinished:
        text = f"No file to remove is older than {arguments.grace:g} days."
    elif not arguments.json and storage.unfinished():
        text = (
            "Nothing is removed: files that tasks wrote stay for a day, and so do those of a running build."
        )
    else:
        text = "Unfinished builds hold no files to remove."
    return Answer(document, [text])
