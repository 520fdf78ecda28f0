"""Say what a store refused, and what to do about it; the words are the same for every SDK."""

import enum
import errno
from typing import Final

from yogadl.errors import StorageError
from yogadl.storage._buckets.retry import TransientError, UnreachableError


class Verb(enum.Enum):
    """What was to be done with a store, as its error says it."""

    READ = "read"
    WRITE = "write"
    LIST = "list"
    DELETE = "delete"


class Refusal(enum.Enum):
    """Why a store refuses, where trying again does not help."""

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
    STRANGE = (errno.EPROTO, "the answer is none of such a store: check the endpoint's address")
    OTHER = (errno.EIO, "the store refused")


class CredentialsError(StorageError):
    """Say that the store takes nothing from us, whatever is asked of it."""


_OF_CREDENTIALS: Final = (Refusal.NO_CREDENTIALS, Refusal.WRONG_SECRET, Refusal.EXPIRED)
# Longer answers are a proxy's web page.
_MOST_DETAIL: Final = 300


def refusal(trouble: Refusal, verb: Verb, what: str, mend: str, detail: str) -> StorageError:
    """Make the error of a refusal.

    Args:
        trouble: Why.
        verb: What was to be done.
        what: With what: a URL.
        mend: What to do, in the SDK's words; may be empty.
        detail: What the store said.
    """
    number, reason = trouble.value
    if mend:
        reason += f": {mend}"
    kind = CredentialsError if trouble in _OF_CREDENTIALS else StorageError
    return kind(number, f"can't {verb.value} {what}: {reason} ({_short(detail)})")


def strange(verb: Verb, what: str, error: Exception) -> StorageError:
    """Make the error of an answer that no store of this kind would give.

    Args:
        verb: What was to be done.
        what: With what: a URL.
        error: What of the answer was missing or wrong.
    """
    return refusal(Refusal.STRANGE, verb, what, "", f"missing or wrong: {error}")


def passing(verb: Verb, what: str, detail: str) -> TransientError:
    """Make the error of what may succeed the next time."""
    return TransientError(errno.EAGAIN, f"can't {verb.value} {what}: {_short(detail)}")


def unreached(verb: Verb, what: str, detail: str) -> UnreachableError:
    """Make the error of a store at whose address nobody answers: it may be away, or be somewhere else."""
    return UnreachableError(errno.EAGAIN, f"can't {verb.value} {what}: {_short(detail)}")


def _short(detail: str) -> str:
    line = " ".join(detail.split())
    return line if len(line) <= _MOST_DETAIL else line[: _MOST_DETAIL - 3] + "..."
