"""Open the bucket of a URL, keep files in it, and open its caches.

A cache is opened from the mirror, after a download to the mirror, or by range.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from yogadl._core.key import DatasetKey
from yogadl._format.manifest import Manifest, digest_of
from yogadl._format.reader import Reader
from yogadl._format.table import PartTable
from yogadl.errors import CacheFormatError, ConfigurationError, CredentialsError, StorageError
from yogadl.storage import _names
from yogadl.storage._catalogue.backend import Backend, BuildCoordinator, LeasePolicy
from yogadl.storage._catalogue.cached import REMEDY, Published, can_map, checksums, new_reader
from yogadl.storage._catalogue.catalogue import Catalogue
from yogadl.storage._catalogue.parts import read_index, table_to_read
from yogadl.storage._files.bucket_root import BucketRoot
from yogadl.storage._files.folder import FULL, translated
from yogadl.storage._files.locks import scratch_folder
from yogadl.storage._objects.bucket import Bucket, OfflineError, check_conditions
from yogadl.storage._objects.retry import UnavailableError
from yogadl.storage._remote.download import upload
from yogadl.storage._remote.filling import FillPolicy
from yogadl.storage._remote.mirror import Mirror
from yogadl.storage._remote.mirrored_cache import MirroredCache, Places
from yogadl.storage._remote.ranged_cache import RangedCache
from yogadl.storage._remote.requests import Spending

if TYPE_CHECKING:
    from yogadl._format.checks import Checksums
    from yogadl._format.part_file import PartFiles
    from yogadl._format.rows import Parts
    from yogadl.storage._files.foreign_stores import ForeignStores
    from yogadl.storage._remote.planning import Planner

import inspect
from collections.abc import Sequence

from yogadl._core.printable import masked
from yogadl.storage._files.folder import folder_at
from yogadl.storage._files.local_bucket import LocalBucket
from yogadl.storage._objects.gcs import GCSBucket
from yogadl.storage._objects.s3 import S3Bucket

_log = logging.getLogger("yogadl")
_said_to_be_full: Final[set[str]] = set()  # mirrors; said once in a process

# The advice about a damaged block.
_REMEDY: Final = "storage.verify, or `yogadl verify`, downloads it again from the bucket; then fetch it again"


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


# Open the caches of a bucket: from the mirror, after a download to the mirror, or by range.


# The largest size of a part in a bucket unless a build gives one.
PART_BYTES: Final = 256 * 2**20

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
        buckets: See `ForeignStores`.
    """

    def __init__(
        self,
        bucket: Bucket,
        mirror: Mirror,
        mapped: bool = True,
        fill: Fill = "auto",
        spending: Spending | None = None,
        verify: Verify = None,
        buckets: tuple[tuple[str, Bucket], ...] = (),
    ) -> None:
        self._buckets = buckets
        self.mirror = mirror
        self._bucket = bucket
        self._root, self._hurried = BucketRoot(bucket), BucketRoot(bucket.hurried())
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
    def foreign(self) -> "ForeignStores":
        """The places where foreign files may lie: also anywhere in the storage's own bucket."""
        # Only versions of foreign files need these.
        from yogadl.storage._files.foreign_stores import ForeignStores

        # The own bucket is not pickled, which keeps references small. A folder has no root.
        whole: Bucket | None = getattr(self._bucket, "at_root", lambda: None)()
        return ForeignStores(False, self._buckets if whole is None else (*self._buckets, (whole.url, whole)))

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

    def reader(self, published: Published, *, check: bool = False) -> Reader:
        """Return a reader of a cache: of mapped files if they are here, else of ranges.

        If few bytes are missing, they are downloaded now, unless `mirror_fill` is ``"never"``.
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
                if self._complete_if_room("files that are not here are", cache.complete, len(cache.sizes)):
                    missing_bytes = 0
                are_here = cache.are_here()
            has_indexes = (
                check
                and not missing_bytes
                and self._complete_if_room("indexes are", cache.complete_indexes, len(cache.table))
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
            self._places(cache.table),
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

    def _ranged_reader(self, manifest: Manifest, *, check: bool) -> Reader:
        """Return a reader by range of a cache that has no files on this machine, without a mirror."""
        root = MirroredRoot(self._bucket, self.mirror)
        table = table_to_read(root, manifest)
        sums = self._sums(manifest, table, check=check)
        places = self._places(table)
        files = RangedCache(self._bucket, manifest, table, self._spending, sums, places=places)
        return new_reader(manifest, table, files, sums if check else None, maps=False)

    def _places(self, table: PartTable) -> Places:
        """Return bucket and name of each foreign file."""
        return places_of(table, self.foreign) if len(table.foreign) else {}

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
        index_of = partial(read_index, MirroredRoot(self._bucket, self.mirror), manifest.key, table)
        # `REMEDY` advises to build again, since blocks that are read by range have no second copy.
        return checksums(manifest, table, index_of, REMEDY)

    def _complete_if_room(self, what: str, complete: Callable[[range], None], count: int) -> bool:
        """Download all files of a kind to the mirror; return whether there was room."""
        try:
            complete(range(count))
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
        version = version_of(MirroredRoot(self._bucket, self.mirror), key)
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
        root = MirroredRoot(self._bucket, self.mirror)
        for name, content in missing_selections(root, self.mirror.folder, published.manifest):
            self.mirror.keep_file(name, content)
        return damaged

    def mend(self, published: Published) -> tuple[int, list[str]]:
        count, damaged = self.mirror.mend(published.manifest, self._places)
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
    buckets: tuple[tuple[str, Bucket], ...] = (),
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
        buckets: See `ForeignStores`.

    Raises:
        ConfigurationError: if `verify` has another value.
    """
    if verify not in (None, "block"):
        raise ConfigurationError(f"verify must be None or 'block', not {verify!r}")
    root = MirroredRoot(bucket, mirror)
    opener = MirrorOpener(bucket, mirror, mapped, fill, spending, verify, buckets)
    make_coordinator = partial(_leases, root, bucket, mirror, policy, exclusive)
    return Backend(Catalogue(root, opener), make_coordinator, PART_BYTES)


