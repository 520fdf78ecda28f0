"""Return the version of this library, which is stored in a file beside this one."""

from functools import cache
from pathlib import Path


@cache  # the version can't change while the library is loaded
def library_version() -> str:
    """Return the version.

    The version is read from the file, since importlib.metadata takes 20 ms and does not know a checkout.
    """
    return Path(__file__).with_name("VERSION").read_text().strip()
