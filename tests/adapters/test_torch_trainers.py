"""Accelerate, Lightning and the HF Trainer: two ranks read exact shards, stop, and one goes on."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import yogadl

SCRIPT = Path(__file__).with_name("torch_trainers.py")
RECORDS, BATCH, STEPS = 47, 4, 3


def run(framework, folder, ranks, *arguments):
    """Run the script in so many ranks; return the ids that each read."""
    for path in folder.glob("rank-*"):
        path.unlink()
    launch = [sys.executable]
    if ranks > 1:
        launch += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [*launch, str(SCRIPT), framework, str(folder), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        timeout=250,
    )
    assert not done.returncode, done.stdout
    return [list(map(int, (folder / f"rank-{rank}").read_text().split())) for rank in range(ranks)]


@pytest.mark.parametrize("framework", ["accelerate", "lightning", "transformers"])
def test_two_ranks_read_exact_shards_and_one_goes_on_where_they_stopped(framework, tmp_path):
    storage = yogadl.open_storage(tmp_path / "caches")
    storage.submit({"id": np.arange(RECORDS), "x": np.ones((RECORDS, 3), np.float32)}, "set", "1")
    order = storage.fetch("set", "1").stream(shuffle=True, shuffle_seed=3).indices(0).tolist()
    first = run(framework, tmp_path, 2, STEPS)
    assert first == [order[rank : 2 * STEPS * BATCH : 2] for rank in range(2)]
    left = -(-(RECORDS - 2 * STEPS * BATCH) // BATCH)
    (rest,) = run(framework, tmp_path, 1, STEPS + left if framework != "accelerate" else left, "resume")
    assert rest == order[2 * STEPS * BATCH :]
