"""Declare a store, which makes one attempt at each operation, and the errors and code that SDKs share."""

import enum
import errno
import io
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from yogadl._core.printable import masked, printable, without_secrets
from yogadl.errors import ConfigurationError, CredentialsError, MissingDependencyError, StorageError
from yogadl.storage._objects.bucket import Body, Object, replaced
from yogadl.storage._objects.retry import TransientError

# The errors of stores say with the same words for every SDK what was refused, why, and the remedy.


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
    WRONG_SECRET = (
        errno.EACCES,
        "the credentials are wrong, or none are given: check the key and its secret",
    )
    EXPIRED = (errno.EACCES, "the credentials have expired: renew them and try again; what is written stays")
    FORBIDDEN = (errno.EACCES, "requests without other credentials are not allowed to")
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


_CREDENTIAL_REFUSALS: Final = (Refusal.NO_CREDENTIALS, Refusal.WRONG_SECRET, Refusal.EXPIRED)
# A store's message is cut after this length: longer ones are the web page of a proxy.
_MOST_DETAIL_CHARACTERS: Final = 300
_MOST_RETRY_AFTER_DIGITS: Final = 9


def refused(refusal: Refusal, verb: Verb, url: str, remedy: str, detail: str) -> StorageError:
    """Return the error of a refusal.

    Args:
        refusal: The reason.
        verb: The operation.
        url: The URL of the object.
        remedy: The remedy in the SDK's words; may be empty.
        detail: The store's message.
    """
    number, reason = refusal.value
    if remedy:
        reason += f": {remedy}"
    kind = CredentialsError if refusal in _CREDENTIAL_REFUSALS else StorageError
    return kind(number, f"can't {verb.value} {url}: {reason} ({_shortened(detail)})")


def transient(
    verb: Verb,
    url: str,
    detail: str,
    kind: type[TransientError] = TransientError,
    *,
    retry_after: str | None = None,
) -> TransientError:
    """Return the error of a failure after which the next attempt may succeed, no earlier than Retry-After."""
    error = kind(errno.EAGAIN, f"can't {verb.value} {url}: {_shortened(detail)}")
    error.after_s = retry_after_s(retry_after)
    return error


def is_transient(status: int) -> bool:
    """Return whether a request that was answered with this HTTP status may succeed at the next attempt."""
    return status in (408, 409, 429) or (status >= 500 and status != 501)


def retry_after_s(retry_after: str | None) -> float:
    """Return the seconds of a Retry-After header, which is a number of seconds or a date."""
    text = (retry_after or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:_MOST_RETRY_AFTER_DIGITS])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return 0.0


def _shortened(detail: str) -> str:
    line = printable(without_secrets(" ".join(detail.split())))
    return line if len(line) <= _MOST_DETAIL_CHARACTERS else line[: _MOST_DETAIL_CHARACTERS - 3] + "..."


CONNECT_TIMEOUT_S: Final = 10.0
# The SDKs' own pools hold ten, fewer than a download uses at once.
CONNECTIONS: Final = 64

_CONTENT_RANGE: Final = re.compile(r"bytes (\d+)-\d+/(\d+)")


class PastEndError(StorageError):
    """A range begins behind the end of its object."""


class BadResponseError(Exception):
    """Part of an answer is missing or wrong."""


class NotCarriedOverError(Exception):
    """An SDK's client has a setting that has no equal in obstore; the message names it."""


@dataclass(frozen=True, repr=False)  # a proxy's URL may have a password in it
class Transport:
    """How an SDK's client sends its gets, so that obstore can send them in the same way.

    Args:
        kind: The name of obstore's class for such a store.
        config: The arguments for that class.
        url: The URL that requests go to.
        credentials: Returns the credentials that sign requests, in obstore's form, or ``None`` to sign none.
        headers: Further headers of each request.
        user_agent: The user agent of the SDK's requests.
        verify: Whether to verify certificates, or the file with those to trust.
        proxy_url: The proxy that requests go through.
        timeouts_s: How long to wait for a connection, and for the next bytes on it.
    """

    kind: str
    config: Mapping[str, Any]
    url: str
    credentials: Callable[[], Mapping[str, Any]] | None
    headers: Mapping[str, str]
    user_agent: str
    verify: bool | str
    proxy_url: str | None
    timeouts_s: tuple[float, float]


@dataclass(frozen=True)
class Page:
    """Some of the objects of a list, and the mark of the next page, or ``None`` for the last."""

    objects: list[Object]
    mark: str | None


class Store(Protocol):
    """One attempt at each operation, by a store's SDK. Names are checked already, and begin with the root.

    Every error of the SDK becomes a `StorageError` here: `TransientError` if another attempt may succeed,
    `ReplacedError`, `PastEndError`, or one that names a remedy. Safe to use from several threads, fork-safe
    and picklable.
    """

    @property
    def url(self) -> str:
        """The URL of the whole store, such as ``s3://bucket``."""

    @property
    def endpoint(self) -> str:
        """The store's endpoint, as known without a request; two stores may have buckets of one name."""

    def open(
        self, name: str, start: int, stop: int | None, *, tag: str | None, chunk_bytes: int
    ) -> AbstractContextManager[Body | None]:
        """Open an object, or a range that begins inside it; its chunks may break off or end too early."""

    def put(self, name: str, content: bytes | Path, sent: Callable[[int], None]) -> Object:
        """Write an object; `sent` is called with the number of bytes sent, from any thread."""

    def create(self, name: str, content: bytes) -> bool:
        """Write an object unless it exists; return whether this call did."""

    def head(self, name: str) -> Object | None:
        """Return the facts about an object."""

    def page(self, prefix: str, mark: str | None) -> Page:
        """Return the next objects with that prefix, in order of their names."""

    def delete(self, name: str) -> None:
        """Remove an object, if it exists."""

    def transport(self) -> Transport:
        """Return how requests for ranges are sent.

        Raises:
            NotCarriedOverError: if obstore can't send them in the same way.
        """


