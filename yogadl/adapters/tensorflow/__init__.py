"""Read tf.data pipelines into caches, and hand streams to tf.data.

The names of this module need TensorFlow. What is stored how, what is refused and how to resume:
docs/tensorflow.md.
"""

from yogadl.errors import MissingDependencyError

try:
    import tensorflow  # noqa: F401  (so that all that is said of a missing one is said here)
except ImportError as error:
    raise MissingDependencyError(
        "tf.data pipelines and make_tf_dataset need TensorFlow: pip install 'yogadl[tensorflow]'"
    ) from error

from yogadl.adapters.tensorflow._cache import cache
from yogadl.adapters.tensorflow._dataset import make_tf_dataset
from yogadl.adapters.tensorflow._source import source

__all__ = ["cache", "make_tf_dataset", "source"]
