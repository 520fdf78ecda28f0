"""Keep caches in a bucket, for any number of machines, one builder at a time by lease."""

import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from yogadl._caller import users_level
from yogadl._dataref import RecordsRef
from yogadl._format.checks import CheckedReader
from yogadl._format.manifest import digest_of
from yogadl._format.reader import Reader
from yogadl._key import DatasetKey
from yogadl.storage import _names
from yogadl.storage._base import CacheStorage
from yogadl.storage._bucket_root import BucketRoot, MirroredRoot
from yogadl.storage._buckets.bucket import Bucket
from yogadl.storage._buckets.conditions import check_conditions
from yogadl.storage._buckets.gcs import GCSBucket
from yogadl.storage._buckets.offline import OfflineError
from yogadl.storage._buckets.patience import AwayError
from yogadl.storage._buckets.s3 import S3Bucket
from yogadl.storage._cached import Published, can_map
from yogadl.storage._leases.lease import Leases
from yogadl.storage._leases.right import Right
from yogadl.storage._leases.waiting import Terms
from yogadl.storage._local import warn_of_tensorflow
from yogadl.storage._mirror.mirror import Mirror
from yogadl.storage._verify import Verified, verify

_log = logging.getLogger("yogadl")

PART_BYTES: Final = 256 * 2**20
# What 0.1.4 took when nothing was said.
_OLD_CACHE_DIR: Final = "/tmp/"
# What to do about a damaged block.
_REMEDY: Final = "storage.verify, or `yogadl verify`, brings it anew from the bucket; then fetch it again"


