"""Read Keras's datasets into caches, and hand streams to Keras, on whatever backend it runs.

The names of this module need Keras 3. How to train, evaluate and go on after a stop: docs/howto/keras.md.
"""

from yogadl.adapters import _checks

_checks.require(
    "keras", "PyDataset and Checkpoint need Keras 3 and a backend for it: pip install 'yogadl[keras]'"
)

from yogadl.adapters.keras._loader import PyDataset
from yogadl.adapters.keras._source import source
from yogadl.adapters.keras._state import Checkpoint

__all__ = ["Checkpoint", "PyDataset", "source"]
