"""Put a storage in a bucket together; open its caches in the mirror, after a download to it, or by range."""

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from yogadl._core.key import DatasetKey
from yogadl._format.files import Files
from yogadl._format.manifest import Manifest, digest_of
from yogadl._format.table import PartTable
from yogadl.errors import ConfigurationError, CredentialsError, StorageError
from yogadl.storage import _names
from yogadl.storage._catalogue.backend import Backend, BuildCoordinator, Lease
from yogadl.storage._catalogue.cached import (
    REMEDY,
    Published,
    RecordReader,
    can_map,
    checksums,
    new_reader,
    read_index,
    table_to_read,
)
from yogadl.storage._catalogue.catalogue import Catalogue
from yogadl.storage._files.bucket_root import BucketRoot
from yogadl.storage._files.folder import FULL
from yogadl.storage._objects.bucket import Bucket, OfflineError, check_conditions
from yogadl.storage._objects.retry import UnavailableError
from yogadl.storage._remote.mirror import LocalMirror, MirroredRoot
from yogadl.storage._remote.mirrored_cache import MirroredCache
from yogadl.storage._remote.ranged_cache import FillPolicy, RangedCache
from yogadl.storage._remote.requests import Spending

if TYPE_CHECKING:
    from yogadl._format.checks import Checksums
    from yogadl._format.rows import Parts
    from yogadl.storage._files.permitted import Permitted, Places
    from yogadl.storage._remote.planning import Planner


_log = logging.getLogger("yogadl")
_said_to_be_full: Final[set[str]] = set()  # mirrors; said once in a process

# The advice about a damaged block.
_REMEDY: Final = "storage.verify, or `yogadl verify`, downloads it again from the bucket; then fetch it again"

# The largest size of a part in a bucket unless a build gives one.
PART_BYTES: Final = 256 * 2**20
# Up to this size, downloading all that is missing takes less time than reading by range would save.
AT_ONCE_BYTES: Final = 64 * 2**20

# Whether a mirror is filled with a version: if it is worth it, always, or never.
Fill = Literal["auto", "always", "never"]
# Whether ranges are compared with their checksums: not at all, or by whole blocks.
Verify = Literal["block"] | None


def remote_backend(
    bucket: Bucket,
    mirror: LocalMirror,
    lease: Lease,
    *,
    mapped: bool = True,
    fill: Fill = "auto",
    spending: Spending | None = None,
    verify: Verify = None,
    buckets: tuple[tuple[str, Bucket], ...] = (),
) -> Backend:
    """Return the backend of a storage in a bucket, shared by any number of machines without a server.

    Args:
        bucket: The bucket; no request is made before it is used.
        mirror: This machine's copies.
        lease: How builders exclude each other. If it is exclusive, a test before a build shows that the store
            honours conditional writes.
        mapped: Whether the mirror's files may be mapped.
        fill: Whether to fill the mirror with versions that are read.
        spending: Counts requests for ranges.
        verify: Whether ranges are compared with their checksums.
        buckets: See `Permitted`.

    Raises:
        ConfigurationError: if `verify` has another value.
    """
    if verify not in (None, "block"):
        raise ConfigurationError(f"verify must be None or 'block', not {verify!r}")
    root = MirroredRoot(bucket, mirror)
    opener = MirrorOpener(bucket, mirror, mapped, fill, spending, verify, buckets)
    make_coordinator = partial(_leases, root, bucket, mirror, lease)
    return Backend(Catalogue(root, opener), make_coordinator, PART_BYTES)