class RemoteStorage(CacheStorage):
    """Keep caches in a bucket, shared by any number of machines without a server.

    Safe to use from any number of threads, processes and machines; picklable. To read takes the permissions
    to get and to list; nothing is written to read, and nothing is asked of the bucket before it is used.

    Args:
        bucket: The bucket.
        mirror: Where this machine keeps its copies.
        terms: How long builders wait for each other.
        exclusive: Whether to make sure, before something is built, that the store can decide between
            builders. Without, only one machine may build at a time.
        mapped: Whether the mirror's files may be mapped to be read.
    """

    def __init__(
        self,
        bucket: Bucket,
        mirror: Mirror,
        *,
        terms: Terms | None = None,
        exclusive: bool = True,
        mapped: bool = True,
    ) -> None:
        super().__init__(MirroredRoot(bucket, mirror), PART_BYTES)
        self.bucket = bucket
        self.mirror = mirror
        self._leases = Leases(bucket, terms or Terms())
        self._exclusive = exclusive
        self._is_mapped = mapped
        self._is_probed = False
        self._hurried = BucketRoot(bucket.hurried())
        self._is_told = False

    def __reduce__(self) -> Any:
        terms = self._leases.terms
        arguments = self.bucket, self.mirror, terms.ttl_s, terms.wait_s, self._exclusive, self._is_mapped
        return _reopened, arguments

    @contextmanager
    def building(self, key: DatasetKey, unless: Callable[[], bool] | None = None) -> Iterator[Right | None]:
        """Hold the right to build this version, waiting for whoever holds it now.

        Raises:
            ConfigurationError: if the store can't decide between builders.
            LeaseError: if it takes longer than this storage waits.
        """
        self._probe()
        with self._leases.held(key, unless) as lease:
            try:
                yield lease
            finally:
                self.mirror.renew(key, None)

    @contextmanager
    def pruning(self, dataset_id: str) -> Iterator[Right | None]:
        """Hold the right to prune a dataset, or give ``None`` if somebody builds or prunes there.

        Raises:
            ConfigurationError: if the store can't decide between builders.
        """
        self._probe()
        with self._leases.pruning(dataset_id, self.root.now()) as lease:
            yield lease

    def _probe(self) -> None:
        if self._exclusive and not self._is_probed:
            check_conditions(self.bucket)
            self._is_probed = True

    def has_builder(self, dataset_id: str) -> bool:
        """Return whether somebody is building a version of this dataset."""
        return self._leases.is_held(dataset_id, self.root.now())

    def manifest_of(self, key: DatasetKey, digest: str | None = None) -> bytes | None:
        """Return the manifest of a version as it is now, or ``None`` if there is none.

        If the version is whole in the mirror, the store is asked for some seconds only. If it can't be asked,
        what the mirror has is served, and a warning says so once.
        """
        here = self.mirror.kept(key, digest)
        try:
            root = self.root if here is None else self._hurried
            content = root.read(_names.manifest(key))
        except AwayError as error:
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

    def published(self, key: DatasetKey, digest: str | None = None) -> Published:
        """Return the manifest of a version; with a digest that very one, for which nothing is asked if the
        mirror has it whole.

        Raises:
            DatasetNotFoundError: if there is none.
        """
        here = None if digest is None else self.mirror.kept(key, digest)
        return super().published(key, digest) if here is None else here

    def _ref(
        self, key: DatasetKey, published: Published, allow_pickle: bool, check: bool = False
    ) -> RecordsRef:
        ref = super()._ref(key, published, allow_pickle, check)
        self.mirror.keep_newest(published)
        return ref

    def reader(self, published: Published, *, check: bool = False) -> Reader | CheckedReader:
        """Return a reader of a cache, whose files are brought to the mirror first."""
        manifest = published.manifest
        brought = self.mirror.bring(manifest, indexes=check)
        self.mirror.keep(published)
        maps = self._is_mapped and can_map(brought.folder)
        reader = Reader(manifest.spec, brought.table, brought, maps=maps)
        return CheckedReader(reader, brought.index, str(manifest.key), _REMEDY) if check else reader

    def fill_mirror(
        self, published: Published, *, progress: Callable[[int, int], None] | None = None
    ) -> list[str]:
        """Bring a version to the mirror, indexes and all, so that it opens without the bucket.

        Returns:
            The names of the files that were damaged here, and were brought anew.
        """
        damaged = self.mirror.fill(published.manifest, progress=progress)
        self.mirror.keep(published)
        self.mirror.keep_newest(published)
        return damaged

    def verify(
        self, dataset_id: str, dataset_version: str, *, progress: Callable[[int, int], None] | None = None
    ) -> Verified:
        """Read every byte of a version and compare it with its checksums, in the bucket and in the mirror.

        What is damaged in this machine's mirror is brought anew, and told in what is returned.

        Raises:
            CacheFormatError: at the first damage in the bucket, naming dataset, field and records.
        """
        manifest = self.published(DatasetKey(dataset_id, dataset_version)).manifest

        def but_for_the_last(done: int, total: int) -> None:
            if progress is not None and done < total:
                progress(done, total)

        verified = verify(self.root, manifest, but_for_the_last)
        mirrored, mended = self.mirror.mend(manifest)
        if progress is not None and verified.parts:
            progress(verified.parts, verified.parts)
        return replace(verified, mirrored=mirrored, mended=tuple(mended))

    @contextmanager
    def with_room(self, dry_run: bool) -> Iterator[None]:
        """Clear the mirror, which is this machine's alone, of killed builds."""
        if not dry_run:
            self.mirror.sweep()
        yield


def _reopened(
    bucket: Bucket, mirror: Mirror, ttl_s: float, wait_s: float | None, exclusive: bool, mapped: bool = True
) -> RemoteStorage:
    return RemoteStorage(bucket, mirror, terms=Terms(ttl_s, wait_s), exclusive=exclusive, mapped=mapped)


class S3Configurations:
    """Say where a storage in S3 lies, in the words of yogadl 0.1.4.

    Args:
        bucket: The bucket's name.
        bucket_directory_path: The folder in it.
        url: Of 0.1.4's lock server, which is needed no more; does nothing.
        access_key: If not given, boto3 looks where it always does.
        secret_key: The same.
        endpoint_url: Where the store answers, if it is not AWS.
        local_cache_dir: The mirror's folder; the default is the mirror's own.
        skip_verify: Of the lock server; does nothing.
        coordinator_cert_file: Of the lock server; does nothing.
        coordinator_cert_name: Of the lock server; does nothing.
    """

    def __init__(
        self,
        bucket: str,
        bucket_directory_path: str | os.PathLike[str],
        url: str | None = None,
        access_key: str | None = None,
        secret_key: str | None = None,
        endpoint_url: str | None = None,
        local_cache_dir: str | os.PathLike[str] = _OLD_CACHE_DIR,
        skip_verify: bool = False,
        coordinator_cert_file: str | None = None,
        coordinator_cert_name: str | None = None,
    ) -> None:
        _warn_of_server(url, skip_verify, coordinator_cert_file, coordinator_cert_name)
        self.bucket = bucket
        self.bucket_directory_path = bucket_directory_path
        self.access_key = access_key
        self.secret_key = secret_key
        self.endpoint_url = endpoint_url
        self.local_cache_dir = Path(local_cache_dir)


