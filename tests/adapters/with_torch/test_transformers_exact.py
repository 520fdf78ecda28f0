"""A Trainer that `exact` made resumes where it stopped, with the weights of one that never did."""

import warnings

import numpy as np
import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.utils import logging

import yogadl
from yogadl.adapters.torch import Dataset, make_dataloader
from yogadl.adapters.transformers import exact

RECORDS, BATCH, EPOCHS = 23, 4, 3
NUMBERS = yogadl.from_source(
    {"x": np.arange(RECORDS, dtype=np.float32), "label": np.arange(RECORDS) % 3}, "numbers"
)
logging.set_verbosity_error()


class Model(torch.nn.Module):
    """A model with dropout, whose weights depend on the order of records and on torch's random numbers."""

    def __init__(self, seen=None):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(1, 3)
        self.seen = seen

    def forward(self, x, label=None, labels=None):  # a collator's name of it is `labels`
        if self.training:
            self.seen.append([int(number) for number in x])
        scores = torch.nn.functional.dropout(self.layer(x[:, None] / RECORDS), 0.3)
        return {
            "loss": torch.nn.functional.cross_entropy(scores, label if labels is None else labels),
            "scores": scores,
        }


def stream_of(**options):
    return NUMBERS.stream(shuffle=True, shuffle_seed=5, **options)


def torch_items():
    return [{"x": float(number), "label": int(number % 3)} for number in range(RECORDS)]


DATA = {
    "reference": lambda: NUMBERS,
    "dataset": lambda: NUMBERS.to_hf().map(lambda row: {"x": row["x"]}),
    "list": torch_items,
    "torch": lambda: Dataset(NUMBERS),
    "stream": stream_of,
    "mapped": lambda: stream_of().map(lambda row: row),
    "loader": lambda: make_dataloader(stream_of(), BATCH),
    "loader with workers": lambda: make_dataloader(stream_of(), BATCH, 2),
}


class Stopped(Exception):
    """What stops a training."""


class StopAt(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **_):
        if state.global_step == self.step:
            raise Stopped


def train(folder, data, resume=None, stop=None, kind=Trainer, **options):
    """Train, and return the numbers of the records of each batch, the weights and the trainer."""
    seen = []
    given = {
        "num_train_epochs": EPOCHS, "per_device_train_batch_size": BATCH, "save_steps": 1, "report_to": [],
        "logging_steps": 1, "disable_tqdm": True, "use_cpu": True, "learning_rate": 0.1,
    } | options  # fmt: skip
    arguments = TrainingArguments(folder, **given)
    trainer = exact(kind)(Model(seen), arguments, train_dataset=data, callbacks=[StopAt(stop)])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "TypedStorage|.*pin_memory")
        try:
            trainer.train(resume_from_checkpoint=resume)
        except Stopped:
            pass
    return seen, [weight.detach().clone() for weight in trainer.model.parameters()], trainer


def flat(batches):
    return [number for batch in batches for number in batch]


def same(weights, others):
    return all(torch.equal(one, other) for one, other in zip(weights, others, strict=True))


def epochs_logged(trainer):
    return [entry["epoch"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 4}], ids=["", "accumulated"])
def test_it_goes_on_from_each_step(tmp_path, data, options):
    whole, weights, trainer = train(tmp_path / "whole", DATA[data](), **options)
    orders = [sorted(flat(whole[first : first + 6])) for first in (0, 6, 12)]
    assert orders == [list(range(RECORDS))] * EPOCHS
    if "stream" in data or "loader" in data:
        assert flat(whole) == [n for epoch in range(EPOCHS) for n in stream_of().indices(epoch).tolist()]
    steps = trainer.state.max_steps
    assert steps == (6 if options else 18)
    for step in range(1, steps, 1 if options else 4):
        folder = tmp_path / str(step)
        begun, _, _ = train(folder, DATA[data](), stop=step + 1, **options)
        seen, resumed_weights, resumed = train(folder, DATA[data](), resume=True, **options)
        assert begun[: len(whole) - len(seen)] + seen == whole
        assert same(resumed_weights, weights)
        assert resumed.state.max_steps == steps
        assert resumed.state.global_step == steps
        assert epochs_logged(resumed) == epochs_logged(trainer)
