"""examples/train_jax.py, killed, asked to stop, and gone on with in other numbers of processes."""

from example_contract import StoppableContract


class TestJax(StoppableContract):
    script = "train_jax.py"
    framework = "jax"
    points = ("mkdir", "no file", "empty file", "rename")
