"""Open the mirror that the arguments of `open_storage` describe."""

import os
from typing import Any

from yogadl.errors import ConfigurationError
from yogadl.storage._buckets.bucket import Bucket
from yogadl.storage._mirror.mirror import Mirror
from yogadl.storage._mirror.no_mirror import NoMirror


def open_mirror(
    bucket: Bucket,
    folder: str | os.PathLike[str] | None,
    limit: int | str | None,
    fill: Any,  # it is checked here
) -> Mirror:
    """Return a mirror of a bucket; the other arguments are those of `open_storage`.

    Raises:
        ConfigurationError: if the arguments make no sense, or not together.
    """
    if fill not in ("auto", "always", "never"):
        raise ConfigurationError(f"mirror_fill is 'auto', 'always' or 'never', not {fill!r}")
    if folder is not None:
        return Mirror(bucket, None if folder == "auto" else folder, limit)
    if limit is not None or fill == "always":
        raise ConfigurationError("mirror=None keeps nothing: leave out mirror_limit and mirror_fill")
    return NoMirror(bucket)