def _leases(root: MirroredRoot, bucket: Bucket, mirror: LocalMirror, lease: Lease) -> BuildCoordinator:
    from yogadl.storage._leases.lease import LeaseCoordinator, Leases  # only what builds or prunes needs it

    changed = partial(mirror.renew, digest=None)
    leases = Leases(BucketRoot(bucket), lease)  # without the mirror, which no process of heartbeats needs
    return LeaseCoordinator(
        root, leases, probe=partial(check_conditions, bucket) if lease.exclusive else None, changed=changed
    )


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
        buckets: See `Permitted`.
    """

    def __init__(
        self,
        bucket: Bucket,
        mirror: LocalMirror,
        mapped: bool = True,
        fill: Fill = "auto",
        spending: Spending | None = None,
        verify: Verify = None,
        buckets: tuple[tuple[str, Bucket], ...] = (),
    ) -> None:
        self._buckets = buckets
        self.mirror = mirror
        self._bucket = bucket
        self._root, self._hurried = MirroredRoot(bucket, mirror), BucketRoot(bucket.hurried())
        self._is_mapped = mapped
        self._fill = fill
        self._spending = spending or Spending()
        self._verify: Verify = verify
        self._has_warned_of_store = False
        self._is_to_plan = False

    def __reduce__(self) -> Any:
        options = self._is_mapped, self._fill, self._spending, self._verify, self._buckets
        return MirrorOpener, (self._bucket, self.mirror, *options)

    def to_plan(self) -> "MirrorOpener":
        options = self._is_mapped, self._fill, self._spending, self._verify, self._buckets
        found = MirrorOpener(self._bucket, self.mirror, *options)
        found._is_to_plan = True
        return found

    @property
    def permitted(self) -> "Permitted":
        """The places that may be read besides its own: also anywhere in the storage's own bucket."""
        # Only adopted versions need these.
        from yogadl.storage._files.permitted import Permitted

        # The own bucket is not pickled, which keeps references small. A folder has no root.
        whole: Bucket | None = getattr(self._bucket, "at_root", lambda: None)()
        return Permitted(False, self._buckets if whole is None else (*self._buckets, (whole.url, whole)))

    def manifest(self, key: DatasetKey, digest: str | None = None) -> bytes | None:
        """Return the manifest of a version as it is now, or ``None`` if there is none.

        If the mirror has all of the version, the store gets only a few seconds to answer. If it does not
        answer, the mirror's manifest is returned, with a warning once.
        """
        is_known = self.mirror.published_if_here(key, digest) is not None
        try:
            content = (self._hurried if is_known else self._root).read(_names.manifest(key))
        except UnavailableError as error:
            if not is_known:
                raise
            here = self.mirror.published_if_whole(key, digest)  # a call to the file system for each part
            if here is None:
                return self._root.read(_names.manifest(key))
            if not (self._has_warned_of_store or isinstance(error, OfflineError)):
                self._has_warned_of_store = True
                _log.warning(
                    "yogadl: the store can't be asked whether %s was replaced; this dataset and others are "
                    "read from the mirror, as it has them: %s", key, error
                )  # fmt: skip
            return here.content
        except CredentialsError as error:
            if not is_known or self.mirror.published_if_whole(key, digest) is None:
                raise
            raise CredentialsError(
                error.errno,
                f"{error.strerror}; this machine's mirror has all of {key}, and "
                "open_storage(..., offline=True) reads it without a request to the store",
            ) from error
        self.mirror.renew(key, None if content is None else digest_of(content))
        return content

    def mirrored(self, key: DatasetKey, digest: str) -> Published | None:
        return self.mirror.published_if_whole(key, digest)

    def reader(self, published: Published, *, check: bool = False) -> RecordReader:
        """Return a reader of a cache: of mapped files if they are here, else of ranges.

        If few bytes are missing, they are downloaded now, unless `Mirror.fill` is ``"never"``.
        """
        manifest = published.manifest
        if not self.mirror.keeps_files:
            return self._ranged_reader(manifest, check=check)
        try:
            cache = self._hold(manifest)
        except StorageError as error:
            if error.errno not in FULL:
                raise
            self._warn_full("files that are not here are", error)
            return self._ranged_reader(manifest, check=check)
        try:
            are_here = cache.are_here()
            missing_bytes = int(cache.sizes[~are_here].sum())
            limit_bytes = cache.limit_bytes
            has_room = limit_bytes is None or int(cache.sizes.sum()) <= limit_bytes
            at_once = 0 < missing_bytes <= AT_ONCE_BYTES and self._fill != "never" and has_room
            if at_once and not self._is_to_plan:
                complete = partial(cache.complete, cache.table.files.ids)
                if self._has_room("files that are not here are", complete):
                    missing_bytes = 0
                are_here = cache.are_here()
            has_indexes = (
                check
                and not missing_bytes
                and self._has_room("indexes are", partial(cache.complete_indexes, range(len(cache.table))))
            )
            if not self._is_to_plan:
                self.mirror.keep(published)
        except BaseException:
            cache.close()
            raise
        maps = self._is_mapped and can_map(cache.folder)
        if not missing_bytes and has_indexes == check:
            whole = checksums(manifest, cache.table, cache.index, _REMEDY) if check else None
            return new_reader(manifest, cache.table, cache, whole, maps=maps)
        sums, policy = (
            self._sums(manifest, cache.table, check=check),
            FillPolicy(self._fill, self._warn_full, at_once and self._is_to_plan),
        )
        files = RangedCache(
            self._bucket, manifest, cache.table, self._spending, sums, (cache, are_here), policy,
            self._places(cache.table.files),
        )  # fmt: skip
        return new_reader(manifest, cache.table, files, sums if check else None, maps=maps)

    def _hold(self, manifest: Manifest) -> MirroredCache:
        """Hold the mirror's files of a cache; on a full disk, first evict files that no process reads."""
        try:
            return self.mirror.hold(manifest, self._places, with_dictionaries=not self._is_to_plan)
        except StorageError as error:
            if error.errno not in FULL:
                raise
        self.mirror.make_room(manifest.table_bytes)
        return self.mirror.hold(manifest, self._places, with_dictionaries=not self._is_to_plan)

    def _ranged_reader(self, manifest: Manifest, *, check: bool) -> RecordReader:
        """Return a reader by range of a cache that has no files on this machine, without a mirror."""
        table = table_to_read(self._root, manifest)
        sums = self._sums(manifest, table, check=check)
        places = self._places(table.files)
        files = RangedCache(self._bucket, manifest, table, self._spending, sums, places=places)
        return new_reader(manifest, table, files, sums if check else None, maps=False)

    def _places(self, files: Files) -> "Places":
        """Return where those of a cache's files lie that are not its own."""
        return self.permitted.places(files) if files.addressed else {}

    def _warn_full(self, what: str, error: StorageError) -> None:
        """Log that the mirror has no room, once in this process."""
        mirror = repr(self.mirror)
        if mirror not in _said_to_be_full:
            _said_to_be_full.add(mirror)
            _log.warning("yogadl: %s read by range: %s", what, error)

    def _sums(self, manifest: Manifest, table: PartTable, *, check: bool) -> "Checksums | None":
        """Return the checksums of the blocks that are read by range, if they are compared."""
        if (not check and self._verify is None) or manifest.is_weak:  # a weak one has no checksums
            return None
        index_of = partial(read_index, self._root, manifest.key, table)
        # `REMEDY` advises to build again, since blocks that are read by range have no second copy.
        return checksums(manifest, table, index_of, REMEDY)

    def _has_room(self, what: str, complete: Callable[[], None]) -> bool:
        """Download files to the mirror; return whether there was room."""
        try:
            complete()
        except StorageError as error:
            if error.errno not in FULL:
                raise
            self._warn_full(what, error)
            return False
        return True

    def planner(self, parts: "Parts") -> "Planner":
        from yogadl.storage._remote.planning import Planner  # only `plan` needs it

        return Planner(parts, self)

    def read(self, name: str, most_bytes: int) -> bytes | None:
        content = self.mirror.read_file(name, most_bytes)
        if content is None:
            content = self._hurried.read(name, most_bytes)
            if content is not None:
                self.mirror.keep_file(name, content)
        return content

    def map(self, name: str) -> Any:
        content = self.mirror.map_file(name, self._is_mapped)
        if content is None:
            content = self._hurried.view(name)
            if content is not None:
                self.mirror.keep_file(name, content)
        return content

    def write(self, name: str, content: bytes) -> None:
        """Write such a file to the mirror, and then to the bucket if that is possible."""
        self.mirror.keep_file(name, content)
        self._hurried.write(name, content)

    def tagged_version(self, key: DatasetKey, *, is_away: bool = False) -> str | None:
        from yogadl.storage._catalogue.tags import version_of  # fetching by version does not need it

        if is_away:
            return self.mirror.tagged_version(key)
        version = version_of(self._root, key)
        self.mirror.note_tag(key, version)
        return version

    def note_opened(self, published: Published) -> None:
        if not self._is_to_plan:
            self.mirror.keep_newest(published)

    def fill(self, published: Published, *, progress: Callable[[int, int], None] | None = None) -> list[str]:
        """Download a version to the mirror, with its indexes, so that it opens without the bucket.

        Returns:
            The names of the files that were damaged in the mirror, and were downloaded again.
        """
        from yogadl.storage._catalogue.selections import missing_selections  # most readers do not need it

        damaged = self.mirror.fill(published.manifest, self._places, progress=progress) + self.mirror.keep(
            published
        )
        self.mirror.keep_newest(published)
        for name, content in missing_selections(self._root, self.mirror.folder, published.manifest):
            self.mirror.keep_file(name, content)
        return damaged

    def mend(self, published: Published) -> tuple[int, list[str]]:
        count, damaged = self.mirror.mend(published.manifest, self._places)
        return count, damaged + (self.mirror.keep(published) if count else [])
