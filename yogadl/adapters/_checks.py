"""Convert trees of records and batches, check arguments, and more that several adapters need."""

import importlib
import importlib.metadata
import os
import sys
import warnings
from collections.abc import Callable, Collection, Sequence
from pathlib import Path as FilePath
from typing import Any, Final

from yogadl._core.arguments import int_argument, unknown_argument
from yogadl._core.spec import DictNode, Leaf, Spec
from yogadl._dataref import RecordsRef
from yogadl._stream import Cut, RecordStream
from yogadl.errors import ConfigurationError, MissingDependencyError

# A tree is a record or batch of a framework: nested dicts, lists, tuples and namedtuples.

RECORD_COLUMN: Final = "record"  # the name of the column in tables whose records are single values

Path = tuple[object, ...]  # the keys and positions from the root to a node


def map_leaves(function: Callable[[Any, Path], Any], tree: Any, path: Path = ()) -> Any:
    """Return the tree with `function(leaf, path)` in the place of each leaf."""
    if isinstance(tree, dict):
        return {key: map_leaves(function, item, (*path, key)) for key, item in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        items = zip(tree._fields, tree, strict=True)
        return type(tree)(*(map_leaves(function, item, (*path, key)) for key, item in items))
    if isinstance(tree, list | tuple):
        return type(tree)(map_leaves(function, item, (*path, key)) for key, item in enumerate(tree))
    return function(tree, path)


def delivered_in_turn(counts: Sequence[int]) -> int | None:
    """Return the number of items of all workers, or ``None`` if they are not the first items of the order.

    Worker k of w makes the items k, k + w, k + 2w, ... of the order.

    Args:
        counts: The number of items that each worker delivered.
    """
    total, workers = sum(counts), len(counts)
    in_turn = [len(range(worker, total, workers)) for worker in range(workers)]
    return total if list(counts) == in_turn else None


def with_padding(spec: Spec, padding_field: str | None) -> Spec:
    """Return the structure of a batch: the record's, with a last field that marks padding."""
    if padding_field is None:
        return spec
    assert isinstance(spec.tree, DictNode)
    return Spec(DictNode((*spec.tree.keys, padding_field), (*spec.tree.children, Leaf("bool"))))


def require(framework: str, message: str) -> None:
    """Import a framework.

    Raises:
        MissingDependencyError: with this message, if it can't be imported.
    """
    try:
        importlib.import_module(framework)
    except ImportError as error:
        raise MissingDependencyError(message) from error


def tried_with(package: str, version: str) -> None:
    """Warn if a package is of another minor version than the one that an adapter was run with."""
    try:
        found = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # it is not installed as a package
        return
    if found.split(".")[:2] != version.split("."):
        warnings.warn(
            f"yogadl's adapter was run with {package} {version}, and this is {found}, which may differ: try "
            "a resume before you depend on it",
            UserWarning,
            stacklevel=1,  # this file's line, not the caller's: Python then warns once a process
        )


def refuse_unknown(called: str, options: Collection[str], known: Collection[str]) -> None:
    """Refuse options that a function does not have.

    Raises:
        ConfigurationError: for the first such option; the error names what is similar.
    """
    for name in options:
        if name not in known:
            raise unknown_argument(called, name, known, {"ref.stream": RecordsRef.stream})


def check_function(name: str, value: Any, form: str = "a function") -> None:
    """Refuse an argument that is neither None nor a function; `form` describes the function.

    Raises:
        ConfigurationError: if the value can't be called.
    """
    if value is not None and not callable(value):
        raise ConfigurationError(f"{name} must be {form}, not {value!r}")


def cut_of(
    batch_size: int | None,
    drop_remainder: bool = False,
    epochs: int | None = 1,
    *,
    skip_finished_epoch: bool = False,
) -> Cut:
    """Return how to cut a stream into batches; not at all if `batch_size` is None.

    This is the rule of all adapters: `batch_size` may be left out, and then each of the stream's items is
    handed on as it is, a record or one of the batches of `DataRef.bucketed`. The default of `epochs` is 1;
    only Keras's dataset has none.

    Raises:
        ConfigurationError: if an argument is invalid.
    """
    if batch_size is None and drop_remainder:
        raise ConfigurationError(
            "drop_remainder needs batch_size: without one, the stream's items are delivered as they are"
        )
    size = 1 if batch_size is None else int_argument("batch_size", batch_size, 1)
    return Cut(size, drop_remainder, epochs, skip_finished_epoch=skip_finished_epoch)


def ahead_of(prefetch: int, threads: int) -> tuple[int, int]:
    """Return the number of batches to read ahead, and the number of threads that read them.

    Raises:
        ConfigurationError: if an argument is invalid.
    """
    depth, threads = int_argument("prefetch", prefetch), int_argument("threads", threads, 1)
    if threads > 1 and not depth:
        raise ConfigurationError(f"threads={threads} read ahead: pass prefetch=1 or more with it")
    return depth, threads


def ranks_of(framework: str) -> int:
    """Return the number of ranks that ``torch.distributed`` or ``jax.distributed`` connects.

    The function imports and initializes nothing: if the framework is not loaded or not initialized, it
    returns 1.
    """
    module: Any = sys.modules.get(framework)
    is_initialized = getattr(getattr(module, "distributed", None), "is_initialized", None)
    if is_initialized is None or not is_initialized():
        return 1
    return int(module.distributed.get_world_size() if framework == "torch" else module.process_count())


def warn_if_unsharded(
    stream: RecordStream, ranks: int, remedy: str = "pass shard_rank= and num_shards= to ref.stream"
) -> None:
    """Warn if each of several ranks would read all records of the stream; `remedy` is the advice to print."""
    if ranks > 1 and stream.shard.ranks == 1:
        warnings.warn(
            f"the stream is unsharded, so each of the {ranks} ranks reads every record: {remedy}. If that is "
            "what you want, ignore this",
            UserWarning,
            stacklevel=1,  # this file's line, not the caller's: Python then warns once a process
        )


def put_in_place(new: FilePath, path: FilePath) -> None:
    """Rename a file that is written to its place, so that there is a whole file at any time."""
    _flush(new)
    os.replace(new, path)
    _flush(path.parent)


def _flush(path: FilePath) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
