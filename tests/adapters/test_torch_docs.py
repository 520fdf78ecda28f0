"""The examples of the page about PyTorch, and of the adapter's docstrings, run."""

import doctest
import importlib
import pkgutil
import re
import warnings
from pathlib import Path

import pytest

from yogadl.adapters import _torch

DOCS = Path(__file__).parents[2] / "docs"
MODULES = [f"yogadl.adapters._torch.{module.name}" for module in pkgutil.iter_modules(_torch.__path__)]


# The frameworks warn of each other, and of what examples are: small, on one CPU. What is ours stays an error.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.filterwarnings("error:.*(stream|shard|yogadl)")
def test_the_examples_of_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / "pytorch.md").read_text("utf-8"), re.M | re.S)
    assert len(blocks) > 10
    with warnings.catch_warnings():
        exec(compile("\n".join(blocks), "pytorch.md", "exec"), {"__name__": "pytorch.md"})


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_docstrings_run(name):
    assert not doctest.testmod(importlib.import_module(name)).failed


def test_there_are_examples():
    tried = sum(doctest.testmod(importlib.import_module(name)).attempted for name in MODULES)
    assert tried > 20
