"""Read ranges through obstore, which only this file imports, or through the store's SDK as a fallback.

A get through obstore takes a tenth of the processor time of one through an SDK (benchmarks/transfer.py).
obstore is used only where it gives the same result as the SDK. If the SDK's client has an option that has no
equal in obstore, all ranges are read through the SDK. If a store refuses a request of obstore, the request is
repeated through the SDK, whose answer is final.
"""

import errno
import functools
import logging
import os
import random
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies

from yogadl._core.process import PerProcess
from yogadl.errors import StorageError
from yogadl.storage._objects.bucket import Body, FetchedRange, Object, replaced
from yogadl.storage._objects.retry import TransientError
from yogadl.storage._objects.store import (
    NotCarriedOverError,
    Store,
    Transport,
    Verb,
    is_transient,
    transient,
)

_log: Final = logging.getLogger("yogadl")
# After this many requests in a row that failed through obstore and succeeded through the SDK, only the
# SDK is used.
_MOST_REFUSALS: Final = 3
# The time after which obstore takes credentials for expired. It gets them from the SDK again five minutes
# earlier, so once a minute; the SDK renews them before they really expire.
_CREDENTIALS_LIFE: Final = timedelta(minutes=6)
# obstore needs a limit for a whole body. This one is not reached, since the read timeout ends a body without
# progress much earlier.
_LONGEST_BODY: Final = timedelta(days=1)
# Answers with these statuses may have a Retry-After, which obstore does not return. The request is
# repeated after a pause through the SDK, which returns it; other requests take the SDK for some time, too.
_BUSY_STATUSES: Final = (429, 503)
_BUSY_PAUSE_S: Final = 1.0
_BUSY_FOR_S: Final = 10.0
# After a range that did not arrive within `short_limit_s`, `open_quick` is not tried for this time.
_SLOW_FOR_S: Final = 60.0
# An error of obstore has the HTTP status and the kind of failure only in its text.
_STATUS: Final = re.compile(r"returned non-2xx status code: (\d{3})")
_TRANSIENT_KIND: Final = re.compile(r"HttpError \{\s+kind: (Timeout|Interrupted)")


class _ObstoreClient(NamedTuple):
    """The stores of obstore through which ranges are read. Never pickled, since they have secrets.

    Attributes:
        store: Reads bodies of any length in any time, or is ``None`` if the SDK must be used.
        tag: The key of an object's tag in obstore's metadata.
        patience_store: The same store, but a whole answer must arrive within `patience_s`.
        quick_store: The same store, but a whole answer must arrive within `short_limit_s`.
    """

    store: Any
    tag: str = ""
    patience_store: Any = None
    quick_store: Any = None


class OverdueError(TransientError):
    """A range did not arrive within `short_limit_s`; `open`, which lacks this limit, must read the rest."""


