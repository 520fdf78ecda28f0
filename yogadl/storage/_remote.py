"""Keep caches in a bucket, for any number of machines, and read them from this machine's mirror."""

import contextlib
import itertools
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Final

from yogadl._format.manifest import MAX_MANIFEST_BYTES, digest_of
from yogadl._format.reader import AnyReader, Reader
from yogadl._key import DatasetKey
from yogadl.errors import CacheFormatError
from yogadl.storage import _names
from yogadl.storage._backend import Backend
from yogadl.storage._buckets.bucket import Bucket, Object, read
from yogadl.storage._buckets.local import LocalBucket
from yogadl.storage._buckets.offline import OfflineError
from yogadl.storage._buckets.retry import UnavailableError
from yogadl.storage._cached import Published, can_map, checked
from yogadl.storage._catalogue import Catalogue
from yogadl.storage._folder import translated
from yogadl.storage._leases.coordinator import LeaseCoordinator
from yogadl.storage._leases.lease import Leases
from yogadl.storage._leases.policy import LeasePolicy
from yogadl.storage._mirror.mirror import Mirror
from yogadl.storage._mirror.transfer import upload
from yogadl.storage._root import MAX_READ_BYTES, Entry, too_large
from yogadl.storage._scratch import scratch_folder

_log = logging.getLogger("yogadl")

PART_BYTES: Final = 256 * 2**20
# What to do about a damaged block.
_REMEDY: Final = "storage.verify, or `yogadl verify`, downloads it again from the bucket; then fetch it again"
# Below the root; no dataset is called so.
_CLOCK: Final = ".yogadl/clock"
_CLOCK_IS_GOOD_FOR_S: Final = 600.0
_DAY_S: Final = 86_400.0


class BucketRoot:
    """What a `Root` does with small files, in a bucket. Safe to use from threads and after a fork; picklable.

    Nothing is written but by the methods that say so; to read takes the permissions to get and to list.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._clock: tuple[float, float] | None = None  # the store's, and ours at that moment

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
        return read(self._bucket, name, 0, most_bytes)

    def size(self, name: str) -> int | None:
        found = self._bucket.head(name)
        return None if found is None else found.size_bytes

    def write(self, name: str, content: bytes) -> None:
        self._bucket.put(name, content)

    def write_if_absent(self, name: str, content: bytes) -> bool:
        return self._bucket.put_if_absent(name, content)

    def rename(self, name: str, new_name: str, check: Callable[[], None] = lambda: None) -> bool:
        """Move a small object, by a copy; return whether there was one."""
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
            yield Entry(found.name, found.size_bytes, found.modified)

    def _unfinished(self, below: str) -> Iterator[Object]:
        """Yield what killed writers may have left below a folder, if this is one: a store never shows it."""
        return self._bucket.unfinished(below) if isinstance(self._bucket, LocalBucket) else iter(())

    def folders_with(self, *names: str, most_files: int | None = None) -> tuple[list[str], bool]:
        found, count = set(), 0
        every = itertools.chain(self._bucket.list(), self._unfinished(""))
        for entry in itertools.islice(every, most_files):
            count += 1
            segments = entry.name.split("/")[:-1]
            for number, segment in enumerate(segments):
                if number and segment in names:
                    found.add("/".join(segments[:number]))
        return sorted(found), count != most_files

    def now(self) -> float:
        """Return the time by the store's clock, as a small object says that is written to read it.

        The clock of this machine may be hours off, so nothing goes by it.
        """
        if self._clock is None or time.monotonic() - self._clock[1] > _CLOCK_IS_GOOD_FOR_S:
            written = self._bucket.put(_CLOCK, secrets.token_bytes(8))
            # Up to a second more: the dates of HTTP count whole ones, and nothing may be from the future.
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
        """Return whether an object is too young for pruning to take it within a day."""
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
    """A bucket whose parts are made, and kept, in this machine's mirror. Implements `Root`."""

    def __init__(self, bucket: Bucket, mirror: Mirror) -> None:
        super().__init__(bucket)
        self._mirror = mirror

    def __reduce__(self) -> Any:
        return MirroredRoot, (self._bucket, self._mirror)

    @property
    def bucket(self) -> Bucket:
        """The bucket: parts go there, one after the other; the mirror keeps what it has room for."""
        return self._bucket

    def adopt(self, files: Mapping[str, Path]) -> None:
        """Send finished files to their places, in this order; keep them in the mirror if there is room."""
        for name, path in files.items():
            upload(self._bucket, name, path)
        self._mirror.adopt(files)
        for path in files.values():
            path.unlink()

    def with_room(self, dry_run: bool = False) -> AbstractContextManager[None]:
        """Clear the mirror, which is this machine's alone, of killed builds."""
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
        """Give the path of a copy of an object as it is in the bucket now, whatever the mirror has."""
        with scratch_folder(self._mirror.scratch()) as folder:
            path = folder / "copy"
            with self._bucket.get(name) as body:
                if body is None:
                    raise CacheFormatError(f"{self.where(name)} is missing; build the dataset again")
                self.make_room(body.object.size_bytes)
                with translated(f"can't write {path}"), path.open("wb") as file:
                    file.writelines(body.chunks)
            yield path


