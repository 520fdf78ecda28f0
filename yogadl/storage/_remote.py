"""Keep caches in a bucket, for any number of machines, and read them from this machine's mirror."""

import logging
from collections.abc import Callable
from typing import Any, Final

from yogadl._format.manifest import Manifest, digest_of
from yogadl._format.reader import AnyReader, Reader
from yogadl._key import DatasetKey
from yogadl.storage import _names
from yogadl.storage._backend import Backend
from yogadl.storage._bucket_root import BucketRoot, MirroredRoot
from yogadl.storage._buckets.bucket import Bucket
from yogadl.storage._buckets.offline import OfflineError
from yogadl.storage._buckets.retry import UnavailableError
from yogadl.storage._cached import Published, can_map, checked
from yogadl.storage._catalogue import Catalogue
from yogadl.storage._leases.coordinator import LeaseCoordinator
from yogadl.storage._leases.lease import Leases
from yogadl.storage._leases.policy import LeasePolicy
from yogadl.storage._mirror.mirror import Mirror

_log = logging.getLogger("yogadl")

PART_BYTES: Final = 256 * 2**20
# What to do about a damaged block.
_REMEDY: Final = "storage.verify, or `yogadl verify`, brings it anew from the bucket; then fetch it again"


class MirrorOpener:
    """Open caches of a bucket by bringing their files to this machine's mirror first. Implements `Opener`.

    Args:
        bucket: The bucket; nothing is asked of it before it is used.
        mirror: Where this machine keeps its copies.
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

        If the version is whole in the mirror, the store is asked for some seconds only. If it can't be asked,
        what the mirror has is served, and a warning says so once.
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
        """Return this very manifest if the mirror has it, and all that it names; nothing is asked then."""
        return self.mirror.kept(key, digest)

    def reader(self, published: Published, *, check: bool = False) -> AnyReader:
        """Return a reader of a cache, whose files are brought to the mirror first."""
        manifest = published.manifest
        cache = self.mirror.bring(manifest, indexes=check)
        self.mirror.keep(published)
        maps = self._is_mapped and can_map(cache.folder)
        reader = Reader(manifest.spec, cache.table, cache, maps=maps)
        return checked(reader, cache.index, manifest, _REMEDY) if check else reader

    def opened(self, published: Published) -> None:
        """Note that this was the newest of its version, unless one is noted."""
        self.mirror.keep_newest(published)

    def fill(self, published: Published, *, progress: Callable[[int, int], None] | None = None) -> list[str]:
        """Bring a version to the mirror, indexes and all, so that it opens without the bucket.

        Returns:
            The names of the files that were damaged here, and were brought anew.
        """
        damaged = self.mirror.fill(published.manifest, progress=progress)
        self.mirror.keep(published)
        self.mirror.keep_newest(published)
        return damaged

    def mend(self, manifest: Manifest) -> tuple[int, list[str]]:
        """Compare what the mirror has of a cache with its checksums; bring anew what is damaged."""
        return self.mirror.mend(manifest)


def remote_backend(
    bucket: Bucket, mirror: Mirror, terms: LeasePolicy, *, exclusive: bool = True, mapped: bool = True
) -> Backend:
    """Return a storage's backend in a bucket, shared by any number of machines without a server.

    Args:
        bucket: The bucket; nothing is asked of it before it is used.
        mirror: Where this machine keeps its copies.
        terms: How long builders wait for each other.
        exclusive: Whether to make sure, before something is built, that the store can decide between
            builders. Without, only one machine may build at a time.
        mapped: Whether the mirror's files may be mapped to be read.
    """
    root = MirroredRoot(bucket, mirror)
    coordinator = LeaseCoordinator(root, Leases(bucket, terms), probes=exclusive, mirror=mirror)
    return Backend(Catalogue(root, MirrorOpener(bucket, mirror, mapped)), coordinator, PART_BYTES)
