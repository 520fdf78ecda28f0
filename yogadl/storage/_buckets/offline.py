"""Refuse every request to a store, for reading from the mirror alone (``offline=True``)."""

import errno
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NoReturn

from yogadl.storage._buckets.bucket import Body, Bucket, Object
from yogadl.storage._buckets.retry import UnavailableError


class OfflineError(UnavailableError):
    """No request was made, because of ``offline=True``."""


class OfflineBucket(Bucket):
    """A bucket whose verbs all raise at once."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    @property
    def url(self) -> str:
        return self._bucket.url

    @property
    def origin(self) -> str:
        return self._bucket.origin

    def get(
        self, name: str, start: int = 0, stop: int | None = None, *, tag: str | None = None
    ) -> AbstractContextManager[Body | None]:
        self._refuse("read", name)

    def put(self, name: str, content: bytes | Path) -> Object:
        self._refuse("write", name)

    def put_if_absent(self, name: str, content: bytes) -> bool:
        self._refuse("write", name)

    def head(self, name: str) -> Object | None:
        self._refuse("read", name)

    def list(self, prefix: str = "") -> Iterator[Object]:
        self._refuse("list", prefix)

    def delete(self, name: str) -> None:
        self._refuse("delete", name)

    def _refuse(self, verb: str, name: str) -> NoReturn:
        raise OfflineError(
            errno.ENETUNREACH,
            f"can't {verb} {self.url}/{name}: with offline=True only versions that are complete in this "
            "machine's mirror can be read. Without offline=True, where the store can be reached, `yogadl "
            "pull` fills the mirror",
        )
