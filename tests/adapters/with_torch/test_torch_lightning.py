"""The data module for Lightning: the stream is dealt out, and goes on wherever Lightning was stopped."""

import logging
import pickle

import numpy as np
import pytest
import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

import yogadl
from yogadl.adapters import torch as yogadl_torch
from yogadl.adapters.lightning import AtomicCheckpointIO, DataModule
from yogadl.errors import ConfigurationError

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.filterwarnings("error:.*(stream|shard)")]

RECORDS, SIZE, STEPS, EPOCHS = 333, 64, 6, 3
REF = yogadl.from_source({"x": np.arange(RECORDS, dtype=np.float32)[:, None], "id": np.arange(RECORDS)})
STREAM = REF.stream(shuffle=True, shuffle_seed=7)


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class StoppedError(Exception):
    pass


class Model(LightningModule):
    def __init__(self, stop=None):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(1, 1)
        self.stop, self.seen, self.validated = stop, [], 0

    def training_step(self, batch, number):
        if len(self.seen) == self.stop:
            raise StoppedError
        self.seen.append((self.trainer.current_epoch, number, batch["id"].tolist()))
        return (self.layer(batch["x"] / RECORDS) - 1).square().mean()

    def validation_step(self, batch, number):
        self.validated += 1

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


class Validated(DataModule):
    def val_dataloader(self):
        return yogadl_torch.make_dataloader(REF[:10].stream(), 10)


def trainer(folder=None, saving=None, **options):
    options = {"max_epochs": EPOCHS, "accelerator": "cpu", "logger": False, **options}
    if folder is None:
        options["enable_checkpointing"] = False
    else:
        options["callbacks"] = [
            ModelCheckpoint(folder, save_last=True, **(saving or {"every_n_train_steps": 5}))
        ]
        options["plugins"] = [AtomicCheckpointIO()]
    return Trainer(
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0, devices=1, **options
    )


def fit(folder, stop=None, saving=None, size=SIZE, data=DataModule, **options):
    """Train as a fresh process would, from the last checkpoint; return what a run that ends has done."""
    model, training = Model(stop), trainer(folder, saving, **options)
    try:
        training.fit(model, data(STREAM, size), ckpt_path="last")
    except StoppedError:
        return None
    weights = [weight.detach().numpy().copy() for weight in model.parameters()]
    return model.seen, weights, training.current_epoch, training.global_step, model.validated


def ids(seen):
    return [number for _, _, batch in seen for number in batch]


def orders(*epochs):
    return [number for epoch in epochs for number in STREAM.indices(epoch).tolist()]


@pytest.mark.parametrize("limits", [{}, {"max_epochs": -1, "max_steps": 18}, {"max_steps": 18}], ids=str)
@pytest.mark.parametrize(
    "saving", [{"every_n_train_steps": 1}, {"every_n_train_steps": 5}, {"every_n_epochs": 1}], ids=str
)
# Within an epoch, at its end, in the second epoch; several times, also where Lightning alone miscounts.
@pytest.mark.parametrize("stops", [(4,), (6, 6), (7, 3, 5)], ids=str)
def test_a_run_that_was_stopped_ends_as_one_that_was_not(stops, saving, limits, tmp_path):
    seen, weights, *counts = fit(tmp_path / "whole", saving=saving, **limits)
    assert ids(seen) == orders(0, 1, 2)
    for stop in stops:
        assert fit(tmp_path / "stopped", stop, saving, **limits) is None
    found, found_weights, *found_counts = fit(tmp_path / "stopped", None, saving, **limits)
    assert found == seen[-len(found) :]
    assert all(map(np.array_equal, found_weights, weights))
    assert found_counts == counts


@pytest.mark.parametrize("stop", [4, 6, 8])
def test_each_epoch_is_validated_once_after_a_stop_within_one(stop, tmp_path):
    assert fit(tmp_path / "whole", data=Validated)[-1] == EPOCHS
    assert fit(tmp_path / "stopped", stop, data=Validated) is None
    assert fit(tmp_path / "stopped", data=Validated)[-1] == EPOCHS


