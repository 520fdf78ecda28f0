"""Find the bucket for a URL."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from yogadl.errors import ConfigurationError
from yogadl.storage._buckets.bucket import Bucket
from yogadl.storage._buckets.gcs import GCSBucket
from yogadl.storage._buckets.local import LocalBucket
from yogadl.storage._buckets.s3 import S3Bucket


def open_bucket(url: str, **options: Any) -> Bucket:
    """Return the bucket at a URL. Nothing is asked of it yet.

    Args:
        url: ``s3://bucket/prefix``, ``gs://bucket/prefix`` or ``file:///folder``.
        options: Of `S3Bucket` or `GCSBucket`, by name.

    Raises:
        ConfigurationError: if it is no such URL, or an option is unknown.
    """
    scheme, separator, rest = url.partition("://")
    name, _, prefix = rest.partition("/")
    if separator and scheme == "file" and name in ("", "localhost"):
        return _made(LocalBucket, url, (Path("/" + unquote(prefix)),), options)
    if separator and scheme in ("s3", "gs") and name:
        return _made(S3Bucket if scheme == "s3" else GCSBucket, url, (name, prefix), options)
    raise ConfigurationError(
        f"no bucket's URL: {url!r}; give s3://bucket/prefix, gs://bucket/prefix or file:///folder"
    )


def _made(make: Callable[..., Bucket], url: str, place: tuple[Any, ...], options: dict[str, Any]) -> Bucket:
    known = list(inspect.signature(make).parameters)[len(place) :]
    unknown = sorted(options.keys() - set(known))
    if unknown:
        named = ["patience_s" if name == "patience" else name for name in known]  # as `open_storage` has it
        raise ConfigurationError(
            f"{', '.join(unknown)}: no option of {url}; it takes {', '.join(named) or 'no options'}"
        )
    return make(*place, **options)
