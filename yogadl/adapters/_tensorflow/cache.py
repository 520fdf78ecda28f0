"""Cache a pipeline in one line, and serve it ever after."""

import threading
import warnings
from collections.abc import Callable
from typing import Any

from yogadl.adapters._tensorflow.dataset import make_tf_dataset
from yogadl.adapters._tensorflow.source import graph_of
from yogadl.adapters._tensorflow.specs import Dataset
from yogadl.errors import DatasetNotFoundError


class _Pipeline(threading.local):
    """What builds the cache of a pipeline, for whoever compares builders: its graph is its argument."""

    dataset: Dataset = None

    def __call__(self, graph: str) -> Dataset:
        return self.dataset


def cache(
    storage: Any, dataset_id: str, dataset_version: str, **stream_options: Any
) -> Callable[[Dataset], Dataset]:
    """Return a transformation for `tf.data.Dataset.apply` that caches the pipeline up to there.

    On first use the pipeline is read once; from then on it never runs again. If its graph is another than the
    one that built the cache, a warning says so once, and the cache is served.

    Args:
        storage: Where the cache is kept.
        dataset_id: What it is called.
        dataset_version: Which version; bump it when the pipeline changes.
        **stream_options: How it is read: the arguments of `DataRef.stream`.

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
    pipeline = _Pipeline()
    build_once = storage.cacheable(dataset_id, dataset_version)(pipeline)
    warned: set[str] = set()

    def apply(dataset: Dataset) -> Dataset:
        graph = graph_of(dataset)
        sha256 = graph.sha256() if graph else ""
        try:
            ref = storage.fetch(dataset_id, dataset_version)
        except DatasetNotFoundError:
            pipeline.dataset = dataset
            try:
                ref = build_once(graph=sha256)
            finally:
                pipeline.dataset = None
        else:
            built_from = storage.info(dataset_id, dataset_version).builder.get("graph")
            if built_from and sha256 and sha256 not in {built_from, *warned}:
                warned.add(sha256)
                warnings.warn(
                    f"{dataset_id!r} version {dataset_version!r} was built by a pipeline whose graph is not "
                    "that of this one (or by another TensorFlow). It is served as it is; to build anew, "
                    "make it another version.",
                    UserWarning,
                    stacklevel=2,
                )
        return make_tf_dataset(ref.stream(**stream_options))

    return apply
