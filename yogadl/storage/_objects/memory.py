"""Buckets without a service: one in memory, for tests, and one that refuses every request."""

import errno
import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NoReturn

from yogadl.storage._objects.bucket import (
    Body,
    Bucket,
    Object,
    check_range,
    checked_name,
    checked_prefix,
    replaced,
)
from yogadl.storage._objects.retry import UnavailableError


class MemoryBucket(Bucket):
    """A bucket of this process alone, for tests. Implements `Bucket`, except that it is not picklable.

    Args:
        chunk_bytes: The size of the chunks of a body.
    """

    def __init__(self, *, chunk_bytes: int = 2**20) -> None:
        self._chunk_bytes = chunk_bytes
        self._objects: dict[str, tuple[Object, bytes]] = {}
        self._tags = itertools.count(1)
        self._writing = threading.Lock()

    @property
    def url(self) -> str:
        return f"memory://{id(self):x}"

    @contextmanager
    def get(
        self, name: str, start: int = 0, stop: int | None = None, *, tag: str | None = None
    ) -> Iterator[Body | None]:
        check_range(name, start, stop)
        stored = self._objects.get(checked_name(name))
        if stored is None:
            yield None
            return
        info, content = stored
        if tag not in (None, info.tag):
            raise replaced(self.url, name)
        wanted = memoryview(content)[start:stop]
        size = self._chunk_bytes
        yield Body(info, (bytes(wanted[at : at + size]) for at in range(0, len(wanted), size)))

    def put(self, name: str, content: bytes | Path) -> Object:
        copied = content.read_bytes() if isinstance(content, Path) else bytes(content)
        with self._writing:
            return self._put(checked_name(name), copied)

    def put_if_absent(self, name: str, content: bytes) -> bool:
        with self._writing:
            stored = self._objects.get(checked_name(name))
            if stored is None:
                self._put(name, bytes(content))
            return stored is None or stored[1] == content

    def head(self, name: str) -> Object | None:
        stored = self._objects.get(checked_name(name))
        return None if stored is None else stored[0]

    def list(self, prefix: str = "") -> Iterator[Object]:
        checked_prefix(prefix)
        objects = list(self._objects.values())  # a snapshot: other threads may write meanwhile
        listed = (info for info, _ in objects if info.name.startswith(prefix))
        yield from sorted(listed, key=lambda info: info.name)

    def delete(self, name: str) -> None:
        with self._writing:
            self._objects.pop(checked_name(name), None)

    def _put(self, name: str, content: bytes) -> Object:
        info = Object(name, len(content), str(next(self._tags)), time.time())
        self._objects[name] = (info, content)
        return info


class OfflineError(UnavailableError):
    """No request was made, because of ``offline=True``."""


class OfflineBucket(Bucket):
    """A bucket that raises `OfflineError` on every request; with ``offline=True`` only the mirror is read."""

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
