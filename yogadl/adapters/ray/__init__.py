"""Build caches on a Ray cluster, also from its datasets, and read caches as Ray datasets.

The names of this module need Ray. docs/howto/ray.md shows their use.
"""

from yogadl.adapters import _checks

_checks.require("ray", "Ray's executor and datasets need Ray: pip install 'yogadl[ray]'")

from yogadl.adapters.ray._source import RayExecutor, read, source

__all__ = ["RayExecutor", "read", "source"]
