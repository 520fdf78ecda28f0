"""examples/train_pytorch.py, killed, asked to stop, and gone on with on other numbers of ranks."""

import numpy as np
from example_contract import TOLERANCE, StoppableContract
from example_jobs import Job, largest_difference
from sklearn.datasets import load_digits

import yogadl


class TestPyTorch(StoppableContract):
    script = "train_pytorch.py"
    framework = "torch"
    points = ("before save", "half a file", "rename")


def test_one_wrong_record_of_one_step_changes_the_weights_by_far_more_than_the_tolerance(tmp_path):
    digits = load_digits()
    images, labels = digits.images.astype(np.uint8), digits.target.astype(np.int32)
    training, _ = yogadl.from_source({"id": np.arange(len(labels))}).split(0.85, seed=1)
    wrong = int(next(iter(training.stream(shuffle=True, shuffle_seed=7).batch(96)))["id"][0])
    labels[wrong] = (labels[wrong] + 1) % 10
    storage = yogadl.open_storage(tmp_path / "wrong" / "data")
    storage.submit({"image": images, "label": labels}, "digits", "1")
    names = ("right", "wrong")
    jobs = [Job("train_pytorch.py", "torch", tmp_path / name, 1, 1) for name in names]
    for job in jobs:
        job.run()
    right, wrong = (job.weights() for job in jobs)
    assert largest_difference(right, wrong) > 100 * TOLERANCE
