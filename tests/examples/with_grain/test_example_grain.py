"""examples/train_grain.py, killed, and gone on with in other numbers of processes."""

from example_contract import ExampleContract


class TestGrain(ExampleContract):
    script = "train_grain.py"
