"""Make text of others fit to be shown: nothing in it steers a terminal, turns a line, or is a secret."""

import re
from typing import Final

# What precedes a host, up to its "@"; and all behind a "?", or a "#", of what looks like a URL.
_USER: Final = r"(?<=//)[^/\s?#'\"]*@"
_QUERY: Final = r"(?<=[^\s:/?#'\"])(://[^\s?#'\"<>]*)[?#][^\s'\"<>)]*"
_HIDDEN: Final = "***"


def printable(text: str, kept: str = "") -> str:
    """Return a text with everything but printable characters escaped, as Python does, and those `kept`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text)


def without_secrets(text: str) -> str:
    """Return a text without users, passwords and queries of the URLs in it."""
    if "//" not in text:
        return text
    return re.sub(_QUERY, rf"\1?{_HIDDEN}", re.sub(_USER, f"{_HIDDEN}@", text))
