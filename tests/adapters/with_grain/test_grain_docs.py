"""The examples of the page about Grain, and of the adapter's docstrings, run."""

import doctest
import re
import warnings
from pathlib import Path

import pytest

from yogadl.adapters.grain import _items, _loader, _sampler, _state

PAGE = Path(__file__).parents[2] / "docs" / "grain.md"


def test_the_examples_of_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
    assert blocks
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        exec(compile("\n".join(blocks), PAGE.name, "exec"), {"__name__": PAGE.name})


@pytest.mark.parametrize("module", [_items, _loader, _sampler, _state])
def test_the_examples_of_the_docstrings_run(module):
    failed, tried = doctest.testmod(module)
    assert tried
    assert not failed
