"""Open the caches of a bucket: from the mirror, after a download to the mirror, or by range."""

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from yogadl._core.key import DatasetKey
from yogadl._format.manifest import Manifest, digest_of
from yogadl._format.reader import AnyReader, Reader
from yogadl._format.table import PartTable
from yogadl.errors import ConfigurationError, StorageError
from yogadl.storage import _names
from yogadl.storage._backend import Backend
from yogadl.storage._buckets.bucket import Bucket
from yogadl.storage._buckets.offline import OfflineError
from yogadl.storage._buckets.retry import UnavailableError
from yogadl.storage._buckets.store_errors import CredentialsError
from yogadl.storage._cached import REMEDY, Published, can_map, checked, checksums
from yogadl.storage._catalogue import Catalogue
from yogadl.storage._folder import FULL
from yogadl.storage._leases.coordinator import LeaseCoordinator
from yogadl.storage._leases.lease import Leases
from yogadl.storage._leases.policy import LeasePolicy
from yogadl.storage._mirror.filling import FillPolicy
from yogadl.storage._mirror.mirror import Mirror
from yogadl.storage._mirror.mirrored_cache import MirroredCache
from yogadl.storage._mirror.no_mirror import NoMirror
from yogadl.storage._mirror.ranged_cache import RangedCache
from yogadl.storage._parts import read_index, table_to_read
from yogadl.storage._remote import BucketRoot, MirroredRoot
from yogadl.storage._spending import Spending

if TYPE_CHECKING:
    from yogadl._format.checks import Checksums
    from yogadl._format.rows import Parts
    from yogadl.storage._planning import Planner

_log = logging.getLogger("yogadl")

# The largest size of a part in a bucket unless a build gives one.
PART_BYTES: Final = 256 * 2**20

# The advice about a damaged block.
_REMEDY: Final = "storage.verify, or `yogadl verify`, downloads it again from the bucket; then fetch it again"
# Up to this size, downloading all that is missing takes less time than reading by range would save.
AT_ONCE_BYTES: Final = 64 * 2**20

# Whether a mirror is filled with a version: if it is worth it, always, or never.
Fill = Literal["auto", "always", "never"]
# Whether ranges are compared with their checksums: not at all, or by whole blocks.
Verify = Literal["block"] | None


