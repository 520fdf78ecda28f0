"""Cache a pipeline in one line: the first use builds the cache, later uses read it."""

import contextlib
import threading
import warnings
from collections.abc import Callable
from typing import Any, Final

from yogadl._core.arguments import bool_argument, names_of, unknown_argument, users_level
from yogadl._core.key import AUTO
from yogadl._dataref import RecordsRef, from_source
from yogadl.adapters.tensorflow._graph import Graph
from yogadl.adapters.tensorflow._loader import make_tf_dataset
from yogadl.adapters.tensorflow._source import graph_of, python_functions
from yogadl.adapters.tensorflow._specs import Dataset, require_eager
from yogadl.errors import ConfigurationError, CursorError, DatasetNotFoundError

# More records than any number of shards needs: options are checked on a range of this length before a build.
_MANY_RECORDS: Final = 2**40


class _Pipeline(threading.local):
    """The builder that `cacheable` calls: it returns the dataset that was set before the call.

    When a version is computed, its attribute `__yogadl_version__`, the dataset's Python functions, is hashed
    instead of the code of this class.
    """

    dataset: Dataset = None
    functions: list[Any] | None = None  # the dataset's Python functions, whose code its graph lacks

    def __call__(self, graph: str) -> Dataset:
        return self.dataset

    @property
    def __yogadl_version__(self) -> Any:
        return self.functions


def cache(
    storage: Any,
    dataset_id: str,
    dataset_version: str,
    *,
    skip_finished_epoch: bool = False,
    **stream_options: Any,
) -> Callable[[Dataset], Dataset]:
    """Return a transformation for `tf.data.Dataset.apply` that caches the pipeline before it.

    The pipeline runs once, at the first use, and never again. If its graph differs from the graph that built
    the cache, a warning is shown once, and the cache is used as it is. With the version ``"auto"`` the
    version is made from the graph, so a change builds a new version.

    Args:
        storage: The storage of the cache.
        dataset_id: The dataset's name.
        dataset_version: The version; change it when the pipeline changes, or give ``"auto"``.
        skip_finished_epoch: As for `make_tf_dataset`: whether a cursor at an epoch's end starts the next
            epoch.
        **stream_options: The arguments of `DataRef.stream` for reading the cache.

    Raises:
        ConfigurationError: if an option is invalid; from the function returned, if the version is
            ``"auto"`` and the graph does not describe the pipeline completely, or if TensorFlow does not
            execute eagerly.

    Example:
        >>> import tempfile, tensorflow as tf, yogadl
        >>> from yogadl.adapters import tensorflow as yogadl_tf
        >>> folder = tempfile.TemporaryDirectory()
        >>> storage = yogadl.open_storage(folder.name)
        >>> squares = tf.data.Dataset.range(5).map(lambda x: x * x)
        >>> squares = squares.apply(yogadl_tf.cache(storage, "squares", "1", shuffle=True))
        >>> sorted(int(x) for x in squares)
        [0, 1, 4, 9, 16]
        >>> folder.cleanup()
    """
    if not hasattr(storage, "cacheable"):
        raise ConfigurationError(f"cache takes a storage, yogadl.open_storage(...), not {storage!r:.100}")
    bool_argument("skip_finished_epoch", skip_finished_epoch)
    _check_options(stream_options)
    pipeline = _Pipeline()
    build_once = storage.cacheable(dataset_id, dataset_version)(pipeline)
    warned: set[str] = set()

    def call_builder(dataset: Dataset, graph: Graph | None) -> RecordsRef:
        pipeline.dataset, pipeline.functions = dataset, python_functions(graph) if graph else None
        try:
            ref: RecordsRef = build_once(graph=graph.sha256() if graph else "")
            return ref
        finally:
            pipeline.dataset = pipeline.functions = None

    def fetch_or_build(dataset: Dataset, graph: Graph | None) -> RecordsRef:
        try:
            ref: RecordsRef = storage.fetch(dataset_id, dataset_version)
        except DatasetNotFoundError:
            return call_builder(dataset, graph)
        built_from = storage.info(dataset_id, dataset_version).builder.get("graph")
        sha256 = graph.sha256() if graph else ""
        if built_from and sha256 and sha256 not in {built_from, *warned}:
            warned.add(sha256)
            warnings.warn(
                f"{dataset_id!r} version {dataset_version!r} was built by a pipeline whose graph differs "
                "from this pipeline's graph (or by another TensorFlow). The cache is used unchanged; to "
                "build it again, choose another version.",
                UserWarning,
                stacklevel=users_level("tensorflow"),
            )
        return ref

    def apply(dataset: Dataset) -> Dataset:
        require_eager("cache")
        graph = graph_of(dataset)
        if dataset_version == AUTO:
            _require_complete_graph(dataset_id, graph)
            ref = call_builder(dataset, graph)
        else:
            ref = fetch_or_build(dataset, graph)
        return make_tf_dataset(ref.stream(**stream_options), skip_finished_epoch=skip_finished_epoch)

    return apply


def _check_options(options: dict[str, Any]) -> None:
    """Refuse options that `DataRef.stream` would refuse, before a build; cursors are checked after it."""
    names = names_of(RecordsRef.stream)
    for name in options:
        if name not in names:
            raise unknown_argument("cache", name, names)
    with contextlib.suppress(CursorError):
        from_source(range(_MANY_RECORDS), "any").stream(**options)


def _require_complete_graph(dataset_id: str, graph: Graph | None) -> None:
    """Raise a ConfigurationError if the graph does not describe the pipeline completely."""
    if graph is None:
        problem = "has no graph to hash (it holds more than 256 MiB, or TensorFlow can't write it)"
    elif graph.python_tokens():
        problem = (
            "calls Python (tf.py_function, tf.numpy_function, from_generator), whose code is not in its graph"
        )
    elif graph.has_unknown_content():
        problem = "reads from a queue, an iterator or a table, whose content is not in its graph"
    else:
        return
    raise ConfigurationError(
        f"{dataset_id!r}: the version can't be computed, since the pipeline {problem}: name the version "
        "yourself instead of 'auto', or decorate a function that returns the pipeline with "
        "storage.cacheable(..., 'auto'), which reads the code"
    )
