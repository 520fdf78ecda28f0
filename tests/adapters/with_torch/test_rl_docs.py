"""The pages about verl and axolotl run against stand-ins of these, which are too large to install here."""

import importlib.util
import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pages
import pytest
import torch
import transformers
from torch.utils.data import SequentialSampler
from torchdata.stateful_dataloader import StatefulDataLoader
from trl_trainers import TOKENS

import yogadl

RECORDS, BATCH, EPOCHS = 7, 2, 3


def fetched(config, files):
    """Return the dataset as verl 0.9.1 makes it."""
    dataset = pages.run("howto/verl.md", pages.blocks("howto/verl.md"))["Prompts"]
    assert issubclass(dataset, torch.utils.data.Dataset)
    return dataset(data_files=files, tokenizer=None, processor=None, config=config, max_samples=-1)


def loader_of(dataset, workers=0):
    """Return the loader of verl 0.9.1 for `data.shuffle=False`; its batches are lists of rows here."""
    order = SequentialSampler(dataset)
    return StatefulDataLoader(
        dataset, BATCH, sampler=order, drop_last=True, collate_fn=list, num_workers=workers
    )


@pytest.mark.filterwarnings("ignore:'set_vital'")  # torchdata's
@pytest.mark.parametrize("workers", [0, 2])
def test_the_dataset_of_verl_goes_on_at_each_batch(workers, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sums = [
        {
            "prompt": [{"role": "user", "content": f"{n} + 1"}],
            "data_source": "sums",
            "reward_model": {"style": "rule", "ground_truth": str(n + 1)},
            "extra_info": {"split": "train", "level": n % 2},
        }
        for n in range(RECORDS)
    ]
    yogadl.open_storage("caches").submit(sums, "sums", "1")
    dataset = fetched({"seed": 3}, ["caches", "sums", "1", EPOCHS])
    assert len(dataset) == EPOCHS * RECORDS
    for item, row in enumerate(map(dataset.__getitem__, range(len(dataset)))):
        expected = sums[row["index"]]
        assert {name: row[name] for name in expected} == expected
        assert row["raw_prompt"] == expected["prompt"]
        assert row["dummy_tensor"].dtype == torch.uint8
        assert sorted(dataset.indices[item // RECORDS * RECORDS :][:RECORDS]) == list(range(RECORDS))

    def seen(batches):
        return [row["index"] for batch in batches for row in batch]

    whole = seen(loader_of(dataset, workers))
    assert whole == dataset.indices.tolist()[: len(whole)]
    assert len(whole) == EPOCHS * RECORDS // BATCH * BATCH
    for step in [1, 4, 7, 9] if workers == 0 else [4]:
        loader = loader_of(dataset, workers)
        batches = iter(loader)
        before = seen(next(batches) for _ in range(step))
        torch.save(loader.state_dict(), "data.pt")
        again = loader_of(fetched({"seed": 3}, ["caches", "sums", "1", EPOCHS]), workers)
        again.load_state_dict(torch.load("data.pt", weights_only=False))
        assert before + seen(again) == whole


@dataclass
class TrainDatasetMeta:
    """What the page uses of axolotl 0.19.0's `axolotl.common.datasets`."""

    train_dataset: Any
    eval_dataset: Any = None
    total_num_steps: int | None = None


class BasePlugin:
    """What the page uses of axolotl 0.19.0's `axolotl.integrations.base`."""


class AxolotlTrainer(transformers.Trainer):
    """Stands for axolotl 0.19.0's `axolotl.core.trainers.base.AxolotlTrainer`."""


def test_the_plugin_of_axolotl_returns_versions_and_an_exact_trainer(tmp_path, monkeypatch):
    if importlib.util.find_spec("axolotl") is None:
        for name, value in [
            ("axolotl.common.datasets", TrainDatasetMeta),
            ("axolotl.integrations.base", BasePlugin),
            ("axolotl.core.trainers.base", AxolotlTrainer),
        ]:
            module = ModuleType(name)
            setattr(module, value.__name__, value)
            monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.chdir(tmp_path)
    yogadl.open_storage("caches").submit(TOKENS, "tokens", "1")
    entry = SimpleNamespace(path="caches", name="tokens", revision="1")
    plugin = pages.run("howto/axolotl.md", pages.blocks("howto/axolotl.md"))["Cached"]()
    config = SimpleNamespace(datasets=[entry], test_datasets=None, rl=None)
    meta = plugin.load_datasets(config, preprocess=False)
    assert (meta.eval_dataset, meta.total_num_steps) == (None, None)
    assert meta.train_dataset[4]["input_ids"] == TOKENS[4]["input_ids"].tolist()
    config.test_datasets = [entry]
    assert len(plugin.load_datasets(config, preprocess=True).eval_dataset) == len(TOKENS)
    assert plugin.get_trainer_cls(config).__name__ == "ExactAxolotlTrainer"
    config.rl = "grpo"
    assert plugin.get_trainer_cls(config) is None
