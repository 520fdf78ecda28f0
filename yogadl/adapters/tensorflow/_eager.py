"""Refuse what needs eager execution where TensorFlow only builds a graph, and say what to do."""

import tensorflow as tf

from yogadl.errors import ConfigurationError


def require_eager(what: str) -> None:
    """Refuse to go on inside a `tf.function`, or in graph mode.

    Raises:
        ConfigurationError: says where `what` works.
    """
    if tf.executing_eagerly():
        return
    if tf.inside_function():
        problem = (
            "is called inside a tf.function: make the dataset outside of it; what is ready can be iterated "
            "over inside"
        )
    else:
        problem = (
            "is called in TensorFlow's graph mode: leave out tf.compat.v1.disable_eager_execution(), "
            "disable_v2_behavior() and tf.Graph().as_default()"
        )
    raise ConfigurationError(f"{what} needs eager execution, but {problem}")
