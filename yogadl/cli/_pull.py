"""Download a version from a bucket to this machine.

Without --to the command fills this machine's mirror, from which `fetch` reads: a job that starts later need
not wait. Files that are in the mirror already are compared with their checksums, and downloaded again if they
are damaged. With --to the version is copied into another storage, such as a folder of caches; the copy has
the same digest.

Example:
  yogadl pull squares 1 --from s3://bucket/caches --mirror /nvme/mirror
  yogadl pull squares 1 --from s3://bucket/caches --to /data/caches
  yogadl pull squares 1 --from s3://bucket/caches --endpoint-url http://store:9000 --to gs://bucket/caches
"""

import argparse

from yogadl._core.key import DatasetKey
from yogadl.cli._arguments import add_json, add_storage, add_tagged, add_target_options, open_version
from yogadl.cli._copying import copy_to, refuse_needless_for_target
from yogadl.cli._output import Bar, mended, say, say_json, stored
from yogadl.errors import ConfigurationError
from yogadl.storage._remote.opener import MirrorOpener


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_tagged(parser)
    add_storage(parser, "--from")
    parser.add_argument(
        "--to", metavar="STORAGE", help="copy it to this storage: a folder, made if missing, or a bucket"
    )
    parser.add_argument(
        "--replace",
        action="store_true",
        help="with --to: replace a version of that name that has other content",
    )
    add_target_options(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.to is not None:
        return copy_to(arguments.to, arguments)
    refuse_needless_for_target(arguments, None)
    storage = open_version(arguments)
    if arguments.replace:
        arguments.refuse("--replace is for --to: a mirror has no versions of its own")
    opener = storage._backend.catalogue.opener
    if not isinstance(opener, MirrorOpener):
        raise ConfigurationError(f"{storage.location} is on this machine: say with --to where to copy it")
    key, published = storage._backend.catalogue.named(DatasetKey(arguments.id, arguments.version))
    manifest = published.manifest
    with Bar("pulling", manifest.size_bytes) as bar:
        damaged = opener.fill(published, progress=lambda done, _: bar.show(done))
    folder = opener.mirror.location.root
    if arguments.json:
        found = {"size_bytes": manifest.size_bytes, "parts": manifest.parts, "mended": damaged}
        say_json(storage=storage.location, id=key.id, version=key.version, mirror=str(folder), **found)
        return 0
    say(f"{key.id} {key.version} is in the mirror {folder}: {stored(manifest)}")
    if damaged:
        say(f"Of what was there before, {mended(damaged)}.")
    return 0
