"""Tell the version of this library, which stands in a file beside this one."""

from pathlib import Path


def library_version() -> str:
    """Return the version. Reads the file: importlib.metadata takes 20 ms, and would not know a checkout."""
    return Path(__file__).with_name("VERSION").read_text().strip()
