"""Where caches are kept."""

import os
from typing import Any

from yogadl.errors import ConfigurationError
from yogadl.storage._base import CacheStorage, DatasetInfo, Pruned
from yogadl.storage._local import LFSConfigurations, LFSStorage
from yogadl.storage._partitions import PartitionedBuild
from yogadl.storage._verify import Verified

__all__ = [
    "CacheStorage",
    "DatasetInfo",
    "LFSConfigurations",
    "LFSStorage",
    "PartitionedBuild",
    "Pruned",
    "Verified",
    "open_storage",
]


def open_storage(location: str | os.PathLike[str]) -> CacheStorage:
    """Open the storage at a location.

    Args:
        location: A folder on a local disk, made if missing; a read-only one can be read.

    Raises:
        ConfigurationError: if it is no such location.
        StorageError: if the folder can't be made.
    """
    text: Any = os.fspath(location)  # whatever the caller took for a path
    if not isinstance(text, str) or not text or "\0" in text:
        raise ConfigurationError(f"the location of a storage is a folder's path, not {text!r}")
    scheme, separator, _ = text.partition("://")
    if separator:
        raise ConfigurationError(
            f"a storage at {scheme}:// can't be opened by this version of yogadl; give a local folder"
        )
    return LFSStorage(LFSConfigurations(text))
