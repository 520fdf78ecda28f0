"""Copy a version to a bucket, or to any other storage.

Every part is compared with its checksum before it is sent, and nothing can be read there before all of it
is there. It is the same, to the digest. What is there already is not sent again: to go on after an
interruption, give the same command again.

Example:
  yogadl push squares 1 s3://bucket/caches -s /data/caches
  yogadl push squares 1 --from /data/caches --to gs://bucket/caches
"""

import argparse

from yogadl.cli._arguments import add_json, add_key, add_storage, add_target_options
from yogadl.cli._copying import copy_to


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_key(parser)
    parser.add_argument("target", metavar="TO", nargs="?", help="where to: a bucket's URL, or a folder")
    add_storage(parser, "--from")
    parser.add_argument("--to", metavar="TO", help="the same as the word TO")
    parser.add_argument(
        "--replace", action="store_true", help="put it in place of another version of that name"
    )
    add_target_options(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    if (arguments.target is None) == (arguments.to is None):
        arguments.refuse("say once where to: yogadl push ID VERSION TO")
    return copy_to(arguments.target or arguments.to, arguments)
