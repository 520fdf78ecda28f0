"""Make a bucket of a store's SDK: trying again, resuming and checking are written once, here."""

import errno
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from yogadl.errors import ConfigurationError, StorageError
from yogadl.storage._buckets.bucket import (
    Body,
    Object,
    check_range,
    checked_name,
    checked_prefix,
    is_own,
    replaced,
)
from yogadl.storage._buckets.resuming import Resuming
from yogadl.storage._buckets.retry import HURRIED_RETRY, Retrier, RetryPolicy, persist
from yogadl.storage._buckets.store import Page, PastEndError, Store

Result = TypeVar("Result")


def given(**options: Any) -> dict[str, Any]:
    """Return the options that were given, so that a bucket pickles in few bytes."""
    return {name: value for name, value in options.items() if value}


def remade(
    make: Callable[..., "StoreBucket"],
    place: tuple[str, str],
    options: dict[str, Any],
    is_reached: bool = False,
) -> "StoreBucket":
    """Make a bucket anew that was pickled; a store that answered whoever pickled it is there."""
    bucket = make(*place, **options)
    if is_reached:
        bucket._contact.answered.set()
    return bucket


def checked_endpoint(url: Any) -> str | None:  # whatever the caller took for a URL
    """Return where a store answers, if that is a URL.

    Raises:
        ConfigurationError: if it is not; says what it might be.
    """
    if url is None:
        return None
    text = str(url)
    try:
        parts = urlsplit(text)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if is_url and not re.search(r"\s", text):
        return text
    near = f"http://{text} or https://{text}" if text and "://" not in text else "http://minio:9000"
    raise ConfigurationError(
        f"endpoint_url is not where a store answers: {text!r}; give scheme, host and port, such as {near}"
    )


class StoreBucket:
    """A bucket in a store, below a prefix. Implements `Bucket`.

    Args:
        store: The store.
        prefix: The root; empty for all of the store.
        patience: How long to wait for it.
    """

    def __init__(self, store: Store, prefix: str, patience: RetryPolicy) -> None:
        self._store = store
        self._root = f"{checked_name(prefix.strip('/'))}/" if prefix.strip("/") else ""
        self._contact = Retrier(patience)
        self._is_there = False

    @property
    def url(self) -> str:
        return f"{self._store.url}/{self._root}".rstrip("/")

    def __repr__(self) -> str:
        return self.url

    @property
    def origin(self) -> str:
        return f"{self._store.endpoint} {self.url}"

    def hurried(self) -> "StoreBucket":
        remake: Any = self.__reduce__()
        make, place, options, _ = remake[1]
        patience = self._contact.patience
        hurry = RetryPolicy(
            min(HURRIED_RETRY.silence_s, patience.silence_s), min(HURRIED_RETRY.total_s, patience.total_s)
        )
        bucket: StoreBucket = make(*place, **{**options, "patience": hurry})
        bucket._contact = Retrier(hurry, self._contact.answered)
        return bucket

    @contextmanager
    def get(
        self, name: str, start: int = 0, stop: int | None = None, *, tag: str | None = None
    ) -> Iterator[Body | None]:
        check_range(name, start, stop)
        resuming = Resuming(self._store, self._key(name), tag, self._contact)
        try:
            found = None if start == stop else resuming.open(start, stop)
        except PastEndError:
            found, stop = None, start
        try:
            if start == stop:  # a store can't be asked for no bytes at all
                known = self.head(name)
                if known is not None and tag not in (None, known.tag):
                    raise replaced(self.url, name)
                yield None if known is None else Body(known, iter(()))
            elif found is None:
                self._check_bucket(self._key(name))
                yield None
            else:
                yield Body(self._below_root(found), resuming.chunks())
        finally:
            resuming.close()

    def put(self, name: str, content: bytes | Path) -> Object:
        key = self._key(name)
        return self._below_root(self._persist(lambda: self._store.put(key, content)))

    def put_if_absent(self, name: str, content: bytes) -> bool:
        key = self._key(name)
        # There may be an object because an attempt succeeded whose answer was lost: an earlier one of
        # ours, or one that somebody on the way repeated.
        return self._persist(lambda: self._store.create(key, content)) or is_own(self, name, content)

    def head(self, name: str) -> Object | None:
        key = self._key(name)
        found = self._persist(lambda: self._store.head(key))
        if found is None:
            self._check_bucket(key)
            return None
        return self._below_root(found)

    def list(self, prefix: str = "") -> Iterator[Object]:
        start = self._root + checked_prefix(prefix)
        mark: str | None = None
        while True:
            page = self._page(start, mark)
            # Consoles put empty objects where they show folders; no name of ours ends in a slash.
            yield from (self._below_root(found) for found in page.objects if not found.name.endswith("/"))
            mark = page.mark
            if mark is None:
                return

    def delete(self, name: str) -> None:
        key = self._key(name)
        self._persist(lambda: self._store.delete(key))

    def _page(self, prefix: str, mark: str | None) -> Page:
        return self._persist(lambda: self._store.page(prefix, mark))

    def _check_bucket(self, missing: str) -> None:
        """Make sure that an object is missing by itself, not with its bucket: stores answer 404 to both."""
        if self._is_there:
            return
        try:
            self._page(missing, None)  # of little, most often nothing
        except StorageError as error:
            if error.errno != errno.EACCES:  # who may not list must do without this check
                raise
        self._is_there = True

    def _persist(self, attempt: Callable[[], Result]) -> Result:
        return persist(self._contact, attempt)

    def _key(self, name: str) -> str:
        return checked_name(self._root + checked_name(name))

    def _below_root(self, found: Object) -> Object:
        return Object(found.name[len(self._root) :], found.size_bytes, found.tag, found.modified)
