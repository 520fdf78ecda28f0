"""examples/train_grain.py, killed, asked to stop, and gone on with in other numbers of processes."""

from example_contract import StoppableContract


class TestGrain(StoppableContract):
    script = "train_grain.py"
    modules = ("jax", "orbax.checkpoint", "yogadl.adapters.grain")
    points = ("mkdir", "no file", "empty file", "rename")
