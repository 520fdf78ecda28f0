"""Make foreign text safe to show: without control characters, line breaks and secrets."""

import re
from typing import Final

# The user part of a URL, up to the "@" before its host; and the text after the first "?" or "#" of a URL.
_USER: Final = r"(?<=//)[^/\s?#'\"]*@"
_QUERY: Final = r"(?<=[^\s:/?#'\"])(://[^\s?#'\"<>]*)[?#][^\s'\"<>)]*"
_HIDDEN: Final = "***"


def printable(text: str, kept: str = "") -> str:
    """Return a text with characters escaped as in Python, except printable ones and those in `kept`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text)


def error_text(error: BaseException) -> str:
    """Return the type and the text of any exception, even of one whose text can't be made."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except Exception as failed:  # noqa: BLE001  (a user's error may do anything here)
        return f"{name} (its text can't be shown: {type(failed).__name__})"


def without_secrets(text: str) -> str:
    """Return a text without the users, passwords and queries of its URLs."""
    if "//" not in text:
        return text
    return re.sub(_QUERY, rf"\1?{_HIDDEN}", re.sub(_USER, f"{_HIDDEN}@", text))
