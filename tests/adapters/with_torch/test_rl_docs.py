"""The pages about GRPO, verl and axolotl run; stand-ins are there for the last two, which are too large."""

import importlib.util
import itertools
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pages
import pytest
import torch
import transformers
import trl_tickets
from programs import programs
from torch.utils.data import SequentialSampler
from torchdata.stateful_dataloader import StatefulDataLoader
from trl_trainers import TOKENS

import yogadl

SCRIPT = Path(trl_tickets.__file__)
RECORDS, BATCH, EPOCHS = 7, 2, 3


@pytest.mark.parametrize("per_generation", [1, 2])
def test_each_prompt_that_comes_as_a_ticket_is_trained_on_once_whatever_fails_or_is_killed(
    per_generation, tmp_path
):
    def run(*step):
        done = programs("torch").run(SCRIPT, "howto/trl-grpo.md", 9, per_generation, *step, folder=tmp_path)
        path = tmp_path / "used"
        used = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        path.unlink(missing_ok=True)
        return done, used

    died, before = run(4)
    assert died.returncode == 3, died.stderr
    assert [step for step, *_ in before] == [1, 2, 3]  # step 3 has the newest checkpoint
    done, after = run()
    assert done.returncode == 0, done.stderr
    assert [step for step, *_ in after] == [4, 5, 6, 7, 8, 9]
    ended = [tuple(place) for _, places, _ in before + after for place in places]
    failed = [tuple(place) for _, _, places in before + after for place in places]
    assert len(failed) >= 2
    trained = list(ended)
    for place in failed:
        trained.remove(place)
    state = json.loads((tmp_path / "runs" / "checkpoint-9" / "tickets.json").read_text())
    left = [tuple(place) for place in state["open"]]
    following = tuple(state["next"])
    given = itertools.takewhile(lambda place: place < following, itertools.product(range(9), range(7)))
    assert sorted(trained + left) == list(given)


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
