"""A storage with a few caches."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import yogadl


@pytest.fixture
def root(storage):
    return Path(storage.location)


@pytest.fixture
def run(yoga, root):
    """Run the command on the storage."""
    return lambda *words: yoga(*words, "-s", root)


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """Build two versions of a dataset, and another one."""
    storage = yogadl.open_storage(tmp_path_factory.mktemp("built"))

    @storage.cacheable("squares", "1")
    def make(count=11):
        numbers = np.arange(count)
        return {"number": numbers, "square": numbers**2}

    make()
    storage.submit({"number": np.arange(1_000)}, "squares", "2", build=yogadl.BuildOptions(part_bytes=4096))
    storage.submit([{"text": "a"}, {"text": "bb"}], "more/texts", "2024-05")
    return Path(storage.location)


@pytest.fixture
def squares(built, root, storage):
    """Return the storage with copies of those caches."""
    shutil.copytree(built, root, dirs_exist_ok=True)
    return storage


@pytest.fixture
def forgets_modules(monkeypatch):
    """Forget what a test imported from a file, and where it looked."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.split(".")[0].removeprefix("_yogadl_build_") in {"data", "broken", "json", "my-data"}:
            del sys.modules[name]


@pytest.fixture
def file(tmp_path, request):
    """Return a file with the code that the module of tests has for it."""
    path = tmp_path / "data.py"
    path.write_text(request.module.CODE)
    return path


@pytest.fixture
def build(yoga, file, root):
    """Build a version 1 of dataset d from a function of the file."""
    return lambda name, *words: yoga("build", f"{file}:{name}", "d", "1", *words, "-s", root)
