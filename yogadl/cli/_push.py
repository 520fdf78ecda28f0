"""Copy a version to a bucket, or to any other storage.

Every part is compared with its checksum before it is sent, and nothing can be read there before all of it
is there. It is the same, to the digest. What is there already is not sent again: to go on after an
interruption, give the same command again.

Example:
  yogadl push squares 1 s3://bucket/caches -s /data/caches
  yogadl push squares 1 --from /data/caches --to gs://bucket/caches
"""

import argparse

from yogadl.cli._arguments import add_json, add_storage, add_tagged, add_target_options
from yogadl.cli._copying import copy_to


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_tagged(parser, target="where to: a bucket's URL, or a folder")
    add_storage(parser, "--from")
    parser.add_argument("--to", metavar="TO", help="the same as TARGET")
    parser.add_argument(
        "--replace", action="store_true", help="put it in place of another version of that name"
    )
    add_target_options(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    location = arguments.to or arguments.target or arguments.version  # the last word, after ID@TAG
    if location is None or None not in (arguments.target, arguments.to):
        arguments.refuse("say once where to: yogadl push ID VERSION TARGET, or ID@TAG TARGET")
    return copy_to(location, arguments, *(() if arguments.to is not None else ("target",)))
