"""Keep small files and parts in a bucket, for any number of machines, with a mirror on this one."""

import contextlib
import itertools
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from yogadl._format.manifest import MAX_MANIFEST_BYTES
from yogadl.errors import CacheFormatError
from yogadl.storage import _names
from yogadl.storage._buckets.bucket import Bucket, Object
from yogadl.storage._buckets.local import LocalBucket
from yogadl.storage._folder import translated
from yogadl.storage._mirror.mirror import Mirror
from yogadl.storage._mirror.transfer import upload
from yogadl.storage._root import MAX_READ_BYTES, Entry, too_large
from yogadl.storage._scratch import scratch_folder

_log = logging.getLogger("yogadl")

# The advice about a damaged block.
_REMEDY: Final = "storage.verify, or `yogadl verify`, downloads it again from the bucket; then fetch it again"
# The name of the object that is written to read the store's clock; no dataset has such an id.
_CLOCK: Final = ".yogadl/clock"
_CLOCK_IS_GOOD_FOR_S: Final = 600.0
_DAY_S: Final = 86_400.0


class BucketRoot:
    """The methods of `Root` for small files in a bucket. Safe for threads and after a fork; picklable.

    Methods write only if their docstrings, here or in `Root`, mention it. Reading takes only the permissions
    to get and to list.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._clock: tuple[float, float] | None = None  # the store's time, and this machine's at that moment

    @property
    def location(self) -> str:
        return self._bucket.url

    def where(self, name: str) -> str:
        return f"{self._bucket.url}/{name}"

    def read(self, name: str, most_bytes: int = MAX_MANIFEST_BYTES) -> bytes | None:
        with self._bucket.get(name) as body:
            if body is None:
                return None
            if body.object.size_bytes > most_bytes:
                raise too_large(self.where(name), most_bytes)
            return b"".join(body.chunks)

    def view(self, name: str, most_bytes: int = MAX_READ_BYTES) -> bytes | None:
        # Reading the whole object leaves less memory in use than a range (benchmarks/many_parts.py).
        with self._bucket.get(name) as body:
            if body is None:
                return None
            found, size_bytes = [], 0
            for chunk in body.chunks:
                found.append(chunk)
                size_bytes += len(chunk)
                if size_bytes >= most_bytes:
                    break
            return b"".join(found)[:most_bytes]

    def size(self, name: str) -> int | None:
        found = self._bucket.head(name)
        return None if found is None else found.size_bytes

    def write(self, name: str, content: bytes) -> None:
        self._bucket.put(name, content)

    def write_if_absent(self, name: str, content: bytes) -> bool:
        return self._bucket.put_if_absent(name, content)

    def rename(self, name: str, new_name: str, check: Callable[[], None] = lambda: None) -> bool:
        """Move a small object, by a copy; return whether it existed."""
        content = self.read(name)
        if content is None:
            return False
        self.write(new_name, content)
        check()
        self._bucket.delete(name)
        return True

    def names(self, below: str, suffix: str = "") -> list[str]:
        found = (entry.name for entry in self._bucket.list(f"{below}/"))
        return sorted(name for name in found if name.endswith(suffix))

    def entries(self, below: str) -> Iterator[Entry]:
        for found in itertools.chain(self._bucket.list(f"{below}/"), self._unfinished(below)):
            yield Entry(found.name, found.size_bytes, found.modified, found.tag)

    def _unfinished(self, below: str) -> Iterator[Object]:
        """Yield temporary files that killed writers left below a folder; a store never lists such objects."""
        return self._bucket.unfinished(below) if isinstance(self._bucket, LocalBucket) else iter(())

    def folders_with(
        self, *names: str, most_files: int | None = None, below: str = ""
    ) -> tuple[list[str], bool]:
        found, count = set(), 0
        every = itertools.chain(self._bucket.list(f"{below}/" if below else ""), self._unfinished(below))
        for entry in itertools.islice(every, most_files):
            count += 1
            segments = entry.name.split("/")[:-1]
            for number, segment in enumerate(segments):
                if number and segment in names:
                    found.add("/".join(segments[:number]))
        return sorted(found), count != most_files

    def now(self) -> float:
        """Return the time by the store's clock, read from the date of a small object that this writes.

        The clock of this machine is not used, since it may be hours off.
        """
        if self._clock is None or time.monotonic() - self._clock[1] > _CLOCK_IS_GOOD_FOR_S:
            written = self._bucket.put(_CLOCK, secrets.token_bytes(8))
            # Plus a second: HTTP dates are whole seconds, and no object may seem to be from the future.
            self._clock = written.modified + 1.0, time.monotonic()
        then, at = self._clock
        return then + time.monotonic() - at

    def age_s(self, name: str, now: float) -> float:
        if _names.is_unfinished(name):
            those = (one for one in self._unfinished(name.rpartition("/")[0]) if one.name == name)
            found = next(those, None)
        else:
            found = self._bucket.head(name)
        return 0.0 if found is None else now - found.modified

    def keep(self, name: str) -> bool:
        """Return whether an object is too young for pruning to remove it within a day."""
        found = self._bucket.head(name)
        return found is not None and self.now() - found.modified < _DAY_S

    def remove(self, name: str) -> None:
        if isinstance(self._bucket, LocalBucket) and _names.is_unfinished(name):
            self._bucket.delete_unfinished(name)
        else:
            self._bucket.delete(name)

    def remove_folder(self, name: str) -> None:
        for entry in list(self.entries(name)):
            self.remove(entry.name)


class MirroredRoot(BucketRoot):
    """A bucket whose parts are written, and kept, in this machine's mirror. Implements `Root`."""

    def __init__(self, bucket: Bucket, mirror: Mirror) -> None:
        super().__init__(bucket)
        self._mirror = mirror

    def __reduce__(self) -> Any:
        return MirroredRoot, (self._bucket, self._mirror)

    @property
    def bucket(self) -> Bucket:
        """The bucket: parts are uploaded to it; the mirror keeps those that it has room for."""
        return self._bucket

    def adopt(self, files: Mapping[str, Path]) -> None:
        """Upload finished files, in this order; keep them in the mirror if there is room."""
        for name, path in files.items():
            upload(self._bucket, name, path)
        self._mirror.adopt(files)
        for path in files.values():
            path.unlink()

    def with_room(self, dry_run: bool = False) -> AbstractContextManager[None]:
        """Remove the files of killed builds from the mirror; a bucket itself needs no room."""
        if not dry_run:
            self._mirror.sweep()
        return contextlib.nullcontext()

    def make_room(self, size_bytes: int) -> None:
        self._mirror.make_room(size_bytes)

    @contextlib.contextmanager
    def workplace(self, below: str) -> Iterator[Path]:
        with self._mirror.building(), scratch_folder(self._mirror.scratch()) as folder:
            yield folder

    @contextlib.contextmanager
    def local(self, name: str) -> Iterator[Path]:
        """Give the path of a new copy of an object from the bucket, even if the mirror has one."""
        with scratch_folder(self._mirror.scratch()) as folder:
            path = folder / "copy"
            with self._bucket.get(name) as body:
                if body is None:
                    raise CacheFormatError(f"{self.where(name)} is missing; build the dataset again")
                self.make_room(body.object.size_bytes)
                with translated(f"can't write {path}"), path.open("wb") as file:
                    file.writelines(body.chunks)
            yield path
