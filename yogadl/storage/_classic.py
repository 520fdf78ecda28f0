"""Open storages by the classes and configurations of yogadl 0.1.4; new code calls `open_storage`."""

import os
import warnings
from pathlib import Path
from typing import Any, Final

from yogadl._core.arguments import users_level
from yogadl.storage._catalogue.backend import Backend, Lease
from yogadl.storage._local import local_backend
from yogadl.storage._objects.bucket import Bucket
from yogadl.storage._objects.gcs import GCSBucket
from yogadl.storage._objects.s3 import S3Bucket
from yogadl.storage._remote.mirror import LocalMirror
from yogadl.storage._remote.opener import Verify, remote_backend
from yogadl.storage._storage import CacheStorage

# The default mirror folder of 0.1.4.
_OLD_CACHE_DIR: Final = "/tmp/"


class LFSConfigurations:
    """The location of a local storage.

    Args:
        storage_dir_path: The folder.
    """

    def __init__(self, storage_dir_path: str | os.PathLike[str]) -> None:
        self.storage_dir_path = Path(storage_dir_path)


class LFSStorage(CacheStorage):
    """A storage in a folder on a local disk, opened as yogadl 0.1.4 did; see `yogadl.open_storage` for more.

    Args:
        configurations: The location.
        tensorflow_config: Accepted for compatibility with 0.1.4; has no effect.
        mapped: Whether files may be mapped to be read.
    """

    def __init__(
        self,
        configurations: LFSConfigurations,
        tensorflow_config: Any = None,  # opaque, unused
        *,
        mapped: bool = True,
    ) -> None:
        _warn_of_tensorflow(tensorflow_config)
        super().__init__(local_backend(configurations.storage_dir_path, mapped))


class S3Configurations:
    """The location of a storage in S3, with the argument names of yogadl 0.1.4.

    Args:
        bucket: The bucket's name.
        bucket_directory_path: The folder in it.
        url: The URL of 0.1.4's lock server, which is not needed any more; does nothing.
        access_key: If not given, boto3 finds credentials in its usual places.
        secret_key: If not given, as for `access_key`.
        endpoint_url: The URL of the store, if it is not AWS.
        local_cache_dir: The mirror's folder; the default is the mirror's own.
        skip_verify: An option of the lock server; does nothing.
        coordinator_cert_file: An option of the lock server; does nothing.
        coordinator_cert_name: An option of the lock server; does nothing.
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
    """The location of a storage in Google Cloud Storage, with the argument names of yogadl 0.1.4.

    Args:
        bucket: The bucket's name.
        bucket_directory_path: The folder in it.
        url: The URL of 0.1.4's lock server, which is not needed any more; does nothing.
        local_cache_dir: The mirror's folder; the default is the mirror's own.
        skip_verify: An option of the lock server; does nothing.
        coordinator_cert_file: An option of the lock server; does nothing.
        coordinator_cert_name: An option of the lock server; does nothing.
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


class S3Storage(CacheStorage):
    """A storage in S3, opened as yogadl 0.1.4 did; see `yogadl.open_storage` for more.

    Args:
        configurations: The location.
        tensorflow_config: Accepted for compatibility with 0.1.4; has no effect.
        verify: ``"block"`` compares blocks that are read by range with their checksums; see
            docs/howto/damage.md.
    """

    def __init__(
        self,
        configurations: S3Configurations,
        tensorflow_config: Any = None,  # opaque, unused
        *,
        verify: Verify = None,
    ) -> None:
        _warn_of_tensorflow(tensorflow_config)
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
        super().__init__(_backend(bucket, configurations.local_cache_dir, verify))


class GCSStorage(CacheStorage):
    """A storage in Google Cloud Storage, opened as yogadl 0.1.4 did; see `yogadl.open_storage` for more.

    Args:
        configurations: The location.
        tensorflow_config: Accepted for compatibility with 0.1.4; has no effect.
        verify: ``"block"`` compares blocks that are read by range with their checksums; see
            docs/howto/damage.md.
    """

    def __init__(
        self,
        configurations: GCSConfigurations,
        tensorflow_config: Any = None,  # opaque, unused
        *,
        verify: Verify = None,
    ) -> None:
        _warn_of_tensorflow(tensorflow_config)
        bucket = GCSBucket(configurations.bucket, _prefix(configurations.bucket_directory_path))
        super().__init__(_backend(bucket, configurations.local_cache_dir, verify))


def _prefix(path: str | os.PathLike[str]) -> str:
    return os.fspath(path).strip("/").removeprefix(".")


def _backend(bucket: Bucket, folder: Path, verify: Verify) -> Backend:
    # A subfolder, since the given folder may hold other files.
    mirror = LocalMirror(bucket, None if folder == Path(_OLD_CACHE_DIR) else folder / "yogadl")
    return remote_backend(bucket, mirror, Lease(), verify=verify)


def _warn_of_tensorflow(config: Any) -> None:  # any value that 0.1.4 took
    """Warn the caller of a storage's class that a TensorFlow configuration has no effect."""
    if config is not None:
        _warn("tensorflow_config does nothing any more: no TensorFlow session is needed; leave it out")


def _warn_of_server(url: str | None, skip_verify: bool, cert_file: str | None, cert_name: str | None) -> None:
    given = {
        "url": url,
        "skip_verify": skip_verify or None,
        "coordinator_cert_file": cert_file,
        "coordinator_cert_name": cert_name,
    }
    names = [name for name, value in given.items() if value is not None]
    if names:
        _warn(
            f"{', '.join(names)}: an option of the lock server, which has no effect any more, since builders "
            "exclude each other through the bucket itself; leave it out and end the server"
        )


def _warn(text: str) -> None:
    warnings.warn(text, DeprecationWarning, stacklevel=users_level())
