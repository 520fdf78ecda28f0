"""The trainers' scripts of docs/howto/pytorch.md: two ranks read exact shards, are killed; one goes on."""

import random
import socket
from pathlib import Path

import numpy as np
import pytest
from accelerate import Accelerator
from programs import programs
from soak import few_or_many

import yogadl
from yogadl.adapters import torch as yogadl_torch

SCRIPT = Path(__file__).with_name("torch_trainers.py")
RECORDS, BATCH = 1001, 64  # of which two ranks drop one, and have 8 batches an epoch
STOP = 13


def start(folder, trainer, ranks, *arguments, script=SCRIPT):
    """Run a script in so many ranks; return how it ended and the ids that each rank trained on."""
    for path in folder.glob("rank-*"):
        path.unlink()
    started = [
        programs("torch").start(
            script,
            trainer,
            folder,
            *arguments,
            variables={**place, "PL_TRAINER_DEVICES": str(ranks)},
            output=folder / f"output-{rank}",
            errors=folder / f"output-{rank}",
        )
        for rank, place in enumerate(places(ranks))
    ]
    try:
        codes = [one.wait() for one in started]  # each rank dies at the same step
    finally:
        for one in started:
            one.kill()
    said = "".join((folder / f"output-{rank}").read_text() for rank in range(ranks))
    found = [list(map(int, (folder / f"rank-{rank}").read_text().split())) for rank in range(ranks)]
    return any(codes), said, found


def places(ranks):
    """Return the variables of each rank, as torchrun sets them; there are none for a single one."""
    if ranks == 1:
        return [{}]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {
        "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
        "TORCHELASTIC_RUN_ID": "one", "GROUP_RANK": 0,
    }  # fmt: skip
    numbers = [common | {"RANK": rank, "LOCAL_RANK": rank} for rank in range(ranks)]
    return [{name: str(value) for name, value in one.items()} for one in numbers]


def orders_of(folder, records):
    """Write the page's data set (a record's first pixel is its id); return the order of each epoch."""
    storage = yogadl.open_storage(folder / "caches")
    images = np.zeros((records, 8, 8), np.float32)
    images[:, 0, 0] = np.arange(records)
    storage.submit({"image": images, "label": np.arange(records) % 10}, "digits", "1")
    stream = storage.fetch("digits", "1").stream(shuffle=True, shuffle_seed=7)
    return [stream.indices(epoch).tolist() for epoch in range(3)]


# How many batches of a rank the last checkpoint is of: each fifth of an epoch, each fifth, and each epoch.
@pytest.mark.parametrize(("trainer", "saved"), [("Accelerate", 13), ("Lightning", 10), ("HF Trainer", 8)])
def test_two_ranks_read_exact_shards_and_one_goes_on_where_they_were_saved(trainer, saved, tmp_path):
    orders = orders_of(tmp_path, RECORDS)
    has_failed, said, found = start(tmp_path, trainer, 2, STOP)
    assert has_failed, said
    whole, within = RECORDS // 2, (STOP - 8) * BATCH
    assert found == [orders[0][rank : 2 * whole : 2] + orders[1][rank : 2 * within : 2] for rank in (0, 1)], (
        said
    )
    assert ("'eval_count': 333" in said) is (trainer == "HF Trainer"), said

    has_failed, said, (found,) = start(tmp_path, trainer, 1)
    assert not has_failed, said
    if saved == 8:  # and not the record that two ranks have dropped, which is a batch of one rank's
        assert found == orders[0][2 * whole :] + orders[1] + orders[2]
    else:
        assert found == orders[1][(saved - 8) * BATCH * 2 :] + orders[2]


@pytest.mark.parametrize(("trainer", "step"), [("Lightning", 7), ("Accelerate", 6)])
def test_each_record_comes_once_on_two_ranks_then_three_then_one(trainer, step, tmp_path):
    orders = orders_of(tmp_path, RECORDS)
    has_failed, said, found = start(tmp_path, trainer, 2, step)  # saved after 5 batches, of 64 on each rank
    assert has_failed, said
    assert found == [orders[0][rank : step * 128 : 2] for rank in range(2)], said

    has_failed, said, found = start(tmp_path, trainer, 3, 7)  # 2 of them in the rest of the epoch
    assert has_failed, said
    assert found == [orders[0][640 + rank : 1000 : 3] + orders[1][rank : 5 * 192 : 3] for rank in range(3)], (
        said
    )

    has_failed, said, (found,) = start(tmp_path, trainer, 1)
    assert not has_failed, said
    if trainer == "Lightning":  # saved at step 10, 3 in this epoch
        assert found == orders[1][3 * 192 :] + orders[2], said
    else:  # each fifth batch of an epoch
        assert found == orders[1][5 * 192 :] + orders[2], said


FEW_RECORDS, STEPS = 384, 6  # in an epoch


@pytest.mark.parametrize("trainer", ["Accelerate", "Lightning"])
def test_a_run_that_is_killed_at_any_step_ends_with_the_order_and_weights_of_one_that_was_not(
    trainer, tmp_path
):
    (tmp_path / "whole").mkdir()
    orders = orders_of(tmp_path / "whole", FEW_RECORDS)
    has_failed, said, (whole,) = start(tmp_path / "whole", trainer, 1)
    assert not has_failed, said
    assert whole == [number for order in orders for number in order]
    rng = random.Random(56)
    for number in range(few_or_many(2, 20)):
        for epoch in range(2):
            folder = tmp_path / f"{number}-{epoch}"
            folder.mkdir()
            orders_of(folder, FEW_RECORDS)
            stop = epoch * STEPS + rng.randrange(STEPS)
            has_failed, said, (before,) = start(folder, trainer, 1, stop)
            assert has_failed, said
            assert before == whole[: len(before)]
            has_failed, said, (after,) = start(folder, trainer, 1)
            assert not has_failed, said
            assert after == whole[-len(after) :], f"killed at step {stop}"
            assert len(before) + len(after) >= len(whole)
            with (
                np.load(tmp_path / "whole" / "weights.npz") as expected,
                np.load(folder / "weights.npz") as got,
            ):
                for name in expected.files:
                    assert np.array_equal(expected[name], got[name]), f"killed at step {stop}"


@pytest.mark.filterwarnings("ignore")  # of Accelerate, which runs here on a CPU
def test_accelerate_forgets_a_loader_that_was_prepared_and_not_registered(tmp_path):
    accelerator = Accelerator(cpu=True)
    stream = yogadl.from_source(np.arange(10)).stream()
    loaders = [yogadl_torch.make_dataloader(stream, 2) for _ in range(2)]
    prepared, registered = loaders
    before = dict(vars(prepared))
    assert accelerator.prepare(prepared) is prepared
    assert vars(prepared) == before  # so it can't know
    accelerator.register_for_checkpointing(registered)
    for loader in loaders:
        next(iter(loader))
    accelerator.save_state(tmp_path / "state")
    for loader in loaders:
        next(iter(loader))
    accelerator.load_state(tmp_path / "state")
    assert registered.state_dict() == stream.cursor(2)
    assert prepared.state_dict() != stream.cursor(2)
