"""Say what the sub-commands' arguments look like, once for all of them."""

import argparse
from collections.abc import Callable

from yogadl._size import bytes_of
from yogadl.errors import ConfigurationError


def add_key(parser: argparse.ArgumentParser) -> None:
    """Add the two arguments that name a version."""
    parser.add_argument("id", metavar="ID", help="what the dataset is called")
    parser.add_argument("version", metavar="VERSION", help="which version of it")


def add_storage(parser: argparse.ArgumentParser, *names: str, dest: str = "storage") -> None:
    """Add the options that say which storage.

    Args:
        parser: Where to.
        names: What else the first of them is called.
        dest: Where the storage goes.
    """
    parser.add_argument(
        "-s",
        "--storage",
        *names,
        dest=dest,
        metavar="STORAGE",
        help="the storage: a folder of caches, s3://bucket/prefix or gs://bucket/prefix "
        "(default: the current folder, if it has caches)",
    )
    add_bucket_options(parser)


def add_bucket_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of storages that several machines share."""
    group = parser.add_argument_group("storages that machines share")
    group.add_argument(
        "--endpoint-url", metavar="URL", help="where the store answers, if not at AWS or Google"
    )
    group.add_argument("--region", metavar="REGION", help="the region of an S3 bucket")
    group.add_argument("--profile", metavar="NAME", help="the profile of the AWS configuration to use")
    group.add_argument("--anonymous", action="store_true", help="read a public bucket without credentials")
    group.add_argument(
        "--shared", action="store_true", help="several machines build in this folder, as on NFS"
    )
    group.add_argument("--mirror", metavar="FOLDER", help="where this machine keeps copies of what it reads")
    group.add_argument(
        "--mirror-limit", metavar="SIZE", type=parse_size, help="how much the mirror may hold, e.g. 200GB"
    )


def add_target_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the bucket that is copied to, where they are not those of the other one."""
    group = parser.add_argument_group(
        "the bucket to copy to, where it is reached by other means than the one it comes from"
    )
    group.add_argument("--to-endpoint-url", metavar="URL", help="where its store answers")
    group.add_argument("--to-region", metavar="REGION", help="its region")
    group.add_argument("--to-profile", metavar="NAME", help="the profile of the AWS configuration to use")
    group.add_argument("--to-anonymous", action="store_true", help="write to it without credentials")


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option for scripts."""
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def whole(what: str) -> Callable[[str], int]:
    """Return what turns a text into a number from 1 on."""

    def parse(text: str) -> int:
        try:
            count = int(text)
        except ValueError:
            count = 0
        if count < 1:
            raise argparse.ArgumentTypeError(f"give a number of {what}, 1 or more, not {text!r}")
        return count

    return parse


def amount(what: str, least: float) -> Callable[[str], float]:
    """Return what turns a text into a number, broken or not, that is not less than some."""

    def parse(text: str) -> float:
        try:
            count = float(text)
        except ValueError:
            count = float("nan")
        if not least <= count < float("inf"):
            raise argparse.ArgumentTypeError(f"give a number of {what}, {least:g} or more, not {text!r}")
        return count

    return parse


def parse_size(text: str) -> int:
    """Return the number of bytes in a text such as ``256MB`` or ``1GiB``.

    Raises:
        ArgumentTypeError: if it says no size.
    """
    try:
        return bytes_of(text)
    except ConfigurationError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
