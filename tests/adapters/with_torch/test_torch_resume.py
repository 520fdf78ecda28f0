"""Stopped at any batch of three epochs, every kind of training loop goes on with exactly what is left."""

import logging
from pathlib import Path

import numpy as np
import pages
import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

import yogadl
from yogadl.adapters import torch as yogadl_torch

# The frameworks warn of each other, and of what tests are: small.
pytestmark = pytest.mark.filterwarnings("ignore")

EPOCHS, BATCH = 3, 64
RECORDS = 150  # two full batches and a short one


@pytest.fixture(scope="module")
def ref():
    images = np.zeros((RECORDS, 8, 8), np.float32)
    images[:, 0, 0] = np.arange(RECORDS)
    return yogadl.from_source({"image": images, "label": np.arange(RECORDS) % 10}, fingerprint="digits")


@pytest.fixture(scope="module")
def page(ref):
    """The names of the page's scripts: what comes before a trainer is made."""
    names = {"torch": torch, "yogadl_torch": yogadl_torch, "ref": ref, "Path": Path}
    lightning, transformers = pages.blocks("howto/pytorch.md", "**Lightning.**", "**HF Trainer.**")
    model = pages.blocks("howto/pytorch.md", "All of them train this model")
    code = [*model, lightning.split("saving =")[0], transformers.split("arguments =")[0]]
    return pages.run("howto/pytorch.md", code, **names)


def make_loader(ref, workers=0, **options):
    stream = ref.stream(shuffle=True, shuffle_seed=7)
    return yogadl_torch.make_dataloader(stream, BATCH, workers, **options)


def ids(batch):
    return batch["image"][:, 0, 0].int().tolist()


class Seen:
    """What a model is trained on."""

    def __init__(self, model):
        self.batches = []

        class Watched(model):
            def forward(inner, image, label):
                self.batches.append(image[:, 0, 0].int().tolist())
                return super().forward(image, label)

        self.model = Watched


# Loops of the user's.


def count_own_epochs(loader):
    """Yield the batches of a loop that reads in the state which epoch it is in, and the state after each."""
    for _ in range(loader.state_dict()["epoch"], EPOCHS):
        for batch in loader:
            yield ids(batch), loader.state_dict()
        yield None, loader.state_dict()


def begin_epochs(loader, done=0):
    """Yield those of a loop that counts steps, and begins its next epoch when it goes on."""
    count = len(loader)
    while done < EPOCHS * count:
        batches = iter(loader)
        for batch in batches:
            done += 1
            yield ids(batch), loader.state_dict()
            if done % count == 0:
                break  # as a trainer that knows the length


def stops(steps, workers):
    """Return the numbers of the steps to stop after: with workers one of each kind, as they start slowly."""
    return (2, 3, 4) if workers else range(len(steps))  # within an epoch, its last batch, what follows


def delivered(steps):
    return [batch for batch, _ in steps if batch is not None]


WAYS = pytest.mark.parametrize(("workers", "drop"), [(0, False), (0, True), (2, False)])


@WAYS
def test_a_plain_loop_that_counts_its_epochs(ref, workers, drop):
    def make():
        return make_loader(ref, workers, drop_remainder=drop)

    steps = [(None, make().state_dict()), *count_own_epochs(make())]
    assert len(delivered(steps)) == EPOCHS * len(make())
    for number in stops(steps, workers):
        _, state = steps[number]
        loader = make()
        loader.load_state_dict(state)
        assert delivered(count_own_epochs(loader)) == delivered(steps[number + 1 :])


@WAYS
def test_a_plain_loop_that_begins_its_next_epoch(ref, workers, drop):
    def make():
        return make_loader(ref, workers, drop_remainder=drop, skip_finished_epoch=True)

    steps = [(None, make().state_dict()), *begin_epochs(make())]
    assert len(delivered(steps)) == EPOCHS * len(make())
    for number in stops(steps, workers):
        _, state = steps[number]
        loader = make()
        loader.load_state_dict(state)
        assert delivered(begin_epochs(loader, number)) == delivered(steps[number + 1 :])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["sampler", "batch sampler", "iterable"])
def test_stateful_data_loader(ref, kind, workers):
    def make():
        stream, dataset = ref.stream(shuffle=True, shuffle_seed=7), yogadl_torch.Dataset(ref)
        if kind == "sampler":
            sampler = yogadl_torch.Sampler(stream)
            return StatefulDataLoader(dataset, BATCH, sampler=sampler, num_workers=workers)
        if kind == "batch sampler":
            sampler = yogadl_torch.BatchSampler(stream, BATCH)
            return StatefulDataLoader(dataset, batch_sampler=sampler, num_workers=workers)
        dataset = yogadl_torch.IterableDataset(stream, BATCH)
        return StatefulDataLoader(dataset, batch_size=None, num_workers=workers)

    def train(loader, first=0):
        for epoch in range(first, EPOCHS):
            for batch in loader:
                yield ids(batch), (epoch, loader.state_dict())

    steps = [(None, (0, make().state_dict())), *train(make())]
    assert len(steps) == 1 + EPOCHS * 3
    for number in stops(steps, workers):
        _, (epoch, state) = steps[number]
        loader = make()
        loader.load_state_dict(state)
        assert delivered(train(loader, epoch)) == delivered(steps[number + 1 :])


