"""Where programs of these tests start: TensorFlow and Keras are loaded already."""

from warm import Warm, warm


def tensorflow() -> Warm:
    """Return the server of programs that use TensorFlow."""
    modules = ("numpy", "tensorflow", "keras", "yogadl.adapters.tensorflow")
    return warm(*modules, TF_CPP_MIN_LOG_LEVEL="2", KERAS_BACKEND="tensorflow")