class ObstoreRanges:
    """Reads ranges of objects; each call is one attempt. Safe to use from several threads, and after a fork.

    Args:
        sdk: The store by its SDK.
        patience_s: How long `fetch` may take.
    """

    def __init__(self, sdk: Store, patience_s: float) -> None:
        self.sdk = sdk
        self._patience_s = patience_s
        self._client = PerProcess(self._connected)
        self._refusals = 0
        self._slow_until = self._busy_until = 0.0
        _forked_beside_obstore()  # its first call registers the hook that notes later forks

    @property
    def url(self) -> str:
        """The URL of the whole store."""
        return self.sdk.url

    def fetch(self, name: str, start: int, stop: int, tag: str | None) -> FetchedRange | None:
        """Return a range that begins inside its object, all at once, or ``None`` if `open` must be used."""
        client = self._usable()
        if client.store is None:
            return None
        try:
            result = _get(client, client.patience_store, name, start, stop, tag)
            content = memoryview(result.buffer())
        except _errors() as error:
            self._raise_if_transient(error, name)
            return None
        info = _object(client, name, result.meta)
        if info is None or len(content) != min(stop, info.size_bytes) - start:
            return None
        self._refusals = 0
        if tag not in (None, info.tag):  # some stores ignore If-Match
            raise replaced(self.url, name)
        return FetchedRange(content, info)

    def open_quick(
        self, name: str, start: int, stop: int, *, tag: str | None, chunk_bytes: int
    ) -> Body | None:
        """Open a range that usually arrives within `short_limit_s`; return ``None`` if `open` must be used.

        Otherwise this is like `fetch`.

        Raises:
            OverdueError: if it does not arrive in time, here or as its chunks are read: `open` must read the
                rest.
        """
        client, started_s = self._usable(), time.monotonic()
        if client.store is None or started_s < self._slow_until:
            return None
        try:
            result = _get(client, client.quick_store, name, start, stop, tag)
        except _errors() as error:
            self._raise_if_overdue(error, name, started_s)
            self._raise_if_transient(error, name)
            return None
        info = _object(client, name, result.meta)
        return None if info is None else Body(info, self._quick_chunks(result, chunk_bytes, name, started_s))

    def _quick_chunks(
        self, result: Any, chunk_bytes: int, name: str, started_s: float
    ) -> Iterator[memoryview]:
        try:
            for chunk in result.stream(chunk_bytes):
                yield memoryview(chunk)
        except _errors() as error:
            self._raise_if_overdue(error, name, started_s)
            raise self._transient(error, name) from error

    def _raise_if_overdue(self, error: Exception, name: str, started_s: float) -> None:
        now = time.monotonic()
        if now - started_s >= 0.9 * short_limit_s(self._patience_s):
            self._slow_until = now + _SLOW_FOR_S
            raise OverdueError(errno.ETIMEDOUT, f"{self.url}/{name} is slow") from error

    @contextmanager
    def open(
        self, name: str, start: int, stop: int | None, *, tag: str | None, chunk_bytes: int
    ) -> Iterator[Body | None]:
        """Open a range that begins inside its object; its chunks may break off, as for `Store.open`."""
        client = self._usable()
        result = info = None
        if client.store is not None and stop is not None:
            try:
                result = _get(client, client.store, name, start, stop, tag)
                info = _object(client, name, result.meta)
            except _errors() as error:
                self._raise_if_transient(error, name)
        if result is not None and info is not None:
            self._refusals = 0
            yield Body(info, self._chunks(result.stream(chunk_bytes), name))
            return
        with self.sdk.open(name, start, stop, tag=tag, chunk_bytes=chunk_bytes) as body:
            if body is not None:
                self._note_refusal(client)
            yield body

    def _chunks(self, stream: Iterator[Any], name: str) -> Iterator[memoryview]:
        try:
            for chunk in stream:
                yield memoryview(chunk)
        except _errors() as error:
            raise self._transient(error, name) from error

    def _usable(self) -> _ObstoreClient:
        """Return the client, or one without stores while the SDK must be used, since the store is busy."""
        return _ObstoreClient(None) if time.monotonic() < self._busy_until else self._client()

    def _connected(self) -> _ObstoreClient:
        try:
            if _forked_beside_obstore():
                raise NotCarriedOverError("a fork of a process that has loaded it, where it would hang")
            return _connected(self.sdk.transport(), self._patience_s)
        except StorageError:
            raise  # for example missing credentials, which may appear later
        except ImportError:
            reason = "obstore is not installed (pip install obstore)"
        except NotCarriedOverError as error:
            reason = f"obstore can't be used with {error}"
        except _errors() as error:
            reason = f"obstore can't be set up: {_short_text(error)}"
        self._log_why_not(reason)
        return _ObstoreClient(None)

    def _note_refusal(self, client: _ObstoreClient) -> None:
        """Count a request that only the SDK could do, and reconnect; after the third, use only the SDK."""
        if client.store is None or self._client() is not client:
            return  # another thread has reconnected already
        self._refusals += 1
        if self._refusals < _MOST_REFUSALS:
            self._client = PerProcess(self._connected)
        else:
            self._log_why_not("the store refuses requests of obstore that it accepts from the SDK")
            self._client = PerProcess(lambda: _ObstoreClient(None))

    def _log_why_not(self, reason: str) -> None:
        _log.info("ranges of %s are read by the SDK, which takes more processor time: %s", self.url, reason)

    def _raise_if_transient(self, error: Exception, name: str) -> None:
        """Raise the translated error of obstore if it is transient; return if the SDK must decide."""
        status = _STATUS.search(_short_text(error))
        if status is not None and int(status[1]) in _BUSY_STATUSES:
            self._busy_until = time.monotonic() + _BUSY_PAUSE_S + _BUSY_FOR_S
            busy = self._transient(error, name)
            busy.after_s = random.uniform(_BUSY_PAUSE_S / 2, _BUSY_PAUSE_S)
            raise busy from error
        if _TRANSIENT_KIND.search(str(error)) if status is None else is_transient(int(status[1])):
            raise self._transient(error, name) from error

    def _transient(self, error: Exception, name: str) -> TransientError:
        kind = _TRANSIENT_KIND.search(str(error))
        return transient(
            Verb.READ, f"{self.url}/{name}", f"{_short_text(error)}{f' ({kind[1].lower()})' if kind else ''}"
        )


