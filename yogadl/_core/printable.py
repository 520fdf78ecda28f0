"""Make foreign text safe to show: without control characters, line breaks and secrets."""

import re
from typing import Final

# The user part before a host, up to its "@"; and the text behind a "?" or a "#" of a URL.
_USER: Final = r"(?<=//)[^/\s?#'\"]*@"
_QUERY: Final = r"(?<=[^\s:/?#'\"])(://[^\s?#'\"<>]*)[?#][^\s'\"<>)]*"
_HIDDEN: Final = "***"


def printable(text: str, kept: str = "") -> str:
    """Return a text in which characters are escaped, as in Python, unless printable or in `kept`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text)


def without_secrets(text: str) -> str:
    """Return a text without the users, passwords and queries of its URLs."""
    if "//" not in text:
        return text
    return re.sub(_QUERY, rf"\1?{_HIDDEN}", re.sub(_USER, f"{_HIDDEN}@", text))
