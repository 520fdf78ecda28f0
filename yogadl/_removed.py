"""Name the replacements of the names of yogadl 0.1.4 that were removed."""

from typing import Final

from yogadl.errors import RemovedError

_KEYS: Final = "give `shard_rank`, `num_shards`, `shuffle` and `shuffle_seed` to `ref.stream(...)`"
_WRITE: Final = "write `storage.submit(data, id, version)`"
_READ: Final = "write `storage.fetch(id, version)`; `yogadl import-014` turns an old file into a version"
_LIST: Final = "no name is needed: leave the annotation out"
_OPEN: Final = "write `yogadl.open_storage('s3://bucket/prefix')` or `'gs://bucket/prefix'`"
_SERVER: Final = "no server is needed: leave it out, the storage itself decides who builds"
_ELEMENTS: Final = "write `dataset.as_numpy_iterator()`"

# The removed names of each module, and what to write instead.
REMOVED: Final = {
    "yogadl": {
        "GeneratorFromKeys": _KEYS,
        "LmdbAccess": _READ,
        "Submittable": _LIST,
        "non_sequential_shard": _KEYS,
        "rw_coordinator": _SERVER,
        "sequential_shard": _KEYS,
        "serialize_generator_to_lmdb": _WRITE,
        "shard_keys": _KEYS,
        "shuffle_keys": _KEYS,
    },
    "yogadl.dataref": {"LMDBDataRef(cache_filepath=...)": _READ},
    "yogadl.storage": {"BaseCloudConfigurations": _OPEN, "BaseCloudStorage": _OPEN},
    "yogadl.tensorflow": {
        "read_tf_dataset": _ELEMENTS,
        "read_tf_dataset_eager_mode": _ELEMENTS,
        "read_tf_dataset_graph_mode": _ELEMENTS,
        "serialize_tf_dataset_to_lmdb": _WRITE,
    },
}


def missing(module: str, name: str) -> Exception:
    """Return the error for a name that a module does not have.

    For a name of 0.1.4 it is an `ImportError`, even as an attribute: ``from yogadl import name`` would not
    show the text of an `AttributeError`.
    """
    instead = REMOVED[module].get(name)
    if instead is None:
        return AttributeError(f"module {module!r} has no attribute {name!r}")
    return RemovedError(f"{module}.{name} was removed after yogadl 0.1.4: {instead}")
