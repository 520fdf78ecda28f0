"""What the tests of versions that are worked out share."""

import importlib
import itertools
import sys
from textwrap import dedent

import pytest
from versioned_project import PROJECT


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Return what imports the project, with edits, afresh and from a folder of its own."""
    numbers = itertools.count()

    def load(*edits, **modules):
        folder = tmp_path / f"project{next(numbers)}"
        folder.mkdir()
        texts = {**PROJECT, **{name: dedent(text) for name, text in modules.items()}}
        for module, old, new in edits:
            assert texts[module].count(old) == 1, f"{old!r} is not once in {module}"
            texts[module] = texts[module].replace(old, new)
        for name, text in texts.items():
            (folder / f"{name}.py").write_text(text)
            sys.modules.pop(name, None)
        with monkeypatch.context() as patched:
            patched.syspath_prepend(str(folder))
            return importlib.import_module("data")

    yield load
    for name in PROJECT:
        sys.modules.pop(name, None)