def test_accelerate(ref, tmp_path):
    from accelerate import Accelerator

    def train(folder=None):
        accelerator = Accelerator(cpu=True)
        loader = make_loader(ref)
        accelerator.register_for_checkpointing(loader)
        if folder is not None:
            accelerator.load_state(folder)
        accelerator.save_state(tmp_path / "0")
        yield None
        for _ in range(loader.state_dict()["epoch"], EPOCHS):
            for batch in loader:
                yield ids(batch), accelerator

    def all_of(run):
        return [step[0] for step in run if step is not None]

    whole, run = [], train()
    next(run)
    for number, (batch, accelerator) in enumerate(run, 1):
        whole.append(batch)
        accelerator.save_state(tmp_path / str(number))
    assert len(whole) == EPOCHS * 3
    for number in range(len(whole) + 1):
        assert all_of(train(tmp_path / str(number))) == whole[number:]


# Trainers.


@pytest.mark.parametrize("limit", [{"max_epochs": EPOCHS}, {"max_epochs": -1, "max_steps": 8}], ids=str)
def test_lightning(page, ref, tmp_path, limit):
    from lightning import Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    def train(path=None, callbacks=()):
        seen = Seen(page["Classifier"])
        module = page["Module"]()
        module.model = seen.model()
        trainer = Trainer(
            **limit,
            accelerator="cpu",
            callbacks=list(callbacks),
            default_root_dir=tmp_path,
            enable_checkpointing=bool(callbacks),
            enable_model_summary=False,
            enable_progress_bar=False,
            logger=False,
        )
        data = page["DataModule"](ref.stream(shuffle=True, shuffle_seed=7), BATCH)
        trainer.fit(module, data, ckpt_path=path)
        trainer.save_checkpoint(tmp_path / "end.ckpt")
        return seen.batches, trainer.global_step

    saves = [
        ModelCheckpoint(tmp_path / "steps", every_n_train_steps=1, save_top_k=-1),
        ModelCheckpoint(tmp_path / "epochs", save_top_k=-1),  # as it is by default, at the ends of epochs
    ]
    whole, count = train(callbacks=saves)
    assert len(whole) == count
    (tmp_path / "end.ckpt").rename(tmp_path / "epochs" / "end.ckpt")
    found = [*(tmp_path / "steps").iterdir(), *(tmp_path / "epochs").iterdir()]
    assert len(found) == count + count // 3 + (1 if count % 3 == 0 else 2)
    for path in found:
        done = torch.load(path, weights_only=False)["global_step"]
        assert train(path) == (whole[done:], count), path


@pytest.mark.parametrize("drop", [False, True])
def test_hf_trainer(page, ref, tmp_path, drop):
    from transformers import Trainer, TrainingArguments
    from transformers.utils import logging

    logging.set_verbosity_error()

    def train(strategy, checkpoint=None):
        seen = Seen(page["Classifier"])
        arguments = TrainingArguments(
            tmp_path / strategy,
            num_train_epochs=EPOCHS,
            save_strategy=strategy,
            save_steps=1,
            save_only_model=False,
            logging_strategy="no",
            disable_tqdm=True,
            report_to=[],
            use_cpu=True,
        )
        if checkpoint is not None:
            arguments.save_strategy = "no"
        loader = make_loader(ref, drop_remainder=drop)
        trainer = page["exact"](Trainer)(seen.model(), arguments, train_dataset=loader)
        trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
        return seen.batches, trainer.state.global_step

    count = EPOCHS * (2 if drop else 3)
    for strategy, saved in [("epoch", EPOCHS)] if drop else [("steps", count), ("epoch", EPOCHS)]:
        whole, steps = train(strategy)
        assert len(whole) == steps == count
        found = list((tmp_path / strategy).glob("checkpoint-*"))
        assert len(found) == saved
        for checkpoint in found:
            done = int(checkpoint.name.removeprefix("checkpoint-"))
            assert train(strategy, checkpoint) == (whole[done:], count), checkpoint


def test_an_empty_rest_of_an_epoch_is_told_and_names_the_option(ref, caplog):
    """That of `make_dataloader` has the contract of adapters."""
    caplog.set_level(logging.WARNING, "yogadl")
    stream = ref.stream(cursor=ref.stream().cursor(len(ref)))
    for make in (
        lambda: yogadl_torch.IterableDataset(stream, 4),
        lambda: yogadl_torch.Sampler(stream),
        lambda: yogadl_torch.BatchSampler(stream, 4),
    ):
        caplog.clear()
        loader = make()
        assert not caplog.records
        assert [len(list(loader)) > 0 for _ in range(2)] == [False, True]
        (told,) = caplog.records
        assert "skip_finished_epoch=True" in told.message