@pytest.mark.parametrize(("size", "batches"), [(32, [1, 11, 11]), (200, [1, 2, 2])])
def test_epochs_end_together_with_batches_of_another_size(size, batches, tmp_path):
    assert fit(tmp_path, 5 + 1) is None  # in the second epoch; saved after 5 batches of the first
    seen, _, last_epoch, *_ = fit(tmp_path, size=size)
    found = [epoch for epoch, _, _ in seen]
    assert [found.count(epoch) for epoch in range(EPOCHS)] == batches
    assert ids(seen) == orders(0)[5 * SIZE :] + orders(1, 2)
    assert last_epoch == EPOCHS


def test_a_new_trainer_begins_anew_and_one_that_has_trained_goes_on():
    data = DataModule(STREAM, SIZE)
    for _ in range(2):
        model = Model()
        trainer(max_epochs=1).fit(model, data)
        assert ids(model.seen) == orders(0)
    model, training = Model(), trainer(max_epochs=1)
    training.fit(model, data)
    training.fit_loop.max_epochs = 2
    training.fit(model, data)
    assert ids(model.seen) == orders(0, 1)


def test_a_loader_that_is_made_anew_for_each_epoch_goes_on():
    model = Model()
    trainer(reload_dataloaders_every_n_epochs=1).fit(model, DataModule(STREAM, SIZE))
    assert ids(model.seen) == orders(0, 1, 2)


def test_epochs_that_lightning_shortens_go_on_in_mid_epoch(tmp_path):
    shorter = {"limit_train_batches": 4, "saving": {"every_n_train_steps": 1}}
    seen = fit(tmp_path / "whole", **shorter)[0]
    assert ids(seen) == orders(0, 1)[: RECORDS + 4 * SIZE]  # the second has the two batches that were left
    assert fit(tmp_path / "stopped", 6, **shorter) is None
    found = ids(fit(tmp_path / "stopped", **shorter)[0])
    assert found == orders(1, 2)[: len(found)]


def test_a_stream_with_shards_is_read_as_it_is():
    model = Model()
    own = REF.stream(shuffle=True, shuffle_seed=7, shard_rank=1, num_shards=2, drop_shard_remainder=True)
    trainer(max_epochs=1).fit(model, DataModule(own, SIZE))
    assert ids(model.seen) == own.indices(0).tolist()


def test_it_takes_the_options_of_the_loader():
    data = DataModule(STREAM, SIZE, drop_remainder=True, transform=lambda batch: batch["id"])
    batches = list(data.train_dataloader())
    assert torch.cat(batches).tolist() == orders(0)[: 5 * SIZE]
    assert data.loader.stats().batches == 5


def test_it_is_picklable_with_its_place():
    data = DataModule(STREAM, SIZE)
    next(iter(data.train_dataloader()))
    again = pickle.loads(pickle.dumps(data))
    assert again.state_dict() == data.state_dict()
    assert again.state_dict()["cursor"]["position"] == SIZE


def test_a_checkpoint_of_an_epochs_end_is_one_of_the_next_epochs_beginning():
    data = DataModule(STREAM, SIZE)
    assert data.state_dict() == {}
    for _ in data.train_dataloader():
        pass
    cursor = data.state_dict()["cursor"]
    assert (cursor["epoch"], cursor["position"]) == (1, 0)


@pytest.mark.parametrize("option", ["epochs", "skip_finished_epoch", "batchsize"])
def test_what_lightning_decides_and_what_is_unknown_is_refused(option):
    with pytest.raises(ConfigurationError, match=option):
        DataModule(STREAM, SIZE, **{option: 1})


def test_a_reference_is_refused():
    with pytest.raises(ConfigurationError, match="stream"):
        DataModule(REF, SIZE)
