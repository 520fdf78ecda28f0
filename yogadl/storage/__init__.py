"""Storages: folders and buckets that keep caches. `open_storage` opens one."""

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from yogadl._core.arguments import moved_to, names_of, unknown_argument, value_argument
from yogadl._core.printable import masked
from yogadl._core.protocols import Earlier, Lineage
from yogadl._dataref import RecordsRef
from yogadl.errors import ConfigurationError
from yogadl.storage._catalogue.backend import Lease
from yogadl.storage._local import local_backend, shared_backend, user_cache_folder
from yogadl.storage._reading import DatasetInfo, FieldSizes
from yogadl.storage._storage import CacheStorage

if TYPE_CHECKING:
    from yogadl._provenance.difference import Difference
    from yogadl.storage._builds.building import PartitionedBuild
    from yogadl.storage._catalogue.export import Exported, export
    from yogadl.storage._catalogue.log import Explanation, Log, LoggedVersion
    from yogadl.storage._catalogue.tags import TagMove
    from yogadl.storage._catalogue.verify import Verified
    from yogadl.storage._classic import (
        GCSConfigurations,
        GCSStorage,
        LFSConfigurations,
        LFSStorage,
        S3Configurations,
        S3Storage,
    )
    from yogadl.storage._copy import copy
    from yogadl.storage._keeping import Pruned, Unfinished
    from yogadl.storage._objects.bucket import Bucket
    from yogadl.storage._objects.gcs import GCSBucket
    from yogadl.storage._objects.s3 import S3Bucket
    from yogadl.storage._remote.mirror import Mirror
    from yogadl.storage._remote.requests import Limits

__all__ = [
    "CacheStorage",
    "DatasetInfo",
    "Difference",
    "Earlier",
    "Explanation",
    "Exported",
    "FieldSizes",
    "GCSBucket",
    "GCSConfigurations",
    "GCSStorage",
    "LFSConfigurations",
    "LFSStorage",
    "Lineage",
    "Log",
    "LoggedVersion",
    "PartitionedBuild",
    "Pruned",
    "S3Bucket",
    "S3Configurations",
    "S3Storage",
    "TagMove",
    "Unfinished",
    "Verified",
    "cached",
    "copy",
    "export",
    "open_storage",
]

# These names are loaded at their first use: a process that reads a local folder needs none of them.
_LAZY: Final = {
    "Difference": "yogadl.storage._catalogue.log",
    "Explanation": "yogadl.storage._catalogue.log",
    "Exported": "yogadl.storage._catalogue.export",
    "GCSBucket": "yogadl.storage._objects.gcs",
    "GCSConfigurations": "yogadl.storage._classic",
    "GCSStorage": "yogadl.storage._classic",
    "LFSConfigurations": "yogadl.storage._classic",
    "LFSStorage": "yogadl.storage._classic",
    "Log": "yogadl.storage._catalogue.log",
    "LoggedVersion": "yogadl.storage._catalogue.log",
    "PartitionedBuild": "yogadl.storage._builds.building",
    "Pruned": "yogadl.storage._keeping",
    "S3Bucket": "yogadl.storage._objects.s3",
    "S3Configurations": "yogadl.storage._classic",
    "S3Storage": "yogadl.storage._classic",
    "TagMove": "yogadl.storage._catalogue.tags",
    "Unfinished": "yogadl.storage._keeping",
    "Verified": "yogadl.storage._catalogue.verify",
    "copy": "yogadl.storage._copy",
    "export": "yogadl.storage._catalogue.export",
}

# A mistyped bucket URL, refused because it would create a folder called "s3:". A folder of that name can be
# given as "./s3:".
_NEAR_URL: Final = re.compile(r"(?!(?:s3|gs)://)([sS]3[an]?|[gG][cC]?[sS]):/*(?=[^/])")


