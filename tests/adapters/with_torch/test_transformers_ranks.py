"""An exact Trainer that is killed goes on with more and with fewer ranks: each record comes once."""

from pathlib import Path

import numpy as np
import pytest
from test_torch_trainers import start

import yogadl

SCRIPT = Path(__file__).with_name("exact_ranks.py")
RECORDS = 50


def train(folder, data, ranks, *stop):
    """Run the script in so many ranks; return what it said, and the ids in the order of the stream."""
    has_failed, said, found = start(folder, data, ranks, *stop, script=SCRIPT)
    assert has_failed is bool(stop), said
    return said, [number for row in zip(*found, strict=True) for number in row]


@pytest.mark.parametrize("data", ["reference", "stream", "SFT", "DPO"])
def test_each_record_of_the_epoch_comes_once_on_2_3_and_1_ranks(tmp_path, data):
    storage = yogadl.open_storage(tmp_path / "caches")
    ref = storage.submit({"id": np.arange(RECORDS)}, "numbers", "1")
    seed = 42 if data == "reference" else 7  # that of TrainingArguments
    orders = [ref.stream(shuffle=True, shuffle_seed=seed).indices(epoch).tolist() for epoch in range(3)]
    _, first = train(tmp_path, data, 2, 5)
    assert first == orders[0][:20]
    _, second = train(tmp_path, data, 3, 5 + 3)
    assert second == orders[0][20:] + orders[1][:18]
    said, third = train(tmp_path, data, 1)
    assert third == orders[1][18:] + orders[2]
    assert "epoch 3.0, step 54 of 54" in said
