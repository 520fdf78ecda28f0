"""Read Keras's datasets into caches, and hand streams to Keras, with any of its backends.

The names of this module need Keras 3. docs/howto/keras.md covers training, evaluation and resuming.
"""

from yogadl.adapters import _checks

_checks.require(
    "keras", "PyDataset and Checkpoint need Keras 3 and a backend for it: pip install 'yogadl[keras]'"
)

from yogadl.adapters.keras._loader import PyDataset
from yogadl.adapters.keras._source import source
from yogadl.adapters.keras._state import Checkpoint

__all__ = ["Checkpoint", "PyDataset", "source"]
