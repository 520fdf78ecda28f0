"""Where caches are kept."""

import os
import warnings
from typing import Any

from yogadl.errors import ConfigurationError
from yogadl.storage._base import CacheStorage, DatasetInfo
from yogadl.storage._export import Exported, export
from yogadl.storage._local import LFSConfigurations, LFSStorage
from yogadl.storage._mounts import network_file_system
from yogadl.storage._partitions import PartitionedBuild
from yogadl.storage._provenance import Difference, Explanation
from yogadl.storage._prune import Pruned
from yogadl.storage._verify import Verified

__all__ = [
    "CacheStorage",
    "DatasetInfo",
    "Difference",
    "Explanation",
    "Exported",
    "LFSConfigurations",
    "LFSStorage",
    "PartitionedBuild",
    "Pruned",
    "Verified",
    "export",
    "open_storage",
]


def open_storage(location: str | os.PathLike[str]) -> CacheStorage:
    """Open the storage at a location. A folder on a network file system gets a warning.

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
    storage = LFSStorage(LFSConfigurations(text))
    network = network_file_system(storage.folder.root)
    if network is not None:
        warnings.warn(
            f"{storage.folder.root} is on a network file system ({network}): reading at random is slow "
            "there, and its file locks may not keep two machines from building the same. Keep caches on a "
            "local disk of each machine; what is built can be copied there, a dataset's folder as it is",
            UserWarning,
            stacklevel=2,
        )
    return storage