def _leases(
    root: MirroredRoot, bucket: Bucket, mirror: Mirror, policy: LeasePolicy, exclusive: bool
) -> BuildCoordinator:
    from yogadl.storage._leases.lease import LeaseCoordinator, Leases  # only what builds or prunes needs it

    changed = partial(mirror.renew, digest=None)
    leases = Leases(BucketRoot(bucket), policy)  # without the mirror, which no process of heartbeats needs
    return LeaseCoordinator(
        root, leases, probe=partial(check_conditions, bucket) if exclusive else None, changed=changed
    )


def places_of(table: PartTable, stores: "ForeignStores") -> Places:
    """Return bucket and name of each foreign file, if the storage may read it."""
    numbers = zip(table.files.foreign, table.foreign, strict=True)
    return {number: stores.place(file.address) for number, file in numbers}


def files_with_foreign(
    manifest: Manifest, table: PartTable, own: "PartFiles", foreign: "ForeignStores"
) -> "PartFiles":
    """Return the files of a version in a folder together with its foreign files."""
    if table.foreign.are_all_local:
        return own
    nowhere = LocalBucket(Path(os.devnull))  # of the parts, which are all here
    places = places_of(table, foreign)
    are_here = np.ones(len(table.files), bool)
    for number, place in places.items():
        are_here[number] = place is None
    return RangedCache(nowhere, manifest, table, Spending(), here=(own, are_here), places=places)


# The bucket class of each scheme, called with the bucket's name, a prefix and options.
_STORES: Final[dict[str, Callable[..., Bucket]]] = {"s3": S3Bucket, "gs": GCSBucket}


def open_bucket(url: str, others: Sequence[str] = (), **options: Any) -> Bucket:
    """Return the bucket at a URL, without any request to it.

    Args:
        url: ``s3://bucket/prefix``, ``gs://bucket/prefix`` or ``file:///folder``.
        others: Further options that the caller takes, which the message about an unknown option lists, too.
        options: The options of the bucket's class, by name.

    Raises:
        ConfigurationError: if `url` has another form, or an option is unknown.
    """
    scheme, separator, rest = url.partition("://")
    name, _, prefix = rest.partition("/")
    if separator and scheme in _STORES and ("@" in name or set("?#") & set(name + prefix)):
        raise ConfigurationError(
            f"a bucket's URL has no user, password or query: {masked(url, quoted=True)}; pass credentials in "
            "the environment, by a profile, or in client_options"
        )
    folder = folder_at(url)
    if separator and folder is not None:
        return _checked_bucket(LocalBucket, url, (folder,), options, others)
    if separator and scheme in _STORES and name:
        return _checked_bucket(_STORES[scheme], url, (name, prefix), options, others)
    known = ", ".join(f"{store}://bucket/prefix" for store in _STORES)
    raise ConfigurationError(
        f"{masked(url, quoted=True)} is not the URL of a bucket; pass {known} or file:///folder"
    )


def _checked_bucket(
    kind: Callable[..., Bucket],
    url: str,
    location: tuple[Any, ...],
    options: dict[str, Any],
    others: Sequence[str],
) -> Bucket:
    known = list(inspect.signature(kind).parameters)[len(location) :]
    unknown = sorted(options.keys() - set(known))
    if unknown:
        # In `open_storage`, the option `patience` is called `patience_s`.
        named = {"patience_s" if name == "patience" else name: None for name in (*others, *known)}
        raise ConfigurationError(
            f"{', '.join(unknown)}: no option of {masked(url)}; it takes {', '.join(named) or 'no options'}"
        )
    return kind(*location, **options)
