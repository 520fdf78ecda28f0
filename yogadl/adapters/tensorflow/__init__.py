"""Read tf.data pipelines into caches, and hand streams to tf.data.

The names of this module need TensorFlow. What is stored how, what is refused and how to resume:
docs/howto/tensorflow.md.
"""

# Pipelines are read by `_source`: `_specs` says how components are stored, `_build_state` lets a killed build
# go on within the pipeline, `_graph` looks at what it does. Streams are handed over by `_loader`: `_gather`
# reads rows, `_pack` makes arrays of them, `_components` the components of elements, `_items` the items of an
# epoch, and `_state` lets checkpoints say which epoch is next. `_cache` is both in one line.

from yogadl.adapters import _checks

_checks.require(
    "tensorflow", "tf.data pipelines and make_tf_dataset need TensorFlow: pip install 'yogadl[tensorflow]'"
)

from yogadl.adapters.tensorflow._cache import cache
from yogadl.adapters.tensorflow._loader import make_tf_dataset
from yogadl.adapters.tensorflow._source import source

__all__ = ["cache", "make_tf_dataset", "source"]