def open_storage(
    location: str | os.PathLike[str],
    *,
    shared: bool = False,
    mirror: "str | os.PathLike[str] | Mirror | None" = "auto",
    verify: Literal["block"] | None = None,
    limits: "Limits | None" = None,
    lease: Lease | None = None,
    patience_s: float | None = None,
    mapped: bool = True,
    offline: bool = False,
    foreign: Mapping[str, Mapping[str, Any]] | None = None,
    **options: Any,
) -> CacheStorage:
    """Open the storage at a location; warn of a folder on a network file system that is not `shared`.

    Args:
        location: A folder, made at the first write; a read-only folder can be read. Or a bucket's URL,
            ``s3://bucket/prefix`` or ``gs://bucket/prefix``; opening it makes no request.
        shared: Whether several machines build in this folder; leases then replace file locks.
        mirror: The folder on a local disk where this machine keeps copies of a bucket's caches, or a
            `yogadl.Mirror`, which also says how large it may be and when it is filled. ``"auto"``: a folder
            in local temporary storage, if that has room. ``None``: no folder; records are read by range.
        verify: ``"block"`` reads whole blocks when it reads by range, and compares them with their checksums;
            a block whose checksum differs is a `CacheFormatError`. If not given, only the sizes and ETags of
            objects are compared. Files in the mirror were compared when they were downloaded. All checks and
            their costs are in a table in docs/howto/damage.md.
        limits: How much the ranges may cost that each process reads from a bucket: a `yogadl.Limits`.
        lease: How builders on several machines exclude each other, in a bucket or a `shared` folder: a
            `yogadl.Lease`. In other folders, a wait ends when the builder's process ends.
        patience_s: How long each operation on a bucket continues while less than 64 KiB of it arrives or is
            sent; 120 s if not given. A store that has never answered, such as one with a mistyped endpoint,
            is an error within 10 s in any case.
        mapped: Whether files may be memory-mapped, which is the fastest way to read. If a mapped file is
            truncated, or its disk fails, the process is killed; without mapping, either is an error.
            Adopted files of this machine are never mapped.
        offline: Whether never to contact the bucket's store: only versions that are complete in this
            machine's mirror can be read, and everything else is an error at once.
        foreign: Where files may lie that versions of this storage read without a copy (`CacheStorage.adopt`),
            beside this bucket itself, or beside the files of this machine: prefixes of URLs, each with the
            options of its bucket, such as ``{"s3://raw/shards": {"profile": "raw"}}``.
        options: Options of the bucket: ``endpoint_url``, ``profile``, ``anonymous`` ...; see `S3Bucket`,
            `GCSBucket`.

    Raises:
        ConfigurationError: if the location is neither a folder nor a bucket's URL, or does not take an
            option.
        StorageError: if the folder can't be opened.

    Example:
        >>> import yogadl
        >>> storage = yogadl.open_storage("caches", shared=True, lease=yogadl.Lease(wait_s=60))
        >>> ref = storage.submit([1, 2, 3], "numbers", "1")
        >>> ref.gather([2, 0])
        array([3, 1])
    """
    text = _checked_location(location)
    names = names_of(open_storage)
    for name in options:
        if moved_to(name, names) is not None:
            raise unknown_argument("open_storage", name, names)
    policy = value_argument("lease", lease, Lease)
    if "://" in text:
        if shared:
            raise ConfigurationError(
                f"shared=True is only for folders: leave it out for {masked(text)}, since every "
                "bucket is shared"
            )
        from yogadl.storage._remote.mirror import Mirror, open_mirror
        from yogadl.storage._remote.opener import remote_backend
        from yogadl.storage._remote.requests import Limits, Spending

        at = partial(_bucket_at, patience_s=patience_s, offline=offline)
        bucket = at(text, options)
        copies = mirror if isinstance(mirror, Mirror) else Mirror(mirror)
        backend = remote_backend(
            bucket,
            open_mirror(bucket, copies),
            policy,
            mapped=mapped,
            fill=copies.fill,
            spending=Spending(value_argument("limits", limits, Limits), text),
            verify=verify,
            buckets=_foreign_buckets(foreign, at),
        )
        return CacheStorage(backend)
    bucket_only = {"limits": limits, "verify": verify, "patience_s": patience_s, **options}
    bucket_only |= {"mirror": None if mirror in ("auto", None) else mirror, "offline": offline or None}
    bucket_only |= {"exclusive=False": None if policy.exclusive else policy}
    _refuse_options(text, bucket_only if shared else bucket_only | {"lease": lease}, shared=shared)
    places = _foreign_buckets(foreign, partial(_bucket_at, patience_s=None, offline=False))
    if shared:
        return CacheStorage(shared_backend(Path(text), policy, mapped, places))
    return CacheStorage(local_backend(Path(text), mapped, places))


