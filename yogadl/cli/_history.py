"""Show how versions of a dataset came about, and what differs between two."""

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from yogadl.cli._arguments import add_json, add_storage, add_tagged, open_existing, open_version
from yogadl.cli._output import counted, day_and_time, moment, note, say, say_json, size
from yogadl.storage import LoggedVersion, TagMove


def add_log_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the name of the dataset")
    add_storage(parser)
    add_json(parser)


def run_log(arguments: argparse.Namespace) -> int:
    """Show the history of a dataset: its versions and its tags.

    Each version is listed with the changes since the previous version, and each move of a tag with the
    version that the tag named afterwards. The oldest entry comes first. Files that two versions share are
    on the disk only once: see `storage.append`.

    Example:
      yogadl log squares -s /data/caches
    """
    storage = open_existing(arguments)
    log = storage.log(arguments.id)
    for version, problem in log.damaged.items():
        note(f"{log.id} {version}: {problem}")
    if arguments.json:
        versions = [_to_json(one) for one in log.versions]
        moves = [vars(one) | {"moved": moment(one.moved)} for one in log.moves]
        say_json(storage=storage.location, id=log.id, versions=versions, tags=moves, damaged=log.damaged)
        return int(bool(log.damaged))
    events = [(one.created, list(_lines(one))) for one in log.versions]
    events += [(move.moved, [_line_of(move)]) for move in log.moves]
    for _, lines in sorted(events, key=lambda event: event[0]):
        for line in lines:
            say(line)
    return int(bool(log.damaged))


def _lines(logged: LoggedVersion) -> Iterator[str]:
    tags = f"  ({', '.join(logged.tags)})" if logged.tags else ""
    yield f"{day_and_time(logged.created)}  version {logged.version}{tags}"
    what = f"{counted(logged.records, 'record')} in {counted(logged.parts, 'file')}"
    if logged.before is None:
        yield f"    {what}, {size(logged.added_bytes)}"
        return
    added, shared = size(logged.added_bytes), size(logged.shared_bytes)
    yield f"    {what}; {added} added, {shared} shared with {logged.before}"
    assert logged.explanation is not None  # an entry with a previous version has an explanation
    for line in str(logged.explanation).splitlines()[1:]:
        yield f"  {line}"


def _line_of(move: TagMove) -> str:
    what = "removed" if move.version is None else f"-> version {move.version}"
    return f"{day_and_time(move.moved)}  tag {move.tag} {what}"


def _to_json(logged: LoggedVersion) -> dict[str, Any]:
    document = {name: value for name, value in vars(logged).items() if name not in ("explanation", "earlier")}
    document["created"] = moment(logged.created)
    document["earlier"] = [dict(vars(earlier)) for earlier in logged.earlier]
    explanation = logged.explanation
    document["differences"] = [asdict(each) for each in explanation.differences] if explanation else []
    document["notes"] = list(explanation.notes) if explanation else []
    return document


def add_explain_arguments(parser: argparse.ArgumentParser) -> None:
    add_tagged(parser, other="the version to compare it with, or a tag")
    add_storage(parser)
    add_json(parser)


def run_explain(arguments: argparse.Namespace) -> int:
    """Say what differs in how two versions of a dataset were built.

    For a function the command shows the lines that changed, for a value or an argument the old and the new
    value. Lines in parentheses have no influence on the version, but may explain a difference: another
    version of a library, for example.

    Example:
      yogadl explain squares 1 2 -s /data/caches
    """
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
