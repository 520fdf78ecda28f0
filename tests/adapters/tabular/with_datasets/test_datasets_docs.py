"""The examples of the page about Hugging Face run."""

import pages
import public_api
import pytest


@pytest.mark.filterwarnings("ignore:runs has no whole checkpoint", "ignore:.*pin_memory")
def test_the_examples_of_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pages.run("howto/huggingface.md", pages.blocks("howto/huggingface.md"))


@pytest.mark.parametrize("name", ["yogadl.adapters.arrays", "yogadl.adapters.datasets"])
def test_it_offers_what_is_written_down(name):
    public_api.check(name)