class GCSConfigurations:
    """Say where a storage in Google Cloud Storage lies, in the words of yogadl 0.1.4.

    Args:
        bucket: The bucket's name.
        bucket_directory_path: The folder in it.
        url: Of 0.1.4's lock server, which is needed no more; does nothing.
        local_cache_dir: The mirror's folder; the default is the mirror's own.
        skip_verify: Of the lock server; does nothing.
        coordinator_cert_file: Of the lock server; does nothing.
        coordinator_cert_name: Of the lock server; does nothing.
    """

    def __init__(
        self,
        bucket: str,
        bucket_directory_path: str | os.PathLike[str],
        url: str | None = None,
        local_cache_dir: str | os.PathLike[str] = _OLD_CACHE_DIR,
        skip_verify: bool = False,
        coordinator_cert_file: str | None = None,
        coordinator_cert_name: str | None = None,
    ) -> None:
        _warn_of_server(url, skip_verify, coordinator_cert_file, coordinator_cert_name)
        self.bucket = bucket
        self.bucket_directory_path = bucket_directory_path
        self.local_cache_dir = Path(local_cache_dir)


class S3Storage(RemoteStorage):
    """A storage in S3, opened as yogadl 0.1.4 did; see `yogadl.open_storage` for more.

    Args:
        configurations: Where it lies.
        tensorflow_config: Accepted for 0.1.4's sake; does nothing.
    """

    def __init__(
        self, configurations: S3Configurations, tensorflow_config: Any = None
    ) -> None:  # opaque, unused
        warn_of_tensorflow(tensorflow_config)
        keys = {
            "aws_access_key_id": configurations.access_key,
            "aws_secret_access_key": configurations.secret_key,
        }
        bucket = S3Bucket(
            configurations.bucket,
            _prefix(configurations.bucket_directory_path),
            endpoint_url=configurations.endpoint_url,
            client_options={name: key for name, key in keys.items() if key is not None},
        )
        super().__init__(bucket, _old_mirror(bucket, configurations.local_cache_dir))


class GCSStorage(RemoteStorage):
    """A storage in Google Cloud Storage, opened as yogadl 0.1.4 did; see `yogadl.open_storage` for more.

    Args:
        configurations: Where it lies.
        tensorflow_config: Accepted for 0.1.4's sake; does nothing.
    """

    def __init__(
        self, configurations: GCSConfigurations, tensorflow_config: Any = None
    ) -> None:  # opaque, unused
        warn_of_tensorflow(tensorflow_config)
        bucket = GCSBucket(configurations.bucket, _prefix(configurations.bucket_directory_path))
        super().__init__(bucket, _old_mirror(bucket, configurations.local_cache_dir))


def _prefix(path: str | os.PathLike[str]) -> str:
    return os.fspath(path).strip("/").removeprefix(".")


def _old_mirror(bucket: Bucket, folder: Path) -> Mirror:
    # A folder of its own in the one given, which is not ours alone.
    return Mirror(bucket, None if folder == Path(_OLD_CACHE_DIR) else folder / "yogadl")


def _warn_of_server(url: str | None, skip_verify: bool, cert_file: str | None, cert_name: str | None) -> None:
    given = {
        "url": url,
        "skip_verify": skip_verify or None,
        "coordinator_cert_file": cert_file,
        "coordinator_cert_name": cert_name,
    }
    names = [name for name, value in given.items() if value is not None]
    if names:
        warnings.warn(
            f"{', '.join(names)} of the lock server: does nothing any more, since the bucket itself decides "
            "who builds; leave it out and end the server",
            DeprecationWarning,
            stacklevel=users_level(),
        )
