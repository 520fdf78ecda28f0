"""Say what the sub-commands' arguments look like, once for all of them."""

import argparse
import re
from collections.abc import Callable
from typing import Final

_UNITS: Final = {
    "": 1, "B": 1,
    "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip
_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) *([A-Za-z]*)")


def add_key(parser: argparse.ArgumentParser) -> None:
    """Add the two arguments that name a version."""
    parser.add_argument("id", metavar="ID", help="what the dataset is called")
    parser.add_argument("version", metavar="VERSION", help="which version of it")


def add_storage(parser: argparse.ArgumentParser) -> None:
    """Add the option that says which storage."""
    parser.add_argument(
        "-s",
        "--storage",
        metavar="FOLDER",
        help="the storage, a folder of caches (default: the current folder, if it has caches)",
    )


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
    found = _SIZE.fullmatch(text.strip())
    unit = _UNITS.get(found[2].upper()) if found else None
    count = 0 if not found or unit is None else int(float(found[1]) * unit)
    if not count:
        raise argparse.ArgumentTypeError(f"give a size such as 256MB or 1GiB, not {text!r}")
    return count
