"""Trainers name the epoch that they begin: that one is read, or the rest of the one that a cursor is in."""

import itertools
import pickle
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import yogadl
from yogadl.adapters.torch import BatchSampler, Dataset, IterableDataset, Sampler
from yogadl.errors import ConfigurationError

RECORDS, BATCH = 23, 4


NUMBERS = yogadl.from_source({"x": np.arange(RECORDS, dtype=np.float32)}, "numbers")


def opened(**options):
    return NUMBERS.stream(shuffle=True, shuffle_seed=5, **options)


@pytest.fixture
def stream():
    return opened()


def order(stream, epoch):
    return stream.indices(epoch).tolist()


def loader_of(kind, stream, workers=0, **options):
    """Return a loader, and what a trainer calls set_epoch of."""
    if kind == "iterable":
        dataset = IterableDataset(stream, BATCH)
        return DataLoader(dataset, batch_size=None, num_workers=workers, **options), dataset
    dataset = Dataset(NUMBERS)
    if kind == "sampler":
        sampler = Sampler(stream)
        return DataLoader(dataset, BATCH, sampler=sampler, num_workers=workers, **options), sampler
    batches = BatchSampler(stream, BATCH)
    return DataLoader(dataset, batch_sampler=batches, num_workers=workers, **options), batches


def ids(loader):
    return [int(x) for batch in loader for x in batch["x"]]


KINDS = ["iterable", "sampler", "batch sampler"]
WORKERS = [{}, {"workers": 2}, {"workers": 2, "persistent_workers": True}]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", WORKERS, ids=str)
def test_an_epoch_that_is_named_is_read(stream, kind, options):
    loader, named = loader_of(kind, stream, **options)
    for epoch in (2, 2, 0, 1):
        named.set_epoch(epoch)
        named.set_epoch(epoch)  # as Accelerate does, beside the Trainer
        assert ids(loader) == order(stream, epoch)
    assert ids(loader) == order(stream, 2)  # the next one, if none is named
    with pytest.raises(ConfigurationError, match="epoch"):
        named.set_epoch(-1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", WORKERS[:2], ids=str)
@pytest.mark.parametrize("ahead", [0, -1, 3])
def test_a_stream_that_goes_on_at_a_cursor_goes_on_there(stream, kind, options, ahead):
    cursor = stream.at(1, 8).state_dict()
    resumed = opened(cursor=cursor)
    loader, named = loader_of(kind, resumed, **options)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        named.set_epoch(1 + ahead)
    assert [str(one.message).split(",")[0] for one in said] == (
        [f"the trainer begins its epoch {1 + ahead}"] if ahead else []
    )
    assert ids(loader) == order(stream, 1)[8:]
    for epoch in (2, 3):
        named.set_epoch(epoch + ahead)
        assert ids(loader) == order(stream, epoch)
    named.set_epoch(1 + ahead)
    assert ids(loader) == order(stream, 1)[8:]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("named_epoch", [0, 1])
def test_a_cursor_at_an_epochs_end_is_in_either(stream, kind, named_epoch):
    resumed = opened(cursor=stream.at(0, RECORDS).state_dict())
    loader, named = loader_of(kind, resumed)
    named.set_epoch(named_epoch)
    assert ids(loader) == (order(stream, 1) if named_epoch else [])


@pytest.mark.parametrize("load", ["load_state_dict", "set_state"])
def test_a_sampler_that_loads_a_cursor_counts_from_there(stream, load):
    loader, sampler = loader_of("sampler", stream)
    sampler.set_epoch(0)
    assert ids(loader) == order(stream, 0)
    getattr(sampler, load)(stream.at(4, 20).state_dict())
    with pytest.warns(UserWarning, match="the trainer begins its epoch 1, and the stream goes on in epoch 4"):
        sampler.set_epoch(1)
    assert ids(loader) == order(stream, 4)[20:]
    sampler.set_epoch(2)
    assert ids(loader) == order(stream, 5)


def test_copies_count_as_their_original(stream):
    resumed = opened(cursor=stream.at(1, 8).state_dict())
    for kind in KINDS:
        _, named = loader_of(kind, resumed)
        with pytest.warns(UserWarning, match="the trainer begins its epoch 0"):
            named.set_epoch(0)
        copied = pickle.loads(pickle.dumps(named))
        copied.set_epoch(1)
        assert np.concatenate([np.atleast_1d(_plain(item)) for item in copied]).tolist() == order(stream, 2)


def _plain(item):
    return item["x"].int().numpy() if isinstance(item, dict) else item


def flat(batches):
    return list(itertools.chain.from_iterable(batches))


class Model(torch.nn.Module):
    """Notes what it is trained on."""

    def __init__(self, seen):
        super().__init__()
        self.seen = [seen]  # not a module's
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x):
        self.seen[0].append([int(one) for one in x])
        return {"loss": (self.weight * x).mean()}


@pytest.mark.parametrize("kind", ["iterable", "sampler"])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_trainer_of_transformers_goes_on_in_the_second_epoch(stream, tmp_path, kind, workers):
    """It skips what it has read, in the epoch that it names."""
    from transformers import Trainer, TrainingArguments
    from transformers.utils import logging

    logging.set_verbosity_error()

    class Sampled(Trainer):
        def _get_train_sampler(self, *_):
            return None if kind == "iterable" else Sampler(stream)

    def train(checkpoint=None):
        seen = []
        arguments = TrainingArguments(
            tmp_path / "runs", num_train_epochs=3, per_device_train_batch_size=BATCH, save_steps=8,
            logging_strategy="no", disable_tqdm=True, remove_unused_columns=False, report_to=[], use_cpu=True,
            dataloader_num_workers=workers, save_strategy="no" if checkpoint else "steps",
        )  # fmt: skip
        data = IterableDataset(stream) if kind == "iterable" else Dataset(NUMBERS)
        Sampled(Model(seen), arguments, train_dataset=data).train(resume_from_checkpoint=checkpoint)
        return seen

    whole = train()
    assert len(whole) == 18
    if kind == "sampler" or not workers:  # workers make batches of their own records
        assert flat(whole) == [number for epoch in range(3) for number in order(stream, epoch)]
    else:
        epochs = [sorted(flat(whole[first : first + 6])) for first in (0, 6, 12)]
        assert epochs == [list(range(RECORDS))] * 3
        assert whole[:6] != whole[6:12]
    assert train(str(tmp_path / "runs" / "checkpoint-8")) == whole[8:]


@pytest.mark.parametrize("kind", KINDS)
def test_a_loader_that_accelerate_prepares_goes_on_at_its_cursor(stream, kind):
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    resumed = opened(cursor=stream.at(1, 8).state_dict())
    loader, _ = loader_of(kind, resumed)
    config = DataLoaderConfiguration(dispatch_batches=False)
    loader = Accelerator(cpu=True, dataloader_config=config).prepare(loader)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            found += ids(loader)
    assert found == order(stream, 1)[8:] + order(stream, 2)
