"""A Trainer that `exact` made resumes where it stopped, with the weights of one that never did."""

import shutil
import warnings

import numpy as np
import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.utils import logging

import yogadl
from yogadl.adapters.datasets import make_iterable_dataset
from yogadl.adapters.torch import Dataset, make_dataloader
from yogadl.adapters.transformers import exact
from yogadl.errors import ConfigurationError, CursorError

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
    for step in range(1, steps, 1 if options and "workers" not in data else 4):
        folder = tmp_path / str(step)
        begun, _, _ = train(folder, DATA[data](), stop=step + 1, **options)
        seen, resumed_weights, resumed = train(folder, DATA[data](), resume=True, **options)
        assert begun[: len(whole) - len(seen)] + seen == whole
        assert same(resumed_weights, weights)
        assert resumed.state.max_steps == steps
        assert resumed.state.global_step == steps
        assert epochs_logged(resumed) == epochs_logged(trainer)


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_leave_no_trace(tmp_path, workers):
    options = {"dataloader_num_workers": workers, "dataloader_prefetch_factor": 2}
    whole, _, _ = train(tmp_path / "runs", NUMBERS, **options)
    assert train(tmp_path / "without", NUMBERS)[0] == whole
    checkpoint = str(tmp_path / "runs" / "checkpoint-8")
    seen, weights, _ = train(tmp_path / "runs", NUMBERS, checkpoint, **options)
    assert seen == whole[8:]
    seen_without, weights_without, _ = train(tmp_path / "runs", NUMBERS, checkpoint)
    assert seen_without == seen
    assert same(weights_without, weights)


@pytest.mark.parametrize(
    ("options", "steps"),
    [({"num_train_epochs": 1.5}, 9), ({"max_steps": 8}, 8), ({"max_steps": 20}, 20)],
    ids=str,
)
def test_it_ends_at_the_same_step(tmp_path, options, steps):
    whole, weights, trainer = train(tmp_path, NUMBERS, **options)
    assert len(whole) == steps == trainer.state.max_steps
    for step in (3, 6, 7):
        seen, resumed_weights, resumed = train(
            tmp_path, NUMBERS, str(tmp_path / f"checkpoint-{step}"), **options
        )
        assert seen == whole[step:]
        assert same(resumed_weights, weights)
        assert resumed.state.max_steps == steps


