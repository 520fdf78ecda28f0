"""Arguments that several sub-commands share, and their parsers."""

import argparse
import math
from collections.abc import Callable
from typing import Final

from yogadl._core.arguments import bytes_of
from yogadl.errors import ConfigurationError

_BATCH: Final = 256


def add_key(parser: argparse.ArgumentParser) -> None:
    """Add the two arguments that name a version to build or delete."""
    parser.add_argument("id", metavar="ID", help="the name of the dataset")
    parser.add_argument("version", metavar="VERSION", help="the name of the version")


def add_tagged(parser: argparse.ArgumentParser, **others: str) -> None:
    """Add the arguments that name a version to read: ID VERSION, or ID@TAG; and further arguments after them.

    Args:
        parser: The command's parser.
        others: The help of each further argument, by the argument's name.
    """
    parser.add_argument("id", metavar="ID", help="the name of the dataset; or ID@TAG, or ID@VERSION")
    parser.add_argument("version", metavar="VERSION", nargs="?", help="the name of the version, or a tag")
    for name, what in others.items():
        parser.add_argument(name, metavar=name.upper(), nargs="?", help=what)


def add_storage(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add the options that select a storage; `names` are further option names for `--storage`."""
    parser.add_argument(
        "-s",
        "--storage",
        *names,
        metavar="STORAGE",
        help="the storage: a folder of caches, s3://bucket/prefix or gs://bucket/prefix "
        "(default: the current folder, if it has caches)",
    )
    group = parser.add_argument_group("buckets, and folders that several machines share")
    group.add_argument(
        "--endpoint-url", metavar="URL", help="the URL of the store, if it is not AWS or Google"
    )
    group.add_argument("--region", metavar="REGION", help="the region of an S3 bucket")
    group.add_argument("--profile", metavar="NAME", help="the profile of the AWS configuration to use")
    group.add_argument("--anonymous", action="store_true", help="read a public bucket without credentials")
    group.add_argument(
        "--shared", action="store_true", help="several machines build in this folder, as on NFS"
    )
    group.add_argument(
        "--mirror",
        metavar="FOLDER",
        help="where this machine keeps copies of what it reads from a bucket; none: keep no copies",
    )
    group.add_argument(
        "--mirror-limit",
        metavar="SIZE",
        type=parse_size,
        help="the size that the mirror may have, e.g. 200GB",
    )
    group.add_argument(
        "--mirror-fill",
        choices=("auto", "always", "never"),
        help="when a cache that is read by range is downloaded to the mirror, too (default: auto)",
    )
    group.add_argument(
        "--verify",
        choices=["block"],
        help="read whole blocks when reading by range, and compare them with their checksums",
    )


def add_batch(parser: argparse.ArgumentParser) -> None:
    """Add the option `--batch`: the number of records in a batch."""
    parser.add_argument(
        "--batch",
        metavar="RECORDS",
        type=number_of("records"),
        default=_BATCH,
        help=f"records in a batch (default: {_BATCH})",
    )


def add_target_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the target bucket, for when they differ from those of the source bucket."""
    group = parser.add_argument_group(
        "the bucket to copy to, if it needs other options than the bucket that is read"
    )
    group.add_argument("--to-endpoint-url", metavar="URL", help="the URL of its store")
    group.add_argument("--to-region", metavar="REGION", help="its region")
    group.add_argument("--to-profile", metavar="NAME", help="the profile of the AWS configuration to use")
    group.add_argument("--to-anonymous", action="store_true", help="write to it without credentials")


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option `--json`."""
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def number_of(what: str, kind: type[int | float] = int, least: float = 1) -> Callable[[str], float]:
    """Return a parser for finite numbers of type `kind` that are `least` or more."""

    def parse(text: str) -> float:
        try:
            count = kind(text)
        except ValueError:
            count = math.nan
        if not least <= count < math.inf:
            raise argparse.ArgumentTypeError(f"give a number of {what}, {least:g} or more, not {text!r}")
        return count

    return parse


def parse_size(text: str) -> int:
    """Return the number of bytes in a text such as ``256MB`` or ``1GiB``."""
    try:
        return bytes_of(text)
    except ConfigurationError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
