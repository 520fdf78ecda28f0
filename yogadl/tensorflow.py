"""Keep the door of yogadl 0.1.4: `yogadl.tensorflow.make_tf_dataset`."""

from yogadl.adapters.tensorflow import make_tf_dataset

__all__ = ["make_tf_dataset"]
