"""Two processes, one of which prunes while the other throws versions away and brings them back."""

import os
import shutil
import time

import pytest
from inside import _folder, local
from processes import Process, until

import yogadl

DAY_S = 86_400.0
ROUNDS = {"folder": 40, "shared": 10}  # with leases, each takes some processes


def opened(root, kind):
    return yogadl.open_storage(root, shared=kind == "shared")


def prune_until_told(folder, kind):
    """Prune as long as the other goes on."""
    for module in (_folder, local):  # the other time of a file can't be set
        module.changed = lambda found: found.st_mtime
    storage = opened(folder / "caches", kind)
    rounds = 0
    while not (folder / "over").exists():
        storage.prune(grace_s=DAY_S)
        (folder / "begun").touch()
        rounds += 1
    return rounds


@pytest.mark.parametrize("kind", ["folder", "shared"])
def test_what_is_deleted_while_another_process_prunes_comes_back(tmp_path, kind):
    storage = opened(tmp_path / "caches", kind)
    for version in ("1", "2"):
        storage.submit([version] * 3, "data", version)
    # So that prune has something to read and to remove, each time.
    storage.submit(["old"], "data", "3")
    storage.delete("data", "3")
    (trashed,) = (tmp_path / "caches/data/trash").iterdir()
    for number in range(50):
        shutil.copy(trashed, trashed.with_name(f"3@{time.time_ns() + number:020d}.json"))
    for number in range(1_000):
        (tmp_path / f"caches/data/parts/{number:064d}.mdb").touch()
    then = time.time() - 2 * DAY_S
    for path in (tmp_path / "caches").rglob("*"):
        os.utime(path, (then, then))
    child = Process(prune_until_told, tmp_path, kind)
    try:
        for _ in until(200, "the child to prune"):
            if (tmp_path / "begun").exists():
                break
        for _ in range(ROUNDS[kind]):
            storage.delete("data", "1")
            storage.undelete("data", "1")
            storage.verify("data", "1")
    finally:
        (tmp_path / "over").touch()
    assert child.result() > 1
    storage.verify("data", "2")
