"""Copy a version to another storage: the common part of `pull` and `push`."""

import argparse

from yogadl.cli._arguments import open_at, open_version, option_of
from yogadl.cli._output import Bar, contents, say, say_json
from yogadl.storage._copy import copy


def copy_to(location: str, arguments: argparse.Namespace, *names: str) -> int:
    """Copy the version that the arguments name to `location`; `names` are as for `open_version`."""
    refuse_needless_for_target(arguments, location)
    storage = open_version(arguments, *names, others=(location,))
    target = open_at(location, _for_target(storage.location, location, arguments))
    info = storage.info(arguments.id, arguments.version)
    with Bar("copying", info.size_bytes) as bar:

        def show(done: int, total: int) -> None:
            bar.show(info.size_bytes - total + done)

        is_new = copy(storage, target, info.id, info.version, replaces=arguments.replace, progress=show)
    if arguments.json:
        found = {"was_copied": is_new, "size_bytes": info.size_bytes, "digest": info.digest}
        say_json(storage=storage.location, to=target.location, id=info.id, version=info.version, **found)
    elif is_new:
        say(f"{info.id} {info.version} is in {target.location} now: {contents(info)}")
    else:
        say(f"{info.id} {info.version} is in {target.location} already.")
    return 0


def refuse_needless_for_target(arguments: argparse.Namespace, target: str | None) -> None:
    """Print the usage and exit if an option of the target's bucket is given, but the target is no bucket."""
    if target is not None and "://" in target and not target.startswith("file://"):
        return
    names = ("to_endpoint_url", "to_region", "to_profile", "to_anonymous")
    given = ", ".join(option_of(name) for name in names if getattr(arguments, name))
    if given:
        where = f"no option of {target}" if target is not None else "for the bucket that --to names"
        arguments.refuse(f"{given}: {where}")


def _for_target(source: str, target: str, arguments: argparse.Namespace) -> argparse.Namespace:
    """Return the arguments with the options of the target's bucket in place of the source's.

    If the source is a folder or a bucket of the same kind, an option that is not given with "to-" has the
    source's value.
    """
    own = {name: getattr(arguments, f"to_{name}") for name in ("endpoint_url", "region", "profile")}
    others = "://" in source and source.partition("://")[0] != target.partition("://")[0]
    if not others:
        own = {name: value or getattr(arguments, name) for name, value in own.items()}
    # Writing to a public bucket mostly needs credentials, even where reading needs none.
    anonymous = arguments.to_anonymous or (arguments.anonymous and "://" not in source)
    return argparse.Namespace(**(vars(arguments) | own | {"anonymous": anonymous}))