class MirrorOpener:
    """Open caches of a bucket, whose files are in the mirror, are downloaded to it, or are read by range.

    Implements `Opener`.

    Args:
        bucket: The bucket; no request is made before it is used.
        mirror: This machine's copies.
        mapped: Whether the mirror's files may be mapped.
        fill: Whether to fill the mirror with versions that are read.
        spending: Counts requests for ranges.
        verify: Whether ranges are compared with their checksums.
    """

    def __init__(
        self,
        bucket: Bucket,
        mirror: Mirror,
        mapped: bool = True,
        fill: Fill = "auto",
        spending: Spending | None = None,
        verify: Verify = None,
    ) -> None:
        self.mirror = mirror
        self._bucket = bucket
        self._root, self._hurried = BucketRoot(bucket), BucketRoot(bucket.hurried())
        self._is_mapped = mapped
        self._fill = fill
        self._spending = spending or Spending()
        self._verify: Verify = verify
        self._is_told = self._is_full_told = False

    def __reduce__(self) -> Any:
        options = self._is_mapped, self._fill, self._spending, self._verify
        return MirrorOpener, (self._bucket, self.mirror, *options)

    def manifest(self, key: DatasetKey, digest: str | None = None) -> bytes | None:
        """Return the manifest of a version as it is now, or ``None`` if there is none.

        If the mirror has all of the version, the store gets only a few seconds to answer. If it does not
        answer, the mirror's manifest is returned, with a warning once.
        """
        is_known = self.mirror.known(key, digest) is not None
        try:
            content = (self._hurried if is_known else self._root).read(_names.manifest(key))
        except UnavailableError as error:
            if not is_known:
                raise
            here = self.mirror.kept(key, digest)  # looks for every part
            if here is None:
                return self._root.read(_names.manifest(key))
            if not (self._is_told or isinstance(error, OfflineError)):
                self._is_told = True
                _log.warning(
                    "yogadl: the store can't be asked whether %s was replaced; this dataset and others are "
                    "served as the mirror has them: %s", key, error
                )  # fmt: skip
            return here.content
        except CredentialsError as error:
            if not is_known or self.mirror.kept(key, digest) is None:
                raise
            raise CredentialsError(
                error.errno,
                f"{error.strerror}; this machine's mirror has all of {key}, and "
                "open_storage(..., offline=True) serves that without asking the store",
            ) from error
        self.mirror.renew(key, None if content is None else digest_of(content))
        return content

    def here(self, key: DatasetKey, digest: str) -> Published | None:
        return self.mirror.kept(key, digest)

    def reader(self, published: Published, *, check: bool = False) -> AnyReader:
        """Return a reader of a cache: of mapped files if they are here, else of ranges.

        If few bytes are missing, they are downloaded now, unless `mirror_fill` is ``"never"``.
        """
        manifest = published.manifest
        if isinstance(self.mirror, NoMirror):
            return self._afar(manifest, check=check)
        try:
            cache = self._held(manifest)
        except StorageError as error:
            if error.errno not in FULL:
                raise
            self._tell_full("what is not here is", error)
            return self._afar(manifest, check=check)
        try:
            are_here = cache.are_here()
            missing_bytes = int(cache.table.size_bytes[~are_here].sum())
            limit_bytes = cache.limit_bytes
            has_room = limit_bytes is None or cache.table.total_bytes <= limit_bytes
            if missing_bytes and self._fill != "never" and missing_bytes <= AT_ONCE_BYTES and has_room:
                missing_bytes = (
                    0 if self._has_room("what is not here is", cache.complete, cache) else missing_bytes
                )
                are_here = cache.are_here()
            has_indexes = (
                check and not missing_bytes and self._has_room("indexes are", cache.complete_indexes, cache)
            )
            self.mirror.keep(published)
        except BaseException:
            cache.close()
            raise
        maps = self._is_mapped and can_map(cache.folder)
        if not missing_bytes and has_indexes == check:
            return self._reader(manifest, cache, maps=maps, check=check)
        sums, policy = self._sums(manifest, cache.table, check=check), FillPolicy(self._fill, self._tell_full)
        files = RangedCache(
            self._bucket, manifest, cache.table, self._spending, sums, (cache, are_here), policy
        )
        return self._reader(manifest, files, maps=maps, check=check)

    def _held(self, manifest: Manifest) -> MirroredCache:
        """Hold the mirror's files of a cache; on a full disk, first evict files that no process reads."""
        try:
            return self.mirror.hold(manifest)
        except StorageError as error:
            if error.errno not in FULL:
                raise
        self.mirror.make_room(manifest.table_bytes)
        return self.mirror.hold(manifest)

    def _afar(self, manifest: Manifest, *, check: bool) -> AnyReader:
        """Return a reader by range of a cache that has no files on this machine, without a mirror."""
        root = MirroredRoot(self._bucket, self.mirror)
        table = table_to_read(root, manifest)
        files = RangedCache(
            self._bucket, manifest, table, self._spending, self._sums(manifest, table, check=check)
        )
        return self._reader(manifest, files, maps=False, check=check)

    def _tell_full(self, what: str, error: StorageError) -> None:
        """Log once that the mirror has no room."""
        if not self._is_full_told:
            self._is_full_told = True
            _log.warning("yogadl: %s read by range: %s", what, error)

    def _reader(
        self, manifest: Manifest, files: MirroredCache | RangedCache, *, maps: bool, check: bool
    ) -> AnyReader:
        reader = Reader(manifest.spec, files.table, files, maps=maps)
        if not check:
            return reader
        if isinstance(files, RangedCache):
            assert files.sums is not None
            return checked(reader, files.sums)
        return checked(reader, checksums(manifest, files.table, files.index, _REMEDY))

    def _sums(self, manifest: Manifest, table: PartTable, *, check: bool) -> "Checksums | None":
        """Return the checksums of the blocks that are read by range, if they are compared."""
        if not check and self._verify is None:
            return None
        index_of = partial(read_index, MirroredRoot(self._bucket, self.mirror), manifest.key, table)
        return checksums(manifest, table, index_of, REMEDY)  # a range has no second copy

    def _has_room(self, what: str, bring: Callable[[range], None], cache: MirroredCache) -> bool:
        """Download all files of a kind to the mirror; return whether there was room."""
        try:
            bring(range(len(cache.table)))
        except StorageError as error:
            if error.errno not in FULL:
                raise
            self._tell_full(what, error)
            return False
        return True

    def planner(self, parts: "Parts") -> "Planner":
        from yogadl.storage._planning import Planner  # only `plan` needs it

        return Planner(parts, self)

    def read(self, name: str, most_bytes: int) -> bytes | None:
        content = self.mirror.read_file(name, most_bytes)
        if content is None:
            content = self._hurried.read(name, most_bytes)
            if content is not None:
                self.mirror.keep_file(name, content)
        return content

    def write(self, name: str, content: bytes) -> None:
        """Write such a file to the mirror, and then to the bucket if that is possible."""
        self.mirror.keep_file(name, content)
        self._hurried.write(name, content)

    def tagged(self, key: DatasetKey, *, is_away: bool = False) -> str | None:
        from yogadl.storage._tags import version_of  # fetching by version does not need it

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
            The names of the files that were damaged in the mirror, and were downloaded again.
        """
        from yogadl.storage._selections import missing_selections  # most readers do not need it

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
    bucket: Bucket,
    mirror: Mirror,
    policy: LeasePolicy,
    *,
    exclusive: bool = True,
    mapped: bool = True,
    fill: Fill = "auto",
    spending: Spending | None = None,
    verify: Verify = None,
) -> Backend:
    """Return the backend of a storage in a bucket, shared by any number of machines without a server.

    Args:
        bucket: The bucket; no request is made before it is used.
        mirror: This machine's copies.
        policy: How long builders wait for each other.
        exclusive: Whether to test, before a build, that the store honours conditional writes. Without them
            only one machine may build at a time.
        mapped: Whether the mirror's files may be mapped.
        fill: Whether to fill the mirror with versions that are read.
        spending: Counts requests for ranges.
        verify: Whether ranges are compared with their checksums.

    Raises:
        ConfigurationError: if `verify` has another value.
    """
    if verify not in (None, "block"):
        raise ConfigurationError(f"verify is None or 'block', not {verify!r}")
    root = MirroredRoot(bucket, mirror)
    changed = partial(mirror.renew, digest=None)
    coordinator = LeaseCoordinator(root, Leases(bucket, policy), probes=exclusive, changed=changed)
    opener = MirrorOpener(bucket, mirror, mapped, fill, spending, verify)
    return Backend(Catalogue(root, opener), coordinator, PART_BYTES)
