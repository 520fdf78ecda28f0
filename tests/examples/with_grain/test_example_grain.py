"""examples/train_grain.py, killed, asked to stop, and gone on with in other numbers of processes."""

from example_contract import StoppableContract


class TestGrain(StoppableContract):
    script = "train_grain.py"
    framework = "jax"
    points = ("mkdir", "no file", "empty file", "rename")
