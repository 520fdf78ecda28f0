"""examples/train_tensorflow.py, killed, asked to stop, and gone on with on other numbers of workers."""

from example_contract import StoppableContract


class TestTensorFlow(StoppableContract):
    script = "train_tensorflow.py"
