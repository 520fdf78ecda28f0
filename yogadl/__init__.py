"""Read any data source once into an immutable cache, then read it in any order, at the speed of memory."""

import sys

if sys.platform == "win32":
    raise ImportError("yogadl runs on Linux and macOS, not on Windows; use it inside WSL 2")

from typing import TYPE_CHECKING, Any

from yogadl import errors
from yogadl._core.protocols import DataRef, Storage, Stream
from yogadl._core.spec import Leaf

if TYPE_CHECKING:
    from yogadl import adapters as adapters  # with `as`: not in __all__, but attributes
    from yogadl import dataref as dataref
    from yogadl import storage
    from yogadl import tensorflow as tensorflow
    from yogadl import testing as testing
    from yogadl._core.protocols import Document, Locality, Prices
    from yogadl._dataref import DrawnRef, PackedEpoch, PackedRef, RecordsRef, from_source
    from yogadl._format.codec import Zstd
    from yogadl._mix import MixedRef, concat, mix
    from yogadl._order import Blocks, Sequences
    from yogadl._sources.partitioned import partitioned
    from yogadl._stream import Loader, RecordStream, Stats, StreamIterator
    from yogadl._stream.plan import Plan, ReadingCost
    from yogadl._stream.tickets import Dropped, Ticket, Tickets
    from yogadl._views.packed import PackFields
    from yogadl._views.stages import Rejected
    from yogadl.storage import cached, open_storage
    from yogadl.storage._builds.options import BuildOptions, FileOptions, RecordOptions
    from yogadl.storage._catalogue.backend import Lease
    from yogadl.storage._image_folder import image_folder
    from yogadl.storage._remote.mirror import Mirror
    from yogadl.storage._remote.requests import Limits

    __version__: str

__all__ = [
    "Blocks",
    "BuildOptions",
    "DataRef",
    "Document",
    "DrawnRef",
    "Dropped",
    "FileOptions",
    "Leaf",
    "Lease",
    "Limits",
    "Loader",
    "Locality",
    "Mirror",
    "MixedRef",
    "PackFields",
    "PackedEpoch",
    "PackedRef",
    "Plan",
    "Prices",
    "ReadingCost",
    "RecordOptions",
    "RecordStream",
    "RecordsRef",
    "Rejected",
    "Sequences",
    "Stats",
    "Storage",
    "Stream",
    "StreamIterator",
    "Ticket",
    "Tickets",
    "Zstd",
    "__version__",
    "cached",
    "concat",
    "errors",
    "from_source",
    "image_folder",
    "mix",
    "open_storage",
    "partitioned",
    "storage",
]

# Loaded at first use, so that `import yogadl` costs little more than numpy.
_LAZY = {
    "Blocks": ("yogadl._order", "Blocks"),
    "Document": ("yogadl._core.protocols", "Document"),
    "BuildOptions": ("yogadl.storage._builds.options", "BuildOptions"),
    "DrawnRef": ("yogadl._dataref", "DrawnRef"),
    "FileOptions": ("yogadl.storage._builds.options", "FileOptions"),
    "Lease": ("yogadl.storage._catalogue.backend", "Lease"),
    "Limits": ("yogadl.storage._remote.requests", "Limits"),
    "Loader": ("yogadl._stream", "Loader"),
    "Locality": ("yogadl._core.protocols", "Locality"),
    "Mirror": ("yogadl.storage._remote.mirror", "Mirror"),
    "MixedRef": ("yogadl._mix", "MixedRef"),
    "PackFields": ("yogadl._views.packed", "PackFields"),
    "PackedEpoch": ("yogadl._dataref", "PackedEpoch"),
    "PackedRef": ("yogadl._dataref", "PackedRef"),
    "Plan": ("yogadl._stream.plan", "Plan"),
    "Prices": ("yogadl._core.protocols", "Prices"),
    "ReadingCost": ("yogadl._stream.plan", "ReadingCost"),
    "RecordOptions": ("yogadl.storage._builds.options", "RecordOptions"),
    "RecordStream": ("yogadl._stream", "RecordStream"),
    "RecordsRef": ("yogadl._dataref", "RecordsRef"),
    "Rejected": ("yogadl._views.stages", "Rejected"),
    "Sequences": ("yogadl._order", "Sequences"),
    "Stats": ("yogadl._stream", "Stats"),
    "StreamIterator": ("yogadl._stream", "StreamIterator"),
    "Dropped": ("yogadl._stream.tickets", "Dropped"),
    "Ticket": ("yogadl._stream.tickets", "Ticket"),
    "Tickets": ("yogadl._stream.tickets", "Tickets"),
    "Zstd": ("yogadl._format.codec", "Zstd"),
    "cached": ("yogadl.storage", "cached"),
    "concat": ("yogadl._mix", "concat"),
    "from_source": ("yogadl._dataref", "from_source"),
    "image_folder": ("yogadl.storage._image_folder", "image_folder"),
    "mix": ("yogadl._mix", "mix"),
    "open_storage": ("yogadl.storage", "open_storage"),
    "partitioned": ("yogadl._sources.partitioned", "partitioned"),
    "storage": ("yogadl.storage", None),
    "adapters": ("yogadl.adapters", None),
    "dataref": ("yogadl.dataref", None),
    "tensorflow": ("yogadl.tensorflow", None),
    "testing": ("yogadl.testing", None),
}

if not TYPE_CHECKING:  # type checkers know the names above, and no others

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
    # Not `testing`: a look at all names would import it, and pytest.
    return sorted([*__all__, "adapters", "dataref", "tensorflow"])