def short_limit_s(patience_s: float) -> float:
    """Return the seconds within which a range usually arrives, not counted towards the patience."""
    return min(1.5, patience_s / 4)


def _connected(transport: Transport, patience_s: float) -> _ObstoreClient:
    from obstore import store

    options: dict[str, Any] = {
        "allow_http": True,
        "connect_timeout": timedelta(seconds=transport.timeouts_s[0]),
        "read_timeout": timedelta(seconds=transport.timeouts_s[1]),
        "default_headers": dict(transport.headers),
        "user_agent": f"{transport.user_agent} obstore",
    }
    url = urlsplit(transport.url)
    bypassed_proxy = getproxies().get(url.scheme) or getproxies().get("all")
    if transport.proxy_url is not None:
        options["proxy_url"] = transport.proxy_url
    elif bypassed_proxy:  # the SDK does not use this proxy, but obstore might take it from the environment
        options |= {"proxy_url": bypassed_proxy, "proxy_excludes": url.hostname}
    if isinstance(transport.verify, str):
        with open(transport.verify, "rb") as file:
            options["root_certificate"] = file.read()
    options["allow_invalid_certificates"] = transport.verify is False
    unlimited_store, patience_store, quick_store = (
        getattr(store, transport.kind)(
            config=dict(transport.config),
            client_options={**options, "timeout": limit},
            retry_config={"max_retries": 0},  # retries are made in `StoreBucket`
            credential_provider=transport.credentials
            and functools.partial(_credentials, transport.credentials),
        )
        for limit in (
            _LONGEST_BODY,
            min(_LONGEST_BODY, timedelta(seconds=patience_s)),
            timedelta(seconds=short_limit_s(patience_s)),
        )
    )
    return _ObstoreClient(
        unlimited_store, "version" if transport.kind == "GCSStore" else "e_tag", patience_store, quick_store
    )


def _credentials(find: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    return {**find(), "expires_at": datetime.now(UTC) + _CREDENTIALS_LIFE}


def _get(client: _ObstoreClient, store: Any, name: str, start: int, stop: int, tag: str | None) -> Any:
    import obstore

    options: Any = {"range": (start, stop)}
    if tag is not None and client.tag == "version":
        options["version"] = tag
    elif tag is not None:
        options["if_match"] = f'"{tag}"'
    return obstore.get(store, name, options=options)


def _object(client: _ObstoreClient, name: str, meta: Mapping[str, Any]) -> Object | None:
    """Return the object that an answer describes, or ``None`` if the answer has no tag."""
    tag = meta[client.tag]
    if tag is None:
        return None
    return Object(name, meta["size"], tag.strip('"'), meta["last_modified"].timestamp())


@functools.cache
def _errors() -> tuple[type[Exception], ...]:
    from obstore.exceptions import BaseError

    return BaseError, OSError, ValueError


def _short_text(error: Exception) -> str:
    """Return an error's text without its debug information."""
    return str(error).partition("\n\nDebug source:")[0]


@functools.cache
def _forked_beside_obstore() -> list[int]:
    """Return a list that is empty except in a process forked from one that had loaded obstore.

    In such a process a request would wait forever, because obstore's threads do not survive a fork. The
    first call registers a hook that adds to the list after a fork; the list is the same in all calls.
    """
    forked: list[int] = []

    def note() -> None:
        if "obstore" in sys.modules:
            forked.append(os.getpid())

    os.register_at_fork(after_in_child=note)
    return forked
