"""Tell the version of this library, which stands in a file beside this one."""

from functools import cache
from pathlib import Path


@cache  # it can't change while it is loaded
def library_version() -> str:
    """Return the version. Reads the file: importlib.metadata takes 20 ms, and would not know a checkout."""
    return Path(__file__).with_name("VERSION").read_text().strip()
