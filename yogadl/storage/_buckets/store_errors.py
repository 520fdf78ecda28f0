"""Make the errors of stores, in the same words for every SDK: the refusal and the remedy."""

import enum
import errno
import time
from email.utils import parsedate_to_datetime
from typing import Final

from yogadl._core.printable import printable, without_secrets
from yogadl.errors import StorageError
from yogadl.storage._buckets.retry import TransientError


class Verb(enum.Enum):
    """An operation on a store, as its errors name it."""

    READ = "read"
    WRITE = "write"
    LIST = "list"
    DELETE = "delete"


class Refusal(enum.Enum):
    """A reason why a store refuses, for which trying again does not help."""

    NO_BUCKET = (errno.ENOENT, "there is no such bucket: check its name and the endpoint, or make the bucket")
    NO_CREDENTIALS = (errno.EACCES, "no credentials were found")
    WRONG_SECRET = (errno.EACCES, "the credentials are wrong: check the key and its secret")
    EXPIRED = (errno.EACCES, "the credentials have expired: renew them and try again; what is written stays")
    FORBIDDEN = (errno.EACCES, "these credentials are not allowed to")
    ELSEWHERE = (
        errno.ENXIO,
        "the bucket is in another region, or behind another endpoint: give the right one",
    )
    SKEWED = (
        errno.EACCES,
        "the clocks of this machine and of the store are too far apart: set this one's (NTP)",
    )
    NOT_TRUSTED = (errno.EPROTO, "the endpoint's certificate can't be verified: check the endpoint's address")
    NO_URL = (errno.EINVAL, "the endpoint is no URL: give its scheme, host and port, as in http://minio:9000")
    BAD_RESPONSE = (errno.EPROTO, "the answer does not come from such a store: check the endpoint's address")
    OTHER = (errno.EIO, "the store refused")


class CredentialsError(StorageError):
    """The store accepts no request with these credentials, or there are none."""


_OF_CREDENTIALS: Final = (Refusal.NO_CREDENTIALS, Refusal.WRONG_SECRET, Refusal.EXPIRED)
# Longer answers are a proxy's web page.
_MOST_DETAIL: Final = 300
_MOST_DIGITS: Final = 9


def refused(refusal: Refusal, verb: Verb, what: str, mend: str, detail: str) -> StorageError:
    """Return the error of a refusal.

    Args:
        refusal: The reason.
        verb: The operation.
        what: The URL of its object.
        mend: The remedy in the SDK's words; may be empty.
        detail: The store's message.
    """
    number, reason = refusal.value
    if mend:
        reason += f": {mend}"
    kind = CredentialsError if refusal in _OF_CREDENTIALS else StorageError
    return kind(number, f"can't {verb.value} {what}: {reason} ({_short(detail)})")


def transient(
    verb: Verb,
    what: str,
    detail: str,
    kind: type[TransientError] = TransientError,
    *,
    retry_after: str | None = None,
) -> TransientError:
    """Return the error of a failure after which the next attempt may succeed, no earlier than Retry-After."""
    error = kind(errno.EAGAIN, f"can't {verb.value} {what}: {_short(detail)}")
    error.after_s = retry_after_s(retry_after)
    return error


def is_transient(status: int) -> bool:
    """Return whether a request that was answered with this HTTP status may succeed at the next attempt."""
    return status in (408, 409, 429) or (status >= 500 and status != 501)


def retry_after_s(retry_after: str | None) -> float:
    """Return the seconds of a Retry-After header, which is a number of seconds or a date."""
    text = (retry_after or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:_MOST_DIGITS])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return 0.0


def _short(detail: str) -> str:
    line = printable(without_secrets(" ".join(detail.split())))
    return line if len(line) <= _MOST_DETAIL else line[: _MOST_DETAIL - 3] + "..."
