"""Read any data source once into an immutable cache, then read it in any order, at the speed of memory."""

import sys

if sys.platform == "win32":
    raise ImportError("yogadl runs on Linux and macOS, not on Windows; use it inside WSL 2")

from typing import TYPE_CHECKING, Any

from yogadl import errors
from yogadl._core.leaf import Leaf
from yogadl._core.protocols import DataRef, Storage, Stream

if TYPE_CHECKING:
    from yogadl import dataref as dataref  # not in __all__, but in annotations
    from yogadl import storage
    from yogadl._core.protocols import Prices
    from yogadl._dataref import RecordsRef, from_source
    from yogadl._mix import MixedRef, concat, mix
    from yogadl._order import Blocks
    from yogadl._sources.partitioned import partitioned
    from yogadl.storage import open_storage

__all__ = [
    "Blocks",
    "DataRef",
    "Leaf",
    "MixedRef",
    "Prices",
    "RecordsRef",
    "Storage",
    "Stream",
    "__version__",
    "concat",
    "errors",
    "from_source",
    "mix",
    "open_storage",
    "partitioned",
    "storage",
]

# Loaded at first use, so that `import yogadl` costs little more than numpy.
_LAZY = {
    "Blocks": ("yogadl._order", "Blocks"),
    "MixedRef": ("yogadl._mix", "MixedRef"),
    "Prices": ("yogadl._core.protocols", "Prices"),
    "RecordsRef": ("yogadl._dataref", "RecordsRef"),
    "concat": ("yogadl._mix", "concat"),
    "from_source": ("yogadl._dataref", "from_source"),
    "mix": ("yogadl._mix", "mix"),
    "open_storage": ("yogadl.storage", "open_storage"),
    "partitioned": ("yogadl._sources.partitioned", "partitioned"),
    "storage": ("yogadl.storage", None),
    "adapters": ("yogadl.adapters", None),
    "dataref": ("yogadl.dataref", None),
    "tensorflow": ("yogadl.tensorflow", None),
    "testing": ("yogadl.testing", None),
}
# Modules that need a package which may not be installed: listing their names would import them.
_NOT_LISTED = {"tensorflow", "testing"}


def __getattr__(name: str) -> Any:  # any attribute of the module
    from importlib import import_module

    if name == "__version__":
        from yogadl._core.key import library_version

        return library_version()
    if name not in _LAZY:
        from yogadl._removed import missing

        raise missing("yogadl", name)
    module, attribute = _LAZY[name]
    found = import_module(module)
    value = found if attribute is None else getattr(found, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, "__version__"} - _NOT_LISTED)