def cached(
    data: Any,
    dataset_id: str,
    dataset_version: str = "auto",
    **options: Any,  # those of `CacheStorage.cached`
) -> RecordsRef:
    """Return the version of a source in the user's cache folder, built if it does not exist.

    The folder is the one that the environment variable ``YOGADL_CACHE`` names; if there is none,
    ``yogadl/caches`` in ``XDG_CACHE_HOME``, or in ``~/.cache``, on a Mac in ``~/Library/Caches``.
    ``open_storage`` opens it as any other folder.

    Args:
        data: As for `CacheStorage.cached`.
        dataset_id: The dataset's id.
        dataset_version: The version's name; change it when the records change, or give ``"auto"``.
        options: As for `CacheStorage.cached`.

    Raises:
        ConfigurationError: as `CacheStorage.cached`; or if there is no cache folder.

    Example:
        >>> import numpy as np, yogadl
        >>> ref = yogadl.cached({"x": np.arange(6).reshape(3, 2)}, "points")
        >>> ref.gather([2, 0])["x"].tolist()
        [[4, 5], [0, 1]]
    """
    return open_storage(_user_storage_folder()).cached(data, dataset_id, dataset_version, **options)


def _user_storage_folder() -> Path:
    named = os.environ.get("YOGADL_CACHE")
    if named:
        return Path(named)
    try:
        return user_cache_folder() / "caches"
    except RuntimeError as error:
        raise ConfigurationError(
            "this user has no home folder for caches: name a folder in the environment variable "
            "YOGADL_CACHE, or use yogadl.open_storage(folder).cached(...)"
        ) from error


def _foreign_buckets(
    foreign: Mapping[str, Mapping[str, Any]] | None,
    at: "Callable[[str, dict[str, Any]], Bucket]",
) -> "tuple[tuple[str, Bucket], ...]":
    """Return the buckets of foreign files, the longest prefix first."""
    given: Any = {} if foreign is None else foreign  # as the caller passed it
    if not isinstance(given, Mapping) or not all(
        isinstance(url, str) and "://" in url and isinstance(each, Mapping) for url, each in given.items()
    ):
        raise ConfigurationError(
            "foreign must be a dict of URLs, each with a dict of the options of its bucket, such as "
            f'{{"s3://raw/shards": {{}}}}, not {masked(foreign, quoted=True)}'
        )
    found = {url.rstrip("/"): at(url, dict(options)) for url, options in given.items()}
    return tuple(sorted(found.items(), key=lambda each: -len(each[0])))


def _refuse_options(folder: str, options: Mapping[str, Any], *, shared: bool) -> None:
    """Refuse the options that have a value, which are not for folders."""
    refused = [name for name, value in options.items() if value is not None]
    if refused:
        takes = f"shared, mapped, foreign{', ' if shared else '; with shared=True: '}lease"
        raise ConfigurationError(f"{', '.join(refused)}: no option of the folder {folder}; it takes {takes}")


def _checked_location(location: str | os.PathLike[str]) -> str:
    text: Any = os.fspath(location)  # may be bytes
    if not isinstance(text, str) or not text or "\0" in text:
        raise ConfigurationError(
            f"the location of a storage is a folder's path or a bucket's URL, not {masked(text, quoted=True)}"
        )
    _refuse_mistyped_url(text)
    return text


def _refuse_mistyped_url(location: str) -> None:
    mistyped = _NEAR_URL.match(location)
    if mistyped:
        scheme = "gs" if mistyped[1][0] in "gG" else "s3"
        suggestion = masked(f"{scheme}://{location[mistyped.end() :]}")
        shown = mistyped[0] + suggestion.partition("//")[2]
        raise ConfigurationError(f"{shown!r} is not the location of a storage; did you mean {suggestion!r}?")


def _bucket_at(url: str, options: dict[str, Any], patience_s: float | None, *, offline: bool) -> "Bucket":
    from yogadl.storage._objects.bucket import OfflineBucket
    from yogadl.storage._objects.retry import DEFAULT_RETRY, RetryPolicy
    from yogadl.storage._remote.urls import open_bucket

    if not isinstance(options.get("patience", DEFAULT_RETRY), RetryPolicy):
        raise ConfigurationError("there is no option patience: give patience_s, a number of seconds")
    if patience_s is not None:
        retry = RetryPolicy(total_s=patience_s)
        options |= {} if url.startswith("file://") else {"patience": retry}  # a folder has no retries
    known_options = [name for name in names_of(open_storage) if name not in ("location", "shared")]
    bucket = open_bucket(url, known_options, **options)
    return OfflineBucket(bucket) if offline else bucket


if not TYPE_CHECKING:  # type checkers know the names above, and no others

    def __getattr__(name: str) -> Any:  # any name of the module
        from importlib import import_module

        if name not in _LAZY:
            from yogadl._removed import missing

            raise missing("yogadl.storage", name)
        value = getattr(import_module(_LAZY[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
