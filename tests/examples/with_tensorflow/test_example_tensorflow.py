"""examples/train_tensorflow.py, killed, asked to stop, and gone on with on other numbers of workers."""

from example_contract import StoppableContract


class TestTensorFlow(StoppableContract):
    script = "train_tensorflow.py"
    framework = "tensorflow"
    points = ("before save_v2", "before merge_v2_checkpoints", "before atomic_write_string_to_file")
