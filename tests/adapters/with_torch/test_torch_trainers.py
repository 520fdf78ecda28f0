"""The trainers' scripts of docs/howto/pytorch.md: two ranks read exact shards, are killed; one goes on."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pages
import pytest

import yogadl

SCRIPT = Path(__file__).with_name("torch_trainers.py")
RECORDS, BATCH = 1001, 64  # of which two ranks drop one, and have 8 batches an epoch
STOP = 13


def start(folder, trainer, ranks, *arguments):
    """Run the script in so many ranks; return how it ended and the ids that each rank trained on."""
    for path in folder.glob("rank-*"):
        path.unlink()
    launch = [sys.executable]
    if ranks > 1:
        launch += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            [str(Path(pages.__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "ACCELERATE_USE_CPU": "1",
        "PL_TRAINER_ACCELERATOR": "cpu",
        "PL_TRAINER_DEVICES": str(ranks),
    }
    done = subprocess.run(
        [*launch, str(SCRIPT), trainer, str(folder), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        timeout=250,
    )
    return done, [list(map(int, (folder / f"rank-{rank}").read_text().split())) for rank in range(ranks)]


# How many batches of a rank the last checkpoint is of: each fifth of an epoch, each fifth, and each epoch.
@pytest.mark.parametrize(("trainer", "saved"), [("Accelerate", 13), ("Lightning", 10), ("HF Trainer", 8)])
def test_two_ranks_read_exact_shards_and_one_goes_on_where_they_were_saved(trainer, saved, tmp_path):
    storage = yogadl.open_storage(tmp_path / "caches")
    images = np.zeros((RECORDS, 8, 8), np.float32)
    images[:, 0, 0] = np.arange(RECORDS)
    storage.submit({"image": images, "label": np.arange(RECORDS) % 10}, "digits", "1")
    stream = storage.fetch("digits", "1").stream(shuffle=True, shuffle_seed=7)
    orders = [stream.indices(epoch).tolist() for epoch in range(3)]

    done, found = start(tmp_path, trainer, 2, STOP)
    assert done.returncode, done.stdout
    whole, within = RECORDS // 2, (STOP - 8) * BATCH
    assert found == [orders[0][rank : 2 * whole : 2] + orders[1][rank : 2 * within : 2] for rank in (0, 1)], (
        done.stdout
    )
    assert ("'eval_count': 333" in done.stdout) is (trainer == "HF Trainer"), done.stdout

    done, (found,) = start(tmp_path, trainer, 1)
    assert not done.returncode, done.stdout
    if saved == 8:  # and not the record that two ranks have dropped, which is a batch of one rank's
        assert found == orders[0][2 * whole :] + orders[1] + orders[2]
    else:
        assert found == orders[1][(saved - 8) * BATCH * 2 :] + orders[2]
