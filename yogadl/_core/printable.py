"""Make foreign text safe to show: without control characters, line breaks and secrets."""

import os
import re
from collections.abc import Mapping
from typing import Any, Final

# Possible secrets in a text of others: the user part of a URL, up to the "@" before its host; the same
# where the scheme is left out, if it has a password; and what follows the first "?" or "#" of a URL.
_USER: Final = r"(?<=//)[^/\s?#'\"]*@"
_PASSWORD: Final = r"(?<![^\s(\['\"])[^\s/:@'\"]+:(?!//)[^\s@'\"]*@(?=[\w\[])"
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
    """Return the text of another library without the users, passwords and queries of the URLs in it.

    A location, a pattern or options that a caller gave are shown by `masked`.
    """
    if "@" in text:
        text = re.sub(_PASSWORD, f"{_HIDDEN}@", re.sub(_USER, f"{_HIDDEN}@", text))
    return re.sub(_QUERY, rf"\1?{_HIDDEN}", text) if "//" in text else text


def masked(given: Any, *, quoted: bool = False, most: int = 300) -> str:  # any value of a caller
    """Return a location, a pattern, options, or a list of these, as errors and logs show it.

    All messages show these by this function alone. A URL has no user, password or query, even if it
    is malformed; of options the names are shown, and no value; other objects are shown by their type.

    Args:
        given: The value that the caller gave.
        quoted: Whether text is in quotes, as it is where it may be of any type.
        most: The most characters that are shown.
    """
    if isinstance(given, bytes):
        given = given.decode(errors="replace")
    if isinstance(given, str | os.PathLike):
        text = os.fspath(given)
        shown = _masked_location(text if isinstance(text, str) else text.decode(errors="replace"))
        return repr(shown[:most]) if quoted else shown[:most]
    if isinstance(given, Mapping):
        entries = (f"{masked(name, quoted=True)}: {_options(value)}" for name, value in given.items())
        return f"{{{', '.join(entries)}}}"[:most]
    if isinstance(given, list | tuple):
        return f"[{', '.join(masked(each, quoted=True) for each in given[:100])}]"[:most]
    if given is None or isinstance(given, bool | int | float):
        return repr(given)[:most]
    return f"a {type(given).__name__}"[:most]


def _options(given: Any) -> str:
    """Return the options of one place: their names."""
    if isinstance(given, Mapping):
        return f"{{{', '.join(f'{masked(name, quoted=True)}: {_HIDDEN}' for name in given)}}}"
    return _HIDDEN


def _masked_location(text: str) -> str:
    """Return a path, a URL, or what was meant to be one, without what may be secret in it."""
    if text.startswith(("/", ".", "~")) and not text.startswith("//"):
        return text
    scheme = re.match(r"(?:[A-Za-z][\w+.-]*:)?/{1,2}", text)
    start = scheme[0] if scheme else ""
    rest = text[len(start) :]
    place = re.split(r"[?#]", rest, maxsplit=1)[0]
    query = rest[len(place) :]
    if not start and "=" not in query and "@" not in query:
        place, query = rest, ""  # a pattern
    authority = place.partition("/")[0]
    has_password = re.search(r":(?!\d*$)", authority) is not None
    if not start or start in ("s3://", "gs://", "file://"):  # the key of an object may have an "@"
        has_user = "@" in authority or (has_password and "@" in place)
    else:
        has_user = "@" in place
    if has_user:
        place = f"{_HIDDEN}@{place.rpartition('@')[2]}"
    elif has_password and "@" in query:  # a password with a "?"
        return f"{start}{_HIDDEN}"
    return f"{start}{place}?{_HIDDEN}" if query else f"{start}{place}"
