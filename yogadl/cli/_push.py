"""Copy a version to a bucket, or to any other storage.

Every part is compared with its checksum before it is sent. The copy can be read only when it is complete; the
copy has the same digest. Parts that are in the target already are not sent again: after an interruption, run
the same command again.

Example:
  yogadl push squares 1 s3://bucket/caches -s /data/caches
  yogadl push squares 1 --from /data/caches --to gs://bucket/caches
"""

import argparse

from yogadl.cli._arguments import add_json, add_storage, add_tagged, add_target_options
from yogadl.cli._copying import copy_to


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_tagged(parser, target="where to copy it: a bucket's URL, or a folder")
    add_storage(parser, "--from")
    parser.add_argument("--to", metavar="TO", help="the same as TARGET")
    parser.add_argument(
        "--replace", action="store_true", help="replace a version of that name that has other content"
    )
    add_target_options(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    location = arguments.to or arguments.target or arguments.version  # VERSION holds the target after ID@TAG
    if location is None or None not in (arguments.target, arguments.to):
        arguments.refuse("give one target: yogadl push ID VERSION TARGET, or ID@TAG TARGET")
    return copy_to(location, arguments, *(() if arguments.to is not None else ("target",)))
