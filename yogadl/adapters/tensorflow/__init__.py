"""Read tf.data pipelines into caches, and hand streams to tf.data.

The names of this module need TensorFlow. docs/howto/tensorflow.md lists what is stored and how, what is
refused, and how to resume.
"""

# Reading pipelines: `_source` reads the records, and lets a killed build continue within the pipeline;
# `_specs` defines how components are stored; `_graph` inspects and hashes the pipeline's graph. Handing over
# streams: `_loader` makes the dataset, reads the items of an epoch, and saves the next epoch in checkpoints;
# `_components` makes the components of its elements. `_cache` does both in one line.

from yogadl.adapters import _checks

_checks.require(
    "tensorflow", "tf.data pipelines and make_tf_dataset need TensorFlow: pip install 'yogadl[tensorflow]'"
)

from yogadl.adapters.tensorflow._cache import cache
from yogadl.adapters.tensorflow._loader import make_tf_dataset
from yogadl.adapters.tensorflow._source import source

__all__ = ["cache", "make_tf_dataset", "source"]