@dataclass
class Reply:
    """The result of a request, or the HTTP status of an expected error; 0 if there was none."""

    content: Any = None
    status: int = 0


@dataclass(frozen=True)
class Sdk:
    """How to import an SDK and translate its errors.

    Args:
        package: The package to import.
        missing: The message if it is not installed.
        errors: Returns the classes of its errors.
        status_of: Returns the HTTP status of an error, 0 if it has none.
        translate: Returns our error for one of its own, given the verb and the URL.
    """

    package: str
    missing: str
    errors: Callable[[], tuple[type[Exception], ...]]
    status_of: Callable[[Any], int]
    translate: Callable[[Any, Verb, str], StorageError | ConfigurationError]

    @contextmanager
    def translated(self, verb: Verb, url: str, expected: tuple[int, ...] = ()) -> Iterator[Reply]:
        """Translate the SDK's errors; record an expected HTTP status in the answer instead of raising."""
        try:
            import_module(self.package)
        except ImportError as error:
            raise MissingDependencyError(self.missing) from error
        answer = Reply()
        try:
            yield answer
        except (KeyError, json.JSONDecodeError, BadResponseError) as error:
            raise refused(Refusal.BAD_RESPONSE, verb, url, "", f"missing or wrong: {error}") from error
        except self.errors() as error:
            status = self.status_of(error)
            if status not in expected:
                raise self.translate(error, verb, url) from error
            answer.status = status

    def chunks(self, url: str, read: Callable[[], bytes]) -> Iterator[bytes]:
        """Yield the results of `read` until one is empty."""
        with self.translated(Verb.READ, url):
            while chunk := read():
                yield chunk


class CountedBytes(io.BytesIO):
    """Bytes to send, which call `sent` with the number of bytes at each read."""

    def __init__(self, content: bytes, sent: Callable[[int], None]) -> None:
        super().__init__(content)
        self._sent = sent

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next bytes."""
        content = super().read(size)
        self._sent(len(content))
        return content


class CountedFile(io.FileIO):
    """A file to send, which calls `sent` with the number of bytes at each read."""

    def __init__(self, path: Path, sent: Callable[[int], None]) -> None:
        super().__init__(path)
        self._sent = sent

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next bytes."""
        content = super().read(size) or b""
        self._sent(len(content))
        return content


def checked_endpoint(url: Any) -> str | None:  # a value from the user, of any type
    """Return the endpoint of a store, if it is a URL.

    Raises:
        ConfigurationError: if it is not; the error proposes a URL.
    """
    if url is None:
        return None
    text = str(url)
    shown = masked(text)
    try:
        parts = urlsplit(text)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if is_url and ("@" in parts.netloc or parts.query or parts.fragment):
        raise ConfigurationError(
            f"endpoint_url has more than the address of a store: {shown}; a password or a key in it would "
            "get into logs and checkpoints. Pass only scheme, host and port, and pass credentials in the "
            "environment, by a profile, or in client_options"
        )
    if is_url and not re.search(r"\s", text):
        return text
    proposal = (
        f"http://{shown} or https://{shown}"
        if text and shown == text and "://" not in text
        else "http://minio:9000"
    )
    raise ConfigurationError(
        f"endpoint_url is not the address of a store: {shown!r}; pass scheme, host and port, such as "
        f"{proposal}"
    )


def refused_options(sdk: str, error: Exception) -> ConfigurationError:
    """Return the error of options with which an SDK makes no client; its cause is `shown_cause`."""
    return ConfigurationError(
        f"{sdk} can't make a client with these options: {_masked_words(str(error))}; correct them, or the "
        "environment and the profile that they come from"
    )


def shown_cause(error: Exception) -> Exception | None:
    """Return an SDK's error, ``None`` if its text has a secret, which a traceback would show."""
    return error if _masked_words(str(error)) == str(error) else None


def _masked_words(text: str) -> str:
    """Return an SDK's text about options, in which any word may be a location that lacks its scheme."""
    return " ".join(map(masked, text.split(" ")))


def range_header(start: int, stop: int | None) -> dict[str, str]:
    """Return the header that requests a range, or no header for a whole object."""
    if not start and stop is None:
        return {}
    return {"Range": f"bytes={start}-" if stop is None else f"bytes={start}-{stop - 1}"}


def refuse_range(status: int, url: str, name: str, start: int) -> None:
    """Raise the error of an HTTP status: 412 if the tag differs, 416 if the range is beyond the end."""
    if status == 412:
        raise replaced(url, name)
    if status == 416:
        raise PastEndError(errno.EINVAL, f"{url}/{name} ends before byte {start}")


def size_of_whole(content_range: str | None, content_length: int, start: int, stop: int | None) -> int:
    """Return the size of an object of which a range was sent.

    Args:
        content_range: The answer's Content-Range, such as ``bytes 10-19/1000``, or ``None`` for the whole
            object.
        content_length: The number of bytes that follow.
        start: The position of the first byte requested.
        stop: The position after the last, or ``None`` for all.

    Raises:
        BadResponseError: if another range was sent than was requested.
    """
    if content_range is None and start == 0 and (stop is None or content_length <= stop):
        return content_length
    match = _CONTENT_RANGE.fullmatch(content_range or "")
    if match is None or int(match[1]) != start:
        raise BadResponseError(f"the range {content_range}, but {start} up to {stop} was requested")
    return int(match[2])
