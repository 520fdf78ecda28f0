"""The examples of the page about PyTorch, and of the adapter's docstrings, run."""

import functools
import importlib
import itertools
import pkgutil
import subprocess
import sys
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import pages
import public_api
import pytest
import torch.distributed.checkpoint as dcp
from programs import programs

import yogadl
from yogadl.adapters import torch as adapter

MODULES = [
    *(
        importlib.import_module(f"yogadl.adapters.torch.{module.name}")
        for module in pkgutil.iter_modules(adapter.__path__)
    ),
    importlib.import_module("yogadl.adapters.lightning"),
]


def shorter(page, others):
    """Return the examples of a page with some texts, each of which is there once, replaced by others."""
    code = pages.blocks(page)
    for text, other in others.items():
        (number,) = (number for number, block in enumerate(code) if text in block)
        code[number] = code[number].replace(text, other)
    return code


# The frameworks warn of each other, and of what examples are: small, on one CPU. What is ours stays an error.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.filterwarnings("error:.*(stream|shard|yogadl)")
def test_the_examples_of_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code = pages.blocks("howto/pytorch.md")
    assert len(code) > 10
    pages.run("howto/pytorch.md", code)


def test_a_job_of_several_ranks_that_gets_sigterm_goes_on_as_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    fewer = {"start(2), 2": "start(1), 1", "start(3), 3": "start(2), 2", "(3) + steps(2)": "(2) + steps(1)"}
    pages.run("howto/preemption.md", shorter("howto/preemption.md", fewer))


def test_the_example_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pages.run("../README.md", pages.blocks("../README.md", "## Use it", "### PyTorch"))


def test_the_tutorial_runs_to_its_end(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pages.run("tutorial.md", pages.blocks("tutorial.md"))


@pytest.mark.filterwarnings("ignore")  # of moto and boto3
def test_the_story_of_a_language_model_runs_to_its_end(tmp_path, monkeypatch):
    pytest.importorskip("moto")
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "set by the page")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(subprocess, "run", functools.partial(pages.run_by, programs("torch")))
    monkeypatch.chdir(tmp_path)
    page = "stories/language_model.md"
    fewer = {"number in range(20)": "number in range(4)", "_ in range(20)": "_ in range(100)"}
    pages.run(page, shorter(page, {**fewer, "integers(20, 120)": "integers(10, 40)"}))


@pytest.mark.filterwarnings("ignore:runs has no whole checkpoint")  # so it begins
def test_the_readmes_trainer_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pages.run("../README.md", pages.blocks("../README.md", "## Use it", "### Hugging Face"))


@pytest.mark.filterwarnings("ignore")  # of trl
def test_the_story_of_chats_runs_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess, "run", functools.partial(pages.run_by, programs("torch")))
    monkeypatch.chdir(tmp_path)
    pages.run("stories/chats.md", pages.blocks("stories/chats.md"))


def test_the_story_of_a_robot_runs_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(subprocess, "run", functools.partial(pages.run_by, programs("torch")))
    monkeypatch.chdir(tmp_path)
    pages.run("stories/robots.md", pages.blocks("stories/robots.md"))


class BaseDataLoader:
    """What the page uses of torchtitan 0.3.0's `BaseDataLoader`, which only who wants it installs."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        dataset: str = ""
        dataset_path: str | None = None


@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_the_dataloader_of_torchtitan_goes_on_on_another_number_of_ranks(tmp_path, monkeypatch):
    if importlib.util.find_spec("torchtitan") is None:
        module = ModuleType("torchtitan.components.dataloader")
        module.BaseDataLoader = BaseDataLoader
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.chdir(tmp_path)
    rows = np.arange(101 * 5).reshape(101, 5)
    yogadl.open_storage("caches").submit({"tokens": rows}, "tokens", "1")
    loader = pages.run("howto/torchtitan.md", pages.blocks("howto/torchtitan.md"))["Tokens"]
    config = loader.Config(dataset="tokens", dataset_path="caches")
    seen, saved, calls = [], "", {"tokenizer": None, "seq_len": 4, "local_batch_size": 5}
    for ranks in (2, 3, 1):
        loaders = [loader(config, dp_world_size=ranks, dp_rank=rank, **calls) for rank in range(ranks)]
        if seen:
            for one in loaders:
                dcp.load({"dataloader": one}, checkpoint_id=saved)
        for _, batches in itertools.product(range(2), [iter(one) for one in loaders]):
            given, labels = next(batches)
            assert (labels == given["input"] + 1).all()
            seen += (given["input"][:, 0] // 5).tolist()
        saved = f"saved by {ranks}"
        dcp.save({"dataloader": loaders[0]}, checkpoint_id=saved)
    assert len(seen) == len(set(seen)) == 5 * 2 * (2 + 3 + 1)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_the_examples_of_docstrings_run(module):
    pages.run_docstrings(module)


def test_there_are_examples():
    assert pages.run_docstrings(*MODULES) > 20


@pytest.mark.parametrize(
    "name", ["yogadl.adapters.torch", "yogadl.adapters.lightning", "yogadl.adapters.transformers"]
)
def test_it_offers_what_is_written_down(name):
    public_api.check(name)
