"""Trainers of trl that `exact` made resume at the record where they stopped, with the same weights."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
import trl_trainers
from killed_saves import killed
from programs import programs
from soak import few_or_many
from trl_trainers import EPOCHS, KINDS, RECORDS, STEPS, train, weights

from yogadl.errors import ConfigurationError

SCRIPT = Path(trl_trainers.__file__)
pytestmark = pytest.mark.filterwarnings("ignore")  # trl's own


@pytest.mark.parametrize("kind", KINDS)
def test_a_trainer_of_trl_goes_on_from_a_checkpoint(kind, tmp_path):
    whole = train(tmp_path / "runs", kind)
    steps = whole.state.max_steps
    epoch = steps // EPOCHS
    if "GRPO" in kind:
        assert steps == EPOCHS * RECORDS * 2  # each of the prompts, twice
        chosen = 4, epoch + 6
    else:
        assert steps == EPOCHS * STEPS
        chosen = 3, epoch + 2
    for step in chosen:
        resumed = train(tmp_path / "runs", kind, str(tmp_path / "runs" / f"checkpoint-{step}"))
        assert resumed.state.max_steps == steps
        same = [torch.equal(one, other) for one, other in zip(weights(resumed), weights(whole), strict=True)]
        assert all(same)


@pytest.mark.parametrize("kind", ["Trainer", "SFT", "DPO of a stream"])
def test_a_trainer_that_is_killed_at_any_step_ends_with_the_same_weights(kind, tmp_path):
    def run(name, *step):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        return programs("torch").run(SCRIPT, kind, *step, folder=folder), folder / "weights.npz"

    def found(path):
        with np.load(path) as file:
            return [file[name] for name in file.files]

    done, path = run("whole")
    assert done.returncode == 0, done.stderr
    whole = found(path)
    dice = random.Random(kind)
    for number in range(few_or_many(1, 10)):
        for epoch in range(EPOCHS):
            step = dice.randrange(epoch * STEPS, (epoch + 1) * STEPS)
            name = f"{number}-{epoch}"
            died, _ = run(name, step)
            assert died.returncode == 3, died.stderr
            done, path = run(name)
            assert done.returncode == 0, done.stderr
            assert all(map(np.array_equal, found(path), whole)), step


@pytest.mark.parametrize("kind", ["SFT", *few_or_many([], ["Trainer", "DPO of a stream"])])
def test_a_trainer_that_is_killed_inside_its_saves_ends_with_the_same_weights(kind, tmp_path):
    (tmp_path / "start").mkdir()
    points = killed(
        tmp_path / "start", SCRIPT, [kind], result="weights.npz", watched="runs", framework="torch"
    )
    assert points >= {"half a file", "empty file", "rename", "rmdir"}


def test_what_trl_would_prepare_of_a_stream_is_refused(tmp_path, monkeypatch):
    masked = trl_trainers.TOKENS.fields("input_ids").map(
        lambda row: {"input_ids": row["input_ids"][:4], "completion_mask": row["input_ids"][:4] > 9}
    )
    for data, more, message in [
        (trl_trainers.TOKENS, {"packing": True}, "packing=True"),
        (masked, {}, "completion_mask trl makes labels"),
        (trl_trainers.CHATS, {}, "not tokenised"),
    ]:
        monkeypatch.setitem(KINDS, "refused", (*KINDS["SFT"][:2], lambda data=data: data.stream(), {}))
        with pytest.raises(ConfigurationError, match=message):
            train(tmp_path, "refused", **more)
