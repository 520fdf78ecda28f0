"""Open the bucket of a URL."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final

from yogadl._core.printable import masked
from yogadl.errors import ConfigurationError
from yogadl.storage._files.folder import folder_at
from yogadl.storage._files.local_bucket import LocalBucket
from yogadl.storage._objects.bucket import Bucket
from yogadl.storage._objects.gcs import GCSBucket
from yogadl.storage._objects.s3 import S3Bucket

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