class MirrorOpener:
    """Open caches of a bucket by downloading their files to the mirror first. Implements `Opener`.

    Args:
        bucket: The bucket; no request is made before it is used.
        mirror: This machine's copies.
        mapped: Whether the mirror's files may be mapped to be read.
    """

    def __init__(self, bucket: Bucket, mirror: Mirror, mapped: bool = True) -> None:
        self.mirror = mirror
        self._bucket = bucket
        self._root, self._hurried = BucketRoot(bucket), BucketRoot(bucket.hurried())
        self._is_mapped = mapped
        self._is_told = False

    def __reduce__(self) -> Any:
        return MirrorOpener, (self._bucket, self.mirror, self._is_mapped)

    def manifest(self, key: DatasetKey, digest: str | None = None) -> bytes | None:
        """Return the manifest of a version as it is now, or ``None`` if there is none.

        If the mirror has all of the version, the store is waited for some seconds only. If it does not
        answer, the mirror's manifest is returned, with a warning once.
        """
        here = self.mirror.kept(key, digest)
        try:
            content = (self._root if here is None else self._hurried).read(_names.manifest(key))
        except UnavailableError as error:
            if here is None:
                raise
            if not (self._is_told or isinstance(error, OfflineError)):
                self._is_told = True
                _log.warning(
                    "yogadl: the store can't be asked whether %s was replaced; of this and others what the "
                    "mirror has is served: %s", key, error
                )  # fmt: skip
            return here.content
        self.mirror.renew(key, None if content is None else digest_of(content))
        return content

    def here(self, key: DatasetKey, digest: str) -> Published | None:
        return self.mirror.kept(key, digest)

    def reader(self, published: Published, *, check: bool = False) -> AnyReader:
        manifest = published.manifest
        cache = self.mirror.open_cache(manifest, indexes=check)
        self.mirror.keep(published)
        maps = self._is_mapped and can_map(cache.folder)
        reader = Reader(manifest.spec, cache.table, cache, maps=maps)
        return checked(reader, cache.index, manifest, _REMEDY) if check else reader

    def read(self, name: str, most_bytes: int) -> bytes | None:
        content = self.mirror.folder.read(name, most_bytes)
        if content is None:
            content = self._hurried.read(name, most_bytes)
            if content is not None:
                self.mirror.keep_file(name, content)
        return content

    def write(self, name: str, content: bytes) -> None:
        """Put such a file into the mirror, and then into the bucket, where that can be."""
        self.mirror.keep_file(name, content)
        self._hurried.write(name, content)

    def tagged(self, key: DatasetKey, *, is_away: bool = False) -> str | None:
        from yogadl.storage._tags import version_of  # who fetches by version needs none of it

        if is_away:
            return self.mirror.tagged(key)
        version = version_of(MirroredRoot(self._bucket, self.mirror), key)
        self.mirror.note_tag(key, version)
        return version

    def opened(self, published: Published) -> None:
        self.mirror.keep_newest(published)

    def fill(self, published: Published, *, progress: Callable[[int, int], None] | None = None) -> list[str]:
        """Download a version to the mirror, with its indexes, so that it opens without the bucket.

        Returns:
            The names of the files that were damaged here, and were downloaded again.
        """
        from yogadl.storage._selections import missing_selections  # who only reads needs none of it

        damaged = self.mirror.fill(published.manifest, progress=progress) + self.mirror.keep(published)
        self.mirror.keep_newest(published)
        root = MirroredRoot(self._bucket, self.mirror)
        for name, content in missing_selections(root, self.mirror.folder, published.manifest):
            self.mirror.keep_file(name, content)
        return damaged

    def mend(self, published: Published) -> tuple[int, list[str]]:
        count, damaged = self.mirror.mend(published.manifest)
        return count, damaged + (self.mirror.keep(published) if count else [])


def remote_backend(
    bucket: Bucket, mirror: Mirror, policy: LeasePolicy, *, exclusive: bool = True, mapped: bool = True
) -> Backend:
    """Return a storage's backend in a bucket, shared by any number of machines without a server.

    Args:
        bucket: The bucket; no request is made before it is used.
        mirror: This machine's copies.
        policy: How long builders wait for each other.
        exclusive: Whether to test, before a build, that the store honours conditional writes. Without them
            only one machine may build at a time.
        mapped: Whether the mirror's files may be mapped to be read.
    """
    root = MirroredRoot(bucket, mirror)
    changed = partial(mirror.renew, digest=None)
    coordinator = LeaseCoordinator(root, Leases(bucket, policy), probes=exclusive, changed=changed)
    return Backend(Catalogue(root, MirrorOpener(bucket, mirror, mapped)), coordinator, PART_BYTES)
