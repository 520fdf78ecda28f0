"""Build a version from an earlier version and new records.

The new version has all records of BASE, followed by those that the function returns. Only the new records
are read and written: the files of BASE become files of the new version, too. If the version exists already,
nothing is built. A warning appears if other code or arguments built the version, or if the version does
not continue BASE. --replace builds it again. All options are as for `yogadl build`.

Example:
  yogadl append data.py:squares squares 2 1 --arg first=1000 -s /data/caches
"""

import argparse
from collections.abc import Callable
from typing import Any

from yogadl._core.key import DatasetKey, new_key
from yogadl._provenance.builder import Call
from yogadl.cli._arguments import open_existing
from yogadl.cli._build import add_options, add_target, make, options_of
from yogadl.storage import CacheStorage
from yogadl.storage._build.building import BuildOptions, warn_if_stale
from yogadl.storage._build.growth import append, warn_if_other_base


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument("base", metavar="BASE", help="the version whose records come first, or a tag of it")
    add_options(parser)


def run(arguments: argparse.Namespace) -> int:
    # Refuses `auto`: a name made from code and arguments would not depend on the base.
    new_key(arguments.id, arguments.version)
    return make(arguments, open_existing(arguments), _append)


def _append(
    storage: CacheStorage,
    key: DatasetKey,
    function: Callable[..., Any],
    values: dict[str, Any],
    call: Call,
    arguments: argparse.Namespace,
) -> bool:
    """Return whether this call built the version; False if the version exists already."""
    base, options = DatasetKey(key.id, arguments.base), BuildOptions(**options_of(arguments))
    published = storage._backend.catalogue.find(key)
    if published is not None and key != base and not arguments.replace:
        warn_if_stale(published.manifest, call.builder.to_json(), set())
        warn_if_other_base(storage._backend.catalogue, published.manifest, base)
        return False
    append(storage._backend, key, lambda: function(**values), base, options, call)
    return True
