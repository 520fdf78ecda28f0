"""Copy a version to another storage, and say so: what `pull` and `push` share."""

import argparse

from yogadl.cli._location import open_at, option_of
from yogadl.cli._output import Bar, counted, say, say_json, size
from yogadl.storage import CacheStorage
from yogadl.storage._copy import copy


def copy_to(storage: CacheStorage, location: str, arguments: argparse.Namespace) -> int:
    """Copy the version that was asked for to the storage at a location."""
    target = open_at(location, _for_target(storage.location, location, arguments))
    info = storage.info(arguments.id, arguments.version)
    with Bar("copying", info.size_bytes) as bar:
        is_new = copy(
            storage,
            target,
            info.id,
            info.version,
            replaces=arguments.replace,
            progress=lambda done, total: bar.show(info.size_bytes - total + done),
        )
    if arguments.json:
        say_json(
            {
                "storage": storage.location,
                "to": target.location,
                "id": info.id,
                "version": info.version,
                "was_copied": is_new,
                "size_bytes": info.size_bytes,
                "digest": info.digest,
            }
        )
    elif is_new:
        what = f"{size(info.size_bytes)} in {counted(info.parts, 'file')}"
        say(
            f"{info.id} {info.version} is in {target.location} now: {counted(info.records, 'record')}, {what}"
        )
    else:
        say(f"{info.id} {info.version} is in {target.location} already.")
    return 0


def refuse_needless_for_target(arguments: argparse.Namespace, target: str | None) -> None:
    """Leave with the usage where an option of the target's bucket was given, and it is no such bucket."""
    if target is not None and "://" in target and not target.startswith("file://"):
        return
    names = ("to_endpoint_url", "to_region", "to_profile", "to_anonymous")
    given = ", ".join(option_of(name) for name in names if getattr(arguments, name))
    if given:
        where = f"no option of {target}" if target is not None else "for the bucket that --to names"
        arguments.refuse(f"{given}: {where}")


def _for_target(source: str, target: str, arguments: argparse.Namespace) -> argparse.Namespace:
    """Return the arguments with the options of the target's bucket in place of the source's.

    A target of the same kind, or one of a folder's caches, has those without "to-", but for what has its own.
    """
    own = {name: getattr(arguments, f"to_{name}") for name in ("endpoint_url", "region", "profile")}
    others = "://" in source and source.partition("://")[0] != target.partition("://")[0]
    if not others:
        own = {name: value or getattr(arguments, name) for name, value in own.items()}
    # Who reads a public bucket without credentials can rarely write without them.
    anonymous = arguments.to_anonymous or (arguments.anonymous and "://" not in source)
    return argparse.Namespace(**(vars(arguments) | own | {"anonymous": anonymous}))