@pytest.mark.parametrize("size", [1, 3, 23])
@pytest.mark.parametrize("accumulated", [1, 2])
def test_other_batches_go_on_at_the_same_record(tmp_path, size, accumulated):
    begun, _, _ = train(tmp_path, NUMBERS, stop=9)
    changed = {"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulated}
    seen, _, trainer = train(tmp_path, NUMBERS, str(tmp_path / "checkpoint-8"), **changed)
    read = flat(begun[:8]) + flat(seen)
    assert [sorted(read[first : first + RECORDS]) for first in (0, RECORDS, 2 * RECORDS)] == (
        [list(range(RECORDS))] * EPOCHS
    )
    of_rest, of_epoch = -(-15 // size), -(-RECORDS // size)
    left = -(-of_rest // accumulated) + -(-of_epoch // accumulated)
    assert trainer.state.global_step == trainer.state.max_steps == 8 + left
    assert trainer.state.epoch == EPOCHS


def test_a_sequential_order_is_one(tmp_path):
    seen, _, _ = train(tmp_path, torch_items(), train_sampling_strategy="sequential", num_train_epochs=1)
    assert flat(seen) == list(range(RECORDS))


def test_the_seed_of_the_data_is_that_of_the_arguments(tmp_path):
    orders = [flat(train(tmp_path / str(n), NUMBERS, num_train_epochs=1, data_seed=n)[0]) for n in range(2)]
    assert orders == [NUMBERS.stream(shuffle=True, shuffle_seed=n).indices(0).tolist() for n in range(2)]


def test_a_stream_that_begins_at_a_cursor_begins_there(tmp_path):
    stream = stream_of(cursor=stream_of().at(1, 8).state_dict())
    seen, _, trainer = train(tmp_path, stream)
    assert flat(seen) == stream_of().indices(1).tolist()[8:] + stream_of().indices(2).tolist()
    assert trainer.state.max_steps == trainer.state.global_step == 4 + 6
    resumed, _, _ = train(tmp_path, stream_of(), str(tmp_path / "checkpoint-3"))
    assert resumed == seen[3:]


def test_a_save_that_was_not_finished_is_passed_over(tmp_path):
    whole, _, _ = train(tmp_path, NUMBERS)
    (tmp_path / "checkpoint-18" / "trainer_state.json").unlink()
    (tmp_path / "checkpoint-17" / "trainer_state.json").write_text('{"global_')
    with pytest.warns(UserWarning, match="checkpoint-1[78] is passed over") as said:
        seen, _, _ = train(tmp_path, NUMBERS, True)
    assert len(said) == 2
    assert seen == whole[16:]
    for name in (17, 18):
        shutil.rmtree(tmp_path / f"checkpoint-{name}")
    train(tmp_path, NUMBERS, stop=1)
    (tmp_path / "checkpoint-1" / "trainer_state.json").unlink()
    with pytest.raises(CursorError, match="no whole checkpoint"):
        train(tmp_path, NUMBERS, str(tmp_path / "checkpoint-1"))
    with pytest.raises(CursorError, match="no whole checkpoint"):
        train(tmp_path, NUMBERS, str(tmp_path / "nothing"))


def test_a_folder_without_a_checkpoint_begins_anew(tmp_path):
    with pytest.warns(UserWarning, match="training begins anew"):
        seen, _, _ = train(tmp_path, NUMBERS, True, num_train_epochs=1)
    assert len(seen) == 6


def test_a_checkpoint_without_a_cursor_says_so(tmp_path):
    train(tmp_path, NUMBERS, stop=3)
    (tmp_path / "checkpoint-2" / "yogadl_cursor.json").unlink()
    for resume in (True, str(tmp_path / "checkpoint-2")):
        with pytest.raises(CursorError, match="has no cursor"):
            train(tmp_path, NUMBERS, resume)
    (tmp_path / "checkpoint-2" / "yogadl_cursor.json").write_text("{")
    with pytest.raises(CursorError, match="damaged"):
        train(tmp_path, NUMBERS, True)


def test_a_checkpoint_of_other_data_is_refused(tmp_path):
    train(tmp_path, stream_of(), stop=3)
    for data in (
        NUMBERS.stream(shuffle=True, shuffle_seed=6),
        NUMBERS[:22].stream(shuffle=True, shuffle_seed=5),
    ):
        with pytest.raises(CursorError):
            train(tmp_path, data, True)
    with pytest.raises(CursorError):
        train(tmp_path, torch_items()[:22], True)


def tokens():
    return [item | {"input_ids": [1, 2]} for item in torch_items()]


def items():
    yield from torch_items()


class Forwards(torch.utils.data.IterableDataset):
    def __iter__(self):
        return items()

    def __len__(self):
        return RECORDS


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (Forwards, {}, "only be read forwards"),
        (
            tokens,
            {"train_sampling_strategy": "group_by_length"},
            "can't be resumed exactly",
        ),
        (lambda: make_dataloader(stream_of(), BATCH, epochs=2), {}, "2 epochs at a time"),
        (lambda: make_dataloader(stream_of(shard_rank=1, num_shards=2), BATCH), {}, "rank 0 of 1"),
        (lambda: stream_of(shard_rank=1, num_shards=2), {}, "rank 0 of 1"),
        (lambda: NUMBERS.sampled([1] * RECORDS), {}, "other rows in each epoch"),
        (NUMBERS[:0].stream, {}, "no records"),
        (lambda: yogadl.from_source([1, 2, 3]).stream(), {}, "are dicts"),
    ],
)
def test_what_it_does_not_take_says_what_to_pass(tmp_path, data, options, message):
    with pytest.raises(ConfigurationError, match=message):
        train(tmp_path, data(), **options)


def test_a_trainer_with_a_loader_of_its_own_is_refused(tmp_path):
    class Own(Trainer):
        def get_train_dataloader(self):
            return torch.utils.data.DataLoader(torch_items(), BATCH)

    with pytest.raises(ConfigurationError, match="get_train_dataloader of ExactOwn returns a DataLoader"):
        train(tmp_path, NUMBERS, kind=Own)
    with pytest.raises(ConfigurationError, match="subclass"):
        exact(Model)
    assert exact(exact(Trainer)) is exact(Trainer)


class SavesBeforeStep(TrainerCallback):
    """Saves when the batches of a step are there and it is not done, as a Trainer does at SIGTERM."""

    def __init__(self, step):
        self.step, self.trainer = step, None

    def on_step_begin(self, args, state, control, **_):
        if state.global_step == self.step:
            self.trainer._save_checkpoint(self.trainer.model, None)
            raise Stopped


@pytest.mark.parametrize("step", [1, 2, 4])
def test_a_save_before_a_step_is_done_is_before_its_records(tmp_path, step):
    options = {"gradient_accumulation_steps": 2, "save_strategy": "no"}
    whole, _, _ = train(tmp_path, NUMBERS, **options)
    seen = []
    saves = SavesBeforeStep(step)
    arguments = TrainingArguments(
        tmp_path / "stopped", num_train_epochs=EPOCHS, per_device_train_batch_size=BATCH, report_to=[],
        use_cpu=True, disable_tqdm=True, **options,
    )  # fmt: skip
    saves.trainer = exact(Trainer)(Model(seen), arguments, train_dataset=NUMBERS, callbacks=[saves])
    with pytest.raises(Stopped):
        saves.trainer.train()
    resumed, _, trainer = train(tmp_path / "stopped", NUMBERS, True, **options)
    assert seen + resumed == whole
    assert trainer.state.global_step == 9


def test_a_loader_that_was_read_begins_where_its_stream_does(tmp_path):
    loader = make_dataloader(stream_of(), BATCH)
    whole, _, _ = train(tmp_path / "one", loader, num_train_epochs=1)
    for number in range(2):
        with pytest.warns(UserWarning, match="was read before"):
            seen, _, _ = train(tmp_path / str(number), loader, num_train_epochs=1)
        assert seen == whole
    assert (
        train(tmp_path / "one", loader, str(tmp_path / "one" / "checkpoint-2"), num_train_epochs=1)[0]
        == (whole[2:])
    )


def test_other_data_of_the_same_length_is_told(tmp_path, storage):
    columns = {"x": np.arange(RECORDS, dtype=np.float32), "label": np.arange(RECORDS) % 3}
    first = storage.submit(columns, "numbers", "1")
    other = storage.submit({**columns, "x": columns["x"][::-1].copy()}, "numbers", "2")
    train(tmp_path / "runs", first, stop=3)
    with pytest.warns(UserWarning, match="another fingerprint"):
        train(tmp_path / "runs", other, str(tmp_path / "runs" / "checkpoint-2"), stop=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".*pin_memory")
        train(tmp_path / "runs", first, str(tmp_path / "runs" / "checkpoint-2"))


@pytest.mark.parametrize(
    ("options", "steps"),
    [({"max_steps": 7}, 7), ({"num_train_epochs": 1.5}, 9), ({"num_train_epochs": 2}, 12)],
)
def test_a_training_that_is_done_does_nothing_more(tmp_path, options, steps):
    _, weights, _ = train(tmp_path, NUMBERS, **options)
    for _ in range(2):
        seen, again, trainer = train(tmp_path, NUMBERS, True, **options)
        assert seen == []
        assert trainer.state.global_step == steps
        assert same(again, weights)


def test_a_dataset_of_a_stream_is_the_stream(tmp_path):
    seen, _, _ = train(tmp_path, make_iterable_dataset(stream_of()), num_train_epochs=1)
    assert flat(seen) == stream_of().indices(0).tolist()


def test_a_stream_is_no_data_to_evaluate(tmp_path):
    with pytest.raises(ConfigurationError, match="eval_dataset can't be a stream"):
        exact(Trainer)(
            Model([]),
            TrainingArguments(tmp_path, use_cpu=True),
            train_dataset=NUMBERS,
            eval_dataset=stream_of(),
        )
